"""The messages in which XLA dumps modules, distinguished by their contents (xla/service/hlo.proto).

    HloModuleProto          name = 1, entry_computation_name = 2, computations = 3, host_program_shape = 4, …
    HloProto                hlo_module = 1, buffer_assignment = 3
    HloSnapshot             hlo (an HloProto) = 1, arguments = 2, result = 3, execution_platform = 4
    HloUnoptimizedSnapshot  hlo_module = 1, partitions = 2 (each: arguments = 1, or argument_descriptors = 2)
    XSpace                  planes = 1: a profile, whose plane "/host:metadata" has an HloProto for each module that ran

A file does not name its type, but each of the others has its module inside field 1, at a different depth. An
HloUnoptimizedSnapshot may also stand behind its length, and its arguments behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from hloexec.core.structs import frozen
from hloexec.core.values import Value
from hloexec.core.wording import listing, quoted
from hloexec.errors import InputError
from hloexec.language.interop.literals import literal_value, packed_value
from hloexec.language.interop.wire import Message, read, read_varint

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


def module_file(data: bytes, filename: str, *, with_values: bool = False) -> ModuleFile:
    """Read any of the messages; the values of a snapshot are read where they are asked for.

    Raises InputError where the bytes are none of them, or hold several modules.
    """
    try:
        return _module_file(data, with_values)
    except InputError as error:
        found = _behind_its_length(data, filename, with_values) or _of_profile(data, filename)
        if found is None:
            raise InputError(
                f"{filename} is neither text nor a whole HloModuleProto, HloProto or HloSnapshot: {error.message}"
            ) from error
        return found


def _behind_its_length(data: bytes, filename: str, with_values: bool) -> ModuleFile | None:
    """The snapshot that XLA writes under `--xla_dump_hlo_as_proto`; None for anything else."""
    view = memoryview(data)
    try:
        size, start = read_varint(view, 0)
        outer = read(view[start : start + size])
        module = read(outer.blob(1))
    except InputError:
        return None
    position = start + size
    if position > len(view) or not _is_module(module):
        return None
    inputs: list[tuple[Value, ...]] = []
    for device in outer.messages(2) if with_values else ():
        values = []
        for descriptor in device.messages(2):
            try:
                start, position = position, position + descriptor.natural(2, "its size")
                values.append(packed_value(view[start:position]))
            except InputError as error:
                raise InputError(f"{filename}, argument {len(values)}: {error.message}") from error
        inputs.append(tuple(values))
    return _file(outer.blob(1), module, tuple(inputs))


def _of_profile(data: bytes, filename: str) -> ModuleFile | None:
    modules = _profile_modules(data)
    if modules is None:
        return None
    if not modules:
        raise InputError(f"{filename} is a profile that has no modules")
    if len(modules) > 1:
        raise InputError(f"{filename} is a profile of {len(modules)} modules{_choice(modules)}")
    (proto,) = modules.values()
    return _module_file(bytes(proto), False)


def _profile_modules(data: bytes) -> dict[str, memoryview] | None:
    """The HloProto of each module that a profile names, `NAME(PROGRAM)`; None where the bytes are no profile."""
    try:
        planes = {plane.text(2): plane for plane in read(data).messages(1)}
        is_profile = any(name.startswith(("/host:", "/device:")) for name in planes)
        found: dict[str, memoryview] = {}
        for entry in planes["/host:metadata"].messages(4) if "/host:metadata" in planes else ():
            event = entry.message(2)
            found |= {event.text(2): stat.blob(6) for stat in event.messages(5) if 6 in stat}
    except InputError:
        return None
    return found if is_profile else None


def chosen_module(data: bytes, name: str, filename: str) -> bytes:
    """The module of a profile with a name, a program number, or a name that no other module has."""
    modules = _profile_modules(data)
    if modules is None:
        raise InputError(f"{filename}: the file is no profile of several modules, from which one could be chosen")
    found = [each for each in modules if name in (each, each.rpartition("(")[0], each.rpartition("(")[2][:-1])]
    if len(found) != 1:
        what = "has no module" if not found else f"has {len(found)} modules"
        raise InputError(f"{filename}: the profile {what} {quoted(name)}{_choice(modules)}")
    return bytes(modules[found[0]])


def _choice(modules: Iterable[str]) -> str:
    names = sorted(modules)
    return f"; choose one as FILE#NAME, where NAME is one of {listing(names, 20)}" if names else ""


def _module_file(data: bytes, with_values: bool) -> ModuleFile:
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
    replicas = assignment.natural(_REPLICA_COUNT, "the number of replicas")
    partitions = assignment.natural(_COMPUTATION_COUNT, "the number of partitions")
    if max(replicas, partitions) >= 1 << 31:
        raise InputError(f"the device assignment is for {replicas} replicas of {partitions} partitions")
    return ModuleFile(bytes(proto), max(1, replicas), max(1, partitions), inputs, result)
