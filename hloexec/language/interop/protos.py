"""The messages in which XLA dumps modules, and HloModuleProto to a module (xla/service/hlo.proto).

HloModuleProto to a module (xla/service/hlo.proto). The message is the module as the text shows it, but that
instructions and computations refer to one another by number.

    HloModuleProto          name = 1, entry_computation_name = 2, computations = 3, host_program_shape = 4, …
    HloProto                hlo_module = 1, buffer_assignment = 3
    HloSnapshot             hlo (an HloProto) = 1, arguments = 2, result = 3, execution_platform = 4
    HloUnoptimizedSnapshot  hlo_module = 1, partitions = 2 (each: arguments = 1, or argument_descriptors = 2)
    XSpace                  planes = 1: a profile, whose plane "/host:metadata" has an HloProto for each module that ran

A file does not name its type, but each of the others has its module inside field 1, at a different depth. An
HloUnoptimizedSnapshot may also stand behind its length, and its arguments behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hloexec.core.ir import Alias, Computation, EntryLayout, Instruction, Literal, Metadata, Module, Shape, Statistics
from hloexec.core.process import collection_paused
from hloexec.core.structs import frozen
from hloexec.core.values import Pairs, Value
from hloexec.core.wording import listing, quoted
from hloexec.errors import InputError, warn
from hloexec.language.interop.attribute_protos import (
    KNOWN,
    attributes_of,
    metadata_of,
    origin_of,
    sharding_of,
    stack_frames_of,
)
from hloexec.language.interop.shape_protos import literal_of, literal_value, packed_value, shape_of, shapes_of
from hloexec.language.interop.wire import Message, read, read_varint
from hloexec.ops.control.flow import ConstantAttributes, ParameterAttributes
from hloexec.ops.registry import Role, find_opcode

_COMMON = {1, 2, 3, 7, 8, 9, 35, 36, 37, 38, 40, 43, 61, 68, 82, 88, 99}
_ALIAS_KINDS = ("undefined-alias", "may-alias", "must-alias")


def module_of(proto: memoryview | bytes) -> Module:
    """The module of a serialized HloModuleProto; raises InputError where it is damaged.

    Warns about fields of instructions that a newer XLA has added.
    """
    message = read(proto)
    protos = message.messages(3)
    reader = _Reader(message, protos)
    with collection_paused():
        computations = tuple(map(reader.computation, protos))
    if b"ConcatBitcast" in bytes(proto):
        from hloexec.ops.library_calls.compiler import slices_in_place

        computations = slices_in_place(computations)
    if reader.unknown:
        warn(f"fields of a newer XLA are ignored: {listing(sorted(reader.unknown), 10)}")
    layout = message.message(4)
    result = layout.blob(2)
    return Module(
        name=message.text(1),
        computations=computations,
        entry_name=reader.name_of(message.integer(6)) if 6 in message else message.text(2),
        is_scheduled=7 in message,
        input_output_alias=tuple(map(_alias, message.message(8).messages(1))),
        buffer_donor=tuple(
            (donor.natural(1, "the number of a donated parameter"), donor.integers(2))
            for donor in message.message(18).messages(1)
        ),
        entry_computation_layout=EntryLayout(shapes_of(layout, 1), shape_of(bytes(result))) if result else None,
        frontend_attributes=_map(message.message(19)) or None,
        stack_frames=stack_frames_of(message.message(17)) if message.blob(17) else None,
    )


def _alias(entry: Message) -> Alias:
    kind = entry.integer(4)
    if not 0 < kind < len(_ALIAS_KINDS):
        raise InputError(f"an alias has the kind {kind}, which is not known")
    number = entry.natural(2, "the number of an aliased parameter")
    return Alias(entry.integers(1), number, entry.integers(3), _ALIAS_KINDS[kind])


def _map(message: Message) -> Pairs:
    """The pairs of a map, which has no order, in that of the text."""
    return tuple(sorted((entry.text(1), entry.text(2)) for entry in message.messages(1)))


class _Reader:
    """Reads the computations of one module, whose names stand for numbers."""

    def __init__(self, module: Message, computations: Sequence[Message]) -> None:
        self._names = {computation.integer(5): computation.text(1) for computation in computations}
        if len(self._names) != len({*self._names.values()}):
            raise InputError("two computations have one name")
        self._payloads = module.texts(22)
        entries = module.message(7).messages(1)
        self._schedule = {entry.integer(1): entry.message(2).integers(1) for entry in entries}
        self.unknown: set[str] = set()
        """Fields that this version does not know, each with its opcode."""

    def name_of(self, number: int) -> str:
        """The name of a computation."""
        if number not in self._names:
            raise InputError(f"a computation has the number {number}, which the module does not have")
        return self._names[number]

    def computation(self, message: Message) -> Computation:
        """One computation, its instructions in the order of the schedule where there is one."""
        name = message.text(1)
        instructions: dict[int, Instruction] = {}
        for proto in message.messages(2):
            try:
                number = proto.integer(35)
                if number in instructions:
                    raise InputError(f"its number, {number}, is that of {quoted(instructions[number].name, 80)}")
                instructions[number] = self._instruction(proto, instructions)
            except InputError as error:
                place = f"the instruction {quoted(proto.text(1), 80)} of {quoted(name, 80)}"
                raise InputError(f"{place} cannot be read: {error.message}") from error
        order = [number for number in self._schedule.get(message.integer(5), ()) if number in instructions]
        root = instructions.get(message.integer(6))
        if root is None or len({*order}) not in (0, len(instructions)):
            missing = "root" if root is None else "schedule"
            raise InputError(f"the {missing} of {quoted(name, 80)} is not among its instructions")
        return Computation(
            name=name,
            instructions=tuple(instructions[number] for number in dict.fromkeys(order or instructions)),
            root_name=root.name,
            execution_thread=message.text(8) or "main",
        )

    def _instruction(self, proto: Message, instructions: dict[int, Instruction]) -> Instruction:
        opcode, shape = proto.text(2), shape_of(bytes(proto.blob(3)))
        operands = list(_of_known(proto.integers(36), instructions, "operand"))
        predecessors = _of_known(proto.integers(37), instructions, "control predecessor")
        metadata = metadata_of(bytes(proto.blob(7)))
        replication = tuple(map(bool, proto.message(61).integers(1)))
        # An empty message says nothing.
        others = {
            number for number in proto.fields.keys() - _COMMON - KNOWN if proto.fields[number] != [memoryview(b"")]
        }
        self.unknown |= {f"{number} of {opcode}" for number in others}
        return Instruction(
            name=proto.text(1),
            shape=shape,
            opcode=opcode,
            operands=tuple(operand.name for operand in operands),
            attributes=self._attributes(proto, opcode, shape, [operand.shape for operand in operands]),
            metadata=None if metadata == Metadata() else metadata,
            backend_config=proto.text(43) or self._payload(proto.message(99)) or None,
            sharding=sharding_of(proto.message(40)) if 40 in proto else None,
            frontend_attributes=_map(proto.message(68)) or None,
            control_predecessors=tuple(each.name for each in predecessors),
            parameter_replication=replication or None,
            original_value=origin_of(proto.message(88), shape) if 88 in proto else None,
            statistics=_statistics(proto.message(82)) if 2 in proto.message(82) else None,
        )

    def _attributes(self, proto: Message, opcode: str, shape: Shape, operands: Sequence[Shape]) -> object:
        entry = find_opcode(opcode)
        if entry is None or entry.attributes is None:
            return None
        if entry.role is Role.PARAMETER:
            return ParameterAttributes(proto.natural(9, "the number of a parameter"))
        if entry.role is Role.CONSTANT:
            return ConstantAttributes(literal_of(proto.blob(8)) if 8 in proto else Literal(shape, None))
        called = [self.name_of(number) for number in proto.integers(38)]
        return attributes_of(entry, proto, called, operands)

    def _payload(self, payload: Message) -> str:
        """A configuration that the module lists, or that the instruction has itself."""
        if 2 not in payload:
            return payload.text(1)
        number = payload.integer(2)
        if not 0 <= number < len(self._payloads):
            raise InputError(f"there is no payload {number}")
        return self._payloads[number]


def _of_known(numbers: Sequence[int], instructions: dict[int, Instruction], subject: str) -> Iterator[Instruction]:
    for number in numbers:
        if number not in instructions:
            raise InputError(f"the {subject} with the number {number} does not stand before it")
        yield instructions[number]


def _statistics(message: Message) -> Statistics:
    return Statistics(message.integer(1), tuple((entry.text(1), entry.float(2)) for entry in message.messages(2)))


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
        file = _behind_its_length(data, filename, with_values) or _of_profile(data, filename)
        if file is None:
            raise InputError(
                f"{filename} is neither text nor a whole HloModuleProto, HloProto or HloSnapshot: {error.message}"
            ) from error
        return file


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
        modules: dict[str, memoryview] = {}
        for entry in planes["/host:metadata"].messages(4) if "/host:metadata" in planes else ():
            event = entry.message(2)
            modules |= {event.text(2): stat.blob(6) for stat in event.messages(5) if 6 in stat}
    except InputError:
        return None
    return modules if is_profile else None


def chosen_module(data: bytes, name: str, filename: str) -> bytes:
    """The module of a profile with a name, a program number, or a name that no other module has."""
    modules = _profile_modules(data)
    if modules is None:
        raise InputError(f"{filename}: the file is no profile of several modules, from which one could be chosen")
    matches = [
        candidate
        for candidate in modules
        if name in (candidate, candidate.rpartition("(")[0], candidate.rpartition("(")[2][:-1])
    ]
    if len(matches) != 1:
        fault = "has no module" if not matches else f"has {len(matches)} modules"
        raise InputError(f"{filename}: the profile {fault} {quoted(name)}{_choice(modules)}")
    return bytes(modules[matches[0]])


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
