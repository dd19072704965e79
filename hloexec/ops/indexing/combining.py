"""How scatter combines updates with rows of its targets: with whole-array operations if the combiner is a common one,
otherwise in rounds, each of which applies the next update of every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from hloexec.core.dtypes import ElementType, Kind, element_type_of
from hloexec.core.values import Array
from hloexec.ops.common import array_shape, in_type, narrow, widen
from hloexec.ops.elementwise.selection import total_order_key
from hloexec.ops.movement.copying import as_integers
from hloexec.ops.policies.exact.sums import add_by_key
from hloexec.ops.reduction.known_reducers import KNOWN_REDUCERS, UFUNCS
from hloexec.ops.reduction.reducers import recognise_components
from hloexec.ops.registry import Callee
from hloexec.ops.signatures import called
from hloexec.ops.sorting.sort import stable_argsort
from hloexec.ops.threads import in_blocks

Combining = Callable[[Sequence[Array], Array, Sequence[Array]], None]
"""`targets[keys] = combiner(targets[keys], pieces)`, one piece after the other, in place."""


def combining(combiner: Callee, *, is_exact: bool) -> Combining:
    """How pieces are combined with rows by a computation.

    Where it `is_exact`, sums are rounded once, and products of complex numbers, which NumPy does not round alike on all
    processors, are the combiner's own.
    """
    names = recognise_components(combiner.computation)
    if names is None:
        return partial(_combine_by_rounds, combiner)
    return partial(_combine_exactly, combiner, names) if is_exact else partial(_combine_components, names)


def _combine_exactly(
    combiner: Callee, names: Sequence[str], targets: Sequence[Array], keys: Array, pieces: Sequence[Array]
) -> None:
    if "multiply" in names and any(target.dtype.kind == "c" for target in targets):
        _combine_by_rounds(combiner, targets, keys, pieces)
        return
    for name, target, piece in zip(names, targets, pieces, strict=True):
        element_type = element_type_of(target.dtype)
        if name == "add" and not element_type.is_integral and element_type.kind is not Kind.PRED:
            add_by_key(target, keys, piece, element_type)
        else:
            _combine_recognised(name, target, keys, piece)


def _combine_components(names: Sequence[str], targets: Sequence[Array], keys: Array, pieces: Sequence[Array]) -> None:
    for name, target, piece in zip(names, targets, pieces, strict=True):
        _combine_recognised(name, target, keys, piece)


def places_of_unlike(target: Array, keys: Array, pieces: Array) -> None:
    """Sets the elements of a target of preds into which unlike elements of several pieces go."""
    order, begins = _by_key(keys)
    ordered = pieces[order]
    first = ordered[np.repeat(begins, np.diff(begins, append=len(order)))]
    target[keys[order[begins]]] |= np.logical_or.reduceat(ordered != first, begins, axis=0)


# By measurement: rows so long are worth a call of NumPy's each, and rounds of so many keys are worth one.
_LONG_ROW = 16
_FEWEST_KEYS = 16
_BLOCK_ELEMENTS = 1 << 15
_LONG_FOLD_ELEMENTS = 1 << 17
"""With fewer for each key, threads would wait for each other more than they compute."""


def _combine_recognised(name: str, target: Array, keys: Array, pieces: Array) -> None:
    """`Combining` for one operand and an operation that `recognise` knows."""
    element_type = element_type_of(target.dtype)
    row = prod(pieces.shape[1:])
    if name == "first":
        return
    if name == "second":
        # NumPy assigns in order, so the last of several pieces for a row stays.
        as_integers(target)[keys] = as_integers(pieces)
    elif row >= _LONG_ROW:
        _combine_rows(KNOWN_REDUCERS[name].combine, target, keys, pieces, element_type)
    elif element_type.is_narrow and element_type.is_floating and name in ("add", "multiply"):
        _combine_narrow_floats(name, target, keys, pieces, element_type)
    elif len(keys) * 4 < len(target):
        # What needs another form of the target shall need it of the rows that change only.
        rows, places = np.unique(keys, return_inverse=True)
        part = target[rows]
        _combine_elements(name, part, places, pieces, element_type)
        target[rows] = part
    else:
        _combine_elements(name, target, keys, pieces, element_type)


def _combine_elements(name: str, target: Array, keys: Array, pieces: Array, element_type: ElementType) -> None:
    """`Combining` for rows of few elements, of all types that need no rounding."""
    ufunc = UFUNCS[name]
    if element_type.is_floating and name in ("minimum", "maximum"):
        ordered = _ordered_integers(target, name)
        _at(ufunc, ordered, keys, _ordered_integers(pieces, name))
        target[...] = _from_ordered_integers(ordered, element_type)
    elif element_type.is_narrow:
        # Integers: wrapping once at the end is wrapping at each step.
        wide = widen(target)
        _at(ufunc, wide, keys, widen(pieces))
        target[...] = narrow(wide, element_type)
    else:
        _at(ufunc, target, keys, pieces)


def _at(ufunc: np.ufunc, target: Array, keys: Array, pieces: Array) -> None:
    """`ufunc.at(target, keys, pieces)`, element by element where that is possible, which NumPy is faster at."""
    row = prod(pieces.shape[1:])
    if target.flags.c_contiguous:
        target = target.reshape(-1)
        keys = keys if row == 1 else (keys[:, None] * row + np.arange(row)).reshape(-1)
        pieces = pieces.reshape(-1)
    ufunc.at(target, keys, pieces)


def _combine_narrow_floats(name: str, target: Array, keys: Array, pieces: Array, element_type: ElementType) -> None:
    """`Combining` for rows of few elements: by rounds, as long as these are of many keys."""
    ufunc, wide = UFUNCS[name], widen(pieces)
    order, ends = _rounds(*_by_key(keys))
    begin = 0
    for end in ends:
        if end - begin < _FEWEST_KEYS and element_type.bits == 16:
            # These types' own sums and products, of one element at a time, are those of f32, rounded.
            rest = order[begin:]
            ufunc.at(target, keys[rest], pieces[rest])
            return
        chosen = order[begin:end]
        rows = keys[chosen]
        target[rows] = narrow(ufunc(widen(target[rows]), wide[chosen]), element_type)
        begin = end


def _combine_rows(
    step: Callable[[Array, Array], Array], target: Array, keys: Array, pieces: Array, element_type: ElementType
) -> None:
    """`Combining` for long rows: rounds, as long as these are of many keys; then key by key, piece by piece."""
    can_be_folded = isinstance(step, np.ufunc) and element_type.is_floating and not element_type.is_narrow
    by_key, begins = _by_key(keys)
    if can_be_folded and len(begins) < np.diff(begins, append=len(keys)).max(initial=0):
        assert isinstance(step, np.ufunc)
        _fold_rows(step, target, keys, pieces, by_key, begins)
        return
    order, ends = _rounds(by_key, begins)
    block = max(1, _BLOCK_ELEMENTS // prod(pieces.shape[1:]))
    begin = 0
    for number, end in enumerate(ends):
        if end - begin < _FEWEST_KEYS < len(ends) or (can_be_folded and end - begin < len(ends) - number):
            break
        chosen = order[begin:end]

        def update(start: int, stop: int, chosen: Array = chosen) -> None:
            numbers = chosen[start:stop]
            rows = keys[numbers]
            found, given = _rows(target, rows), _rows(pieces, numbers)
            if can_be_folded and isinstance(step, np.ufunc):
                target[rows] = step(found, given, out=found)
            else:
                target[rows] = narrow(step(widen(found), widen(given)), element_type)

        in_blocks(update, len(chosen), block)
        begin = end
    rest = order[begin:]
    if can_be_folded:
        assert isinstance(step, np.ufunc)
        by_key, begins = _by_key(keys[rest])
        _fold_rows(step, target, keys, pieces, rest[by_key], begins)
        return
    for key in np.unique(keys[rest]):
        total = widen(target[key])
        for piece in widen(pieces[rest[keys[rest] == key]]):
            total = step(total, piece)
            if element_type.is_narrow:
                total = widen(narrow(total, element_type))
        target[key] = narrow(total, element_type)


def _fold_rows(step: np.ufunc, target: Array, keys: Array, pieces: Array, ordered: Array, begins: Array) -> None:
    """`Combining` of the pieces of these numbers, which are in the order of their keys, each of which `begins`
    somewhere; with sums or products of f32 or f64.

    Along the first of two dimensions, NumPy combines one row after the other, each with all those before.
    """
    ends = [*begins[1:].tolist(), len(ordered)]
    # What changes nothing: to begin with +0 would lose −0.
    initial = -0.0 if step is np.add else 1

    def fold(number: int, _: int) -> None:
        numbers = ordered[begins[number] : ends[number]]
        key = keys[numbers[0]]
        rows = np.empty((1 + len(numbers), *pieces.shape[1:]), target.dtype)
        rows[0] = target[key]
        if pieces.flags.c_contiguous:
            np.take(pieces, numbers, axis=0, mode="clip", out=rows[1:])
        else:
            # NumPy would copy all pieces first.
            rows[1:] = pieces[numbers]
        target[key] = step.reduce(rows.reshape(len(rows), -1), axis=0, initial=initial).reshape(rows.shape[1:])

    is_long = len(ordered) * prod(pieces.shape[1:]) >= _LONG_FOLD_ELEMENTS * len(begins)
    in_blocks(fold, len(begins), 1, threads=None if is_long else 1)


def _rows(array: Array, numbers: Array) -> Array:
    """Some rows of an array, by numbers that are known to be in bounds: not to look saves half the time."""
    return np.take(array, numbers, axis=0, mode="clip") if array.flags.c_contiguous else array[numbers]


def _combine_by_rounds(combiner: Callee, targets: Sequence[Array], keys: Array, pieces: Sequence[Array]) -> None:
    """`Combining` for any computation: round k applies the k-th piece of every row at once."""
    parameters = [array_shape(shape, "a parameter").element_type for shape in combiner.computation.parameter_shapes]
    order, ends = _rounds(*_by_key(keys))
    for begin, end in pairwise((0, *ends)):
        chosen = order[begin:end]
        rows = keys[chosen]
        arguments = [target[rows] for target in targets] + [piece[chosen] for piece in pieces]
        results = called(combiner, *(in_type(*pair) for pair in zip(arguments, parameters, strict=True)))
        for target, result in zip(targets, results, strict=True):
            target[rows] = in_type(result, element_type_of(target.dtype))


def _by_key(keys: Array) -> tuple[Array, Array]:
    """The positions of keys in the order of the keys, and where in it each key begins."""
    order = stable_argsort(keys)
    ordered = keys[order]
    is_first = np.ones(len(keys), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return order, np.flatnonzero(is_first)


def _rounds(order: Array, begins: Array) -> tuple[Array, list[int]]:
    """The positions of each key's first occurrence, then of each key's second, and so on, and where each round ends.

    They are given in the order of their keys, and where in it each key begins.
    """
    if len(begins) == len(order):
        return order, [len(order)]
    occurrence = np.arange(len(order))
    occurrence -= np.repeat(begins, np.diff(begins, append=len(order)))
    ends: list[int] = np.cumsum(np.bincount(occurrence)).tolist()
    return order[stable_argsort(occurrence)], ends


def _ordered_integers(values: Array, name: str) -> Array:
    """Floats as integers in the same order, with -0 below +0, and NaN where `name` (minimum or maximum) takes it."""
    wide = widen(values)
    ordered = total_order_key(wide)
    limits = np.iinfo(ordered.dtype)
    ordered[np.isnan(wide)] = limits.max if name == "maximum" else limits.min
    return ordered


def _from_ordered_integers(ordered: Array, element_type: ElementType) -> Array:
    """The inverse of `_ordered_integers`."""
    limits = np.iinfo(ordered.dtype)
    wide = total_order_key(ordered).view(element_type.compute)
    wide[(ordered == limits.max) | (ordered == limits.min)] = np.nan
    return narrow(wide, element_type)
