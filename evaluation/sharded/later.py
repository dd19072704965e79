"""Further steps over eight devices that are held back, written after those of `reserve` had been looked at."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def sequenced(w: Any, x: Any) -> Any:
    normed = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3)
    whole = lax.all_gather(normed, "m", axis=1, tiled=True)
    partial = jax.nn.gelu(whole @ w["up"]) @ w["down"]
    mine = lax.psum_scatter(partial, "m", scatter_dimension=1, tiled=True)
    return x + mine * w["gain"]


def embedded(table: Any, w: Any, tokens: Any) -> Any:
    size = table.shape[0]
    numbers = (jnp.abs(tokens) * 20).astype(jnp.int32) % (size * lax.axis_size("m"))
    place = numbers - lax.axis_index("m") * size
    is_mine = (place >= 0) & (place < size)
    rows = jnp.where(is_mine[..., None], table[jnp.clip(place, 0, size - 1)], 0.0)
    vectors = lax.psum(rows, "m")
    return jnp.tanh(vectors @ w)


def optimized(w: Any, first: Any, second: Any, x: Any, y: Any) -> Any:
    def loss(w: Any) -> Any:
        return ((jnp.sin(x @ w) - y) ** 2).mean() / lax.axis_size("m")

    value, gradient = jax.value_and_grad(loss)(w)
    gradient = lax.pmean(gradient, "d")
    norm = jnp.sqrt(lax.psum((gradient**2).sum(), "m"))
    gradient = gradient * jnp.minimum(1.0, 0.02 / norm)
    first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
    return w - 0.01 * first / (jnp.sqrt(second) + 1e-3), first, second, lax.psum(lax.pmean(value, "d"), "m")


def transformed(x: Any) -> Any:
    rows = jnp.fft.fft(x, axis=1)
    turned = lax.all_to_all(rows, "d", 1, 0, tiled=True)
    columns = jnp.fft.fft(turned, axis=0)
    back = lax.all_to_all(columns, "d", 0, 1, tiled=True)
    return jnp.abs(back)


def counted(x: Any) -> Any:
    low, high = lax.pmin(x.min(), ("d", "m")), lax.pmax(x.max(), ("d", "m"))
    bins = jnp.clip(((x - low) / (high - low) * 10).astype(jnp.int32), 0, 9)
    mine = jnp.zeros(10, jnp.float32).at[bins.reshape(-1)].add(1.0)
    total = lax.psum(mine, ("d", "m"))
    return total / total.sum(), low, high


def relaxed(x: Any) -> Any:
    n = lax.axis_size("d")
    right, left = [(i, (i + 1) % n) for i in range(n)], [((i + 1) % n, i) for i in range(n)]

    def sweep(_: Any, carry: Any) -> Any:
        x, _ = carry
        before = lax.ppermute(x[-1:], "d", right)
        after = lax.ppermute(x[:1], "d", left)
        wide = jnp.concatenate([before, x, after])
        new = 0.5 * x + 0.25 * (wide[:-2] + wide[2:]) + 0.01 * jnp.sin(x)
        return new, lax.pmax(jnp.abs(new - x).max(), "d")

    return lax.fori_loop(0, 5, sweep, (x, jnp.float32(0)))
