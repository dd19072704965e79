"""Which partition holds which tile of a sharded array, and the boundaries of manual regions.

Which partition holds which tile of a sharded array. All forms of shardings are converted to one: an array of partition
numbers [t_0, …, t_{r-1}, copies]. Dimension i of the sharded array is divided into t_i tiles; the partition at [d_0, …,
d_{r-1}, c] holds copy c of tile (d_0, …, d_{r-1}). XLA's subgroups are along the last dimension: partitions that differ
there hold separate copies (replicated), or independent values (manual). Source: XLA, HloSharding (tile assignment,
subgroups).

Outside a manual region, the module describes whole arrays, and every device holds the whole; inside, each device holds
its own tile. Where a region begins (GlobalToLocalShape, SPMDFullToShardShape), a device takes its tile of the whole
that it holds; where it ends (LocalToGlobalShape, SPMDShardToFullShape), devices assemble their tiles. Devices whose
tiles belong to the same array form a group. Devices that hold copies of a tile are in different groups, so that copies
which differ stay different, as in XLA.

Two tilings define everything: those of the operand and of the result. One of them is the whole array's, the other is
the one inside the region. With o(e) and r(e) for the tiles of partition e in them, and G for the partitions that hold
the same copy as d in the result's tiling,

    result_d[r(e)] = operand_e[o(e)]   for all e in G;   at the beginning of a region, operand_d[o(e)].

Source: Shardy, round trip through HLO; XLA, SPMD partitioner (manual subgroups), MLIR-HLO export of sharding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.ir import (
    ArrayShape,
    AxisRef,
    Computation,
    Instruction,
    Mesh,
    Module,
    NamedSharding,
    Shape,
    Sharding,
    ShardingType,
    TileSharding,
    TupleShape,
    TupleSharding,
    flat_shapes,
    parts_of,
)
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.devices.topology import MOST_DEVICES, Group, Topology
from hloexec.errors import InputError, ParseError, UnsupportedError
from hloexec.language.text.attributes.annotations import meshes_of, parse_manual_axes, parse_shardings
from hloexec.ops.registry import CUSTOM_CALLS, Role, find_custom_call, role_of, traits_of

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


_Place: TypeAlias = "tuple[int, ...]"
"""A tile, by its number in each dimension."""

_Pieces: TypeAlias = "tuple[tuple[_Place, _Place], ...]"
"""Tiles of the result, and those of the operand that they are."""


@frozen(eq=False)
class Crossing:
    """How one array crosses a boundary."""

    instruction: Instruction
    shape: ArrayShape
    """What each device gets."""
    tile: tuple[int, ...]
    """The size of a tile, of either."""
    partitions: int
    members: tuple[tuple[tuple[int, int], ...], ...]
    """Who acts together, as pairs (number, partition); partitions of one number and equal operands get the same."""
    pieces: tuple[_Pieces, ...]
    """By number, what a member gives."""

    @property
    def is_identity(self) -> bool:
        """Whether every device keeps what it has."""
        origin = (0,) * self.shape.rank
        is_alone = all(len(group) == 1 for group in self.members)
        return is_alone and self.tile == self.shape.dimensions and set(self.pieces) <= {((origin, origin),)}

    def groups(self, topology: Topology) -> list[Group]:
        """The groups of devices; InputError where there are other partitions than the sharding names."""
        if topology.partitions != self.partitions:
            raise InputError(
                f"%{self.instruction.name} divides arrays among {self.partitions} partitions, but there are "
                f"{topology.partitions} ({topology}); set the number of partitions"
            )
        return [
            {number: topology.device(replica, partition) for number, partition in group}
            for replica in range(topology.replicas)
            for group in self.members
        ]

    def exchange(self, members: Mapping[int, Sequence[Array]]) -> dict[int, Any]:
        """What the members of a group get, all of them the same."""
        tiles = [
            (target, operand[index_of(source, self.tile)])
            for number, (operand,) in members.items()
            for target, source in self.pieces[number]
        ]
        if len(tiles) == 1:
            return dict.fromkeys(members, tiles[0][1])
        result = np.empty(self.shape.dimensions, tiles[0][1].dtype)
        for target, part in tiles:
            result[index_of(target, self.tile)] = part
        return dict.fromkeys(members, result)


def is_boundary(instruction: Instruction) -> bool:
    """Whether a custom call is a boundary for which no user function is registered."""
    target = instruction.attributes.custom_call_target
    return target in _BOUNDARIES and find_custom_call(target) is CUSTOM_CALLS[target]


def reason_against(module: Module, computation: Computation, instruction: Instruction) -> str | None:
    """Why a boundary cannot be crossed, as a clause; None where it can."""
    try:
        crossings(module, computation, instruction)
    except UnsupportedError as error:
        return error.message
    return None


def crossings(module: Module, computation: Computation, instruction: Instruction) -> tuple[Crossing, ...]:
    """How each operand of a boundary crosses it; UnsupportedError, with a clause, says why one cannot."""
    operands = computation.operands_of(instruction)
    results = parts_of(instruction.shape)
    if len(operands) != len(results):
        raise UnsupportedError(f"it has {len(operands)} operands, but gives {instruction.shape}")
    pairs = []
    for operand, after in zip(operands, results, strict=True):
        before = operand.shape
        if not isinstance(before, ArrayShape) or not isinstance(after, ArrayShape) or not _is_alike(before, after):
            raise UnsupportedError(f"it turns {before} into {after}")
        pairs.append((before, after))
    tilings = _tilings_of(module, computation, instruction)
    return tuple(_crossing(instruction, *pair, entry) for pair, entry in zip(pairs, tilings, strict=True))


def _is_alike(before: ArrayShape, after: ArrayShape) -> bool:
    """Whether arrays may be parts of one another; floats may differ in width, as anywhere."""
    types = {before.element_type, after.element_type}
    return before.rank == after.rank and (len(types) == 1 or all(entry.is_floating for entry in types))


@frozen(eq=False)
class _Tilings:
    """The tiles of an operand and of a result."""

    operand: Tiles
    result: Tiles
    begins_region: bool


def _crossing(instruction: Instruction, operand: ArrayShape, result: ArrayShape, tilings: _Tilings | None) -> Crossing:
    if tilings is None:
        if not operand.compatible(result):
            raise UnsupportedError(f"it turns {operand} into {result}, but no sharding says how")
        alone = untiled(operand.rank, 1)
        tilings = _Tilings(alone, alone, True)
    tile, made = _tile(operand, tilings.operand), _tile(result, tilings.result)
    if tile != made or tilings.operand.size != tilings.result.size:
        raise UnsupportedError(
            f"{operand} in {_described(tilings.operand)} cannot become {result} in {_described(tilings.result)}"
        )
    sources = {partition: place for partition, place, _ in places(tilings.operand)}
    copies: dict[int, dict[int, tuple[_Place, _Place]]] = {}
    for partition, place, copy in places(tilings.result):
        copies.setdefault(copy, {})[partition] = (place, sources[partition])
    numbers: dict[_Pieces, int] = {}
    members: list[tuple[tuple[int, int], ...]] = []
    for piece_of in copies.values():
        if tilings.begins_region:
            number = numbers.setdefault(tuple(piece_of.values()), len(numbers))
            members += [((number, partition),) for partition in piece_of]
        else:
            members.append(
                tuple((numbers.setdefault((piece,), len(numbers)), partition) for partition, piece in piece_of.items())
            )
    return Crossing(instruction, result, tile, tilings.result.size, tuple(members), tuple(numbers))


def _tile(shape: ArrayShape, tiles: Tiles) -> tuple[int, ...]:
    """The size of each tile, which must be the same for all."""
    counts = tiles.shape[:-1]
    if any(size % count for size, count in zip(shape.dimensions, counts, strict=True)):
        raise UnsupportedError(f"{shape} does not divide evenly into {_described(tiles)}")
    if any(shape.dynamic_dimensions or ()) and max(counts) > 1:
        raise UnsupportedError(f"{shape}, whose size is only known when it runs, would be divided")
    return tuple(size // count for size, count in zip(shape.dimensions, counts, strict=True))


def _described(tiles: Tiles) -> str:
    return f"{' × '.join(map(str, tiles.shape[:-1])) or '1'} tiles for {tiles.size} partitions"


def _tilings_of(module: Module, computation: Computation, instruction: Instruction) -> Sequence[_Tilings | None]:
    """The tilings of each operand and its result; None where the text does not say."""
    begins_region, key = _BOUNDARIES[instruction.attributes.custom_call_target]
    attributes = dict(instruction.frontend_attributes or ())
    if key and "xla.sdy.has_unreduced_axes" in attributes:
        raise UnsupportedError("it has unreduced axes, along which values are parts of a sum")
    if key in attributes and "xla.sdy.manual_axes" in attributes:
        return _by_attributes(key, attributes, begins_region, module, computation.operands_of(instruction))
    return _by_shardings(begins_region, computation, instruction)


def _by_attributes(
    key: str, attributes: Mapping[str, str], begins_region: bool, module: Module, operands: Sequence[Instruction]
) -> Sequence[_Tilings | None]:
    """Shardings say which axes divide the whole; those that are manual here make the tiles of the region."""
    try:
        shardings = parse_shardings(attributes[key], meshes_of(module))
        manual = parse_manual_axes(attributes["xla.sdy.manual_axes"])
    except ParseError as error:
        raise UnsupportedError(f"an attribute cannot be read: {error.message}, in {error.source_line!r}") from error
    if len(shardings) != len(operands):
        raise UnsupportedError(f"it has {len(operands)} operands, but {len(shardings)} shardings")
    tilings = []
    for sharding, operand in zip(shardings, operands, strict=True):
        whole = _manual_tiles(sharding, operand.shape, manual)
        inside = untiled(whole.ndim - 1, whole.size)
        tilings.append(_Tilings(whole, inside, True) if begins_region else _Tilings(inside, whole, False))
    return tilings


def _manual_tiles(sharding: NamedSharding, shape: Shape, manual: Sequence[str]) -> Tiles:
    """The tiles along those axes of a sharding that are manual; priorities and open dimensions concern others."""
    if sharding.mesh.maximal_device is not None:
        raise UnsupportedError("a sharding is maximal, which divides nothing")
    if sharding.unreduced:
        raise UnsupportedError("it has unreduced axes, along which values are parts of a sum")
    unknown = set(manual) - {name for name, _ in sharding.mesh.axes}
    if unknown:
        raise UnsupportedError(f"axis {min(unknown)!r} is manual, but the mesh has no such axis")
    if not isinstance(shape, ArrayShape) or len(sharding.dimensions) != shape.rank:
        raise UnsupportedError(f"a sharding has {len(sharding.dimensions)} dimensions, but the array is {shape}")
    axes = [[axis for axis in dimension.axes if axis.name in manual] for dimension in sharding.dimensions]
    return along_axes(sharding.mesh, axes)


def _by_shardings(begins_region: bool, computation: Computation, instruction: Instruction) -> Sequence[_Tilings | None]:
    """The operands carry their shardings, and the call those of its results; what is not said of a side within the
    region is that it is manual."""
    tilings: list[_Tilings | None] = []
    operands, parts = computation.operands_of(instruction), parts_of(instruction.shape)
    for index, (operand, shape) in enumerate(zip(operands, parts, strict=True)):
        before, after = _carried_sharding(computation, operand), instruction.sharding
        if isinstance(after, TupleSharding) and len(after.elements) == len(parts) and instruction.shape is not shape:
            after = after.elements[index]
        if not operand.shape.compatible(shape):
            before = before or (None if begins_region else _MANUAL)
            after = after or (_MANUAL if begins_region else None)
        if before is None or after is None:
            tilings.append(None)
            continue
        if isinstance(before, TupleSharding) or isinstance(after, TupleSharding):
            raise UnsupportedError("a sharding is a tuple's, but arrays cross")
        named = [count for sharding in (before, after) if (count := partitions_named(sharding)) is not None]
        rank = shape.rank if isinstance(shape, ArrayShape) else 0
        old, made = (tiles_of(sharding, rank, max(named, default=1)) for sharding in (before, after))
        tilings.append(_Tilings(old, made, begins_region))
    return tilings


def _carried_sharding(computation: Computation, instruction: Instruction) -> Sharding | None:
    """The sharding of a value, also where only what hands it over says it: copies, barriers, tuples and reshapes to the
    same dimensions; None where nothing does."""
    path: list[int] = []
    while True:
        stated = instruction.sharding if path else sharding_of(computation, instruction)
        if stated is not None:
            return None if path else stated
        operands = computation.operands_of(instruction)
        role = role_of(instruction)
        if role is Role.GET_TUPLE_ELEMENT:
            path.insert(0, instruction.attributes.index)
            instruction = operands[0]
        elif role is Role.TUPLE and path:
            instruction = operands[path.pop(0)]
        elif len(operands) == 1 and _hands_over(instruction, operands[0]):
            instruction = operands[0]
        else:
            return None


def _hands_over(instruction: Instruction, operand: Instruction) -> bool:
    """Whether a value is its operand's, element by element."""
    before, after, traits = operand.shape, instruction.shape, traits_of(instruction)
    if not after.compatible(before) or traits.moves is None:
        return False
    if role_of(instruction) is Role.FORWARD:
        return instruction.attributes is None  # a domain says another sharding
    if traits.keeps_all and traits.keeps_order:
        return True
    if ((), ()) not in traits.aliases or not isinstance(before, ArrayShape) or not isinstance(after, ArrayShape):
        return False
    return before.stated_layout == after.stated_layout


_MANUAL = TileSharding(ShardingType.MANUAL)

_BOUNDARIES: dict[str, tuple[bool, str]] = {
    "SPMDFullToShardShape": (True, ""),
    "SPMDShardToFullShape": (False, ""),
    "xla.sdy.GlobalToLocalShape": (True, "xla.sdy.in_shardings"),
    "xla.sdy.LocalToGlobalShape": (False, "xla.sdy.out_shardings"),
}
"""Whether a region begins, and which frontend attribute has Shardy's shardings, if any."""
