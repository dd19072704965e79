"""What instructions carry besides operands, from protos: attributes, metadata, shardings and replica groups.

A table says where the message has what the text calls by name; the grammar that the opcode declares says how it is
read. What a message leaves out is zero, or the attribute's default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from hloexec.core.dtypes import Kind
from hloexec.core.ir import (
    ArrayShape,
    AxisRef,
    ConvolutionDimensionNumbers,
    DimensionSharding,
    FileLocation,
    IotaTiles,
    Mesh,
    MeshReplicaGroups,
    Metadata,
    NamedSharding,
    OriginalValue,
    PaddingDimension,
    ReplicaGroups,
    ResultAccuracy,
    Shape,
    Sharding,
    ShardingType,
    SliceDimension,
    StackFrame,
    StackFrames,
    TileSharding,
    TupleSharding,
    Window,
    WindowDimension,
    flat_shapes,
    leaf_shapes,
)
from hloexec.core.ir.shape import elements_of
from hloexec.core.tree import fold, parenthesized
from hloexec.core.wording import braced
from hloexec.errors import InputError
from hloexec.language.interop.shape_protos import literal_of, shape_of, shapes_of
from hloexec.language.interop.wire import Message, read
from hloexec.language.text.lexer import escape
from hloexec.ops.attributes import AttributeField, Grammar, OperandAlias, attribute_fields
from hloexec.ops.registry import Entry

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
    leaves = iter([texts.get(index, "{}") for index, _ in leaf_shapes(shape)])
    return OriginalValue(f"{{{fold(shape, elements_of, lambda _: next(leaves), parenthesized)}}}")


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
    sharding_type = _TYPES[number] if 0 <= number < len(_TYPES) else None
    if sharding_type is None:
        raise InputError(f"a sharding has the type {number}, which is not known")
    return sharding_type


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
    axes = []
    for axis in message.messages(number):
        index, part = axis.integer(1), axis.message(2)
        if not 0 <= index < len(mesh.axes):
            raise InputError(f"a sharding names axis {index} of a mesh of {len(mesh.axes)} axes")
        axes.append(AxisRef(mesh.axes[index][0], (part.integer(1), part.integer(2)) if 2 in axis else None))
    return tuple(axes)


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


_PLACES = """
    algorithm 51.2 70, api_version 77, async_execution_thread 79, batch_group_count 58, channel_id 26 45,
    collapsed_slice_dims 33.2, constrain_layout 56, convolution_kind 97, cross_program_prefetch_index 80,
    custom_call_has_side_effect 65, custom_call_target 28, delta 66, dim_labels 16, dimensions 14, direction 63,
    distribution 23, domain 54, dynamic_slice_sizes 20, epsilon 24, exponent_bits 18, feature_group_count 50,
    feature_index 25, fft_length 32, fft_type 31, index 13, index_vector_dim 33.4 48.4, indices_are_sorted 67,
    inferred_dimension 14, infeed_config 27, input_batching_dims 48.5, inserted_window_dims 48.2, iota_dimension 14,
    is_composite 89, is_associative 96, is_host_transfer 47, is_reverse 94, is_stable 60, k 81, kind 11, largest 85,
    left_side 59.1, lhs_batch_dims 30.3 90.1.3, lhs_contracting_dims 30.1 90.1.1, lhs_ragged_dims 90.2, literal 8,
    lower 59.2 62.1, mantissa_bits 19, num_carries 95, offset_dims 33.1, operand_batching_dims 33.5,
    operand_layout_constraints 56, operand_precision 51.1, order 102, outfeed_config 22, outfeed_shape 29,
    output_to_operand_aliasing 74, padding 21.1, padding_type 75, replica_groups 49 87 92 93, result_accuracy 91,
    rhs_batch_dims 30.4 90.1.4, rhs_contracting_dims 30.2 90.1.2, rhs_group_dims 90.3,
    scatter_dims_to_operand_dims 48.3, scatter_indices_batching_dims 48.6, schedule 76, slice 17, slice_sizes 34,
    source_target_pairs 52, sparsity_config 98,
    start_index_map 33.3, start_indices_batching_dims 33.6, transpose_a 59.4, type 72, unique_indices 69,
    unit_diagonal 59.3, update_window_dims 48.1, use_global_device_ids 71, window 15
"""
_PATHS = {
    name: tuple(tuple(map(int, path.split("."))) for path in paths)
    for name, *paths in (entry.split() for entry in _PLACES.split(","))
}
_DIMENSIONS = (14,)
"""A list, of which some attributes are the one number."""
KNOWN = {path[0] for paths in _PATHS.values() for path in paths} | {55, 57, 73}
"""The fields of an instruction that the table, and what it leads to, read."""

_WORDS = {
    "distribution": ("rng_invalid", "rng_uniform", "rng_normal"),
    "api_version": ("API_VERSION_ORIGINAL",),
    "algorithm": """
        unset dot_any_f8_any_f8_f32 dot_any_f8_any_f8_f32_fast_accum dot_f16_f16_f16 dot_f16_f16_f32 dot_bf16_bf16_bf16
        dot_bf16_bf16_f32 dot_bf16_bf16_f32_x3 dot_bf16_bf16_f32_x6 dot_tf32_tf32_f32 dot_tf32_tf32_f32_x3
        dot_f32_f32_f32 dot_f64_f64_f64 dot_bf16_bf16_f32_x9
    """.split(),
}
"""Enumerations whose numbers are not the places of their words in the entry's declaration."""

_CALLED = {
    name: place
    for place, names in enumerate(
        ("body select true_computation to_apply calls".split(), "condition scatter false_computation".split())
    )
    for name in names
}
"""Which of the computations that an instruction calls an attribute names."""


def attributes_of(entry: Entry, instruction: Message, called: Sequence[str], operands: Sequence[Shape]) -> Any:
    """An object of the entry's attributes class; raises InputError for what the class has no word for."""
    values: dict[str, Any] = {}
    for declared in attribute_fields(entry.attributes).values():
        if declared.grammar in (Grammar.COMPUTATION, Grammar.COMPUTATION_LIST):
            value = _called(declared, called, operands)
        else:
            value = _value(declared, instruction, operands)
        if value is not None:
            values[declared.field] = value
        elif declared.is_required:
            raise InputError(f"{entry.name} lacks {declared.name}")
    return entry.attributes and entry.attributes(**values)


def _called(declared: AttributeField, called: Sequence[str], operands: Sequence[Shape]) -> Any:
    """What an attribute that names computations says; None where it says nothing."""
    selects = declared.name in ("branch_computations", "true_computation", "false_computation")
    is_two_way = bool(operands) and isinstance(operands[0], ArrayShape) and operands[0].element_type.kind is Kind.PRED
    if selects and is_two_way == (declared.grammar is Grammar.COMPUTATION_LIST):
        return None
    if declared.grammar is Grammar.COMPUTATION_LIST:
        return tuple(called)
    place = _CALLED[declared.name]
    return called[place] if place < len(called) and (declared.is_required or selects) else None


def _value(declared: AttributeField, instruction: Message, operands: Sequence[Shape]) -> Any:
    """The value of any other attribute; None for its default."""
    if declared.grammar is Grammar.INT_LIST_LIST:
        return _slice_sizes(instruction, operands)
    paths = _PATHS.get(declared.name, ())
    is_stated = declared.is_required or (declared.grammar is Grammar.BOOL and declared.always_printed)
    path = next((path for path in paths if path[0] in instruction), paths[0] if is_stated and paths else ())
    holder = instruction
    for number in path[:-1]:
        holder = holder.message(number)
    if not path or (path[-1] not in holder and not is_stated):
        return _said_lately(declared, instruction, operands)
    special = _SPECIAL.get(declared.grammar)
    if special is not None:
        return special(instruction)
    value = _READERS[declared.grammar](declared, holder, path[-1])
    return None if _is_default(declared, value, operands) else value


def _said_lately(declared: AttributeField, instruction: Message, operands: Sequence[Shape]) -> Any:
    """The value that a newer XLA gives by an attribute of another name; None for the default."""
    for name, words in (declared.lately or {}).items():
        ((number,),) = _PATHS[name]
        if number in instruction:
            is_float = any(isinstance(shape, ArrayShape) and shape.element_type.is_floating for shape in operands)
            return words.get(instruction.text(number)) if is_float else None
    return None


def _is_default(declared: AttributeField, member: Any, operands: Sequence[Shape]) -> bool:
    """Whether the text would not say so."""
    if declared.name == "channel_id" or declared.name.endswith("group_count"):
        return bool(member <= 0)
    if declared.name == "type" and operands and isinstance(operands[0], ArrayShape):
        kind = operands[0].element_type.kind
        names = {Kind.SIGNED: "SIGNED", Kind.FLOAT: "FLOAT", Kind.COMPLEX: "FLOAT"}
        return bool(member == names.get(kind, "UNSIGNED"))
    return declared.name == "operand_precision" and set(member) <= {"default"}


def _word(declared: AttributeField, holder: Message, number: int) -> str:
    payload = holder.fields.get(number, [0])[-1]
    if not isinstance(payload, int):
        return holder.text(number)
    words = list(declared.choices or ())
    if declared.name == "api_version":
        words = [words[0], *words]
    elif declared.name != "algorithm" or "unset" in words:
        words = list(_WORDS.get(declared.name, words))
    return _chosen(words, payload, declared.name)


def _chosen(words: Sequence[str], number: int, subject: str) -> str:
    if not 0 <= number < len(words):
        raise InputError(f"the number {number} of {subject} is not known")
    return words[number]


def _integer(declared: AttributeField, holder: Message, number: int) -> int:
    is_dimension = _DIMENSIONS in _PATHS[declared.name]
    return _only(declared, holder.integers(number)) if is_dimension else holder.integer(number)


def _only(declared: AttributeField, found: Sequence[int]) -> int:
    if len(found) != 1:
        raise InputError(f"{declared.name} should hold one number, it holds {len(found)}")
    return found[0]


_READERS: dict[Grammar, Callable[[AttributeField, Message, int], Any]] = {
    Grammar.BOOL: lambda _, holder, number: holder.integer(number) == 1,
    Grammar.INT: _integer,
    Grammar.INT32: lambda _, holder, number: holder.integer(number),
    Grammar.INT_IN_LIST: lambda declared, holder, number: _only(declared, holder.integers(number)),
    Grammar.INT_LIST: lambda _, holder, number: holder.integers(number),
    Grammar.FLOAT: lambda _, holder, number: holder.float(number),
    Grammar.STRING: lambda _, holder, number: holder.text(number),
    Grammar.SHAPE: lambda _, holder, number: shape_of(bytes(holder.blob(number))),
    Grammar.LITERAL: lambda _, holder, number: literal_of(holder.blob(number)),
    Grammar.ENUM: _word,
    Grammar.ENUM_LIST: lambda declared, holder, number: tuple(
        _chosen(declared.choices or (), entry, declared.name) for entry in holder.integers(number)
    ),
    Grammar.INT_PAIRS: lambda _, holder, number: tuple((x.integer(1), x.integer(2)) for x in holder.messages(number)),
    Grammar.SLICE: lambda _, holder, number: tuple(
        SliceDimension(x.integer(1), x.integer(2), x.integer(3) or 1) for x in holder.messages(number)
    ),
    Grammar.PADDING: lambda _, holder, number: tuple(
        PaddingDimension(*map(x.integer, (1, 2, 3))) for x in holder.messages(number)
    ),
    Grammar.ALIASING: lambda _, holder, number: tuple(
        OperandAlias(x.integers(1), x.integer(2), x.integers(3)) for x in holder.messages(number)
    ),
}


def _window(instruction: Message) -> Window:
    return Window(tuple(map(_window_dimension, instruction.message(15).messages(1))))


def _window_dimension(entry: Message) -> WindowDimension:
    size, stride, low, high, window_dilation, base_dilation, is_reversed = map(entry.integer, range(1, 8))
    return WindowDimension(size, stride or 1, low, high, base_dilation or 1, window_dilation or 1, bool(is_reversed))


def _convolution_dimensions(instruction: Message) -> ConvolutionDimensionNumbers:
    numbers = instruction.message(16)
    sides: list[Any] = []
    for first, second, spatial in ((7, 8, 11), (3, 4, 6), (9, 10, 12)):
        sides += numbers.integer(first), numbers.integer(second), numbers.integers(spatial)
    ranks = (max(sides[at], sides[at + 1], *sides[at + 2]) + 1 for at in (0, 3, 6))
    return ConvolutionDimensionNumbers(*sides, *ranks)


def _result_accuracy(instruction: Message) -> ResultAccuracy | None:
    accuracy = instruction.message(91)
    if 2 not in accuracy:
        mode = _chosen(("default", "highest"), accuracy.integer(1), "result_accuracy")
        return None if mode == "default" else ResultAccuracy(mode)
    tolerance = read(accuracy.blob(2))
    return ResultAccuracy(None, float(tolerance.integer(3)), tolerance.float(2), tolerance.float(1))


def _slice_sizes(instruction: Message, operands: Sequence[Shape]) -> tuple[tuple[int, ...], ...] | None:
    """What a collective-permute moves in place: the message has one size after the other."""
    leaves = [leaf.array_shape for leaf in flat_shapes(*operands[:1])]
    sizes, rank = instruction.integers(20), leaves[0].rank if leaves else 0
    return tuple(sizes[at : at + rank] for at in range(0, len(sizes), rank)) if rank else None


def _sparsity_config(instruction: Message) -> str | None:
    config = instruction.message(98)
    sides = ((name, config.message(number)) for name, number in (("lhs", 1), ("rhs", 2)) if number in config)
    texts = [
        f"{name}={{sparsity={side.integer(1)}x{side.integer(2)} dimension={side.integer(3)} stride={side.integer(4)}}}"
        for name, side in sides
    ]
    return f"{{{' '.join(texts)}}}" if texts else None


_SPECIAL: dict[Grammar, Callable[[Message], Any]] = {
    Grammar.WINDOW: _window,
    Grammar.CONVOLUTION_DIMENSIONS: _convolution_dimensions,
    Grammar.SHAPE_LIST: lambda it: shapes_of(it, 57),
    Grammar.DOMAIN: lambda it: (sharding_of(it.message(55)), sharding_of(it.message(54))),
    Grammar.RESULT_ACCURACY: _result_accuracy,
    Grammar.REPLICA_GROUPS: replica_groups_of,
    Grammar.VERBATIM: _sparsity_config,
}
