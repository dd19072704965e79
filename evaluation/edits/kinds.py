"""What is edited: a number in a module as JAX lowers it, or the layout of a bitcast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from random import Random
from typing import Any

import attrs
import numpy as np

from evaluation.faults.disguise import disguise
from evaluation.partitioned.faults import Fault, with_instruction
from evaluation.programs.lowering import lowered
from hloexec.core.ir import ArrayShape, Computation, Instruction, Layout, Literal, Module
from hloexec.core.values import Value
from hloexec.language.text.shapes import literal_text

_FACTORS = (10.0, 0.1, 1.001, 0.99, 2.0, -1.0)
_MOST_RANK = 4


@attrs.frozen(eq=False)
class Edit:
    """A pair of modules that differ by one edit."""

    name: str
    before: Module
    fault: Fault
    inputs_per_device: Sequence[Sequence[Value]]

    @property
    def words(self) -> tuple[str, ...]:
        """What a note about it, or the reason of a finding, holds: the name of the instruction, or its number."""
        instruction = self.fault.module.by_name[self.fault.computation].by_name[self.fault.instruction]
        name = f"%{instruction.name}"
        return (name, literal_text(instruction.attributes.literal)) if instruction.opcode == "constant" else (name,)


def edits(program: str, kind: str, count: int) -> Iterator[Edit]:
    """At most so many edits of a program; half of those of numbers are in disguise."""
    random = Random(f"{program} {kind}")
    found = lowered(program)
    for number in range(count):
        is_disguised = kind == "layout" or number % 2 == 1
        module = disguise(found.before, random.randrange(2**30)).module if is_disguised else found.before
        sites = list(KINDS[kind](module))
        if not sites:
            continue
        computation, instruction = random.choice(sites)
        changed = _changed(kind, module, computation, instruction, random)
        fault = Fault(kind, with_instruction(module, computation, changed), computation.name, instruction.name)
        name = f"{program}/{kind}{number}{' disguised' * is_disguised}"
        yield Edit(name, found.before, fault, found.inputs_per_device)


def _changed(
    kind: str, module: Module, computation: Computation, instruction: Instruction, random: Random
) -> Instruction:
    if kind == "layout":
        return attrs.evolve(instruction, shape=random.choice(_other_layouts(computation, instruction)))
    array = _number(instruction)
    assert array is not None
    other = np.asarray(array.astype(np.float64) * random.choice(_FACTORS)).astype(array.dtype)
    literal = Literal.from_array(other, instruction.shape)
    return attrs.evolve(instruction, attributes=attrs.evolve(instruction.attributes, literal=literal))


def _numbers(module: Module) -> Iterator[tuple[Computation, Instruction]]:
    """Finite scalars of floats other than zero that something uses, unless the factors would not change them."""
    for computation in module:
        for instruction in computation:
            array = _number(instruction)
            if array is not None and computation.users[instruction.name]:
                yield computation, instruction


def _number(instruction: Instruction) -> Any:
    if instruction.opcode != "constant" or not isinstance(instruction.shape, ArrayShape) or instruction.shape.rank:
        return None
    if not instruction.shape.element_type.is_inexact or instruction.shape.element_type.is_complex:
        return None
    array = np.asarray(instruction.attributes.literal.value)
    number = float(array)
    # In bf16, a thousandth more is the same number.
    return array if number and np.isfinite(number) and array.dtype.itemsize > 2 else None


def _layouts(module: Module) -> Iterator[tuple[Computation, Instruction]]:
    """Bitcasts whose result may lie in memory in another way, which is another array."""
    for computation in module:
        for instruction in computation:
            if instruction.opcode == "bitcast" and _other_layouts(computation, instruction):
                yield computation, instruction


def _other_layouts(computation: Computation, instruction: Instruction) -> list[ArrayShape]:
    shape = instruction.shape
    if not isinstance(shape, ArrayShape) or shape.layout is None or not 2 <= shape.rank <= _MOST_RANK:
        return []
    operand = computation.by_name[instruction.operands[0]].shape
    if not isinstance(operand, ArrayShape) or operand.layout is None:
        return []

    def order(layout: Sequence[int]) -> list[int]:
        """The dimensions that have more than one element, as they lie."""
        return [axis for axis in layout if shape.dimensions[axis] > 1]

    own = order(shape.layout.minor_to_major)
    others = [each for each in permutations(range(shape.rank)) if order(each) != own]
    return [attrs.evolve(shape, layout=Layout(each)) for each in others]


KINDS = {"constant": _numbers, "layout": _layouts}
