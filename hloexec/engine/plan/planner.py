"""How a program becomes a plan that runs: its computations are lowered, then go through the passes, in order.

Inlining and (under `xla-cpu`) fused multiply-adds belong to every plan. The others are optimizations, and change no bit
of any value. A fault in one of them does not make a run fail: the plan stays as it was before, with a warning. A pass
is imported only if a plan has something that it could work on, so that small programs do not wait for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.process import collection_paused, memory_limit_bytes
from hloexec.core.structs import frozen
from hloexec.core.wording import byte_text
from hloexec.engine.devices.topology import HostTransfer
from hloexec.engine.options import Options
from hloexec.engine.plan.callee import PlanCallee
from hloexec.engine.plan.kernels import InstructionKernel, Leaf, needs_conversion
from hloexec.engine.plan.lowering.computation import Lowering
from hloexec.engine.plan.memory import with_lifetimes
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.engine.plan.program import Program, called_computation, require_supported
from hloexec.engine.plan.regions import LEAST_BYTES
from hloexec.engine.plan.steps import Invocation, Plan, Step, While
from hloexec.engine.plan.synthesis import elided_value, synthesized
from hloexec.errors import InputError, ResourceError, warn
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import OPCODES, Entry, Role, find_custom_call, role_of


def _has_loops(plan: Plan) -> bool:
    return any(isinstance(step.flow, While) for step in plan.steps)


def _has_large_values(plan: Plan) -> bool:
    return any(shape.byte_size >= LEAST_BYTES for shape in plan.slot_shapes)


def _has_products(plan: Plan) -> bool:
    return any(isinstance(step.flow, While) or (step.kernel and step.kernel.may_multiply) for step in plan.steps)


def _has_constants(plan: Plan) -> bool:
    return any(plan.constants.keys() >= {*step.operands} for step in plan.steps if step.kernel is not None)


def _has_several(plan: Plan) -> bool:
    return len(plan.steps) > 1


def _has_movements(plan: Plan) -> bool:
    # A small broadcast is a copy, though its opcode mostly gives views.
    return any(getattr(getattr(step.kernel, "entry", None), "may_be_view", False) for step in plan.steps)


@frozen
class _Pass:
    """An optimization."""

    name: str
    run: Callable[[Plan, Options], Plan]
    concerns: Callable[[Plan], bool]
    """Whether there is anything in a plan that it could work on."""


def _share_copies(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.sharing import with_copies_shared

    # Observers want each value as it is written.
    return plan if options.is_observed or options.numerics.overrides else with_copies_shared(plan)


def _unroll(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.loops import unrolled

    return unrolled(plan, is_observed=options.is_observed)


def _hoist(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.loops import with_invariants_hoisted

    return with_invariants_hoisted(plan, is_observed=options.is_observed)


def _accumulate(plan: Plan, _: Options) -> Plan:
    from hloexec.engine.plan.passes.products import with_products_accumulated

    return with_products_accumulated(plan)


def _fuse(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.fuse import with_regions

    return with_regions(plan, options.numerics, may_share=not (options.is_observed or options.numerics.overrides))


def _fold(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.sharing import with_constants_folded

    return plan if options.is_observed or options.numerics.rounding_seed is not None else with_constants_folded(plan)


def _compose_views(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.views import with_views_composed

    # Observers want each value as it is written.
    return plan if options.is_observed else with_views_composed(plan)


def _count(plan: Plan, _: Options) -> Plan:
    from hloexec.engine.plan.passes.induction import with_counters

    return with_counters(plan)


def _allocate_buffers(plan: Plan, _: Options) -> Plan:
    from hloexec.engine.plan.passes.loops import with_buffers

    return with_buffers(plan)


def _watch_for_cycles(plan: Plan, _: Options) -> Plan:
    from hloexec.engine.plan.passes.induction import with_cycles_watched

    return with_cycles_watched(plan)


_PASSES = (
    _Pass("share", _share_copies, _has_several),
    _Pass("unroll", _unroll, _has_loops),
    _Pass("hoist", _hoist, _has_loops),
    _Pass("accumulate", _accumulate, lambda plan: _has_products(plan) and _has_large_values(plan)),
    _Pass("fuse", _fuse, _has_large_values),
    _Pass("fold", _fold, _has_constants),
    _Pass("views", _compose_views, _has_movements),
    _Pass("induction", _count, _has_loops),
    _Pass("buffers", _allocate_buffers, _has_loops),
    _Pass("cycles", _watch_for_cycles, _has_loops),
)

CHECKS: list[Callable[[Plan, Plan], None]] = []
"""What tests ask of each plan that a pass returns, and of the one that the pass was given."""

_FIRST = ("inline", "fma")
PASS_NAMES = (*_FIRST, *(entry.name for entry in _PASSES))
"""In the order in which they run."""


def run_passes(plan: Plan, options: Options, *, is_scheduled: bool) -> Plan:
    """The finished plan of a lowered one; `is_scheduled` says whether the module has been optimized before."""
    if any(isinstance(step.flow, Invocation) for step in plan.program):
        from hloexec.engine.plan.passes.inline import inlined

        plan = inlined(plan, is_observed=options.is_observed, is_controlled=options.is_controlled)
    if any(part.fuses_multiply_add for part in options.numerics.parts) and options.last_pass != "inline":
        from hloexec.engine.plan.passes.products import with_fused_multiply_adds

        plan = with_fused_multiply_adds(plan, options.numerics, is_scheduled=is_scheduled)
    if options.planner and options.last_pass not in _FIRST:
        for entry in _PASSES:
            if entry.concerns(plan):
                plan = _guarded(entry, plan, options)
            if entry.name == options.last_pass:
                break
    plan = with_lifetimes(plan, may_reuse=options.planner)
    if not options.planner:
        # Walked, never written as Python.
        plan.depth = None
        plan.is_plain = True
    return plan


def _guarded(entry: _Pass, plan: Plan, options: Options) -> Plan:
    """The plan after a pass, or as it was where the pass fails."""
    try:
        optimized = entry.run(plan, options)
        for check in CHECKS:
            check(optimized, plan)
    except Exception as error:
        warn_of_failure(f"the pass {entry.name!r} on computation {plan.computation.name}", error)
        return plan
    return optimized


_INLINED_STEPS = 4096
"""A computation that would be inlined several times is, as long as all its copies together take no more steps."""

_Types = tuple[ElementType | None, ...]


def build(module: Module, computation: Computation, options: Options) -> Plan:
    """The plan of a computation of `module`.

    Raises UnsupportedError, listing all that is missing, VerificationError where the module is not a program, or
    ResourceError where synthesized values alone would exceed the memory limit; warns HloWarning about what is
    synthesized.
    """
    with collection_paused():
        program = Program(module, computation)
        require_supported(program, unknown=options.unknown, numerics=options.numerics)
        return Planner(program, options).plan()


class Planner:
    """Builds the plans of a program's computations; what `Lowering` asks for."""

    def __init__(self, program: Program, options: Options) -> None:
        self.program = program
        self.options = options
        self.numerics = options.numerics
        self.is_observed = options.is_observed
        self.is_controlled = options.is_controlled
        self.refuses_unknown = options.unknown == "error"
        self.synthesized_bytes = 0
        self.lowered: dict[str, Plan] = {}
        """The plans of computations before any pass."""
        self.plans: dict[str, Plan] = {}
        """Those that are finished; callees come before their callers."""
        self.planned: set[str] = set()
        self.adapted: dict[tuple[str, _Types, _Types], Plan] = {}
        """Lowered plans for callers with other float types than the computation's own."""
        self.adapted_plans: dict[int, Plan] = {}
        """The same, finished, by the identity of the lowered plan."""
        self.callees: dict[str, PlanCallee] = {}
        self.library_calls: dict[str, Entry | None] = {}
        self.kernels: dict[Any, tuple[InstructionKernel, object]] = {}
        """By all that they depend on, and what has to live as long as they do."""
        self.elided_names: dict[str, None] = {}
        self.unknown_targets: dict[str, None] = {}
        self.host_transfers: dict[HostTransfer, Step] = {}
        """The first step of each kind of transfer with the host."""
        self.communication: list[Step] = []

    def plan(self) -> Plan:
        program = self.program
        live = {computation.name for computation in program.live_computations}
        order = [computation for computation in program.computations if computation.name in live]
        self.planned = self._planned(order)
        for computation in order:
            lowered = self.lowered[computation.name] = Lowering(self, computation).plan()
            if computation.name in self.planned:
                self.plans[computation.name] = self._finished(lowered)
        self._warn_and_check()
        plan = self.plans[program.entry.name]
        plan.library_calls = self.library_calls
        plan.host_transfers = self.host_transfers
        plan.communication = self.communication
        plan.rounds_at_random = self.numerics.rounding_seed is not None
        plan.has_draws = any(not OPCODES[name].is_pure for name in program.opcodes)
        return plan

    def _finished(self, lowered: Plan) -> Plan:
        return run_passes(lowered, self.options, is_scheduled=self.program.module.is_scheduled)

    def _planned(self, order: list[Computation]) -> set[str]:
        """The names of the computations that get plans of their own."""
        planned = {self.program.entry.name}
        call_sites: Counter[str] = Counter()
        for computation in order:
            for instruction in self.program.calling(computation):
                callee = called_computation(instruction)
                if callee is not None:
                    call_sites[callee] += 1
                elif role_of(instruction) is not Role.PART:
                    planned.update(computation_names(instruction.attributes))
        sizes: dict[str, int] = {}
        for computation in order:
            size = len(self.program.schedule(computation))
            for instruction in self.program.calling(computation):
                callee = called_computation(instruction)
                size += 0 if callee is None or callee in planned else sizes[callee] - 1
            sizes[computation.name] = size
            sites = call_sites[computation.name]
            if sites > 1 and sites * size > _INLINED_STEPS:
                planned.add(computation.name)
        return planned

    # What lowering asks for

    def called_plan(self, name: str, parameters: _Types, results: _Types) -> Plan:
        """The plan of a computation for a call with these float types (None: no float); one that may be inlined."""
        return self.plan_as(name, parameters, results) if name in self.planned else self._as(name, parameters, results)

    def plan_as(self, name: str, parameters: _Types, results: _Types) -> Plan:
        """The finished plan of a computation for control flow with these float types."""
        lowered = self._as(name, parameters, results)
        if lowered is self.lowered[name]:
            return self.plans[name]
        if id(lowered) not in self.adapted_plans:
            self.adapted_plans[id(lowered)] = self._finished(lowered)
        return self.adapted_plans[id(lowered)]

    def _as(self, name: str, parameters: _Types, results: _Types) -> Plan:
        """The lowered plan for callers with these float types; the usual one where they are its own."""
        plan = self.lowered[name]
        shapes = plan.slot_shapes
        takes_others = needs_conversion([shapes[slot] for slot in plan.parameters], parameters)
        if not takes_others and not needs_conversion([shapes[slot] for slot in plan.results], results):
            return plan
        key = name, parameters, results
        if key not in self.adapted:
            self.adapted[key] = Lowering(self, self.program.module.by_name[name], parameters).plan(results)
        return self.adapted[key]

    def callee(self, name: str) -> PlanCallee:
        """A planned computation as kernels see it."""
        if name not in self.callees:
            self.callees[name] = PlanCallee(self.plans[name])
        return self.callees[name]

    def library_call(self, target: str) -> Entry | None:
        """The entry of a custom-call target; the finished plan says on which entries it relies."""
        self.library_calls[target] = find_custom_call(target)
        return self.library_calls[target]

    def elided(self, instruction: Instruction, shape: Leaf) -> Any:
        """The value of a leaf of an elided constant."""
        choice = self.options.elided
        self.elided_names[instruction.name] = None
        if choice == "random":
            return self._synthesized(choice, shape, instruction)
        return elided_value(choice, shape, instruction.name)

    def unknown_result(self, instruction: Instruction, shape: Leaf) -> Any:
        """A leaf of the result of a custom call without an implementation."""
        self.unknown_targets[instruction.attributes.custom_call_target] = None
        return self._synthesized(self.options.unknown, shape, instruction)

    def _synthesized(self, how: str, shape: Leaf, instruction: Instruction) -> Any:
        if how == "random":
            self.synthesized_bytes += shape.byte_size
            allowed = memory_limit_bytes(self.options.memory_limit)
            if allowed is not None and self.synthesized_bytes > allowed:
                raise ResourceError(
                    f"random values for what the text does not say take more than {byte_text(allowed)}, the "
                    f"memory limit, at %{instruction.name}; zeros take no memory"
                )
        return synthesized(how, shape, instruction.name)

    def _warn_and_check(self) -> None:
        choice = self.options.elided
        if self.unknown_targets:
            names = ", ".join(self.unknown_targets)
            warn(f"results of unknown custom calls are {self.options.unknown}: {names}")
        if not isinstance(choice, str):
            surplus = [name for name in choice if name not in self.elided_names]
            if surplus:
                raise InputError(f"values were given for {', '.join(surplus)}, where no elided constant is in use")
        elif self.elided_names:
            names = ", ".join(self.elided_names)
            warn(f"constants that the text elides are taken as {choice}: {names}")
