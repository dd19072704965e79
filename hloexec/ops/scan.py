"""scan: a fold along one dimension that keeps every step's result."""

from __future__ import annotations

import attrs

from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import ANY, opcode

__all__ = ["ScanAttributes"]


@attrs.frozen
class ScanAttributes:
    """`is_associative` lets a backend evaluate steps in another order."""

    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    num_carries: int = attribute(Grammar.INT)
    is_reverse: bool = attribute(Grammar.BOOL, default=False)
    is_associative: bool = attribute(Grammar.BOOL, default=False)
    to_apply: str = attribute(Grammar.COMPUTATION)


@opcode("scan", operands=(1, ANY), attributes=ScanAttributes)
class Scan:
    """(outputs..., carries...) = to_apply(slices of the inputs..., carries...), step by step along a dimension."""
