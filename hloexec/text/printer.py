"""IR to HLO text.

`format` writes what `parse` reads back to an equal module, and what XLA reads as the same module. Like the parser it knows
grammars, not opcodes: one function per grammar turns an attribute's value into text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from hloexec.ir import (
    ArrayShape,
    AxisRef,
    BufferShape,
    Computation,
    ConvolutionDimensionNumbers,
    Instruction,
    IotaTiles,
    Layout,
    Literal,
    Mesh,
    Metadata,
    Module,
    NamedSharding,
    PaddingDimension,
    ReplicaGroups,
    ResultAccuracy,
    Shape,
    Sharding,
    ShardingType,
    SliceDimension,
    StackFrames,
    Statistics,
    TileSharding,
    TupleShape,
    TupleSharding,
    Window,
)
from hloexec.ops.attributes import Grammar, OperandAlias, attribute_fields
from hloexec.ops.registry import Role, find_opcode
from hloexec.text.lexer import escape, is_dictionary

__all__ = ["format", "format_instruction", "format_shape"]


@attrs.frozen
class _Options:
    metadata: bool = True
    layouts: bool = True
    backend_config: bool = True


_EVERYTHING = _Options()


def format(module: Module, *, metadata: bool = True, layouts: bool = True, backend_config: bool = True) -> str:
    """A module as HLO text.

    `parse(format(module)) == module`. Leaving out metadata (and the tables it points to), layouts or backend configs
    gives text that is easier to read and to compare.
    """
    return "".join(_module(module, _Options(metadata, layouts, backend_config)))


def format_instruction(instruction: Instruction, *, metadata: bool = True, is_root: bool = False) -> str:
    """One instruction as a line of HLO text, without indentation."""
    return _instruction(instruction, _Options(metadata=metadata), is_root=is_root)


def format_shape(shape: Shape, *, layouts: bool = True) -> str:
    """A shape as HLO text, e.g. `(f32[2,3]{1,0}, token[])`."""
    return _shape(shape, _EVERYTHING if layouts else _Options(layouts=False))


# Modules


def _module(module: Module, options: _Options) -> Iterator[str]:
    yield f"HloModule {module.name}{''.join(_header(module, options))}\n"
    if module.stack_frames is not None and options.metadata:
        yield _stack_frames(module.stack_frames)
    for computation in module.computations:
        yield "\n"
        yield from _computation(computation, computation.name == module.entry_name, options)


def _header(module: Module, options: _Options) -> Iterator[str]:
    if module.is_scheduled:
        yield ", is_scheduled=true"
    if module.input_output_alias:
        entries = (
            f"{_braced(alias.output_index)}: ({alias.parameter_number}, {_braced(alias.parameter_index)}, {alias.kind})"
            for alias in module.input_output_alias
        )
        yield f", input_output_alias={{ {', '.join(entries)} }}"
    if module.buffer_donor:
        donors = (f"({number}, {_braced(index)})" for number, index in module.buffer_donor)
        yield f", buffer_donor={{ {', '.join(donors)} }}"
    if module.alias_passthrough_params:
        yield ", alias_passthrough_params=true"
    if module.entry_computation_layout is not None and options.layouts:
        layout = module.entry_computation_layout
        parameters = _shapes(layout.parameters, options)
        yield f", entry_computation_layout={{({parameters})->{_shape(layout.result, options)}}}"
    for name in ("allow_spmd_sharding_propagation_to_parameters", "allow_spmd_sharding_propagation_to_output"):
        if flags := getattr(module, name):
            yield f", {name}={{{','.join(map(_boolean, flags))}}}"
    if module.replica_count != 1:
        yield f", replica_count={module.replica_count}"
    if module.num_partitions != 1:
        yield f", num_partitions={module.num_partitions}"
    if module.frontend_attributes is not None:
        yield f", frontend_attributes={_frontend_attributes(module.frontend_attributes)}"
    if module.origin_recovery_table is not None:
        yield f", origin_recovery_table={module.origin_recovery_table}"
    for name, value in module.unknown_attributes:
        yield f", {name}={value}"


def _stack_frames(frames: StackFrames) -> str:
    lines = ["\nFileNames"]
    lines += (f'{i} "{escape(name)}"' for i, name in enumerate(frames.file_names, 1))
    lines.append("\nFunctionNames")
    lines += (f'{i} "{escape(name)}"' for i, name in enumerate(frames.function_names, 1))
    lines.append("\nFileLocations")
    lines += (f"{i} {_record(row)}" for i, row in enumerate(frames.file_locations, 1))
    lines.append("\nStackFrames")
    lines += (f"{i} {_record(row)}" for i, row in enumerate(frames.stack_frames, 1))
    return "\n".join(lines) + "\n\n"


def _record(row: Any) -> str:
    return "{" + " ".join(f"{name}={value}" for name, value in attrs.asdict(row).items()) + "}"


def _computation(computation: Computation, is_entry: bool, options: _Options) -> Iterator[str]:
    parameters = ", ".join(f"{p.name}: {_shape(p.shape, _NO_LAYOUTS)}" for p in computation.parameters)
    prefix = "ENTRY " if is_entry else ""
    yield f"{prefix}%{computation.name} ({parameters}) -> {_shape(computation.result_shape, _NO_LAYOUTS)} {{\n"
    for instruction in computation.instructions:
        yield f"  {_instruction(instruction, options, is_root=instruction.name == computation.root_name)}\n"
    thread = computation.execution_thread
    yield "}\n" if thread == "main" else f'}}, execution_thread="{escape(thread)}"\n'


# Instructions


def _instruction(instruction: Instruction, options: _Options, *, is_root: bool) -> str:
    pieces = ["ROOT %" if is_root else "%", instruction.name, " = ", _shape(instruction.shape, options), " "]
    pieces += (instruction.opcode, "(", _operands(instruction, options), ")")
    pieces += _attributes(instruction, options)
    return "".join(pieces)


def _operands(instruction: Instruction, options: _Options) -> str:
    if instruction.unknown_operands is not None:
        return instruction.unknown_operands
    entry = find_opcode(instruction.opcode)
    if entry is not None and entry.role is Role.PARAMETER:
        return str(instruction.attributes.number)
    if entry is not None and entry.role is Role.CONSTANT:
        return _literal(instruction.attributes.literal)
    return ", ".join(f"%{name}" for name in instruction.operands)


def _attributes(instruction: Instruction, options: _Options) -> Iterator[str]:
    attributes = instruction.attributes
    if attributes is not None:
        for declared in attribute_fields(type(attributes)).values():
            value = getattr(attributes, declared.field)
            if declared.is_required or value != declared.default:
                text = _WRITERS[declared.grammar](value)
                yield f", {declared.name}={text}"
    if instruction.sharding is not None:
        yield f", sharding={_sharding(instruction.sharding)}"
    if instruction.parameter_replication is not None:
        yield f", parameter_replication={{{','.join(map(_boolean, instruction.parameter_replication))}}}"
    if instruction.control_predecessors:
        yield f", control-predecessors={{{', '.join('%' + name for name in instruction.control_predecessors)}}}"
    if instruction.frontend_attributes is not None:
        yield f", frontend_attributes={_frontend_attributes(instruction.frontend_attributes)}"
    if instruction.statistics is not None:
        yield f", statistics={_statistics(instruction.statistics)}"
    if instruction.original_value is not None:
        yield f", origin={instruction.original_value.text}"
    for name, value in instruction.unknown_attributes:
        yield f", {name}={value}"
    if instruction.metadata is not None and options.metadata:
        yield f", metadata={_metadata(instruction.metadata)}"
    if instruction.backend_config is not None and options.backend_config:
        yield f", backend_config={_string_or_dictionary(instruction.backend_config)}"


# Shapes


def _shape(shape: Shape, options: _Options) -> str:
    """Written with a stack of our own: tuples nest as deep as they like."""
    if isinstance(shape, ArrayShape):
        return _array(shape, options)
    pieces: list[str] = []
    stack: list[Shape | str] = [shape]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif isinstance(item, TupleShape):
            stack.append(")")
            for i in range(len(item.elements) - 1, -1, -1):
                stack.append(item.elements[i])
                if i:
                    stack.append(f", /*index={i}*/" if i % 5 == 0 else ", ")
            stack.append("(")
        elif isinstance(item, BufferShape):
            pieces.append(f"b({_array(item.element, options)})")
        else:
            pieces.append(_array(item, options))
    return "".join(pieces)


def _array(shape: ArrayShape, options: _Options) -> str:
    if not shape.dynamic_dimensions:
        text = f"{shape.element_type.name}[{','.join(map(str, shape.dimensions))}]"
    else:
        text = str(shape)
    if shape.layout is not None and options.layouts and (layout := _layout(shape.layout)) != "{}":
        text += layout
    return text


def _layout(layout: Layout) -> str:
    text = ",".join(map(str, layout.minor_to_major))
    fields = "".join(_layout_fields(layout))
    return f"{{{text}:{fields}}}" if fields else f"{{{text}}}"


def _layout_fields(layout: Layout) -> Iterator[str]:
    if layout.dim_level_types:
        yield f"D({','.join(layout.dim_level_types)})"
    if layout.tiles:
        tiles = (",".join("*" if size == -1 else str(size) for size in tile) for tile in layout.tiles)
        yield "T" + "".join(f"({tile})" for tile in tiles)
    if layout.tail_padding_alignment_in_elements != 1:
        yield f"L({layout.tail_padding_alignment_in_elements})"
    if layout.index_primitive_type is not None:
        yield f"#({layout.index_primitive_type.name})"
    if layout.pointer_primitive_type is not None:
        yield f"*({layout.pointer_primitive_type.name})"
    if layout.element_size_in_bits:
        yield f"E({layout.element_size_in_bits})"
    if layout.memory_space:
        yield f"S({layout.memory_space})"
    if layout.split_configs:
        configs = (
            f"({config.dimension}:{','.join(map(str, config.split_indices))})" for config in layout.split_configs
        )
        yield "SC" + "".join(configs)
    if layout.dynamic_shape_metadata_prefix_bytes:
        yield f"M({layout.dynamic_shape_metadata_prefix_bytes})"


def _shapes(shapes: Iterable[Shape], options: _Options = _EVERYTHING) -> str:
    pieces = [_shape(shape, options) for shape in shapes]
    return ", ".join(f"/*index={i}*/{text}" if i and i % 5 == 0 else text for i, text in enumerate(pieces))


# Literals


def _literal(literal: Literal) -> str:
    """The value alone, the shape being written elsewhere."""
    pieces: list[str] = []
    stack: list[Literal | str] = [literal]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif isinstance(item.value, tuple):
            stack.append(")")
            for i in range(len(item.value) - 1, -1, -1):
                stack.append(item.value[i])
                if i:
                    stack.append(", ")
            stack.append("(")
        elif item.value is None:
            pieces.append("{...}")
        else:
            pieces.append(_elements(item.value))
    return "".join(pieces)


def _literal_with_shape(literal: Literal) -> str:
    if isinstance(literal.value, tuple):
        return f"({', '.join(map(_literal_with_shape, literal.value))})"
    return f"{_shape(literal.shape, _EVERYTHING)} {_literal(literal)}"


def _elements(array: np.ndarray[Any, Any]) -> str:
    """An array as nested braces."""
    words = _words(array.reshape(-1))
    for depth in reversed(range(array.ndim)):
        size = array.shape[depth]
        count = int(np.prod(array.shape[:depth], dtype=np.int64))
        words = [f"{{{', '.join(words[i * size : (i + 1) * size])}}}" for i in range(count)]
    return words[0]


def _words(flat: np.ndarray[Any, Any]) -> list[str]:
    """Each element as the shortest text that reads back to the same bits."""
    dtype = flat.dtype
    if dtype == np.bool_:
        return ["true" if value else "false" for value in flat.tolist()]
    if dtype.kind == "c":
        part = np.dtype(np.float32 if dtype.itemsize == 8 else np.float64)
        parts = _words(flat.view(part))
        return [f"({real}, {imaginary})" for real, imaginary in zip(parts[::2], parts[1::2], strict=True)]
    if dtype.kind in "iu" or dtype in _SMALL_INTEGERS:
        return list(
            map(str, flat.astype(np.int8 if dtype.itemsize == 1 and dtype.kind not in "iu" else dtype).tolist())
        )
    if dtype == np.float64:
        words = list(map(repr, flat.tolist()))
    else:
        with np.errstate(all="ignore"):
            words = [_shortest(value) for value in flat.astype(np.float32)]
    values = flat.astype(np.float64)
    for index in np.flatnonzero(np.isnan(values)):
        words[index] = _nan(flat[index : index + 1])
    return words


_SMALL_INTEGERS = {np.dtype(getattr(ml_dtypes, f"{sign}int{bits}")) for sign in ("", "u") for bits in (1, 2, 4)}


def _shortest(value: np.float32) -> str:
    text = str(value)
    return text.removesuffix(".0")


def _nan(element: np.ndarray[Any, Any]) -> str:
    """`nan`, `-nan`, or with the payload where it is not the usual one."""
    dtype = element.dtype
    mantissa_bits = int(ml_dtypes.finfo(dtype).nmant)  # type: ignore[no-untyped-call]
    bits = int(element.view(f"u{dtype.itemsize}")[0])
    quiet = int(np.array([np.nan]).astype(dtype).view(f"u{dtype.itemsize}")[0])
    if bits == quiet:
        return "nan"
    payload = bits & ((1 << mantissa_bits) - 1)
    sign = "-" if bits >> (dtype.itemsize * 8 - 1) else ""
    return f"{sign}nan" if payload == 1 << (mantissa_bits - 1) else f"{sign}nan(0x{payload:x})"


# Values of attributes


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _quoted(value: str) -> str:
    return f'"{escape(value)}"'


def _string_or_dictionary(value: str) -> str:
    return value if is_dictionary(value) else _quoted(value)


def _braced(values: Iterable[Any]) -> str:
    return f"{{{','.join(map(str, values))}}}"


def _nested(values: Iterable[Iterable[Any]]) -> str:
    return _braced(map(_braced, values))


def _window(window: Window) -> str:
    dimensions = window.dimensions
    if not dimensions:
        return "{}"
    fields = [f"size={'x'.join(str(d.size) for d in dimensions)}"]
    if any(d.stride != 1 for d in dimensions):
        fields.append(f"stride={'x'.join(str(d.stride) for d in dimensions)}")
    if any(d.padding_low or d.padding_high for d in dimensions):
        fields.append(f"pad={'x'.join(f'{d.padding_low}_{d.padding_high}' for d in dimensions)}")
    if any(d.base_dilation != 1 for d in dimensions):
        fields.append(f"lhs_dilate={'x'.join(str(d.base_dilation) for d in dimensions)}")
    if any(d.window_dilation != 1 for d in dimensions):
        fields.append(f"rhs_dilate={'x'.join(str(d.window_dilation) for d in dimensions)}")
    if any(d.window_reversal for d in dimensions):
        fields.append(f"rhs_reversal={'x'.join(str(int(d.window_reversal)) for d in dimensions)}")
    return f"{{{' '.join(fields)}}}"


def _padding(padding: tuple[PaddingDimension, ...]) -> str:
    return "x".join(
        f"{d.edge_padding_low}_{d.edge_padding_high}" + (f"_{d.interior_padding}" if d.interior_padding else "")
        for d in padding
    )


def _slice(dimensions: tuple[SliceDimension, ...]) -> str:
    ranges = (f"[{d.start}:{d.limit}{f':{d.stride}' if d.stride != 1 else ''}]" for d in dimensions)
    return f"{{{', '.join(ranges)}}}"


def _convolution_dimensions(numbers: ConvolutionDimensionNumbers) -> str:
    def side(rank: int, first: tuple[str, int], second: tuple[str, int], spatial: tuple[int, ...]) -> str:
        labels = ["?"] * rank
        for letter, place in (first, second):
            if place < rank:
                labels[place] = letter
        for number, place in enumerate(spatial):
            labels[place] = str(number)
        return "".join(labels)

    n = numbers
    lhs = side(
        n.input_rank, ("b", n.input_batch_dimension), ("f", n.input_feature_dimension), n.input_spatial_dimensions
    )
    rhs = side(
        n.kernel_rank,
        ("o", n.kernel_output_feature_dimension),
        ("i", n.kernel_input_feature_dimension),
        n.kernel_spatial_dimensions,
    )
    out = side(
        n.output_rank, ("b", n.output_batch_dimension), ("f", n.output_feature_dimension), n.output_spatial_dimensions
    )
    return f"{lhs}_{rhs}->{out}"


def _aliasing(aliases: tuple[OperandAlias, ...]) -> str:
    entries = (f"{_braced(a.output_index)}: ({a.operand_number}, {_braced(a.operand_index)})" for a in aliases)
    return f"{{{', '.join(entries)}}}"


def _frontend_attributes(pairs: tuple[tuple[str, str], ...]) -> str:
    return _braced(f"{name}={_string_or_dictionary(value)}" for name, value in pairs)


def _statistics(statistics: Statistics) -> str:
    if statistics.visualizing_index is None:
        return "{}"
    pairs = (f"{name}={value!r}" for name, value in statistics.values)
    return _braced((f"visualizing_index={statistics.visualizing_index}", *pairs))


def _result_accuracy(accuracy: ResultAccuracy) -> str:
    if accuracy.mode is not None:
        return f"{{mode={accuracy.mode}}}"
    given = ((name, getattr(accuracy, name)) for name in ("atol", "rtol", "ulps"))
    return f"{{tolerance={{{','.join(f'{name}={_number(value)}' for name, value in given if value is not None)}}}}}"


_METADATA_FIELDS = tuple(field.name for field in attrs.fields(Metadata) if field.name != "unknown")


def _metadata(metadata: Metadata) -> str:
    fields: list[str] = []
    for name in _METADATA_FIELDS:
        value = getattr(metadata, name)
        if isinstance(value, str):
            fields.append(f'{name}="{escape(value)}"')
        elif isinstance(value, int):
            fields.append(f"{name}={value}")
        elif value is not None:
            fields.append(f"{name}={_braced(value)}")
    fields += (f"{name}={value}" for name, value in metadata.unknown)
    return f"{{{' '.join(fields)}}}"


# Shardings


def _sharding(sharding: Sharding) -> str:
    if isinstance(sharding, TupleSharding):
        return f"{{{', '.join(map(_sharding, sharding.elements))}}}"
    if isinstance(sharding, NamedSharding):
        return f"{{{_named_sharding(sharding)}}}"
    return f"{{{' '.join(_tile_sharding(sharding))}}}"


def _tile_sharding(sharding: TileSharding) -> Iterator[str]:
    if sharding.type is not ShardingType.TILED:
        yield sharding.type.value
    if sharding.device is not None:
        yield f"device={sharding.device}"
    if sharding.tile_dimensions:
        if sharding.iota is not None:
            yield f"devices={_iota(sharding.iota)}"
        else:
            yield f"devices=[{','.join(map(str, sharding.tile_dimensions))}]{','.join(map(str, sharding.devices))}"
    if sharding.last_tile_dim_replicate:
        yield "last_tile_dim_replicate"
    if sharding.last_tile_dims:
        yield f"last_tile_dims={{{', '.join(kind.value for kind in sharding.last_tile_dims)}}}"
    if sharding.shard_as is not None:
        yield f"shard_as {sharding.shard_as}"
    if sharding.shard_like is not None:
        yield f"shard_like {sharding.shard_like}"
    if sharding.metadata:
        yield f"metadata={_metadata_list(sharding.metadata)}"


def _metadata_list(metadata: tuple[Metadata, ...]) -> str:
    return _metadata(metadata[0]) if len(metadata) == 1 else f"{{{', '.join(map(_metadata, metadata))}}}"


def _iota(iota: IotaTiles) -> str:
    text = f"[{','.join(map(str, iota.dimensions))}]<=[{','.join(map(str, iota.reshape_dims))}]"
    if len(iota.reshape_dims) > 1:
        text += f"T({','.join(map(str, iota.transpose_perm))})"
    return text


def _mesh(mesh: Mesh) -> str:
    if mesh.maximal_device is not None:
        return f"maximal_mesh[device_id={mesh.maximal_device}]"
    text = f"mesh[{','.join(f'{_axis_name(name)}={size}' for name, size in mesh.axes)}]"
    if mesh.iota is not None:
        reshape = ",".join(map(str, mesh.iota.reshape_dims))
        order = f"T({','.join(map(str, mesh.iota.transpose_perm))})" if len(mesh.iota.reshape_dims) > 1 else ""
        text += f", device_ids=([{reshape}]{order})"
    elif mesh.device_ids is not None:
        text += f", device_ids=({','.join(map(str, mesh.device_ids))})"
    return text


def _axis_name(name: str) -> str:
    return f"'{escape(name)}'"


def _axis(axis: AxisRef) -> str:
    name = _axis_name(axis.name)
    return name if axis.sub_axis is None else f"{name}:({axis.sub_axis[0]}){axis.sub_axis[1]}"


def _named_sharding(sharding: NamedSharding) -> str:
    pieces = [_mesh(sharding.mesh)]
    if sharding.kind is not None:
        pieces.append(sharding.kind.value)
    elif sharding.mesh.maximal_device is None:
        dimensions = (
            _braced((*map(_axis, dimension.axes), *(() if dimension.is_closed else ("?",))))
            for dimension in sharding.dimensions
        )
        pieces.append(f"[{', '.join(dimensions)}]")
    for name in ("replicated", "unreduced", "manual"):
        if axes := getattr(sharding, name):
            pieces.append(f"{name}={_braced(map(_axis, axes))}")
    if sharding.metadata:
        pieces.append(f"metadata={_metadata_list(sharding.metadata)}")
    return ", ".join(pieces)


def _replica_groups(groups: ReplicaGroups) -> str:
    if groups.mesh is not None:
        return f"{_mesh(groups.mesh.mesh)} {_braced(map(_axis, groups.mesh.axes))}"
    if groups.iota is not None:
        return _iota(groups.iota)
    return _nested(groups.groups)


def _domain(value: tuple[Sharding, Sharding]) -> str:
    return f'{{kind="sharding", entry={_sharding(value[0])}, exit={_sharding(value[1])}}}'


_NO_LAYOUTS = _Options(layouts=False)

_WRITERS: dict[Grammar, Callable[[Any], str]] = {
    Grammar.BOOL: _boolean,
    Grammar.INT: str,
    Grammar.FLOAT: _number,
    Grammar.STRING: _quoted,
    Grammar.ENUM: str,
    Grammar.INT_LIST: _braced,
    Grammar.INT_IN_LIST: lambda value: f"{{{value}}}",
    Grammar.INT_LIST_LIST: _nested,
    Grammar.INT_PAIRS: _nested,
    Grammar.ENUM_LIST: _braced,
    Grammar.COMPUTATION: lambda name: f"%{name}",
    Grammar.COMPUTATION_LIST: lambda names: f"{{{', '.join('%' + name for name in names)}}}",
    Grammar.WINDOW: _window,
    Grammar.CONVOLUTION_DIMENSIONS: _convolution_dimensions,
    Grammar.PADDING: _padding,
    Grammar.SLICE: _slice,
    Grammar.SHAPE: lambda shape: _shape(shape, _EVERYTHING),
    Grammar.SHAPE_LIST: lambda shapes: f"{{{_shapes(shapes)}}}",
    Grammar.LITERAL: _literal_with_shape,
    Grammar.ALIASING: _aliasing,
    Grammar.REPLICA_GROUPS: _replica_groups,
    Grammar.SHARDING: _sharding,
    Grammar.DOMAIN: _domain,
    Grammar.RESULT_ACCURACY: _result_accuracy,
}
