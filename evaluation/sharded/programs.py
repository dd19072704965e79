"""Steps over eight devices by shard_map, to be compared with one device, and what can be wrong in them.

A fault is text of a function that is replaced. What a step is compared with is itself on a mesh of one device, or the
function `<name>_reference`, where there is one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def data(w: Any, x: Any, y: Any) -> Any:
    def loss(w: Any) -> Any:
        hidden = jnp.tanh(x @ w["in"])
        return ((hidden @ w["out"] - y) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    gradient = jax.tree.map(lambda g: lax.pmean(g, "d"), gradient)
    value = lax.pmean(value, "d")
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient), value


def tensor(w: Any, x: Any) -> Any:
    hidden = jax.nn.gelu(x @ w["up"] + w["bias"])
    partial = hidden @ w["down"]
    out = lax.psum(partial, "m")
    normed = (out - out.mean(-1, keepdims=True)) * lax.rsqrt(out.var(-1, keepdims=True) + 1e-3)
    return x + normed * w["gain"]


def trained_tensor(w: Any, x: Any, y: Any) -> Any:
    def loss(w: Any) -> Any:
        hidden = jnp.sin(x @ w["up"])
        out = lax.psum(hidden @ w["down"], "m") + w["bias"]
        return lax.psum(((out - y) ** 2).sum(), "d") / 128

    return loss(w)


def pipeline(w: Any, x: Any) -> Any:
    stages, batches = 8, x.shape[0]
    stage = lax.axis_index("d")
    state = jnp.zeros_like(x[0])
    outputs = jnp.zeros_like(x)
    for tick in range(batches + stages - 1):
        state = jnp.where(stage == 0, x[min(tick, batches - 1)], state)
        state = jnp.tanh(state @ w[0])
        if tick >= stages - 1:
            outputs = outputs.at[tick - stages + 1].set(jnp.where(stage == stages - 1, state, 0))
        state = lax.ppermute(state, "d", [(i, (i + 1) % stages) for i in range(stages)])
    return lax.psum(outputs, "d")


def pipeline_reference(w: Any, x: Any) -> Any:
    for stage in range(8):
        x = jnp.tanh(x @ w[stage])
    return x


def expert(w: Any, x: Any) -> Any:
    scores = jax.nn.softmax(x @ w["router"], -1)
    gates = jnp.where(scores == scores.max(-1, keepdims=True), scores, 0)
    boxes = jnp.einsum("te,td->etd", gates, x)
    sent = lax.all_to_all(boxes, "d", 0, 1, tiled=True)
    done = jnp.einsum("etf,efd->etd", jax.nn.silu(jnp.einsum("etd,edf->etf", sent, w["up"])), w["down"])
    back = lax.all_to_all(done, "d", 1, 0, tiled=True)
    return x + back.sum(0)


def stencil(x: Any, k: Any) -> Any:
    n = lax.axis_size("d")
    left = lax.ppermute(x[-1:], "d", [(i, (i + 1) % n) for i in range(n)])
    right = lax.ppermute(x[:1], "d", [(i, (i - 1) % n) for i in range(n)])
    wide = jnp.concatenate([left, x, right])
    smooth = wide[:-2] * k[0] + wide[1:-1] * k[1] + wide[2:] * k[2]
    return jnp.sin(smooth) + x


def attention(w: Any, x: Any) -> Any:
    q, k, v = x @ w["q"], x @ w["k"], x @ w["v"]
    keys = lax.all_gather(k, "d", axis=0, tiled=True)
    values = lax.all_gather(v, "d", axis=0, tiled=True)
    first = lax.axis_index("d") * x.shape[0]
    rows = first + jnp.arange(x.shape[0])
    scores = jnp.where(rows[:, None] >= jnp.arange(keys.shape[0]), q @ keys.T, -1e9)
    return x + jax.nn.softmax(scores, -1) @ values


def norm(x: Any, gain: Any) -> Any:
    mean = lax.pmean(x.mean(0), ("d", "m"))
    centred = x - mean
    variance = lax.pmean((centred**2).mean(0), ("d", "m"))
    return centred * lax.rsqrt(variance + 1e-3) * gain


def fully(w: Any, x: Any, y: Any) -> Any:
    def loss(full: Any) -> Any:
        return ((jnp.sin(x @ full) - y) ** 2).mean()

    full = lax.all_gather(w, "d", axis=0, tiled=True)
    value, gradient = jax.value_and_grad(loss)(full)
    mine = lax.psum_scatter(gradient, "d", scatter_dimension=0, tiled=True) / lax.axis_size("d")
    return w - 0.1 * mine, lax.pmean(value, "d")


def clipped(w: Any, x: Any, y: Any) -> Any:
    gradient = lax.pmean(jax.grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w), "d")
    norm = jnp.sqrt(lax.psum((gradient**2).sum(), "m"))
    scale = jnp.minimum(1.0, 0.05 / norm)
    return w - gradient * scale
