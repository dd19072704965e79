"""scatter: combining windows of updates into an operand at computed positions."""

from __future__ import annotations

import attrs

from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import ANY, opcode

__all__ = ["ScatterAttributes"]


@attrs.frozen
class ScatterAttributes:
    """Which dimensions of operands, scatter indices and updates correspond."""

    update_window_dims: tuple[int, ...] = attribute(Grammar.INT_LIST)
    inserted_window_dims: tuple[int, ...] = attribute(Grammar.INT_LIST)
    scatter_dims_to_operand_dims: tuple[int, ...] = attribute(Grammar.INT_LIST)
    input_batching_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    scatter_indices_batching_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    index_vector_dim: int = attribute(Grammar.INT)
    indices_are_sorted: bool = attribute(Grammar.BOOL, default=False)
    unique_indices: bool = attribute(Grammar.BOOL, default=False)
    to_apply: str = attribute(Grammar.COMPUTATION)


@opcode("scatter", operands=(3, ANY), attributes=ScatterAttributes)
class Scatter:
    """Windows of updates combined into the operands   (XLA: Scatter)"""
