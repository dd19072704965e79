"""What a kind of fault is, and what many kinds ask of an instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random

import attrs

from evaluation.faults.editing import Draft, Where
from evaluation.faults.planting import Fault
from evaluation.faults.refusing import code
from hloexec.core.ir import ArrayShape, Instruction
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import OPCODES, Role


@attrs.frozen(eq=False)
class Kind:
    """A kind of fault."""

    name: str
    sites: Callable[[Draft], Iterable[Instruction]]
    """Where it may be planted."""
    fault: Callable[[Draft, Instruction, Random], Fault]
    """A fault at one of these; LookupError where there is no place for one after all."""
    wants_nan: bool = False
    """Whether it shows with a missing number only."""


def named(name: str) -> Where:
    """Where it is this instruction."""
    return lambda _, instruction: instruction.name == name


def of(*opcodes: str) -> Callable[[Draft], Iterator[Instruction]]:
    """Those that run and have one of these opcodes."""
    return where(lambda _, instruction: instruction.opcode in opcodes)


def where(holds: Where) -> Callable[[Draft], Iterator[Instruction]]:
    """Those that run, are arrays, and fulfil a condition."""

    def sites(draft: Draft) -> Iterator[Instruction]:
        for home in code(draft):
            for instruction in draft.computations[home].values():
                if array_of(instruction) is not None and holds(draft, instruction):
                    yield instruction

    return sites


def called_by(draft: Draft, *opcodes: str) -> list[str]:
    """The computations that instructions of these opcodes call."""
    return [
        name
        for instruction in draft.instructions()
        if instruction.opcode in opcodes
        for name in computation_names(instruction.attributes)
    ]


def array_of(instruction: Instruction) -> ArrayShape | None:
    shape = instruction.shape
    return shape if isinstance(shape, ArrayShape) and shape.is_array else None


def dimensions(instruction: Instruction) -> tuple[int, ...]:
    shape = array_of(instruction)
    return () if shape is None else shape.dimensions


def is_float(instruction: Instruction, *names: str) -> bool:
    shape = array_of(instruction)
    return shape is not None and shape.element_type.name in (names or ("f32", "bf16", "f16"))


def same(one: Instruction, other: Instruction) -> bool:
    """Whether both are arrays of one shape."""
    return one.name != other.name and array_of(one) is not None and one.shape.compatible(other.shape)


def pairs_with(draft: Draft, instruction: Instruction) -> list[str]:
    """What has its shape and does not come from it, in its computation; no constants, and none of its operands."""
    instructions = draft.computations[draft.home(instruction.name)]
    later = {instruction.name}
    pending = [instruction.name]
    users: dict[str, list[str]] = {}
    for each in instructions.values():
        for operand in each.operands:
            users.setdefault(operand, []).append(each.name)
    while pending:
        new = [name for name in users.get(pending.pop(), ()) if name not in later]
        later.update(new)
        pending += new
    return [
        each.name
        for each in instructions.values()
        if each.name not in later
        and each.name not in instruction.operands
        and draft.scalar(each.name) is None
        and OPCODES[each.opcode].role is Role.KERNEL
    ]
