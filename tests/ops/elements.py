"""Operands for elementwise operations: the special values of each element type, and random ones."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from hloexec.dtypes import ELEMENT_TYPES, ElementType
from hloexec.ops.common import narrow

__all__ = ["COMPLEXES", "FLOATS", "INTEGERS", "crossed", "elements"]

FLOATS = [name for name, entry in ELEMENT_TYPES.items() if entry.is_floating]
# jaxlib imports s1 as pred and refuses u1.
INTEGERS = [name for name, entry in ELEMENT_TYPES.items() if entry.is_integral and entry.bits > 1]
COMPLEXES = ["c64", "c128"]

_FLOATS = [
    0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.0, -3.5, 7.25, 100.0, -100.0, 448.0, 1e-3, -1e-3,
    0.49999997, 0.1, -3.3, 1e4, 1e-7, np.inf, -np.inf, np.nan,
]  # fmt: skip


def elements(name: str, random: int = 16, seed: int = 0) -> np.ndarray[Any, Any]:
    """Special values of an element type and `random` others; no number that is denormal in f32."""
    entry = ELEMENT_TYPES[name]
    generator = np.random.default_rng(seed)
    if entry.name == "pred":
        return np.array([False, True])
    if entry.is_integral:
        return _integers(entry, generator, random)
    reals = np.array(_FLOATS + list(generator.normal(size=random) * 3))
    if entry.is_complex:
        parts = reals[np.array([0, 1, 2, 5, 8, 13, 24, 25, 26])]
        return np.array([complex(a, b) for a, b in product(parts, parts)], entry.storage)
    return narrow(reals, entry)


def _integers(entry: ElementType, generator: np.random.Generator, random: int) -> np.ndarray[Any, Any]:
    signed = entry.name.startswith("s")
    low, high = (-(1 << entry.bits - 1), (1 << entry.bits - 1) - 1) if signed else (0, (1 << entry.bits) - 1)
    chosen = {*range(-9, 10), low, low + 1, high, high - 1, high // 2, high // 3, entry.bits, entry.bits + 1, 63, 64}
    chosen |= {int(number) % (high - low + 1) + low for number in generator.integers(0, 2**63, random)}
    return np.array(sorted(x for x in chosen if low <= x <= high), object).astype(entry.compute).astype(entry.storage)


def crossed(*arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Every combination of one element of each."""
    return [grid.reshape(-1) for grid in np.meshgrid(*arrays, indexing="ij")]
