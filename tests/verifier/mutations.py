"""Changes to the IR of a module, at random or one after the other: what a program that builds modules may get wrong."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from hloexec.core import ir
from hloexec.core.dtypes import ELEMENT_TYPES

_ELEMENT_TYPES = tuple(ELEMENT_TYPES.values())
_SIZES = (0, 1, 2, 3, 4, 8, -1, -5, 10**12)
_NUMBERS = (-1, 0, 1, 2, 7, 10**15, -(10**15))
_F32 = ELEMENT_TYPES["f32"]
_SHAPES = (
    ir.ArrayShape(_F32, ()),
    ir.ArrayShape(_F32, (2, 3, 1, 0)),
    ir.ArrayShape(ELEMENT_TYPES["token"], ()),
    ir.TupleShape((ir.ArrayShape(ELEMENT_TYPES["pred"], (3,)),)),
)


def changed_instructions(module: ir.Module, computation: ir.Computation, name: str) -> Iterator[ir.Module]:
    """The module with one thing about an instruction changed: its shape, its attributes, or an operand."""

    def with_change(changed: str, **changes: Any) -> ir.Module:
        instructions = [attrs.evolve(each, **changes) if each.name == changed else each for each in computation]
        home = attrs.evolve(computation, instructions=tuple(instructions))
        return attrs.evolve(module, computations=tuple(home if each is computation else each for each in module))

    instruction = computation.by_name[name]
    operands, attributes = instruction.operands, instruction.attributes
    for changed in (name, *operands):
        yield from (with_change(changed, shape=shape) for shape in _SHAPES)
    fewer = [operands[:place] + operands[place + 1 :] for place in range(len(operands))]
    for others in ((), (*operands, *operands[:1]), ("nobody",) * len(operands), *fewer):
        yield with_change(name, operands=others)
    yield with_change(name, attributes=None)
    for field in attrs.fields(type(attributes)) if attributes is not None else ():
        for value in _others(getattr(attributes, field.name), is_optional="None" in str(field.type)):
            yield with_change(name, attributes=attrs.evolve(attributes, **{field.alias: value}))


def _others(value: Any, is_optional: bool) -> Iterator[Any]:
    """Other values of an attribute, of its type."""
    if is_optional:
        yield None
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (-1, 7)
    elif isinstance(value, str):
        yield "nobody"
    elif isinstance(value, tuple):
        yield from ((), (*value, *value[:1]))
        if value and type(value[0]) is int:
            yield tuple(number + 9 for number in value)


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
