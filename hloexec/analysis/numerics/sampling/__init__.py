"""Measuring the rounding error of a module's results with runs that round at random: the runs, the statistics that are
kept, and the resulting scale and tolerance of each element."""
