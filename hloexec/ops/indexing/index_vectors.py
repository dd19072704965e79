"""Index vectors: what gather and scatter have in common.

Both take an integer array in which dimension `index_vector_dim` (an implicit one of size 1 where it equals the rank)
holds vectors of start positions, component k for operand dimension `operand_dims[k]`; the other dimensions are batch
dimensions. Batching dimensions pair an operand dimension with a batch dimension, whose own position then is the start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.ir import ArrayShape
from hloexec.ops.common import flags, require, require_distinct_dimensions
from hloexec.ops.intervals import Demand
from hloexec.values import Array

__all__ = [
    "batch_sizes",
    "require_batching_dims",
    "require_index_vectors",
    "start_demand",
    "start_positions",
]


def as_int64(indices: Array) -> Array:
    """Integers of any type as int64; those beyond its range (u64) become its maximum."""
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    return indices.astype(np.int64, copy=False)


def start_positions(
    indices: Array,
    index_vector_dim: int,
    operand_dims: Sequence[int],
    operand_batching_dims: Sequence[int],
    indices_batching_dims: Sequence[int],
) -> tuple[dict[int, Array], tuple[int, ...]]:
    """The starts of the windows, by operand dimension, as int64 arrays that broadcast to the batch sizes, and those."""
    if index_vector_dim == indices.ndim:
        indices = indices[..., None]
    vectors = np.moveaxis(as_int64(indices), index_vector_dim, 0)
    batch = vectors.shape[1:]
    starts = dict(zip(operand_dims, vectors, strict=True))
    for operand_dim, indices_dim in zip(operand_batching_dims, indices_batching_dims, strict=True):
        axis = indices_dim - (indices_dim > index_vector_dim)
        starts[operand_dim] = np.arange(batch[axis]).reshape((-1,) + (1,) * (len(batch) - 1 - axis))
    return starts, batch


def batch_sizes(indices: ArrayShape, index_vector_dim: int) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """The batch dimensions of an index array: their sizes, and which are dynamic."""
    kept = [dimension for dimension in range(indices.rank) if dimension != index_vector_dim]
    dynamic = flags(indices)
    return tuple(indices.dimensions[k] for k in kept), tuple(dynamic[k] for k in kept)


def start_demand(room: Sequence[int]) -> Demand:
    """The demand on index vectors, given how far windows can start from 0 in each dimension: the tightest bounds of the
    dimensions in which there is a choice at all."""
    return Demand(0, min((free for free in room if free > 0), default=0))


def require_index_vectors(
    opcode: str, indices_name: str, indices: ArrayShape, index_vector_dim: int, operand: ArrayShape, map_name: str,
    operand_dims: tuple[int, ...],
) -> None:  # fmt: skip
    """Raise ShapeError unless `indices` holds vectors with one component for each of the `operand_dims`."""
    require(indices.element_type.is_integral, f"{opcode}'s {indices_name} must be integers, but are {indices}")
    require(
        0 <= index_vector_dim <= indices.rank,
        f"{opcode}'s index_vector_dim {index_vector_dim} must lie between 0 and the rank of the {indices_name} "
        f"{indices}",
    )
    length = indices.dimensions[index_vector_dim] if index_vector_dim < indices.rank else 1
    require(
        length == len(operand_dims),
        f"{opcode}'s {map_name} must name one operand dimension for each of the {length} components of an index vector "
        f"in {indices}, but names {len(operand_dims)}",
    )
    require_distinct_dimensions(operand_dims, operand.rank, f"{opcode}'s {map_name}")


def require_batching_dims(
    opcode: str, operand: ArrayShape, operand_name: str, operand_dims: tuple[int, ...], indices: ArrayShape,
    indices_name: str, indices_dims: tuple[int, ...], index_vector_dim: int,
) -> None:  # fmt: skip
    """Raise ShapeError unless the batching dimensions of operand and indices pair up."""
    require(
        len(operand_dims) == len(indices_dims),
        f"{opcode}'s {operand_name} and {indices_name} must have equal length, but have {len(operand_dims)} and "
        f"{len(indices_dims)} dimensions",
    )
    require_distinct_dimensions(operand_dims, operand.rank, f"{opcode}'s {operand_name}")
    require_distinct_dimensions(indices_dims, indices.rank, f"{opcode}'s {indices_name}")
    require(
        list(operand_dims) == sorted(operand_dims), f"{opcode}'s {operand_name} must be sorted, but are {operand_dims}"
    )
    require(
        index_vector_dim not in indices_dims,
        f"{opcode}'s {indices_name} must not contain index_vector_dim {index_vector_dim}",
    )
    for ours, theirs in zip(operand_dims, indices_dims, strict=True):
        require(
            operand.dimensions[ours] == indices.dimensions[theirs],
            f"{opcode}'s batching pairs operand dimension {ours} with indices dimension {theirs}, so they must be of "
            f"one size, but the operand is {operand} and the indices are {indices}",
        )
