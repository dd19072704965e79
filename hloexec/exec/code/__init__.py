"""Plans as Python: straight-line functions that do what the machine does, without its loop over steps.

`code` is what such a function is, and how an error in it is traced to its step; `writer` writes plans, `loop_writer`
loops. `compiling` says when a plan becomes one. What is computed is said by the plan alone.
"""
