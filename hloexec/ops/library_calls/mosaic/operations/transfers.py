"""Transfers (DMAs) and semaphores within one device.

A local transfer takes effect at once, and counts as under way until the semaphore that it signals has been waited for.
Semaphores of transfers count bytes. Source: JAX, tpu dialect, Pallas' primitives for TPUs.
"""

from __future__ import annotations

from typing import Any

from hloexec.ops.library_calls.mosaic.ir import Operation
from hloexec.ops.library_calls.mosaic.machine import Machine, Transfer
from hloexec.ops.library_calls.mosaic.memory import Ref, allocate
from hloexec.ops.library_calls.mosaic.registry import Kernel, Scope, operation

_OPERANDS = ("source", "source_semaphore", "target", "target_semaphore", "device_id", "core_id", "subcore_id")
_REMOTE = "it sends to another device or core, which hloexec does not run in kernels"


def _groups(operation: Operation) -> dict[str, tuple[int, ...]]:
    """The places of a transfer's operands by what they are; kernels of 2024 have three of a copy, and two of a wait."""
    if "operandSegmentSizes" in operation.attributes:
        return dict(zip(_OPERANDS, operation.segments(), strict=False))
    names = ("source", "target", "target_semaphore") if len(operation.operands) == 3 else ("target_semaphore", "target")
    return {name: (place,) for place, name in enumerate(names)}


def _refuse_remote_copy(operation: Operation) -> str | None:
    groups = _groups(operation)
    if any(groups.get(name) for name in ("device_id", "core_id", "subcore_id", "source_semaphore")):
        return _REMOTE
    return None if groups.get("target_semaphore") else "it has no semaphore"


@operation("tpu.enqueue_dma", is_machine=True, refuses=_refuse_remote_copy)
def bind_copy(operation: Operation, scope: Scope) -> Kernel:
    """Start to copy one view to another of its shape; when that is done, the semaphore has its bytes more."""
    groups = _groups(operation)
    (source,), (target,), (semaphore,) = (groups[name] for name in ("source", "target", "target_semaphore"))

    def compute(machine: Machine, *operands: Any) -> None:
        start_copy(machine, operands[source], operands[target], operands[semaphore])

    return compute


def start_copy(machine: Machine, source: Ref, target: Ref, semaphore: Ref) -> None:
    """Copy, and signal the semaphore."""
    if source.array.shape != target.array.shape:
        raise machine.fault(f"copies {list(source.array.shape)} elements to {list(target.array.shape)}")
    if not target.buffer.flags.writeable:
        raise machine.fault(f"copies to {target.name}, which is an input that no output shares memory with")
    for transfer in machine.transfers:
        if transfer.target.overlaps(target) or transfer.source.overlaps(target) or transfer.target.overlaps(source):
            machine.report(
                f"copies {source.name} to {target.name} while the transfer that {transfer.started} starts touches them"
            )
    target.copy_from(source)
    size = transfer_bytes(target)
    semaphore.array[...] += size
    place = "" if machine.operation is None else machine.operation.place
    machine.transfers.append(Transfer(source, target, semaphore, size, place))


def transfer_bytes(ref: Ref) -> int:
    """What a transfer to a view counts."""
    return int(ref.array.size) * ref.array.itemsize


def _refuse_remote_wait(operation: Operation) -> str | None:
    return _REMOTE if len(operation.operands) > 3 else None


@operation("tpu.wait_dma2", is_machine=True, refuses=_refuse_remote_wait)
def bind_wait(operation: Operation, scope: Scope) -> Kernel:
    """Wait until the semaphore has the bytes of the target, and take these from it. Operands: semaphore, source,
    target."""

    def compute(machine: Machine, semaphore: Ref, source: Ref, target: Ref) -> None:
        wait_for(machine, semaphore, transfer_bytes(target), "bytes of transfers")

    return compute


@operation("tpu.wait_dma", is_machine=True, refuses=_refuse_remote_copy)
def bind_wait_by_role(operation: Operation, scope: Scope) -> Kernel:
    """Wait until the semaphore of the target has the bytes of the target, and take these from it."""
    groups = _groups(operation)
    (target,), (semaphore,) = groups["target"], groups["target_semaphore"]

    def compute(machine: Machine, *operands: Any) -> None:
        wait_for(machine, operands[semaphore], transfer_bytes(operands[target]), "bytes of transfers")

    return compute


def wait_for(machine: Machine, semaphore: Ref, amount: int, unit: str) -> None:
    """Take an amount from a semaphore; EvaluationError where it will never be there. Transfers end in order."""
    value = int(semaphore.array)
    if value < amount:
        raise machine.fault(f"waits for {amount} {unit}, but its semaphore has {value}: it would wait forever")
    semaphore.array[...] -= amount
    left = amount
    for transfer in list(machine.transfers):
        if left >= transfer.bytes and transfer.semaphore.overlaps(semaphore):
            left -= transfer.bytes
            machine.transfers.remove(transfer)


def _refuse_remote_signal(operation: Operation) -> str | None:
    return _REMOTE if len(operation.operands) > 2 else None


@operation("tpu.sem_signal", is_machine=True, refuses=_refuse_remote_signal)
def bind_signal(operation: Operation, scope: Scope) -> Kernel:
    """Add an amount to a semaphore."""

    def compute(machine: Machine, semaphore: Ref, amount: int) -> None:
        semaphore.array[...] += amount

    return compute


@operation("tpu.sem_wait", is_machine=True)
def bind_semaphore_wait(operation: Operation, scope: Scope) -> Kernel:
    """Wait until a semaphore has an amount, and take it from it."""
    return lambda machine, semaphore, amount: wait_for(machine, semaphore, amount, "signals")


@operation("tpu.sem_read")
def bind_semaphore_read(operation: Operation, scope: Scope) -> Kernel:
    """The value of a semaphore."""
    return lambda semaphore: int(semaphore.array)


@operation("tpu.sem_barrier", is_machine=True)
def bind_barrier(operation: Operation, scope: Scope) -> Kernel:
    """The semaphore that devices meet at."""
    value_type = operation.result_type

    def compute(machine: Machine) -> Ref:
        if machine.barrier is None:
            machine.barrier = allocate(value_type, value_type.dimensions, "the barrier's semaphore")
            machine.semaphores.append(machine.barrier)
        return machine.barrier

    return compute
