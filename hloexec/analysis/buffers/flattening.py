"""The schedule of a whole module as one list, in which the instructions of a called computation precede the caller.

A computation that is called from several instructions is listed once, at the first. Fusions, reducers and comparators
are part of their instruction and not listed. Source: XLA, HloLiveRange::FlattenSchedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hloexec.analysis.calls import CallKind, calls_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.engine.plan.schedule import callees_first, computation_named, effectful_computations, schedule
from hloexec.ops.registry import Role, role_of


@frozen
class FlatSchedule:
    """Instructions with their times, and the computations they belong to.

    `spans` gives for each listed computation its first time and the one after its last; callees come before callers.
    """

    sequence: tuple[tuple[Computation, Instruction], ...]
    times: dict[tuple[str, str], int]
    """By names of computation and instruction."""
    spans: dict[str, tuple[int, int]]
    async_callers: dict[str, tuple[Computation, Instruction]]
    """For computations that an asynchronous instruction runs, and those called there: the one that starts it."""
    passed_over: dict[str, tuple[tuple[int, int], ...]]
    """By computation, the spans of branches before it that do not run where it does, in order, one for those in a row:
    those listed before the branch that it is, or is in."""


def listed_callees(instruction: Instruction) -> tuple[str, ...]:
    """The computations whose instructions are in the schedule beside those of their caller, in its order."""
    return tuple(call.computation for call in calls_of(instruction) if call.kind is not CallKind.FUSED)


def flatten(module: Module) -> FlatSchedule:
    """The flat schedule of a module: the order of the text where that is a schedule, else the one hloexec runs in.

    Raises VerificationError where a computation calls itself, or names what is not there.
    """
    order = callees_first(module, module.entry)
    effectful = effectful_computations(order)
    sequence: list[tuple[Computation, Instruction]] = []
    times: dict[tuple[str, str], int] = {}
    starts: dict[str, int] = {}
    spans: dict[str, tuple[int, int]] = {}
    asynchronous: dict[str, tuple[Computation, Instruction]] = {}

    def instructions(computation: Computation) -> Sequence[Instruction]:
        if module.is_scheduled and _defines_before_it_uses(computation):
            return computation.instructions
        order = schedule(computation, effectful, is_scheduled=False)
        needed = {instruction.name for instruction in order}
        # Arguments that nothing needs are there all the same.
        return [*(entry for entry in computation.parameters if entry.name not in needed), *order]

    def steps(computation: Computation) -> Iterator[Computation]:
        """Lists a computation; yields each callee that has to be listed first."""
        starts[computation.name] = len(sequence)
        for instruction in instructions(computation):
            for name in listed_callees(instruction):
                if role_of(instruction) is Role.ASYNC_START:
                    asynchronous.setdefault(name, (computation, instruction))
                elif computation.name in asynchronous:
                    asynchronous.setdefault(name, asynchronous[computation.name])
                if name not in starts:
                    yield computation_named(module, name, instruction)
            times[computation.name, instruction.name] = len(sequence)
            sequence.append((computation, instruction))
        spans[computation.name] = starts[computation.name], len(sequence)

    stack = [steps(module.entry)]
    while stack:
        callee = next(stack[-1], None)
        if callee is None:
            stack.pop()
        else:
            stack.append(steps(callee))
    return FlatSchedule(tuple(sequence), times, spans, asynchronous, _passed_over(module, sequence, spans))


def _passed_over(
    module: Module, sequence: Sequence[tuple[Computation, Instruction]], spans: dict[str, tuple[int, int]]
) -> dict[str, tuple[tuple[int, int], ...]]:
    """`FlatSchedule.passed_over`; a computation with several callers runs in more places than where it is listed."""
    callers = Counter(name for _, instruction in sequence for name in listed_callees(instruction))
    found: dict[str, tuple[tuple[int, int], ...]] = {module.entry_name: ()}
    for computation, instruction in reversed(sequence):  # callers first
        before = found[computation.name]
        for name in listed_callees(instruction):
            found[name] = before if callers[name] == 1 else ()
            if role_of(instruction) is Role.CONDITIONAL and callers[name] == 1:
                begin, end = spans[name]
                follows = bool(before) and before[-1][1] == begin
                before = (*before[:-1], (before[-1][0], end)) if follows else (*before, (begin, end))
    return found


def _defines_before_it_uses(computation: Computation) -> bool:
    """Whether the text is in an order that can run; a module may call itself scheduled without."""
    defined: set[str] = set()
    for instruction in computation.instructions:
        if not defined.issuperset(instruction.operands):
            return False
        defined.add(instruction.name)
    return True
