"""gather: reading windows at computed positions.

A window that would leave the operand is moved back until it fits. Starts may be of any integer type.
Source: XLA, "Operation semantics".
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, flags, require, require_distinct_dimensions, shape_of
from hloexec.ops.indexing.gathering import gathering
from hloexec.ops.indexing.index_vectors import (
    WindowNames,
    batch_sizes,
    index_vectors,
    relate_starts,
    require_windows,
    vectors_demand,
    window_dimensions,
)
from hloexec.ops.intervals import Demand, Demanded, Use
from hloexec.ops.movement.columns import mapped_demand
from hloexec.ops.movement.extents import completed
from hloexec.ops.probes import Probe
from hloexec.ops.registry import opcode
from hloexec.ops.relations import Relating, Resizing, relate_window_of


@frozen
class GatherAttributes:
    """Which dimensions of operand, start_indices and result correspond."""

    offset_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, formerly=("output_window_dims",))
    collapsed_slice_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, formerly=("elided_window_dims",))
    start_index_map: tuple[int, ...] = attribute(Grammar.INT_LIST, formerly=("gather_dims_to_operand_dims",))
    operand_batching_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    start_indices_batching_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    index_vector_dim: int = attribute(Grammar.INT)
    slice_sizes: tuple[int, ...] = attribute(Grammar.INT_LIST, formerly=("window_bounds",))
    indices_are_sorted: bool = attribute(Grammar.BOOL, default=False)


_NAMES = WindowNames(
    opcode="gather",
    indices="start_indices",
    index_map="start_index_map",
    operand_batching="operand_batching_dims",
    indices_batching="start_indices_batching_dims",
    left_out="collapsed_slice_dims",
    windows="offset_dims",
)


@opcode(
    "gather",
    operands=2,
    attributes=GatherAttributes,
    any_order=True,
    moves=(0,),
    repeats=True,
    fast_in="hloexec.ops.indexing.fast.gather",
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
        yield 1, vectors_demand(attributes, use.shapes[1], room)

    @staticmethod
    def demand_on(use: Use, number: int, demand: Demand) -> Demand:
        """Where windows are whole in the dimension that tells columns apart, so does the operand's."""
        kept = window_dimensions(_NAMES, use.attributes, use.shapes[0].rank)
        return mapped_demand(use, demand, dict(zip(use.attributes.offset_dims, kept, strict=True)))

    @staticmethod
    def relate(use: Relating) -> None:
        attributes, operand, result = use.attributes, use.operands[0].axes, use.result.axes
        kept = window_dimensions(_NAMES, attributes, len(operand))
        for dimension, offset in zip(kept, attributes.offset_dims, strict=True):
            relate_window_of(use, operand[dimension], result[offset])
        batch = [axis for number, axis in enumerate(result) if number not in attributes.offset_dims]
        relate_starts(_NAMES, use, operand, 1, batch)

    @staticmethod
    def resize(change: Resizing) -> object:
        attributes, sizes = change.attributes, list(change.attributes.slice_sizes)
        kept = window_dimensions(_NAMES, attributes, len(sizes))
        for dimension, offset in zip(kept, attributes.offset_dims, strict=True):
            sizes[dimension] = change.result_sizes[1][offset]
        return attrs.evolve(attributes, slice_sizes=tuple(map(min, sizes, change.sizes(0)[1])))

    @staticmethod
    def infer(operand: Shape, start_indices: Shape, *, attributes: GatherAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of gather")
        indices = array_shape(start_indices, "the start indices of gather")
        collapsed, batching = attributes.collapsed_slice_dims, attributes.operand_batching_dims
        offset_dims, sizes = attributes.offset_dims, attributes.slice_sizes
        require_windows(_NAMES, attributes, source, indices)
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
        kept = window_dimensions(_NAMES, attributes, source.rank)
        require(
            len(offset_dims) == len(kept),
            f"gather's offset_dims must name a result dimension for each of the {len(kept)} operand dimensions that "
            f"are neither collapsed nor batching, but name {len(offset_dims)}",
        )
        batch, batch_dynamic = batch_sizes(indices, attributes.index_vector_dim)
        rank = len(batch) + len(kept)
        require_distinct_dimensions(offset_dims, rank, "gather's offset_dims")
        dynamic = flags(source)
        windows = iter([(sizes[d], dynamic[d] and sizes[d] == source.dimensions[d]) for d in kept])
        batches = iter(zip(batch, batch_dynamic, strict=True))
        result = [next(windows) if axis in offset_dims else next(batches) for axis in range(rank)]
        return shape_of(source.element_type, tuple(size for size, _ in result), tuple(flag for _, flag in result))

    @staticmethod
    def evaluate(
        operand: Array, start_indices: Array, *, attributes: GatherAttributes, operand_shapes: tuple[ArrayShape, ...]
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
    attributes: GatherAttributes, operand: tuple[int, ...], window: tuple[int, ...], indices: tuple[int, ...]
) -> Callable[..., Array]:
    """The kernel for an operand, windows and indices of these sizes."""
    kept = window_dimensions(_NAMES, attributes, len(operand))
    vectors = index_vectors(_NAMES, attributes, indices)
    return gathering(vectors, operand, window, dict(zip(kept, attributes.offset_dims, strict=True)))
