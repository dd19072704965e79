"""Small networks that are trained: what gives, from their parameters and a batch, a row of features for each example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import numpy as np

from evaluation.programs.program import normal

ROWS, FEATURES = 24, 16
Parameters: TypeAlias = Any


@attrs.frozen(eq=False)
class Model:
    """A network."""

    parameters: Parameters
    features: Callable[[Parameters, Any], Any]
    """Of examples: an array of FEATURES columns. Both are of the type that the parameters have."""
    examples: np.ndarray[Any, Any]


Maker: TypeAlias = Callable[[Any, int], Model]
WRITTEN: dict[str, Maker] = {}
"""Those in plain JAX, from the jax module and a seed. A bias in front of a normalization has gradients that are
rounding and nothing else, as have the biases of keys in attention."""
LIBRARY: dict[str, Callable[[Any, int, Any], Model]] = {}
"""Those of Flax, which also take the type that they compute in."""


def _written(make: Maker) -> Maker:
    WRITTEN[make.__name__.strip("_")] = make
    return make


def _normalized(x: Any, axes: Any) -> Any:
    centred = x - x.mean(axes, keepdims=True)
    return centred / ((centred**2).mean(axes, keepdims=True) + 1e-5) ** 0.5


@_written
def _perceptron(jax: Any, seed: int) -> Model:
    """Two layers with a bias, the first with batch normalization."""

    def features(p: Any, x: Any) -> Any:
        hidden = jax.nn.relu(_normalized(x @ p["up"] + p["up_bias"], 0) * p["scale"])
        return jax.nn.relu(hidden @ p["down"] + p["down_bias"])

    parameters = {
        "up": normal(seed, 12, 32),
        "up_bias": 0.1 * normal(seed + 1, 32),
        "scale": 1 + 0.1 * normal(seed + 2, 32),
        "down": normal(seed + 3, 32, FEATURES),
        "down_bias": 0.1 * normal(seed + 4, FEATURES),
    }
    return Model(parameters, features, np.random.default_rng(seed).normal(size=(ROWS, 12)).astype(np.float32))


@_written
def _convolutions(jax: Any, seed: int) -> Model:
    """Two convolutions, one of them normalized, and a mean over all places."""

    def convolution(x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def features(p: Any, x: Any) -> Any:
        x = jax.nn.gelu(_normalized(convolution(x, p["first"]) + p["first_bias"], (0, 1, 2)))
        return jax.nn.silu(convolution(x, p["second"]) + p["second_bias"]).mean((1, 2))

    parameters = {
        "first": normal(seed, 3, 3, 3, 8) / 3,
        "first_bias": 0.1 * normal(seed + 1, 8),
        "second": normal(seed + 2, 3, 3, 8, FEATURES) / 3,
        "second_bias": 0.1 * normal(seed + 3, FEATURES),
    }
    return Model(parameters, features, np.random.default_rng(seed).normal(size=(ROWS, 6, 6, 3)).astype(np.float32))


@_written
def _attention(jax: Any, seed: int) -> Model:
    """A block with attention over the examples, and a normalization of each."""

    def features(p: Any, x: Any) -> Any:
        query, key, value = (x @ p[name] + p[f"{name}_bias"] for name in ("query", "key", "value"))
        x = x + jax.nn.softmax(query @ key.T / 4) @ value @ p["out"]
        normed = _normalized(x, -1) * p["scale"]
        return x + jax.nn.gelu(normed @ p["up"] + p["up_bias"]) @ p["down"]

    square = {name: normal(seed + n, FEATURES, FEATURES) for n, name in enumerate(("query", "key", "value", "out"))}
    biases = {f"{name}_bias": 0.1 * normal(seed + 5 + n, FEATURES) for n, name in enumerate(("query", "key", "value"))}
    others = {
        "scale": 1 + 0.1 * normal(seed + 9, FEATURES),
        "up": normal(seed + 10, FEATURES, 32),
        "up_bias": 0.1 * normal(seed + 11, 32),
        "down": normal(seed + 12, 32, FEATURES),
    }
    examples = np.random.default_rng(seed).normal(size=(ROWS, FEATURES)).astype(np.float32)
    return Model(square | biases | others, features, examples)


@_written
def _recurrence(jax: Any, seed: int) -> Model:
    """A gated cell over five steps."""

    def features(p: Any, x: Any) -> Any:
        def step(state: Any, now: Any) -> Any:
            gate = jax.nn.sigmoid(now @ p["gate"] + state @ p["gate_state"] + p["gate_bias"])
            new = jax.numpy.tanh(now @ p["new"] + state @ p["new_state"] + p["new_bias"])
            return gate * state + (1 - gate) * new, None

        start = jax.numpy.zeros((x.shape[1], FEATURES), x.dtype)
        return jax.lax.scan(step, start, x)[0]

    parameters = {
        "gate": normal(seed, 8, FEATURES),
        "gate_state": normal(seed + 1, FEATURES, FEATURES),
        "gate_bias": 0.1 * normal(seed + 2, FEATURES),
        "new": normal(seed + 3, 8, FEATURES),
        "new_state": normal(seed + 4, FEATURES, FEATURES),
        "new_bias": 0.1 * normal(seed + 5, FEATURES),
    }
    return Model(parameters, features, np.random.default_rng(seed).normal(size=(5, ROWS, 8)).astype(np.float32))


def _of_flax(layers: Callable[[Any, Any], list[Callable[[Any], Any]]], *sizes: int) -> Callable[[Any, int, Any], Model]:
    """What makes a model of layers, of examples of these sizes."""

    def make(jax: Any, seed: int, dtype: Any) -> Model:
        from flax import linen

        class Network(linen.Module):  # type: ignore[misc]
            @linen.compact
            def __call__(self, x: Any) -> Any:
                for layer in layers(linen, dtype):
                    x = layer(x)
                return x

        examples = np.random.default_rng(seed).normal(size=(ROWS, *sizes)).astype(np.float32)
        parameters = jax.tree.map(np.asarray, Network().init(jax.random.key(seed), examples))
        return Model(parameters, Network().apply, examples)

    return make


LIBRARY["dense"] = _of_flax(
    lambda nn, dtype: [
        nn.Dense(32, dtype=dtype),
        nn.LayerNorm(dtype=dtype),
        nn.gelu,
        nn.Dense(FEATURES, dtype=dtype),
        nn.relu,
    ],
    12,
)
LIBRARY["convnet"] = _of_flax(
    lambda nn, dtype: [
        nn.Conv(8, (3, 3), dtype=dtype),
        nn.GroupNorm(4, dtype=dtype),
        nn.relu,
        lambda x: nn.max_pool(x, (2, 2), (2, 2)),
        nn.Conv(FEATURES, (3, 3), dtype=dtype),
        lambda x: nn.silu(x).mean((1, 2)),
    ],
    6,
    6,
    3,
)
LIBRARY["transformer"] = _of_flax(
    lambda nn, dtype: [
        nn.MultiHeadDotProductAttention(2, dtype=dtype),
        nn.LayerNorm(dtype=dtype),
        nn.Dense(32, dtype=dtype),
        nn.gelu,
        nn.Dense(FEATURES, dtype=dtype),
        lambda x: x.mean(1),
    ],
    6,
    FEATURES,
)
LIBRARY["lstm"] = _of_flax(
    lambda nn, dtype: [nn.RNN(nn.OptimizedLSTMCell(FEATURES, dtype=dtype)), lambda x: x[:, -1]], 5, 8
)
LIBRARY["gated"] = _of_flax(
    lambda nn, dtype: [
        nn.Dense(64, dtype=dtype),
        lambda x: nn.glu(x),
        nn.RMSNorm(dtype=dtype),
        nn.Dense(FEATURES, dtype=dtype),
        nn.soft_sign,
    ],
    12,
)
