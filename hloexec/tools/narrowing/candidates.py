"""Which instructions can be narrowed, and what they cost.

Contractions and elementwise operations on floats can. Everything else keeps its type: sums would accumulate in it,
collectives and library calls state theirs elsewhere, and what moves elements follows its operands anyway.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from hloexec.analysis.calls import applied_computations, entered_computations
from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.ops.attributes import computation_names
from hloexec.ops.costs import contraction_of
from hloexec.ops.registry import Entry, Role, find_opcode
from hloexec.ops.relations import Place
from hloexec.ops.traits import Rounding

CONTRACTION = "contraction"
ELEMENTWISE = "elementwise"
KINDS = (CONTRACTION, ELEMENTWISE)

_ROUNDS_PLAINLY = (Rounding.NONE, Rounding.ONCE, Rounding.FUNCTION)
_NUMBER = re.compile(r"\d+")


@frozen(eq=False)
class Candidate:
    """An instruction that could compute in a narrower type."""

    computation: Computation
    instruction: Instruction
    kind: str
    """`CONTRACTION` or `ELEMENTWISE`."""
    element_type: ElementType
    """Of its operands that are floats."""
    flops: int
    """Of one run: two per product of a contraction, one per element of an elementwise operation."""
    narrowed_bytes: int
    """Of one run, in its own type: what it reads and writes that is narrowed. The result of a contraction is not."""
    other_bytes: int
    """What else it reads and writes."""

    @property
    def place(self) -> Place:
        return self.computation.name, self.instruction.name

    def can_be(self, narrow: ElementType) -> bool:
        return narrow.bits < self.element_type.bits

    @property
    def likeness(self) -> tuple[Any, ...]:
        """Equal for instructions that do the same, as in layers of one network."""
        operands = self.computation.operands_of(self.instruction)
        name = _NUMBER.sub("", self.instruction.op_name or "")
        shapes = tuple(str(operand.shape) for operand in operands)
        return self.instruction.opcode, str(self.instruction.shape), shapes, repr(self.instruction.attributes), name


def candidates_of(module: Module, kinds: Collection[str] = KINDS) -> list[Candidate]:
    """The instructions of these kinds that can be narrowed, in the order of the text."""
    found = []
    for computation in _program(module):
        for instruction in computation:
            candidate = _candidate(computation, instruction)
            if candidate is not None and candidate.kind in kinds:
                found.append(candidate)
    return found


def static_array(instruction: Instruction) -> ArrayShape | None:
    """The shape of an array of known size; None for tuples and others."""
    shape = instruction.shape
    return shape if isinstance(shape, ArrayShape) and shape.is_array and not shape.is_dynamic else None


def _is_float(shape: ArrayShape) -> bool:
    return shape.element_type.is_floating


def _program(module: Module) -> list[Computation]:
    """The computations that are the program, and no part of an instruction such as a reduction as well."""
    entered = entered_computations(module)
    inner = {name for computation in entered for each in computation for name in applied_computations(each)}
    names = {computation.name for computation in entered} - inner
    return [computation for computation in module if computation.name in names]


def _candidate(computation: Computation, instruction: Instruction) -> Candidate | None:
    entry = find_opcode(instruction.opcode)
    shape = static_array(instruction)
    if entry is None or shape is None or not _is_float(shape) or not _is_plain(entry, instruction):
        return None
    operands = [static_array(operand) for operand in computation.operands_of(instruction)]
    given = [operand for operand in operands if operand is not None]
    if len(given) < len(operands) or not given:
        return None
    traits = entry.traits
    cost = contraction_of(instruction, given) if traits.contraction is not None else None
    if cost is not None:
        types = {operand.element_type for operand in given if not _is_exact_kind(operand)}
        kind, flops, result_bytes = CONTRACTION, cost.flops, 0
    elif entry.is_elementwise and entry.rounding in _ROUNDS_PLAINLY and not traits.converts:
        types = {operand.element_type for operand in given if not _is_exact_kind(operand)} | {shape.element_type}
        kind, flops, result_bytes = ELEMENTWISE, shape.element_count, shape.byte_size
    else:
        return None
    if len(types) > 1 or not all(element_type.is_floating for element_type in types):
        return None
    narrowed = result_bytes + sum(operand.byte_size for operand in _narrowed(kind, given))
    total = shape.byte_size + sum(operand.byte_size for operand in given)
    return Candidate(computation, instruction, kind, types.pop(), flops, narrowed, total - narrowed)


def _is_plain(entry: Entry, instruction: Instruction) -> bool:
    return entry.role is Role.KERNEL and entry.is_pure and not any(computation_names(instruction.attributes))


def _is_exact_kind(shape: ArrayShape) -> bool:
    """Whether elements are integers or booleans, which stay as they are."""
    return not shape.element_type.is_inexact


def _narrowed(kind: str, operands: Sequence[ArrayShape]) -> list[ArrayShape]:
    return list(operands[:2]) if kind == CONTRACTION else [operand for operand in operands if _is_float(operand)]
