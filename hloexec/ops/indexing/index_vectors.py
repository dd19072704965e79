"""Index vectors, which gather and scatter share.

Both take an integer array in which dimension `index_vector_dim` (an implicit one of size 1 if it equals the rank) holds
vectors of start positions, component k for operand dimension `index_map[k]`; the other dimensions are batch
dimensions. Batching dimensions pair an operand dimension with a batch dimension, whose index is then the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import flags, require, require_distinct_dimensions
from hloexec.ops.intervals import Columns, Demand, stride_of
from hloexec.ops.relations import Axes, Relating


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


def window_dimensions(names: WindowNames, attributes: Any, rank: int) -> list[int]:
    """The operand dimensions that windows have, in order: neither left out nor batching ones."""
    absent = (*getattr(attributes, names.left_out), *getattr(attributes, names.operand_batching))
    return [dimension for dimension in range(rank) if dimension not in absent]


@frozen
class IndexVectors:
    """How index arrays of one shape hold the starts of windows."""

    dimensions: tuple[int, ...]
    """The operand dimension in which each component counts."""
    order: tuple[int, ...]
    """The dimensions of an index array, that of its components first."""
    is_implicit: bool
    """Whether index arrays lack that dimension."""
    batch: tuple[int, ...]
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


def index_vectors(names: WindowNames, attributes: Any, sizes: tuple[int, ...]) -> IndexVectors:
    """How an index array of these sizes holds starts."""
    vector = attributes.index_vector_dim
    order = (vector, *(axis for axis in range(max(len(sizes), vector + 1)) if axis != vector))
    batch = tuple(sizes[axis] for axis in order[1:])
    pairs = getattr(attributes, names.operand_batching), getattr(attributes, names.indices_batching)
    numbers = {}
    for operand_dim, indices_dim in zip(*pairs, strict=True):
        axis = indices_dim - (indices_dim > vector)
        numbers[operand_dim] = np.arange(batch[axis]).reshape((-1,) + (1,) * (len(batch) - 1 - axis))
    return IndexVectors(getattr(attributes, names.index_map), order, vector == len(sizes), batch, numbers)


def lie_within(starts: Array, limit: int) -> bool:
    """Whether all starts, as `IndexVectors` gives them, are from 0 to a limit."""
    # Negative numbers are the largest ones without a sign.
    return not starts.size or bool(np.maximum.reduce(starts.view(np.uint64), axis=None) <= limit)


def relate_starts(names: WindowNames, use: Relating, operand: Axes, indices: int, batch: Sequence[int]) -> None:
    """How the dimensions of the index array, operand number `indices`, correspond to others, and what it counts."""
    axes, attributes = use.operands[indices].axes, use.attributes
    vector = attributes.index_vector_dim
    use.same([axis for number, axis in enumerate(axes) if number != vector], batch)
    use.keep(axes[vector : vector + 1], "it has one start index for each dimension")
    pairs = getattr(attributes, names.operand_batching), getattr(attributes, names.indices_batching)
    for ours, theirs in zip(*pairs, strict=True):
        use.same([operand[ours]], [axes[theirs]])
    use.positions(indices, tuple(operand[dimension] for dimension in getattr(attributes, names.index_map)))


def batch_sizes(indices: ArrayShape, index_vector_dim: int) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """The batch dimensions of an index array: their sizes, and which are dynamic."""
    kept = [dimension for dimension in range(indices.rank) if dimension != index_vector_dim]
    return tuple(indices.dimensions[k] for k in kept), tuple(flags(indices)[k] for k in kept)


def start_demand(room: Sequence[int], stride: int) -> Demand:
    """The demand on index vectors, given how far windows can start from 0 in the dimension in which each component
    counts, and how far from each other components lie in row-major order."""
    found = Demand(is_defined_beyond=True)
    return found.with_columns(Columns(stride, tuple((0, max(0, free)) for free in room)) if room else None)


def vectors_demand(attributes: Any, indices: ArrayShape, room: Sequence[int]) -> Demand:
    """The demand on an array of index vectors."""
    return start_demand(room, stride_of(indices.dimensions, attributes.index_vector_dim))


def require_windows(names: WindowNames, attributes: Any, operand: ArrayShape, indices: ArrayShape) -> None:
    """Raise ShapeError unless index vectors, batching dimensions and the dimensions that windows lack fit together."""
    opcode, batching = names.opcode, getattr(attributes, names.operand_batching)
    _require_index_vectors(names, attributes, operand, indices)
    _require_batching_dims(names, attributes, operand, indices)
    require_distinct_dimensions(getattr(attributes, names.left_out), operand.rank, f"{opcode}'s {names.left_out}")
    for name in (names.left_out, names.windows):
        dimensions = getattr(attributes, name)
        require(list(dimensions) == sorted(dimensions), f"{opcode}'s {name} must be sorted, but are {dimensions}")
    for name in (names.left_out, names.index_map):
        dimensions = getattr(attributes, name)
        require(
            not set(dimensions) & set(batching),
            f"{opcode}'s {name} {dimensions} and {names.operand_batching} {batching} must have no dimension in common",
        )


def _require_index_vectors(names: WindowNames, attributes: Any, operand: ArrayShape, indices: ArrayShape) -> None:
    opcode, operand_dims, vector_dim = names.opcode, getattr(attributes, names.index_map), attributes.index_vector_dim
    require(indices.element_type.is_integral, f"{opcode}'s {names.indices} must be integers, but are {indices}")
    require(
        0 <= vector_dim <= indices.rank,
        f"{opcode}'s index_vector_dim {vector_dim} must lie between 0 and the rank of the {names.indices} {indices}",
    )
    length = indices.dimensions[vector_dim] if vector_dim < indices.rank else 1
    require(
        length == len(operand_dims),
        f"{opcode}'s {names.index_map} must name one operand dimension for each of the {length} components of an index "
        f"vector in {indices}, but names {len(operand_dims)}",
    )
    require_distinct_dimensions(operand_dims, operand.rank, f"{opcode}'s {names.index_map}")


def _require_batching_dims(names: WindowNames, attributes: Any, operand: ArrayShape, indices: ArrayShape) -> None:
    opcode, vector_dim = names.opcode, attributes.index_vector_dim
    operand_dims, indices_dims = (
        getattr(attributes, names.operand_batching),
        getattr(attributes, names.indices_batching),
    )
    require(
        len(operand_dims) == len(indices_dims),
        f"{opcode}'s {names.operand_batching} and {names.indices_batching} must have equal length, but have "
        f"{len(operand_dims)} and {len(indices_dims)} dimensions",
    )
    require_distinct_dimensions(operand_dims, operand.rank, f"{opcode}'s {names.operand_batching}")
    require_distinct_dimensions(indices_dims, indices.rank, f"{opcode}'s {names.indices_batching}")
    is_sorted = list(operand_dims) == sorted(operand_dims)
    require(is_sorted, f"{opcode}'s {names.operand_batching} must be sorted, but are {operand_dims}")
    require(
        vector_dim not in indices_dims,
        f"{opcode}'s {names.indices_batching} must not contain index_vector_dim {vector_dim}",
    )
    for ours, theirs in zip(operand_dims, indices_dims, strict=True):
        require(
            operand.dimensions[ours] == indices.dimensions[theirs],
            f"{opcode}'s batching pairs operand dimension {ours} with indices dimension {theirs}, so they must be of "
            f"one size, but the operand is {operand} and the indices are {indices}",
        )
