"""Plans as Python: straight-line functions that do what the interpreter does, without its loop over steps.

`writer` generates code for plans, `loop_writer` for loops. `compiling` decides when a plan is compiled, and traces
errors in a function to their steps. The plan alone determines what is computed.
"""
