"""Whether two arrays hold the same numbers, but for rounding, in whatever order.

What rounding may do is read off the instructions that either side computed the value with, from values that both sides
have; of the two, the one that rounds *less* decides. A module that rounds more than the other, or less, computes
something else: that is how a lost rounding, products in TF32 or sums in bf16 are told from sums in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import attrs
import numpy as np

from hloexec.diffing.digests import Digest
from hloexec.dtypes import ElementType, element_type_of
from hloexec.numerics.error_budget import Chain
from hloexec.numerics.severities import agreement
from hloexec.numerics.tolerances import Tolerance, derived_tolerance, required_equality
from hloexec.numerics.ulps import narrower, wide
from hloexec.ops.common import narrow as narrowed
from hloexec.precision import smallest_normal
from hloexec.values import Array

__all__ = ["agrees", "aligned", "could_agree", "is_varied", "lesser", "local_tolerance", "rearranged", "rounds_alike"]

_MOST_PERMUTATIONS = 24
_COARSE_SQUARE = 2.0**-24
"""The square of the unit roundoff from which on a type counts as narrow: f16 has 2⁻¹¹, bf16 2⁻⁸."""
_MORE = 1.3
"""Four roundings to three; of more, one less is not told."""
_FEW = 8
"""Fewer numbers than this, in another order, are no evidence."""
_SAMPLE = 256


def lesser(first: Chain, second: Chain) -> Chain:
    """The chain of two that rounds less."""
    return min(first, second, key=lambda chain: chain.weight)


def local_tolerance(first: ElementType, second: ElementType, root_mean_square: float, chain: Chain) -> Tolerance:
    """What rounding explains between values that were computed from the same operands.

    As `derived_tolerance`, without what flushes denormals: both sides run here, and flush only if they say so.
    """
    if not (first.is_floating or first.is_complex):
        return required_equality("integers and preds must be the same")
    narrow = narrower(first, second)
    found = derived_tolerance(narrow, second if narrow is first else first, root_mean_square, chain)
    return attrs.evolve(found, atol=found.rtol * (found.scale + smallest_normal(narrow)))


def could_agree(first: Digest, sums: Array, tolerance: Tolerance) -> Array:
    """Which of several digests, given by rows (total, magnitude, squares), may be of values that agree with the first.

    With errors of at most t = rtol·|x| + atol, Σx and Σ|x| are off by rtol Σ|x| + n·atol, Σx² by 2(rtol Σx² +
    atol Σ|x|) + 2(rtol² Σx² + n·atol²). The sums themselves are off by n 2⁻⁵² Σ|x| at most.
    """
    n = first.count
    rtol, atol = tolerance.rtol + 2.0**-52 * min(n, 1 << 16), tolerance.atol
    linear = rtol * first.magnitude + n * atol
    square = 2 * (rtol * first.squares + atol * first.magnitude) + 2 * (rtol**2 * first.squares + n * atol**2)
    mine = np.array([first.total, first.magnitude, first.squares])
    return np.asarray((np.abs(sums - mine) <= np.array([linear, linear, square]) * (1 + 1e-9)).all(axis=1))


def agrees(actual: Array, expected: Array, tolerance: Tolerance) -> bool:
    """Whether two arrays of one shape agree in all elements."""
    first, second = element_type_of(actual.dtype), element_type_of(expected.dtype)
    if first is not second:
        narrow = narrower(first, second)
        if not (first.is_floating or first.is_complex):
            return bool(np.array_equal(wide(actual), wide(expected)))
        actual, expected = (_as(array, narrow) for array in (actual, expected))
    return bool(agreement(np.ascontiguousarray(actual), np.ascontiguousarray(expected), tolerance).all())


def rounds_alike(actual: Array, expected: Array, mine: Chain, its: Chain) -> bool:
    """Whether two values, which agree, can have been rounded alike on the way.

    Where one side rounds to a narrow type (unit roundoff 2⁻¹² or more) more often than the other, about half of the
    elements come out differently. Where both round as often, what is rounded differs by f32's roundings at most, and
    elements differ only where these decide: about one in 2⁻⁹/2⁻²⁴ per term added up. So more than one in twenty are
    taken for a rounding that is missing, or one too many.
    """
    fewer, more = sorted((mine.rounding_squares, its.rounding_squares))
    if more < _COARSE_SQUARE or more < _MORE * fewer:
        return True
    first, second = wide(actual), wide(expected)
    unequal = np.count_nonzero((first != second) & ~(np.isnan(first) & np.isnan(second)))
    return bool(unequal <= max(1, actual.size // 20))


def _as(array: Array, entry: ElementType) -> Array:
    return array if array.dtype == entry.storage else narrowed(wide(array), entry)


def aligned(value: Array, dimensions: tuple[int, ...]) -> Iterator[Array]:
    """The ways in which an array may lie in other dimensions: row by row first, then with its dimensions permuted."""
    if value.size != int(np.prod(dimensions, dtype=np.int64)):
        return
    yield value.reshape(dimensions)
    mine = tuple(size for size in value.shape if size != 1)
    wanted = tuple(size for size in dimensions if size != 1)
    if len(mine) < 2 or len(mine) > 5 or sorted(mine) != sorted(wanted):
        return
    squeezed = value.reshape(mine)
    found = 0
    for order in permutations(range(len(mine))):
        if order == tuple(range(len(mine))) or tuple(mine[axis] for axis in order) != wanted:
            continue
        yield squeezed.transpose(order).reshape(dimensions)
        found += 1
        if found == _MOST_PERMUTATIONS:
            return


def rearranged(actual: Array, expected: Array, tolerance: Tolerance) -> Array | None:
    """`expected` with its dimensions permuted so that `actual` agrees with it; None where none does.

    Where no permutation does, and both are many different floats that agree once they are sorted, `actual` itself.
    """
    for candidate in list(aligned(expected, actual.shape))[1:]:
        if agrees(actual, candidate, tolerance):
            return candidate
    if not is_varied(actual):
        return None
    first, second = wide(actual), wide(expected)
    if first.dtype.kind == "c":
        return None
    return actual if agrees(np.sort(first, axis=None), np.sort(second, axis=None), tolerance) else None


def is_varied(array: Array) -> bool:
    """Whether an array has so many different numbers, with fractions, that having them all is no coincidence."""
    if array.size < _FEW or element_type_of(array.dtype).is_integral or array.dtype == np.bool_:
        return False
    part = np.ravel(array)[:_SAMPLE] if array.flags.c_contiguous else array.flat[:_SAMPLE]
    return len(np.unique(wide(part))) >= _FEW
