"""What works through a sequence step by step: the gradient of an LSTM, Newton's method on a few numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.sizes import Program, array, sized

__all__ = ["lstm_gradient", "newton"]


def lstm_gradient(scale: float) -> Program:
    """256 steps, batch 16, width 128: the loss and its gradient, two `while` loops."""
    size = sized(scale, least=2)
    steps, batch, width = size(256), size(16), size(128)

    def loss(w: Any, xs: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(x @ w["input"] + h @ w["hidden"] + w["bias"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((batch, width))
        _, outputs = jax.lax.scan(cell, (zeros, zeros), xs)
        return jnp.square(outputs).mean()

    weights = {"input": array(width, 4 * width), "hidden": array(width, 4 * width), "bias": array(4 * width)}
    return jax.value_and_grad(loss), (weights, array(steps, batch, width))


def newton(scale: float) -> Program:
    """The cube root of 1 + a² by 2000 iterations on 64 numbers: nothing but the cost of a step."""
    size = sized(scale, least=2)
    iterations, count = size(2000), size(64)

    def cube_root(a: Any) -> Any:
        target = 1 + a * a
        return jax.lax.fori_loop(0, iterations, lambda _, x: x - (x * x * x - target) / (3 * x * x), target)

    return cube_root, (array(count),)
