"""Operands: every element type's special values, random ones beside them, and the shapes that go wrong."""

from __future__ import annotations

from itertools import product

import numpy as np

from conformance.cell import Array
from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.ops.common import narrow

_REALS = [
    0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.0, -3.5, 7.25, 100.0, -100.0, 448.0, 1e-3, -1e-3,
    0.49999997, 0.1, -3.3, 1e4, 1e-7, np.inf, -np.inf, np.nan,
]  # fmt: skip
_SIZES = (0, 1, 1, 2, 3, 4, 5)


def random_shape(
    generator: np.random.Generator, minimum_rank: int = 0, maximum_rank: int = 5, empty: bool = True
) -> tuple[int, ...]:
    """Rank 0 to 5, sizes 0 to 5, ones often."""
    sizes = _SIZES if empty else _SIZES[1:]
    return tuple(int(generator.choice(sizes)) for _ in range(generator.integers(minimum_rank, maximum_rank + 1)))


def special(name: str, generator: np.random.Generator, random: int = 16) -> Array:
    """The special values of an element type and `random` others; none is denormal in f32, since XLA:CPU flushes."""
    entry = ELEMENT_TYPES[name]
    if entry.name == "pred":
        return np.array([False, True])
    if entry.is_integral:
        return _integers(entry, generator, random)
    reals = np.array(_REALS + list(generator.normal(size=random) * 3))
    if entry.is_complex:
        parts = reals[np.array([0, 1, 2, 5, 8, 13, 24, 25, 26])]
        return np.array([complex(a, b) for a, b in product(parts, parts)], entry.storage)
    return narrow(reals, entry)


def _integers(entry: ElementType, generator: np.random.Generator, random: int) -> Array:
    low, high = entry.integer_range
    chosen = {*range(-9, 10), low, low + 1, high, high - 1, high // 2, high // 3, entry.bits, entry.bits + 1, 63, 64}
    chosen |= {int(number) % (high - low + 1) + low for number in generator.integers(0, 2**63, random)}
    return np.array(sorted(x for x in chosen if low <= x <= high), object).astype(entry.compute).astype(entry.storage)


def numbers(name: str, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Any values of an element type, special ones often."""
    values = special(name, generator)
    return values[generator.integers(0, len(values), shape)]


def whole_numbers(name: str, generator: np.random.Generator, shape: tuple[int, ...], most: int = 3) -> Array:
    """Small whole numbers, whose sums and products are exact in any order; of the sizes that the type can hold."""
    entry = ELEMENT_TYPES[name]
    if entry.name == "pred":
        return generator.integers(0, 2, shape).astype(np.bool_)
    low, high = entry.integer_range if entry.is_integral else (-most, most)
    values = generator.integers(max(low, -most), min(high, most) + 1, shape)
    if entry.is_integral:
        return values.astype(entry.compute).astype(entry.storage)
    if entry.is_complex:
        return (values + 1j * generator.integers(-most, most + 1, shape)).astype(entry.storage)
    if not entry.has_negative_zero and entry.mantissa_bits == 0:
        values = 2 ** np.abs(values)
    return narrow(np.asarray(values, np.float64), entry)


def crossed(*arrays: Array) -> tuple[Array, ...]:
    """Every combination of one element of each."""
    return tuple(grid.reshape(-1) for grid in np.meshgrid(*arrays, indexing="ij"))
