"""Mosaic TPU kernels (`tpu_custom_call`, Pallas): read from MLIR bytecode, and run operation by operation.

`reading` makes `ir` of the bytecode; `operations` is the registry, with one entry per MLIR operation; `grid` runs the
body of a kernel once per grid point, and moves its blocks; `calls` is the entry of the library call.
"""
