"""The units of a module: fusions, instructions or computations, each as a module of its own.

Names, metadata and shardings are left out of these modules, so that units which compute the same have the same text.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from hloexec.analysis.calls import CallKind, calls_in, entered_computations
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.ir.editing import change_computations, rename
from hloexec.core.structs import frozen
from hloexec.language.text import format as format_module
from hloexec.ops.attributes import rename_computations
from hloexec.ops.registry import Role, entry_of, exchanges, role_of, traits_of
from hloexec.tools.extraction.running import Slice, is_unrepeatable, needs_devices, slice_module

BY = ("fusion", "instruction", "computation")
"""What a unit may be."""

_MOST_BYTES = 1 << 14
"""Of a constant that stays in a unit; larger ones are given to it."""


@frozen(eq=False)
class Unit:
    """A part of a module, which gives what one instruction gives."""

    computation: Computation
    instruction: Instruction
    boundary: tuple[str, ...]
    """What it is given."""
    named: Module
    """The unit as a module, with the names that it has."""
    module: Module
    """The same without names: one for all units that are equal but for them."""
    text: str
    """The text of that."""
    reason: str
    """Why it cannot be isolated; empty where it can."""

    @property
    def key(self) -> tuple[str, str]:
        """Its place in the module."""
        return self.computation.name, self.instruction.name


def units_of(module: Module, by: str | None, entry: Computation) -> list[Unit]:
    """The units that a run may come to, from an entry on; by default fusions where there are some."""
    fused = {callee.name for _, _, callee in calls_in(module, CallKind.FUSED)}
    by = by or ("fusion" if fused else "instruction")
    modules: dict[str, Module] = {}
    units = []
    for computation in entered_computations(module, entry):
        slices = [_whole(computation)] if by == "computation" else []
        if by == "instruction" or (by == "fusion" and computation.name not in fused):
            slices = [_alone(computation, instruction) for instruction in computation if _is_unit(instruction, by)]
        units += [_unit(module, computation, slice_, modules) for slice_ in slices]
    return units


def _is_unit(instruction: Instruction, by: str) -> bool:
    """Whether an instruction computes something, or exchanges values, which is said."""
    role, entry = role_of(instruction), entry_of(instruction)
    if role is Role.CALL:
        return by == "fusion" and traits_of(instruction).fuses
    if role is Role.CUSTOM_CALL:
        return entry is None or not (entry.invokes or entry.forwards)
    return role is Role.KERNEL or (role is Role.MACHINE and exchanges(instruction))


def _alone(computation: Computation, instruction: Instruction) -> Slice:
    """An instruction with the small constants that it takes."""
    operands = [computation.by_name[name] for name in dict.fromkeys(instruction.operands)]
    boundary = tuple(operand.name for operand in operands if not _is_small_constant(operand))
    part = Computation(name=computation.name, instructions=(*operands, instruction), root_name=instruction.name)
    return Slice(part, instruction.name, tuple(one.name for one in part if one.name not in boundary), boundary)


def _is_small_constant(instruction: Instruction) -> bool:
    is_known = role_of(instruction) is Role.CONSTANT and not instruction.attributes.literal.is_elided
    return is_known and instruction.shape.byte_size <= _MOST_BYTES


def _whole(computation: Computation) -> Slice:
    boundary = tuple(parameter.name for parameter in computation.parameters)
    inside = tuple(instruction.name for instruction in computation if instruction.name not in boundary)
    return Slice(computation, computation.root_name, inside, boundary)


def _unit(module: Module, computation: Computation, slice_: Slice, modules: dict[str, Module]) -> Unit:
    reason = "collective" if needs_devices(slice_, module) else ""
    named = attrs.evolve(slice_module(module, slice_), replica_count=1, num_partitions=1)
    if any(is_unrepeatable(instruction) for part in named for instruction in part):
        reason = reason or "another run gives other values"
    made = _without_names(named)
    text = format_module(made)
    instruction = computation.by_name[slice_.target]
    return Unit(computation, instruction, slice_.boundary, named, modules.setdefault(text, made), text, reason)


def _without_names(module: Module) -> Module:
    homes = {computation.name: f"part.{number}" for number, computation in enumerate(module)}
    return change_computations(
        module,
        [_renamed(computation, homes) for computation in module],
        name="unit",
        entry_name=homes[module.entry_name],
        frontend_attributes=None,
        stack_frames=None,
        unknown_attributes=(),
    )


def _renamed(computation: Computation, homes: Mapping[str, str]) -> Computation:
    names = {instruction.name: f"{instruction.opcode}.{number}" for number, instruction in enumerate(computation)}
    unsaid = dict.fromkeys("metadata sharding frontend_attributes original_value statistics span".split())
    instructions = tuple(
        rename(one, names, attributes=rename_computations(one.attributes, homes), **unsaid) for one in computation
    )
    name, root_name = homes[computation.name], names[computation.root_name]
    return Computation(name=name, instructions=instructions, root_name=root_name)
