"""Units in the last place: the number of representable values between two numbers.

A unit in the last place (ULP) is the distance from a number to the next one that its element type can represent. Two
numbers of one type are as many ULPs apart as there are steps from one to the other; two numbers of different types are
compared in the narrower one, to which the wider is rounded first.
"""

from __future__ import annotations

import numpy as np

from hloexec.core.dtypes import DType, ElementType, element_type_of
from hloexec.core.precision import part_type, smallest_normal, unit_roundoff
from hloexec.core.values import Array
from hloexec.ops.common import narrow, wide


def are_comparable(first: ElementType, second: ElementType) -> bool:
    """Whether numbers of both types can be compared with each other: both floats, both complex, both integers."""
    return first is second or (first.kind is second.kind) or (first.is_integral and second.is_integral)


def narrower(first: ElementType, second: ElementType) -> ElementType:
    """The type of the two with the shorter significand (the fewer bits, where they have none)."""
    return min(first, second, key=lambda entry: (part_type(entry).mantissa_bits, entry.bits))


def same_bits(actual: Array, expected: Array) -> Array:
    """Whether elements of two arrays of one type have the same bits or are both NaN (complex: part by part).

    Of types narrower than a byte, only their own bits count.
    """
    entry = element_type_of(actual.dtype)
    if entry.is_complex:
        part = part_type(entry).storage
        return np.asarray(same_bits(_parts(actual, part), _parts(expected, part)).all(-1))
    patterns = [_patterns(array, entry) for array in (actual, expected)]
    same = patterns[0] == patterns[1]
    if entry.has_nan and not same.all():
        same |= np.isnan(actual) & np.isnan(expected)
    return np.asarray(same)


def magnitudes(values: Array) -> Array:
    """The absolute values of what `wide` gives; of integers and preds as f64."""
    return np.asarray(np.abs(values.astype(np.float64) if values.dtype.kind in "iub" else values))


def ulp_distances(actual: Array, expected: Array) -> Array:
    """How far elements are apart in the narrower of the two types: counts of representable values, as f64.

    Integers: the difference. Floats: the steps from one to the other, both zeros being one value; infinity lies one
    step beyond the largest number, the distance from NaN to a number is infinite, from NaN to NaN zero. Complex: the
    absolute difference in units of the distance between neighbours of their parts' type at |expected|.
    """
    entry = narrower(element_type_of(actual.dtype), element_type_of(expected.dtype))
    with np.errstate(all="ignore"):
        if entry.is_complex:
            return _complex_distances(actual, expected, entry)
        if not entry.is_floating:
            return _integer_distances(wide(actual), wide(expected))
        first, second = (_rounded(array, entry) for array in (actual, expected))
        distances = _float_distances(_patterns(first, entry), _patterns(second, entry), entry)
        if entry.has_nan:
            nan, its_nan = np.isnan(first), np.isnan(second)
            distances[nan | its_nan] = np.inf
            distances[nan & its_nan] = 0.0
    return distances


def _parts(array: Array, part: DType) -> Array:
    return np.ascontiguousarray(array).reshape(*array.shape, 1).view(part)


def _patterns(array: Array, entry: ElementType) -> Array:
    patterns = np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.itemsize}")
    return patterns & ((1 << entry.bits) - 1) if entry.bits < 8 else patterns


def _rounded(array: Array, entry: ElementType) -> Array:
    return array if array.dtype == entry.storage else narrow(wide(array), entry)


def _float_distances(first: Array, second: Array, entry: ElementType) -> Array:
    sign = 1 << entry.bits - 1 if entry.has_sign else 0
    mask = first.dtype.type(~sign & ((1 << 8 * first.itemsize) - 1))
    steps, its_steps = ((patterns & mask).astype(np.uint64) for patterns in (first, second))
    unlike = ((first ^ second) & first.dtype.type(sign)) != 0
    gaps = np.maximum(steps, its_steps) - np.minimum(steps, its_steps)
    return np.asarray(np.where(unlike, steps + its_steps, gaps), np.float64)


def _integer_distances(first: Array, second: Array) -> Array:
    """|first − second|, rounded to f64 only once it is known."""
    if first.dtype == np.bool_:
        return np.asarray((first != second).astype(np.float64))
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    if larger.dtype.kind == "f":  # of s64 and u64 NumPy makes f64
        return np.asarray(larger - smaller)
    return (larger.astype(np.uint64) - smaller.astype(np.uint64)).astype(np.float64)


def _complex_distances(actual: Array, expected: Array, entry: ElementType) -> Array:
    first, second = wide(actual), wide(expected)
    magnitude = np.maximum(np.abs(second), smallest_normal(entry))
    spacing: Array = np.exp2(np.floor(np.log2(magnitude))) * 2 * unit_roundoff(entry)
    distances: Array = np.abs(first - second) / spacing
    distances[np.isnan(distances)] = np.inf
    distances[(first == second) | (np.isnan(first) & np.isnan(second))] = 0.0
    return distances
