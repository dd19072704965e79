"""Reading and writing at computed positions: dynamic-slice, dynamic-update-slice, gather."""

from __future__ import annotations

import attrs

from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import ANY, opcode

__all__ = ["DynamicSliceAttributes", "GatherAttributes"]


@attrs.frozen
class DynamicSliceAttributes:
    """The size of the slice in each dimension."""

    dynamic_slice_sizes: tuple[int, ...] = attribute(Grammar.INT_LIST)


@opcode("dynamic-slice", operands=(1, ANY), attributes=DynamicSliceAttributes)
class DynamicSlice:
    """out[i...] = operand[clamp(0, start, size - dynamic_slice_size) + i...]   (XLA: DynamicSlice)"""


@opcode("dynamic-update-slice", operands=(2, ANY))
class DynamicUpdateSlice:
    """out = operand, with out[clamp(0, start, size - update_size) + i...] = update[i...]   (XLA: DynamicUpdateSlice)"""


@attrs.frozen
class GatherAttributes:
    """Which dimensions of operand, start_indices and result correspond."""

    offset_dims: tuple[int, ...] = attribute(Grammar.INT_LIST)
    collapsed_slice_dims: tuple[int, ...] = attribute(Grammar.INT_LIST)
    start_index_map: tuple[int, ...] = attribute(Grammar.INT_LIST)
    operand_batching_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    start_indices_batching_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    index_vector_dim: int = attribute(Grammar.INT)
    slice_sizes: tuple[int, ...] = attribute(Grammar.INT_LIST)
    indices_are_sorted: bool = attribute(Grammar.BOOL, default=False)


@opcode("gather", operands=2, attributes=GatherAttributes)
class Gather:
    """Slices of the operand, one per index vector   (XLA: Gather)"""
