"""Reductions: reduce, reduce-window and map."""

from __future__ import annotations

import attrs

from hloexec.ir import Window
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import ANY, opcode

__all__ = ["MapAttributes", "ReduceAttributes", "ReduceWindowAttributes"]


@attrs.frozen
class ReduceAttributes:
    """Which dimensions vanish, and what combines two values."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST)
    to_apply: str = attribute(Grammar.COMPUTATION)


@attrs.frozen
class ReduceWindowAttributes:
    """The window, and what combines two values."""

    window: Window = attribute(Grammar.WINDOW, default=Window())
    to_apply: str = attribute(Grammar.COMPUTATION)


@attrs.frozen
class MapAttributes:
    """All dimensions in order (the text may leave them out), and the computation."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    to_apply: str = attribute(Grammar.COMPUTATION)


@opcode("reduce", operands=(2, ANY), attributes=ReduceAttributes)
class Reduce:
    """Combines all elements along some dimensions into one (XLA: Reduce)."""


@opcode("reduce-window", operands=(2, ANY), attributes=ReduceWindowAttributes)
class ReduceWindow:
    """Combines all elements of each window into one (XLA: ReduceWindow)."""


@opcode("map", operands=(0, ANY), attributes=MapAttributes)
class Map:
    """Applies a computation of scalars to each element (XLA: Map)."""
