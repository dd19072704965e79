"""The units of a module: fusions, instructions or computations, each as a module of its own.

Names, metadata and shardings are left out of these modules, so that units which compute the same have the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from hloexec.analysis.calls import CallKind, calls_in, entered_computations
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.ir.editing import change_computations, rename
from hloexec.core.places import spell_name
from hloexec.core.structs import frozen
from hloexec.language.text import format as format_module
from hloexec.ops.attributes import with_computations
from hloexec.ops.registry import Role, entry_of, exchanges, find_opcode, role_of, traits_of
from hloexec.tools.extraction.running import Slice, needs_devices, slice_module

BY = ("fusion", "instruction", "computation")
"""What a unit may be."""

_MOST_ELEMENTS = 4096
"""Of a constant that stays in a unit; larger ones are given to it."""


@frozen(eq=False)
class Unit:
    """A part of a module, which gives what one instruction gives."""

    computation: Computation
    target: str
    slice: Slice
    """What is in it, and what it is given."""
    module: Module | None
    """The unit alone; None where it cannot be."""
    text: str
    """The text of that, the same for units that are equal but for names."""
    reason: str = ""
    """Why it cannot be isolated."""

    @property
    def instruction(self) -> Instruction:
        """What gives its value."""
        return self.computation.by_name[self.target]

    @property
    def name(self) -> str:
        """How people name it."""
        return spell_name(*self.key)

    @property
    def key(self) -> tuple[str, str]:
        """Its place in the module."""
        return self.computation.name, self.target


def default_by(module: Module) -> str:
    """What a unit is of a module where nothing is said: its fusions, where it has some."""
    return "fusion" if any(calls_in(module, CallKind.FUSED)) else "instruction"


def units_of(module: Module, by: str, entry: Computation) -> list[Unit]:
    """The units that a run may come to, from an entry on, in the order of the text."""
    fused = {callee.name for _, _, callee in calls_in(module, CallKind.FUSED)}
    modules: dict[str, Module] = {}
    units = []
    for computation in entered_computations(module, entry):
        if by == "computation":
            slices: Iterable[Slice] = _whole(computation)
        elif by == "fusion" and computation.name in fused:
            continue
        else:
            slices = (_alone(computation, instruction) for instruction in computation if _is_unit(instruction, by))
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
    constants = [operand for operand in operands if _is_small_constant(operand)]
    part = Computation(name=computation.name, instructions=(*operands, instruction), root_name=instruction.name)
    boundary = tuple(operand.name for operand in operands if operand not in constants)
    return Slice(part, instruction.name, (*(one.name for one in constants), instruction.name), boundary)


def _is_small_constant(instruction: Instruction) -> bool:
    if role_of(instruction) is not Role.CONSTANT or instruction.attributes.literal.is_elided:
        return False
    return isinstance(instruction.shape, ArrayShape) and instruction.shape.element_count <= _MOST_ELEMENTS


def _whole(computation: Computation) -> Iterator[Slice]:
    """A computation, unless it computes nothing."""
    if any(role_of(instruction) is Role.KERNEL for instruction in computation):
        boundary = tuple(parameter.name for parameter in computation.parameters)
        inside = tuple(instruction.name for instruction in computation if instruction.name not in boundary)
        yield Slice(computation, computation.root_name, inside, boundary)


def _unit(module: Module, computation: Computation, slice_: Slice, modules: dict[str, Module]) -> Unit:
    named = named_module(module, slice_)
    reason = _reason_against(slice_, module, named)
    unit = Unit(computation, slice_.target, slice_, None, "", reason)
    if reason:
        return unit
    made = _without_names(named)
    text = format_module(made)
    return attrs.evolve(unit, module=modules.setdefault(text, made), text=text)


def named_module(module: Module, slice_: Slice) -> Module:
    """A unit as a module, with the names that it has."""
    return attrs.evolve(slice_module(module, slice_), replica_count=1, num_partitions=1)


def _reason_against(slice_: Slice, module: Module, named: Module) -> str:
    """Why a unit cannot run alone; empty where it can."""
    if needs_devices(slice_, module):
        return "collective"
    for instruction in (instruction for computation in named for instruction in computation):
        entry = find_opcode(instruction.opcode)
        if role_of(instruction) is Role.MACHINE:
            return "it exchanges values with the host"
        if entry is not None and not entry.is_pure:
            return "it gives other numbers in each run"
    return ""


def _without_names(module: Module) -> Module:
    homes = {
        computation.name: "unit" if computation.name == module.entry_name else f"part.{number}"
        for number, computation in enumerate(module)
    }
    return change_computations(
        module,
        (_renamed(computation, homes) for computation in module),
        name="unit",
        entry_name="unit",
        frontend_attributes=None,
        stack_frames=None,
        unknown_attributes=(),
    )


def _renamed(computation: Computation, homes: dict[str, str]) -> Computation:
    names = {instruction.name: f"{instruction.opcode}.{number}" for number, instruction in enumerate(computation)}
    instructions = tuple(
        rename(
            instruction,
            names,
            attributes=with_computations(instruction.attributes, homes),
            metadata=None,
            sharding=None,
            frontend_attributes=None,
            original_value=None,
            statistics=None,
            span=None,
        )
        for instruction in computation
    )
    name = homes[computation.name]
    return Computation(name=name, instructions=instructions, root_name=names[computation.root_name])
