"""No faults: what a compiler may do to a program, after which results differ by roundings and no more."""

from __future__ import annotations

from typing import Any

import attrs

from evaluation.faults.editing import Draft
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, ReplicaGroups


def _element_type(shape: Any) -> str:
    return shape.element_type.name if isinstance(shape, ArrayShape) else ""


def reciprocals(draft: Draft) -> None:
    """x / c as x · (1/c) for constants c."""
    for instruction in list(draft.instructions()):
        if instruction.opcode != "divide" or _element_type(instruction.shape) != "f32":
            continue
        number = draft.scalar(instruction.operands[1])
        if number:
            inverse = draft.filled(instruction.name, 1 / number, instruction.shape)
            draft.change(instruction.name, opcode="multiply", operands=(instruction.operands[0], inverse))


def products_in_f32(draft: Draft) -> None:
    """Products of bf16 matrices as products of f32 ones, which hold the same numbers, rounded at the end."""
    wide = ELEMENT_TYPES["f32"]
    for instruction in list(draft.instructions()):
        if instruction.opcode != "dot" or _element_type(instruction.shape) != "bf16":
            continue
        name, shape = instruction.name, instruction.shape
        operands = []
        for operand in instruction.operands:
            theirs = draft[operand].shape
            assert isinstance(theirs, ArrayShape) and isinstance(shape, ArrayShape)
            operands.append(draft.add(name, "convert", [operand], theirs.with_element_type(wide)))
        draft.change(name, operands=tuple(operands), shape=shape.with_element_type(wide))  # type: ignore[union-attr]
        draft.insert_after(name, draft.add(name, "convert", [name], shape))


def sums_from_the_other_end(draft: Draft) -> None:
    """Sums of what is reversed, and partial products of what is reversed on both sides."""
    for instruction in list(draft.instructions()):
        if instruction.opcode == "reduce" and len(instruction.operands) == 2:
            values, init_value = instruction.operands
            turned = draft.add(
                instruction.name,
                "reverse",
                [values],
                draft[values].shape,
                dimensions=instruction.attributes.dimensions,
            )
            draft.change(instruction.name, operands=(turned, init_value))
        elif instruction.opcode == "dot":
            sides = (instruction.attributes.lhs_contracting_dims, instruction.attributes.rhs_contracting_dims)
            operands = [
                draft.add(instruction.name, "reverse", [operand], draft[operand].shape, dimensions=dimensions)
                for operand, dimensions in zip(instruction.operands, sides, strict=True)
            ]
            draft.change(instruction.name, operands=tuple(operands))


def sums_over_devices_in_two_steps(draft: Draft) -> None:
    """A sum over four devices as one over pairs, and one over the pairs' sums."""
    for instruction in list(draft.instructions()):
        if instruction.opcode != "all-reduce":
            continue
        pairs, across = (ReplicaGroups(groups=groups) for groups in (((0, 1), (2, 3)), ((0, 2), (1, 3))))
        first = draft.put(
            draft.home(instruction.name),
            attrs.evolve(
                instruction,
                name=draft.fresh("all-reduce"),
                attributes=attrs.evolve(
                    instruction.attributes, replica_groups=pairs, channel_id=instruction.attributes.channel_id + 10
                ),
            ),
        )
        draft.change(instruction.name, operands=(first,), attributes={"replica_groups": across})
