"""Activations that libraries fuse with products and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from hloexec.core.dtypes import Kind
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.elementwise.arithmetic import maximum
from hloexec.ops.elementwise.declaration import exact_formula


def relu(x: Array) -> Array:
    """max(x, 0), NaN where x is."""
    return maximum(x, np.zeros_like(x))


def gelu(x: Array) -> Array:
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), the approximation that cuBLASLt and oneDNN have."""
    half, cubic, scale = x.dtype.type(0.5), x.dtype.type(0.044715), x.dtype.type(sqrt(2 / pi))
    result: Array = half * x * (1 + np.tanh(scale * (x + cubic * x * x * x)))
    return result


def _exact_gelu(x: Array) -> Array:
    """As (1 + tanh y) / 2 = logistic(2y), where nothing cancels."""
    return _exact_silu(x, 2 * sqrt(2 / pi) * (x + 0.044715 * x * x * x))


def _exact_silu(x: Array, y: Array | None = None) -> Array:
    """x · logistic(y), with y = x where it is not given."""
    logistic = exact_formula("logistic", Kind.FLOAT)
    assert logistic is not None
    result: Array = x * logistic(x if y is None else y)
    return np.where(np.isneginf(x), 0.0, result)


@frozen
class Activation:
    """A function of an array of floats, elementwise."""

    usual: Callable[[Array], Array]
    exact: Callable[[Array], Array]
    """In f64, with the same bits on every processor."""


ACTIVATIONS = {
    "RELU": Activation(relu, relu),
    "GELU": Activation(gelu, _exact_gelu),
    "SILU": Activation(lambda x: x / (1 + np.exp(-x)), _exact_silu),
}
"""By the names of cuBLASLt."""
