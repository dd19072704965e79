"""Functions of f32 that can be fast: as GPUs compute them, and in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_f32 = np.float32
FUNCTIONS = {
    "exp": "exponential", "expm1": "exponential-minus-one", "log": "log", "log1p": "log-plus-one", "tanh": "tanh",
    "sqrt": "sqrt", "div": "divide", "pow": "power",
}  # fmt: skip
"""Functions of f32 that can be fast, by JAX's names: HLO's."""


def _ex2(x: Any) -> Any:
    return np.exp2(x.astype(np.float64)).astype(_f32)


def _exponential(x: Any) -> Any:
    return _ex2(x * _f32(np.log2(np.e)))


def _logarithm(x: Any) -> Any:
    return np.log2(x.astype(np.float64)).astype(_f32) * _f32(np.log(2))


def _root(x: Any) -> Any:
    inverse = (1 / np.sqrt(np.where(x == 0, 1, x).astype(np.float64))).astype(_f32)
    return np.where(x == 0, x, x * inverse)


FAST: dict[str, Callable[..., Any]] = {
    "exp": _exponential,
    "expm1": lambda x: _exponential(x) - _f32(1),
    "log": _logarithm,
    "log1p": lambda x: _logarithm(x + _f32(1)),
    "tanh": lambda x: _f32(1) - _f32(2) * (_f32(1) / (_exponential(x + x) + _f32(1))),
    "sqrt": _root,
    "div": lambda x, y: x * (_f32(1) / y),
    # Bases are positive here.
    "pow": lambda x, y: _ex2(y * np.log2(x.astype(np.float64)).astype(_f32)),
}
"""Of f32: what CUDA's guide says of its intrinsic functions, with each of 2ˣ, log₂ x, 1/x and 1/√x rounded once."""
EXACT: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "div": np.divide,
    "pow": np.power,
}
"""Of f64."""
