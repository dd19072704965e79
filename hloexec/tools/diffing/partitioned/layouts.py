"""How an array is divided among devices: along which dimensions, and which part each device has."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import permutations
from typing import TypeAlias

import numpy as np

from hloexec.core.ir import Module, NamedSharding, TileSharding, TupleSharding
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.devices.tiles import places, tiles_of
from hloexec.engine.devices.topology import Topology
from hloexec.errors import UnsupportedError
from hloexec.tools.diffing.limits import LIMITS


@frozen
class Division:
    """A dimension cut into equal parts."""

    parts: int
    places: tuple[int, ...]
    """Which part each device has."""


Layout: TypeAlias = tuple[Division | None, ...]
"""For each dimension of an array its division; None where every device has all of it."""


def is_whole(layout: Layout) -> bool:
    return not any(layout)


def layout_of(sharding: TileSharding | NamedSharding, rank: int, topology: Topology) -> Layout | None:
    """The layout that a sharding describes; None where it gives devices no tiles, or is for other devices."""
    try:
        tiles = tiles_of(sharding, rank, topology.partitions)
    except UnsupportedError:
        return None
    if tiles.size != topology.partitions:
        return None
    rows = {partition: place for partition, place, _ in places(tiles)}
    devices = [rows[topology.partition_of(device)] for device in range(topology.count)]
    return tuple(
        Division(parts, tuple(place[axis] for place in devices)) if parts > 1 else None
        for axis, parts in enumerate(tiles.shape[:-1])
    )


def tile_shape(shape: Sequence[int], layout: Layout) -> tuple[int, ...] | None:
    """The dimensions of the tiles of an array; None where one is not divided evenly."""
    pairs = list(zip(shape, layout, strict=True))
    if any(division is not None and size % division.parts for size, division in pairs):
        return None
    return tuple(size if division is None else size // division.parts for size, division in pairs)


def tile_of(shape: Sequence[int], layout: Layout, device: int) -> tuple[slice, ...]:
    """Where in an array the tile of a device lies; nothing if it is whole."""
    found: list[slice] = []
    if is_whole(layout):
        return ()
    for size, division in zip(shape, layout, strict=True):
        part = size if division is None else size // division.parts
        start = 0 if division is None else part * division.places[device]
        found.append(slice(start, start + part))
    return tuple(found)


def part_of(array: Array, place: tuple[slice, ...]) -> Array:
    """A part of an array, as a view."""
    return np.asarray(array[place]) if place else array


def divisions_of(before: Module, after: Module, topology: Topology) -> list[Division]:
    """Those that occur in the shardings of either module, and those along two of them at once."""
    found: dict[Division, None] = {}
    for module in (before, after):
        for sharding in _shardings(module):
            found.update(dict.fromkeys(filter(None, _divisions(sharding, topology))))
    single = sorted(found, key=lambda entry: entry.parts)
    for first, second in permutations(single, 2):
        if are_independent((first, second)):
            both = zip(first.places, second.places, strict=True)
            combined = tuple(one * second.parts + other for one, other in both)
            found[Division(first.parts * second.parts, combined)] = None
    return list(found)[: LIMITS.divisions]


def _shardings(module: Module) -> Iterator[TileSharding | NamedSharding]:
    seen = set()
    for computation in module:
        for instruction in computation:
            sharding = instruction.sharding
            for entry in sharding.elements if isinstance(sharding, TupleSharding) else (sharding,):
                if entry is not None and entry not in seen:
                    seen.add(entry)
                    yield entry


def _divisions(sharding: TileSharding | NamedSharding, topology: Topology) -> Layout:
    if isinstance(sharding, NamedSharding):
        return layout_of(sharding, len(sharding.dimensions), topology) or ()
    kinds = len(sharding.last_tile_dims) or int(sharding.last_tile_dim_replicate)
    return layout_of(sharding, max(0, len(sharding.tile_dimensions) - kinds), topology) or ()


def are_independent(divisions: Collection[Division]) -> bool:
    """Whether every combination of parts is some device's."""
    parts = math.prod(division.parts for division in divisions)
    return len(set(zip(*(division.places for division in divisions), strict=True))) == parts


def layouts(shape: Sequence[int], divisions: Sequence[Division], counts: Collection[int]) -> list[Layout]:
    """The layouts in which tiles of an array have one of these numbers of elements, those with few divisions first."""
    found: list[Layout] = [()]
    for size in shape:
        fitting: Iterable[Division | None] = [None, *(entry for entry in divisions if size % entry.parts == 0)]
        found = [
            (*layout, entry)
            for layout in found
            for entry in fitting
            if entry is None or are_independent([*filter(None, layout), entry])
        ]
    total = math.prod(shape)
    kept = [
        layout
        for layout in found
        if not is_whole(layout) and total // math.prod(entry.parts for entry in layout if entry) in counts
    ]
    return sorted(kept, key=lambda layout: len([*filter(None, layout)]))[: LIMITS.layouts]
