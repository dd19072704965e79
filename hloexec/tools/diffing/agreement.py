"""Whether two arrays hold the same numbers up to rounding, in any order.

The allowed rounding error is derived from the instructions that computed the value on either side, from values that
both sides have in common; the side that rounds *less* determines it. A module that rounds more than the other, or less,
computes something different: this is how a dropped rounding, products in TF32 or sums in bf16 are distinguished from
sums in another order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate, islice, permutations
from operator import mul
from typing import Any

import numpy as np

from hloexec.analysis.numerics.measuring import agreement, narrower
from hloexec.analysis.numerics.tolerances import Chain, Tolerance
from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.precision import unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import narrow as narrowed
from hloexec.ops.common import wide
from hloexec.tools.diffing.digests import Digest
from hloexec.tools.diffing.limits import LIMITS

LOCAL = Tolerance(
    factor=1.0, derivation="what rounding does to each element, for the operands that it was computed from"
)
"""Of values whose elements' bounds are known (`diffing.bounds`)."""


@frozen(eq=False)
class Allowance:
    """By how much the elements of two values may differ, as either side has them."""

    actual: Array
    expected: Array | None = None
    """In the dimensions of the expected value, besides."""

    def of(self, dimensions: tuple[int, ...]) -> Array:
        """Both, if the elements of both sides have the same row-major order."""
        return self.actual if self.expected is None else self.actual + self.expected.reshape(dimensions)


def could_agree(first: Digest, sums: Array, relative: Array) -> Array:
    """Which of several digests, given by rows (total, magnitude, squares), are worth a look: values of which most
    elements may be those of the first, with errors of a part (for each digest) of their own size or of the root mean
    square.

    With errors of at most t = r (|x| + s), Σx and Σ|x| are off by r (Σ|x| + n s), Σx² by 2 r (Σx² + s Σ|x|) +
    2 r² (Σx² + n s²). The sums themselves are off by n 2⁻⁵² Σ|x| at most.
    """
    n, size = first.count, first.root_mean_square
    linear = _linear(first, relative)
    relative = relative + 2.0**-52 * min(n, 1 << 16)
    square = 2 * relative * (first.squares + size * first.magnitude) + 2 * relative**2 * (first.squares + n * size**2)
    found = np.abs(sums[:, 0] - first.total) <= linear * (1 + 1e-9)
    found &= np.abs(sums[:, 1] - first.magnitude) <= linear * (1 + 1e-9)
    found &= np.abs(sums[:, 2] - first.squares) <= square * (1 + 1e-9)
    return np.asarray(found)


def magnitudes(first: Digest, relative: float) -> tuple[float, float]:
    """Between which Σ|x| those lie of all values that `could_agree` with a digest, with errors of at most that part."""
    reach = float(_linear(first, np.float64(relative))) * (1 + 1e-8)
    return (first.magnitude - reach, first.magnitude + reach) if math.isfinite(reach) else (-math.inf, math.inf)


def _linear(first: Digest, relative: Any) -> Any:
    """By how much Σx and Σ|x| may be off."""
    n = first.count
    return (relative + 2.0**-52 * min(n, 1 << 16)) * (first.magnitude + n * first.root_mean_square)


def agrees(actual: Array, expected: Array, allowed: Array | None) -> bool:
    """Whether two arrays of one shape agree in all elements, to within what is allowed of each; to the bit if None.

    What is of another type than the other is rounded to the narrower one first.
    """
    first, second = element_type_of(actual.dtype), element_type_of(expected.dtype)
    if first is not second:
        entry = narrower(first, second)
        if not (first.is_floating or first.is_complex):
            return bool(np.array_equal(wide(actual), wide(expected)))
        actual, expected = (_as(array, entry) for array in (actual, expected))
    else:
        entry = first
    tolerance = Tolerance() if allowed is None else LOCAL
    if allowed is not None and first is not second:
        with np.errstate(all="ignore"):
            allowed = allowed + unit_roundoff(entry) * np.nan_to_num(np.abs(wide(expected)))
    return bool(agreement(np.ascontiguousarray(actual), np.ascontiguousarray(expected), tolerance, allowed).all())


def says_much(allowed: Array, value: Array) -> bool:
    """Whether agreement to within what is allowed says anything of a value: most of its elements are larger.

    Behind many steps without a value that both sides have, bounds grow beyond what they are bounds of, and any value is
    within them.
    """
    with np.errstate(all="ignore"):
        sizes = np.abs(wide(value))
        if float(allowed.sum()) <= float(sizes.sum()):
            return True
        sizes, limits = sizes[sizes > 0], allowed[allowed > 0]
        return not sizes.size or not limits.size or bool(np.median(limits) <= np.median(sizes))


def rounds_alike(actual: Array, expected: Array, ours: Chain, counterpart: Chain) -> bool:
    """Whether two values, which agree, can have been rounded alike on the way.

    Where one side rounds to a narrow type (unit roundoff 2⁻¹² or more) more often than the other, about half of the
    elements differ. Where both round as often, what is rounded differs by f32's roundings at most, and
    elements differ only where these decide: about one in 2⁻⁹/2⁻²⁴ per term added up. So more than one in twenty are
    taken for a rounding that is missing, or one too many. What one side has yet to round is rounded first. Partial sums
    in a narrow type are rounded, too.
    """
    fewer, more = sorted(chain.rounding_squares + chain.sum_squares for chain in (ours, counterpart))
    if more < LIMITS.narrow_unit**2 or more < LIMITS.more_roundings * fewer:
        return True
    narrow = narrower(element_type_of(actual.dtype), element_type_of(expected.dtype))
    first, second = (wide(_as(array, narrow)) for array in (actual, expected))
    unequal = np.count_nonzero((first != second) & ~(np.isnan(first) & np.isnan(second)))
    return bool(unequal <= max(1, actual.size // 20))


def _as(array: Array, entry: ElementType) -> Array:
    return array if array.dtype == entry.storage else narrowed(wide(array), entry)


def aligned(value: Array, dimensions: tuple[int, ...]) -> Iterator[Array]:
    """The ways in which an array may lie in other dimensions: row by row first, then with its dimensions permuted, some
    of which may be one in the array or in the other dimensions."""
    if value.size != int(np.prod(dimensions, dtype=np.int64)):
        return
    yield value.reshape(dimensions)
    ours = tuple(size for size in value.shape if size != 1)
    wanted = tuple(size for size in dimensions if size != 1)
    yield from islice((array.reshape(dimensions) for array in _permutations(value, ours, wanted)), LIMITS.permutations)


def _permutations(value: Array, ours: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Array]:
    if max(len(ours), len(wanted)) > LIMITS.permuted_dimensions:
        return
    for order in islice(permutations(range(len(ours))), 1, None):
        if _merges_to(tuple(ours[axis] for axis in order), wanted):
            yield value.reshape(ours).transpose(order)
    if len(wanted) > len(ours):
        for order in islice(permutations(range(len(wanted))), 1, None):
            split = tuple(wanted[axis] for axis in order)
            if _merges_to(split, ours):
                yield value.reshape(split).transpose(np.argsort(order))


def _merges_to(sizes: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether dimensions become others if some neighbours are made one."""
    return {*accumulate(wanted, mul)} <= {*accumulate(sizes, mul)}


def arranged(value: Array, like: Array) -> Iterator[Array]:
    """The ways in which an array may replace another, in its dimensions and its element type."""
    for candidate in aligned(value, like.shape):
        yield candidate if candidate.dtype == like.dtype else candidate.astype(like.dtype)


def permuted(value: Array, like: Array) -> Iterator[Array]:
    """An array with its dimensions permuted in any other way, in the dimensions and the element type of another."""
    squeezed = value.reshape([size for size in value.shape if size != 1])
    for order in islice(permutations(range(squeezed.ndim)), 1, LIMITS.permutations):
        candidate = squeezed.transpose(order).reshape(like.shape)
        yield candidate if candidate.dtype == like.dtype else candidate.astype(like.dtype)


def rearranged(actual: Array, expected: Array, allowed: Allowance | None) -> Array | None:
    """`expected` with its dimensions permuted so that `actual` agrees with it; None where none does.

    Where no permutation does, and both are many different floats that agree once they are sorted, `actual` itself.
    """
    limits = np.zeros(expected.shape) if allowed is None or allowed.expected is None else allowed.expected
    candidates = zip(aligned(expected, actual.shape), aligned(limits, actual.shape), strict=True)
    for candidate, limit in islice(candidates, 1, None):
        if agrees(actual, candidate, None if allowed is None else allowed.actual + limit):
            return candidate
    if not is_varied(actual):
        return None
    first, second = (wide(array).reshape(-1) for array in (actual, expected))
    if first.dtype.kind == "c":
        return None
    orders = np.argsort(first, kind="stable"), np.argsort(second, kind="stable")
    both = None if allowed is None else allowed.actual.reshape(-1)[orders[0]] + limits.reshape(-1)[orders[1]]
    return actual if agrees(first[orders[0]], second[orders[1]], both) else None


def is_varied(array: Array) -> bool:
    """Whether an array has so many different numbers, with fractions, that having them all is no coincidence."""
    if array.size < LIMITS.few_numbers or element_type_of(array.dtype).is_integral or array.dtype == np.bool_:
        return False
    part = np.ravel(array)[: LIMITS.sample] if array.flags.c_contiguous else array.flat[: LIMITS.sample]
    return len(np.unique(wide(part))) >= LIMITS.few_numbers


def is_near(actual: Array, expected: Array) -> bool:
    """Whether all but a few elements agree to within some roundings; of those that are not zero, where most are."""
    filled = int(np.count_nonzero(expected))
    few = int(filled >= LIMITS.few_numbers and element_type_of(expected.dtype).is_inexact)
    return _count_off(actual, expected) <= max(few, LIMITS.share_off * filled)


def comes_near(now: Array, before: Array, expected: Array, share: float = LIMITS.share_off) -> bool:
    """Whether a value that was off what is expected, in any arrangement of its dimensions, has come near it: few of the
    elements that were off still are, and at most a part of all."""
    if is_same(now, before):
        return False
    for candidate in aligned(expected, now.shape):
        off = _count_off(now, candidate)
        if off <= share * candidate.size and off <= LIMITS.share_left * _count_off(before, candidate):
            return True
    return False


def is_right(now: Array, expected: Array) -> bool:
    """Whether a value is what is expected, row by row, to within two roundings."""
    return any(
        _count_off(now, candidate, LIMITS.few_roundings) == 0 for candidate in islice(aligned(expected, now.shape), 1)
    )


def is_same(first: Array, second: Array) -> bool:
    """Whether two arrays hold the same numbers."""
    return bool(np.array_equal(wide(first), wide(second), equal_nan=True))


def _count_off(actual: Array, expected: Array, roundings: float | None = None) -> int:
    """How many elements do not agree to within some roundings."""
    first, second = element_type_of(actual.dtype), element_type_of(expected.dtype)
    x, y = wide(actual), wide(expected)
    if not first.is_inexact or not second.is_inexact:
        return int(np.count_nonzero(x != y))
    unit = max(unit_roundoff(first), unit_roundoff(second))
    part = unit * (roundings or (LIMITS.roundings if unit**2 < LIMITS.narrow_unit**2 else LIMITS.narrow_roundings))
    with np.errstate(all="ignore"):
        return int(np.count_nonzero(~((np.abs(x - y) <= part * np.abs(y)) | (x == y) | (np.isnan(x) & np.isnan(y)))))
