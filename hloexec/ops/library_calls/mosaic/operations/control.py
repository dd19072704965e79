"""Control flow (scf, func, cf), what belongs to the grid, and what computes nothing.

A region is bound as a block: given values for its arguments, it gives those of the operation that ends it.
Source: MLIR, "scf", "func" and "cf" dialects; JAX, tpu dialect.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.ops.library_calls.mosaic.bridging import as_array
from hloexec.ops.library_calls.mosaic.ir import Operation
from hloexec.ops.library_calls.mosaic.machine import Machine
from hloexec.ops.library_calls.mosaic.registry import Kernel, Refusal, Scope, add_operation, operation

BARRIER = "the barrier's semaphore"
TERMINATORS = frozenset(
    "scf.yield scf.condition func.return tpu.yield tt.return tt.reduce.return tt.scan.return".split()
)
"""What ends a region: its operands are what the region gives."""


@operation("scf.if", is_machine=True)
def bind_if(operation: Operation, scope: Scope) -> Kernel:
    """What the first region gives where the condition is true, else what the second gives."""
    then, *rest = [scope.block(region) for region in operation.regions]

    def compute(machine: Machine, condition: Any) -> tuple[Any, ...]:
        if condition:
            return then(machine)
        return rest[0](machine) if rest and operation.regions[1].operations else ()

    return compute


@operation("scf.for", is_machine=True)
def bind_for(operation: Operation, scope: Scope) -> Kernel:
    """The region for each number from the first operand to the second, in steps of the third, which it is given with
    what it has given the time before: at first, the other operands."""
    body = scope.block(operation.regions[0])

    def compute(machine: Machine, low: int, high: int, step: int, *carried: Any) -> tuple[Any, ...]:
        if step <= 0:
            raise machine.fault(f"counts in steps of {step}")
        for number in range(low, high, step):
            machine.tick()
            carried = body(machine, number, *carried)
        return carried

    return compute


@operation("scf.while", is_machine=True)
def bind_while(operation: Operation, scope: Scope) -> Kernel:
    """The first region gives a condition and values; while it holds, the second makes of them what the first gets."""
    before, after = (scope.block(region) for region in operation.regions)

    def compute(machine: Machine, *carried: Any) -> tuple[Any, ...]:
        condition, *values = before(machine, *carried)
        while condition:
            machine.tick()
            condition, *values = before(machine, *after(machine, *values))
        return tuple(values)

    return compute


@operation("scf.index_switch", is_machine=True)
def bind_switch(operation: Operation, scope: Scope) -> Kernel:
    """What the region of the case that the operand is gives; without such a case, the first region."""
    default, *blocks = [scope.block(region) for region in operation.regions]
    cases = dict(zip(operation.attributes["cases"], blocks, strict=True))
    return lambda machine, number: cases.get(number, default)(machine)


@operation("tpu.region", "tpu.trace", "memref.alloca_scope", is_machine=True)
def bind_region(operation: Operation, scope: Scope) -> Kernel:
    """What the region gives."""
    body = scope.block(operation.regions[0])

    def compute(machine: Machine) -> tuple[Any, ...]:
        count = len(machine.semaphores)
        shared = {} if machine.knowledge is None else dict(machine.knowledge.shared)
        values = body(machine)
        machine.operation = operation
        check_semaphores(machine, count)
        if machine.knowledge is not None:
            barrier = {key: value for key, value in machine.knowledge.shared.items() if key == BARRIER}
            machine.knowledge.shared = shared | barrier
        return values

    return compute


def check_semaphores(machine: Machine, start: int) -> None:
    """Semaphores end where the memory around them does: they have to be zero. Those from `start` on are forgotten."""
    for ref in machine.semaphores[start:]:
        if ref.array.any():
            value = int(np.abs(ref.array).max())
            machine.report(f"ends while {ref.name} is {value}, not zero")
    del machine.semaphores[start:]


@operation("func.call", is_machine=True)
def bind_call(operation: Operation, scope: Scope) -> Kernel:
    """What the function `callee` gives."""
    return scope.function(operation.attributes["callee"])


@operation("cf.assert", is_machine=True)
def bind_assert(operation: Operation, scope: Scope) -> Kernel:
    """An error with the message `msg` where the operand is false."""

    def compute(machine: Machine, condition: Any) -> None:
        if not condition:
            raise machine.fault(f"asserts something that does not hold: {operation.attributes.get('msg', '')}")

    return compute


@operation("tpu.device_id", is_machine=True)
def bind_device(operation: Operation, scope: Scope) -> Kernel:
    """The number of the device."""
    return lambda machine: machine.device


@operation("tpu.iteration_bound", is_machine=True)
def bind_bound(operation: Operation, scope: Scope) -> Kernel:
    """The size of a dimension of the grid."""
    return lambda machine: machine.bounds[operation.attributes["dim"]]


@operation(
    "tpu.trace_start", "tpu.trace_stop", "tpu.trace_value", "tpu.delay", "tpu.log", "tpu.log_buffer", "ub.poison"
)
def bind_nothing(operation: Operation, scope: Scope) -> Kernel:
    """Nothing: names of parts for profilers, delays, and what a kernel prints. A poison is zero."""
    if not operation.results:
        return lambda *operands: None
    value_type = operation.result_type
    zero = np.zeros(value_type.dimensions, value_type.element_type.storage)
    return lambda: zero.item() if value_type.is_scalar and value_type.is_integer else as_array(zero, value_type)


def _refusal(reason: str) -> Refusal:
    return lambda operation: reason


_REFUSED = {
    "tpu.prng_set_seed_32": "it seeds the hardware's random numbers, of which no definition is public",
    "tpu.prng_random_bits": "it takes the hardware's random bits, of which no definition is public",
    "tpu.stochastic_convert": "which random bits it adds to a float before it rounds is not public",
    "tpu.stochastic_convert_elementwise": "which random bits it adds to a float before it rounds is not public",
}

for _name, _reason in _REFUSED.items():
    add_operation(_name, bind_nothing, f"Refused: {_reason}.", refuses=_refusal(_reason))
