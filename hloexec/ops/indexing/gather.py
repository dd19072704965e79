"""gather: reading windows at computed positions; and where windows lie, for scatter, too.

Both take an integer array in which dimension `index_vector_dim` (an implicit one of size 1 if it equals the rank) holds
vectors of start positions, component k for operand dimension `index_map[k]`; the other dimensions are batch
dimensions. Batching dimensions pair an operand dimension with a batch dimension, whose index is then the start.

A window of gather that would leave the operand is moved back until it fits. Starts may be of any integer type. A kernel
takes the operand and the indices. What it returns shares no memory with them.
Source: XLA, "Operation semantics".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, ArrayShapes, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.attributes import attribute
from hloexec.ops.common import array_shape, flags, require, require_distinct_dimensions, row_major, shape_of, strided
from hloexec.ops.intervals import Demand, Demanded, Use, stride_of
from hloexec.ops.movement.columns import mapped_demand, start_demand
from hloexec.ops.movement.dynamic_shapes import completed, part
from hloexec.ops.registry import opcode
from hloexec.ops.relations import Axes, Relating, Resizing, relate_window_of
from hloexec.ops.resources import empty
from hloexec.ops.traits import Probe


@frozen
class WindowNames:
    """What one opcode calls the attributes that gather and scatter have in common."""

    opcode: str
    indices: str
    """The operand that holds the index vectors, as messages call it."""
    index_map: str
    """The operand dimensions in which the components of an index vector count."""
    operand_batching: str
    indices_batching: str
    left_out: str
    """The operand dimensions that windows do not have, batching dimensions aside."""
    windows: str
    """Which dimensions of the result or the updates are those of windows."""


@frozen
class IndexVectors:
    """How index arrays of one shape hold the starts of windows."""

    dimensions: Dimensions
    """The operand dimension in which each component counts."""
    order: Dimensions
    """The dimensions of an index array, that of its components first."""
    is_implicit: bool
    """Whether index arrays lack that dimension."""
    batch: Dimensions
    numbers: dict[int, Array]
    """By operand batching dimension, where windows start in it: as int64 arrays that broadcast to the batch sizes."""

    def starts(self, indices: Array) -> dict[int, Array]:
        """The starts of the windows, by operand dimension, as int64 arrays that broadcast to the batch sizes."""
        return dict(zip(self.dimensions, self.components(indices), strict=True)) | self.numbers

    def components(self, indices: Array) -> Array:
        """The components of the index vectors, one array of the batch sizes each, as int64 in one array."""
        if self.is_implicit:
            indices = indices[..., None]
        if indices.dtype == np.uint64:
            # What is beyond int64's range becomes its maximum.
            indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
        return indices.astype(np.int64, copy=False).transpose(self.order)


def lie_within(starts: Array, limit: int) -> bool:
    """Whether all starts, as `IndexVectors` gives them, are from 0 to a limit."""
    # Negative numbers are the largest ones without a sign.
    return not starts.size or bool(np.maximum.reduce(starts.view(np.uint64), axis=None) <= limit)


@frozen
class Keys:
    """Where pieces go."""

    keys: Array
    """The row of each piece."""
    fitting: Array | None
    """The numbers of the windows that fit, where some do not."""


@frozen
class Placement:
    """Where updates go: the operand as a table of rows, each window as one piece per row that it touches."""

    vectors: IndexVectors
    sizes: Dimensions
    """Of the operand."""
    window: Dimensions
    """Window sizes by operand dimension."""
    moving: Dimensions
    """The operand dimensions in which windows start at different places: together they number the rows."""
    resting: Dimensions
    """The other operand dimensions: those of a row."""
    update_axes: Dimensions
    """The updates' dimensions, batch dimensions first."""
    offsets: Array
    """The rows of a window, counted from its first."""

    @classmethod
    def of(cls, vectors: IndexVectors, sizes: Dimensions, window: Dimensions, update_axes: Dimensions) -> Placement:
        """The placement of windows in an operand of `sizes`; `update_axes` are the updates' dimensions, batch first."""
        starting = (*vectors.dimensions, *vectors.numbers)
        moving = tuple(sorted(axis for axis in starting if window[axis] < sizes[axis]))
        offsets: Array = np.zeros(1, np.int64)
        for axis in moving:
            offsets = np.add.outer(offsets * sizes[axis], np.arange(window[axis])).reshape(-1)
        resting = tuple(axis for axis in range(len(sizes)) if axis not in moving)
        return cls(vectors, sizes, window, moving, resting, update_axes, offsets)

    def keys(self, indices: Array) -> Keys | None:
        """Where the pieces of updates go, or None where no window fits."""
        batch = self.vectors.batch
        if not prod(batch) or not prod(self.window):
            return None
        starts = self.vectors.starts(indices)
        fitting = self._fitting(starts)
        if fitting is not None and not fitting.size:
            return None
        first: Array = np.zeros((), np.int64)
        for number, axis in enumerate(self.moving):
            first = first * self.sizes[axis] + starts[axis] if number else starts[axis]
        first = (first if first.shape == batch else np.broadcast_to(first, batch)).reshape(-1)
        first = first if fitting is None else first[fitting]
        return Keys(first if len(self.offsets) == 1 else np.add.outer(first, self.offsets).reshape(-1), fitting)

    def _fitting(self, starts: dict[int, Array]) -> Array | None:
        """The numbers of the windows that lie within the operand; None where all do."""
        limits = {axis: self.sizes[axis] - self.window[axis] for axis in self.vectors.dimensions}
        outside = [axis for axis, limit in limits.items() if not lie_within(starts[axis], limit)]
        if not outside:
            return None
        fits = np.ones(self.vectors.batch, np.bool_)
        for axis in outside:
            fits &= (starts[axis] >= 0) & (starts[axis] <= limits[axis])
        return np.flatnonzero(fits)

    @property
    def has_leading_rows(self) -> bool:
        """Whether a row-major operand is a table of rows as it lies."""
        return self.moving == tuple(range(len(self.moving)))

    def table(self, operand: Array) -> Array:
        """A copy of the operand as `[rows, resting dimensions...]`."""
        return self.rows(row_major(operand.transpose(*self.moving, *self.resting)))

    def rows(self, transposed: Array) -> Array:
        """`[moving dimensions..., resting dimensions...]` as `[rows, resting dimensions...]`; a view if row-major."""
        return transposed.reshape(prod(transposed.shape[: len(self.moving)]), *transposed.shape[len(self.moving) :])

    def target(self, table: Array) -> Array:
        """The part of a table that windows reach."""
        return table[(slice(None), *(slice(self.window[axis]) for axis in self.resting))]

    def pieces(self, updates: Array, keys: Keys) -> Array:
        """Updates as `[keys, resting dimensions...]`."""
        windows = updates.transpose(self.update_axes).reshape(-1, *self.window)
        if keys.fitting is not None:
            windows = windows[keys.fitting]
        windows = windows.transpose(0, *(axis + 1 for axis in (*self.moving, *self.resting)))
        return windows.reshape(len(keys.keys), *windows.shape[1 + len(self.moving) :])

    def restored(self, table: Array) -> Array:
        """A table as an array of the operand's shape."""
        axes = (*self.moving, *self.resting)
        return table.reshape([self.sizes[axis] for axis in axes]).transpose(np.argsort(axes))


@frozen
class WindowAttributes:
    """Attributes that gather and scatter have in common, each under names of its own."""

    names: ClassVar[WindowNames]

    def __getattr__(self, name: str) -> Any:
        """What a field of `WindowNames` names."""
        return getattr(self, getattr(self.names, name))

    def window_dimensions(self, rank: int) -> list[int]:
        """The operand dimensions that windows have, in order: neither left out nor batching ones."""
        absent = (*self.left_out, *self.operand_batching)
        return [dimension for dimension in range(rank) if dimension not in absent]

    def vectors(self, sizes: Dimensions) -> IndexVectors:
        """How an index array of these sizes holds starts."""
        vector = self.index_vector_dim
        order = (vector, *(axis for axis in range(max(len(sizes), vector + 1)) if axis != vector))
        batch = tuple(sizes[axis] for axis in order[1:])
        numbers = {}
        for operand_dim, indices_dim in zip(self.operand_batching, self.indices_batching, strict=True):
            axis = indices_dim - (indices_dim > vector)
            numbers[operand_dim] = np.arange(batch[axis]).reshape((-1,) + (1,) * (len(batch) - 1 - axis))
        return IndexVectors(self.index_map, order, vector == len(sizes), batch, numbers)

    def relate_starts(self, use: Relating, operand: Axes, indices: int, batch: Sequence[int]) -> None:
        """How the dimensions of the index array, operand number `indices`, correspond to others, and what it counts."""
        axes, vector = use.operands[indices].axes, self.index_vector_dim
        use.same([axis for number, axis in enumerate(axes) if number != vector], batch)
        use.keep(axes[vector : vector + 1], "it has one start index for each dimension")
        for ours, theirs in zip(self.operand_batching, self.indices_batching, strict=True):
            use.same([operand[ours]], [axes[theirs]])
        use.positions(indices, tuple(operand[dimension] for dimension in self.index_map))

    def batch_sizes(self, indices: ArrayShape) -> tuple[Dimensions, tuple[bool, ...]]:
        """The batch dimensions of an index array: their sizes, and which are dynamic."""
        kept = [dimension for dimension in range(indices.rank) if dimension != self.index_vector_dim]
        return tuple(indices.dimensions[k] for k in kept), tuple(flags(indices)[k] for k in kept)

    def vectors_demand(self, indices: ArrayShape, room: Sequence[int]) -> Demand:
        """The demand on an array of index vectors."""
        return start_demand(room, stride_of(indices.dimensions, self.index_vector_dim))

    def require_windows(self, operand: ArrayShape, indices: ArrayShape) -> None:
        """Raise ShapeError unless index vectors, batching dimensions and what windows lack fit together."""
        names, opcode, batching = self.names, self.names.opcode, self.operand_batching
        self._require_index_vectors(operand, indices)
        self._require_batching_dims(operand, indices)
        require_distinct_dimensions(self.left_out, operand.rank, f"{opcode}'s {names.left_out}")
        for name in (names.left_out, names.windows):
            dimensions = getattr(self, name)
            require(list(dimensions) == sorted(dimensions), f"{opcode}'s {name} must be sorted, but are {dimensions}")
        for name in (names.left_out, names.index_map):
            dimensions = getattr(self, name)
            require(
                not set(dimensions) & set(batching),
                f"{opcode}'s {name} {dimensions} and {names.operand_batching} {batching} must have no dimension in "
                "common",
            )

    def _require_index_vectors(self, operand: ArrayShape, indices: ArrayShape) -> None:
        names, operand_dims, vector_dim = self.names, self.index_map, self.index_vector_dim
        opcode = names.opcode
        require(indices.element_type.is_integral, f"{opcode}'s {names.indices} must be integers, but are {indices}")
        require(
            0 <= vector_dim <= indices.rank,
            f"{opcode}'s index_vector_dim {vector_dim} must lie between 0 and the rank of the {names.indices} "
            f"{indices}",
        )
        length = indices.dimensions[vector_dim] if vector_dim < indices.rank else 1
        require(
            length == len(operand_dims),
            f"{opcode}'s {names.index_map} must name one operand dimension for each of the {length} components of an "
            f"index vector in {indices}, but names {len(operand_dims)}",
        )
        require_distinct_dimensions(operand_dims, operand.rank, f"{opcode}'s {names.index_map}")

    def _require_batching_dims(self, operand: ArrayShape, indices: ArrayShape) -> None:
        names, operand_dims, indices_dims = self.names, self.operand_batching, self.indices_batching
        ours, theirs = (f"{names.opcode}'s {name}" for name in (names.operand_batching, names.indices_batching))
        require(
            len(operand_dims) == len(indices_dims),
            f"{ours} and {names.indices_batching} must have equal length, but have {len(operand_dims)} and "
            f"{len(indices_dims)} dimensions",
        )
        require_distinct_dimensions(operand_dims, operand.rank, ours)
        require_distinct_dimensions(indices_dims, indices.rank, theirs)
        require(list(operand_dims) == sorted(operand_dims), f"{ours} must be sorted, but are {operand_dims}")
        vector_dim = self.index_vector_dim
        require(vector_dim not in indices_dims, f"{theirs} must not contain index_vector_dim {vector_dim}")
        for here, there in zip(operand_dims, indices_dims, strict=True):
            require(
                operand.dimensions[here] == indices.dimensions[there],
                f"{names.opcode}'s batching pairs operand dimension {here} with indices dimension {there}, so they "
                f"must be of one size, but the operand is {operand} and the indices are {indices}",
            )


_FEW = 4096
"""So few starts take less time to clamp than to look at."""
_MOST_COPIED = 4
"""A table that does not lie row by row is copied first if it has no more elements than these times what is taken."""


def gathering(
    vectors: IndexVectors, sizes: Dimensions, window: Dimensions, offsets: Mapping[int, int]
) -> Callable[[Array, Array], Array]:
    """The kernel for an operand and windows of these sizes.

    `offsets` says which dimension of the result each dimension of windows becomes, in order; the others are the batch
    dimensions.
    """
    moving = tuple(axis for axis in sorted({*vectors.dimensions, *vectors.numbers}) if window[axis] < sizes[axis])
    batch = vectors.batch
    kept = [window[axis] for axis in offsets]
    result = _Arrangement.of((*batch, *kept), range(len(batch), len(batch) + len(kept)), offsets)
    if not prod(batch) * prod(window):
        # Slices of size 0 of a collapsed dimension have no element to give: XLA leaves zeros.
        return lambda operand, indices: result(np.zeros(result.sizes, operand.dtype))
    if prod(batch) == 1 or not moving:
        components = tuple((axis, vectors.dimensions.index(axis), sizes[axis] - window[axis]) for axis in moving)
        return _OneWindow(window, components, batch, result)
    is_whole = all(axis in moving or window[axis] == size for axis, size in enumerate(sizes))
    windows = _Windows(vectors, sizes, window, moving, is_whole, result)
    first, last = moving[0], moving[-1] + 1
    if moving != tuple(range(first, last)) or any(window[axis] != 1 for axis in moving):
        return windows
    leading, trailing = window[:first], window[last:]
    ours = [axis for axis in offsets if axis < first], [axis for axis in offsets if axis >= first]
    begin = len(ours[0]) + len(batch)
    arrangement = _Arrangement.of(
        (*(window[axis] for axis in ours[0]), *batch, *(window[axis] for axis in ours[1])),
        (*range(len(ours[0])), *range(begin, begin + len(ours[1]))),
        offsets,
    )
    table = prod(leading), prod(sizes[first:last]), prod(trailing)
    return _Rows(windows, table, (table[0], *batch, table[2]), arrangement, _Positions.of(vectors, sizes, moving))


@frozen
class _Arrangement:
    """From an array in some order to the result of gather."""

    sizes: Dimensions
    order: Dimensions

    @classmethod
    def of(cls, sizes: Sequence[int], window: Sequence[int], offsets: Mapping[int, int]) -> _Arrangement:
        """For an array of these sizes, some of whose dimensions are those of windows."""
        order = dict(zip(offsets.values(), window, strict=True))
        batch = iter([axis for axis in range(len(sizes)) if axis not in window])
        return cls(tuple(sizes), tuple(order[axis] if axis in order else next(batch) for axis in range(len(sizes))))

    def __call__(self, array: Array) -> Array:
        return array.reshape(self.sizes).transpose(self.order)


@frozen
class _OneWindow:
    """One window, which the result repeats for each index vector: there is one of these, or nowhere else to start."""

    window: Dimensions
    components: tuple[tuple[int, int, int], ...]
    """A dimension along which the window moves, the component that counts in it, and the highest start."""
    batch: Dimensions
    arrangement: _Arrangement

    def __call__(self, operand: Array, indices: Array) -> Array:
        where = [slice(0, size) for size in self.window]
        if self.components:
            starts = indices.reshape(-1).tolist()
            for axis, component, limit in self.components:
                start = min(max(starts[component], 0), limit)
                where[axis] = slice(start, start + self.window[axis])
        window = operand[tuple(where)]
        if prod(self.batch) != 1:
            window = np.broadcast_to(window, (*self.batch, *window.shape))
        return self.arrangement(row_major(window))


@frozen
class _Windows:
    """Windows of any kind: out[batch..., i...] = operand[starts[batch] + i...]."""

    vectors: IndexVectors
    sizes: Dimensions
    window: Dimensions
    moving: Dimensions
    """The dimensions in which windows differ."""
    is_whole: bool
    """Whether windows have the operand's size in all others."""
    arrangement: _Arrangement

    def __call__(self, operand: Array, indices: Array) -> Array:
        fixed, starts = self.fixed(operand), self.vectors.starts(indices)
        windows = strided(
            fixed,
            (*(fixed.shape[axis] - self.window[axis] + 1 for axis in self.moving), *self.window),
            (*(fixed.strides[axis] for axis in self.moving), *fixed.strides),
        )
        where = (np.broadcast_to(self.clamped(axis, starts[axis]), self.vectors.batch) for axis in self.moving)
        return self.arrangement(windows[tuple(where)])

    def fixed(self, operand: Array) -> Array:
        """The part of the operand that windows reach."""
        if self.is_whole:
            return operand
        return part(operand, (slice(None if axis in self.moving else size) for axis, size in enumerate(self.window)))

    def clamped(self, axis: int, start: Array) -> Array:
        limit = self.sizes[axis] - self.window[axis]
        if start.size > _FEW and lie_within(start, limit):
            return start
        clamped_start: Array = np.minimum(np.maximum(start, 0), limit)
        return clamped_start


@frozen
class _Rows:
    """Windows of one element in adjacent dimensions, and of the operand's size in the others: rows of a table."""

    windows: _Windows
    table: tuple[int, int, int]
    """The sizes of the dimensions before those, of them, and of those behind."""
    taken: Dimensions
    """The sizes of what is taken from the table."""
    arrangement: _Arrangement
    positions: _Positions

    def __call__(self, operand: Array, indices: Array) -> Array:
        operand = self.windows.fixed(operand)
        if not operand.flags.c_contiguous:
            if operand.size > _MOST_COPIED * prod(self.taken):
                return self.windows(operand, indices)
            operand = row_major(operand)
        rows = empty(self.taken, operand.dtype)
        operand.reshape(self.table).take(self.positions(indices), axis=1, mode="clip", out=rows)
        return self.arrangement(rows)


@frozen
class _Positions:
    """From index vectors to the numbers of the rows of a table that has a dimension for each axis along which they
    move, the last one counting fastest."""

    vectors: IndexVectors
    components: tuple[tuple[int, int, int], ...]
    """A component of the vectors, the highest start in its dimension, and how many rows a step there is."""
    known: tuple[Array, ...]
    """What batching dimensions, whose starts are known, add to that."""

    @classmethod
    def of(cls, vectors: IndexVectors, sizes: Dimensions, moving: Sequence[int]) -> _Positions:
        """For windows of one element along dimensions of these sizes that follow one another."""
        rows = {axis: prod(sizes[axis + 1 : moving[-1] + 1]) for axis in moving}
        known_offsets = (
            np.minimum(starts, sizes[axis] - 1) * rows[axis]
            for axis, starts in vectors.numbers.items()
            if axis in moving
        )
        components = (
            (number, sizes[axis] - 1, rows[axis]) for number, axis in enumerate(vectors.dimensions) if axis in moving
        )
        return cls(vectors, tuple(components), tuple(known_offsets))

    def __call__(self, indices: Array) -> Array:
        parts, starts = list(self.known), self.vectors.components(indices)
        for component, last, rows in self.components:
            start = starts[component]
            if len(self.components) + len(self.known) > 1:
                start = np.minimum(np.maximum(start, 0), last)
            # Along a single dimension, taking clamps.
            parts.append(start if rows == 1 else start * rows)
        position: Array = sum(parts[1:], parts[0])
        batch = self.vectors.batch
        return position if position.shape == batch else np.broadcast_to(position, batch)


@frozen
class GatherAttributes(WindowAttributes):
    """Which dimensions of operand, start_indices and result correspond."""

    names: ClassVar = WindowNames(
        opcode="gather",
        indices="start_indices",
        index_map="start_index_map",
        operand_batching="operand_batching_dims",
        indices_batching="start_indices_batching_dims",
        left_out="collapsed_slice_dims",
        windows="offset_dims",
    )

    offset_dims: Dimensions = attribute(formerly=("output_window_dims",))
    collapsed_slice_dims: Dimensions = attribute(formerly=("elided_window_dims",))
    start_index_map: Dimensions = attribute(formerly=("gather_dims_to_operand_dims",))
    operand_batching_dims: Dimensions = attribute(default=())
    start_indices_batching_dims: Dimensions = attribute(default=())
    index_vector_dim: int = attribute()
    slice_sizes: Dimensions = attribute(formerly=("window_bounds",))
    indices_are_sorted: bool = attribute(default=False)


@opcode(
    "gather",
    operands=2,
    attributes=GatherAttributes,
    any_order=True,
    moves=(0,),
    repeats=True,
    fast_in="hloexec.ops.indexing.fast.indexing",
)
class Gather:
    """out[batch, offset] = operand[clamp(0, start[batch], size - slice_size) + offset]   (XLA: Gather)

    `start[batch]` is the index vector at `batch`, its component k counting in operand dimension `start_index_map[k]`;
    an operand batching dimension starts at the position of its batch dimension, any other dimension at 0. Result
    dimensions `offset_dims` are the operand's dimensions in order, without the collapsed and the batching ones (whose
    slices have size 1); the others are the batch dimensions in order.
    """

    probe = Probe(
        "T[2] gather(a0, a1), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1}",
        ("T[3]", "s32[2,1]"),
    )

    @staticmethod
    def demands(use: Use) -> Demanded:
        attributes, sizes = use.attributes, use.shapes[0].dimensions
        room = [sizes[d] - attributes.slice_sizes[d] for d in attributes.start_index_map]
        yield 1, attributes.vectors_demand(use.shapes[1], room)

    @staticmethod
    def demand_on(use: Use, number: int, demand: Demand) -> Demand:
        """Where windows are whole in the dimension that tells columns apart, so does the operand's."""
        kept = use.attributes.window_dimensions(use.shapes[0].rank)
        return mapped_demand(use, demand, dict(zip(use.attributes.offset_dims, kept, strict=True)))

    @staticmethod
    def relate(use: Relating) -> None:
        attributes, operand, result = use.attributes, use.operands[0].axes, use.result.axes
        kept = attributes.window_dimensions(len(operand))
        for dimension, offset in zip(kept, attributes.offset_dims, strict=True):
            relate_window_of(use, operand[dimension], result[offset])
        batch = [axis for number, axis in enumerate(result) if number not in attributes.offset_dims]
        attributes.relate_starts(use, operand, 1, batch)

    @staticmethod
    def resize(change: Resizing) -> object:
        attributes, sizes = change.attributes, list(change.attributes.slice_sizes)
        kept = attributes.window_dimensions(len(sizes))
        for dimension, offset in zip(kept, attributes.offset_dims, strict=True):
            sizes[dimension] = change.result_sizes[1][offset]
        return attrs.evolve(attributes, slice_sizes=tuple(map(min, sizes, change.sizes(0)[1])))

    @staticmethod
    def infer(operand: Shape, start_indices: Shape, *, attributes: GatherAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of gather")
        indices = array_shape(start_indices, "the start indices of gather")
        collapsed, batching = attributes.collapsed_slice_dims, attributes.operand_batching_dims
        offset_dims, sizes = attributes.offset_dims, attributes.slice_sizes
        attributes.require_windows(source, indices)
        require(
            len(sizes) == source.rank and all(0 <= a <= b for a, b in zip(sizes, source.dimensions, strict=True)),
            f"gather's slice_sizes {list(sizes)} must give each dimension of the operand {source} a size within it",
        )
        for dimension in (*collapsed, *batching):
            require(
                sizes[dimension] <= 1,
                f"gather leaves out operand dimension {dimension}, so its slice size must be 1, but is "
                f"{sizes[dimension]}",
            )
        kept = attributes.window_dimensions(source.rank)
        require(
            len(offset_dims) == len(kept),
            f"gather's offset_dims must name a result dimension for each of the {len(kept)} operand dimensions that "
            f"are neither collapsed nor batching, but name {len(offset_dims)}",
        )
        batch, batch_dynamic = attributes.batch_sizes(indices)
        rank = len(batch) + len(kept)
        require_distinct_dimensions(offset_dims, rank, "gather's offset_dims")
        dynamic = flags(source)
        windows = iter([(sizes[d], dynamic[d] and sizes[d] == source.dimensions[d]) for d in kept])
        batches = iter(zip(batch, batch_dynamic, strict=True))
        result = [next(windows) if axis in offset_dims else next(batches) for axis in range(rank)]
        return shape_of(source.element_type, tuple(size for size, _ in result), tuple(flag for _, flag in result))

    @staticmethod
    def evaluate(
        operand: Array, start_indices: Array, *, attributes: GatherAttributes, operand_shapes: ArrayShapes
    ) -> Array:
        bound, sizes = operand_shapes[0].dimensions, attributes.slice_sizes
        if operand.shape != bound:
            # A dynamic dimension that is taken whole keeps its extent; any other counts with its bound.
            whole = tuple(
                extent if size == full else full for extent, size, full in zip(operand.shape, sizes, bound, strict=True)
            )
            sizes = tuple(map(min, sizes, whole))
            operand = completed(operand, whole)
        return gathering_of(attributes, operand.shape, sizes, start_indices.shape)(operand, start_indices)


def gathering_of(
    attributes: GatherAttributes, operand: Dimensions, window: Dimensions, indices: Dimensions
) -> Callable[..., Array]:
    """The kernel for an operand, windows and indices of these sizes."""
    kept = attributes.window_dimensions(len(operand))
    vectors = attributes.vectors(indices)
    return gathering(vectors, operand, window, dict(zip(kept, attributes.offset_dims, strict=True)))
