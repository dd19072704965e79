"""Planning a whole module: which computations get plans, and which values replace those that the text does not give.

`build` goes through the computations callees first. Those that are only called are lowered and inlined into their
callers. A computation that something runs as a whole (a loop, a conditional, a kernel that takes computations, several
large calls) gets a plan of its own, to which all passes are applied before any caller is planned.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from hloexec.core.arrays import as_array, is_foreign
from hloexec.core.dtypes import ElementType
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.lifetimes import collection_paused
from hloexec.core.system_memory import memory_limit_bytes
from hloexec.core.wording import argument, byte_text
from hloexec.engine.devices.transfers import HostTransfer
from hloexec.engine.plan.callee import PlanCallee
from hloexec.engine.plan.kernels import InstructionKernel, Leaf, needs_conversion
from hloexec.engine.plan.lowering.computation import Lowering
from hloexec.engine.plan.pipeline import Options, run_passes
from hloexec.engine.plan.program import Program, called_computation, require_supported
from hloexec.engine.plan.steps import Plan, Step
from hloexec.engine.plan.synthesis import synthesized
from hloexec.errors import InputError, ResourceError, UnsupportedError, warn
from hloexec.ops.attributes import computation_names
from hloexec.ops.common import lies_in_order, row_major
from hloexec.ops.registry import OPCODES, Entry, Role, find_custom_call, role_of

_INLINED_STEPS = 4096
"""A computation that would be inlined several times is, as long as all its copies together take no more steps."""

_Types = tuple[ElementType | None, ...]


def build(module: Module, computation: Computation, options: Options, memory_limit: int | None = None) -> Plan:
    """The plan of a computation of `module`.

    Raises UnsupportedError, listing all that is missing, VerificationError where the module is not a program, or
    ResourceError where synthesized values alone would exceed the memory limit; warns HloWarning about what is
    synthesized.
    """
    with collection_paused():
        program = Program(module, computation)
        require_supported(program, unknown=options.unknown, numerics=options.numerics)
        return _Planner(program, options, memory_limit).plan()


class _Planner:
    """Builds the plans of a program's computations; what `LoweringContext` asks for."""

    def __init__(self, program: Program, options: Options, memory_limit: int | None) -> None:
        self.program = program
        self.options = options
        self.numerics = options.numerics
        self.is_observed = options.is_observed
        self.is_controlled = options.is_controlled
        self.refuses_unknown = options.unknown == "error"
        self.memory_limit = memory_limit
        self.synthesized_bytes = 0
        self.lowered: dict[str, Plan] = {}
        """The plans of computations before any pass."""
        self.plans: dict[str, Plan] = {}
        self.planned: set[str] = set()
        self.adapted: dict[tuple[str, _Types, _Types], Plan] = {}
        """Lowered plans for callers with other float types than the computation's own."""
        self.adapted_plans: dict[int, Plan] = {}
        """The same, finished, by the identity of the lowered plan."""
        self.callees: dict[str, PlanCallee] = {}
        self.library_calls: dict[str, Entry | None] = {}
        self.kernels: dict[Any, tuple[InstructionKernel, object]] = {}
        self.elided_names: dict[str, None] = {}
        self.unknown_targets: dict[str, None] = {}
        self.host_transfers: dict[HostTransfer, Step] = {}
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
        return self.plan_as(name, parameters, results) if name in self.planned else self._as(name, parameters, results)

    def plan_as(self, name: str, parameters: _Types, results: _Types) -> Plan:
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
        if name not in self.callees:
            self.callees[name] = PlanCallee(self.plans[name])
        return self.callees[name]

    def library_call(self, target: str) -> Entry | None:
        """The entry of a custom-call target; the finished plan says on which entries it relies."""
        self.library_calls[target] = find_custom_call(target)
        return self.library_calls[target]

    def elided(self, instruction: Instruction, shape: Leaf) -> Any:
        choice = self.options.elided
        self.elided_names[instruction.name] = None
        if choice == "error":
            raise UnsupportedError(
                f"the value of constant %{instruction.name} is elided in the text; choose "
                f"{argument('elided', 'zeros')} or random, or "
                f"supply it by name"
            )
        if isinstance(choice, str):
            return self._synthesized(choice, shape, instruction)
        if instruction.name not in choice:
            raise InputError(f"no value was given for %{instruction.name}, a constant that is elided in the text")
        return _supplied(choice[instruction.name], shape, instruction.name)

    def unknown_result(self, instruction: Instruction, shape: Leaf) -> Any:
        self.unknown_targets[instruction.attributes.custom_call_target] = None
        return self._synthesized(self.options.unknown, shape, instruction)

    def _synthesized(self, how: str, shape: Leaf, instruction: Instruction) -> Any:
        if how == "random":
            self.synthesized_bytes += shape.byte_size
            allowed = memory_limit_bytes(self.memory_limit)
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


def _supplied(given: object, shape: Leaf, name: str) -> Any:
    value = as_array(given) if is_foreign(given) else given
    array_shape = shape.array_shape
    storage = array_shape.element_type.storage
    if isinstance(value, np.ndarray) and value.dtype.type is np.void and storage.isbuiltin != 1:
        # What NumPy makes of types that it does not know.
        value = value.view(storage) if value.dtype.itemsize == storage.itemsize else value
    if (
        not isinstance(value, np.ndarray)
        or value.dtype != array_shape.element_type.storage
        or value.shape != array_shape.dimensions
    ):
        given = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"the value for the elided constant %{name} must be an array {shape}, but is {given}")
    view = value.view() if lies_in_order(value) else row_major(value)
    view.flags.writeable = False
    return view
