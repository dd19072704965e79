"""The messages in which XLA dumps modules, distinguished by their contents (xla/service/hlo.proto).

    HloModuleProto          name = 1, entry_computation_name = 2, computations = 3, host_program_shape = 4, …
    HloProto                hlo_module = 1, buffer_assignment = 3
    HloSnapshot             hlo (an HloProto) = 1, arguments = 2, result = 3, execution_platform = 4
    HloUnoptimizedSnapshot  hlo_module = 1, partitions = 2 (each: arguments = 1)

A file does not name its type, but each of the others has its module inside field 1, at a different depth.
"""

from __future__ import annotations

from hloexec.errors import InputError
from hloexec.interop.literals import literal_value
from hloexec.interop.wire import Message, read
from hloexec.structs import frozen
from hloexec.values import Value

__all__ = ["ModuleFile", "module_file"]

_NAME, _COMPUTATIONS, _PROGRAM_SHAPE, _DEVICE_ASSIGNMENT = 1, 3, 4, 15
_INSTRUCTIONS = 2
_REPLICA_COUNT, _COMPUTATION_COUNT = 1, 2


@frozen
class ModuleFile:
    """What a file holds: a serialized HloModuleProto, and how many devices it was compiled for."""

    proto: bytes
    replica_count: int
    num_partitions: int
    inputs_per_device: tuple[tuple[Value, ...], ...] = ()
    """The arguments of a snapshot; empty for a module alone."""
    result: Value | None = None
    """The result of a snapshot, where it has one."""


def module_file(data: bytes, *, with_values: bool = False) -> ModuleFile:
    """Read any of the four messages; the values of a snapshot are read where they are asked for.

    Raises InputError where the bytes are none of them.
    """
    outer = read(data)
    if _is_module(outer):
        return _file(data, outer)
    inner = read(outer.blob(1))
    if _is_module(inner):
        inputs = tuple(_values(read(device), 1) for device in outer.blobs(2)) if with_values else ()
        return _file(outer.blob(1), inner, inputs)
    innermost = read(inner.blob(1))
    if not _is_module(innermost):
        raise InputError("no module is found in it")
    if not with_values:
        return _file(inner.blob(1), innermost)
    result = literal_value(outer.blob(3)) if 3 in outer else None
    return _file(inner.blob(1), innermost, (_values(outer, 2),), result)


def _is_module(message: Message) -> bool:
    """Whether a message is an HloModuleProto: computations that hold instructions, and the entry's shape."""
    if _COMPUTATIONS not in message or _PROGRAM_SHAPE not in message:
        return False
    try:
        return all(_INSTRUCTIONS in read(computation) for computation in message.blobs(_COMPUTATIONS))
    except InputError:
        return False


def _values(message: Message, field: int) -> tuple[Value, ...]:
    return tuple(map(literal_value, message.blobs(field)))


def _file(
    proto: memoryview | bytes, module: Message, inputs: tuple[tuple[Value, ...], ...] = (), result: Value | None = None
) -> ModuleFile:
    assignment = read(module.blob(_DEVICE_ASSIGNMENT))
    replicas, partitions = assignment.number(_REPLICA_COUNT), assignment.number(_COMPUTATION_COUNT)
    if max(replicas, partitions) >= 1 << 31:
        raise InputError(f"the device assignment is for {replicas} replicas of {partitions} partitions")
    return ModuleFile(bytes(proto), max(1, replicas), max(1, partitions), inputs, result)
