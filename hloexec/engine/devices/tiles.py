"""Which partition holds which tile of a sharded array.

All forms of shardings are converted to one: an array of partition numbers [t_0, …, t_{r-1}, copies]. Dimension i of the
sharded array is divided into t_i tiles; the partition at [d_0, …, d_{r-1}, c] holds copy c of tile (d_0, …, d_{r-1}).
XLA's subgroups are along the last dimension: partitions that differ there hold separate copies (replicated), or
independent values (manual). Source: XLA, HloSharding (tile assignment, subgroups).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.ir import (
    AxisRef,
    Computation,
    Instruction,
    Mesh,
    NamedSharding,
    Sharding,
    ShardingType,
    TileSharding,
    TupleShape,
    TupleSharding,
    flat_shapes,
    parts_of,
)
from hloexec.engine.devices.topology import MOST_DEVICES
from hloexec.errors import UnsupportedError
from hloexec.ops.registry import Role, role_of

Tiles: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
"""Partition numbers, by tile and number of the copy."""

_COPIES = frozenset({ShardingType.REPLICATED, ShardingType.MANUAL})


def untiled(rank: int, partitions: int) -> Tiles:
    """One tile, the whole array, of which each partition has its own copy."""
    return np.arange(partitions, dtype=np.int64).reshape((1,) * rank + (-1,))


def tiles_of(sharding: TileSharding | NamedSharding, rank: int, partitions: int) -> Tiles:
    """The tiles of a sharding of an array; `partitions` is the number there are where the sharding names none.

    Raises UnsupportedError, with a clause, for shardings that say of no tile who holds it, or do not fit the rank.
    """
    if isinstance(sharding, NamedSharding):
        return _named_tiles(sharding, rank, partitions)
    if sharding.type in _COPIES:
        return untiled(rank, partitions)
    if sharding.type is not ShardingType.TILED:
        raise UnsupportedError(f"a sharding is {sharding.type.value}, which gives partitions no tiles")
    sizes = sharding.tile_dimensions
    kinds = sharding.last_tile_dims or ((ShardingType.REPLICATED,) if sharding.last_tile_dim_replicate else ())
    if len(sizes) - len(kinds) != rank:
        raise UnsupportedError(
            f"a sharding has tiles of {len(sizes) - len(kinds)} dimensions, but the array has {rank}"
        )
    for kind in kinds:
        if kind not in _COPIES:
            raise UnsupportedError(f"a sharding has subgroups that are {kind.value}")
    if min(sizes, default=1) < 1:
        raise UnsupportedError("a sharding has tiles of no size")
    _require_sensible(math.prod(sizes))
    numbers = sharding.iota.expand() if sharding.iota is not None else np.array(sharding.devices, np.int64)
    return _checked(numbers.reshape((*sizes[:rank], -1)))


def _named_tiles(sharding: NamedSharding, rank: int, partitions: int) -> Tiles:
    if sharding.mesh.maximal_device is not None:
        raise UnsupportedError("a sharding is maximal, which gives partitions no tiles")
    if sharding.unreduced or sharding.kind is ShardingType.UNREDUCED:
        raise UnsupportedError("a sharding has unreduced axes, whose values are parts of a sum")
    if sharding.kind is not None:
        return untiled(rank, partitions)
    if len(sharding.dimensions) != rank:
        raise UnsupportedError(f"a sharding has {len(sharding.dimensions)} dimensions, but the array has {rank}")
    return along_axes(sharding.mesh, [dimension.axes for dimension in sharding.dimensions])


def along_axes(mesh: Mesh, dimensions: Sequence[Sequence[AxisRef]]) -> Tiles:
    """The tiles of an array whose dimensions are cut along these axes of a mesh, major to minor."""
    axes = [axis for dimension in dimensions for axis in dimension]
    sizes = dict(mesh.axes)
    _require_sensible(math.prod(sizes.values()))
    if min(sizes.values(), default=1) < 1:
        raise UnsupportedError("a sharding has axes of no size")
    try:
        rows = mesh.along(axes)
    except ValueError as error:
        raise UnsupportedError(f"the axes of a sharding do not fit its mesh: {error}") from error
    counts = [
        math.prod(sizes[axis.name] if axis.sub_axis is None else axis.sub_axis[1] for axis in dimension)
        for dimension in dimensions
    ]
    return _checked(np.moveaxis(rows.reshape(-1, *counts), 0, -1))


def sharding_of(
    computation: Computation,
    instruction: Instruction,
    own: Callable[[Instruction], Sharding | None] = attrgetter("sharding"),
) -> Sharding | None:
    """The sharding of an instruction's result; that of an element of a tuple, where it has none, is the tuple's. `own`
    gives what an instruction itself says."""
    stated = own(instruction)
    if stated is not None or role_of(instruction) is not Role.GET_TUPLE_ELEMENT:
        return stated
    (source,) = computation.operands_of(instruction)
    sharding = sharding_of(computation, source, own)
    if not isinstance(sharding, TupleSharding):
        return sharding
    counts = [len(flat_shapes(part)) for part in parts_of(source.shape)]
    if sum(counts) != len(sharding.elements):
        return None
    index = instruction.attributes.index
    start = sum(counts[:index])
    elements = sharding.elements[start : start + counts[index]]
    return TupleSharding(elements) if isinstance(instruction.shape, TupleShape) else elements[0]


def partitions_named(sharding: Sharding) -> int | None:
    """How many partitions a sharding is for; None where it says nothing of them, as {replicated} does."""
    if isinstance(sharding, TupleSharding):
        return max((count for element in sharding.elements if (count := partitions_named(element))), default=None)
    if isinstance(sharding, NamedSharding):
        return sharding.mesh.device_count
    if sharding.type is ShardingType.MAXIMAL:
        return (sharding.devices[0] if sharding.device is None else sharding.device) + 1
    return math.prod(sharding.tile_dimensions) if sharding.type is ShardingType.TILED else None


def _require_sensible(count: int) -> None:
    if not 0 < count <= MOST_DEVICES:
        raise UnsupportedError(f"a sharding is for {count} devices, where 1 to {MOST_DEVICES} are possible")


def _checked(tiles: Tiles) -> Tiles:
    if not np.array_equal(np.sort(tiles, axis=None), np.arange(tiles.size)):
        raise UnsupportedError(f"a sharding for {tiles.size} partitions must name each of 0 to {tiles.size - 1} once")
    return tiles


def index_of(place: Sequence[int], tile: Sequence[int]) -> tuple[slice, ...]:
    """Where a tile of such a size lies in the whole array."""
    return tuple(slice(number * size, (number + 1) * size) for number, size in zip(place, tile, strict=True))


def places(tiles: Tiles) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """Each partition, its tile, and the number of its copy."""
    for index, partition in np.ndenumerate(tiles):
        yield int(partition), index[:-1], index[-1]
