"""IR to HLO text, attributes included.

`format` writes what `parse` reads back to an equal module, and what XLA reads as the same module. Like the parser it
knows grammars, not opcodes: one function per grammar turns an attribute's value into text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from hloexec.core.arguments import require_flags, require_module
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import (
    AxisRef,
    Computation,
    ConvolutionDimensionNumbers,
    Instruction,
    IotaTiles,
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
    TupleSharding,
    Window,
    WindowDimension,
)
from hloexec.core.structs import frozen
from hloexec.core.values import Pairs
from hloexec.core.wording import braced, quoted
from hloexec.errors import VerificationError
from hloexec.language.text.lexer import RESERVED, STACK_FRAME_TABLES, escape, is_dictionary
from hloexec.language.text.shapes import literal_text, literal_with_shape_text, shape_text, shapes_text
from hloexec.ops.attributes import Grammar, OperandAlias, attribute_fields
from hloexec.ops.registry import Role, find_opcode

_MOST_DIMENSIONS = 256
"""Far more than XLA's arrays have."""


def boolean(value: bool) -> str:
    return "true" if value else "false"


def number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def quoted_text(value: str) -> str:
    return f'"{escape(value)}"'


def string_or_dictionary(value: str) -> str:
    return value if is_dictionary(value) else quoted_text(value)


def nested(values: Iterable[Iterable[Any]]) -> str:
    return braced(map(braced, values))


def window(value: Window) -> str:
    """The fields that do not say the usual of each dimension; the sizes always."""
    texts = {name: [text(dimension) for dimension in value.dimensions] for name, (_, text) in _WINDOW_FIELDS.items()}
    said = (f"{name}={'x'.join(text)}" for name, text in texts.items() if {*text} - {_WINDOW_FIELDS[name][0]})
    return f"{{{' '.join(said)}}}"


_WINDOW_FIELDS: dict[str, tuple[str, Callable[[WindowDimension], str]]] = {
    "size": ("", lambda d: str(d.size)),
    "stride": ("1", lambda d: str(d.stride)),
    "pad": ("0_0", lambda d: f"{d.padding_low}_{d.padding_high}"),
    "lhs_dilate": ("1", lambda d: str(d.base_dilation)),
    "rhs_dilate": ("1", lambda d: str(d.window_dilation)),
    "rhs_reversal": ("0", lambda d: str(int(d.window_reversal))),
}
"""What a window says of each dimension: what is usual, and so not said, and the text."""


def padding(value: tuple[PaddingDimension, ...]) -> str:
    return "x".join(
        f"{d.edge_padding_low}_{d.edge_padding_high}" + (f"_{d.interior_padding}" if d.interior_padding else "")
        for d in value
    )


def slice_ranges(dimensions: tuple[SliceDimension, ...]) -> str:
    ranges = (f"[{d.start}:{d.limit}{f':{d.stride}' if d.stride != 1 else ''}]" for d in dimensions)
    return f"{{{', '.join(ranges)}}}"


def convolution_dimensions(numbers: ConvolutionDimensionNumbers) -> str:
    def side(rank: int, first: tuple[str, int], second: tuple[str, int], spatial: tuple[int, ...]) -> str:
        if not 0 <= rank <= _MOST_DIMENSIONS or min(first[1], second[1], *spatial) < 0:
            raise ValueError(f"{rank} dimensions cannot have these roles")
        labels = ["?"] * rank
        for letter, place in (first, second):
            if place < rank:
                labels[place] = letter
        for number, place in enumerate(spatial):
            labels[place] = str(number)
        return "".join(labels)

    batch, feature, spatial, kernel_in, kernel_out, kernel, out_batch, out_feature, out_spatial, *ranks = attrs.astuple(
        numbers, recurse=False
    )
    lhs = side(ranks[0], ("b", batch), ("f", feature), spatial)
    rhs = side(ranks[1], ("o", kernel_out), ("i", kernel_in), kernel)
    out = side(ranks[2], ("b", out_batch), ("f", out_feature), out_spatial)
    return f"{lhs}_{rhs}->{out}"


def aliasing(aliases: tuple[OperandAlias, ...]) -> str:
    entries = (f"{braced(a.output_index)}: ({a.operand_number}, {braced(a.operand_index)})" for a in aliases)
    return f"{{{', '.join(entries)}}}"


def frontend_attributes(pairs: Pairs) -> str:
    return braced(f"{name}={string_or_dictionary(value)}" for name, value in pairs)


def statistics(value: Statistics) -> str:
    if value.visualizing_index is None:
        return "{}"
    pairs = (f"{name}={statistic!r}" for name, statistic in value.values)
    return braced((f"visualizing_index={value.visualizing_index}", *pairs))


def result_accuracy(accuracy: ResultAccuracy) -> str:
    if accuracy.mode is not None:
        return f"{{mode={accuracy.mode}}}"
    tolerances = ((name, getattr(accuracy, name)) for name in ("atol", "rtol", "ulps"))
    return f"{{tolerance={{{','.join(f'{name}={number(value)}' for name, value in tolerances if value is not None)}}}}}"


_METADATA_FIELDS = tuple(field.name for field in attrs.fields(Metadata) if field.name != "unknown")


def metadata(value: Metadata) -> str:
    fields: list[str] = []
    for name in _METADATA_FIELDS:
        field = getattr(value, name)
        if isinstance(field, str):
            fields.append(f'{name}="{escape(field)}"')
        elif isinstance(field, int):
            fields.append(f"{name}={field}")
        elif field is not None:
            fields.append(f"{name}={braced(field)}")
    fields += (f"{name}={text}" for name, text in value.unknown)
    return f"{{{' '.join(fields)}}}"


# Shardings


def sharding(value: Sharding) -> str:
    if isinstance(value, TupleSharding):
        return f"{{{', '.join(map(sharding, value.elements))}}}"
    if isinstance(value, NamedSharding):
        return f"{{{_named_sharding(value)}}}"
    return f"{{{' '.join(_tile_sharding(value))}}}"


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


def _metadata_list(entries: tuple[Metadata, ...]) -> str:
    return metadata(entries[0]) if len(entries) == 1 else f"{{{', '.join(map(metadata, entries))}}}"


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
            braced((*map(_axis, dimension.axes), *(() if dimension.is_closed else ("?",))))
            for dimension in sharding.dimensions
        )
        pieces.append(f"[{', '.join(dimensions)}]")
    for name in ("replicated", "unreduced", "manual"):
        if axes := getattr(sharding, name):
            pieces.append(f"{name}={braced(map(_axis, axes))}")
    if sharding.metadata:
        pieces.append(f"metadata={_metadata_list(sharding.metadata)}")
    return ", ".join(pieces)


def replica_groups(groups: ReplicaGroups) -> str:
    if groups.mesh is not None:
        return f"{_mesh(groups.mesh.mesh)} {braced(map(_axis, groups.mesh.axes))}"
    if groups.iota is not None:
        return _iota(groups.iota)
    return nested(groups.groups)


def domain(value: tuple[Sharding, Sharding]) -> str:
    return f'{{kind="sharding", entry={sharding(value[0])}, exit={sharding(value[1])}}}'


_UNWRITABLE = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""What the writers raise for values that are not of their grammar's Python type."""


@frozen
class _Options:
    metadata: bool = True
    layouts: bool = True
    backend_config: bool = True


def text_of(module: Module) -> str:
    """The text that a module was read from, or its canonical text."""
    return module.source if module.source is not None else format(module)


def format(module: Module, *, metadata: bool = True, layouts: bool = True, backend_config: bool = True) -> str:
    """A module as HLO text.

    `parse(format(module)) == module`. Leaving out metadata (and the tables it points to), layouts or backend configs
    gives text that is easier to read and to compare.
    """
    require_module(module)
    require_flags(metadata=metadata, layouts=layouts, backend_config=backend_config)
    return "".join(_module(module, _Options(metadata, layouts, backend_config)))


def format_instruction(instruction: Instruction, *, metadata: bool = True, is_root: bool = False) -> str:
    """One instruction as a line of HLO text, without indentation."""
    _require_attributes(instruction)
    return _instruction(instruction, _Options(metadata=metadata), is_root=is_root)


def format_shape(shape: Shape, *, layouts: bool = True) -> str:
    """A shape as HLO text, e.g. `(f32[2,3]{1,0}, token[])`."""
    return shape_text(shape, layouts)


# Modules


def _module(module: Module, options: _Options) -> Iterator[str]:
    percent = "%" if module.name in RESERVED or module.name in ELEMENT_TYPES else ""
    yield f"HloModule {percent}{module.name}{''.join(_header(module, options))}\n"
    if module.stack_frames is not None and options.metadata:
        yield _stack_frames(module.stack_frames)
    for computation in module.computations:
        yield "\n"
        yield from _computation(computation, computation.name == module.entry_name, options)


def _header(module: Module, options: _Options) -> Iterator[str]:
    if module.is_scheduled:
        yield ", is_scheduled=true"
    yield from _aliases(module)
    if module.alias_passthrough_params:
        yield ", alias_passthrough_params=true"
    if module.entry_computation_layout is not None and options.layouts:
        layout = module.entry_computation_layout
        parameters = shapes_text(layout.parameters, options.layouts)
        yield f", entry_computation_layout={{({parameters})->{shape_text(layout.result, options.layouts)}}}"
    for name in ("allow_spmd_sharding_propagation_to_parameters", "allow_spmd_sharding_propagation_to_output"):
        if flags := getattr(module, name):
            yield f", {name}={{{','.join(map(boolean, flags))}}}"
    for name in ("replica_count", "num_partitions"):
        if (count := getattr(module, name)) != 1:
            yield f", {name}={count}"
    if module.frontend_attributes is not None:
        yield f", frontend_attributes={frontend_attributes(module.frontend_attributes)}"
    if module.origin_recovery_table is not None:
        yield f", origin_recovery_table={module.origin_recovery_table}"
    for name, value in module.unknown_attributes:
        yield f", {name}={value}"


def _aliases(module: Module) -> Iterator[str]:
    aliases = (
        f"{braced(alias.output_index)}: ({alias.parameter_number}, {braced(alias.parameter_index)}, {alias.kind})"
        for alias in module.input_output_alias
    )
    donors = (f"({number}, {braced(index)})" for number, index in module.buffer_donor)
    for name, entries in (("input_output_alias", aliases), ("buffer_donor", donors)):
        if text := ", ".join(entries):
            yield f", {name}={{ {text} }}"


def _stack_frames(frames: StackFrames) -> str:
    lines: list[str] = []
    for word, rows in zip(STACK_FRAME_TABLES, attrs.astuple(frames, recurse=False), strict=True):
        lines.append(f"\n{word}")
        lines += (f"{i} {quoted_text(row) if isinstance(row, str) else _record(row)}" for i, row in enumerate(rows, 1))
    return "\n".join(lines) + "\n\n"


def _record(row: Any) -> str:
    return "{" + " ".join(f"{name}={value}" for name, value in attrs.asdict(row).items()) + "}"


def _computation(computation: Computation, is_entry: bool, options: _Options) -> Iterator[str]:
    if computation.root_name not in computation.by_name:
        raise VerificationError(
            f"computation {computation.name} has no instruction {computation.root_name} as its root"
        )
    for instruction in computation.instructions:
        _require_attributes(instruction)
    parameters = ", ".join(f"{p.name}: {shape_text(p.shape, False)}" for p in computation.parameters)
    prefix = "ENTRY " if is_entry else ""
    yield f"{prefix}%{computation.name} ({parameters}) -> {shape_text(computation.result_shape, False)} {{\n"
    for instruction in computation.instructions:
        yield f"  {_instruction(instruction, options, is_root=instruction.name == computation.root_name)}\n"
    thread = computation.execution_thread
    yield "}\n" if thread == "main" else f'}}, execution_thread="{escape(thread)}"\n'


# Instructions


def _instruction(instruction: Instruction, options: _Options, *, is_root: bool) -> str:
    pieces = [
        "ROOT %" if is_root else "%",
        instruction.name,
        " = ",
        shape_text(instruction.shape, options.layouts),
        " ",
    ]
    pieces += (instruction.opcode, "(", _operands(instruction), ")")
    pieces += _attributes(instruction, options)
    return "".join(pieces)


def _require_attributes(instruction: Instruction) -> None:
    """Modules are not verified before they are printed, so that people can look at a wrong one."""
    entry = find_opcode(instruction.opcode)
    if entry is not None and entry.attributes and not isinstance(instruction.attributes, entry.attributes):
        raise VerificationError(f"%{instruction.name} lacks the attributes of {instruction.opcode}")


def _operands(instruction: Instruction) -> str:
    if instruction.unknown_operands is not None:
        return instruction.unknown_operands
    entry = find_opcode(instruction.opcode)
    if entry is not None and entry.role is Role.PARAMETER:
        return str(instruction.attributes.number)
    if entry is not None and entry.role is Role.CONSTANT:
        return literal_text(instruction.attributes.literal)
    return ", ".join(f"%{name}" for name in instruction.operands)


def _declared_attributes(instruction: Instruction) -> Iterator[str]:
    """Those that the opcode declares."""
    for declared in attribute_fields(type(instruction.attributes)).values():
        value = getattr(instruction.attributes, declared.field)
        if declared.is_required or declared.always_printed or value != declared.default:
            try:
                text = _WRITERS[declared.grammar](value)
            except _UNWRITABLE as error:
                raise VerificationError(
                    f"{declared.name} of %{instruction.name} cannot be written as text; its value is "
                    f"{quoted(value, 200)}"
                ) from error
            yield f", {declared.name}={text}"


def _attributes(instruction: Instruction, options: _Options) -> Iterator[str]:
    if instruction.attributes is not None:
        yield from _declared_attributes(instruction)
    if instruction.sharding is not None:
        yield f", sharding={sharding(instruction.sharding)}"
    if instruction.parameter_replication is not None:
        yield f", parameter_replication={{{','.join(map(boolean, instruction.parameter_replication))}}}"
    if instruction.control_predecessors:
        yield f", control-predecessors={{{', '.join('%' + name for name in instruction.control_predecessors)}}}"
    if instruction.frontend_attributes is not None:
        yield f", frontend_attributes={frontend_attributes(instruction.frontend_attributes)}"
    if instruction.statistics is not None:
        yield f", statistics={statistics(instruction.statistics)}"
    if instruction.original_value is not None:
        yield f", origin={instruction.original_value.text}"
    for name, value in instruction.unknown_attributes:
        yield f", {name}={value}"
    if instruction.metadata is not None and options.metadata:
        yield f", metadata={metadata(instruction.metadata)}"
    if instruction.backend_config is not None and options.backend_config:
        yield f", backend_config={string_or_dictionary(instruction.backend_config)}"


_WRITERS: dict[Grammar, Callable[[Any], str]] = {
    Grammar.BOOL: boolean,
    Grammar.INT: str,
    Grammar.INT32: str,
    Grammar.FLOAT: number,
    Grammar.STRING: quoted_text,
    Grammar.ENUM: str,
    Grammar.INT_LIST: braced,
    Grammar.INT_IN_LIST: lambda value: f"{{{value}}}",
    Grammar.INT_LIST_LIST: nested,
    Grammar.INT_PAIRS: nested,
    Grammar.ENUM_LIST: braced,
    Grammar.COMPUTATION: lambda name: f"%{name}",
    Grammar.COMPUTATION_LIST: lambda names: f"{{{', '.join('%' + name for name in names)}}}",
    Grammar.WINDOW: window,
    Grammar.CONVOLUTION_DIMENSIONS: convolution_dimensions,
    Grammar.PADDING: padding,
    Grammar.SLICE: slice_ranges,
    Grammar.SHAPE: lambda shape: shape_text(shape),
    Grammar.SHAPE_LIST: lambda shapes: f"{{{shapes_text(shapes)}}}",
    Grammar.LITERAL: literal_with_shape_text,
    Grammar.ALIASING: aliasing,
    Grammar.REPLICA_GROUPS: replica_groups,
    Grammar.SHARDING: sharding,
    Grammar.DOMAIN: domain,
    Grammar.RESULT_ACCURACY: result_accuracy,
    Grammar.VERBATIM: str,
}
