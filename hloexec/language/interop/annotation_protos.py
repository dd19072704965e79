"""What instructions carry besides attributes: metadata and the tables of source lines, shardings and replica groups
(xla/xla_data.proto, xla/service/hlo.proto)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from hloexec.core.ir import (
    AxisRef,
    DimensionSharding,
    FileLocation,
    IotaTiles,
    Mesh,
    MeshReplicaGroups,
    Metadata,
    NamedSharding,
    OriginalValue,
    ReplicaGroups,
    Shape,
    Sharding,
    ShardingType,
    StackFrame,
    StackFrames,
    TileSharding,
    TupleShape,
    TupleSharding,
)
from hloexec.core.wording import braced
from hloexec.errors import InputError
from hloexec.language.interop.wire import Message, read
from hloexec.language.text.lexer import escape

_TEXTS = {"op_type": 1, "op_name": 2, "source_file": 3, "deduplicated_name": 12, "scheduling_name": 16}
_LINES = {"source_line": 4, "source_end_line": 17, "source_column": 18, "source_end_column": 19, "stack_frame_id": 15}

_TUPLE = 2
_TYPES = (
    *(ShardingType.REPLICATED, ShardingType.MAXIMAL, None, ShardingType.TILED),
    *(ShardingType.MANUAL, ShardingType.UNKNOWN, ShardingType.UNREDUCED),
)
"""By their numbers; a tuple is not of one array."""
_LISTS, _IOTA_LIST, _MESH_LIST, _OLD_GROUPS = 87, 92, 93, 49


@lru_cache(maxsize=4096)  # many instructions come from the same line
def metadata_of(data: bytes) -> Metadata:
    """The metadata of a serialized OpMetadata."""
    message = read(data)
    values: dict[str, Any] = {name: message.text(number) or None for name, number in _TEXTS.items()}
    values |= {name: max(0, message.integer(number)) or None for name, number in _LINES.items()}
    profile = message.message(10).integers(1) or message.integers(5)
    return Metadata(**values, profile_type=profile if len(profile) == 1 else None)


def origin_of(message: Message, shape: Shape) -> OriginalValue:
    """What an OriginalValueProto says of each leaf of a value, as the text shows it."""
    if message.integer(2):
        return OriginalValue("{[synthetic_call]}")
    texts = {}
    for element in message.messages(1):
        array = element.message(2)
        index = f" {braced(array.integers(2))}" if 2 in array else ""
        if name := array.text(1):
            texts[element.integers(1)] = f'{{"{escape(name)}"{index}}}'

    def text(part: Shape, place: tuple[int, ...]) -> str:
        if not isinstance(part, TupleShape):
            return texts.get(place, "{}")
        return f"({', '.join(text(element, (*place, at)) for at, element in enumerate(part.elements))})"

    return OriginalValue(f"{{{text(shape, ())}}}")


def stack_frames_of(message: Message) -> StackFrames:
    """The tables of a StackFrameIndexProto."""
    locations = (FileLocation(*map(row.integer, (1, 2, 3, 5, 4, 6))) for row in message.messages(3))
    # The text counts parents from 1 where the message says 0 for none.
    frames = (StackFrame(row.integer(1), row.integer(2) + 1) for row in message.messages(4))
    return StackFrames(message.texts(1), message.texts(2), tuple(locations), tuple(frames))


def sharding_of(message: Message) -> Sharding:
    """The sharding of an OpSharding."""
    if message.integer(1) == _TUPLE:
        elements = map(_element_sharding, message.messages(5))
        return TupleSharding(tuple(elements))
    return _element_sharding(message)


def _element_sharding(message: Message) -> TileSharding | NamedSharding:
    if 14 in message:
        return _named_sharding(message.message(14))
    kind = _type(message.integer(1))
    is_tiled = kind is ShardingType.TILED
    dimensions, devices = message.integers(3), message.integers(4)
    iota = IotaTiles(dimensions, message.integers(9), message.integers(10)) if 9 in message else None
    group = message.integer(12) if message.integer(11) else None
    is_like = message.integer(13) == 1
    return TileSharding(
        kind,
        device=devices[0] if kind is ShardingType.MAXIMAL and devices else None,
        tile_dimensions=dimensions if is_tiled else (),
        devices=devices if is_tiled and iota is None else (),
        iota=iota if is_tiled else None,
        last_tile_dims=tuple(map(_type, message.integers(8))),
        last_tile_dim_replicate=bool(message.integer(6)),
        shard_as=None if is_like else group,
        shard_like=group if is_like else None,
        metadata=tuple(metadata_of(bytes(blob)) for blob in message.blobs(7)),
    )


def _type(number: int) -> ShardingType:
    found = _TYPES[number] if 0 <= number < len(_TYPES) else None
    if found is None:
        raise InputError(f"a sharding has the type {number}, which is not known")
    return found


def _named_sharding(message: Message) -> NamedSharding:
    mesh = _mesh(message.message(2))
    dimensions = (
        DimensionSharding(_axes(dimension, 1, mesh), bool(dimension.integer(2))) for dimension in message.messages(3)
    )
    replicated, unreduced, manual = (_axes(message, number, mesh) for number in (4, 5, 7))
    kind = None
    if mesh.axes and 3 not in message and not replicated:
        whole = tuple(AxisRef(name) for name, _ in mesh.axes)
        shares = ((), ()), (whole, ()), ((), whole)
        kinds = ShardingType.REPLICATED, ShardingType.UNREDUCED, ShardingType.MANUAL
        kind = dict(zip(shares, kinds, strict=True)).get((unreduced, manual))
    return NamedSharding(
        mesh,
        kind=kind,
        dimensions=tuple(dimensions),
        replicated=replicated,
        unreduced=() if kind else unreduced,
        manual=() if kind else manual,
        metadata=tuple(metadata_of(bytes(blob)) for blob in message.blobs(6)),
    )


def _mesh(message: Message) -> Mesh:
    axes = tuple((axis.text(1), axis.integer(2)) for axis in message.messages(1))
    devices, iota = message.integers(2), message.message(3)
    if not axes and len(devices) == 1:
        return Mesh(maximal_device=devices[0])
    sizes = tuple(size for _, size in axes)
    tiles = IotaTiles(sizes, iota.integers(1), iota.integers(2)) if 3 in message else None
    return Mesh(axes, devices or None, tiles)


def _axes(message: Message, number: int, mesh: Mesh) -> tuple[AxisRef, ...]:
    found = []
    for axis in message.messages(number):
        index, part = axis.integer(1), axis.message(2)
        if not 0 <= index < len(mesh.axes):
            raise InputError(f"a sharding names axis {index} of a mesh of {len(mesh.axes)} axes")
        found.append(AxisRef(mesh.axes[index][0], (part.integer(1), part.integer(2)) if 2 in axis else None))
    return tuple(found)


def replica_groups_of(instruction: Message) -> ReplicaGroups:
    """The groups of a collective, in the newest form that the instruction has."""
    if _MESH_LIST in instruction:
        groups = instruction.message(_MESH_LIST)
        mesh = _mesh(groups.message(1))
        return ReplicaGroups(mesh=MeshReplicaGroups(mesh, _axes(groups, 2, mesh)))
    lists = instruction.message(_LISTS)
    iota = instruction.message(_IOTA_LIST) if _IOTA_LIST in instruction else lists.message(2)
    if iota.fields:
        dimensions = iota.integer(1), iota.integer(2)
        return ReplicaGroups(iota=IotaTiles(dimensions, iota.integers(3), iota.integers(4)))
    groups_as_lists = lists.messages(1) or instruction.messages(_OLD_GROUPS)
    return ReplicaGroups(tuple(group.integers(1) for group in groups_as_lists))
