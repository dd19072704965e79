"""One training step of a decoder: 4 layers of width 256, a vocabulary of 4096, 4 × 128 tokens, Adam.

In bf16 the parameters and the optimizer's state stay in f32, as people train; the layers compute in bf16.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.programs.sizes import Program, array, sized


def train_step(scale: float, dtype: Any) -> Program:
    size = sized(scale, least=2)
    heads = sized(scale)(8)
    width = heads * max(2, round(256 * scale / heads))
    layers, vocabulary, batch, length = size(4), size(4096), size(4), size(128)

    def norm(x: Any, gain: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * gain

    def attention(x: Any, w: Any) -> Any:
        q, k, v = (part.reshape(batch, length, heads, width // heads) for part in jnp.split(x @ w["qkv"], 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ w["out"]

    def loss(parameters: Any, words: Any) -> Any:
        narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), parameters)
        x = narrow["embedding"][words[:, :-1]] + narrow["positions"]
        for w in narrow["layers"]:
            x = x + attention(norm(x, w["gain1"]), w)
            x = x + jax.nn.gelu(norm(x, w["gain2"]) @ w["up"]) @ w["down"]
        logits = (norm(x, narrow["gain"]) @ narrow["embedding"].T).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), words[:, 1:, None], -1).mean()

    def step(parameters: Any, first: Any, second: Any, words: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(parameters, words)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        parameters = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), parameters, first, second)
        return value, parameters, first, second

    layer = {
        "gain1": array(width),
        "gain2": array(width),
        "qkv": array(width, 3 * width),
        "out": array(width, width),
        "up": array(width, 4 * width),
        "down": array(4 * width, width),
    }
    parameters = {
        "embedding": array(vocabulary, width),
        "positions": array(length, width),
        "gain": array(width),
        "layers": [layer] * layers,
    }
    return step, (parameters, parameters, parameters, array(batch, length + 1, dtype=np.int32))
