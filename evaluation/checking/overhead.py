"""What a clean call costs with `hx.check`: two training steps with Adam, that return all parameters."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import numpy as np


def _layers(*widths: int) -> Any:
    chance = np.random.default_rng(1)
    return [
        {"w": (chance.normal(size=(m, n)) / m**0.5).astype(np.float32), "b": np.zeros(n, np.float32)}
        for m, n in itertools.pairwise(widths)
    ]


def _step(state: Any, x: Any, y: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def loss(layers: Any) -> Any:
        h = x
        for layer in layers[:-1]:
            h = jax.nn.relu(h @ layer["w"] + layer["b"])
        return jnp.mean((h @ layers[-1]["w"] + layers[-1]["b"] - y) ** 2)

    layers, mean, square = state
    value, g = jax.value_and_grad(loss)(layers)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, g)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, g)
    layers = jax.tree.map(lambda p, m, s: p - 1e-3 * m / (jnp.sqrt(s) + 1e-8), layers, mean, square)
    return (layers, mean, square), value


def _seconds(function: Any, arguments: Any) -> float:
    import jax

    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def measure(name: str, batch: int, widths: tuple[int, ...], count: int) -> str:
    """The median times without and with a check, taken in turn."""
    import jax

    import hloexec.jax as hx

    layers = _layers(*widths)
    zeros = jax.tree.map(np.zeros_like, layers)
    x, y = (np.random.default_rng(2).normal(size=(batch, n)).astype(np.float32) for n in (widths[0], widths[-1]))
    arguments = jax.device_put(((layers, zeros, zeros), x, y))
    plain, checked = jax.jit(_step), hx.check(jax.jit(_step))
    for function in (plain, checked) * 5:
        _seconds(function, arguments)
    times = [(_seconds(plain, arguments), _seconds(checked, arguments)) for _ in range(count)]
    before, after = (statistics.median(column) * 1e6 for column in zip(*times, strict=True))
    each = statistics.median(second - first for first, second in times) * 1e6
    return f"{name}: {before:.0f} µs without, {after:.0f} µs with, difference {each:.0f} µs ({each / before:.1%})"
