"""Numbers in plain f64 that are good enough: those that round the same wherever within their error they lie.

What is computed in f64 with a bound on its error, for a result that is rounded to f32 or less, rarely lies so near to
the middle between two neighbours that its error decides. The few that do are computed again with more digits. Source:
A. Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded last bit" (1991).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.values import Array
from hloexec.ops.common import narrow

_MARGIN = 2.0**-42
"""Relative. Whoever finds a value certain knows that the true one is at least this far from the middle between two
results, so that what has another, smaller error rounds the same, too: results do not depend on the order in which a
processor's kernels add up."""


def can_be_certain(element_type: ElementType) -> bool:
    """Whether f64 has enough more digits than a float type that few values are doubtful."""
    return element_type.is_floating and element_type.mantissa_bits <= 23


def doubtful(value: Array, error: Any, element_type: ElementType) -> Array:
    """Which elements of an f64 array, off by up to `error` (half of it, if the margin is to hold), may round to another
    value of a type that `can_be_certain`; of NaN, what its bits decide.
    """
    bound = np.abs(value)
    bound *= _MARGIN
    bound += error
    pattern = f"u{element_type.storage.itemsize}"
    lower, upper = (narrow(end, element_type).view(pattern) for end in (value - bound, value + bound))
    return np.asarray(lower != upper)


EXACT_UNITS = 2.0**52
"""Sums of magnitudes below so many units are exact in f64 in any order: many sums of a few f32 numbers lie in the very
middle between two, and are certain for that reason only."""


def units_of(array: Array) -> Array:
    """For each element of an f32 array the largest power of two of which it is a multiple; infinite for zeros."""
    pattern = np.asarray(array).view(np.uint32)
    significand = (pattern & 0x7FFFFF) | 0x800000
    significand &= ~significand + 1
    exponent = np.maximum((pattern >> 23) & 0xFF, 1).astype(np.int32)
    units: Array = np.ldexp(significand.astype(np.float32), exponent - 150)
    return np.where(array == 0, np.float32(np.inf), units)


_UNCERTAIN = 1 << 10
"""In units of the last place of f64: 2⁻⁴³ of the value, or more."""
_PERIOD = 1 << 28
"""f32 numbers, and the middles between them, have at most 25 significant bits, so that the patterns of these in f64 are
multiples of it; so are those of narrower types, of denormals, zeros, infinities and NaN."""


def near_a_middle(value: Array) -> Array:
    """The places in a flat f64 array of what may round to another f32, or narrower number, for an error of 2⁻⁴³."""
    pattern = value.view(np.int64) + _UNCERTAIN
    pattern &= _PERIOD - 1
    return np.flatnonzero(pattern < 2 * _UNCERTAIN)
