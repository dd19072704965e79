"""Kernels of instructions with other element types: the same attributes, the same formulas, wider floats.

A shadow is computed by the kernel of the instruction's own entry, for f64 in place of every float and c128 in place of
every complex type. Where elements only move, the kernel moves differences in whichever type they are kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module, Shape, change_arrays
from hloexec.core.lifetimes import remembered
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.plan.callee import PlanCallee
from hloexec.engine.plan.lowering.binding import bound
from hloexec.engine.plan.pipeline import Options
from hloexec.engine.plan.planner import build
from hloexec.engine.plan.schedule import callees_first
from hloexec.engine.plan.steps import Plan
from hloexec.errors import HloError
from hloexec.ops.library_calls.registry import CUSTOM_CALLS, CustomCall, find_custom_call
from hloexec.ops.policies.policy import POLICIES, REFERENCE, NumericsPolicy
from hloexec.ops.registry import Callee, Opcode, Role, find_opcode
from hloexec.ops.rounding import Rounding


@frozen
class Floats:
    """The types that take the place of floats and of complex numbers."""

    real: ElementType | None
    complex_: ElementType | None

    def of(self, entry: ElementType) -> ElementType:
        found = self.real if entry.is_floating else self.complex_ if entry.is_complex else None
        return found or entry


WIDE = Floats(ELEMENT_TYPES["f64"], ELEMENT_TYPES["c128"])
NARROW = Floats(ELEMENT_TYPES["f32"], ELEMENT_TYPES["c64"])
PREDS = Floats(ELEMENT_TYPES["pred"], ELEMENT_TYPES["pred"])
SAME = Floats(None, None)
"""Those that a module has."""


def retyped(shape: Shape, floats: Floats) -> Shape:
    """A shape with other floats."""
    return change_arrays(shape, lambda leaf: leaf.with_element_type(floats.of(leaf.element_type)))


def library_entry(instruction: Instruction) -> CustomCall | None:
    """The entry of a library call; None for other instructions, and where there is none."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role is not Role.CUSTOM_CALL:
        return None
    return find_custom_call(instruction.attributes.custom_call_target)


@frozen(eq=False)
class _Context:
    """What kernels ask for when they are bound (`plan.lowering.binding.KernelContext`)."""

    kernels: Kernels
    floats: Floats
    numerics: NumericsPolicy = REFERENCE
    plans: dict[str, Plan] = attrs.field(factory=dict)

    watch: Callable[[str], Callee] | None = None
    """Gives the called computations, where they are not as they are."""

    def callee(self, name: str) -> Callee:
        return self.kernels.callee(name, self.floats) if self.watch is None else self.watch(name)


class Kernels:
    """The kernels of a module's instructions for other floats; each is bound once."""

    def __init__(self, module: Module) -> None:
        self._module = weakref.ref(module)
        self._callees: dict[tuple[str, Floats], Callee] = {}
        self._bound: dict[tuple[str, str, Floats, int], Callable[..., Any] | None] = {}

    def bound(self, computation: Computation, instruction: Instruction, floats: Floats) -> Callable[..., Any] | None:
        """The kernel of an instruction; None where it has none, or none that takes such floats."""
        # Users may give a library call another entry.
        key = computation.name, instruction.name, floats, id(library_entry(instruction))
        if key not in self._bound:
            self._bound[key] = self._found(computation, instruction, floats)
        return self._bound[key]

    def _found(self, computation: Computation, instruction: Instruction, floats: Floats) -> Callable[..., Any] | None:
        entry: Opcode | CustomCall | None = library_entry(instruction) or find_opcode(instruction.opcode)
        if entry is None or entry.evaluate is None or not entry.is_pure:
            return None
        try:
            return self._of_entry(computation, instruction, entry, floats)
        except HloError:
            return None

    def exact(self, computation: Computation, instruction: Instruction) -> Callable[..., Any]:
        """The kernel of an instruction that has one for f64, under the `exact` policy: within half an ULP of f64."""
        entry = library_entry(instruction) or find_opcode(instruction.opcode)
        assert entry is not None
        return self._of_entry(computation, instruction, entry, WIDE, POLICIES["exact"])

    def order(
        self, computation: Computation, instruction: Instruction, floats: Floats
    ) -> Callable[..., tuple[int, Array]]:
        """The rule by which an instruction sorts its operands."""
        entry = library_entry(instruction) or find_opcode(instruction.opcode)
        assert entry is not None and entry.order is not None
        given = bound(_Context(self, floats), computation, instruction, entry.order.needs)
        return partial(entry.order, **given)

    def _of_entry(
        self,
        computation: Computation,
        instruction: Instruction,
        entry: Opcode | CustomCall,
        floats: Floats,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Callable[..., Any]:
        wide = widened_instruction(instruction, floats)
        if isinstance(entry, CustomCall) and entry.wider is not None and floats is not SAME:
            entry = CUSTOM_CALLS[entry.wider]
            wide = attrs.evolve(wide, attributes=attrs.evolve(wide.attributes, custom_call_target=entry.target))
        operands = tuple(
            attrs.evolve(operand, shape=retyped(operand.shape, floats))
            for operand in computation.operands_of(instruction)
        )
        around = _around(computation, wide, operands)
        context = _Context(self, floats, numerics)
        if isinstance(entry, CustomCall):
            assert entry.evaluate is not None
            given = bound(context, around, wide, entry.evaluate_needs - {"config"})
            if entry.config is not None and "config" in entry.evaluate_needs:
                given["config"] = entry.config(wide)
            return partial(entry.evaluate, **given)
        if entry.bind is not None and numerics is REFERENCE and not _is_dynamic((wide, *operands)):
            found = entry.bind(**bound(context, around, wide, entry.bind.needs))
            if found is not None:
                return found
        assert entry.evaluate is not None
        return partial(entry.evaluate, **bound(context, around, wide, entry.evaluate_needs))

    def calling(
        self, computation: Computation, instruction: Instruction, watch: Callable[[str], Callee]
    ) -> Callable[..., Any] | None:
        """The kernel of an instruction that calls computations as they are given by name; None where it has none."""
        entry = find_opcode(instruction.opcode)
        if entry is None or entry.evaluate is None or entry.role is not Role.KERNEL:
            return None
        context = _Context(self, SAME, watch=watch)
        return partial(entry.evaluate, **bound(context, computation, instruction, entry.evaluate_needs))

    def exchange(self, computation: Computation, instruction: Instruction) -> Callable[..., Any]:
        """The kernel of a collective, from what its members hold to what they get."""
        entry = find_opcode(instruction.opcode)
        assert entry is not None and entry.exchange is not None
        wide = widened_instruction(instruction, WIDE)
        operands = [
            attrs.evolve(each, shape=retyped(each.shape, WIDE)) for each in computation.operands_of(instruction)
        ]
        around = _around(computation, wide, operands)
        return partial(entry.exchange, **bound(_Context(self, WIDE), around, wide, entry.exchange_needs))

    def callee(self, name: str, floats: Floats) -> Callee:
        """A called computation in which everything is widened."""
        key = name, floats
        if key not in self._callees:
            whole = self._module()
            assert whole is not None
            called = callees_first(whole, whole.by_name[name])
            computations = tuple(_widened_computation(each, floats) for each in called)
            module = Module(name="widened", computations=computations, entry_name=name)
            self._callees[key] = PlanCallee(build(module, module.entry, Options(REFERENCE)))
        return self._callees[key]


@remembered
def kernels_of(module: Module) -> Kernels:
    """The kernels of a module, which are bound once for all runs of it."""
    return Kernels(module)


def _around(computation: Computation, instruction: Instruction, operands: Sequence[Instruction]) -> Computation:
    """A computation that has an instruction and its operands, for what looks up shapes."""
    known = {operand.name: operand for operand in operands}
    return Computation(name=computation.name, instructions=(*known.values(), instruction), root_name=instruction.name)


def _is_dynamic(instructions: Sequence[Instruction]) -> bool:
    shapes = [instruction.shape for instruction in instructions]
    return any(not isinstance(shape, ArrayShape) or bool(shape.dynamic_dimensions) for shape in shapes)


def _widened_computation(computation: Computation, floats: Floats) -> Computation:
    instructions = tuple(widened_instruction(instruction, floats) for instruction in computation)
    return attrs.evolve(computation, instructions=instructions)


def widened_instruction(instruction: Instruction, floats: Floats) -> Instruction:
    """An instruction whose result and whose constant are of other types, and that rounds nothing else either; that with
    the floats that it has as it is."""
    if floats is SAME:
        return instruction
    attributes = instruction.attributes
    entry = find_opcode(instruction.opcode)
    if entry is not None and entry.role is Role.CONSTANT:
        attributes = attrs.evolve(attributes, literal=_widened_literal(attributes.literal, floats))
    elif entry is not None and entry.rounding is Rounding.FORMAT:
        attributes = attrs.evolve(attributes, exponent_bits=11, mantissa_bits=52)
    elif getattr(attributes, "algorithm", "unset") != "unset":
        attributes = attrs.evolve(attributes, algorithm="unset")
    return attrs.evolve(instruction, shape=retyped(instruction.shape, floats), attributes=attributes, span=None)


def _widened_literal(literal: Literal, floats: Floats) -> Literal:
    if isinstance(literal.value, tuple):
        return Literal(retyped(literal.shape, floats), tuple(_widened_literal(part, floats) for part in literal.value))
    shape = retyped(literal.shape, floats)
    if literal.value is None or not isinstance(shape, ArrayShape):
        return Literal(shape, literal.value)
    array: Array = literal.value
    with np.errstate(all="ignore"):
        return Literal.from_array(np.asarray(array.astype(shape.element_type.storage), order="C"), shape)
