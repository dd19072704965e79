"""Runs in f64 in which one instruction, or a group of them, rounds; and what that does to the outputs.

A module in f64 whose steps can be told to round as those of the original do.

Its parameters and constants are those of the original, converted. What has no form in f64 (random numbers, what reads
bits, library calls without a routine in 64 bits) runs as it is, on operands converted to their types.

Steps of a plan in f64 that round as those of the original do, where they are told to.

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
from hloexec.core.ir import (
    Computation,
    Instruction,
    Module,
    Shape,
    flat_shapes,
    leaf_shapes,
    part_at,
    subshapes,
)
from hloexec.core.ir.editing import take_name
from hloexec.core.ir.shape import elements_of
from hloexec.core.structs import frozen
from hloexec.core.tree import fold, leaves, mapped, rebuilt
from hloexec.core.values import Array, Inputs, Ints, Value
from hloexec.engine.exec.running import plan_of, repeated_run
from hloexec.engine.inputs import random_inputs
from hloexec.engine.options import Options
from hloexec.engine.plan.schedule import after_dependencies, callees_first
from hloexec.engine.plan.steps import Exchange, Plan, Step, inner_plans
from hloexec.ops.attributes import Grammar, attribute_fields, computation_names
from hloexec.ops.common import is_inexact, narrow
from hloexec.ops.control.flow import make_conversion, make_element, make_tuple
from hloexec.ops.policies.policy import REFERENCE
from hloexec.ops.registry import Kernel, Role, entry_of, find_opcode, traits_of
from hloexec.ops.relations import Place as Static
from hloexec.ops.traits import Rounding
from hloexec.tools.shadowing.computing.widening import SAME, WIDE, Kernels, kernels_of, retyped, widened_instruction
from hloexec.tools.shadowing.outputs import LeafError
from hloexec.tools.shadowing.places import summed_squares
from hloexec.tools.shadowing.store import wide

_SUFFIX = ".f64"


def widened_module(module: Module, entry: Computation) -> Module:
    """The module in f64. Instructions keep their names; those of computations get a suffix."""
    names, suffix = {computation.name for computation in module}, suffix_of(module)
    wide = [
        _Widening(computation, suffix, is_entry=computation is entry).widened()
        for computation in callees_first(module, entry)
    ]
    # Computations that something calls as they are.
    named = {
        name
        for computation in wide
        for instruction in computation
        for name in computation_names(instruction.attributes)
    }
    narrow = {
        instruction.name: instruction
        for name in named & names
        for instruction in callees_first(module, module.by_name[name])
    }
    return Module(
        name=module.name,
        computations=(*narrow.values(), *wide),
        entry_name=entry.name + suffix,
        replica_count=module.replica_count,
        num_partitions=module.num_partitions,
    )


def suffix_of(module: Module) -> str:
    """What is added to the names of computations in f64: usually `.f64`."""
    names, suffix = {computation.name for computation in module}, _SUFFIX
    while any(name + suffix in names for name in names):
        suffix += _SUFFIX
    return suffix


def has_no_wide_form(instruction: Instruction) -> bool:
    """Whether an instruction runs as it is."""
    entry = entry_of(instruction)
    if entry is None:
        return True
    if entry.role in (Role.CUSTOM_CALL, Role.LIBRARY):
        return entry.evaluate is None or not entry.is_pure
    is_random = entry.role is Role.KERNEL and not entry.is_pure
    return is_random or traits_of(instruction).reads_bits or entry.role is Role.COPY_START


class _Widening:
    """One computation, instruction by instruction."""

    def __init__(self, computation: Computation, suffix: str, *, is_entry: bool) -> None:
        self._computation = computation
        self._suffix = suffix
        self._is_entry = is_entry
        self._names = {instruction.name for instruction in computation}
        self._made: list[Instruction] = []
        self._wide: dict[str, str] = {}

    def widened(self) -> Computation:
        computation = self._computation
        for instruction in after_dependencies(computation, computation.instructions):
            self._wide[instruction.name] = self._widen(instruction)
        return attrs.evolve(
            computation,
            name=computation.name + self._suffix,
            instructions=tuple(self._made),
            root_name=self._wide[computation.root_name],
            span=None,
        )

    def _widen(self, instruction: Instruction) -> str:
        """The name of what holds an instruction's result in f64."""
        entry = find_opcode(instruction.opcode)
        plain = attrs.evolve(instruction, span=None, original_value=None, statistics=None)
        is_given = entry is not None and (
            entry.role is Role.CONSTANT or (entry.role is Role.PARAMETER and self._is_entry)
        )
        if is_given:
            self._made.append(plain)
            return self._converted(instruction.name, instruction.shape, retyped(instruction.shape, WIDE))
        operands = [self._wide[name] for name in instruction.operands]
        if has_no_wide_form(instruction):
            return self._as_it_is(plain, operands)
        self._made.append(attrs.evolve(self._wide_form(plain), operands=tuple(operands)))
        return instruction.name

    def _wide_form(self, instruction: Instruction) -> Instruction:
        wide = widened_instruction(instruction, WIDE)
        entry = entry_of(instruction)
        if entry is not None and entry.wider is not None:
            wide = attrs.evolve(wide, attributes=attrs.evolve(wide.attributes, custom_call_target=entry.wider))
        return attrs.evolve(wide, attributes=_renamed(wide.attributes, self._suffix))

    def _as_it_is(self, plain: Instruction, operands: list[str]) -> str:
        """The result in f64 of the instruction as it is, on operands in their types."""
        shapes = [operand.shape for operand in self._computation.operands_of(plain)]
        narrowed = [
            self._converted(operand, retyped(shape, WIDE), shape)
            for operand, shape in zip(operands, shapes, strict=True)
        ]
        self._made.append(attrs.evolve(plain, operands=tuple(narrowed)))
        return self._converted(plain.name, plain.shape, retyped(plain.shape, WIDE))

    def _converted(self, name: str, shape: Shape, wanted: Shape) -> str:
        """What has a shape, in the types of another one."""
        if shape == wanted:
            return name
        leaves = [
            leaf if before == after else self._make(leaf, make_conversion, after, leaf)
            for leaf, before, after in zip(
                self._leaves(name, shape), flat_shapes(shape), flat_shapes(wanted), strict=True
            )
        ]
        return self._tupled(name, leaves, wanted)

    def _leaves(self, name: str, shape: Shape) -> list[str]:
        """The leaves of a value, depth first, taken out of its tuples."""
        names: dict[Ints, str] = {(): name}
        for index, _ in subshapes(shape):
            if index:
                around = index[:-1]
                names[index] = self._make(name, make_element, part_at(shape, around), names[around], index[-1])
        return [names[index] for index, _ in leaf_shapes(shape)]

    def _tupled(self, name: str, leaves: list[str], shape: Shape) -> str:
        """Leaves, depth first, in tuples again."""
        left = iter(leaves)
        return fold(
            shape, elements_of, lambda _: next(left), lambda part, parts: self._make(name, make_tuple, part, parts)
        )

    def _make(self, source: str, make: Callable[..., Instruction], *arguments: Any) -> str:
        name = take_name(source.partition(_SUFFIX)[0] + _SUFFIX, self._names)
        self._made.append(make(name, *arguments))
        return name


def _renamed(attributes: Any, suffix: str) -> Any:
    """Attributes that name the computations in f64, and shapes in it."""
    changes: dict[str, Any] = {}
    for declared in attribute_fields(None if attributes is None else type(attributes)).values():
        value = getattr(attributes, declared.field)
        if value is None:
            continue
        if declared.grammar is Grammar.COMPUTATION:
            changes[declared.field] = value + suffix
        elif declared.grammar is Grammar.COMPUTATION_LIST:
            changes[declared.field] = tuple(name + suffix for name in value)
        elif declared.grammar is Grammar.SHAPE:
            changes[declared.field] = retyped(value, WIDE)
        elif declared.grammar is Grammar.SHAPE_LIST:
            changes[declared.field] = tuple(retyped(shape, WIDE) for shape in value)
    return attrs.evolve(attributes, **changes) if changes else attributes


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

    def __init__(self, kernels: Kernels, computation: Computation, instruction: Instruction, function: Kernel) -> None:
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
        results: dict[int, Any] = self._function(members)
        if self.mode is not Mode.RESULT:
            return results
        rounded_results = {id(result): _rounded(result, self._types) for result in results.values()}
        return {member: rounded_results[id(result)] for member, result in results.items()}

    @cached_property
    def _types(self) -> Types:
        return _narrow_types(self._instruction.shape)

    @cached_property
    def _operand_types(self) -> Types:
        operands = self._computation.operands_of(self._instruction)
        return tuple(entry for operand in operands for entry in _narrow_types(operand.shape))

    @cached_property
    def _own(self) -> Kernel | None:
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
        narrow_operands = [
            _narrowed(operand, entry) for operand, entry in zip(operands, self._operand_types, strict=True)
        ]
        ours, exact = self._own(*narrow_operands), self._function(*map(wide, narrow_operands))
        return _combined(_changed, result, ours, exact)


def _changed(value: Any, ours: Any, exact: Any) -> Any:
    difference = wide(ours) - exact
    return np.where(ours == exact, value, value + difference)


def _combined(function: Kernel, first: Any, *others: Any) -> Any:
    """A function of the leaves of values that are alike."""

    def parts(values: tuple[Any, ...]) -> list[Any] | None:
        return list(zip(*values, strict=True)) if isinstance(values[0], tuple) else None

    return rebuilt((first, *others), parts, lambda values: function(*values))


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
    switches: dict[Static, list[Switch]] = {}
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
        switches.setdefault((home, name), []).append(switch)
    return switches


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


Energies = tuple[float, ...]
"""For each output, the sum of the squares of the differences from the run in f64."""

_RIGHT = 0.5
"""An element whose relative error is smaller has a digit that is right."""
_KEPT = 1 << 20
"""Numbers that are kept of the operands and results of one sum or difference."""


@frozen
class Reading:
    """What a run shows in which only the operands of a sum or difference are rounded."""

    energies: Energies
    amplified: float
    """How many times as large relative errors are in its result, in the run of it in which that is most."""
    inherited: float
    """The relative error of its result, as a whole, in the run of it in which that is largest."""


_Taken = tuple[Array, ...]
"""The two operands of a sum or difference in one run of it, and its result."""


class _Record:
    """The first runs of an instruction."""

    def __init__(self) -> None:
        self.runs: list[_Taken] = []
        self._left = _KEPT

    def take(self, operands: Sequence[Array], result: Array) -> None:
        self._left -= sum(operand.size for operand in operands) + result.size
        if self._left > 0:
            # Memory may be used again.
            self.runs.append(tuple(map(np.array, (*operands, result))))


class WideRuns:
    """The run of a module in f64, and others in which something rounds."""

    def __init__(
        self,
        module: Module,
        inputs: Inputs | None,
        outputs: Sequence[LeafError],
        rounding: Collection[Static],
        reading: Collection[Static],
        options: Options,
    ) -> None:
        """Runs in f64. Instructions of `rounding` may round; `reading` are sums and differences whose operands may."""
        name = options.computation
        entry = module.entry if name is None else module.by_name[name.removeprefix("%")]
        if inputs is None:
            inputs = [random_inputs(module, options.seed, computation=entry.name)]
        self._inputs, self._outputs = inputs, outputs
        wide = widened_module(module, entry)
        # As it is written, since passes would take the steps apart; the original has been verified.
        given = attrs.evolve(
            options, computation=None, numerics=REFERENCE, statistics=None, planner=False, verify=False
        )
        plan = plan_of(wide, given)
        self._switches = switches_of(plan, module, suffix_of(module), {*rounding, *reading})
        self._results_of = repeated_run(wide, given, plan)
        self.count = 0
        records = {static: self._recorded(static) for static in reading if static in self._switches}
        self.exact = self._run()
        self._exact_runs = {static: record.runs for static, record in records.items()}

    def can_round(self, static: Static) -> bool:
        """Whether an instruction has a step of its own."""
        return static in self._switches

    def scale(self, number: int) -> float:
        """The sum of the squares of an output's finite numbers in f64."""
        return summed_squares(self.exact[number])[1]

    def energies_of(self, results: Sequence[Value]) -> Energies:
        """By how much the outputs in other results of the module differ from those in f64."""
        return self._energies(self._leaves(results))

    def rounding(self, group: Collection[Static]) -> Energies:
        """Where only a group of instructions rounds, and only its results."""
        return self._energies(self._run(group, Mode.RESULT))

    def reading(self, static: Static) -> Reading:
        """Where only the operands of a sum or difference are rounded."""
        record = self._recorded(static)
        energies = self._energies(self._run([static], Mode.OPERANDS))
        amplified = inherited = 0.0
        for ours, exact in zip(record.runs, self._exact_runs[static], strict=False):
            if ours[-1].shape != exact[-1].shape:
                break
            amplified = max(amplified, _amplification(ours, exact))
            scale = summed_squares(exact[-1])[1]
            if scale > 0:
                inherited = max(inherited, (summed_squares(ours[-1] - exact[-1])[1] / scale) ** 0.5)
        return Reading(energies, amplified, inherited)

    def _recorded(self, static: Static) -> _Record:
        record = _Record()
        for switch in self._switches[static]:
            switch.take = record.take
        return record

    def _run(self, group: Collection[Static] = (), mode: Mode = Mode.NOTHING) -> list[Array]:
        self.count += 1
        for static in group:
            for switch in self._switches[static]:
                switch.mode = mode
        try:
            return self._leaves(self._results_of(self._inputs))
        finally:
            for switches in self._switches.values():
                for switch in switches:
                    switch.mode, switch.take = Mode.NOTHING, None

    def _energies(self, arrays: Sequence[Array]) -> Energies:
        with np.errstate(all="ignore"):
            return tuple(
                summed_squares(wide(ours) - theirs)[1] for ours, theirs in zip(arrays, self.exact, strict=True)
            )

    def _leaves(self, results: Sequence[Value]) -> list[Array]:
        """The leaves of a result that the outputs are, each on the first of its devices."""
        by_device = {
            device: dict(leaves(results[device])) for device in {output.devices[0] for output in self._outputs}
        }
        found = [by_device[output.devices[0]][output.index] for output in self._outputs]
        return [leaf if is_inexact(leaf) else np.zeros(1) for leaf in found]


def _amplification(ours: _Taken, exact: _Taken) -> float:
    """How many times as large errors, relative to the larger operand, are relative to the result: the root of the mean
    square. Elements of which nothing is right count only if there are no others: what comes out as zero is such."""
    with np.errstate(all="ignore"):
        *errors, error = (np.abs(mine - theirs) for mine, theirs in zip(ours, exact, strict=True))
        *sizes, size = map(np.abs, exact)
        before = np.minimum(np.maximum(*errors) / np.maximum(*sizes), 1.0)
        after = np.minimum(error / size, 1.0)
    is_known = np.isfinite(before) & np.isfinite(after)
    is_right = is_known & (after < _RIGHT)
    where = is_right if before[is_right].any() else is_known
    total = summed_squares(before[where])[1]
    return float((summed_squares(after[where])[1] / total) ** 0.5) if total > 0 else 0.0
