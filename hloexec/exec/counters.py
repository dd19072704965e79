"""Loops that count: how often they go round, and when they go round in circles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.exec.plan import Plan, Step, While
from hloexec.ir import ArrayShape
from hloexec.values import Array

__all__ = ["CIRCLES", "Limit", "Tally", "advanced", "is_counted_to", "limit_of", "skipped", "tallies_of"]

CIRCLES = (2, 16)
"""Circles whose lengths divide one of these are found: fixed points, numbers that alternate in their last bits."""


@attrs.frozen
class Tally:
    """A carried integer that each iteration increases by a constant."""

    increment: int
    increase: Step
    is_read: bool
    """Whether anything in the loop's body needs its value."""
    dtype: np.dtype[Any]


@attrs.frozen
class Limit:
    """A loop goes on while one of its tallies is less than a constant, and does not wrap around before."""

    leaf: int
    increment: int
    end: int


def tallies_of(flow: While) -> dict[int, Tally]:
    """The tallies among the leaves that a loop carries."""
    body = flow.body
    makers = {step.result: step for step in body.steps if step.instruction.opcode == "add"}
    found: dict[int, Tally] = {}
    for leaf, result in enumerate(body.results):
        increase = makers.get(result)
        shape = body.slot_shapes[leaf]
        if increase is None or leaf not in increase.operands or not isinstance(shape, ArrayShape):
            continue
        increment = _integer(body, increase.operands[1 - increase.operands.index(leaf)])
        is_shared = body.results.count(result) > 1 or any(result in step.operands for step in body.steps)
        if increment is None or is_shared:
            continue
        is_read = leaf in body.results or any(leaf in step.operands for step in body.steps if step is not increase)
        found[leaf] = Tally(increment, increase, is_read, shape.element_type.storage)
    return found


def limit_of(flow: While, tallies: Mapping[int, Tally], hoisted: set[int]) -> Limit | None:
    """The limit of a loop that asks for nothing else; `hoisted` are steps that are done before it."""
    condition = flow.condition
    steps = [step for step in condition.steps if id(step) not in hoisted]
    if len(steps) != 1 or steps[0].result != condition.results[0]:
        return None
    (compare,) = steps
    attributes = compare.instruction.attributes
    if compare.instruction.opcode != "compare" or attributes.direction not in ("LT", "GT"):
        return None
    left, right = compare.operands if attributes.direction == "LT" else reversed(compare.operands)
    end, tally = _integer(condition, right), tallies.get(left)
    if end is None or tally is None or tally.increment < 1:
        return None
    return Limit(left, tally.increment, end) if end + tally.increment - 1 <= np.iinfo(tally.dtype).max else None


def is_counted_to(flow: While, state: Sequence[Any], number: int) -> bool:
    """Whether a loop that begins with `state` will certainly go round so often."""
    limit = limit_of(flow, tallies_of(flow), set())
    if limit is None:
        return False
    start = state[limit.leaf]
    return isinstance(start, np.ndarray) and limit.end - int(start) >= number * limit.increment


def skipped(limit: Limit, count: int, iteration: int, until: int, circle: int) -> tuple[int, int]:
    """The tally and the number of the iteration after as many circles of this length as are left."""
    left = -((count - limit.end) // limit.increment)
    if until >= 0:
        left = min(left, until - iteration)
    left -= left % circle
    return (count + left * limit.increment, iteration + left) if left > 0 else (count, iteration)


def advanced(tally: Tally, start: Array, times: int) -> Array:
    """What a tally that began at `start` is after so many iterations; it wraps around."""
    unsigned = np.dtype(f"u{tally.dtype.itemsize}")
    total = (int(start) + times * tally.increment) % (1 << 8 * unsigned.itemsize)
    return np.array(total, unsigned).view(tally.dtype)


def _integer(plan: Plan, slot: int) -> int | None:
    """The constant in a slot, if it is an integer that NumPy has a type for."""
    value = plan.initial[slot] if slot in plan.constant_slots else None
    if not isinstance(value, np.ndarray) or value.ndim or value.dtype.kind not in "iu":
        return None
    return int(value)
