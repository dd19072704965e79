"""Steps of a plan in f64 that round as those of the original do, where they are told to.

The result of a step is rounded to the original's type. What sums numbers up gets, besides, what its own kernel adds to
the error where it takes the same operands, rounded to their types. Or its operands are rounded, and nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import Computation, Instruction, Module, Shape, flat_shapes
from hloexec.core.values import Array, mapped
from hloexec.engine.plan.steps import Exchange, Plan, Step, inner_plans
from hloexec.ops.common import narrow
from hloexec.ops.registry import Role, find_opcode
from hloexec.ops.relations import Place as Static
from hloexec.ops.traits import Rounding
from hloexec.tools.shadowing.alone.widened import has_no_wide_form
from hloexec.tools.shadowing.computing.widening import SAME, WIDE, Kernels, kernels_of
from hloexec.tools.shadowing.store import wide

_STEPWISE = (Rounding.SUM, Rounding.UNKNOWN, Rounding.FORMAT)
Types = tuple[ElementType | None, ...]
"""Those of the floats that f64 is wider than, leaf by leaf; None for others."""


class Mode(enum.Enum):
    """What a step rounds."""

    NOTHING = enum.auto()
    RESULT = enum.auto()
    OPERANDS = enum.auto()


class Switch:
    """The function of a step in f64, which rounds what it is told to."""

    def __init__(
        self, kernels: Kernels, computation: Computation, instruction: Instruction, function: Callable[..., Any]
    ) -> None:
        self._kernels = kernels
        self._computation, self._instruction = computation, instruction
        self._function = function
        self.mode = Mode.NOTHING
        self.take: Callable[[Sequence[Array], Array], None] | None = None
        """Is given the operands and the result of each run."""

    def __call__(self, *operands: Any, **given: Any) -> Any:
        if self.mode is Mode.NOTHING and self.take is None:
            return self._function(*operands, **given)
        # Operands are still needed, so that the result cannot take the place of one.
        if self.mode is Mode.OPERANDS:
            operands = self._rounded_operands(operands)
        result = self._function(*operands)
        if self.mode is Mode.RESULT:
            result = _rounded(self._with_own_error(result, operands), self._types)
        if self.take is not None:
            self.take(operands, result)
        return result

    def exchanged(self, members: Mapping[int, Sequence[Array]]) -> dict[int, Any]:
        """The same for a collective. Members that get one array still do."""
        found: dict[int, Any] = self._function(members)
        if self.mode is not Mode.RESULT:
            return found
        known = {id(result): _rounded(result, self._types) for result in found.values()}
        return {member: known[id(result)] for member, result in found.items()}

    @cached_property
    def _types(self) -> Types:
        return _narrow_types(self._instruction.shape)

    @cached_property
    def _operand_types(self) -> Types:
        operands = self._computation.operands_of(self._instruction)
        return tuple(entry for operand in operands for entry in _narrow_types(operand.shape))

    @cached_property
    def _own(self) -> Callable[..., Any] | None:
        """The original's kernel, where it rounds in more than its result."""
        entry = find_opcode(self._instruction.opcode)
        adds_up = entry is not None and (entry.role is Role.CUSTOM_CALL or entry.rounding in _STEPWISE)
        return self._kernels.bound(self._computation, self._instruction, SAME) if adds_up else None

    def _rounded_operands(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(_rounded_leaf, operands, self._operand_types))

    def _with_own_error(self, result: Any, operands: Sequence[Any]) -> Any:
        """The result, and by how much the original's kernel differs from the exact one on operands of its types: by
        nothing where both are infinite."""
        if self._own is None or len(operands) != len(self._operand_types):
            return result
        given = [_narrowed(operand, entry) for operand, entry in zip(operands, self._operand_types, strict=True)]
        ours, exact = self._own(*given), self._function(*map(wide, given))
        return _combined(_changed, result, ours, exact)


def _changed(value: Any, ours: Any, exact: Any) -> Any:
    difference = wide(ours) - exact
    return np.where(ours == exact, value, value + difference)


def _combined(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """A function of the leaves of values that are alike."""
    if not isinstance(first, tuple):
        return function(first, *others)
    return tuple(_combined(function, *each) for each in zip(first, *others, strict=True))


def _rounded(value: Any, types: Types) -> Any:
    """A value in f64, its leaves rounded to types."""
    left = iter(types)
    return mapped(value, lambda leaf: _rounded_leaf(leaf, next(left)))


def _rounded_leaf(leaf: Any, entry: ElementType | None) -> Any:
    return leaf if entry is None else wide(_narrowed(leaf, entry))


def _narrowed(leaf: Any, entry: ElementType | None) -> Any:
    return leaf if entry is None else narrow(np.asarray(leaf), entry)


def _narrow_types(shape: Shape) -> Types:
    entries = [leaf.array_shape.element_type for leaf in flat_shapes(shape)]
    return tuple(entry if WIDE.of(entry) is not entry else None for entry in entries)


def switches_of(plan: Plan, module: Module, suffix: str, wanted: Collection[Static]) -> dict[Static, list[Switch]]:
    """Puts a switch into each step of a plan that computes one of these instructions of the original, as far as it
    rounds; by the names of its computation and its instruction there. `suffix` is what the names of the plan's
    computations have behind theirs."""
    found: dict[Static, list[Switch]] = {}
    kernels = kernels_of(module)
    for step in _steps(plan):
        home, name = step.scope.computation.name.removesuffix(suffix), step.instruction.name
        if (home, name) not in wanted:
            continue
        computation = module.by_name[home]
        instruction = computation.by_name[name]
        if not rounds(instruction):
            continue
        if isinstance(step.flow, Exchange):
            switch = Switch(kernels, computation, instruction, step.flow.function)
            step.flow = attrs.evolve(step.flow, function=switch.exchanged)
        elif step.kernel is not None and step.function is not None:
            switch = Switch(kernels, computation, instruction, step.function)
            step.kernel, step.function = attrs.evolve(step.kernel, function=switch), switch
        else:
            continue
        found.setdefault((home, name), []).append(switch)
    return found


def _steps(plan: Plan) -> list[Step]:
    """The steps of a plan and of those that it runs."""
    plans, steps = [plan], []
    seen = {id(plan)}
    for current in plans:
        for step in current.steps:
            steps.append(step)
            for inner in inner_plans(step.flow):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    plans.append(inner)
    return steps


def rounds(instruction: Instruction) -> bool:
    """Whether an instruction computes a float that f64 is wider than."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role in (Role.PARAMETER, Role.CONSTANT) or has_no_wide_form(instruction):
        return False
    return any(entry is not None for entry in _narrow_types(instruction.shape))
