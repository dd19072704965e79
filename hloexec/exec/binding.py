"""Binding kernels: what a kernel is given besides its operands, and what becomes of a result of another width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from hloexec.custom_calls.registry import CustomCall
from hloexec.dtypes import ElementType
from hloexec.exec.callee import PlanCallee
from hloexec.exec.in_place import InPlace
from hloexec.exec.plan import HostTransfer, Options, Plan, Step
from hloexec.exec.requirements import Program
from hloexec.exec.widths import AsDeclared, Conversion, float_types
from hloexec.ir import ArrayShape, BufferShape, Computation, Instruction
from hloexec.ops.attributes import computation_names
from hloexec.ops.flushing import Flushing, flushes
from hloexec.ops.registry import Opcode

__all__ = ["Surroundings", "bound", "bound_kernel", "may_overwrite"]


class Surroundings(Protocol):
    """What the building of one plan needs from outside."""

    program: Program
    options: Options
    plans: dict[str, Plan]
    """The plans that are finished, by the names of their computations; callees come before their callers."""
    host_transfers: dict[HostTransfer, Step]
    """The first step of each kind of transfer with the host."""
    communication: list[Step]
    """The steps that have to do with other devices or the host."""

    def plan_as(
        self, name: str, parameters: tuple[ElementType | None, ...], results: tuple[ElementType | None, ...]
    ) -> Plan:
        """The plan of a computation for callers with these float types (None: no float)."""

    def callee(self, name: str) -> PlanCallee:
        """A planned computation as kernels see it."""

    def library_call(self, target: str) -> CustomCall | None:
        """The entry of a custom-call target."""

    def elided(self, instruction: Instruction, shape: ArrayShape | BufferShape) -> Any:
        """The value of a leaf of an elided constant."""

    def unknown_result(self, instruction: Instruction, shape: ArrayShape | BufferShape) -> Any:
        """A leaf of the result of a custom call without an implementation."""


_GIVEN: dict[str, Callable[[Surroundings, Computation, Instruction], Any]] = {
    "attributes": lambda around, computation, instruction: instruction.attributes,
    "shape": lambda around, computation, instruction: instruction.shape,
    "operand_shapes": lambda around, computation, instruction: tuple(
        operand.shape for operand in computation.operands_of(instruction)
    ),
    "computations": lambda around, computation, instruction: tuple(
        map(around.callee, computation_names(instruction.attributes))
    ),
    "numerics": lambda around, computation, instruction: around.options.numerics,
    "backend_config": lambda around, computation, instruction: instruction.backend_config,
}
"""What kernels may ask for by the names of their keyword-only parameters."""


def bound(
    around: Surroundings,
    computation: Computation,
    instruction: Instruction,
    evaluate: Callable[..., Any],
    needs: frozenset[str],
) -> Callable[..., Any]:
    """A kernel with the keyword arguments that it declares."""
    if not needs:
        return evaluate
    return partial(evaluate, **{need: _GIVEN[need](around, computation, instruction) for need in needs})


def may_overwrite(around: Surroundings) -> bool:
    """Whether kernels may overwrite operands that nobody else holds; what observers have seen must stay as it was."""
    return around.options.is_planned and not around.options.is_observed


def bound_kernel(
    around: Surroundings,
    computation: Computation,
    instruction: Instruction,
    entry: Opcode,
    operands: Sequence[ArrayShape | BufferShape],
) -> Callable[..., Any]:
    """The kernel of an instruction whose operands' leaves are `operands`.

    Elementwise kernels round to the declared type by themselves. Others may give the float width of an operand or of a
    called computation, so that the result is converted where widths differ.
    """
    assert entry.evaluate is not None
    is_decided = _is_decided(around, computation, instruction, entry, operands)
    function = _specialised(entry.bind, computation, instruction) if is_decided else None
    if function is None:
        function = bound(around, computation, instruction, entry.evaluate, entry.evaluate_needs)
    if around.options.numerics.flushes_denormals:
        found = [shape.element_type for shape in (*operands, instruction.shape) if isinstance(shape, ArrayShape)]
        if flushes(entry.name, frozenset(found)):
            function = Flushing(function)
    if entry.is_elementwise:
        return function
    types = float_types(instruction.shape)
    met = list(operands)
    for name in computation_names(instruction.attributes):
        plan = around.plans[name]
        met += plan.slot_shapes[: plan.parameter_count]
        met += [plan.slot_shapes[slot] for slot in plan.results]
    floats = {found for shape in met for found in float_types(shape)} | set(types)
    if len(floats - {None}) > 1:
        return AsDeclared(function, Conversion(types))
    if entry.overwrite is None or not may_overwrite(around):
        return function
    overwrite = _specialised(entry.bind_overwrite, computation, instruction) if is_decided else None
    if overwrite is None:
        overwrite = bound(around, computation, instruction, entry.overwrite, entry.evaluate_needs)
    return InPlace(function, overwrite)


def _specialised(
    bind: Callable[..., Callable[..., Any] | None] | None, computation: Computation, instruction: Instruction
) -> Callable[..., Any] | None:
    """The kernel with everything decided that element types, shapes and policy decide; None where there is no such."""
    if bind is None:
        return None
    shapes = tuple(operand.shape for operand in computation.operands_of(instruction))
    return bind(attributes=instruction.attributes, shape=instruction.shape, operand_shapes=shapes)


def _is_decided(
    around: Surroundings,
    computation: Computation,
    instruction: Instruction,
    entry: Opcode,
    operands: Sequence[ArrayShape | BufferShape],
) -> bool:
    """Whether element types, shapes and policy decide how an instruction is computed.

    They do not where extents are dynamic, where an operand is not of the type that it is declared to have, and under
    policies that have formulas of their own.
    """
    numerics = around.options.numerics
    if entry.bind is None or numerics.is_exact or numerics.has_xla_cpu_functions:
        return False
    if not entry.is_elementwise and numerics.contraction_operand_mantissa_bits is not None:
        return False
    declared = tuple(operand.shape for operand in computation.operands_of(instruction))
    for shape, given in zip((*declared, instruction.shape), (*operands, instruction.shape), strict=True):
        if (
            not isinstance(shape, ArrayShape)
            or not isinstance(given, ArrayShape)
            or shape.element_type is not given.element_type
            or shape.dynamic_dimensions
            or given.dynamic_dimensions
        ):
            return False
    return True
