"""Plans as Python: straight-line functions that do what the interpreter does, without its loop over steps.

`code` represents such a function, and traces errors in it to their steps; `writer` generates code for plans,
`loop_writer` for loops. `compiling` decides when a plan is compiled. The plan alone determines what is computed.
"""
