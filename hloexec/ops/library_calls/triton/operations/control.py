"""Control flow of instances that may take different ways: each way is run for those that take it.

A loop runs as often as one of them needs; the others keep what they have. Source: MLIR, "scf" dialect; Triton, its
dialect (CallOp, AssertOp, PrintOp).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.library_calls.mosaic.ir import Operation
from hloexec.ops.library_calls.mosaic.registry import Block, Kernel, Scope
from hloexec.ops.library_calls.triton.machine import Machine, over_elements
from hloexec.ops.library_calls.triton.registry import TRITON

Values = tuple[Any, ...]


def _run(machine: Machine, block: Block, active: Array, *arguments: Any) -> Values:
    """What a block gives if those instances alone are active, of those that are; others' values mean nothing."""
    before = machine.active
    if not active.all():
        machine.active = active if before is None else active & before
    try:
        return block(machine, *arguments)
    finally:
        machine.active = before


def _merge(chosen: Array, values: Values, others: Values) -> Values:
    """Values of the chosen instances, and other values of all others."""
    if chosen.all():
        return values
    pairs = zip(values, others, strict=True)
    return tuple(np.where(over_elements(chosen, one.ndim), one, two) for one, two in pairs)


def _active(machine: Machine) -> Array:
    return np.ones(machine.count, np.bool_) if machine.active is None else machine.active


@TRITON.operation("scf.if", is_machine=True)
def bind_if(operation: Operation, scope: Scope) -> Kernel:
    """What the first region gives where the condition is true, else what the second gives."""
    then, *rest = [scope.block(region) for region in operation.regions]
    otherwise: Block = rest[0] if rest else lambda machine: ()

    def compute(machine: Machine, condition: Array) -> Values:
        active = _active(machine)
        yes, no = condition & active, np.logical_not(condition) & active
        if not no.any():
            return then(machine)
        if not yes.any():
            return otherwise(machine)
        return _merge(yes, _run(machine, then, yes), _run(machine, otherwise, no))

    return compute


@TRITON.operation("scf.for", is_machine=True)
def bind_for(operation: Operation, scope: Scope) -> Kernel:
    """The region for each number from the first operand to the second, in steps of the third, which it is given with
    what it has given the time before: at first, the other operands."""
    body = scope.block(operation.regions[0])

    def compute(machine: Machine, low: Array, high: Array, step: Array, *carried: Any) -> Values:
        active = _active(machine)
        if (step[active] <= 0).any():
            raise machine.fault(f"counts in steps of {step[active].min()}")
        number = low
        while (active := active & (number < high)).any():
            machine.tick()
            carried = _merge(active, _run(machine, body, active, number, *carried), carried)
            number = number + step
        return carried

    return compute


@TRITON.operation("scf.while", is_machine=True)
def bind_while(operation: Operation, scope: Scope) -> Kernel:
    """The first region gives a condition and values; while it holds, the second makes of them what the first gets."""
    before, after = (scope.block(region) for region in operation.regions)

    def compute(machine: Machine, *carried: Any) -> Values:
        condition, *values = before(machine, *carried)
        active = _active(machine)
        while (active := active & condition).any():
            machine.tick()
            carried = _run(machine, after, active, *values)
            condition, *others = _run(machine, before, active, *carried)
            values = [*_merge(active, tuple(others), tuple(values))]
        return tuple(values)

    return compute


@TRITON.operation("tt.call", is_machine=True)
def bind_call(operation: Operation, scope: Scope) -> Kernel:
    """What the function `callee` gives."""
    return scope.function(operation.attributes["callee"])


@TRITON.operation("tt.assert", "cf.assert", is_machine=True)
def bind_assert(operation: Operation, scope: Scope) -> Kernel:
    """An error with the message where an element of the operand is false."""
    message = operation.attributes.get("message", operation.attributes.get("msg", ""))

    def compute(machine: Machine, condition: Array) -> None:
        holds = condition.reshape(machine.count, -1).all(1) | np.logical_not(_active(machine))
        if not holds.all():
            machine.point = machine.point_of(machine.first + int(np.argmin(holds)))
            raise machine.fault(f"asserts something that does not hold: {message}")

    return compute


@TRITON.operation("tt.print", "gpu.barrier", "ttg.barrier")
def bind_nothing(operation: Operation, scope: Scope) -> Kernel:
    """Nothing: what a kernel prints is not shown, and threads of an instance wait for one another anyway."""
    return lambda *operands: None


_INLINE = "it has instructions of a GPU in the text, which hloexec does not run"
TRITON.add("tt.elementwise_inline_asm", bind_nothing, f"Refused: {_INLINE}.", refuses=lambda operation: _INLINE)
