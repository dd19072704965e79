"""When plans and loops are made into Python, and the functions that are made.

Nothing that exchanges values with other devices or the host can be part of it, nor can values that differ between
devices: the machine walks the steps then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hloexec.exec.code import Code
from hloexec.exec.loops import LoopWriter
from hloexec.exec.plan import Plan, Step, While
from hloexec.exec.split import Split
from hloexec.exec.writing import Writer

__all__ = ["RUNS_BEFORE_CODE", "can_be_code", "code_of", "loop_code_of"]

RUNS_BEFORE_CODE = 16
"""So often a plan, or a loop's body, is walked first: making code of it costs about as much as so many runs save."""

_DEEPEST = 64
"""Plans that nest deeper are walked, so that Python's stack does not limit them."""

_LONGEST = 20_000
"""Plans with more steps are walked: compiling them takes seconds."""


def can_be_code(what: Plan | While, arguments: Sequence[Any]) -> bool:
    """Whether a plan or a loop can run as code on these arguments."""
    plans = (what,) if isinstance(what, Plan) else (what.condition, what.body)
    is_small = all(plan.depth is not None and plan.depth < _DEEPEST and len(plan.steps) < _LONGEST for plan in plans)
    return is_small and Split not in map(type, arguments)


def code_of(plan: Plan) -> Code:
    """The code of a plan, made when it is first asked for: a function from arguments to results, both in lists."""
    if plan.code is None:
        plan.code = Writer(plan.computation.name, code_of, loop_code_of).of_plan(plan)
    return plan.code  # type: ignore[no-any-return]


def loop_code_of(step: Step) -> Code:
    """The code of a loop: a function (state, iteration, until) → (state, iteration, whether the loop is over).

    It goes on from the number of an iteration to another, or for ever where that is -1.
    """
    flow = step.flow
    assert isinstance(flow, While)
    if flow.code is None:
        flow.code = LoopWriter(step, code_of, loop_code_of).of_loop()
    return flow.code  # type: ignore[no-any-return]
