"""Shadows of elementwise instructions, block by block, and what a sample of their elements shows.

The whole array gets a shadow. How much of its error is inherited, and how much the instruction added, is measured on a
sample of elements; where these hold too little of the error, on the part that holds most of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.ops.resources import in_blocks
from hloexec.tools.shadowing.store import BLOCK, Shadow, Shadows, exact_ranges, row_by_row, wide

PART = 1 << 13
"""Elements of the parts of which the heaviest is looked at; they divide a block."""
SAMPLE = 2048
"""Elements that are looked at."""
FEW = 256
"""Elements that have become zero, of a sample that need not have any."""
NOWHERE = np.empty(0, np.int64)
SHARE = 0.3
"""A sample that holds less of an error than this, for its size, says nothing of it."""


@frozen(eq=False)
class Difference:
    """By how much the exact numbers differ from an array, in the form of `Shadow`."""

    data: Array
    is_whole: bool
    energy: float
    heaviest: int
    """Where the part begins, of the flat array, that holds most of the error."""
    vanished: Array | None = None
    """The first places of the flat array where it is zero and exactly is not; None where nobody has looked."""


def elementwise(kernel: Callable[..., Array], operands: Sequence[Array], shadows: Shadows, value: Array) -> Difference:
    """The difference of an elementwise instruction's exact results from `value`, its operands being their shadows."""
    return differences(_exact(kernel, operands, shadows), value)


def count_unlike(kernel: Callable[..., Array], operands: Sequence[Array], shadows: Shadows, value: Array) -> int:
    """How many elements of an elementwise instruction's result are not what it gives for its operands' shadows."""
    exact, flat = _exact(kernel, operands, shadows), row_by_row(value)
    counts = np.zeros(max(1, -(-flat.size // BLOCK)), np.int64)

    def work(start: int, stop: int) -> None:
        counts[start // BLOCK] = np.count_nonzero(exact(start, stop) != flat[start:stop])

    in_blocks(work, flat.size, BLOCK)
    return int(counts.sum())


def _exact(kernel: Callable[..., Array], operands: Sequence[Array], shadows: Shadows) -> Callable[[int, int], Array]:
    """What a kernel gives for shadows, by ranges of the flat arrays."""
    ranges = [exact_ranges(operand, shadow) for operand, shadow in zip(operands, shadows, strict=True)]

    def exact(start: int, stop: int) -> Array:
        return np.asarray(kernel(*[range_of(start, stop) for range_of in ranges]))

    return exact


def differences(exact: Callable[[int, int], Array], value: Array) -> Difference:
    """The difference of exact numbers, which are given by ranges of the flat array, from `value`."""
    flat = row_by_row(value)
    errors = np.empty(flat.size, np.complex64 if flat.dtype.kind == "c" else np.float32)
    energies = np.zeros(max(1, -(-flat.size // PART)))
    seen = [NOWHERE] * -(-flat.size // BLOCK)
    lossy: list[int] = []

    def work(start: int, stop: int) -> None:
        if lossy:
            return
        block, is_lossy, zeros = narrowed(exact(start, stop), flat[start:stop], errors[start:stop])
        seen[start // BLOCK] = zeros
        if is_lossy:
            lossy.append(start)
        _note_energies(energies, block, start)

    in_blocks(work, flat.size, BLOCK)
    if lossy:
        return _whole(exact, flat, value.shape)
    heaviest = int(np.argmax(energies)) * PART
    zeros = first_places((number * BLOCK, places) for number, places in enumerate(seen))
    return Difference(errors.reshape(value.shape), False, float(energies.sum()), heaviest, zeros)


def narrowed(exact: Array, values: Array, out: Array) -> tuple[Array, bool, Array]:
    """The difference, which is also put into `out`; whether it does not tell all there; and the first places where
    `values` are zero and exactly are not."""
    block, vanished = subtracted(exact, values)
    if not math.isfinite(energy_in(block)):
        return block, True, vanished
    try:
        with np.errstate(over="raise", under="raise"):
            out[...] = block
    except FloatingPointError:
        with np.errstate(all="ignore"):
            out[...] = block
        return block, bool(((block == 0) != (out == 0)).any() or not np.isfinite(out).all()), vanished
    return block, False, vanished


def subtracted(exact: Array, values: Array) -> tuple[Array, Array]:
    """The difference; and the first places of the flat array where `values` are zero and exactly are not."""
    numbers = wide(values)
    zero = numbers == 0
    block = np.subtract(exact, numbers, out=numbers if numbers.dtype != values.dtype else None)
    return block, np.flatnonzero(zero & (block != 0))[:FEW] if zero.any() else NOWHERE


def first_places(found: Iterable[tuple[int, Array]]) -> Array:
    """The first of the places that blocks have, each of which begins at a place."""
    return np.concatenate([NOWHERE, *(start + places for start, places in found if places.size)])[:FEW]


def energy_in(block: Array) -> float:
    """The sum of the squares of a block of f64 (c128)."""
    flat = block.ravel(order="K")
    return float(np.vdot(flat, flat).real)


def _note_energies(energies: Array, block: Array, start: int) -> None:
    for first in range(0, block.size, PART):
        energies[(start + first) // PART] = energy_in(block[first : first + PART])


def difference_of(exact: Array, value: Array) -> Difference:
    """The difference of an array of exact numbers from `value`."""
    numbers = np.ascontiguousarray(exact).reshape(-1)
    return differences(lambda start, stop: numbers[start:stop], value)


def difference_of_few(sample: Sample, value: Array) -> Difference:
    """The same of a small array, all of whose elements are in the sample."""
    block = np.subtract(sample.exact, sample.value)
    if block.dtype == np.float64:
        energy = float(np.vdot(block, block))
        if energy < _NARROW:
            errors = block.astype(np.float32)
            if np.count_nonzero(errors) == np.count_nonzero(block):
                return Difference(errors.reshape(value.shape), False, energy, 0)
    return difference_of(sample.exact, value)


_NARROW = 1e70
"""A sum of squares below this has none of a number that is too large for f32."""


def _whole(exact: Callable[[int, int], Array], flat: Array, shape: tuple[int, ...]) -> Difference:
    """The same as the numbers themselves."""
    exacts = np.empty(flat.size, np.complex128 if flat.dtype.kind == "c" else np.float64)
    energies = np.zeros(max(1, -(-flat.size // PART)))
    most = np.finfo(np.float64).max / 4 / max(1, flat.size)

    def work(start: int, stop: int) -> None:
        exacts[start:stop] = exact(start, stop)
        difference = np.subtract(exacts[start:stop], wide(flat[start:stop]))
        if not math.isfinite(energy_in(difference)):
            difference = np.where(np.isfinite(difference), difference, 0)
        _note_energies(energies, difference, start)

    in_blocks(work, flat.size, BLOCK)
    np.minimum(energies, most, out=energies)
    return Difference(exacts.reshape(shape), True, float(energies.sum()), int(np.argmax(energies)) * PART)


@lru_cache(maxsize=256)
def spread(size: int, count: int = SAMPLE) -> Array:
    """So many places at most that are spread over a flat array without following any of its dimensions."""
    places = (np.arange(count, dtype=np.uint64) * np.uint64(2654435761)) % np.uint64(size)
    return _distinct(places.astype(np.int64))


def sampled(difference: Difference, value: Array) -> Array | None:
    """Which elements of a flat array to look at; None for all."""
    size = value.size
    if size <= SAMPLE:
        return None
    places = spread(size)
    errors = _errors(difference, value, places)
    if float(np.vdot(errors, errors).real) * size < SHARE * difference.energy * places.size:
        block = np.arange(difference.heaviest, min(size, difference.heaviest + PART))
        places = difference.heaviest + heaviest_of(_errors(difference, value, block))
    vanished = difference.vanished
    if vanished is None or difference.is_whole:
        flat, data = row_by_row(value), row_by_row(difference.data)
    if vanished is None:
        vanished = _first(lambda where: (flat[where] == 0) & (data[where] != 0), size, FEW)
    if difference.is_whole:
        vanished = either(vanished, _first(lambda where: ~np.isfinite(flat[where]), size, SAMPLE))
    return either(places, vanished)


def either(places: Array, others: Array) -> Array:
    """The places that are among these or those, in order."""
    return _distinct(np.concatenate([places, others])) if others.size else places


def _distinct(places: Array) -> Array:
    """Places in order, each once."""
    # NumPy's function builds a hash table, which takes it fifty times as long.
    sorted_places: Array = np.sort(places, kind="stable")
    return np.asarray(sorted_places[np.concatenate([[True], sorted_places[1:] != sorted_places[:-1]])])


def _first(holds: Callable[[slice], Array], size: int, most: int) -> Array:
    """The first places of a flat array where something holds, of which it is asked for a range at a time."""
    places = NOWHERE
    for start in range(0, size, BLOCK):
        places = np.concatenate([places, start + np.flatnonzero(holds(slice(start, start + BLOCK)))])
        if places.size >= most:
            break
    return places[:most]


def heaviest_of(errors: Array) -> Array:
    """The places of the largest errors."""
    return np.sort(np.argpartition(np.abs(errors), -min(SAMPLE, errors.size))[-SAMPLE:])


def _errors(difference: Difference, value: Array, places: Array) -> Array:
    errors = taken(difference.data, places)
    if difference.is_whole:
        errors = np.subtract(errors, wide(taken(value, places)))
        errors = np.where(np.isfinite(errors), errors, 0)
    return np.asarray(errors, np.complex128 if errors.dtype.kind == "c" else np.float64)


def taken(array: Array, places: Array | None) -> Array:
    """The elements at places of the flat array, which may be a scalar that stands for all."""
    if array.ndim == 0 or array.size == 1:
        return array.reshape(-1)
    if places is None:
        return np.ascontiguousarray(array).reshape(-1)
    if array.flags.c_contiguous:
        return array.reshape(-1)[places]
    return array[np.unravel_index(places, array.shape)]


@define(eq=False)
class Sample:
    """Some elements of an instruction's result and of its operands, all in one dimension and in f64."""

    value: Array
    """As they are."""
    exact: Array
    """Without rounding anywhere."""
    here: Array
    """Without rounding in this instruction: what its operands, as they are, give exactly."""
    added: Array
    """What the instruction adds to the error: value − here."""
    inherited: Array
    """What its operands' errors do: here − exact."""
    operands: tuple[Array, ...] = ()
    """As they are; integers and preds as they are. Empty where operands have no element for each of the result's."""
    shadows: tuple[Array | None, ...] = ()
    """The operands without rounding; None where they have no error."""
    parts: tuple[Array | None, ...] = ()
    """For each operand with an error what it alone changes in the result."""
    absorbed: Array | None = None
    """Where the result is one of the numbers that it is made of, and exactly should not be."""
    absorbed_before: Array | None = None
    """Where the error of an operand comes from that."""

    @classmethod
    def of(
        cls,
        kernel: Callable[..., Array],
        operands: Sequence[Array],
        shadows: Shadows,
        value: Array,
        places: Array | None,
    ) -> Sample:
        """A sample of an elementwise instruction, by the kernel for f64."""
        operands_wide = [wide(taken(operand, places)) for operand in operands]
        exact = [
            None if shadow is None else exact_places(shadow, array, places)
            for shadow, array in zip(shadows, operands_wide, strict=True)
        ]
        return cls.of_elements(kernel, operands_wide, exact, wide(taken(value, places)))

    @classmethod
    def of_elements(
        cls, kernel: Callable[..., Array], arrays: Sequence[Array], exact: Sequence[Array | None], array: Array
    ) -> Sample:
        """The same of elements that have been taken, of the operands as they are and without rounding (None where they
        have no error), and of the result."""
        count = array.size
        here = _spread_over(kernel(*arrays), count)
        if not any(operand is not None for operand in exact):
            return cls(
                array, here, here, array - here, np.zeros(count), tuple(arrays), tuple(exact), (None,) * len(arrays)
            )
        exact_operands = [theirs if theirs is not None else ours for ours, theirs in zip(arrays, exact, strict=True)]
        whole = _spread_over(kernel(*exact_operands), count)
        parts: list[Any] = [None] * len(arrays)
        wrong = [number for number, operand in enumerate(exact) if operand is not None]
        for number in wrong:
            if len(wrong) == 1:
                parts[number] = whole - here
            else:
                replaced = [exact_operands[k] if k == number else arrays[k] for k in range(len(arrays))]
                parts[number] = _spread_over(kernel(*replaced), count) - here
        return cls(array, whole, here, array - here, here - whole, tuple(arrays), tuple(exact), tuple(parts))


def _spread_over(array: Array, count: int) -> Array:
    return array if array.shape == (count,) else np.broadcast_to(array, (count,))


def exact_places(shadow: Shadow, array: Array, places: Array | None) -> Array:
    """The exact numbers at places, for the elements that an array has there."""
    if shadow.pending is not None and places is not None and places is spread(shadow.pending.size):
        return shadow.pending.sample
    data = taken(shadow.data, places)
    return data if shadow.is_whole else np.add(array, data.astype(array.dtype, copy=False))
