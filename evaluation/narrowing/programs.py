"""Training steps in plain JAX, with parameters as people initialize them, and data that can be learnt.

Each is a function of its state and a batch; it returns the loss and the new state. Those in `HELD_BACK` were written
before the search was measured on them, and are measured last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import jax
import numpy as np
from jax import lax, nn
from jax import numpy as jnp

import hloexec
from hloexec.core.ir import Module

Tree = Any


@attrs.frozen
class Step:
    """A training step: `run(state, batch)` gives the loss and the next state."""

    name: str
    run: Callable[..., Any]
    make: Callable[[np.random.Generator], tuple[Tree, Tree]]
    """State and batch from random numbers."""

    def inputs(self, seed: int) -> list[np.ndarray[Any, Any]]:
        """One array per parameter of the module."""
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.make(np.random.default_rng(seed)))]

    def module(self) -> Module:
        """As JAX lowers it."""
        state, batch = self.make(np.random.default_rng(0))
        return hloexec.parse(jax.jit(self.run).lower(state, batch).as_text("hlo", debug_info=True))


def _normal(generator: np.random.Generator, *shape: int, scale: float | None = None) -> Any:
    """Weights that keep the size of what they are multiplied with."""
    fan_in = int(np.prod(shape[:-1]))
    return (generator.normal(size=shape) * (fan_in**-0.5 if scale is None else scale)).astype(np.float32)


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def _cross_entropy(logits: Any, targets: Any) -> Any:
    return -jnp.take_along_axis(nn.log_softmax(logits), targets[..., None], -1).mean()


def _adam(loss: Callable[..., Any], rate: float) -> Callable[..., Any]:
    def run(state: Tree, batch: Tree) -> Any:
        parameters, first, second = state
        value, gradient = jax.value_and_grad(loss)(parameters, batch)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradient)
        parameters = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), parameters, first, second)
        return value, (parameters, first, second)

    return run


def _momentum(loss: Callable[..., Any], rate: float) -> Callable[..., Any]:
    def run(state: Tree, batch: Tree) -> Any:
        parameters, velocity = state
        value, gradient = jax.value_and_grad(loss)(parameters, batch)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradient)
        return value, (jax.tree.map(lambda p, v: p - rate * v, parameters, velocity), velocity)

    return run


def _zeros_like(tree: Tree) -> Tree:
    return jax.tree.map(np.zeros_like, tree)


def _layer_norm(x: Any, gain: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain


def _transformer() -> Step:
    width, heads, length, words, layers, batch = 32, 4, 16, 64, 2, 4

    def layer(x: Any, w: Any) -> Any:
        q, k, v = (
            part.reshape(batch, length, heads, width // heads)
            for part in jnp.split(_layer_norm(x, w["gain1"]) @ w["qkv"], 3, axis=-1)
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v).reshape(x.shape) @ w["out"]
        return x + nn.gelu(_layer_norm(x, w["gain2"]) @ w["up"]) @ w["down"]

    def loss(w: Any, text: Any) -> Any:
        x = w["embedding"][text[:, :-1]] + w["positions"]
        for each in w["layers"]:
            x = layer(x, each)
        return _cross_entropy(_layer_norm(x, w["gain"]) @ w["embedding"].T, text[:, 1:])

    def make(generator: np.random.Generator) -> tuple[Tree, Tree]:
        def one() -> Tree:
            return {
                "gain1": _ones(width),
                "gain2": _ones(width),
                "qkv": _normal(generator, width, 3 * width),
                "out": _normal(generator, width, width),
                "up": _normal(generator, width, 4 * width),
                "down": _normal(generator, 4 * width, width),
            }

        parameters = {
            "embedding": _normal(generator, words, width, scale=0.1),
            "positions": _normal(generator, length, width, scale=0.1),
            "gain": _ones(width),
            "layers": [one() for _ in range(layers)],
        }
        text = generator.integers(0, words, (batch, length + 1)).astype(np.int32)
        return (parameters, _zeros_like(parameters), _zeros_like(parameters)), text

    return Step("transformer", _adam(loss, 1e-3), make)


def _conv(x: Any, kernel: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _batch_norm(x: Any, gain: Any, bias: Any) -> Any:
    mean = x.mean((0, 1, 2))
    variance = ((x - mean) ** 2).mean((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain + bias


def _convnet() -> Step:
    size, channels, classes, batch = 12, 16, 10, 8

    def loss(w: Any, data: Any) -> Any:
        images, labels = data
        x = nn.relu(_batch_norm(_conv(images, w["first"]), w["gain1"], w["bias1"]))
        x = lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        shortcut = x
        x = nn.relu(_batch_norm(_conv(x, w["second"]), w["gain2"], w["bias2"]))
        x = shortcut + nn.relu(_batch_norm(_conv(x, w["third"]), w["gain3"], w["bias3"]))
        return _cross_entropy(x.mean((1, 2)) @ w["head"], labels)

    def make(generator: np.random.Generator) -> tuple[Tree, Tree]:
        parameters = {
            "first": _normal(generator, 3, 3, 3, channels),
            "second": _normal(generator, 3, 3, channels, channels),
            "third": _normal(generator, 3, 3, channels, channels),
            "head": _normal(generator, channels, classes),
        }
        parameters |= {f"gain{number}": _ones(channels) for number in (1, 2, 3)}
        parameters |= {f"bias{number}": np.zeros(channels, np.float32) for number in (1, 2, 3)}
        images = generator.normal(size=(batch, size, size, 3)).astype(np.float32)
        labels = generator.integers(0, classes, batch).astype(np.int32)
        return (parameters, _zeros_like(parameters)), (images, labels)

    return Step("convnet", _momentum(loss, 0.02), make)


def _lstm() -> Step:
    """A scan over time, forwards and, for the gradient, backwards."""
    width, features, length, classes, batch = 24, 12, 10, 6, 8

    def loss(w: Any, data: Any) -> Any:
        sequences, labels = data

        def cell(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(x @ w["input"] + h @ w["hidden"] + w["bias"], 4, axis=-1)
            c = nn.sigmoid(f + 1) * c + nn.sigmoid(i) * jnp.tanh(g)
            return (nn.sigmoid(o) * jnp.tanh(c), c), None

        zeros = jnp.zeros((batch, width), jnp.float32)
        (h, _), _ = lax.scan(cell, (zeros, zeros), sequences)
        return _cross_entropy(h @ w["head"], labels)

    def make(generator: np.random.Generator) -> tuple[Tree, Tree]:
        parameters = {
            "input": _normal(generator, features, 4 * width),
            "hidden": _normal(generator, width, 4 * width),
            "bias": np.zeros(4 * width, np.float32),
            "head": _normal(generator, width, classes),
        }
        sequences = generator.normal(size=(length, batch, features)).astype(np.float32)
        labels = generator.integers(0, classes, batch).astype(np.int32)
        return (parameters, _zeros_like(parameters), _zeros_like(parameters)), (sequences, labels)

    return Step("lstm", _adam(loss, 3e-3), make)


def _unet() -> Step:
    """An encoder and a decoder with a skip connection, which removes noise."""
    size, channels, batch = 16, 8, 4

    def loss(w: Any, data: Any) -> Any:
        noisy, clean = data
        top = nn.silu(_conv(noisy, w["in"]))
        low = nn.silu(_conv(top, w["down"], 2))
        low = nn.silu(_conv(low, w["middle"]))
        up = jnp.repeat(jnp.repeat(low, 2, 1), 2, 2)
        x = nn.silu(_conv(jnp.concatenate([top, up], -1), w["up"]))
        return jnp.mean((_conv(x, w["out"]) - clean) ** 2)

    def make(generator: np.random.Generator) -> tuple[Tree, Tree]:
        parameters = {
            "in": _normal(generator, 3, 3, 1, channels),
            "down": _normal(generator, 3, 3, channels, 2 * channels),
            "middle": _normal(generator, 3, 3, 2 * channels, 2 * channels),
            "up": _normal(generator, 3, 3, 3 * channels, channels),
            "out": _normal(generator, 3, 3, channels, 1),
        }
        grid = np.linspace(0, 2 * np.pi, size)
        phases = generator.uniform(0, 6, (batch, 1, 1, 1))
        clean = np.sin(grid[:, None, None] + phases) * np.cos(grid[None, :, None] - phases)
        noisy = clean + 0.3 * generator.normal(size=clean.shape)
        data = (noisy.astype(np.float32), clean.astype(np.float32))
        return (parameters, _zeros_like(parameters), _zeros_like(parameters)), data

    return Step("unet", _adam(loss, 3e-3), make)


def _pinn() -> Step:
    """A network u(x, t) that is to solve the heat equation: the loss has its second derivatives."""
    width, points = 16, 64

    def loss(w: Any, data: Any) -> Any:
        inner, edge, values = data

        def u(x: Any, t: Any) -> Any:
            h = jnp.tanh(jnp.stack([x, t]) @ w["first"] + w["bias1"])
            h = jnp.tanh(h @ w["second"] + w["bias2"])
            return (h @ w["last"])[0]

        def residual(point: Any) -> Any:
            x, t = point
            return jax.grad(u, 1)(x, t) - 0.1 * jax.grad(jax.grad(u))(x, t)

        fit = jax.vmap(lambda point: u(*point))(edge) - values
        return jnp.mean(jax.vmap(residual)(inner) ** 2) + jnp.mean(fit**2)

    def make(generator: np.random.Generator) -> tuple[Tree, Tree]:
        parameters = {
            "first": _normal(generator, 2, width, scale=1.0),
            "bias1": np.zeros(width, np.float32),
            "second": _normal(generator, width, width),
            "bias2": np.zeros(width, np.float32),
            "last": _normal(generator, width, 1),
        }
        inner = generator.uniform(0, 1, (points, 2)).astype(np.float32)
        edge = generator.uniform(0, 1, (points, 2)).astype(np.float32)
        edge[:, 1] = 0
        data = (inner, edge, np.sin(np.pi * edge[:, 0]).astype(np.float32))
        return (parameters, _zeros_like(parameters), _zeros_like(parameters)), data

    return Step("pinn", _adam(loss, 3e-3), make)


SEEN = (_transformer(), _convnet())
HELD_BACK = (_lstm(), _unet(), _pinn())
