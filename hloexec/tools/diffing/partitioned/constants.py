"""Constants where they are used. Places of one source line belong together: a loop that is unrolled has each step's.

They are changed there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Instruction, Literal, Module
from hloexec.core.ir.editing import replace_computation, take_name
from hloexec.language.origins import source_text
from hloexec.ops.control.flow import make_constant
from hloexec.ops.registry import Role, role_of
from hloexec.tools.diffing.limits import LIMITS

Use: TypeAlias = tuple[str, str, int]
"""A computation, an instruction of it, and the place of an operand."""
_Entry = TypeVar("_Entry")


def with_constants(module: Module, constants: Mapping[Use, Literal]) -> Module:
    """The module with other constants in some places."""
    for (computation_name, user, place), literal in constants.items():
        computation = module.by_name[computation_name]
        constant = make_constant(take_name(f"{user}.number", {*computation.by_name}), literal)
        instructions: list[Instruction] = []
        for instruction in computation:
            if instruction.name == user:
                operands = list(instruction.operands)
                operands[place] = constant.name
                instructions += [constant, attrs.evolve(instruction, operands=tuple(operands))]
            else:
                instructions.append(instruction)
        module = replace_computation(module, attrs.evolve(computation, instructions=tuple(instructions)))
    return module


def by_source(module: Module, uses: Mapping[Use, _Entry]) -> Iterator[list[tuple[Use, _Entry]]]:
    """Uses of a module with what they stand for, those of one source line together."""
    groups: dict[str, list[tuple[Use, _Entry]]] = {}
    for use, entry in uses.items():
        groups.setdefault(_line(module, use), []).append((use, entry))
    yield from groups.values()


def _line(module: Module, use: Use) -> str:
    instruction = module.by_name[use[0]].by_name[use[1]]
    return source_text(module, instruction) or instruction.name


def integers_right_by_one(module: Module, is_right: Callable[[Module], bool]) -> list[tuple[Use, int]]:
    """The integers that make a module right if they are one more or one less, in all places of one source line where
    they are the same number; with what each should be. A few are tried; of one line, the first is told."""
    right: dict[str, tuple[Use, int]] = {}
    tries = 0
    for (use, number), *twins in _equal_integers(module):
        for other in (number - 1, number + 1):
            tries += 1
            if tries <= LIMITS.other_exchanges:
                changed = {place: _as_literal(other, module, place) for place in (use, *(twin for twin, _ in twins))}
                if is_right(with_constants(module, changed)):
                    right.setdefault(_line(module, use), (use, other))
    return [*right.values()]


def _equal_integers(module: Module) -> Iterator[list[tuple[Use, int]]]:
    uses: dict[Use, int] = {}
    for computation in module:
        for instruction in computation:
            for place, operand in enumerate(computation.operands_of(instruction)):
                number = _integer(operand)
                if number is not None and role_of(instruction) is Role.KERNEL:
                    uses[computation.name, instruction.name, place] = number
    for group in by_source(module, uses):
        numbers = dict.fromkeys(number for _, number in group)
        yield from ([entry for entry in group if entry[1] == number] for number in numbers)


def _integer(instruction: Instruction) -> int | None:
    """The integer that a constant is."""
    shape = instruction.shape
    if role_of(instruction) is not Role.CONSTANT or not isinstance(shape, ArrayShape) or shape.rank:
        return None
    array = instruction.attributes.literal.array
    return int(array) if shape.element_type.is_integral and array is not None else None


def _as_literal(number: int, module: Module, use: Use) -> Literal:
    computation = module.by_name[use[0]]
    shape = computation.operands_of(computation.by_name[use[1]])[use[2]].shape
    assert isinstance(shape, ArrayShape)
    return Literal.from_array(np.array(number).astype(shape.element_type.storage), shape)
