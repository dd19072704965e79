"""The plain interpreter: what a run is.

A plan is a computation as a list of steps over numbered slots (`plan.steps`): with `planner=False`, a step for each
instruction as it is written. A step has a kernel, a function from arrays to arrays that was made before the run
(`plan.lowering`, `ops.registry`), or else runs other plans. `exec.machine` does the same for what asks for more:
several devices, observers, limits, and optimized plans.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from hloexec.engine.plan.kernels import NO_SLOT, store
from hloexec.engine.plan.steps import Conditional, Context, Invocation, Plan, Step, While
from hloexec.ops.costs import note_trip_count

Running: TypeAlias = Generator[tuple[Plan, list[Any], Context], Any, list[Any]]
"""A run of a plan: it asks for the results of others, and returns the leaves of its own."""
PlacedError: TypeAlias = Callable[[Exception, Step, Context | None], Exception]
"""From what a kernel raises, its step and the way there, an error that says where it was."""


def interpret(plan: Plan, arguments: list[Any], placed: PlacedError) -> list[Any]:
    """The leaves of a plan's result on the leaves of its arguments; that list is emptied, so that values can be freed.

    Plans that wait for others are in a list, not on Python's stack, so that programs may be nested to any depth.
    """
    waiting = [_run(plan, arguments, None, placed)]
    results: Any = None
    while waiting:
        try:
            inner, inner_arguments, context = waiting[-1].send(results)
        except StopIteration as end:
            waiting.pop()
            results = end.value
        else:
            waiting.append(_run(inner, inner_arguments, context, placed))
            results = None
    return list(results)


def _run(plan: Plan, arguments: list[Any], context: Context | None, placed: PlacedError) -> Running:
    # No name may hold what a slot has given up.
    slots = plan.initial.copy()
    for number, slot in enumerate(plan.parameters):
        slots[slot] = arguments[number]
    arguments.clear()
    for slot in plan.dead_on_entry:
        slots[slot] = None
    for step in plan.steps:
        if step.function is None:
            results = yield from _carry_out(step, slots, context)
            store(step.results, results, slots)
            results.clear()
        else:
            try:
                if step.result != NO_SLOT:
                    slots[step.result] = step.function(*step.fetch(slots))
                else:
                    store(step.results, step.function(*step.fetch(slots)), slots)
            except Exception as error:
                raise placed(error, step, context) from error
        for slot in step.dead:
            slots[slot] = None
    return [slots[slot] for slot in plan.results]


def _carry_out(step: Step, slots: list[Any], context: Context | None) -> Running:
    """A loop, a conditional or a call."""
    flow, arguments = step.flow, [slots[slot] for slot in step.operands]
    if isinstance(flow, Conditional):
        branch = flow.select(arguments[0])
        flow, arguments = Invocation(branch.plan), arguments[branch.start : branch.stop]
    for slot in step.dead:
        slots[slot] = None
    if isinstance(flow, Invocation):
        results: list[Any] = yield flow.plan, arguments, Context(step, flow.plan, None, context)
        return results
    assert isinstance(flow, While)
    iteration = 0
    while (yield flow.condition, arguments.copy(), Context(step, flow.condition, iteration, context))[0]:
        arguments = yield flow.body, arguments, Context(step, flow.body, iteration, context)
        iteration += 1
    note_trip_count(step.instruction, iteration)
    return arguments
