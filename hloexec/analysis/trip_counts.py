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
    root, operands = _operation(module, condition, condition.root)
    if root.opcode != "compare" or root.attributes.direction not in ("LT", "GT"):
        return None
    counter, limit = operands if root.attributes.direction == "LT" else operands[::-1]
    index = _element(condition, *counter)
    initial = computation.operands_of(loop)[0]
    if index is None or Role.TUPLE is not role_of(body.root) or Role.TUPLE is not role_of(initial):
        return None
    first = constant_number(computation, computation.operands_of(initial)[index])
    step = loop_step(module, body, index)
    last = constant_number(*limit)
    place = _element(condition, *limit)
    if last is None and place is not None and _element(body, body, body.operands_of(body.root)[place]) == place:
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


def _operation(
    module: Module, computation: Computation, instruction: Instruction
) -> tuple[Instruction, list[tuple[Computation, Instruction]]]:
    """The operation that a value comes from, itself or in a computation that is called, and its operands, each with
    the computation that has it."""
    instruction = _behind_copies(computation, instruction)
    is_part = role_of(instruction) is Role.GET_TUPLE_ELEMENT
    call = computation.operands_of(instruction)[0] if is_part else instruction
    if role_of(call) is not Role.CALL:
        return instruction, [(computation, operand) for operand in computation.operands_of(instruction)]
    called, arguments = module.by_name[calls_of(call)[0].computation], computation.operands_of(call)
    result = called.root
    if is_part and role_of(result) is Role.TUPLE:
        result = called.operands_of(result)[instruction.attributes.index]
    result = _behind_copies(called, result)
    operands = [_behind_copies(called, operand) for operand in called.operands_of(result)]
    return result, [
        (computation, arguments[operand.attributes.number]) if role_of(operand) is Role.PARAMETER else (called, operand)
        for operand in operands
    ]


def _element(computation: Computation, place: Computation, instruction: Instruction) -> int | None:
    """Which element of a computation's only parameter a value is that is in this place."""
    instruction = _behind_copies(place, instruction)
    if place is not computation or role_of(instruction) is not Role.GET_TUPLE_ELEMENT:
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


def loop_step(module: Module, body: Computation, index: int) -> int | None:
    """What the body adds to an element of what it carries, itself or in a computation that it calls."""
    grown, operands = _operation(module, body, body.operands_of(body.root)[index])
    if grown.opcode != "add":
        return None
    for ours, other in (operands, operands[::-1]):
        if _element(body, *ours) == index:
            return constant_number(*other)
    return None
