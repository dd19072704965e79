"""Dimensions whose size is known at run time only: get-dimension-size, set-dimension-size, dynamic-reshape."""

from __future__ import annotations

import attrs

from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import ANY, opcode

__all__ = ["DimensionSizeAttributes"]


@attrs.frozen
class DimensionSizeAttributes:
    """The dimension that is asked for or set."""

    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")


@opcode("get-dimension-size", operands=1, attributes=DimensionSizeAttributes)
class GetDimensionSize:
    """The runtime extent of one dimension, as s32   (XLA: GetDimensionSize)"""


@opcode("set-dimension-size", operands=2, attributes=DimensionSizeAttributes)
class SetDimensionSize:
    """The operand with one dimension cut or enlarged to a runtime extent   (XLA: SetDimensionSize)"""


@opcode("dynamic-reshape", operands=(1, ANY))
class DynamicReshape:
    """A reshape to runtime extents   (XLA: DynamicReshape)"""
