"""Faults of precision: what a backend rounds that should not be, or does not round that should."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.faults.editing import Draft, Where
from evaluation.faults.planting import Fault, reducer_becomes
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Instruction


def _of_type(shape: Any, element_type: str) -> ArrayShape:
    assert isinstance(shape, ArrayShape)
    return shape.with_element_type(ELEMENT_TYPES[element_type])


def _converted(draft: Draft, instruction: Instruction, element_type: str) -> list[str]:
    """The operands of an instruction, converted in front of it."""
    return [
        draft.add(instruction.name, "convert", [operand], _of_type(draft[operand].shape, element_type))
        for operand in instruction.operands
    ]


def accumulated_in(opcode: str, element_type: str, nth: int = 0, where: Where | None = None) -> Fault:
    """A contraction or reduction whose operands and result are of a narrower type than declared."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        name = instruction.name
        narrow = _converted(draft, instruction, element_type)
        if opcode == "reduce":
            draft.change(name, shape=_of_type(instruction.shape, element_type))
            reducer_becomes(opcode, "add", where=lambda _, other: other.name == name)(draft)
        draft.change(name, operands=tuple(narrow), shape=_of_type(instruction.shape, element_type))
        wide = draft.add(name, "convert", [name], instruction.shape)
        draft.insert_after(name, wide)

    return fault


def operands_of_few_bits(nth: int = 0, where: Where | None = None, mantissa_bits: int = 10) -> Fault:
    """A dot whose operands are rounded first, as tensor cores do (TF32)."""

    def fault(draft: Draft) -> None:
        dot = draft.find("dot", nth, where)
        operands = [
            draft.add(
                dot.name,
                "reduce-precision",
                [operand],
                draft[operand].shape,
                exponent_bits=8,
                mantissa_bits=mantissa_bits,
            )
            for operand in dot.operands
        ]
        draft.change(dot.name, operands=tuple(operands))

    return fault


def rounded(opcode: str, element_type: str = "bf16", nth: int = 0, where: Where | None = None) -> Fault:
    """A value is kept in a narrower type in between."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        name = instruction.name
        narrow = draft.add(name, "convert", [name], _of_type(instruction.shape, element_type))
        wide = draft.add(name, "convert", [narrow], instruction.shape)
        draft.insert_after(name, wide)

    return fault


def rounding_lost(opcode: str, nth: int = 0, where: Where | None = None) -> Fault:
    """An instruction of a narrow type between two converts computes in the wide one; `convert` for a pair alone."""

    def fault(draft: Draft) -> None:
        def stands_between(draft: Draft, instruction: Any) -> bool:
            source = draft.operand(instruction)
            users = draft.users(instruction.name)
            if where is not None and not where(draft, instruction):
                return False
            if opcode == "convert":
                return any(user.opcode == "convert" and user.shape.compatible(source.shape) for user in users)
            return source.opcode == "convert" and bool(users) and all(user.opcode == "convert" for user in users)

        instruction = draft.find(opcode, nth, stands_between)
        source = draft.operand(instruction)
        if opcode != "convert":
            wide = draft.operand(source)
            draft.change(instruction.name, operands=(wide.name,), shape=wide.shape)
            for user in draft.users(instruction.name):
                draft.rewire(user.name, instruction.name, altered=False)
            return
        for user in draft.users(instruction.name):
            if user.opcode == "convert" and user.shape.compatible(source.shape):
                draft.rewire(user.name, source.name)

    return fault


def flushed(opcode: str, nth: int = 0, where: Where | None = None) -> Fault:
    """Denormal results of an instruction are zero."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        name, shape = instruction.name, instruction.shape
        normal = draft.filled(name, np.finfo(np.float32).tiny, shape)
        size = draft.add(name, "abs", [name], shape)
        small = draft.add(name, "compare", [size, normal], _of_type(shape, "pred"), direction="LT")
        zero = draft.filled(name, 0, shape)
        draft.insert_after(name, draft.add(name, "select", [small, zero, name], shape))

    return fault


def nan_is_lost(nth: int = 0, where: Where | None = None) -> Fault:
    """A maximum by a comparison, which takes the second operand where the first is NaN."""

    def fault(draft: Draft) -> None:
        maximum = draft.find("maximum", nth, where)
        greater = draft.add(maximum.name, "compare", maximum.operands, _of_type(maximum.shape, "pred"), direction="GT")
        draft.change(maximum.name, opcode="select", operands=(greater, *maximum.operands))

    return fault


def wraps_at(opcode: str, element_type: str, nth: int = 0, where: Where | None = None) -> Fault:
    """An integer instruction computes in a narrower type."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        name = instruction.name
        narrow = _converted(draft, instruction, element_type)
        draft.change(name, operands=tuple(narrow), shape=_of_type(instruction.shape, element_type))
        draft.insert_after(name, draft.add(name, "convert", [name], instruction.shape))

    return fault
