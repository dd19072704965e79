"""Sums and products of many numbers as pairs of f64, along a tree that only the number of terms decides.

A tree of depth d adds d · 2⁻¹⁰⁰ of the sum of magnitudes to the error. Products keep their exponents apart, and
overflow only where the result does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.precision import part_type
from hloexec.core.values import Array
from hloexec.ops.common import narrow, widen
from hloexec.ops.complex_parts import from_parts
from hloexec.ops.policies.exact import doubled
from hloexec.ops.policies.exact.certainty import EXACT_UNITS, can_be_certain, doubtful, units_of
from hloexec.ops.policies.exact.doubled import Pair, rounded_to_odd, scaled
from hloexec.ops.threads import in_blocks

_CHUNK = 1 << 17
"""Terms that are widened at a time."""
_ROW = 1 << 16
"""Longer rows are added up in pieces of this length first."""
_PIECE = 1 << 10
"""Terms that are added up in plain f64, in any order, before their sums are."""

Terms: TypeAlias = tuple[Array, ...]
"""Numbers in as many parts as a combination needs, the terms along the last axis."""


def add_pairs(x: Pair, y: Pair) -> Pair:
    """x + y; what is infinite or NaN has the low part 0."""
    return kept_finite(doubled.add(x, y), x[0] + y[0])


def kept_finite(pair: Pair, plain: Array) -> Pair:
    """The pair, or (plain, 0) where the plain value is infinite or NaN: arithmetic of pairs makes NaN of either."""
    finite = np.isfinite(plain)
    return pair if finite.all() else doubled.where(finite, pair, (plain, 0.0))


def _multiply(x: Terms, y: Terms) -> Terms:
    """The product of pairs times powers of two, the high parts kept in [½, 1)."""
    high, low = kept_finite(doubled.multiply((x[0], x[1]), (y[0], y[1])), x[0] * y[0])
    mantissa, exponent = np.frexp(high)
    shift = exponent.astype(np.int64)
    return mantissa, low * doubled.power_of_two(-shift), x[2] + y[2] + shift


def _product_terms(array: Array) -> Terms:
    mantissa, exponent = np.frexp(array)
    return mantissa, np.zeros_like(array), exponent.astype(np.int64)


def _product_value(terms: Terms) -> Array:
    high, low, exponent = terms
    return scaled(high + low, np.clip(exponent, -2040, 2040))


_Combination: TypeAlias = Callable[[Any, Any], Terms]
_Operation: TypeAlias = tuple[Callable[[Array], Terms], _Combination, Callable[[Terms], Array]]

_OPERATIONS: dict[str, _Operation] = {
    "add": (lambda array: (array, np.zeros_like(array)), add_pairs, lambda terms: terms[0] + terms[1]),
    "add for f32": (
        lambda array: (array, np.zeros_like(array)),
        add_pairs,
        lambda terms: rounded_to_odd((terms[0], terms[1])),
    ),
    "multiply": (_product_terms, _multiply, _product_value),
}


def can_reduce_exactly(name: str, element_type: ElementType) -> bool:
    """Whether `reduce_exactly` has this operation on this element type."""
    return (element_type.is_floating and name in _OPERATIONS) or (element_type.is_complex and name == "add")


def reduce_exactly(
    name: str, array: Array, dimensions: Sequence[int], init_value: Array, result_type: ElementType
) -> Array:
    """All elements along `dimensions` added or multiplied, with `init_value` (a scalar) too, and rounded once."""
    if array.dtype.kind == "c":
        parts = (array.real, init_value.real), (array.imag, init_value.imag)
        reduced = (_reduced(name, part, dimensions, init, part_type(result_type)) for part, init in parts)
        return narrow(from_parts(*reduced), result_type)
    return narrow(_reduced(name, array, dimensions, init_value, result_type), result_type)


def _reduced(name: str, array: Array, dimensions: Sequence[int], init_value: Array, result_type: ElementType) -> Array:
    kept = [dimension for dimension in range(array.ndim) if dimension not in dimensions]
    sizes = [array.shape[dimension] for dimension in kept]
    length = prod(array.shape[dimension] for dimension in dimensions)
    rows = array.transpose(*kept, *sorted(dimensions)).reshape(prod(sizes), length)
    init = float(widen(init_value.reshape(1))[0])
    result = np.empty(prod(sizes))
    step = max(1, _CHUNK // max(1, length))
    is_for_f32 = name == "add" and can_be_certain(result_type)
    is_quick = is_for_f32 and array.dtype.itemsize <= 4
    operation = _OPERATIONS["add for f32" if is_for_f32 else name]

    def reduce(start: int, stop: int) -> None:
        some = rows[start:stop]
        if is_quick:
            result[start:stop], again = _added_quickly(some, init, result_type)
            if again.size:
                result[start + again] = _reduced_rows(operation, some[again], init)
        else:
            result[start:stop] = _reduced_rows(operation, some, init)
        if name == "add":
            _keep_negative_zeros(result[start:stop], some, init)

    with np.errstate(all="ignore"):
        in_blocks(reduce, len(result), step)
    return result.reshape(sizes)


def _added_quickly(rows: Array, init: float, result_type: ElementType) -> tuple[Array, Array]:
    """The sums of rows of f32 numbers, or of narrower ones, in plain f64, and which of them need more digits.

    Sums of n numbers in any order are off by less than n · 2⁻⁵³ of the sum of their magnitudes, for n up to 2²⁰. That
    sum, in f32, is off by less than a half, or infinite, as rows are cut into pieces.
    """
    rows = widen(rows)
    count = rows.shape[1] // _PIECE
    whole = count * _PIECE
    value, size = np.full(len(rows), init), np.full(len(rows), abs(init))
    for part in (rows[:, :whole].reshape(len(rows), count, _PIECE), rows[:, whole:].reshape(len(rows), 1, -1)):
        value += part.sum(axis=-1, dtype=np.float64).sum(axis=-1)
        size += np.abs(part).sum(axis=-1).sum(axis=-1, dtype=np.float64)
    # Twice the bound, for the margin, and twice that, for the size.
    error = size * ((_PIECE + count + 3) * 2.0**-51)
    again = doubtful(value, error, result_type)
    again |= np.isnan(value)
    places = np.flatnonzero(again)
    units = units_of(rows[places]).min(axis=-1, initial=units_of(np.array([init], np.float32))[0])
    return value, places[~(size[places] < EXACT_UNITS * units)]


def _reduced_rows(operation: _Operation, rows: Array, init: float) -> Array:
    to_terms, combine, value = operation
    widened = (widen(rows[:, start : start + _ROW]).astype(np.float64) for start in range(0, rows.shape[1], _ROW))
    pieces = [_fold(to_terms(piece), combine) for piece in widened]
    pieces.append(to_terms(np.full((len(rows), 1), init)))
    together = tuple(np.concatenate(parts, axis=-1) for parts in zip(*pieces, strict=True))
    return value(_fold(together, combine))[:, 0]


def _fold(terms: Terms, combine: _Combination) -> Terms:
    """Combine the first half of the terms with the second until one is left; an odd one waits."""
    while (length := terms[0].shape[-1]) > 1:
        half = length // 2
        combined = combine(*(tuple(part[..., start : start + half] for part in terms) for start in (0, half)))
        if length % 2:
            pairs = zip(combined, terms, strict=True)
            combined = tuple(np.concatenate([new, old[..., -1:]], axis=-1) for new, old in pairs)
        terms = combined
    return terms


def sum_pairs(terms: Pair) -> Pair:
    """The sums of pairs along the last axis, which keeps the length 1; of none, 0."""
    if terms[0].shape[-1] == 0:
        nothing = np.zeros((*terms[0].shape[:-1], 1))
        return nothing, nothing
    high, low = _fold(terms, add_pairs)
    return high, low


def _keep_negative_zeros(result: Array, rows: Array, init: float) -> None:
    """A sum of nothing but −0 is −0, which pairs do not remember."""
    if init == 0 and np.signbit(init) and (result == 0).any():
        negative = (rows == 0).all(axis=1) & np.signbit(widen(rows)).all(axis=1)
        result[negative] = -0.0


def add_by_key(target: Array, keys: Array, pieces: Array, element_type: ElementType) -> None:
    """`target[keys] += pieces` in place, each row of the target summed as pairs and rounded once.

    `target` is `[rows, ...]`, `pieces` `[keys, ...]`. Neighbours of one key are added up, in order, until one is left.
    """
    if target.dtype.kind == "c":
        for ours, theirs in ((target.real, pieces.real), (target.imag, pieces.imag)):
            ours[...] = _added_by_key(ours, keys, theirs)
        return
    target[...] = narrow(_added_by_key(widen(target), keys, widen(pieces)), element_type)


def _added_by_key(target: Array, keys: Array, pieces: Array) -> Array:
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    total: Pair = pieces[order].astype(np.float64), np.zeros(pieces.shape)
    while True:
        begins = np.concatenate(([True], keys[1:] != keys[:-1]))
        if begins.all():
            break
        places = np.arange(len(keys))
        odd = (places - np.maximum.accumulate(np.where(begins, places, 0))) % 2 == 1
        second = np.flatnonzero(odd)
        first = second - 1
        neighbours = ((total[0][places], total[1][places]) for places in (first, second))
        total[0][first], total[1][first] = add_pairs(*neighbours)
        keys, total = keys[~odd], (total[0][~odd], total[1][~odd])
    result = target.astype(np.float64)
    high, low = add_pairs(total, (result[keys], 0.0))
    result[keys] = high + low
    return result
