"""Random changes to the IR of a module: what a program that builds modules may get wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import attrs

from hloexec import ir
from hloexec.dtypes import ELEMENT_TYPES

__all__ = ["Mutator"]

_ELEMENT_TYPES = tuple(ELEMENT_TYPES.values())
_SIZES = (0, 1, 2, 3, 4, 8, -1, -5, 10**12)
_NUMBERS = (-1, 0, 1, 2, 7, 10**15, -(10**15))


class Mutator:
    """Draws from its generator only, so one seed gives the same modules always."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def module(self, modules: Sequence[ir.Module]) -> ir.Module:
        """One of the modules with one or two instructions changed."""
        choose = self._random
        module = choose.choice(modules)
        computations = list(module.computations)
        number = choose.randrange(len(computations))
        instructions = list(computations[number].instructions)
        for _ in range(choose.choice((1, 1, 2))):
            position = choose.randrange(len(instructions))
            instructions[position] = self._instruction(instructions[position], instructions)
        computation = attrs.evolve(computations[number], instructions=tuple(instructions))
        if choose.random() < 0.05:
            computation = attrs.evolve(computation, root_name=choose.choice(("nobody", instructions[0].name)))
        computations[number] = computation
        entry_name = module.entry_name if choose.random() < 0.98 else choose.choice(("nobody", computations[0].name))
        return attrs.evolve(module, computations=tuple(computations), entry_name=entry_name)

    def _instruction(self, instruction: ir.Instruction, others: Sequence[ir.Instruction]) -> ir.Instruction:
        kind = self._random.random()
        if kind < 0.35:
            return attrs.evolve(instruction, shape=self._shape())
        if kind < 0.55 and instruction.operands:
            return attrs.evolve(instruction, operands=self._operands(instruction.operands, others))
        if kind < 0.58:
            return attrs.evolve(instruction, name=self._random.choice(others).name)
        if kind < 0.6:
            return attrs.evolve(instruction, attributes=None)
        if kind < 0.62:
            return attrs.evolve(instruction, opcode=self._random.choice(others).opcode)
        if kind < 0.65:
            return attrs.evolve(instruction, control_predecessors=(self._random.choice(others).name,))
        if instruction.attributes is not None:
            return attrs.evolve(instruction, attributes=self._changed(instruction.attributes))
        return instruction

    def _operands(self, operands: tuple[str, ...], others: Sequence[ir.Instruction]) -> tuple[str, ...]:
        kind = self._random.random()
        if kind < 0.6:
            found = list(operands)
            found[self._random.randrange(len(found))] = self._random.choice(others).name
            return tuple(found)
        return operands[:-1] if kind < 0.8 else (*operands, self._random.choice(operands))

    def _shape(self, depth: int = 0) -> ir.Shape:
        choose = self._random
        kind = choose.random()
        if kind < 0.12 and depth < 2:
            return ir.TupleShape(tuple(self._shape(depth + 1) for _ in range(choose.randrange(4))))
        if kind < 0.16:
            return ir.BufferShape(ir.ArrayShape(ELEMENT_TYPES["f32"], (2,)))
        sizes = tuple(choose.choice(_SIZES) for _ in range(choose.randrange(5)))
        flags = tuple(choose.random() < 0.5 for _ in sizes) if choose.random() < 0.2 else ()
        return ir.ArrayShape(choose.choice(_ELEMENT_TYPES), sizes, dynamic_dimensions=flags)

    def _changed(self, item: Any) -> Any:
        """An attrs object with one of its fields changed."""
        fields = attrs.fields(type(item))
        if not fields:
            return item
        field = self._random.choice(fields)
        return attrs.evolve(item, **{field.alias: self._value(getattr(item, field.name))})

    def _value(self, value: Any) -> Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return self._random.choice(_NUMBERS)
        if isinstance(value, tuple):
            return self._tuple(value)
        if isinstance(value, (ir.ArrayShape, ir.TupleShape)):
            return self._shape()
        if attrs.has(type(value)) and not isinstance(value, ir.Literal):
            return self._changed(value)
        return value

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        kind = self._random.random()
        if kind < 0.3:
            return value[:-1]
        if kind < 0.6 and value:
            return (*value, value[0])
        if value and isinstance(value[0], (int, tuple)):
            return tuple(map(self._value, value))
        if value and attrs.has(type(value[0])):
            return tuple(map(self._value, value))
        return ()
