"""Lowering: the instructions of a computation become the steps of a plan (`computation`).

`process` lowers operations and library calls, for which `binding` makes kernels; `flow` lowers loops, conditionals and
calls, and `exchange` communication with other devices or the host.
"""
