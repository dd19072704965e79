"""Faults, as compilers and people make them: each alters one thing in a module.

A fault is a function on a `Draft`; those here make faults of one kind, for an instruction found by its opcode and its
number among those of the opcode, in the order of the text, or by a condition. What the draft notes as new or altered is
the instruction to blame, with what it newly takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import attrs

from evaluation.faults.editing import Draft, Where, array
from evaluation.faults.naming import uniquely_named
from evaluation.faults.refusing import code, inline_calls
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.ops.attributes import computation_names
from hloexec.ops.control.flow import ParameterAttributes
from hloexec.ops.registry import OPCODES

Fault = Callable[[Draft], None]


@attrs.frozen(eq=False)
class Planted:
    """A module with a fault."""

    module: Module
    names: frozenset[str]
    """The instructions that are new or altered, by names that are unique in the module."""


def plant(module: Module, fault: Fault) -> Planted:
    """Plant a fault in a module; LookupError where it has no place for it."""
    draft = Draft(without_calls(module))
    fault(draft)
    draft.clean()
    assert draft.touched, "the fault has altered nothing"
    return Planted(draft.module(), frozenset(draft.touched | _holders(draft)))


def without_calls(module: Module) -> Module:
    """The module with its calls dissolved, as every compiler begins; names are unique in it."""
    draft = Draft(uniquely_named(module))
    inline_calls(draft, Random(0), 1, opcodes=("call",))
    draft.clean()
    return draft.module()


def _holders(draft: Draft) -> set[str]:
    """Who calls the reducers and comparators with something altered in them, which no run shows by itself."""
    running = set(code(draft))
    altered = {draft.home(name) for name in draft.touched} - running
    return {each.name for each in draft.instructions() if altered.intersection(computation_names(each.attributes))}


def swapped(opcode: str, nth: int = 0, where: Where | None = None, first: int = 0, second: int = 1) -> Fault:
    """Two operands in each other's place."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        operands = list(instruction.operands)
        operands[first], operands[second] = operands[second], operands[first]
        draft.change(instruction.name, operands=tuple(operands))

    return fault


def with_attributes(opcode: str, nth: int = 0, where: Where | None = None, /, **changes: Any) -> Fault:
    """Other attributes; a value that is a function is called with the one that is there."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        attributes = {
            name: value(getattr(instruction.attributes, name)) if callable(value) else value
            for name, value in changes.items()
        }
        draft.change(instruction.name, attributes=attributes)

    return fault


def becomes(
    opcode: str, other: str, nth: int = 0, where: Where | None = None, attributes: Mapping[str, Any] | None = None
) -> Fault:
    """Another opcode on the same operands, as many as it takes."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        entry = OPCODES[other]
        operands = instruction.operands[: entry.maximum_operands]
        kind = entry.attributes
        draft.change(
            instruction.name,
            opcode=other,
            operands=operands,
            attributes=None if kind is None else kind(**attributes or {}),
        )

    return fault


def dropped(opcode: str, nth: int = 0, where: Where | None = None, keeps: int = 0) -> Fault:
    """The instruction is left out: its users take one of its operands."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        if draft.is_root(instruction.name) or any(user.opcode == "tuple" for user in draft.users(instruction.name)):
            # What a computation returns is still an instruction of its own.
            draft.change(instruction.name, opcode="copy", operands=(instruction.operands[keeps],), attributes=None)
        else:
            draft.rewire(instruction.name, instruction.operands[keeps])

    return fault


def doubled(opcode: str, nth: int = 0, where: Where | None = None, operand: int = 1) -> Fault:
    """An operand is applied once more: a + b + b."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        again = draft.add(
            instruction.name, opcode, [instruction.name, instruction.operands[operand]], instruction.shape
        )
        draft.insert_after(instruction.name, again)

    return fault


def constant_becomes(opcode: str, operand: int, value: float, nth: int = 0, where: Where | None = None) -> Fault:
    """An operand that is a constant has another value."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        old = draft[instruction.operands[operand]]
        assert draft.scalar(old.name) is not None, f"{old.name} is no constant"
        new = draft.filled(instruction.name, value, old.shape)
        operands = [*instruction.operands]
        operands[operand] = new
        draft.change(instruction.name, operands=tuple(operands))

    return fault


def taken_from(
    opcode: str, operand: int, other: Callable[[Draft, Instruction], str], nth: int = 0, where: Where | None = None
) -> Fault:
    """An operand is another instruction of the same shape."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        operands = [*instruction.operands]
        operands[operand] = other(draft, instruction)
        assert operands[operand] != instruction.operands[operand]
        draft.change(instruction.name, operands=tuple(operands))

    return fault


def shifted_index(opcode: str, operand: int, by: int, nth: int = 0, where: Where | None = None) -> Fault:
    """An integer operand is off by a constant."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        index = draft[instruction.operands[operand]]
        offset = draft.filled(instruction.name, by, index.shape)
        operands = [*instruction.operands]
        operands[operand] = draft.add(instruction.name, "add", [index.name, offset], index.shape)
        draft.change(instruction.name, operands=tuple(operands))

    return fault


def roots_become(opcode: str, number: int, other: int, nth: int = 0, where: Where | None = None) -> Fault:
    """The loop's body hands on the value that it was given, not the one it computed; `opcode` is the body's tuple."""

    def fault(draft: Draft) -> None:
        root = draft.find(opcode, nth, where)
        given = draft.find(
            "get-tuple-element",
            where=lambda d, i: d.home(i.name) == d.home(root.name) and i.attributes.index == other,
        )
        operands = [*root.operands]
        operands[number] = given.name
        draft.change(root.name, operands=tuple(operands))

    return fault


def reducer_becomes(opcode: str, other: str, nth: int = 0, where: Where | None = None) -> Fault:
    """A reduction or scatter combines otherwise; `other` is an opcode, or `second` for the new value itself."""

    def fault(draft: Draft) -> None:
        instruction = draft.find(opcode, nth, where)
        shape = instruction.shape
        assert isinstance(shape, ArrayShape)
        scalar = array(shape.element_type.name)
        names = [draft.fresh(name) for name in ("lhs", "rhs", "root")]
        body = [
            Instruction(name=name, shape=scalar, opcode="parameter", attributes=ParameterAttributes(number=number))
            for number, name in enumerate(names[:2])
        ]
        if other != "second":
            body.append(Instruction(name=names[2], shape=scalar, opcode=other, operands=tuple(names[:2])))
        root = names[1] if other == "second" else names[2]
        callee = draft.fresh("reducer")
        draft.add_computation(Computation(name=callee, instructions=tuple(body), root_name=root))
        draft.change(instruction.name, attributes={"to_apply": callee})

    return fault
