"""Editing modules: names that nothing has, operands of other names, instructions and computations in the place of
those of their names. `changes` are further fields of what is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hloexec.core.ir.instruction import Computation, Instruction, Module


def take_name(name: str, taken: set[str], number: int = 2) -> str:
    """A name, or what nothing has of `name.2`, `name.3`, … (from a number on); it is taken from now on."""
    free_name = name
    while free_name in taken:
        free_name, number = f"{name}.{number}", number + 1
    taken.add(free_name)
    return free_name


def rename_operands(instruction: Instruction, names: Mapping[str, str], **changes: Any) -> Instruction:
    """The instruction on operands of other names, where `names` has some."""
    operands = tuple(names.get(name, name) for name in instruction.operands)
    return attrs.evolve(instruction, operands=operands, **changes)


def replace_instruction(computation: Computation, instruction: Instruction) -> Computation:
    """The computation with an instruction in the place of that of its name."""
    instructions = tuple(instruction if original.name == instruction.name else original for original in computation)
    return attrs.evolve(computation, instructions=instructions)


def replace_computation(module: Module, computation: Computation, **changes: Any) -> Module:
    """The module with a computation in the place of that of its name."""
    computations = tuple(computation if original.name == computation.name else original for original in module)
    return attrs.evolve(module, computations=computations, **changes)


def map_instructions(
    module: Module, change: Callable[[Computation, Instruction], Instruction], **changes: Any
) -> Module:
    """The module with what `change` makes of each instruction of each computation."""
    computations = tuple(
        attrs.evolve(computation, instructions=tuple(change(computation, instruction) for instruction in computation))
        for computation in module
    )
    return attrs.evolve(module, computations=computations, **changes)
