"""Programs of one idea each: what a planner does well or badly shows in them undiluted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.programs.sizes import Program, array, sized


def sort_pairs(scale: float) -> Program:
    """64 rows of 16384 pairs, by the f32 keys; the s32 values follow."""
    size = sized(scale)
    shape = size(64), size(16384)
    return (
        lambda keys, values: jax.lax.sort((keys, values), num_keys=1),
        (array(*shape), array(*shape, dtype=np.int32)),
    )


def embedding_gradient(scale: float) -> Program:
    """8192 rows are added to the rows of a 32000 × 256 table that 8192 words name."""
    size = sized(scale, least=2)
    words, vocabulary, width = size(8192), size(32000), size(256)

    def gradient(indices: Any, cotangent: Any) -> Any:
        _, pullback = jax.vjp(lambda table: table[indices], jnp.zeros((vocabulary, width)))
        return pullback(cotangent)[0]

    return gradient, (array(words, dtype=np.int32), array(words, width))


def elementwise_chain(scale: float) -> Program:
    side = sized(scale)(4096)
    return lambda x: jax.nn.gelu(x) * jax.nn.sigmoid(x) + jnp.tanh(x) ** 2, (array(side, side),)


def layer_norm_softmax(scale: float) -> Program:
    side = sized(scale, least=2)(4096)

    def function(x: Any, gain: Any, bias: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        return jax.nn.softmax(normal * gain + bias)

    return function, (array(side, side), array(side), array(side))


def cumulative_sum(scale: float) -> Program:
    size = sized(scale)
    return lambda x: jnp.cumsum(x, axis=1), (array(size(1024), size(4096)),)


def threefry_normal(scale: float) -> Program:
    count = sized(scale)(1 << 20)
    return lambda key: jax.random.normal(key, (count,)), (array(2, dtype=np.uint32),)


def depthwise_convolution(scale: float) -> Program:
    """8 images of 56 × 56 with 192 channels, 3 × 3."""
    size = sized(scale, least=2)
    batch, side, channels = size(8), sized(scale, least=4)(56), size(192)

    def function(x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=channels
        )

    return function, (array(batch, side, side, channels), array(3, 3, 1, channels))


def bf16_mlp(scale: float) -> Program:
    """1024 rows of 1024 numbers to 4096, GELU, and back."""
    size = sized(scale, least=2)
    rows, width, hidden = size(1024), size(1024), size(4096)
    return (
        lambda x, up, down: jax.nn.gelu(x @ up) @ down,
        tuple(array(*shape, dtype=jnp.bfloat16) for shape in ((rows, width), (width, hidden), (hidden, width))),
    )


def fourier(scale: float) -> Program:
    """The transform of 256 rows of 4096 complex numbers, and back."""
    size = sized(scale)
    return lambda x: jnp.fft.ifft(jnp.fft.fft(x)), (array(size(256), size(4096), dtype=np.complex64),)


def max_pool_gradient(scale: float) -> Program:
    """The gradient of a 3 × 3 maximum with stride 2 over 8 × 112 × 112 × 64."""
    size = sized(scale, least=2)
    batch, side, channels = size(8), sized(scale, least=4)(112), size(64)

    def pool(x: Any) -> Any:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    half = -(-side // 2)
    return lambda x, cotangent: jax.vjp(pool, x)[1](cotangent)[0], (
        array(batch, side, side, channels),
        array(batch, half, half, channels),
    )
