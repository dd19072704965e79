"""Imports all libraries, to fill the registry; imported when a target is first looked up."""

import hloexec.ops.library_calls.compiler
import hloexec.ops.library_calls.cpu
import hloexec.ops.library_calls.cublas.matmul
import hloexec.ops.library_calls.cudnn.attention
import hloexec.ops.library_calls.cudnn.convolutions
import hloexec.ops.library_calls.cudnn.norm
import hloexec.ops.library_calls.jax_gpu
import hloexec.ops.library_calls.linalg.cusolver
import hloexec.ops.library_calls.linalg.decompositions
import hloexec.ops.library_calls.linalg.lapack
import hloexec.ops.library_calls.linalg.sparse
import hloexec.ops.library_calls.mosaic.calls
import hloexec.ops.library_calls.search
import hloexec.ops.library_calls.tpu
import hloexec.ops.library_calls.transformer_engine.attention
import hloexec.ops.library_calls.transformer_engine.norms
import hloexec.ops.library_calls.transformer_engine.quantization
import hloexec.ops.library_calls.triton.calls
