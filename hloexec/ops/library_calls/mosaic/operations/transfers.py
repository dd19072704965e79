"""Transfers (DMAs) and semaphores, within one device and to others.

A transfer takes effect at once, and counts as under way until the semaphores that it signals have been waited for: one
to another device signals a semaphore there, and one of its sender. Semaphores of transfers count bytes.
Source: JAX, tpu dialect, Pallas' primitives for TPUs.
"""

from __future__ import annotations

from typing import Any

from hloexec.ops.library_calls.mosaic.ir import Operation
from hloexec.ops.library_calls.mosaic.machine import Machine, Transfer
from hloexec.ops.library_calls.mosaic.memory import Ref, allocate
from hloexec.ops.library_calls.mosaic.operations.control import BARRIER
from hloexec.ops.library_calls.mosaic.registry import Kernel, Scope, operation

_OPERANDS = ("source", "source_semaphore", "target", "target_semaphore", "device_id", "core_id", "subcore_id")
_SIGNALLED = ("semaphore", "amount", "device_id", "core_id", "subcore_id")
_OTHER_CORE = "it reaches for another core, and hloexec runs kernels of one core per device"


def _groups(operation: Operation) -> dict[str, tuple[int, ...]]:
    """The places of a transfer's operands by what they are; kernels of 2024 have three of a copy, and two of a wait."""
    if "operandSegmentSizes" in operation.attributes:
        return dict(zip(_OPERANDS, operation.segments(), strict=False))
    names = ("source", "target", "target_semaphore") if len(operation.operands) == 3 else ("target_semaphore", "target")
    return {name: (place,) for place, name in enumerate(names)}


def _refuse_copy(operation: Operation) -> str | None:
    groups = _groups(operation)
    if any(groups.get(name) for name in ("core_id", "subcore_id")):
        return _OTHER_CORE
    return None if groups.get("target_semaphore") else "it has no semaphore"


@operation("tpu.enqueue_dma", is_machine=True, refuses=_refuse_copy)
def bind_copy(operation: Operation, scope: Scope) -> Kernel:
    """Start to copy one view to another of its shape, which may be another device's; when that is done, the semaphores
    have its bytes more."""
    groups = _groups(operation)
    (source,), (target,), (semaphore,) = (groups[name] for name in ("source", "target", "target_semaphore"))
    sent, device = groups.get("source_semaphore"), groups.get("device_id")

    def compute(machine: Machine, *operands: Any) -> None:
        receiver, there, done = machine, operands[target], operands[semaphore]
        if device and machine.devices is not None:
            receiver = machine.devices.other(machine, int(operands[device[0]]))
            there = machine.devices.counterpart(machine, there, receiver)
            done = machine.devices.counterpart(machine, done, receiver)
        start_copy(machine, operands[source], receiver, there, done, operands[sent[0]] if sent else None)

    return compute


def start_copy(
    machine: Machine, source: Ref, receiver: Machine, target: Ref, semaphore: Ref, sent: Ref | None = None
) -> None:
    """Copy to a view of a device, and signal its semaphore, and one of the sender's own."""
    if source.array.shape != target.array.shape:
        raise machine.fault(f"copies {list(source.array.shape)} elements to {list(target.array.shape)}")
    if not target.buffer.flags.writeable:
        raise machine.fault(f"copies to {target.name}, which is an input that no output shares memory with")
    clause = f"copies {source.name} to {target.name}" + (" of another device" if receiver is not machine else "")
    if not _report_touched(machine, receiver, source, target, clause) and receiver is not machine:
        _report_unordered(machine, receiver, target, clause)
    machine.check_order(source, (...,), is_write=False)
    receiver.check_order(target, (...,), is_write=True)
    target.copy_from(source)
    size = transfer_bytes(target)
    place = "" if machine.operation is None else machine.operation.place
    if receiver is machine:
        machine.transfers.append(Transfer(source, target, semaphore, size, place))
    else:
        receiver.transfers.append(Transfer(None, target, semaphore, size, place, machine.device))
        machine.transfers += [] if sent is None else [Transfer(source, None, sent, size, place)]
    signal(machine, receiver, semaphore, size)
    if sent is not None:
        signal(machine, machine, sent, size)


def _report_touched(machine: Machine, receiver: Machine, source: Ref, target: Ref, clause: str) -> bool:
    """Report transfers that are under way where another one reads or writes, if there are such."""
    touched = [transfer for transfer in machine.transfers if _overlap(transfer.target, source)]
    for transfer in receiver.transfers:
        if _overlap(transfer.target, target) or _overlap(transfer.source, target):
            touched.append(transfer)
    for transfer in dict.fromkeys(touched):
        machine.report(f"{clause} while the transfer that {transfer.started} starts touches them", transfer.detail)
    return bool(touched)


def _overlap(one: Ref | None, two: Ref) -> bool:
    return one is not None and one.overlaps(two)


def _report_unordered(machine: Machine, receiver: Machine, target: Ref, clause: str) -> None:
    """Report a transfer to where its receiver has read or written, unless that is known to be over."""
    if receiver.knowledge is None or machine.knowledge is None:
        return
    access = receiver.knowledge.unordered(target, machine.knowledge)
    if access is not None:
        verb = "writes" if access.is_write else "reads"
        machine.report(
            f"{clause}, where {access.place} {verb}: no signal orders the two", f"to device {receiver.device}"
        )


def signal(machine: Machine, receiver: Machine, semaphore: Ref, amount: int) -> None:
    """Add an amount to a semaphore of a device."""
    semaphore.array[...] += amount
    if machine.knowledge is not None and receiver.knowledge is not None:
        receiver.knowledge.add(semaphore, amount, machine.knowledge.release())


def transfer_bytes(ref: Ref) -> int:
    """What a transfer to a view counts."""
    return int(ref.array.size) * ref.array.itemsize


@operation("tpu.wait_dma2", is_machine=True)
def bind_wait(operation: Operation, scope: Scope) -> Kernel:
    """Wait until the semaphore has the bytes of the target, and take these from it. Operands: semaphore, source,
    target; a device, and a core, which the transfer was between, change nothing."""

    def compute(machine: Machine, semaphore: Ref, source: Ref, target: Ref, *others: int) -> None:
        wait_for(machine, semaphore, transfer_bytes(target), "bytes of transfers")

    return compute


@operation("tpu.wait_dma", is_machine=True, refuses=_refuse_copy)
def bind_wait_by_role(operation: Operation, scope: Scope) -> Kernel:
    """Wait until the semaphore of the target has the bytes of the target, and take these from it."""
    groups = _groups(operation)
    (target,), (semaphore,) = groups["target"], groups["target_semaphore"]

    def compute(machine: Machine, *operands: Any) -> None:
        wait_for(machine, operands[semaphore], transfer_bytes(operands[target]), "bytes of transfers")

    return compute


def wait_for(machine: Machine, semaphore: Ref, amount: int, unit: str) -> None:
    """Take an amount from a semaphore, once it is there; EvaluationError where it never will be. Transfers end in
    order."""

    def clause() -> str:
        return f"waits for {amount} {unit}, but its semaphore has {int(semaphore.array)}"

    if machine.devices is not None:
        machine.devices.wait(machine, lambda: int(semaphore.array) >= amount, clause)
    elif int(semaphore.array) < amount:
        raise machine.fault(f"{clause()}: it would wait forever")
    semaphore.array[...] -= amount
    if machine.knowledge is not None:
        machine.knowledge.take(semaphore, amount)
    left = amount
    for transfer in list(machine.transfers):
        if left >= transfer.bytes and transfer.semaphore.overlaps(semaphore):
            left -= transfer.bytes
            machine.transfers.remove(transfer)
            machine.note(transfer.source, is_write=False, place=transfer.started)
            machine.note(transfer.target, is_write=True, place=transfer.started)


def _signalled(operation: Operation) -> dict[str, tuple[int, ...]]:
    """The places of a signal's operands by what they are."""
    if "operandSegmentSizes" in operation.attributes:
        return dict(zip(_SIGNALLED, operation.segments(), strict=False))
    return {name: (place,) for place, name in enumerate(_SIGNALLED[: len(operation.operands)])}


def _refuse_signal(operation: Operation) -> str | None:
    groups = _signalled(operation)
    return _OTHER_CORE if any(groups.get(name) for name in ("core_id", "subcore_id")) else None


@operation("tpu.sem_signal", is_machine=True, refuses=_refuse_signal)
def bind_signal(operation: Operation, scope: Scope) -> Kernel:
    """Add an amount to a semaphore, which may be another device's."""
    device = _signalled(operation).get("device_id")

    def compute(machine: Machine, semaphore: Ref, amount: int, *others: int) -> None:
        receiver = machine
        if device and machine.devices is not None:
            receiver = machine.devices.other(machine, int(others[0]))
            semaphore = machine.devices.counterpart(machine, semaphore, receiver)
        signal(machine, receiver, semaphore, amount)

    return compute


@operation("tpu.sem_wait", is_machine=True)
def bind_semaphore_wait(operation: Operation, scope: Scope) -> Kernel:
    """Wait until a semaphore has an amount, and take it from it."""
    return lambda machine, semaphore, amount: wait_for(machine, semaphore, amount, "signals")


@operation("tpu.sem_read", is_machine=True)
def bind_semaphore_read(operation: Operation, scope: Scope) -> Kernel:
    """The value of a semaphore, after others have had their turn."""

    def compute(machine: Machine, semaphore: Ref) -> int:
        if machine.devices is not None:
            machine.devices.turns.pass_on(machine.device)
        if machine.knowledge is not None:
            machine.knowledge.see(semaphore)
        return int(semaphore.array)

    return compute


@operation("tpu.sem_barrier", is_machine=True)
def bind_barrier(operation: Operation, scope: Scope) -> Kernel:
    """The semaphore that devices meet at."""
    value_type = operation.result_type

    def compute(machine: Machine) -> Ref:
        if machine.barrier is None:
            machine.barrier = allocate(value_type, value_type.dimensions, BARRIER)
            machine.share(BARRIER, machine.barrier)
        return machine.barrier

    return compute


def reaches_others(operation: Operation) -> bool:
    """Whether an operation has to do with other devices, or with which one it runs on."""
    if operation.name in ("tpu.enqueue_dma", "tpu.wait_dma"):
        return bool(_groups(operation).get("device_id"))
    if operation.name == "tpu.sem_signal":
        return bool(_signalled(operation).get("device_id"))
    return operation.name in ("tpu.device_id", "tpu.sem_barrier")
