"""Instructions that edited modules get: parameters, constants, tuples, their elements and conversions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hloexec.core.ir import Instruction, Literal, Shape, parts_of
from hloexec.ops.control.flow import ConstantAttributes, GetTupleElementAttributes, ParameterAttributes


def make_parameter(name: str, shape: Shape, number: int = 0, **further: Any) -> Instruction:
    return Instruction(
        name=name, shape=shape, opcode="parameter", attributes=ParameterAttributes(number=number), **further
    )


def make_constant(name: str, literal: Literal) -> Instruction:
    return Instruction(name=name, shape=literal.shape, opcode="constant", attributes=ConstantAttributes(literal))


def make_tuple(name: str, shape: Shape, operands: Sequence[str]) -> Instruction:
    return Instruction(name=name, shape=shape, opcode="tuple", operands=tuple(operands))


def make_element(name: str, shape: Shape, source: str, index: int) -> Instruction:
    """An element of a tuple of this shape."""
    return Instruction(
        name=name,
        shape=parts_of(shape)[index],
        opcode="get-tuple-element",
        operands=(source,),
        attributes=GetTupleElementAttributes(index=index),
    )


def make_conversion(name: str, shape: Shape, operand: str, **further: Any) -> Instruction:
    return Instruction(name=name, shape=shape, opcode="convert", operands=(operand,), **further)
