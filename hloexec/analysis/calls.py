"""Which computations an instruction runs, and what their parameters stand for: the one place that knows how control
flow enters computations.

Computations that are applied to elements, as those of reductions and sorts, are a part of their instruction.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Role, entry_of, role_of, traits_of


class CallKind(enum.Enum):
    """What a computation is to the instruction that calls it."""

    CALLED = enum.auto()
    """The result is its result (call)."""
    FUSED = enum.auto()
    """So it is, and both are one kernel (fusion)."""
    STARTED = enum.auto()
    """It runs while others do (async-start)."""
    CONDITION = enum.auto()
    BODY = enum.auto()
    BRANCH = enum.auto()


@frozen
class Call:
    """That an instruction runs a computation."""

    kind: CallKind
    computation: str
    operands: tuple[str, ...]
    """What the computation's parameters are given, in order; those of a loop, before its first iteration."""


def calls_of(instruction: Instruction) -> tuple[Call, ...]:
    """The computations that an instruction runs, in the order in which its attributes name them."""
    role, operands = role_of(instruction), instruction.operands
    if role in (Role.CALL, Role.ASYNC_START):
        kind = CallKind.STARTED if role is Role.ASYNC_START else CallKind.CALLED
        kind = CallKind.FUSED if traits_of(instruction).fuses else kind
        return tuple(Call(kind, name, operands) for name in computation_names(instruction.attributes)[:1])
    if role is Role.WHILE:
        attributes = instruction.attributes
        condition, body = (CallKind.CONDITION, attributes.condition), (CallKind.BODY, attributes.body)
        return tuple(Call(kind, name, operands) for kind, name in (condition, body))
    if role is Role.CONDITIONAL:
        branches = computation_names(instruction.attributes)
        return tuple(Call(CallKind.BRANCH, *pair) for pair in zip(branches, zip(operands[1:]), strict=False))
    return ()


def call_of(instruction: Instruction, kind: CallKind) -> str:
    """The computation that an instruction runs as one of this kind."""
    return next(call.computation for call in calls_of(instruction) if call.kind is kind)


def passed_operands(caller: Instruction, computation: str) -> tuple[str, ...]:
    """The operands of a caller that are given to a computation that it runs."""
    return next((call.operands for call in calls_of(caller) if call.computation == computation), ())


def applied_computations(instruction: Instruction) -> tuple[str, ...]:
    """The names of the computations that an instruction applies to elements."""
    return () if calls_of(instruction) else computation_names(instruction.attributes)


def calls_in(module: Module, *kinds: CallKind) -> Iterator[tuple[Computation, Instruction, Computation]]:
    """The calls of these kinds in a module, in the order of the text: where they are, and what is called."""
    for computation in module:
        for instruction in computation:
            for call in calls_of(instruction):
                if call.kind in kinds:
                    yield computation, instruction, module.by_name[call.computation]


def entered_computations(
    module: Module,
    entry: Computation | None = None,
    instructions: Callable[[Computation], Iterable[Instruction]] = iter,
) -> list[Computation]:
    """The computations whose instructions run one by one, the entry first, each where it is called first; of each, only
    these instructions are looked at."""
    computations = {(entry or module.entry).name: entry or module.entry}
    pending = list(computations.values())
    for computation in pending:
        for instruction in instructions(computation):
            names = [call.computation for call in calls_of(instruction)]
            library_call = entry_of(instruction)
            if library_call is not None and library_call.invokes and library_call.reason_against(instruction) is None:
                names.append(library_call.invokes(instruction))
            for name in names:
                if name not in computations:
                    computations[name] = module.by_name[name]
                    pending.append(computations[name])
    return pending
