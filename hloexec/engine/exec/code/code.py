"""Generated Python code of a plan; errors in it are traced to their step by line number.

Each slot becomes a local variable, named after the instruction that fills it, and each step a line that calls its
kernel. A plan becomes a function from the list of its arguments, which it empties, to the list of its results; a loop
becomes a function of its carried values, with the steps of its condition and body inside. `hloexec plan` prints the
code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from hloexec.core.structs import define, frozen
from hloexec.engine.plan.steps import Conditional, Context, Invocation, Plan, Step

KEY = "__hloexec_code__"
"""The global variable through which a function's frames lead to its code."""


@frozen
class Line:
    """What a line of code does: a step, and the loop that it is in, if any."""

    step: Step
    loop: Step | None = None
    plan: Plan | None = None
    """The loop's condition or body."""


@define(eq=False)
class Code:
    """A function made from a plan or from a loop."""

    source: str
    lines: Mapping[int, Line]
    """By the numbers of lines."""
    callees: tuple[Code, ...]
    """The functions that it calls."""
    function: Callable[..., Any] = attrs.field(init=False)


def sources(code: Code, seen: set[int] | None = None) -> Iterator[str]:
    """The source of a function and of those that it calls, callees first; none of those that are `seen`."""
    seen = set() if seen is None else seen
    if id(code) not in seen:
        seen.add(id(code))
        for callee in code.callees:
            yield from sources(callee, seen)
        yield code.source


def place_of(error: BaseException, context: Context | None) -> tuple[Step, Context | None] | None:
    """The step that an error came from, and the way to it, by its traceback; None where no code of ours was running.

    `context` is that of the outermost function.
    """
    found: Step | None = None
    branch = 0
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_globals.get(KEY)
        place = None if code is None else code.lines.get(trace.tb_lineno)
        if place is not None:
            values = trace.tb_frame.f_locals
            if found is not None and isinstance(found.flow, Invocation):
                context = Context(found, found.flow.plan, None, context)
            elif found is not None and isinstance(found.flow, Conditional):
                context = Context(found, found.flow.branches[branch].plan, None, context)
            if place.loop is not None and place.plan is not None:
                context = Context(place.loop, place.plan, values["iteration"], context)
            found, branch = place.step, values.get("branch", 0)
        trace = trace.tb_next
    return None if found is None else (found, context)
