"""The reserve half: programs of other fields, written after the search, whose numerics vary where JAX writes them.

A program computes each product through a `Written` object that it is given. That object rounds and splits operands as a
backend would, and the program asks it which fault to have: XLA:CPU then runs what JAX lowers, and no code of hloexec's
takes part in the truth. What XLA:CPU cannot do is computed by NumPy.
"""
