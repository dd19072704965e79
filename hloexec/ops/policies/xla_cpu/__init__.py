"""What XLA:CPU computes of f32, bit for bit: fused multiply-adds, and its own approximations of functions.

The `xla-cpu` policy runs on these instead of NumPy's functions. Source: measured, XLA:CPU of jaxlib 0.10 on x86-64.
"""
