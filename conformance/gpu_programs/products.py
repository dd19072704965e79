"""Matrix products: cuBLAS and its epilogues, eight-bit floats, blocks with scales, groups of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

from conformance.gpu_programs.program import GEMM, exactly, integers, normal, program, uniform, weight


@program(normal(48, 64), weight(64, 80), types="f32 bf16 f16", options=GEMM)
def matmul(x, w):
    """A matrix product by cuBLAS."""
    return x @ w


@program(normal(48, 64), weight(64, 80), precision="highest", options=GEMM)
def matmul_highest(x, w):
    """A matrix product in full f32: no TF32."""
    return x @ w


@program(normal(64, 128), weight(128, 96), normal(96), types="f32 bf16 f16")
def matmul_autotuned(x, w, b):
    """A matrix product with an epilogue, by whatever the compiler finds fastest (Triton, cuBLAS, cuDNN)."""
    return nn.silu(x @ w + b)


@program(normal(48, 64), weight(64, 80), normal(80), types="f32 bf16", options=GEMM)
def matmul_bias(x, w, b):
    """cuBLASLt's epilogue BIAS."""
    return x @ w + b


@program(normal(48, 64), weight(64, 80), normal(80), types="f32 bf16 f16", options=GEMM)
def matmul_bias_relu(x, w, b):
    """cuBLASLt's epilogue BIAS_RELU."""
    return nn.relu(x @ w + b)


@program(normal(48, 64), weight(64, 80), normal(80), types="f32 bf16", options=GEMM)
def matmul_bias_gelu(x, w, b):
    """cuBLASLt's epilogue GELU_BIAS."""
    return nn.gelu(x @ w + b)


@program(normal(48, 64), weight(64, 80), normal(80), types="f32 bf16", options=GEMM)
def matmul_bias_gelu_aux(x, w, b):
    """cuBLASLt's epilogue GELU_AUX_BIAS: what goes into the gelu is a result too."""
    before = x @ w + b
    return nn.gelu(before), before


@program(normal(48, 64), weight(64, 80), normal(80), normal(48, 80), types="f32 bf16", options=GEMM)
def matmul_bias_silu_gradient(x, w, b, upstream):
    """The three products of a dense layer's gradient, with a sum over rows for the bias."""
    _, back = jax.vjp(lambda *parameters: nn.silu(parameters[0] @ parameters[1] + parameters[2]), x, w, b)
    return back(upstream)


@program(normal(48, 64), weight(64, 80), normal(48, 80), types="f32 bf16", options=GEMM)
def matmul_alpha_beta(x, w, c):
    """alpha and beta of a gemm, both neither 0 nor 1."""
    return 0.5 * (x @ w) + 3 * c


@program(normal(3, 24, 40), weight(3, 32, 40, fan_in=40), types="f32 bf16", options=GEMM)
def matmul_batched_transposed(x, w):
    """A strided batch, with one operand and the result transposed."""
    return jnp.einsum("bmk,bnk->bnm", x, w)


@program(integers(-128, 128, 32, 64, dtype=np.int8), integers(-128, 128, 64, 48, dtype=np.int8), types="s8",rule="bits",
          options=GEMM)  # fmt: skip
def matmul_s8(x, w):
    """A product of integers in s32."""
    return lax.dot(x, w, preferred_element_type=jnp.int32)


@program(normal(24, 32), normal(24, 32), weight(32, 16), weight(32, 16), options=GEMM)
def matmul_c64(real, imaginary, w_real, w_imaginary):
    """A product of complex numbers."""
    return lax.complex(real, imaginary) @ lax.complex(w_real, w_imaginary)


@program(normal(96, 256), weight(256, fan_in=256), types="f32 bf16")
def matrix_times_vector(x, v):
    """A product that is a kernel of its own, not a gemm."""
    return x @ v


@program(normal(24, 32), weight(3, 32, 16), exactly(np.array([10, 0, 14], np.int32)), types="f32 bf16")
def ragged_dot(x, w, sizes):
    """Groups of rows, each with a matrix of its own."""
    return lax.ragged_dot(x, w, sizes)


@program(normal(32, 64), integers(-8, 8, 64, 48, dtype=np.int8), uniform(0.02, 0.05, 48), types="bf16")
def matmul_int4_weights(x, w, scale):
    """Weights of four bits, widened and scaled inside of the product."""
    return (x @ w.astype(jnp.int4).astype(x.dtype)) * scale


@program(normal(32, 64, of="f8e4m3fn"), normal(64, 48, of="f8e4m3fn"), types="f8e4m3fn", options=GEMM)
def matmul_f8(x, w):
    """A product of eight-bit floats, accumulated in f32."""
    return lax.dot(x, w, preferred_element_type=jnp.float32)


@program(normal(32, 64, of="f8e4m3fn"), normal(64, 48, of="f8e4m3fn"), uniform(0.5, 2, of="f32"),
          uniform(0.5, 2, of="f32"), types="bf16", options=GEMM)  # fmt: skip
def matmul_f8_scaled(x, w, x_scale, w_scale):
    """cuBLASLt's product of scaled eight-bit floats, from the pattern of dequantized operands."""
    wide = (value.astype(jnp.bfloat16) * scale.astype(jnp.bfloat16) for value, scale in ((x, x_scale), (w, w_scale)))
    return lax.dot(*wide)


@program(normal(32, 64, of="f8e5m2"), normal(64, 48, of="f8e4m3fn"), uniform(0.5, 2, of="f32"),
          normal(48), types="bf16", options=GEMM)  # fmt: skip
def matmul_f8_bias_relu(x, w, scale, b):
    """Both eight-bit formats in one product, with an epilogue."""
    product = lax.dot(x.astype(jnp.bfloat16) * scale.astype(jnp.bfloat16), w.astype(jnp.bfloat16))
    return nn.relu(product + b)


@program(normal(32, 64, of="f8e4m3fn"), normal(64, 48, of="f8e4m3fn"), uniform(4, 8, of="f32"), types="f8e4m3fn",
          options=GEMM)  # fmt: skip
def matmul_f8_result(x, w, scale):
    """A product that is scaled, clamped and rounded to eight bits, with the largest absolute value beside it."""
    product = lax.dot(x.astype(jnp.float32), w.astype(jnp.float32))
    limited = jnp.clip(product / scale, -448, 448).astype(jnp.float8_e4m3fn)
    return limited, jnp.max(jnp.abs(product))


@program(normal(2, 32, 128), weight(2, 48, 128, fan_in=128), types="bf16")
def matmul_block_scaled(x, w):
    """JAX's own product of blocks of 32 eight-bit floats with a common scale."""
    configuration = nn.get_scaled_dot_general_config("mxfp8")
    return nn.scaled_dot_general(
        x, w, (((2,), (2,)), ((0,), (0,))), preferred_element_type=x.dtype, configs=[configuration] * 3
    )


@program(normal(1, 128, 128, of="f8e4m3fn"), normal(1, 128, 128, of="f8e4m3fn"),
          uniform(1, 2, 1, 128, 4, of="f32"), uniform(1, 2, 1, 128, 4, of="f32"), types="f32")  # fmt: skip
def matmul_scaled_blocks(x, w, x_scales, w_scales):
    """A product of blocks whose scales are powers of two."""
    scales = (value.astype(jnp.float8_e8m0fnu) for value in (x_scales, w_scales))
    return nn.scaled_matmul(x, w, *scales, preferred_element_type=jnp.float32)
