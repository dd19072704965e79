"""Rounding up or down by chance, which is a hash of what is rounded: see `hloexec.ops.policies.random_rounding`."""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.ops.common import narrow_unchecked, widen
from hloexec.ops.threads import in_blocks
from hloexec.precision import part_type, smallest_normal
from hloexec.values import Array

__all__ = [
    "BLOCK",
    "F64",
    "accumulated",
    "as_parts",
    "chances",
    "doubled",
    "dropped_digits",
    "hashes_of",
    "mixed",
    "moved",
    "of_hashes",
    "steps_of",
    "with_errors",
]

BLOCK = 1 << 16
"""Elements at a time. Less would stay in a core's own cache, but threads would wait for Python's lock more than they
compute: on two cores, a chain of 17 calls on 64 MB takes 3.0 s in blocks of 2¹³, 1.5 s of 2¹⁵, 1.1 s of 2¹⁶.
"""
F64 = ELEMENT_TYPES["f64"]
_WORD = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_KEY_FACTOR = 0xD6E8FEB86659FD93
_PLACES = np.arange(2 * BLOCK, dtype=np.uint64) * _GOLDEN


def mixed(values: Array, key: int, start: int | None = None) -> Array:
    """Hashes of some f32 or f64 numbers, the lower halves of which are good: what they are multiplied with by an odd
    number spreads to the upper ones.

    They are of the number's bits, the key and, where `start` is the place of the first along the last dimension, their
    places: these are multiplied by odd numbers and added up, and the upper half is folded onto the lower one.
    """
    found: Array = values.view(f"u{values.itemsize}").astype(np.uint64)
    offset = key * _KEY_FACTOR
    if start is not None:
        size = values.shape[-1]
        found += _PLACES[:size] if size <= _PLACES.size else np.arange(size, dtype=np.uint64) * _GOLDEN
        offset += start * int(_GOLDEN)
    found += np.uint64(offset & _WORD)
    found *= np.uint64(0xBF58476D1CE4E5B9)
    found ^= found >> np.uint64(32)
    return found


def hashes_of(values: Array, key: int, start: int | None = None) -> Array:
    """64 bits of chance for each of some f32 or f64 numbers; upper bits are the better ones. See `mixed`."""
    found = mixed(values, key, start)
    found *= np.uint64(0x94D049BB133111EB)
    return found


def steps_of(hashes: Array) -> Array:
    """A number in [−1, 1) of the lower half of each hash."""
    return hashes.astype(np.uint32).view(np.int32) * 2.0**-31


def chances(values: Array, key: int) -> Array:
    """A number in [0, 1) for each of some f32 or f64 numbers."""
    return hashes_of(values, key) * 2.0**-64


def as_parts(values: Array) -> Array:
    """The elements in logical order in one dimension; of complex numbers, real and imaginary parts in turns."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(f"f{flat.itemsize // 2}") if flat.dtype.kind == "c" else flat


def with_errors(values: Array, amplitude: float, entry: ElementType, key: int) -> Array:
    """Floats or complex numbers with independent relative errors, uniform up to `amplitude`, rounded to a type."""
    part, parts = part_type(entry), as_parts(values)
    found = np.empty(parts.size, part.storage)

    def work(start: int, stop: int) -> None:
        exact = doubled(parts[start:stop])
        if amplitude:
            exact = exact * (1 + steps_of(hashes_of(exact, key + 1, start)) * amplitude)
        found[start:stop] = exact if part is F64 else of_hashes(exact, part, hashes_of(exact, key))

    in_blocks(work, parts.size, BLOCK)
    return found.view(entry.storage).reshape(values.shape)


def of_hashes(exact: Array, entry: ElementType, hashes: Array) -> Array:
    """f64 numbers in a narrower type, up or down by chance; the hashes are used up.

    The digits that the type has no room for are a fraction of a last place: once random digits in their places are
    added, to carry or not, they can be cut off.
    """
    if entry.bits < 16:
        return _between_neighbours(exact, entry, hashes * 2.0**-64)
    dropped = dropped_digits(entry)
    hashes >>= np.uint64(64 - dropped)
    small = np.abs(exact) < smallest_normal(entry)
    places = np.flatnonzero(small & (exact != 0)) if small.any() else ()
    fractions = hashes[places] * 2.0**-dropped if len(places) else None
    hashes += exact.view(np.uint64)
    hashes &= np.uint64(-1 << dropped & _WORD)
    found: Array = hashes.view(np.float64).astype(np.float32)
    if entry.mantissa_bits == 7:
        found = (found.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(entry.storage)
    elif entry.bits == 16:
        found = found.astype(entry.storage)
    if fractions is not None:
        found[places] = _between_neighbours(exact[places], entry, fractions)
    return found


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
    found: Array = np.where(np.abs(errors) > fractions * gaps, other, near)
    return found


def moved(nearest: Array, errors: Array, key: int) -> Array:
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


def doubled(array: Array) -> Any:
    """An array of floats or complex numbers in f64 or c128; others as they are, in their compute type."""
    wide = widen(array)
    if wide.dtype.kind == "f":
        return wide.astype(np.float64, copy=False)
    return wide.astype(np.complex128, copy=False) if wide.dtype.kind == "c" else wide
