"""Opcodes that a plan treats by role: calls, loops, branches, tuples, asynchronous pairs."""
