"""When plans and loops are compiled to Python functions, and the cache of these functions.

Generated Python code of a plan; errors in it are traced to their step by line number. Each slot becomes a local
variable, named after the instruction that fills it, and each step a line that calls its kernel. A plan becomes a
function from the list of its arguments, which it empties, to the list of its results; a loop becomes a function of its
carried values, with the steps of its condition and body inside. `hloexec plan` prints the code.

Steps that exchange values with other devices or the host, and values that differ between devices, are not compiled; the
interpreter runs them, and anything for which code generation failed. The code generator is imported on first use,
because most runs in a new process end before they need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.structs import define, frozen
from hloexec.engine.devices.varying import Varying
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.engine.plan.passes.induction import trip_count
from hloexec.engine.plan.steps import Conditional, Context, Invocation, Plan, Step, While

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
    failed: Step | None = None
    branch = 0
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_globals.get(KEY)
        place = None if code is None else code.lines.get(trace.tb_lineno)
        if place is not None:
            values = trace.tb_frame.f_locals
            if failed is not None and isinstance(failed.flow, Invocation):
                context = Context(failed, failed.flow.plan, None, context)
            elif failed is not None and isinstance(failed.flow, Conditional):
                context = Context(failed, failed.flow.branches[branch].plan, None, context)
            if place.loop is not None and place.plan is not None:
                context = Context(place.loop, place.plan, values["iteration"], context)
            failed, branch = place.step, values.get("branch", 0)
        trace = trace.tb_next
    return None if failed is None else (failed, context)


RUNS_BEFORE_CODE = 16
"""A plan, or a loop's body, is interpreted this many times before it is compiled: that many compiled runs save about
what compiling costs."""

_DEEPEST = 64
"""Plans that nest deeper are walked, so that Python's stack does not limit them."""

_LONGEST = 20_000
"""Plans with more steps are walked: compiling them takes seconds."""


def can_be_code(what: Plan | While, arguments: Sequence[object]) -> bool:
    """Whether a plan or a loop can run as code on these arguments."""
    for plan in (what,) if isinstance(what, Plan) else (what.condition, what.body):
        if plan.depth is None or plan.depth >= _DEEPEST or len(plan.steps) >= _LONGEST:
            return False
    return Varying not in map(type, arguments)


def is_long(flow: While, state: Sequence[object]) -> bool:
    """Whether a loop that begins with `state` certainly has enough iterations to be worth compiling."""
    if flow.limit is None:
        return False
    start = state[flow.limit.leaf]
    return isinstance(start, np.ndarray) and trip_count(flow.limit, int(start)) >= RUNS_BEFORE_CODE


def code_of(plan: Plan) -> Code | None:
    """The code of a plan, made when it is first asked for: a function from arguments to results, both in lists.

    None where it cannot be written.
    """
    if plan.code is None:
        from hloexec.engine.exec.code.writer import Writer

        plan.code = _written(lambda: Writer(plan.computation.name).of_plan(plan))
    return plan.code or None


def loop_code_of(step: Step) -> Code | None:
    """The code of a loop: a function (state, iteration, until) → (state, iteration, whether the loop is over).

    It runs from one iteration number to another, or without limit if that is -1.
    """
    flow = step.flow
    assert isinstance(flow, While)
    if not flow.code:
        from hloexec.engine.exec.code.loop_writer import LoopWriter

        flow.code.append(_written(lambda: LoopWriter(step).of_loop()))
    return flow.code[0] or None


def _written(write: Any) -> Any:
    """What is written; False where that fails."""
    from hloexec.engine.exec.code.writer import UnwritableError

    try:
        return write()
    except UnwritableError:
        return False  # What it runs has failed to be written, and said so.
    except Exception as error:
        warn_of_failure("writing a plan as Python", error)
        return False
