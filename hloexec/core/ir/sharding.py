"""How a value is divided among devices, and which devices take part in a collective.

`Sharding` holds every form of XLA's annotation as written; `ReplicaGroups` the three forms of group lists. Both keep
the compact (iota) form, and expand it on demand.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np

from hloexec.core.ir.metadata import Metadata
from hloexec.core.structs import frozen
from hloexec.core.values import Ints


class ShardingType(enum.Enum):
    """The kinds of a whole sharding, and of the subgroups that trailing tile dimensions form."""

    REPLICATED = "replicated"
    MAXIMAL = "maximal"
    MANUAL = "manual"
    UNKNOWN = "unknown"
    UNREDUCED = "unreduced"
    TILED = "tiled"


@frozen
class IotaTiles:
    """Devices 0, 1, 2, … reshaped, transposed, and reshaped to `dimensions`: `[d]<=[reshape]T(transpose)`."""

    dimensions: Ints
    reshape_dims: Ints
    transpose_perm: Ints

    def expand(self) -> np.ndarray[Ints, np.dtype[np.int64]]:
        """The device numbers as an array of `dimensions`."""
        iota = np.arange(int(np.prod(self.reshape_dims)), dtype=np.int64)
        return iota.reshape(self.reshape_dims).transpose(self.transpose_perm).reshape(self.dimensions)


@frozen
class TileSharding:
    """A sharding of one array in the tile form, or one of the simple kinds.

    `tile_dimensions` and `devices` (or `iota`) say which device holds which tile; trailing dimensions beyond the rank
    are subgroups of the types in `last_tile_dims`. `last_tile_dim_replicate` is the older spelling of
    `last_tile_dims={replicated}`.
    """

    type: ShardingType
    device: int | None = None
    tile_dimensions: Ints = ()
    devices: Ints = ()
    iota: IotaTiles | None = None
    last_tile_dims: tuple[ShardingType, ...] = ()
    last_tile_dim_replicate: bool = False
    shard_as: int | None = None
    shard_like: int | None = None
    metadata: tuple[Metadata, ...] = ()


@frozen
class Mesh:
    """Named axes over devices: `mesh[x=2,y=4]`, with the device order where it is not 0, 1, 2, …

    `maximal_device` is set for `maximal_mesh[device_id=N]`.
    """

    axes: tuple[tuple[str, int], ...] = ()
    device_ids: Ints | None = None
    iota: IotaTiles | None = None
    maximal_device: int | None = None

    @property
    def device_count(self) -> int:
        """How many devices there are, at least."""
        if self.maximal_device is not None:
            return self.maximal_device + 1
        return math.prod(size for _, size in self.axes)

    def devices(self) -> np.ndarray[Ints, np.dtype[np.int64]]:
        """The device numbers, one dimension per axis."""
        sizes = tuple(size for _, size in self.axes)
        if self.maximal_device is not None:
            return np.array([self.maximal_device], np.int64)
        if self.device_ids is not None:
            return np.array(self.device_ids, np.int64).reshape(sizes)
        if self.iota is not None:
            return self.iota.expand().reshape(sizes)
        return np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)

    def fault_of(self, axes: Sequence[AxisRef]) -> str | None:
        """What is wrong with axes, or parts of axes, along which something is divided; None where nothing is."""
        sizes = dict(self.axes)
        spans: dict[str, list[tuple[int, int]]] = {}
        for axis in axes:
            if axis.name not in sizes:
                return f"the mesh has no axis {axis.name!r}; its axes are {', '.join(sizes) or 'none'}"
            spans.setdefault(axis.name, []).append(axis.span(sizes[axis.name]))
        for name, parts in spans.items():
            size = sizes[name]
            cuts = sorted({1, size, *chain.from_iterable(parts)})
            if parts != [(1, size)] and (cuts[-1] > size or any(low < 1 or high % low for low, high in pairwise(cuts))):
                return f"the parts of axis {name!r} do not divide it: {cuts}"
            if any(low < high for (_, high), (low, _) in pairwise(sorted(parts))):
                return f"axis {name!r}, or a part of it, is used twice"
        return None

    def along(self, axes: Sequence[AxisRef]) -> np.ndarray[Ints, np.dtype[np.int64]]:
        """The device numbers in rows, each along the given axes or parts of axes, major to minor.

        A part `x:(pre)size` is the middle one of the dimensions [pre, size, rest] into which axis x divides. Raises
        ValueError where an axis is not the mesh's, parts do not divide it, or one is used twice.
        """
        if fault := self.fault_of(axes):
            raise ValueError(fault)
        sizes = dict(self.axes)
        spans = [(axis.name, *axis.span(sizes[axis.name])) for axis in axes]
        # Each axis becomes one dimension per stretch between two cuts, major to minor.
        dimensions: list[int] = []
        stretches: dict[tuple[str, int], int] = {}
        for name, size in self.axes:
            cuts = {1, size} | {cut for used, low, high in spans if used == name for cut in (low, high)}
            for low, high in pairwise(sorted(cuts)):
                stretches[name, low] = len(dimensions)
                dimensions.append(high // low)
        inner = [
            place
            for name, low, high in spans
            for (used, cut), place in stretches.items()
            if used == name and low <= cut < high
        ]
        outer = [place for place in range(len(dimensions)) if place not in inner]
        columns = math.prod(dimensions[place] for place in inner)
        return self.devices().reshape(dimensions).transpose(*outer, *inner).reshape(-1, columns)


@frozen
class AxisRef:
    """An axis of a mesh, or a part of one: `x` or `x:(pre_size)size`."""

    name: str
    sub_axis: tuple[int, int] | None = None

    def span(self, size: int) -> tuple[int, int]:
        """How many parts of the axis, whose size is given, lie above it, and how many with its own."""
        pre, own = self.sub_axis or (1, size)
        return pre, pre * own


@frozen
class DimensionSharding:
    """The axes that divide one dimension, major to minor; an open one (`?`) may be divided further."""

    axes: tuple[AxisRef, ...] = ()
    is_closed: bool = True


@frozen
class NamedSharding:
    """A sharding in terms of mesh axes."""

    mesh: Mesh
    kind: ShardingType | None = None
    """Set where the text says only `replicated`, `manual` or `unreduced`."""
    dimensions: tuple[DimensionSharding, ...] = ()
    replicated: tuple[AxisRef, ...] = ()
    unreduced: tuple[AxisRef, ...] = ()
    manual: tuple[AxisRef, ...] = ()
    metadata: tuple[Metadata, ...] = ()


@frozen
class TupleSharding:
    """One sharding per leaf of a tuple."""

    elements: tuple[TileSharding | NamedSharding, ...] = ()


Sharding: TypeAlias = TileSharding | NamedSharding | TupleSharding


@frozen
class MeshReplicaGroups:
    """Groups along axes of a mesh (the third form)."""

    mesh: Mesh
    axes: tuple[AxisRef, ...]

    def expand(self) -> np.ndarray[Ints, np.dtype[np.int64]]:
        """One row per group: devices that differ along the axes only, in the order of the axes."""
        return self.mesh.along(self.axes)


@frozen
class ReplicaGroups:
    """The groups of a collective: explicit lists, an iota, or mesh axes; no groups at all means everyone together."""

    groups: tuple[Ints, ...] = ()
    iota: IotaTiles | None = None
    mesh: MeshReplicaGroups | None = None

    @property
    def device_count(self) -> int:
        """How many devices they name."""
        if self.iota is not None:
            return math.prod(self.iota.dimensions)
        return sum(map(len, self.groups)) if self.mesh is None else self.mesh.mesh.device_count

    def expand(self) -> tuple[Ints, ...]:
        """The groups as explicit lists."""
        if self.iota is not None:
            return tuple(tuple(map(int, row)) for row in self.iota.expand())
        if self.mesh is not None:
            return tuple(tuple(map(int, row)) for row in self.mesh.expand())
        return self.groups
