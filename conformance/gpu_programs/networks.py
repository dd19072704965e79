"""Convolutions, pooling, attention and normalization, with their gradients: what cuDNN is called for."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

from conformance.gpu_programs.program import NORM, exactly, integers, normal, program, weight

# Convolutions


def convolve(x: Any, w: Any, **options: Any) -> Any:
    """A convolution in two dimensions, channels last, of stride 1 and padded to the same size unless told otherwise."""
    settings = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    return lax.conv_general_dilated(x, w, **(settings | options))


@program(normal(2, 12, 12, 16), weight(3, 3, 16, 24, fan_in=144), types="f32 bf16 f16")
def convolution(x, w):
    """cuDNN's forward convolution."""
    return convolve(x, w)


@program(normal(2, 16, 10, 10), weight(24, 16, 3, 3, fan_in=144), types="f32")
def convolution_nchw_highest(x, w):
    """Channels first, full f32."""
    return lax.conv(x, w, (1, 1), "VALID", precision="highest")


@program(normal(2, 12, 12, 16), weight(3, 3, 16, 24, fan_in=144), normal(24), types="f32 f16 bf16")
def convolution_bias_relu(x, w, b):
    """cuDNN's convolution with bias and activation."""
    return nn.relu(convolve(x, w) + b)


@program(normal(2, 12, 12, 16), weight(3, 3, 16, 16, fan_in=144), normal(16), types="f32 f16")
def convolution_side_input(x, w, b):
    """A residual connection: bias, side input and activation in one call."""
    return nn.relu(convolve(x, w) + b + x)


@program(normal(2, 10, 10, 8), weight(3, 3, 8, 16, fan_in=72), normal(2, 5, 5, 16), types="f32 bf16")
def convolution_gradients(x, w, upstream):
    """cuDNN's backward convolutions, of the input and of the filter."""
    _, back = jax.vjp(functools.partial(convolve, window_strides=(2, 2)), x, w)
    return back(upstream)


@program(normal(1, 16, 16, 8), weight(3, 3, 8, 8, fan_in=72))
def convolution_dilated(x, w):
    """A window with holes, stride and uneven padding."""
    return convolve(x, w, window_strides=(2, 1), padding=((2, 1), (0, 3)), rhs_dilation=(2, 2))


@program(normal(1, 12, 12, 16), weight(3, 3, 1, 32, fan_in=9), types="f32 bf16")
def convolution_depthwise(x, w):
    """A group per channel."""
    return convolve(x, w, feature_group_count=16)


@program(normal(1, 7, 7, 8), weight(4, 4, 8, 6, fan_in=32))
def convolution_transposed(x, w):
    """A dilated input, as in decoders."""
    return lax.conv_transpose(x, w, (2, 2), "SAME")


@program(normal(2, 40, 8), weight(5, 8, 12, fan_in=40), normal(1, 6, 6, 6, 4), weight(3, 3, 3, 4, 6, fan_in=108))
def convolution_1d_3d(line, w_line, volume, w_volume):
    """One and three spatial dimensions."""
    one = lax.conv_general_dilated(line, w_line, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    three = lax.conv_general_dilated(
        volume, w_volume, (1, 1, 1), "VALID", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
    )
    return one, three


@program(
    integers(-9, 9, 1, 8, 8, 16, dtype=np.int8), integers(-9, 9, 3, 3, 16, 16, dtype=np.int8), types="s8", rule="bits"
)
def convolution_s8(x, w):
    """A convolution of integers whose sums are wanted as f32, which holds them exactly."""
    return convolve(x, w, preferred_element_type=jnp.int32).astype(jnp.float32)


@program(normal(1, 8, 8, 32, of="f8e4m3fn"), weight(3, 3, 32, 32, fan_in=288, of="f8e4m3fn"), types="f8e4m3fn")
def convolution_f8(x, w):
    """A convolution of eight-bit floats, scaled, clamped and rounded to eight bits again."""
    wide = convolve(x, w, preferred_element_type=jnp.float32) * 2
    return jnp.clip(wide, -448, 448).astype(jnp.float8_e4m3fn)


# Windows


@program(normal(2, 9, 9, 6), normal(2, 5, 5, 6))
def pooling_gradients(x, upstream):
    """Maxima and sums over windows, and what their gradients scatter back."""

    def pool(x: Any) -> Any:
        windows = ((1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        return lax.reduce_window(x, -jnp.inf, lax.max, *windows), lax.reduce_window(x, 0.0, lax.add, *windows)

    result, back = jax.vjp(pool, x)
    return result, back((upstream, upstream))


# Attention

_HEADS = (normal(2, 64, 4, 64), normal(2, 64, 4, 64), normal(2, 64, 4, 64))


@program(*_HEADS, types="bf16 f16")
def attention_cudnn(q, k, v):
    """cuDNN's fused attention."""
    return nn.dot_product_attention(q, k, v, implementation="cudnn")


@program(*_HEADS, types="bf16 f16")
def attention_cudnn_causal(q, k, v):
    """cuDNN's fused attention under a causal mask."""
    return nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


@program(*_HEADS, normal(1, 4, 64, 64), types="bf16")
def attention_cudnn_bias(q, k, v, bias):
    """cuDNN's fused attention with a bias on the scores."""
    return nn.dot_product_attention(q, k, v, bias, scale=0.25, implementation="cudnn")


@program(normal(2, 64, 4, 64), normal(2, 64, 2, 64), normal(2, 64, 2, 64),
          exactly(np.array([64, 37], np.int32)), types="bf16")  # fmt: skip
def attention_cudnn_lengths(q, k, v, lengths):
    """cuDNN's fused attention with grouped queries, over sequences of different length."""
    return nn.dot_product_attention(
        q, k, v, query_seq_lengths=lengths, key_value_seq_lengths=lengths, implementation="cudnn"
    )


@program(*_HEADS, types="bf16")
def attention_cudnn_window(q, k, v):
    """cuDNN's fused attention in a sliding window."""
    return nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(16, 0), implementation="cudnn")


@program(*_HEADS, normal(2, 64, 4, 64), types="bf16 f16")
def attention_cudnn_gradient(q, k, v, upstream):
    """cuDNN's fused attention, forward and backward, under a causal mask."""
    attend = functools.partial(nn.dot_product_attention, is_causal=True, implementation="cudnn")
    result, back = jax.vjp(attend, q, k, v)
    return result, back(upstream)


@program(normal(2, 32, 4, 16), normal(2, 32, 4, 16), normal(2, 32, 4, 16), types="f32 bf16")
def attention_unfused(q, k, v):
    """Attention as products and a softmax of the compiler's own."""
    return nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")


@program(normal(2, 32, 4, 16), normal(2, 32, 4, 16), normal(2, 32, 4, 16), types="f32",
          precision="highest")  # fmt: skip
def attention_unfused_gradient(q, k, v):
    """The gradient of it."""

    def loss(*parts: Any) -> Any:
        return (nn.dot_product_attention(*parts, is_causal=True, implementation="xla") ** 2).sum()

    return jax.grad(loss, (0, 1, 2))(q, k, v)


# Normalization


def _layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    normalized = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return (normalized * scale + bias).astype(x.dtype)


@program(normal(32, 64), normal(64, of="f32"), normal(64, of="f32"), types="f32 bf16")
def layer_norm(x, scale, bias):
    """Layer normalization in kernels of the compiler."""
    return _layer_norm(x, scale, bias)


@program(normal(32, 64), normal(64, of="f32"), normal(64, of="f32"), types="f32 bf16", options=NORM)
def layer_norm_cudnn(x, scale, bias):
    """Layer normalization by cuDNN."""
    return _layer_norm(x, scale, bias)


@program(normal(32, 64), normal(64, of="f32"), normal(64, of="f32"), normal(32, 64), options=NORM)
def layer_norm_gradient(x, scale, bias, upstream):
    """Its gradient, whose means cancel."""
    result, back = jax.vjp(_layer_norm, x, scale, bias)
    return result, back(upstream)


@program(normal(32, 96), normal(96), types="f32 bf16")
def rms_norm(x, scale):
    """Division by the root mean square."""
    return x * lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-5).astype(x.dtype) * scale


@program(normal(4, 6, 6, 16), normal(16), normal(16), normal(4, 6, 6, 16))
def batch_norm_gradient(x, scale, bias, upstream):
    """Batch normalization in training: statistics over three dimensions, and the gradient."""

    def normalize(x: Any, scale: Any, bias: Any) -> Any:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * lax.rsqrt(variance + 1e-3) * scale + bias

    result, back = jax.vjp(normalize, x, scale, bias)
    return result, back(upstream)


@program(normal(24, 200, scale=3.0), types="f32 bf16")
def softmax(x):
    """A row-wise softmax and its logarithm, in which a fusion reduces twice."""
    return nn.softmax(x), nn.log_softmax(x)
