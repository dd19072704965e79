"""The errors of sums, by chance, as errors of their terms: see `hloexec.ops.policies.random_rounding`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from hloexec.dtypes import element_type_of
from hloexec.ops.policies.chance import BLOCK, accumulated, as_parts, mixed, with_errors
from hloexec.ops.threads import in_blocks
from hloexec.values import Array

__all__ = ["sum_by_chance", "walked"]

_PIECE = 1 << 16
"""So many terms of a long sum are looked at together. Other numbers give other bits."""


def walked(operand: Array, dimensions: Sequence[int], share: float, key: int, exact: float = 0.0) -> Array:
    """An operand in its accumulation type, each element times 1 + a random walk along `dimensions` from the end.

    Steps are uniform within a unit of roundoff. They belong to partial sums: the first term that is not zero makes
    none. A term that is no power of two has an error of its own, that of its product. Sums of whole numbers that are
    `exact` at most have no errors. Equal rows of terms have equal errors, wherever they stand.
    """
    values = accumulated(operand)
    last = tuple(range(operand.ndim - len(dimensions), operand.ndim))
    transposed = np.moveaxis(values, dimensions, last)
    length = math.prod(operand.shape[dimension] for dimension in dimensions)
    pieces = 2 if transposed.dtype.kind == "c" else 1
    parts = as_parts(transposed)
    if not parts.size:
        return operand
    rows, found = parts.reshape(-1, length, pieces), np.empty(parts.shape, parts.dtype)
    targets = found.reshape(rows.shape)

    def work(start: int, stop: int) -> None:
        _walk(rows[start:stop], targets[start:stop], share, key, exact)

    in_blocks(work, len(rows), max(1, BLOCK // (length * pieces)))
    return np.moveaxis(found.view(transposed.dtype).reshape(transposed.shape), last, dimensions)


def _walk(rows: Array, targets: Array, share: float, key: int, exact: float) -> None:
    """Write what `walked` makes of f32 or f64 numbers [row, term, part].

    Terms share the hash of their row. That is taken from the front, while walks go from the end.
    """
    count, length, pieces = rows.shape
    starts = range(0, length, _PIECE)
    row_hashes = np.zeros((count, 1, 1), np.uint64)
    is_exact = np.full((count, 1, 1), exact > 0)
    hashes = row_hashes
    for start in starts:
        terms = rows[:, start : start + _PIECE]
        hashes = _hashes(terms, key, start)
        row_hashes += hashes.sum(axis=(1, 2), keepdims=True)
        if is_exact.any():
            is_exact &= _are_whole(terms, exact / length)
    row_hashes |= np.uint64(1)
    firsts = (rows != 0).argmax(axis=1)[:, None]
    walks = np.zeros((count, 1, pieces), np.float32)
    for start in reversed(starts):
        terms = rows[:, start : start + _PIECE]
        if len(starts) > 1:
            hashes = _hashes(terms, key, start)
        hashes *= row_hashes
        steps = hashes.astype(np.uint32).view(np.int32) * np.float32(2.0**-31)
        steps *= (terms != 0) & (np.arange(start, start + terms.shape[1])[:, None] != firsts)
        steps[:, -1:] += walks[:, :1]
        walks = steps[:, ::-1].cumsum(axis=1, dtype=np.float32)[:, ::-1]
        moves = _moves(terms, walks, hashes, share)
        if is_exact.any():
            moves *= ~is_exact
        targets[:, start : start + _PIECE] = (terms.view(moves.dtype) + moves).view(terms.dtype)


def _hashes(terms: Array, key: int, start: int) -> Array:
    return mixed(terms.reshape(len(terms), -1), key, start * terms.shape[2]).reshape(terms.shape)


def _are_whole(terms: Array, largest: float) -> Array:
    """Which rows hold nothing but whole numbers up to the largest."""
    found = np.asarray((terms[:, :2] == np.rint(terms[:, :2])).all(axis=(1, 2)))
    rest = terms[found]
    found[found] = ((rest == np.rint(rest)) & (np.abs(rest) < largest)).all(axis=(1, 2))
    return found[:, None, None]


def _moves(terms: Array, walks: Array, hashes: Array, share: float) -> Array:
    """By how many last places terms change: by walks, in units of roundoff, and errors of their own."""
    mantissa = 23 if terms.itemsize == 4 else 52
    unsigned, tiny = np.dtype(f"u{terms.itemsize}").type, 2.0 ** (-126 if mantissa == 23 else -1022)
    fraction = terms.view(unsigned) & unsigned((1 << mantissa) - 1)
    # The upper half of a hash: 16 bits for the error of the term itself, 16 for which way it is rounded.
    hashes >>= np.uint64(32)
    upper = hashes.astype(np.uint32).reshape(-1)
    own, chance = (upper.view(kind)[place::2].reshape(terms.shape) for kind, place in ((np.int16, 0), (np.uint16, 1)))
    moves: Array = walks + own * np.float32(2.0**-15) * (fraction != 0)
    # A unit of roundoff is half a last place of 1, and (1 + fraction)/2 last places of the number.
    moves *= (fraction.astype(np.float32) * np.float32(2.0 ** -(mantissa + 1)) + np.float32(0.5)) * np.float32(share)
    moves = np.floor(moves + chance * np.float32(2.0**-16) * (moves != 0))
    sizes = np.abs(terms)
    moves *= (sizes >= tiny) & (sizes <= 1 / (4 * tiny))
    return moves.astype(f"i{terms.itemsize}")


def sum_by_chance(terms: Array, seed: int) -> Array:
    """The sum of floats along the first dimension, one after the other, in their own type."""
    entry = element_type_of(terms.dtype)
    with np.errstate(all="ignore"):
        total = walked(terms, (0,), 1.0, zlib.crc32(f"{seed}:sum".encode())).sum(axis=0)
        if element_type_of(total.dtype) is entry:
            return np.asarray(total)
        return with_errors(total, 0.0, entry, seed)
