"""When plans and loops are made into Python, and the functions that are made.

Nothing that exchanges values with other devices or the host can be part of it, nor can values that differ between
devices: the machine walks the steps then. Nor can what could not be written, for whatever reason. What writes code is
imported when there is something to write, as most runs of a new process are over before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hloexec.devices.varying import Varying
from hloexec.plan.optimization_errors import warn_of_failure
from hloexec.plan.passes.induction import trip_count
from hloexec.plan.steps import Plan, Step, While

if TYPE_CHECKING:
    from hloexec.exec.code.code import Code

__all__ = ["RUNS_BEFORE_CODE", "can_be_code", "code_of", "is_long", "loop_code_of"]

RUNS_BEFORE_CODE = 16
"""So often a plan, or a loop's body, is walked first: making code of it costs about as much as so many runs save."""

_DEEPEST = 64
"""Plans that nest deeper are walked, so that Python's stack does not limit them."""

_LONGEST = 20_000
"""Plans with more steps are walked: compiling them takes seconds."""


def can_be_code(what: Plan | While, arguments: Sequence[object]) -> bool:
    """Whether a plan or a loop can run as code on these arguments."""
    plans = (what,) if isinstance(what, Plan) else (what.condition, what.body)
    is_small = all(plan.depth is not None and plan.depth < _DEEPEST and len(plan.steps) < _LONGEST for plan in plans)
    return is_small and Varying not in map(type, arguments)


def is_long(flow: While, state: Sequence[object]) -> bool:
    """Whether a loop that begins with `state` will certainly have so many iterations that it is worth being code."""
    if flow.limit is None:
        return False
    start = state[flow.limit.leaf]
    return isinstance(start, np.ndarray) and trip_count(flow.limit, int(start)) >= RUNS_BEFORE_CODE


def code_of(plan: Plan) -> Code | None:
    """The code of a plan, made when it is first asked for: a function from arguments to results, both in lists.

    None where it cannot be written.
    """
    if plan.code is None:
        from hloexec.exec.code.writer import Writer

        plan.code = _written(lambda: Writer(plan.computation.name, code_of, loop_code_of).of_plan(plan))
    return plan.code or None


def loop_code_of(step: Step) -> Code | None:
    """The code of a loop: a function (state, iteration, until) → (state, iteration, whether the loop is over).

    It goes on from the number of an iteration to another, or for ever where that is -1.
    """
    flow = step.flow
    assert isinstance(flow, While)
    if not flow.code:
        from hloexec.exec.code.loop_writer import LoopWriter

        flow.code.append(_written(lambda: LoopWriter(step, code_of, loop_code_of).of_loop()))
    return flow.code[0] or None


def _written(write: Any) -> Any:
    """What is written; False where that fails."""
    from hloexec.exec.code.writer import UnwritableError

    try:
        return write()
    except UnwritableError:
        return False  # What it runs has failed to be written, and said so.
    except Exception as error:
        warn_of_failure("writing a plan as Python", error)
        return False
