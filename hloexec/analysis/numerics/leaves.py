"""The arrays of a value, by tuple index, their statistics, and where their errors are.

Everything is computed block by block in logical order, so that a value of gigabytes takes megabytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.core.arrays import as_array, branches
from hloexec.core.dtypes import ElementType, Kind, element_type, element_type_of
from hloexec.core.ir import ArrayShape
from hloexec.core.structs import UNTOLD, define, frozen, told
from hloexec.core.tree import leaves
from hloexec.core.values import WHOLE, Array, Token, Value, index_of
from hloexec.core.wording import listing, natural_number
from hloexec.errors import InputError, warn
from hloexec.language.literals.trees import pairings
from hloexec.ops.traits import Index

_DEEPEST = 10_000

Pair: TypeAlias = tuple[str, Array | None, Array | None]
"""The label of a leaf, and what each of two values has for it."""


def leaves_of(value: object, which: str) -> Iterator[tuple[str, Array]]:
    """The arrays of a value with their labels; tokens hold nothing, and neither does None within a container."""

    def below(place: tuple[str, Any]) -> list[tuple[str, Any]] | None:
        label, current = place
        parts = None
        if isinstance(current, Mapping):
            parts = [(key, current[key]) for key in current]
        elif current is not None or label:
            children = branches(current)
            parts = None if children is None else list(enumerate(part for _, part in children))
        if parts is not None and label.count(".") > _DEEPEST:
            raise InputError(f"the {which} value nests more than {_DEEPEST} deep, or holds itself")
        return None if parts is None else [(f"{label}.{key}" if label else str(key), part) for key, part in parts]

    for _, (label, leaf) in leaves(("", value), below):
        if not isinstance(leaf, Token):
            yield label or WHOLE, _array(leaf, f"leaf {label}" if label else f"the {which} value")


def _array(value: object, subject: str) -> Array:
    """A leaf as an array of a type that HLO has; JAX's and PyTorch's arrays are taken, too."""
    try:
        array = as_array(value)
        element_type_of(array.dtype)
    except InputError as error:
        raise InputError(f"{subject}: {error.message}") from error
    except KeyError:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{subject} is not an array of an HLO element type, but {kind}") from None
    return array


def relabelled(side: Mapping[str, Array], sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """A value with the labels of another one, whose leaves have these dimensions, where it has names in place of the
    places of leaves, or flat numbers in place of nested ones or the other way round, and its arrays fit in one way. A
    warning says which name is taken for which place."""
    labels, theirs = list(side), list(sizes)
    is_known = side.keys() == sizes.keys() or not all(isinstance(label, str) for label in labels)
    if is_known or len(labels) != len(theirs):
        return dict(side)
    flat = [str(number) for number in range(len(labels))]
    places = [index_of(label) for label in labels]
    is_flat = flat in (labels, theirs) and None not in places
    # Of a tuple, the places of items that hold names are its own, not those of leaves.
    is_tree = None in places and all(natural_number(label.partition(".")[0]) is not None for label in labels)
    has_names = (not any(places) or is_tree) and WHOLE not in labels
    if not (is_flat or has_names) or any(index_of(label) is None for label in theirs):
        return dict(side)
    labels = sorted(labels, key=index_of) if is_flat else labels  # type: ignore[arg-type]
    keys = [f"arr_{number}" if is_flat else _sortable(label) for number, label in enumerate(labels)]
    ways = pairings(keys, len(keys), lambda key, leaf: np.shape(side[labels[key]]) == sizes[theirs[leaf]])
    if len(ways) != 1:
        return dict(side)
    paired = {theirs[leaf]: labels[key] for leaf, key in enumerate(ways[0])}
    if has_names and len(labels) > 1:
        warn(f"results are paired by their shapes: {listing((f'{key} is {leaf}' for leaf, key in paired.items()), 20)}")
    return {leaf: side[key] for leaf, key in paired.items()}


def labelled_like(side: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, Array]:
    """The same with the labels of another value; a lone leaf has the label of the other's, if that is alone, too."""
    if len(side) == len(other) == 1:
        side = dict(zip(other, side.values(), strict=True))
    return relabelled(side, {label: array.shape for label, array in other.items()})


def _sortable(label: str) -> str:
    """A label whose numbers are sorted as numbers."""
    return ".".join(part.rjust(20, "0") if natural_number(part) is not None else part for part in label.split("."))


def blocks(size: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """The elements of arrays of one shape in logical order, in contiguous one-dimensional pieces of so many at most."""
    if all(array.flags.c_contiguous for array in arrays):
        flat = [array.reshape(-1) for array in arrays]
        for start in range(0, flat[0].size, size):
            yield tuple(array[start : start + size] for array in flat)
        return
    # nditer's buffering does not know ml_dtypes' types; their bits it does.
    bits = [array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}") for array in arrays]
    pieces = np.nditer(bits, flags=["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=size)
    for _ in pieces:
        yield tuple(np.ascontiguousarray(pieces[k]).view(array.dtype) for k, array in enumerate(arrays))


_MOST_ROWS = 12
_MOST_COLUMNS = 48
_MARKS = (" ", "·", "░", "▒", "▓", "█")
_LIMITS = (0.0, 1.0, 10.0, 100.0, 1000.0)


@frozen(eq=False)
class ErrorMap:
    """The worst error in each cell of a grid over an array's last two dimensions, in units of the tolerance.

    0 if all elements of the cell are equal, up to 1 if they are within the tolerance, infinity if one is NaN or
    infinite or the tolerance is zero. The leading dimensions are overlaid. `rows` and `columns` are the sizes of the
    two dimensions; the grid has at most 12 by 48 cells.
    """

    rows: int
    """The size of the last dimension but one."""
    columns: int
    """The size of the last dimension."""
    cells: Array
    """f64 [grid rows, grid columns]."""

    def lines(self) -> list[str]:
        """The grid as text: blank for the same, `·` within tolerance, `░▒▓█` up to 10, 100, 1000 times it, beyond."""
        return ["".join(_MARKS[int(np.searchsorted(_LIMITS, cell))] for cell in row) for row in self.cells.tolist()]

    @property
    @told
    def grid(self) -> list[list[float]]:
        """The worst error in units of the tolerance, by the rows of the grid."""
        grid: list[list[float]] = self.cells.tolist()
        return grid


class MapMaker:
    """Fills a grid, given errors by the flat places of their elements."""

    def __init__(self, dimensions: tuple[int, ...]) -> None:
        self._columns = dimensions[-1] if dimensions else 1
        self._rows = dimensions[-2] if len(dimensions) > 1 else 1
        grid = min(self._rows, _MOST_ROWS), min(self._columns, _MOST_COLUMNS)
        self._cells = np.zeros(grid)

    def add(self, places: Array, severities: Array) -> None:
        """Take elements into account."""
        row, column = places // self._columns % self._rows, places % self._columns
        rows, columns = self._cells.shape
        cell = (row * rows // self._rows) * columns + column * columns // self._columns
        worst = np.where(np.isnan(severities), math.inf, severities)
        np.maximum.at(self._cells.reshape(-1), cell, worst)

    def result(self) -> ErrorMap:
        """The grid as it is now."""
        return ErrorMap(self._rows, self._columns, self._cells)


_BLOCK = 1 << 18
"""Number of elements processed at a time: their f64 copies stay in the L2 cache."""
_ENERGY_BLOCK = 1 << 15


@frozen
class LeafStatistics:
    """Statistics of one leaf of a value.

    `minimum`, `maximum`, `mean` and `standard_deviation` (of the population) are over the finite elements, in f64, and
    None if there are none; `minimum` and `maximum` of integers are exact. For complex numbers they are over absolute
    values, for preds over 0 and 1. `hash` is blake2b, 6 bytes in hexadecimal, of the elements in logical order; it does
    not depend on layout, strides or dimensions.
    """

    index: Index
    element_type: ElementType = attrs.field(metadata=UNTOLD)
    dimensions: tuple[int, ...] = attrs.field(metadata=UNTOLD)
    byte_size: int
    minimum: float | int | None = None
    maximum: float | int | None = None
    mean: float | None = None
    standard_deviation: float | None = None
    nan_count: int = 0
    infinity_count: int = 0
    hash: str = ""

    @property
    @told
    def shape(self) -> str:
        """The shape, as HLO text."""
        return str(ArrayShape(self.element_type, self.dimensions))


def statistics(value: Value) -> list[LeafStatistics]:
    """The statistics of every leaf of a value, depth first."""
    return [_leaf_statistics(index, leaf) for index, leaf in leaves(value)]


def energy_of(array: Array) -> float:
    """The sum of the squares of the elements, in f64."""
    repeats = math.prod(size for size, stride in zip(array.shape, array.strides, strict=True) if not stride)
    if repeats > 1:
        # What a broadcast repeats is added up once.
        array = array[tuple(slice(None if stride else 1) for stride in array.strides)]
    flat = array.reshape(-1)
    total = 0.0
    for start in range(0, flat.size, _ENERGY_BLOCK):
        block = flat[start : start + _ENERGY_BLOCK]
        block = block.astype(np.complex128 if block.dtype.kind == "c" else np.float64)
        total += float(np.vdot(block, block).real)
    return total * float(repeats)


def _leaf_statistics(index: Index, leaf: Array | Token) -> LeafStatistics:
    if isinstance(leaf, Token):
        return LeafStatistics(index, element_type("token"), (), 0)
    its_type = element_type_of(leaf.dtype)
    digest = hashlib.blake2b(digest_size=6)
    moments = _Moments()
    for (block,) in blocks(_BLOCK, leaf):
        digest.update(block.view(np.uint8).data)
        moments.add(block, its_type)
    return LeafStatistics(
        index,
        its_type,
        leaf.shape,
        leaf.nbytes,
        minimum=moments.minimum,
        maximum=moments.maximum,
        mean=moments.mean if moments.count else None,
        standard_deviation=float(np.sqrt(moments.squares / moments.count)) if moments.count else None,
        nan_count=moments.nan_count,
        infinity_count=moments.infinity_count,
        hash=digest.hexdigest(),
    )


@define
class _Moments:
    """Count, mean and sum of squared deviations, merged block by block (Chan, Golub and LeVeque, 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    minimum: float | int | None = None
    maximum: float | int | None = None
    nan_count: int = 0
    infinity_count: int = 0

    def add(self, block: Array, its_type: ElementType) -> None:
        """Take a block of elements into account."""
        if its_type.is_complex:
            block = self._finite(np.abs(block.astype(np.complex128)))
        elif its_type.is_floating:
            block = self._finite(block.astype(np.float32 if its_type.bits < 32 else its_type.storage))
        elif its_type.kind is Kind.PRED:
            block = block.view(np.uint8)
        else:
            block = block.astype(its_type.compute, copy=False)
        if not block.size:
            return
        low, high = block.min().item(), block.max().item()
        self.minimum = low if self.minimum is None else min(self.minimum, low)
        self.maximum = high if self.maximum is None else max(self.maximum, high)
        with np.errstate(over="ignore", invalid="ignore"):
            self._merge(block.astype(np.float64))

    def _finite(self, block: Array) -> Array:
        finite = np.isfinite(block)
        if finite.all():
            return block
        self.nan_count += int(np.isnan(block).sum())
        self.infinity_count += int(np.isinf(block).sum())
        return block[finite]

    def _merge(self, block: Array) -> None:
        mean = float(block.mean())
        block -= mean
        block *= block
        count = self.count + block.size
        delta = mean - self.mean
        self.squares += float(block.sum()) + delta * delta * (self.count * block.size / count)
        self.mean += delta * (block.size / count)
        self.count = count
