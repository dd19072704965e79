"""Digests of arrays for matching values, with or without the order of their elements, and sums that rounding changes
only slightly.

A digest depends on numbers, not on bits: a bf16 array and the same numbers in f32 have the same digest, both zeros are
equal, and so are all NaNs. `in_order` depends on the row-major order of the elements, but not on dimensions;
`in_any_order` depends on neither.
"""

from __future__ import annotations

import attrs
import numpy as np

from hloexec.dtypes import Kind, element_type_of
from hloexec.ops.common import wide
from hloexec.values import Array

__all__ = ["Digest", "digest_of"]

_BLOCK = 1 << 15
"""Number of elements processed at a time: the handful of 64-bit arrays made of them stay in the L2 cache."""
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""The multipliers of SplitMix64's finalizer (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators,
2014)."""
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


@attrs.frozen
class Digest:
    """The digest of an array."""

    count: int
    family: str
    """What it can be compared with: `float`, `complex`, `integer` or `pred`."""
    in_order: int
    in_any_order: int
    total: float
    """Σx over the finite elements; of complex numbers, over both parts."""
    magnitude: float
    """Σ|x|."""
    squares: float
    """Σx²."""
    nonfinite: tuple[int, int, int]
    """How many are NaN, +∞, −∞."""
    is_uniform: bool
    """Whether all elements are the same."""

    @property
    def root_mean_square(self) -> float:
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0


def _family(array: Array) -> str:
    """What an array's elements may be compared with."""
    entry = element_type_of(array.dtype)
    if entry.is_floating:
        return "float"
    if entry.is_complex:
        return "complex"
    return "pred" if entry.kind is Kind.PRED else "integer"


def digest_of(array: Array) -> Digest:
    """The digest of an array of any element type."""
    family = _family(array)
    flat = np.ravel(array)
    in_order = in_any_order = 0
    sums = np.zeros(3)
    nonfinite = np.zeros(3, np.int64)
    is_uniform = True
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            values, words = _numbers(flat[start : start + _BLOCK], family)
            if not start:
                first = words[0]
            is_uniform = is_uniform and bool((words == first).all())
            mixed = _mixed(words)
            weights = np.arange(2 * start + 1, 2 * (start + words.size) + 1, 2, dtype=np.uint64)
            in_any_order += int(mixed.sum())
            in_order += int((mixed * weights).sum())
            total = float(values.sum())
            if not np.isfinite(total):
                nonfinite += [np.isnan(values).sum(), np.isposinf(values).sum(), np.isneginf(values).sum()]
                values = values[np.isfinite(values)]
                total = float(values.sum())
            sums += [total, float(np.abs(values).sum()), float(np.square(values).sum())]
    ordered, unordered = in_order % (1 << 64), in_any_order % (1 << 64)
    total, magnitude, squares = map(float, sums)
    nans, above, below = map(int, nonfinite)
    bad = nans, above, below
    return Digest(flat.size, family, ordered, unordered, total, magnitude, squares, bad, is_uniform)


def _numbers(block: Array, family: str) -> tuple[Array, Array]:
    """A block's numbers in f64 (complex: both parts, integers: as they count), and a word of 64 bits for each."""
    values = wide(block)
    if family == "complex":
        parts = np.ascontiguousarray(values).view(np.float64)
        words = _words(parts)
        # The parts of one number belong together.
        return parts, _mixed(words[0::2]) + _mixed(words[1::2]) * np.uint64(3)
    if family == "float":
        return values, _words(values)
    integers = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
    return integers.astype(np.float64), integers.view(np.uint64)


def _words(values: Array) -> Array:
    """The bits of f64 numbers, zeros and NaNs being one each."""
    plain = values + 0.0
    bad = np.isnan(plain)
    if bad.any():
        plain[bad] = np.nan
    return np.ascontiguousarray(plain).view(np.uint64)


def _mixed(words: Array) -> Array:
    """SplitMix64's finalizer, so that sums of words tell much about them."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> _SHIFTS[0]
    mixed *= _FIRST
    mixed ^= mixed >> _SHIFTS[1]
    mixed *= _SECOND
    mixed ^= mixed >> _SHIFTS[2]
    return mixed
