"""Constants of their own for each instruction that works with numbers of devices: one number may encode two sizes."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.ir.editing import rename_operands
from hloexec.ops.registry import Role, role_of
from hloexec.tools.shrinking.devices.numbers import NOTHING, DeviceValues, literal_of

Originals = Mapping[str, Mapping[str, str]]
"""By computation, from a constant that was copied to the original."""


def with_own_constants(module: Module, values: DeviceValues) -> tuple[Module, Originals]:
    """The module with a copy of a constant for each use but the first, where one of these depends on devices."""
    computations, originals = [], {}
    for computation in module.computations:
        found, copies = _separated(computation, values)
        computations.append(found)
        if copies:
            originals[computation.name] = copies
    return attrs.evolve(module, computations=tuple(computations)), originals


def _separated(computation: Computation, values: DeviceValues) -> tuple[Computation, dict[str, str]]:
    shared = {name for name in computation.by_name if _is_shared(computation, name, values)}
    copies: dict[str, str] = {}
    if not shared:
        return computation, copies
    used: set[str] = set()
    changed: dict[str, Instruction] = {}
    for instruction in computation.instructions:
        operands = []
        for name in instruction.operands:
            if name in shared and name in used:
                copy = _fresh(computation, copies, name)
                copies[copy] = name
                operands.append(copy)
            else:
                operands.append(name)
            used.add(name)
        changed[instruction.name] = attrs.evolve(instruction, operands=tuple(operands))
    found: list[Instruction] = []
    for name, instruction in changed.items():
        found.append(instruction)
        found += [attrs.evolve(instruction, name=copy) for copy, original in copies.items() if original == name]
    return attrs.evolve(computation, instructions=tuple(found)), copies


def _fresh(computation: Computation, copies: Mapping[str, str], name: str) -> str:
    number = 1
    while (found := f"{name}.copy{number}") in computation.by_name or found in copies:
        number += 1
    return found


def _is_shared(computation: Computation, name: str, values: DeviceValues) -> bool:
    """Whether a constant of one integer is used several times, and for numbers of devices."""
    instruction = computation.by_name[name]
    if role_of(instruction) is not Role.CONSTANT or name == computation.root_name:
        return False
    array = literal_of(instruction)
    users = computation.users[name]
    if array is None or array.size != 1 or len(users) < 2:
        return False
    places = [(computation.name, operand) for user in users for operand in (user.name, *user.operands)]
    return any(values.known.get(place, NOTHING).sources for place in places)


def without_copies(module: Module, originals: Originals) -> Module:
    """The module without the copies that are the same as their originals still."""
    return attrs.evolve(
        module,
        computations=tuple(
            _merged(computation, originals[computation.name]) if computation.name in originals else computation
            for computation in module.computations
        ),
    )


def _merged(computation: Computation, copies: Mapping[str, str]) -> Computation:
    firsts: dict[tuple[str, bytes], str] = {}
    names: dict[str, str] = {}
    for instruction in computation.instructions:
        original = copies.get(instruction.name, instruction.name if instruction.name in copies.values() else None)
        if original is not None:
            key = original, instruction.attributes.literal.value.tobytes()
            names[instruction.name] = firsts.setdefault(key, instruction.name)
    found = [
        rename_operands(instruction, names)
        for instruction in computation.instructions
        if names.get(instruction.name, instruction.name) == instruction.name
    ]
    return attrs.evolve(computation, instructions=tuple(found))
