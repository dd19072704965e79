"""Training steps of small networks, in which everything else meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, nn

from conformance.gpu_programs.networks import convolve
from conformance.gpu_programs.program import GEMM, integers, normal, program, weight


def _cross_entropy(logits: Any, targets: Any) -> Any:
    chosen = jnp.take_along_axis(nn.log_softmax(logits.astype(jnp.float32)), targets[..., None], -1)
    return -chosen.mean()


def _localization(loss: Callable[..., Any], parameters: Any, *data: Any) -> Any:
    """The loss, its gradients, and the parameters after a step, in which an error of the gradients hardly shows."""
    value, gradients = jax.value_and_grad(loss)(parameters, *data)
    updated = jax.tree.map(lambda p, g: p - jnp.asarray(0.125, p.dtype) * g.astype(p.dtype), parameters, gradients)
    return value, gradients, updated


@program({"first": weight(24, 32), "bias": normal(32), "second": weight(32, 10)}, normal(16, 24),
          integers(0, 10, 16), types="f32 bf16", options=GEMM)  # fmt: skip
def train_mlp(parameters, x, labels):
    """Two dense layers, under Adam in f32."""

    def loss(p: Any) -> Any:
        return _cross_entropy(nn.gelu(x @ p["first"] + p["bias"]) @ p["second"], labels)

    value, gradients = jax.value_and_grad(loss)(parameters)
    moments = jax.tree.map(lambda g: 0.1 * g.astype(jnp.float32), gradients)
    squares = jax.tree.map(lambda g: 0.01 * g.astype(jnp.float32) ** 2, gradients)
    updated = jax.tree.map(
        lambda p, m, s: (p.astype(jnp.float32) - 0.01 * m / (jnp.sqrt(s) + 0.1)).astype(p.dtype),
        parameters, moments, squares,
    )  # fmt: skip
    return value, moments, updated


@program(
    {"embedding": normal(40, 32), "scale": normal(2, 32), "qkv": weight(2, 32, 96), "out": weight(2, 32, 32),
     "up": weight(2, 32, 64), "down": weight(2, 64, 32)},
    integers(0, 40, 2, 17), types="f32 bf16", options=GEMM,
)  # fmt: skip
def train_transformer(parameters, words):
    """A decoder of two layers under scan, with checkpoints."""

    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-3)).astype(x.dtype) * scale

    @jax.checkpoint
    def layer(x: Any, w: Any) -> Any:
        q, k, v = jnp.split((norm(x, w["scale"]) @ w["qkv"]).reshape(*x.shape[:2], 12, 8), 3, axis=2)
        attended = nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")
        x = x + attended.reshape(x.shape) @ w["out"]
        return x + nn.gelu(norm(x, w["scale"]) @ w["up"]) @ w["down"], None

    def loss(p: Any) -> Any:
        layers = {name: value for name, value in p.items() if name != "embedding"}
        x, _ = lax.scan(layer, p["embedding"][words[:, :-1]], layers)
        return _cross_entropy(x @ p["embedding"].T / 8, words[:, 1:])

    return _localization(loss, parameters)


@program({"first": weight(3, 3, 3, 16, fan_in=27), "scale": normal(16), "second": weight(3, 3, 16, 16, fan_in=144),
           "head": weight(16, 5)}, normal(4, 12, 12, 3), integers(0, 5, 4), types="f32 f16")  # fmt: skip
def train_convnet(parameters, images, labels):
    """Convolutions, batch normalization, pooling."""

    def loss(p: Any) -> Any:
        x = convolve(images, p["first"])
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        x = nn.silu((x - mean) * lax.rsqrt(variance + 1e-3) * p["scale"])
        x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = nn.silu(convolve(x, p["second"], window_strides=(2, 2)))
        return _cross_entropy(x.mean((1, 2)) @ p["head"], labels)

    return _localization(loss, parameters)


@program({"input": weight(8, 48), "hidden": weight(12, 48), "bias": normal(48), "head": weight(12, 6)},
          normal(10, 4, 8), integers(0, 6, 4), types="f32 bf16")  # fmt: skip
def train_lstm(parameters, xs, labels):
    """A scan over time, forward and backward."""

    def loss(p: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(x @ p["input"] + h @ p["hidden"] + p["bias"], 4, axis=-1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            return (nn.sigmoid(o) * jnp.tanh(c), c), None

        zeros = jnp.zeros((xs.shape[1], 12), xs.dtype)
        (h, _), _ = lax.scan(cell, (zeros, zeros), xs)
        return _cross_entropy(h @ p["head"], labels)

    return _localization(loss, parameters)


@program({"router": weight(16, 4), "up": weight(4, 16, 24), "down": weight(4, 24, 16)}, normal(32, 16),
          normal(32, 16), precision="highest")  # fmt: skip
def train_mixture_of_experts(parameters, x, target):
    """Tokens sorted by expert, grouped products, results scattered back; f32 throughout, so that routing is stable."""

    def loss(p: Any) -> Any:
        weights, chosen = lax.top_k(nn.softmax(x @ p["router"]), 2)
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        sizes = jnp.bincount(chosen.reshape(-1), length=4)
        hidden = nn.silu(lax.ragged_dot(x[order // 2], p["up"], sizes))
        computed = lax.ragged_dot(hidden, p["down"], sizes) * weights.reshape(-1)[order][:, None]
        return ((jnp.zeros_like(x).at[order // 2].add(computed) - target) ** 2).mean()

    return _localization(loss, parameters)
