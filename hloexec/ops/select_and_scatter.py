"""select-and-scatter: the gradient of a windowed selection such as max pooling."""

from __future__ import annotations

import attrs

from hloexec.ir import Window
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import opcode

__all__ = ["SelectAndScatterAttributes"]


@attrs.frozen
class SelectAndScatterAttributes:
    window: Window = attribute(Grammar.WINDOW, default=Window())
    select: str = attribute(Grammar.COMPUTATION)
    scatter: str = attribute(Grammar.COMPUTATION)


@opcode("select-and-scatter", operands=3, attributes=SelectAndScatterAttributes)
class SelectAndScatter:
    """Scatters each source element to the place in its window of the operand that `select` prefers
    (XLA: SelectAndScatter).
    """
