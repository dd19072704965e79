"""Lowering: the instructions of a computation become the steps of a plan (`computation`).

`binding` makes the kernels of opcodes and library calls; `flow` lowers loops, conditionals and calls, and `exchange`
communication with other devices or the host.
"""
