"""Triton kernels (`__gpu$xla.gpu.triton`, Pallas for GPUs): MLIR in Triton's dialect, run for many instances at once.

The reader, the IR and the operations of arith and math are those of `mosaic`. `instances` gives the types of a kernel a
leading dimension, along which its program instances lie; `memory` holds the buffers behind its pointers, and `machine`
says which instances are active; `operations` has one entry per operation; `calls` is the entry of the library call.
"""
