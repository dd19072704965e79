"""What a plot of an array needs, block by block: how many elements of each size there are, and the largest of a part.

Works for every element type and shape, and takes a few megabytes for an array of any size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hloexec.analysis.numerics.leaves import blocks
from hloexec.analysis.numerics.ulps import ulp_distances
from hloexec.core.dtypes import element_type_of
from hloexec.core.precision import smallest_normal, unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import wide

_BLOCK = 1 << 17
_MOST_ROWS, _MOST_COLUMNS = 64, 160
_OFFSET = 1080
"""Of the smallest f64's exponent, so that counts have indices from 0."""
_EXPONENTS = 2 * _OFFSET + 64


@frozen(eq=False)
class Spectrum:
    """How many elements there are between one power of two and the next."""

    counts: Array
    """By exponent, from that of the smallest number on."""
    zeros: int
    infinite: int
    """NaN or infinite."""

    @property
    def total(self) -> int:
        return int(self.counts.sum()) + self.zeros + self.infinite

    @staticmethod
    def exponent(index: int) -> int:
        """The power of two at the lower end of a count."""
        return index - _OFFSET


@frozen(eq=False)
class Grid:
    """The largest element of each block of an array, over its last two dimensions; the leading ones are overlaid."""

    rows: int
    columns: int
    cells: Array
    """f64; infinite where an element is NaN or infinite."""


@frozen(eq=False)
class Sample:
    """What is drawn of an array."""

    spectrum: Spectrum
    grid: Grid
    dimensions: tuple[int, ...]
    largest: float
    """The largest of the finite ones."""


def largest_of(array: Array) -> tuple[float | None, int]:
    """The largest absolute value of the finite elements, None if there is none, and how many are NaN or infinite."""
    largest, infinite = -1.0, 0
    for sizes in _sizes(array):
        finite = sizes[np.isfinite(sizes)]
        infinite += sizes.size - finite.size
        largest = max(largest, float(finite.max(initial=-1.0)))
    return (largest if largest >= 0 else None), infinite


def value_sample(array: Array) -> Sample:
    """The absolute values of an array's elements."""
    return _sample(array.shape, _sizes(array))


def error_sample(actual: Array, expected: Array) -> Sample:
    """How many units in the last place the elements of two arrays of one shape are apart (`ulp_distances`)."""
    pairs = blocks(_BLOCK, actual, expected)
    return _sample(actual.shape, (ulp_distances(x, y) for x, y in pairs))


def difference_sample(values: Array, differences: Array) -> Sample:
    """Differences from the exact numbers, in units in the last place of the array's type at each of its elements.

    That unit is 2u·2^⌊log₂|x|⌋, of zeros and denormals the smallest normal number's. A difference may be a fraction of
    it.
    """
    entry = element_type_of(values.dtype)
    unit, least = 2 * unit_roundoff(entry), smallest_normal(entry)

    def distances(block: Array, errors: Array) -> Array:
        with np.errstate(all="ignore"):
            sizes = np.abs(wide(block))
            spacing = np.exp2(np.floor(np.log2(np.maximum(np.where(np.isfinite(sizes), sizes, 1), least)))) * unit
            found = np.abs(wide(errors)) / spacing
        return np.where(np.isfinite(found) & np.isfinite(sizes), found, np.where(np.abs(errors) == 0, 0.0, np.inf))

    return _sample(values.shape, (distances(x, y) for x, y in blocks(_BLOCK, values, differences)))


def _sizes(array: Array) -> Iterator[Array]:
    """Absolute values in f64, block by block."""
    for (block,) in blocks(_BLOCK, array):
        values = wide(block)
        with np.errstate(all="ignore"):
            yield np.abs(values.astype(np.float64) if values.dtype.kind in "iub" else values)


def _sample(dimensions: tuple[int, ...], sizes: Iterator[Array]) -> Sample:
    columns = dimensions[-1] if dimensions else 1
    rows = dimensions[-2] if len(dimensions) > 1 else 1
    shape = min(rows, _MOST_ROWS), min(columns, _MOST_COLUMNS)
    cells = np.zeros(shape)
    counts, zeros, infinite, largest, start = np.zeros(_EXPONENTS, np.int64), 0, 0, 0.0, 0
    for block in sizes:
        flat = np.ascontiguousarray(block).reshape(-1)
        is_finite = np.isfinite(flat)
        finite = flat[is_finite]
        positive = finite[finite > 0]
        zeros += finite.size - positive.size
        infinite += flat.size - finite.size
        if positive.size:
            largest = max(largest, float(positive.max()))
            exponents = np.frexp(positive)[1] - 1 + _OFFSET
            counts += np.bincount(np.clip(exponents, 0, _EXPONENTS - 1), minlength=_EXPONENTS)
        places = np.arange(start, start + flat.size)
        start += flat.size
        row, column = places // columns % rows, places % columns
        cell = (row * shape[0] // rows) * shape[1] + column * shape[1] // columns
        np.maximum.at(cells.reshape(-1), cell, np.where(is_finite, flat, math.inf))
    return Sample(Spectrum(counts, zeros, infinite), Grid(rows, columns, cells), dimensions, largest)
