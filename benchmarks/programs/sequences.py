"""What works through a sequence step by step: an LSTM and a GRU in training, Newton's method on a few numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.programs.sizes import Program, array, sized


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


def gru_train_step(scale: float) -> Program:
    """A language model of 2 layers of width 192 on 32 × 96 letters out of 256: clipped gradients, momentum.

    Cho et al., Learning phrase representations (2014), with the reset gate behind the product, as libraries have it.
    """
    size = sized(scale, least=2)
    layers, width, batch, steps, letters = 2, size(192), size(32), size(96), size(256)

    def cell(w: Any, h: Any, x: Any) -> Any:
        reset, update, new = jnp.split(x @ w["input"] + w["bias"], 3, axis=-1)
        of_reset, of_update, of_new = jnp.split(h @ w["hidden"], 3, axis=-1)
        update = jax.nn.sigmoid(update + of_update)
        return (1 - update) * jnp.tanh(new + jax.nn.sigmoid(reset + of_reset) * of_new) + update * h

    def loss(weights: Any, words: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            after = []
            for w, h in zip(weights["layers"], state, strict=True):
                x = cell(w, h, x)
                after.append(x)
            return after, x

        read = weights["embedding"][words[:-1]]
        _, outputs = jax.lax.scan(step, [jnp.zeros((batch, width))] * layers, read)
        likelihoods = jax.nn.log_softmax(outputs @ weights["head"])
        return -jnp.take_along_axis(likelihoods, words[1:, :, None], -1).mean()

    def train_step(weights: Any, momentum: Any, words: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, words)
        norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
        clipped = jax.tree.map(lambda g: g * jnp.minimum(1, 1 / norm), gradient)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, clipped)
        return value, jax.tree.map(lambda p, m: p - 0.1 * m, weights, momentum), momentum

    layer = {"input": array(width, 3 * width), "hidden": array(width, 3 * width), "bias": array(3 * width)}
    weights = {"embedding": array(letters, width), "head": array(width, letters), "layers": [layer] * layers}
    return train_step, (weights, weights, array(steps + 1, batch, dtype=np.int32))


def newton(scale: float) -> Program:
    """The cube root of 1 + a² by 2000 iterations on 64 numbers: nothing but the cost of a step."""
    size = sized(scale, least=2)
    iterations, count = size(2000), size(64)

    def cube_root(a: Any) -> Any:
        target = 1 + a * a
        return jax.lax.fori_loop(0, iterations, lambda _, x: x - (x * x * x - target) / (3 * x * x), target)

    return cube_root, (array(count),)
