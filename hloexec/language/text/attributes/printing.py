"""Printing attribute values: one function per grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from hloexec.core.ir import (
    AxisRef,
    ConvolutionDimensionNumbers,
    IotaTiles,
    Mesh,
    Metadata,
    NamedSharding,
    PaddingDimension,
    ReplicaGroups,
    ResultAccuracy,
    Sharding,
    ShardingType,
    SliceDimension,
    Statistics,
    TileSharding,
    TupleSharding,
    Window,
    WindowDimension,
)
from hloexec.core.values import Pairs
from hloexec.core.wording import braced
from hloexec.language.text.lexer import escape, is_dictionary
from hloexec.ops.attributes import OperandAlias

_MOST_DIMENSIONS = 256
"""Far more than XLA's arrays have."""


def boolean(value: bool) -> str:
    return "true" if value else "false"


def number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def quoted(value: str) -> str:
    return f'"{escape(value)}"'


def string_or_dictionary(value: str) -> str:
    return value if is_dictionary(value) else quoted(value)


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
    given = ((name, getattr(accuracy, name)) for name in ("atol", "rtol", "ulps"))
    return f"{{tolerance={{{','.join(f'{name}={number(value)}' for name, value in given if value is not None)}}}}}"


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
