"""How scatter combines updates with rows of its targets: by whole-array operations where the combiner is a usual one,
else by rounds, each of which gives every row its next update.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from hloexec.dtypes import ElementType, Kind, element_type_of
from hloexec.ops.common import array_shape, narrow, widen
from hloexec.ops.data_movement import in_type
from hloexec.ops.exact.sums import add_by_key
from hloexec.ops.reducers import recognise_components
from hloexec.ops.registry import Callee
from hloexec.values import Array

__all__ = ["combine"]


def combine(targets: list[Array], keys: Array, pieces: list[Array], combiner: Callee, *, is_exact: bool) -> None:
    """`targets[keys] = combiner(targets[keys], pieces)`, one piece after the other, in place.

    Where it `is_exact`, sums are rounded once, and products of complex numbers, which NumPy does not round alike on all
    processors, are the combiner's own.
    """
    names = recognise_components(combiner.computation)
    with np.errstate(all="ignore"):
        if names is None or (is_exact and "multiply" in names and any(target.dtype.kind == "c" for target in targets)):
            _combine_by_rounds(targets, keys, pieces, combiner)
            return
        for name, target, piece in zip(names, targets, pieces, strict=True):
            element_type = element_type_of(target.dtype)
            if is_exact and name == "add" and not element_type.is_integral and element_type.kind is not Kind.PRED:
                add_by_key(target, keys, piece, element_type)
            else:
                _combine_recognised(name, target, keys, piece)


# By measurement: from here on a round costs less than `ufunc.at` does for the same elements.
_LONG_ROW = 16
_FEWER_ROUNDS = 8

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _combine_recognised(name: str, target: Array, keys: Array, pieces: Array) -> None:
    """`combine` for one operand and an operation that `recognise` knows."""
    element_type = element_type_of(target.dtype)
    if name == "first":
        return
    if name == "second":
        # NumPy assigns in order, so the last of several pieces for a row stays.
        target[keys] = pieces
        return
    ufunc = _UFUNCS[name]
    is_choice = name in ("minimum", "maximum")
    if element_type.is_floating and is_choice:
        ordered = _ordered_integers(target, name)
        _accumulate(ufunc, ordered, keys, _ordered_integers(pieces, name))
        target[...] = _from_ordered_integers(ordered, element_type)
    elif element_type.is_narrow and element_type.is_floating:
        wide = widen(pieces)
        for chosen in _rounds(keys):
            rows = keys[chosen]
            target[rows] = narrow(ufunc(widen(target[rows]), wide[chosen]), element_type)
    elif element_type.is_narrow:
        # Integers: wrapping once at the end is wrapping at each step.
        wide = widen(target)
        _accumulate(ufunc, wide, keys, widen(pieces))
        target[...] = narrow(wide, element_type)
    else:
        _accumulate(ufunc, target, keys, pieces)


def _accumulate(ufunc: np.ufunc, target: Array, keys: Array, pieces: Array) -> None:
    """`ufunc.at(target, keys, pieces)`, which is slow where rows are long: then by rounds, as long as these are few."""
    if prod(pieces.shape[1:]) >= _LONG_ROW and np.bincount(keys).max() <= len(keys) // _FEWER_ROUNDS:
        for chosen in _rounds(keys):
            rows = keys[chosen]
            target[rows] = ufunc(target[rows], pieces[chosen])
    else:
        ufunc.at(target, keys, pieces)


def _combine_by_rounds(targets: list[Array], keys: Array, pieces: list[Array], combiner: Callee) -> None:
    """`combine` for any computation: round k applies the k-th piece of every row at once."""
    parameters = [array_shape(shape, "a parameter").element_type for shape in combiner.computation.parameter_shapes]
    for chosen in _rounds(keys):
        rows = keys[chosen]
        arguments = [target[rows] for target in targets] + [piece[chosen] for piece in pieces]
        results = combiner(*(in_type(*pair) for pair in zip(arguments, parameters, strict=True)))
        for target, result in zip(targets, results if isinstance(results, tuple) else (results,), strict=True):
            target[rows] = in_type(result, element_type_of(target.dtype))


def _rounds(keys: Array) -> Iterator[Array]:
    """The positions of each key's first occurrence, of each key's second, and so on."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    lengths = np.diff(begins, append=len(keys))
    occurrence = np.arange(len(keys)) - np.repeat(begins, lengths)
    ends = np.cumsum(np.bincount(occurrence)).tolist()
    if len(ends) < 2**16:
        # NumPy sorts 16-bit integers by radix.
        occurrence = occurrence.astype(np.uint16)
    order = order[np.argsort(occurrence, kind="stable")]
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        yield order[begin:end]


def _ordered_integers(values: Array, name: str) -> Array:
    """Floats as integers in the same order, with -0 below +0, and NaN where `name` (minimum or maximum) takes it."""
    wide = widen(values)
    integers = np.dtype(f"i{wide.itemsize}")
    limits = np.iinfo(integers)
    bits = wide.view(integers)
    ordered = np.where(bits < 0, bits ^ limits.max, bits)
    ordered[np.isnan(wide)] = limits.max if name == "maximum" else limits.min
    return ordered


def _from_ordered_integers(ordered: Array, element_type: ElementType) -> Array:
    """The inverse of `_ordered_integers`."""
    limits = np.iinfo(ordered.dtype)
    wide = np.where(ordered < 0, ordered ^ limits.max, ordered).view(element_type.compute)
    wide[(ordered == limits.max) | (ordered == limits.min)] = np.nan
    return narrow(wide, element_type)
