"""Lowering: the instructions of a computation become the steps of a plan (`computation`).

`kernels` lowers operations and library calls, `flow` loops, conditionals, calls, and communication with other devices
or the host.
"""
