"""Values of all instructions in another run of a module: what pages show beside a result.

`watched` runs a tool's function for it, which gives the figures of all instructions (`findings`) and samples of those
that the result singles out (`sampling`). `recording` has the observers, `values` the function of most tools.
"""
