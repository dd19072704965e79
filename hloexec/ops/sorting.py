"""sort and topk."""

from __future__ import annotations

import attrs

from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import ANY, opcode

__all__ = ["SortAttributes", "TopKAttributes"]


@attrs.frozen
class SortAttributes:
    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    is_stable: bool = attribute(Grammar.BOOL, default=False)
    to_apply: str = attribute(Grammar.COMPUTATION)


@attrs.frozen
class TopKAttributes:
    k: int = attribute(Grammar.INT)
    largest: bool = attribute(Grammar.BOOL, default=True, always_printed=True)


@opcode("sort", operands=(1, ANY), attributes=SortAttributes)
class Sort:
    """Sorts the operands together along a dimension, by the comparator `to_apply` (XLA: Sort)."""


@opcode("topk", operands=1, attributes=TopKAttributes)
class TopK:
    """(values, indices) of the k largest (or smallest) elements of the last dimension (XLA: TopK)."""
