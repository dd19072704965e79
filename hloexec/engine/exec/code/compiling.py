"""When plans and loops are compiled to Python functions, and the cache of these functions.

Steps that exchange values with other devices or the host, and values that differ between devices, are not compiled; the
interpreter runs them, and anything for which code generation failed. The code generator is imported on first use,
because most runs in a new process end before they need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hloexec.engine.devices.varying import Varying
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.engine.plan.passes.induction import trip_count
from hloexec.engine.plan.steps import Plan, Step, While

if TYPE_CHECKING:
    from hloexec.engine.exec.code.code import Code

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
