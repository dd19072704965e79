"""Kernels of instructions with other element types, and what the steps of a sum absorb.

Kernels of instructions with other element types: the same attributes, the same formulas, wider floats.

A shadow is computed by the kernel of the instruction's own entry, for f64 in place of every float and c128 in place of
every complex type. Where elements only move, the kernel moves differences in whichever type they are kept.

What is absorbed within one instruction: in the steps of a sum that is rounded after each, as a scatter's.

The instruction is computed once more, with its combiner watched: of each step, what it is given and what it gives is
compared with what it would give exactly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module, Shape, change_arrays
from hloexec.core.ir.literal import map_literal
from hloexec.core.process import remembered
from hloexec.core.structs import define, frozen
from hloexec.core.tree import flat
from hloexec.core.values import Array
from hloexec.engine.options import DEFAULTS
from hloexec.engine.plan.callee import PlanCallee
from hloexec.engine.plan.planner import build
from hloexec.engine.plan.schedule import callees_first
from hloexec.errors import HloError
from hloexec.ops.common import is_inexact
from hloexec.ops.policies.policy import POLICIES, REFERENCE, NumericsPolicy
from hloexec.ops.reduction.reducers import UFUNCS, recognise_components, unrecognised
from hloexec.ops.registry import CUSTOM_CALLS, Callee, Kernel, Role, Site, entry_of, find_opcode
from hloexec.ops.traits import Rounding
from hloexec.tools.shadowing.places import absorbed
from hloexec.tools.shadowing.store import wide


@frozen
class Floats:
    """The types that take the place of floats and of complex numbers."""

    real: ElementType | None
    complex_: ElementType | None

    def of(self, entry: ElementType) -> ElementType:
        wide_type = self.real if entry.is_floating else self.complex_ if entry.is_complex else None
        return wide_type or entry


WIDE = Floats(ELEMENT_TYPES["f64"], ELEMENT_TYPES["c128"])
NARROW = Floats(ELEMENT_TYPES["f32"], ELEMENT_TYPES["c64"])
PREDS = Floats(ELEMENT_TYPES["pred"], ELEMENT_TYPES["pred"])
SAME = Floats(None, None)
"""Those that a module has."""


def retyped(shape: Shape, floats: Floats) -> Shape:
    """A shape with other floats."""
    return change_arrays(shape, lambda leaf: leaf.with_element_type(floats.of(leaf.element_type)))


class Kernels:
    """The kernels of a module's instructions for other floats; each is bound once."""

    def __init__(self, module: Module) -> None:
        self._module = weakref.ref(module)
        self._callees: dict[tuple[str, Floats], Callee] = {}
        self._bound: dict[tuple[str, str, Floats, int], Kernel | None] = {}

    def bound(self, computation: Computation, instruction: Instruction, floats: Floats) -> Kernel | None:
        """The kernel of an instruction; None where it has none, or none that takes such floats."""
        # Users may give a library call another entry.
        key = computation.name, instruction.name, floats, id(entry_of(instruction))
        if key not in self._bound:
            self._bound[key] = self._found(computation, instruction, floats)
        return self._bound[key]

    def _found(self, computation: Computation, instruction: Instruction, floats: Floats) -> Kernel | None:
        entry = entry_of(instruction)
        if entry is None or not entry.is_pure:
            return None
        try:
            return self._site(computation, instruction, floats).kernel()
        except HloError:
            return None

    def exact(self, computation: Computation, instruction: Instruction) -> Kernel:
        """The kernel of an instruction that has one for f64, under the `exact` policy: within half an ULP of f64."""
        kernel = self._site(computation, instruction, WIDE, POLICIES["exact"]).kernel()
        assert kernel is not None
        return kernel

    def order(
        self, computation: Computation, instruction: Instruction, floats: Floats
    ) -> Callable[..., tuple[int, Array]]:
        """The rule by which an instruction sorts its operands."""
        site = self._site(computation, instruction, SAME, callees=floats)
        assert site.entry.order is not None
        return site.bound(site.entry.order)

    def _site(
        self,
        computation: Computation,
        instruction: Instruction,
        floats: Floats,
        numerics: NumericsPolicy = REFERENCE,
        callees: Floats | None = None,
        watch: Callable[[str], Callee] | None = None,
    ) -> Site:
        """An instruction with other floats; `watch` gives the called computations, where they are not as they are."""
        entry, wide = entry_of(instruction), widened_instruction(instruction, floats)
        assert entry is not None
        if entry.wider is not None and floats is not SAME:
            entry = CUSTOM_CALLS[entry.wider]
            wide = attrs.evolve(wide, attributes=attrs.evolve(wide.attributes, custom_call_target=entry.name))
        shapes = tuple([retyped(operand.shape, floats) for operand in computation.operands_of(instruction)])
        return Site(entry, wide, shapes, watch or partial(self.callee, floats=callees or floats), numerics)

    def calling(
        self, computation: Computation, instruction: Instruction, watch: Callable[[str], Callee]
    ) -> Kernel | None:
        """The kernel of an instruction that calls computations as they are given by name; None where it has none."""
        entry = find_opcode(instruction.opcode)
        if entry is None or entry.evaluate is None or entry.role is not Role.KERNEL:
            return None
        return self._site(computation, instruction, SAME, watch=watch).bound(entry.evaluate)

    def exchange(self, computation: Computation, instruction: Instruction) -> Kernel:
        """The kernel of a collective, from what its members hold to what they get."""
        site = self._site(computation, instruction, WIDE)
        assert site.entry.exchange is not None
        return site.bound(site.entry.exchange)

    def callee(self, name: str, floats: Floats) -> Callee:
        """A called computation in which everything is widened."""
        key = name, floats
        if key not in self._callees:
            whole = self._module()
            assert whole is not None
            called = callees_first(whole, whole.by_name[name])
            computations = tuple(_widened_computation(computation, floats) for computation in called)
            module = Module(name="widened", computations=computations, entry_name=name)
            self._callees[key] = PlanCallee(build(module, module.entry, DEFAULTS))
        return self._callees[key]


@remembered
def kernels_of(module: Module) -> Kernels:
    """The kernels of a module, which are bound once for all runs of it."""
    return Kernels(module)


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
        attributes = attrs.evolve(attributes, literal=map_literal(attributes.literal, partial(_widened, floats=floats)))
    elif entry is not None and entry.rounding is Rounding.FORMAT:
        attributes = attrs.evolve(attributes, exponent_bits=11, mantissa_bits=52)
    elif getattr(attributes, "algorithm", "unset") != "unset":
        attributes = attrs.evolve(attributes, algorithm="unset")
    return attrs.evolve(instruction, shape=retyped(instruction.shape, floats), attributes=attributes, span=None)


def _widened(literal: Literal, floats: Floats) -> Literal:
    shape = retyped(literal.shape, floats)
    array = literal.array
    if array is None or not isinstance(shape, ArrayShape):
        return Literal(shape, array)
    with np.errstate(all="ignore"):
        return Literal.from_array(np.asarray(array.astype(shape.element_type.storage), order="C"), shape)


_MOST_STEPS = 4096
"""After so many the rest is taken to be like them."""


@define(eq=False)
class Steps:
    """What the steps of an instruction did to one leaf of floats of its result."""

    absorbed: int = 0
    """How many numbers, of those that were combined, changed nothing or lost half of their digits."""
    error_of_absorbed: float = 0.0
    """The sum of the absolute errors of these steps."""
    error: float = 0.0
    """The same of all steps."""

    @property
    def share(self) -> float:
        return self.error_of_absorbed / self.error if self.error > 0 else 0.0


class _EnoughError(Exception):
    """Raised after the last step that is watched."""


def steps_of(
    kernels: Kernels, computation: Computation, instruction: Instruction, operands: Sequence[Any]
) -> list[Steps]:
    """What the steps did to each leaf of floats of an instruction's result; empty if it takes none of its own: if it
    calls no combiner, or rounds what that gives once only."""
    watched: list[_Watched] = []

    def watch(name: str) -> Callee:
        callee = kernels.callee(name, SAME)
        watched_callee = _Watched(
            callee, kernels.callee(name, WIDE), is_stepwise=_is_stepwise(computation, instruction, callee)
        )
        watched.append(watched_callee)
        return watched_callee

    kernel = kernels.calling(computation, instruction, watch)
    if kernel is None or not watched:
        return []
    try:
        with np.errstate(all="ignore"):
            kernel(*operands)
    except _EnoughError:
        pass
    return watched[-1].leaves


def _is_stepwise(computation: Computation, instruction: Instruction, callee: Callee) -> bool:
    """Whether what an opcode adds up, with a combiner that it knows, is rounded after each step."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.summed is None:
        return False
    shapes = tuple(operand.shape for operand in computation.operands_of(instruction))
    if not all(isinstance(shape, ArrayShape) for shape in shapes):
        return False
    summation = entry.summed(
        attributes=instruction.attributes, shape=instruction.shape, operand_shapes=shapes, computations=(callee,)
    )
    return summation is not None and summation.is_stepwise


class _Watched:
    """A called computation of which each call is compared with what it would give exactly."""

    def __init__(self, callee: Callee, exact: Callee, *, is_stepwise: bool) -> None:
        self._callee = callee
        self._exact = exact
        self._names = recognise_components(callee.computation)
        self.computation = unrecognised(callee.computation) if is_stepwise else callee.computation
        self.leaves: list[Steps] = []
        self._calls = 0

    def __call__(self, *arguments: Any) -> Any:
        if self._calls == _MOST_STEPS:
            raise _EnoughError
        self._calls += 1
        result = self._callee(*arguments)
        results, exact = flat(result), flat(self._exact(*map(wide, arguments)))
        floats = [number for number, value in enumerate(results) if is_inexact(value)]
        self.leaves = self.leaves or [Steps() for _ in floats]
        for steps, number in zip(self.leaves, floats, strict=True):
            terms = list(map(wide, arguments[number :: len(results)]))
            self._note(steps, results[number], exact[number], terms, number)
        return result

    def _note(self, steps: Steps, value: Array, exact: Array, terms: Sequence[Array], number: int) -> None:
        ours = wide(value)
        added = np.where(np.isfinite(ours) & np.isfinite(exact), ours - exact, 0.0)
        sizes = np.abs(added)
        is_sum = self._names is not None and UFUNCS.get(self._names[number]) is np.add
        mask = absorbed(ours, terms, added, element_type_of(value.dtype), is_sum=is_sum)
        steps.error += float(sizes.sum())
        if mask is not None:
            steps.absorbed += int(np.count_nonzero(mask))
            steps.error_of_absorbed += float(sizes[mask].sum())
