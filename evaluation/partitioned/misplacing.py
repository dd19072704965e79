"""Collectives that are missing, there twice, between the wrong devices, or one step too early or too late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import attrs

from evaluation.partitioned.faults import regrouped
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, TupleShape
from hloexec.errors import HloError
from hloexec.language.verifier import verify
from hloexec.ops.registry import OPCODES, exchanges, find_opcode

_Parts = dict[str, Sequence[Instruction]]
"""From the name of an instruction to what is in its place."""


@attrs.frozen(eq=False)
class Misplaced:
    """A module in which one collective is not as it should be."""

    kind: str
    module: Module
    planted: frozenset[str]

    def __str__(self) -> str:
        return f"{self.kind} {min(self.planted, key=len)}"


def misplaced(module: Module, seed: str) -> dict[str, list[Misplaced]]:
    """The faults of each kind, in the order in which they are to be taken: first one of each collective."""
    random = Random(seed)
    found = {}
    for kind, change in _CHANGES.items():
        sites = [(computation, each) for computation in module for each in computation if _is_exchange(each)]
        cases = [[*_changed(kind, module, *site, change)] for site in sites]
        for case in cases:
            random.shuffle(case)
        random.shuffle(cases)
        most = max(map(len, cases), default=0)
        found[kind] = [case[place] for place in range(most) for case in cases if place < len(case)]
    return found


def _is_exchange(instruction: Instruction) -> bool:
    """Whether it exchanges one array, or adds up or hands around several."""
    is_one = len(instruction.operands) == 1 and isinstance(instruction.shape, ArrayShape)
    return (is_one and exchanges(instruction)) or instruction.opcode in ("all-reduce", "all-to-all")


def _changed(kind: str, module: Module, computation: Computation, instruction: Instruction, change: Any) -> Any:
    for parts in change(module, computation, instruction):
        instructions = tuple(new for each in computation for new in parts.get(each.name, (each,)))
        made = attrs.evolve(computation, instructions=instructions)
        edited = attrs.evolve(module, computations=tuple(made if each is computation else each for each in module))
        try:
            verify(edited)
        except HloError:
            continue
        yield Misplaced(kind, edited, frozenset(new.name for each in parts.values() for new in each))


def _missing(module: Module, computation: Computation, instruction: Instruction) -> Iterator[_Parts]:
    """Each device keeps what it has; in the place of what it would gather, it has that several times."""
    source = computation.by_name[instruction.operands[0]]
    own: dict[str, Any] = {"name": instruction.name, "shape": instruction.shape}
    if isinstance(instruction.shape, TupleShape):
        yield {instruction.name: [Instruction(**own, opcode="tuple", operands=instruction.operands)]}
    elif source.shape.dimensions == instruction.shape.dimensions:
        yield {instruction.name: [Instruction(**own, opcode="copy", operands=(source.name,))]}
    elif instruction.opcode == "all-gather":
        axis = instruction.attributes.dimension
        times = instruction.shape.dimensions[axis] // source.shape.dimensions[axis]
        made = OPCODES["concatenate"].attributes(dimension=axis)
        operands = (source.name,) * times
        yield {instruction.name: [Instruction(**own, opcode="concatenate", operands=operands, attributes=made)]}


def _doubled(module: Module, computation: Computation, instruction: Instruction) -> Iterator[_Parts]:
    channels = [getattr(each.attributes, "channel_id", None) or 0 for inner in module for each in inner]
    changes: dict[str, Any] = {"channel_id": max(channels) + 1}
    first = attrs.evolve(instruction, name=f"{instruction.name}.twice")
    if instruction.attributes.channel_id is not None:
        first = attrs.evolve(first, attributes=attrs.evolve(first.attributes, **changes))
    if not isinstance(instruction.shape, TupleShape):
        yield {instruction.name: [first, attrs.evolve(instruction, operands=(first.name,))]}
        return
    index = OPCODES["get-tuple-element"].attributes
    assert index is not None
    parts = [
        Instruction(
            name=f"{first.name}.{number}",
            shape=shape,
            opcode="get-tuple-element",
            operands=(first.name,),
            attributes=index(index=number),
        )
        for number, shape in enumerate(instruction.shape.elements)
    ]
    last = attrs.evolve(instruction, operands=tuple(each.name for each in parts))
    yield {instruction.name: [first, *parts, last]}


def _between_others(module: Module, computation: Computation, instruction: Instruction) -> Iterator[_Parts]:
    """Other groups, members in another order, or other pairs of devices."""
    for other in regrouped(module, computation, instruction):
        yield {instruction.name: [other]}
    pairs = getattr(instruction.attributes, "source_target_pairs", None) or ()
    others = [tuple((target, source) for source, target in pairs), *(pairs[:n] + pairs[n + 1 :] for n in (0, -1))]
    for changed in others if pairs else ():
        if sorted(changed) != sorted(pairs):
            made = attrs.evolve(instruction.attributes, source_target_pairs=tuple(changed))
            yield {instruction.name: [attrs.evolve(instruction, attributes=made)]}


def _at_another_step(module: Module, computation: Computation, instruction: Instruction) -> Iterator[_Parts]:
    """An elementwise step before it is done after it, or the other way round."""
    name, *others = instruction.operands
    if others:
        return
    source, users = computation.by_name[name], computation.users[instruction.name]
    if _is_elementwise(source, instruction) and len(computation.users[name]) == 1 and len(source.operands) == 1:
        first = attrs.evolve(instruction, name=name, operands=source.operands)
        yield {name: [first], instruction.name: [attrs.evolve(source, name=instruction.name, operands=(name,))]}
    if len(users) == 1 and _is_elementwise(users[0], instruction) and computation.root_name != instruction.name:
        user = users[0]
        operands = tuple(name if each == instruction.name else each for each in user.operands)
        first = attrs.evolve(user, name=f"{user.name}.early", operands=operands)
        last = attrs.evolve(instruction, name=user.name, operands=(first.name,))
        yield {instruction.name: [], user.name: [first, last]}


def _is_elementwise(instruction: Instruction, like: Instruction) -> bool:
    entry = find_opcode(instruction.opcode)
    return entry is not None and entry.is_elementwise and instruction.shape == like.shape


_CHANGES: dict[str, Callable[[Module, Computation, Instruction], Iterator[_Parts]]] = {
    "missing": _missing,
    "doubled": _doubled,
    "devices": _between_others,
    "step": _at_another_step,
}
