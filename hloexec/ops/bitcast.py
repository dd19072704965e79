"""bitcast and bitcast-convert: the same bits, seen as another shape."""

from __future__ import annotations

from hloexec.ops.registry import opcode

__all__: list[str] = []


@opcode("bitcast", operands=1)
class Bitcast:
    """The operand's physical elements in order, laid out as the result's   (XLA: "Shapes and layout", bitcast)"""


@opcode("bitcast-convert", operands=1)
class BitcastConvert:
    """The operand's bits as another element type   (XLA: BitcastConvertType)"""
