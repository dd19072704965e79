"""Which computations get plans of their own, and what stands for values that the text does not give.

`build` walks the computations callees first. A computation that something calls as a whole (a loop, a conditional, a
kernel that takes computations, or several large calls) gets its own plan; all other calls are inlined where they stand.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np

from hloexec.collection import collection_paused
from hloexec.custom_calls.registry import CustomCall, find_custom_call
from hloexec.dtypes import ElementType
from hloexec.errors import HloWarning, InputError, ResourceError, UnsupportedError
from hloexec.exec.building import PlanBuilder
from hloexec.exec.callee import PlanCallee
from hloexec.exec.exchange_steps import FORWARDED
from hloexec.exec.fill import made_up
from hloexec.exec.flow_steps import inlined_computation
from hloexec.exec.memory import in_units, memory_limit_bytes
from hloexec.exec.plan import HostTransfer, Options, Plan, Step
from hloexec.exec.requirements import Program, require_supported
from hloexec.exec.widths import conversion
from hloexec.ir import ArrayShape, BufferShape, Computation, Instruction, Module
from hloexec.ops.attributes import computation_names

__all__ = ["build"]

_INLINED_STEPS = 4096
"""A computation that would be inlined several times is, as long as all its copies together take no more steps."""


def build(module: Module, computation: Computation, options: Options, memory_limit: int | None = None) -> Plan:
    """The plan of a computation of `module`.

    Raises UnsupportedError, listing all that is missing, VerificationError where the module is not a program, or
    ResourceError where made-up values alone would exceed the memory limit; warns HloWarning about what is made up.
    """
    with collection_paused():
        program = Program(module, computation)
        require_supported(program, unknown=options.unknown, numerics=options.numerics)
        return _Planner(program, options, memory_limit).plan()


class _Planner:
    """Builds the plans of a program's computations, callees first."""

    def __init__(self, program: Program, options: Options, memory_limit: int | None) -> None:
        self.program = program
        self.options = options
        self.memory_limit = memory_limit_bytes(memory_limit)
        self.made_up_bytes = 0
        self.plans: dict[str, Plan] = {}
        self.planned: set[str] = set()
        self.adapted: dict[tuple[Any, ...], Plan] = {}
        """Plans for callers with other float types than the computation's own."""
        self.callees: dict[str, PlanCallee] = {}
        self.library_calls: dict[str, CustomCall | None] = {}
        self.elided_names: dict[str, None] = {}
        self.unknown_targets: dict[str, None] = {}
        self.host_transfers: dict[HostTransfer, Step] = {}
        self.communication: list[Step] = []

    def plan(self) -> Plan:
        program = self.program
        live = {computation.name for computation in program.live_computations()}
        order = [computation for computation in program.computations if computation.name in live]
        self.planned = self._planned(order)
        for computation in order:
            if computation.name in self.planned:
                self.plans[computation.name] = PlanBuilder(self, computation, self.planned).build()
        self._warn_and_check()
        plan = self.plans[program.entry.name]
        plan.library_calls = self.library_calls
        plan.host_transfers = self.host_transfers
        plan.communication = self.communication
        return plan

    def _planned(self, order: list[Computation]) -> set[str]:
        """The names of the computations that get plans of their own."""
        planned = {self.program.entry.name}
        call_sites: Counter[str] = Counter()
        for computation in order:
            for instruction in self.program.schedule(computation):
                callee = inlined_computation(instruction)
                if callee is not None:
                    call_sites[callee] += 1
                elif instruction.opcode not in FORWARDED:
                    planned.update(computation_names(instruction.attributes))
        sizes: dict[str, int] = {}
        for computation in order:
            size = 0
            for instruction in self.program.schedule(computation):
                callee = inlined_computation(instruction)
                size += 1 if callee is None or callee in planned else sizes[callee]
            sizes[computation.name] = size
            sites = call_sites[computation.name]
            if sites > 1 and sites * size > _INLINED_STEPS:
                planned.add(computation.name)
        return planned

    def plan_as(
        self, name: str, parameters: tuple[ElementType | None, ...], results: tuple[ElementType | None, ...]
    ) -> Plan:
        """The plan of a computation for callers with these float types; the usual one where they are its own."""
        plan = self.plans[name]
        shapes = plan.slot_shapes
        takes = conversion(shapes[: plan.parameter_count], parameters)
        gives = conversion([shapes[slot] for slot in plan.results], results)
        if takes is None and gives is None:
            return plan
        key = (name, parameters, results)
        if key not in self.adapted:
            computation = self.program.module.by_name[name]
            builder = PlanBuilder(self, computation, self.planned)
            self.adapted[key] = builder.build(parameters, results)
        return self.adapted[key]

    def callee(self, name: str) -> PlanCallee:
        """A planned computation as kernels see it."""
        if name not in self.callees:
            self.callees[name] = PlanCallee(self.plans[name])
        return self.callees[name]

    def library_call(self, target: str) -> CustomCall | None:
        """The entry of a custom-call target; the finished plan says on which entries it relies."""
        self.library_calls[target] = find_custom_call(target)
        return self.library_calls[target]

    def elided(self, instruction: Instruction, shape: ArrayShape | BufferShape) -> Any:
        """The value of an elided constant."""
        choice = self.options.elided
        self.elided_names[instruction.name] = None
        if choice == "error":
            raise UnsupportedError(
                f"the value of constant %{instruction.name} is elided in the text; choose elided=zeros or random, or "
                f"supply it by name"
            )
        if isinstance(choice, str):
            return self._made_up(choice, shape, instruction)
        if instruction.name not in choice:
            raise InputError(f"no value was given for %{instruction.name}, a constant that is elided in the text")
        return _supplied(choice[instruction.name], shape, instruction.name)

    def unknown_result(self, instruction: Instruction, shape: ArrayShape | BufferShape) -> Any:
        """A leaf of the result of a custom call without an implementation."""
        self.unknown_targets[instruction.attributes.custom_call_target] = None
        return self._made_up(self.options.unknown, shape, instruction)

    def _made_up(self, how: str, shape: ArrayShape | BufferShape, instruction: Instruction) -> Any:
        if how == "random":
            self.made_up_bytes += shape.byte_size
            if self.memory_limit is not None and self.made_up_bytes > self.memory_limit:
                raise ResourceError(
                    f"random values for what the text does not say take more than {in_units(self.memory_limit)}, the "
                    f"memory limit, at %{instruction.name}; zeros take no memory"
                )
        return made_up(how, shape, instruction.name)

    def _warn_and_check(self) -> None:
        choice = self.options.elided
        if self.unknown_targets:
            names = ", ".join(self.unknown_targets)
            warnings.warn(f"results of unknown custom calls are {self.options.unknown}: {names}", HloWarning, 4)
        if not isinstance(choice, str):
            surplus = [name for name in choice if name not in self.elided_names]
            if surplus:
                raise InputError(f"values were given for {', '.join(surplus)}, where no elided constant is in use")
        elif self.elided_names:
            names = ", ".join(self.elided_names)
            warnings.warn(f"constants that the text elides are taken as {choice}: {names}", HloWarning, 4)


def _supplied(value: Any, shape: ArrayShape | BufferShape, name: str) -> Any:
    array_shape = shape.element if isinstance(shape, BufferShape) else shape
    if (
        not isinstance(value, np.ndarray)
        or value.dtype != array_shape.element_type.storage
        or value.shape != array_shape.dimensions
    ):
        given = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"the value for the elided constant %{name} must be an array {shape}, but is {given}")
    view = value.view()
    view.flags.writeable = False
    return view
