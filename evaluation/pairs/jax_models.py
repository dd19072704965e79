"""Small models that JAX lowers, of the kinds that people train and serve, forward and backward.

Parameters that are indices or labels, or that decide which way a program goes, are given so that every border and
branch is met.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evaluation.programs.program import integers, normal

JAX_MODELS: dict[str, Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]] = {}
"""From a name to what gives, from the jax module, a function to lower and its arguments."""


def _register(make: Any) -> Any:
    JAX_MODELS[make.__name__.strip("_")] = make
    return make


@_register
def _mlp(jax: Any) -> Any:
    """Two layers with bias and relu, and a scaled residual; square, so that wrong dimensions fit."""

    def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        hidden = jax.nn.relu(x @ w1 + b1)
        return x + 0.25 * (hidden @ w2 + b2)

    return mlp, (normal(1, 16, 16), normal(2, 16, 16), normal(3, 16), normal(4, 16, 16), normal(5, 16))


@_register
def _layer_norm(jax: Any) -> Any:
    """Rows of little variance, as after an embedding: epsilon matters."""

    def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * scale + bias

    return layer_norm, (0.02 * normal(1, 12, 24), 1 + 0.1 * normal(2, 24), normal(3, 24))


@_register
def _cross_entropy(jax: Any) -> Any:
    def cross_entropy(logits: Any, targets: Any) -> Any:
        def loss(logits: Any) -> Any:
            log_probabilities = jax.nn.log_softmax(logits)
            chosen = jax.numpy.take_along_axis(log_probabilities, targets[:, None], -1)[:, 0]
            return -jax.numpy.where(targets > 0, chosen, 0).sum()

        return jax.value_and_grad(loss)(logits)

    return cross_entropy, (3 * normal(1, 10, 7), integers(2, 7, 10))


@_register
def _conv_net(jax: Any) -> Any:
    """Convolution, batch normalization in training, relu, pooling; a dilated convolution after it."""
    lax, jnp = jax.lax, jax.numpy

    def conv_net(x: Any, kernel: Any, scale: Any, bias: Any, dilated: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, kernel, (2, 2), [(0, 1), (0, 1)], dimension_numbers=numbers)
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        x = jnp.maximum((x - mean) * lax.rsqrt(variance + 1e-3) * scale + bias, 0)
        pooled = lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), [(0, 0), (0, 1), (0, 1), (0, 0)])
        return lax.conv_general_dilated(
            pooled, dilated, (1, 1), [(1, 1), (1, 1)], rhs_dilation=(1, 1), dimension_numbers=numbers
        )

    return conv_net, (
        normal(1, 2, 12, 12, 3),
        normal(2, 3, 3, 3, 4),
        1 + 0.1 * normal(3, 4),
        0.1 * normal(4, 4),
        normal(5, 3, 3, 4, 5),
    )


@_register
def _conv_gradient(jax: Any) -> Any:
    """The gradients of a convolution: one turns the kernel, the other dilates."""

    def conv_gradient(x: Any, kernel: Any, y: Any) -> Any:
        def loss(x: Any, kernel: Any) -> Any:
            result = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return ((result - y) ** 2).sum()

        return jax.grad(loss, (0, 1))(x, kernel)

    return conv_gradient, (normal(1, 2, 7, 7, 3), normal(2, 3, 3, 3, 4), normal(3, 2, 7, 7, 4))


@_register
def _router(jax: Any) -> Any:
    """Tokens go to the two best of their experts, and come back by a sum."""

    def router(x: Any, gate: Any, experts: Any) -> Any:
        jnp = jax.numpy
        weights, chosen = jax.lax.top_k(jax.nn.softmax(x @ gate), 2)
        weights = weights / weights.sum(-1, keepdims=True)
        used = jnp.take(experts, chosen, axis=0, mode="clip")
        counts = jnp.zeros(6, jnp.int32).at[chosen.reshape(-1)].add(1)
        return jnp.einsum("tk,tkde,td->te", weights, used, x), counts

    return router, (normal(1, 14, 8), 3 * normal(2, 8, 6), normal(3, 6, 8, 8))


@_register
def _embedding(jax: Any) -> Any:
    """An embedding and its gradient, in which words that come twice add up; some words are beyond the last."""

    def embedding(table: Any, words: Any, target: Any) -> Any:
        def loss(table: Any) -> Any:
            return ((jax.numpy.take(table, words, axis=0, mode="clip") - target) ** 2).mean()

        return jax.value_and_grad(loss)(table)

    words = np.array([0, 3, 3, 10, 7, 3, 12, 10, 1, 99], np.int32)
    return embedding, (normal(1, 11, 6), words, normal(2, 10, 6))


@_register
def _fourier_filter(jax: Any) -> Any:
    """A low pass: there, a product, and back."""

    def fourier_filter(x: Any, response: Any) -> Any:
        return jax.numpy.fft.irfft(jax.numpy.fft.rfft(x) * response, n=x.shape[-1])

    return fourier_filter, (normal(1, 4, 32), (np.linspace(1, 0, 17) ** 2).astype(np.float32))


@_register
def _ranking(jax: Any) -> Any:
    """Scores in order, with what belongs to them, and how much of the whole the best ones are."""

    def ranking(scores: Any, values: Any) -> Any:
        order, best = jax.lax.sort((-scores, values), num_keys=1, dimension=1)
        return order, best, jax.lax.cumsum(jax.nn.softmax(order), axis=1)

    return ranking, (normal(1, 3, 16), integers(2, 1000, 3, 16))


@_register
def _calendar(jax: Any) -> Any:
    """Integers: a hash that wraps, days before the first of all, remainders of negative numbers."""

    def calendar(days: Any, keys: Any) -> Any:
        weeks = days // 7
        hashed = (keys * np.int32(0x2C1B3C6D)) ^ (keys >> 13)
        return weeks, days - 7 * weeks, hashed + weeks, jax.numpy.arange(12)[:, None] * 16 + days

    return calendar, (integers(1, 400, 12, 12) - 200, integers(2, 2**30, 12, 12) - 2**29)


@_register
def _mixing(jax: Any) -> Any:
    """Three dimensions of one size, so that nothing but the numbers shows which is which."""

    def mixing(x: Any, bias: Any, y: Any) -> Any:
        jnp = jax.numpy
        turned = jnp.transpose(x, (2, 0, 1)) + bias[None, :, None]
        late = jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :8]
        return jnp.einsum("bij,bjk->bik", turned, late), turned

    return mixing, (normal(1, 8, 8, 8), normal(2, 8), normal(3, 8, 8, 8))


@_register
def _mixed_precision(jax: Any) -> Any:
    """A layer in bf16 with a norm and a loss in f32."""

    def mixed_precision(x: Any, w: Any, v: Any) -> Any:
        jnp = jax.numpy
        hidden = (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)
        hidden = hidden * jax.lax.rsqrt((hidden**2).mean(-1, keepdims=True) + 1e-6)
        stored = hidden.astype(jnp.bfloat16).astype(jnp.float32)
        hidden = stored * jnp.exp(-(stored**2))
        out = jnp.tanh(hidden.astype(jnp.bfloat16) @ v.astype(jnp.bfloat16))
        return out.astype(jnp.float32).sum(-1), out

    return mixed_precision, (normal(1, 24, 32), normal(2, 32, 32), normal(3, 32, 16))


@_register
def _quantized(jax: Any) -> Any:
    """Weights rounded to eight bits, with scales; activations with short mantissas."""

    def quantized(x: Any, w: Any) -> Any:
        jnp, lax = jax.numpy, jax.lax
        scale = jnp.abs(w).max(0) / 127
        codes = jnp.clip(jnp.round(w / scale), -127, 127).astype(jnp.int8)
        short = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10)
        return (short @ codes.astype(jnp.float32)) * scale, codes

    return quantized, (normal(1, 10, 32), normal(2, 32, 12))


@_register
def _power_iteration(jax: Any) -> Any:
    """Three steps of a loop whose carry is a vector, its history and a running sum."""

    def power_iteration(matrix: Any, start: Any) -> Any:
        jnp = jax.numpy

        def step(carry: Any, shift: Any) -> Any:
            vector, total = carry
            following = matrix @ vector + shift
            following = following / jnp.sqrt((following**2).sum())
            return (following, total + following * vector), following[:5]

        shifts = jnp.linspace(0.5, 1.5, 6, dtype=jnp.float32)
        return jax.lax.scan(step, (start, jnp.zeros_like(start)), shifts)

    return power_iteration, (normal(1, 12, 12), normal(2, 12))


@_register
def _choice(jax: Any) -> Any:
    """One of three ways, after a look at the data."""

    def choice(x: Any, way: Any) -> Any:
        branches = [lambda x: x * 2 + 1, lambda x: jax.numpy.sin(x) - x, lambda x: x[::-1] / 3]
        y = jax.lax.switch(way, branches, x)
        return jax.lax.cond((y**2).sum() > 1, lambda y: y - y.mean(), lambda y: y + 1, y)

    return choice, (normal(1, 9, 9), np.int32(1))


@_register
def _clipped_gradient(jax: Any) -> Any:
    """Numbers, some of which are missing (NaN) or too large, cleaned up and clipped."""

    def clipped_gradient(gradient: Any, limit: Any) -> Any:
        jnp = jax.numpy
        largest = jnp.maximum(jnp.abs(gradient), limit)
        clean = jnp.where(jnp.isnan(gradient), 0, gradient)
        return largest, jnp.clip(clean, -limit, limit), clean.sum(0)

    gradient = 2 * normal(1, 8, 10)
    gradient[2, 3] = gradient[5, 0] = np.nan
    return clipped_gradient, (gradient, np.full((8, 10), 0.5, np.float32))


@_register
def _tiny_probabilities(jax: Any) -> Any:
    """Products of likelihoods that reach below the smallest normal number, and are scaled up again."""

    def tiny_probabilities(first: Any, second: Any) -> Any:
        joint = first * second
        return joint * np.float32(1e30), joint.sum(-1)

    generator = np.random.default_rng(1)
    exponents = generator.uniform(-21, -17, (2, 6, 8))
    return tiny_probabilities, tuple((10**exponents).astype(np.float32))
