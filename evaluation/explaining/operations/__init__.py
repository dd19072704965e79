"""What the fresh half and the blind one share: programs each of whose operations can have numerics of its own.

A program does its arithmetic through an `Arithmetic` object: products, functions, narrow sums and narrow elementwise
operations each have a number, and any of them can be given another policy. What JAX lowers of it plainly is the module;
what XLA:CPU makes of it with the numerics written out (and NumPy, of functions that are to be fast or exact) is the truth.
"""
