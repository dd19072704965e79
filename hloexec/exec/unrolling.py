"""Loops of few iterations that are taken apart, so that their iterations become one region.

A loop that goes round five times and only computes by rows reads and writes its carried arrays five times. Written out,
its iterations are a chain of instructions by rows like any other, and what one hands to the next stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.exec.blocks import Region
from hloexec.exec.counters import limit_of, tallies_of
from hloexec.exec.in_place import bare
from hloexec.exec.plan import Plan, Step, While
from hloexec.exec.purity import is_pure

__all__ = ["iterations_to_write_out"]

_MOST_ITERATIONS = 8
_MOST_STEPS = 512
"""More than these would make the plan long; few large regions are as good as one."""
_FEW_BYTES = 1 << 12
"""Steps whose results take no more than this cost little wherever they stand."""


def iterations_to_write_out(flow: While, start: Sequence[Any]) -> int:
    """How often a loop goes round whose iterations are to be steps of the plan around it; 0 where they are not.

    `start` are the constants among the values that the loop begins with, None for others.
    """
    limit = limit_of(flow, tallies_of(flow), set())
    first = None if limit is None else start[limit.leaf]
    if limit is None or not isinstance(first, np.ndarray):
        return 0
    times = -((int(first) - limit.end) // limit.increment)
    if not 0 < times <= _MOST_ITERATIONS or times * len(flow.body.plain_steps) > _MOST_STEPS:
        return 0
    large = [step for step in flow.body.steps if _result_bytes(flow.body, step) > _FEW_BYTES]
    is_by_rows = bool(large) and all(isinstance(bare(step.function), Region) for step in large)
    return times if is_by_rows and all(is_pure(step) for step in flow.body.steps if step not in large) else 0


def _result_bytes(plan: Plan, step: Step) -> int:
    return sum(plan.slot_shapes[slot].byte_size for slot in step.results)
