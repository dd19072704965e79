"""Random rounding, a hash of the rounded values, and random-walk errors of sums: see `policies.random_rounding`."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type_of, part_type, smallest_normal
from hloexec.core.values import Array
from hloexec.ops.common import narrow_unchecked, wide, widen
from hloexec.ops.resources import in_blocks

BLOCK = 1 << 16
"""Elements at a time. Less would stay in a core's own cache, but threads would wait for Python's lock more than they
compute: on two cores, a chain of 17 calls on 64 MB takes 3.0 s in blocks of 2¹³, 1.5 s of 2¹⁵, 1.1 s of 2¹⁶.
"""
F64 = ELEMENT_TYPES["f64"]
_PIECE = 1 << 16
"""Number of terms of a long sum processed together. Other numbers give other bits."""
_WORD = (1 << 64) - 1
_WORDS = {4: np.uint32, 8: np.uint64}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_KEY_FACTOR = 0xD6E8FEB86659FD93
FAR_SEEDS = 1 << 32
"""With seeds from here on, errors are `FARTHER` times as large."""
FARTHER = 3.0
_LARGEST = 1e300
"""Larger numbers have no larger errors: their bits might become those of a NaN."""
_PLACES = np.arange(2 * BLOCK, dtype=np.uint64) * _GOLDEN

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")
_seed: ContextVar[int | tuple[int, ...]] = ContextVar("seed of random rounding")


@contextlib.contextmanager
def seeded(seed: int | tuple[int, ...]) -> Iterator[None]:
    """Within this context, kernels round at random with this seed. They are the same for all seeds, so that one plan
    serves many runs, also at the same time. Of several seeds, each is that of one of the arrays that are stacked."""
    token = _seed.set(seed)
    try:
        yield
    finally:
        _seed.reset(token)


def one_by_one(function: Callable[[_Given], _Found], given: Sequence[_Given]) -> list[_Found]:
    """What a function gives for each of several; where there are as many seeds, with its own."""
    seeds, results = _seed.get(), []
    for number, argument in enumerate(given):
        with seeded(seeds if isinstance(seeds, int) else seeds[number]):
            results.append(function(argument))
    return results


def are_several() -> bool:
    """Whether there are several seeds."""
    return isinstance(_seed.get(), tuple)


def key_of(name: str) -> Any:
    """The key of what rounds under this name, for the run's seed; an array of those of several."""
    return _key(_seed.get(), name)


@cache
def _key(seed: int | tuple[int, ...], name: str) -> Any:
    if isinstance(seed, int):
        return zlib.crc32(f"{seed}:{name}".encode())
    return np.array([_key(one_seed, name) for one_seed in seed], np.uint64)


def are_mixed() -> bool:
    """Whether some seeds are odd and others are not."""
    return len({seed % 2 for seed in _seeds()}) > 1


def has_odd_seed() -> bool:
    """Whether the run's seed is odd, or all of several are."""
    return _seeds()[0] % 2 == 1


def reach() -> float:
    """How many times as large the run's errors are as those of rounding; the same for all of several."""
    return FARTHER if _seeds()[0] >= FAR_SEEDS else 1.0


def _seeds() -> tuple[int, ...]:
    seeds = _seed.get()
    return (seeds,) if isinstance(seeds, int) else seeds


def _mixed(values: Array, key: Any, start: int | None = None) -> Array:
    """Hashes of some f32 or f64 numbers, the lower halves of which are good: what they are multiplied with by an odd
    number spreads to the upper ones.

    They are of the number's bits, the key and, where `start` is the place of the first along the last dimension, their
    places: these are multiplied by odd numbers and added up, and the upper half is folded onto the lower one.
    """
    words: Array = values.view(_WORDS[values.itemsize]).astype(np.uint64)
    offset = key * _KEY_FACTOR
    if start is not None:
        size = values.shape[-1]
        words += _PLACES[:size] if size <= _PLACES.size else np.arange(size, dtype=np.uint64) * _GOLDEN
        offset += start * int(_GOLDEN) & _WORD
    if isinstance(offset, int):
        words += np.uint64(offset & _WORD)
    else:
        words = (words.reshape(len(offset), -1) + offset[:, None]).reshape(words.shape)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(32)
    return words


def hashes_of(values: Array, key: Any, start: int | None = None) -> Array:
    """64 bits of chance for each of some f32 or f64 numbers; upper bits are the better ones. See `_mixed`."""
    words = _mixed(values, key, start)
    words *= np.uint64(0x94D049BB133111EB)
    return words


def steps_of(hashes: Array) -> Array:
    """A number in [−1, 1) of the lower half of each hash."""
    return hashes.astype(np.uint32).view(np.int32) * 2.0**-31


def chances(values: Array, key: Any) -> Array:
    """A number in [0, 1) for each of some f32 or f64 numbers."""
    return hashes_of(values, key) * 2.0**-64


def as_parts(values: Array) -> Array:
    """The elements in logical order in one dimension; of complex numbers, real and imaginary parts in turns."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(f"f{flat.itemsize // 2}") if flat.dtype.kind == "c" else flat


def with_errors(values: Array, amplitude: float, entry: ElementType, key: Any, count: int = 1) -> Array:
    """Floats or complex numbers with independent relative errors, uniform up to `amplitude`, rounded to a type.

    Errors depend on the place in one of the `count` arrays that the values are.
    """
    amplitude *= reach()
    part, parts = part_type(entry), as_parts(values).reshape(count, -1)
    noisy = np.empty(parts.shape, part.storage)

    def work(start: int, stop: int) -> None:
        exact = wide(parts[:, start:stop])
        if amplitude:
            exact = exact * (1 + steps_of(hashes_of(exact, key + 1, start)) * amplitude)
        rounded = noisy[:, start:stop]
        flat = exact.reshape(-1)
        rounded[...] = exact if part is F64 else of_hashes(flat, part, hashes_of(flat, key)).reshape(exact.shape)

    in_blocks(work, parts.shape[1], max(1, BLOCK // count))
    return noisy.view(entry.storage).reshape(values.shape)


def with_errors_along(values: Array, amplitudes: Sequence[float], key: Any) -> Array:
    """Floats or complex numbers in f64, with relative errors for each of the last dimensions, with the variance of a
    uniform one up to its amplitude: half of it depends on the place there, as factors are rounded, and half on the
    element, too, as partial sums are. Equal lines have equal errors."""
    exact = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64, order="C")
    parts = exact.view(np.float64).reshape(*exact.shape, -1)
    noisy = parts.copy()
    for axis, amplitude in enumerate(amplitudes, exact.ndim - len(amplitudes)):
        lines = np.ascontiguousarray(np.moveaxis(parts, axis, -2))
        hashes = hashes_of(lines.reshape(*lines.shape[:-2], -1), key + axis, 0).reshape(lines.shape)
        shared = steps_of(hashes_of(np.zeros(exact.shape[axis]), key + axis, 0))[:, None]
        noisy *= np.moveaxis(1 + (steps_of(hashes) + shared) * (amplitude * reach() * math.sqrt(0.5)), -2, axis)
    return np.asarray(noisy.view(exact.dtype).reshape(exact.shape))


def of_hashes(exact: Array, entry: ElementType, hashes: Array) -> Array:
    """f64 numbers in a narrower type, up or down by chance; the hashes are used up.

    The digits that the type has no room for are a fraction of a last place: once random digits in their places are
    added, to carry or not, they can be cut off.
    """
    if entry.bits < 16:
        return _between_neighbours(exact, entry, hashes * 2.0**-64)
    dropped = dropped_digits(entry)
    small = np.abs(exact) < smallest_normal(entry)
    if reach() > 1:
        # Rounding has the variance of a sixth of a squared last place, and steps up to `size` have size²/3.
        size = math.sqrt((reach() ** 2 - 1) / 2) * 2.0**dropped
        is_rounded = exact.view(np.uint64) & np.uint64((1 << dropped) - 1) != 0
        is_rounded &= ~small & (np.abs(exact) < _LARGEST)
        steps = np.where(is_rounded, steps_of(hashes * _GOLDEN) * size, 0)
        exact = (exact.view(np.int64) + steps.astype(np.int64)).view(np.float64)
    hashes >>= np.uint64(64 - dropped)
    places = np.flatnonzero(small & (exact != 0)) if np.logical_or.reduce(small) else ()
    fractions = hashes[places] * 2.0**-dropped if len(places) else None
    hashes += exact.view(np.uint64)
    hashes &= np.uint64(-1 << dropped & _WORD)
    results: Array = hashes.view(np.float64).astype(np.float32)
    if entry.mantissa_bits == 7:
        results = (results.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(entry.storage)
    elif entry.bits == 16:
        results = results.astype(entry.storage)
    if fractions is not None:
        results[places] = _between_neighbours(exact[places], entry, fractions)
    return results


def _between_neighbours(exact: Array, entry: ElementType, fractions: Array) -> Array:
    """`of_hashes` where a type's numbers are not as far apart as their digits say; `fractions` are in [0, 1)."""
    near = narrow_unchecked(exact, entry)
    held = widen(near).astype(np.float64)
    errors = exact - held
    if entry.bits < 8 or not errors.any():
        return near
    bits = near.view(f"i{near.itemsize}")
    away = (errors > 0) == (bits >= 0)
    zero = np.where(errors < 0, np.array(-1, bits.dtype) << (8 * bits.itemsize - 1) | 1, np.array(1, bits.dtype))
    other = np.where(held == 0, zero, bits + np.where(away, 1, -1).astype(bits.dtype)).view(near.dtype)
    gaps = np.abs(widen(other).astype(np.float64) - held)
    # Infinities and NaNs on either side compare as false.
    return np.where(np.abs(errors) > fractions * gaps, other, near)


def moved(nearest: Array, errors: Array, key: Any) -> Array:
    """f64 numbers, each moved to the next one on the side of its error with a probability in proportion."""
    moves = np.abs(errors) > chances(nearest, key) * np.spacing(np.abs(nearest))
    return np.where(moves, np.nextafter(nearest, np.where(errors > 0, np.inf, -np.inf)), nearest)


def dropped_digits(entry: ElementType) -> int:
    """How many of f64's binary digits a floating type has no room for; of f64 itself, those of functions' errors."""
    return 52 - entry.mantissa_bits if entry is not F64 else 26


def accumulated(operand: Array) -> Array:
    """An array in the type that it is added up in."""
    entry = element_type_of(operand.dtype)
    return operand.astype(entry.accumulate) if entry.is_narrow and entry.is_floating else operand


def walked(operand: Array, dimensions: Sequence[int], share: float, key: Any, exact: float = 0.0) -> Array:
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
    rows, walked_parts = parts.reshape(-1, length, pieces), np.empty(parts.shape, parts.dtype)
    targets = walked_parts.reshape(rows.shape)

    def work(start: int, stop: int) -> None:
        _walk(rows[start:stop], targets[start:stop], share * reach(), key, exact)

    in_blocks(work, len(rows), max(1, BLOCK // (length * pieces)))
    return np.moveaxis(walked_parts.view(transposed.dtype).reshape(transposed.shape), last, dimensions)


def _walk(rows: Array, targets: Array, share: float, key: Any, exact: float) -> None:
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


def _hashes(terms: Array, key: Any, start: int) -> Array:
    return _mixed(terms.reshape(len(terms), -1), key, start * terms.shape[2]).reshape(terms.shape)


def _are_whole(terms: Array, largest: float) -> Array:
    """Which rows hold nothing but whole numbers up to the largest."""
    whole_rows = np.asarray((terms[:, :2] == np.rint(terms[:, :2])).all(axis=(1, 2)))
    rest = terms[whole_rows]
    whole_rows[whole_rows] = ((rest == np.rint(rest)) & (np.abs(rest) < largest)).all(axis=(1, 2))
    return whole_rows[:, None, None]


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


def sum_by_chance(terms: Array) -> Array:
    """The sum of floats along the first dimension, one after the other, in their own type."""
    entry = element_type_of(terms.dtype)
    with np.errstate(all="ignore"):
        total = walked(terms, (0,), 1.0, key_of("sum")).sum(axis=0)
        if element_type_of(total.dtype) is entry:
            return np.asarray(total)
        return with_errors(total, 0.0, entry, _seed.get())
