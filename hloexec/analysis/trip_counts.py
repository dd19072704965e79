"""Trip counts of loops with a counter that runs from one constant to another.

If a loop's backend_config states its trip count, `ops.costs` uses that. Modules before optimization state none, but
scans and counted loops have the form recognized here.
"""

from __future__ import annotations

import numpy as np

from hloexec.analysis.calls import calls_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.ops.costs import trip_count_of
from hloexec.ops.registry import Role, role_of, traits_of

_MOST_STEPS = 100


def loop_trips(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """The trip count of a while loop of a computation, None where that is not plain.

    Plain is: the condition is compare(i, n), direction=LT (or n > i), the body's root puts i + s in i's place, and what
    i, n and s start as are constants, n's kept by the body.
    """
    stated = trip_count_of(loop)
    if stated is not None:
        return stated
    condition, body = (module.by_name[call.computation] for call in calls_of(loop))
    root = _behind_copies(condition, condition.root)
    if root.opcode != "compare" or root.attributes.direction not in ("LT", "GT"):
        return None
    counter, limit = condition.operands_of(root)
    if root.attributes.direction == "GT":
        counter, limit = limit, counter
    index = _element(condition, counter)
    initial = computation.operands_of(loop)[0]
    if index is None or Role.TUPLE is not role_of(body.root) or Role.TUPLE is not role_of(initial):
        return None
    first = constant_number(computation, computation.operands_of(initial)[index])
    step = loop_step(body, index)
    last = constant_number(condition, limit)
    place = _element(condition, limit)
    if last is None and place is not None and _element(body, body.operands_of(body.root)[place]) == place:
        last = constant_number(computation, computation.operands_of(initial)[place])
    if first is None or last is None or not step or step < 0:
        return None
    return max(0, -(-(last - first) // step))


def _behind_copies(computation: Computation, instruction: Instruction) -> Instruction:
    for _ in range(_MOST_STEPS):
        if not traits_of(instruction).rearranges:
            break
        instruction = computation.operands_of(instruction)[0]
    return instruction


def _element(computation: Computation, instruction: Instruction) -> int | None:
    """Which element of the computation's only parameter a value is."""
    instruction = _behind_copies(computation, instruction)
    if role_of(instruction) is not Role.GET_TUPLE_ELEMENT:
        return None
    source = computation.operands_of(instruction)[0]
    return int(instruction.attributes.index) if role_of(source) is Role.PARAMETER else None


def constant_number(computation: Computation, instruction: Instruction) -> int | None:
    """The value of an integral constant."""
    instruction = _behind_copies(computation, instruction)
    if role_of(instruction) is not Role.CONSTANT:
        return None
    value = instruction.attributes.literal.value
    is_integer = isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iu"
    return int(value.reshape(-1)[0]) if is_integer else None


def loop_step(body: Computation, index: int, module: Module | None = None) -> int | None:
    """What the body adds to an element of what it carries, itself or, given its module, in a computation it calls."""
    computation, grown = body, _behind_copies(body, body.operands_of(body.root)[index])
    call: Instruction | None = None
    if module is not None:
        call = body.operands_of(grown)[0] if role_of(grown) is Role.GET_TUPLE_ELEMENT else grown
        if role_of(call) is Role.CALL:
            computation = module.by_name[calls_of(call)[0].computation]
            is_tuple = role_of(computation.root) is Role.TUPLE and call is not grown
            grown = computation.operands_of(computation.root)[grown.attributes.index] if is_tuple else computation.root
    if grown.opcode != "add":
        return None
    for ours, other in (computation.operands_of(grown), computation.operands_of(grown)[::-1]):
        if computation is not body and call is not None and role_of(ours) is Role.PARAMETER:
            ours = body.operands_of(call)[ours.attributes.number]
        elif computation is not body:
            continue
        if _element(body, ours) == index:
            return constant_number(computation, other)
    return None
