"""Steps over eight devices that are held back: they are looked at when they have been measured."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def zero(w: Any, moment: Any, x: Any, y: Any) -> Any:
    value, gradient = jax.value_and_grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w)
    size = moment.shape[0]
    shard = lax.psum_scatter(gradient, "d", scatter_dimension=0, tiled=True) / lax.axis_size("d")
    moment = 0.9 * moment + shard
    mine = lax.dynamic_slice_in_dim(w, lax.axis_index("d") * size, size)
    new = lax.all_gather(mine - 0.1 * moment, "d", axis=0, tiled=True)
    return new, moment, lax.pmean(value, "d")


def ring(q: Any, k: Any, v: Any) -> Any:
    n, rank = lax.axis_size("d"), lax.axis_index("d")
    rows = rank * q.shape[0] + jnp.arange(q.shape[0])
    around = [(i, (i + 1) % n) for i in range(n)]
    total, weight = jnp.zeros_like(v), jnp.zeros(q.shape[0])
    for step in range(n):
        columns = (rank - step) % n * k.shape[0] + jnp.arange(k.shape[0])
        scores = jnp.where(rows[:, None] >= columns, jnp.exp(q @ k.T), 0.0)
        total, weight = total + scores @ v, weight + scores.sum(-1)
        k = lax.ppermute(k, "d", around)
        v = lax.ppermute(v, "d", around)
    return total / weight[:, None]


def widened(x: Any, axis: str, dimension: int) -> Any:
    n = lax.axis_size(axis)
    ahead = [(i, i + 1) for i in range(n - 1)]
    back = [(i + 1, i) for i in range(n - 1)]
    last, first = x.shape[dimension] - 1, 0
    before = lax.ppermute(lax.slice_in_dim(x, last, last + 1, axis=dimension), axis, ahead)
    after = lax.ppermute(lax.slice_in_dim(x, first, first + 1, axis=dimension), axis, back)
    return jnp.concatenate([before, x, after], dimension)


def halo(x: Any, k: Any) -> Any:
    wide = widened(x, "d", 0)
    wide = widened(wide, "m", 1)
    rows, columns = x.shape
    parts = [k[i, j] * wide[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return jnp.tanh(sum(parts))


def halo_reference(x: Any, k: Any) -> Any:
    rows, columns = x.shape
    wide = jnp.pad(x, 1)
    parts = [k[i, j] * wide[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return jnp.tanh(sum(parts))


def vocabulary(w: Any, x: Any, y: Any) -> Any:
    logits = x @ w
    size = w.shape[1]
    targets = (jnp.abs(y) * 10).astype(jnp.int32) % (size * lax.axis_size("m"))
    top = lax.stop_gradient(lax.pmax(logits.max(-1), "m"))
    norm = lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "m")
    mine = targets - lax.axis_index("m") * size
    own = jnp.where((mine >= 0) & (mine < size), jnp.take_along_axis(logits, (mine % size)[:, None], 1)[:, 0], 0.0)
    picked = lax.psum(own, "m")
    return lax.pmean((jnp.log(norm) + top - picked).mean(), "d")


def batched(w: Any, x: Any, y: Any) -> Any:
    def loss(w: Any) -> Any:
        out = x @ w["w"]
        mean = lax.pmean(out.mean(0), "d")
        variance = lax.pmean(((out - mean) ** 2).mean(0), "d")
        out = (out - mean) * lax.rsqrt(variance + 1e-3) * w["gain"]
        return lax.pmean(((out - y) ** 2).mean(), "d")

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient), value


def scanned(w: Any, x: Any) -> Any:
    stages, batches = lax.axis_size("d"), x.shape[0]
    stage = lax.axis_index("d")
    padded = jnp.concatenate([x, jnp.zeros((stages - 1, *x.shape[1:]), x.dtype)])

    def tick_once(carry: Any, tick: Any) -> Any:
        state, outputs = carry
        state = jnp.where(stage == 0, padded[tick], state)
        state = jnp.sin(state @ w[0])
        place = tick - stages + 1
        kept = jnp.where((stage == stages - 1) & (place >= 0), state, 0.0)
        outputs = outputs.at[jnp.maximum(place, 0)].add(kept)
        return (lax.ppermute(state, "d", [(i, (i + 1) % stages) for i in range(stages)]), outputs), None

    start = (jnp.zeros_like(x[0]), jnp.zeros_like(x))
    (_, outputs), _ = lax.scan(tick_once, start, jnp.arange(batches + stages - 1))
    return lax.psum(outputs, "d")


def scanned_reference(w: Any, x: Any) -> Any:
    def through(one: Any) -> Any:
        for stage in range(8):
            one = jnp.sin(one @ w[stage])
        return one

    return jnp.stack([through(x[batch]) for batch in range(x.shape[0])])
