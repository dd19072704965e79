"""Contractions: dot, ragged-dot and scaled-dot."""

from __future__ import annotations

import attrs

from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import opcode

__all__ = ["DOT_ALGORITHMS", "OPERAND_PRECISIONS", "DotAttributes", "RaggedDotAttributes"]

OPERAND_PRECISIONS = ("default", "high", "highest", "packed_nibble")

DOT_ALGORITHMS = (
    "unset",
    "dot_any_f8_any_f8_f32",
    "dot_any_f8_any_f8_f32_fast_accum",
    "dot_f16_f16_f16",
    "dot_f16_f16_f32",
    "dot_bf16_bf16_bf16",
    "dot_bf16_bf16_f32",
    "dot_bf16_bf16_f32_x3",
    "dot_bf16_bf16_f32_x6",
    "dot_bf16_bf16_f32_x9",
    "dot_tf32_tf32_f32",
    "dot_tf32_tf32_f32_x3",
    "dot_f32_f32_f32",
    "dot_f64_f64_f64",
)


@attrs.frozen
class DotAttributes:
    """Which dimensions are contracted, which are batch dimensions, and how precisely."""

    lhs_batch_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    lhs_contracting_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    rhs_batch_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    rhs_contracting_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    operand_precision: tuple[str, ...] = attribute(Grammar.ENUM_LIST, default=(), choices=OPERAND_PRECISIONS)
    algorithm: str = attribute(Grammar.ENUM, default="unset", choices=DOT_ALGORITHMS)


@attrs.frozen
class RaggedDotAttributes:
    """A dot's dimensions, and which of them the group sizes divide."""

    lhs_batch_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    lhs_contracting_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    rhs_batch_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    rhs_contracting_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    lhs_ragged_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    rhs_group_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    operand_precision: tuple[str, ...] = attribute(Grammar.ENUM_LIST, default=(), choices=OPERAND_PRECISIONS)
    algorithm: str = attribute(Grammar.ENUM, default="unset", choices=DOT_ALGORITHMS)


@opcode("dot", operands=2, attributes=DotAttributes)
class Dot:
    """out[b..., m..., n...] = sum over k of lhs[b, m, k] * rhs[b, k, n]   (XLA: DotGeneral)"""


@opcode("ragged-dot", operands=3, attributes=RaggedDotAttributes)
class RaggedDot:
    """A dot whose ragged dimension is divided into groups (XLA: RaggedDot)."""


@opcode("scaled-dot", operands=4, attributes=DotAttributes)
class ScaledDot:
    """The dot of two operands that are scaled block by block (XLA: ScaledDot)."""
