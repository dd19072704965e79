"""A kernel that is ready to run: every operation bound, its operands and results places in the machine's frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from hloexec.core.structs import define
from hloexec.core.wording import listing
from hloexec.errors import UnsupportedError
from hloexec.ops.library_calls.mosaic.ir import Kernel, Operation, Region
from hloexec.ops.library_calls.mosaic.machine import Machine
from hloexec.ops.library_calls.mosaic.operations.control import TERMINATORS
from hloexec.ops.library_calls.mosaic.registry import MOSAIC, Block, Registry
from hloexec.ops.policies.policy import NumericsPolicy

_Step = Callable[[Machine], None]


@contextmanager
def malformed_named(subject: str) -> Iterator[None]:
    """What fails within, as operands or attributes are not what they have to be, comes out as UnsupportedError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UnsupportedError(f"{subject}, which is not as it has to be ({type(error).__name__}: {error})") from error


@lru_cache(maxsize=256)
def reason_against(kernel: Kernel, registry: Registry = MOSAIC) -> str | None:
    """Why a kernel cannot be run, as a clause; None where it can."""
    entries, unknown = registry.all, dict[str, str]()
    for operation in kernel.operations():
        entry = entries.get(operation.name)
        if entry is None and operation.name not in TERMINATORS:
            unknown.setdefault(operation.name, operation.source)
        elif entry is not None and entry.refuses is not None:
            with malformed_named(f"{kernel.describe()} has {operation.place}"):
                reason = entry.refuses(operation)
            if reason is not None:
                return f"{kernel.describe()} has {operation.place}: {reason}"
    if not unknown:
        return None
    first = next(iter(unknown.values()))
    names = listing(unknown, 8)
    where = f" (first at {first})" if first else ""
    return f"{kernel.describe()} has operations that hloexec does not run: {names}{where}"


@define(eq=False)
class Program:
    """The functions of a kernel under one policy."""

    kernel: Kernel
    numerics: NumericsPolicy
    registry: Registry
    _functions: dict[str, Block]
    _unused: frozenset[Operation]
    """Those that are left out."""

    def function(self, name: str) -> Block:
        """A function, bound when it is first asked for."""
        if name not in self._functions:
            self._functions[name] = self.block(self.kernel.functions[name].regions[0])
        return self._functions[name]

    def block(self, region: Region) -> Block:
        """A region: a function of the machine and its arguments."""
        steps = tuple([self._step(operation) for operation in region.operations if self._is_run(operation)])
        last = region.operations[-1] if region.operations else None
        yielded = last.operands if last is not None and last.name in TERMINATORS else ()
        places = region.arguments

        def run(machine: Machine, *arguments: Any) -> tuple[Any, ...]:
            frame = machine.frame
            for place, argument in zip(places, arguments, strict=True):
                frame[place] = argument
            for step in steps:
                step(machine)
            return tuple([frame[place] for place in yielded])

        return run

    def _is_run(self, operation: Operation) -> bool:
        return operation.name not in TERMINATORS and operation not in self._unused

    def _step(self, operation: Operation) -> _Step:
        entry = self.registry.all[operation.name]
        with malformed_named(f"{self.kernel.describe()} has {operation.place}"):
            kernel = entry.bind(operation, self)
        if entry.is_machine:
            return _machine_step(operation, kernel)
        return _pure_step(operation, kernel)


def _unused_operations(kernel: Kernel, registry: Registry) -> frozenset[Operation]:
    """Loads and what only computes, of which nothing uses the results: Pallas' lowering loads before each store."""
    used: set[int] = set()
    unused = []
    for operation in [*kernel.operations()][::-1]:
        entry = registry.all.get(operation.name)
        is_pure = entry is not None and (not entry.is_machine or operation.name.endswith("load"))
        if is_pure and operation.results and used.isdisjoint(operation.results):
            unused.append(operation)
        else:
            used.update(operation.operands)
    return frozenset(unused)


def _machine_step(operation: Operation, kernel: Callable[..., Any]) -> _Step:
    operands, results = operation.operands, operation.results
    is_one = len(results) == 1 and not operation.regions and not operation.name.endswith(".call")

    def step(machine: Machine) -> None:
        frame = machine.frame
        machine.operation = operation
        value = kernel(machine, *[frame[place] for place in operands])
        if is_one:
            frame[results[0]] = value
        elif results:
            for place, part in zip(results, value, strict=True):
                frame[place] = part

    return step


def _pure_step(operation: Operation, kernel: Callable[..., Any]) -> _Step:
    """Most operations have one operand or two, and one result."""
    if not operation.results:
        return lambda machine: None
    result = operation.results[0]
    if len(operation.operands) == 1:
        (only,) = operation.operands

        def step_of_one(machine: Machine) -> None:
            machine.frame[result] = kernel(machine.frame[only])

        return step_of_one
    if len(operation.operands) == 2:
        one, two = operation.operands

        def step_of_two(machine: Machine) -> None:
            frame = machine.frame
            frame[result] = kernel(frame[one], frame[two])

        return step_of_two

    def step(machine: Machine) -> None:
        frame = machine.frame
        frame[result] = kernel(*[frame[place] for place in operation.operands])

    return step


@lru_cache(maxsize=64)
def bound_program(kernel: Kernel, numerics: NumericsPolicy, registry: Registry = MOSAIC) -> Program:
    """A kernel under a policy; UnsupportedError where an operation is of a kind that hloexec does not run."""
    program = Program(kernel, numerics, registry, {}, _unused_operations(kernel, registry))
    for name in kernel.functions:
        program.function(name)
    return program
