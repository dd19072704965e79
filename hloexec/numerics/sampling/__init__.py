"""What rounding does to a module's results, measured by runs that round at random: the runs, what is kept of them, and
the scale and the tolerance that follow for each element."""
