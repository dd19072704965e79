"""How a value is divided among devices, and which devices take part in a collective.

`Sharding` holds every form of XLA's annotation as written; `ReplicaGroups` the three forms of group lists. Both keep
the compact (iota) form, and expand it on demand.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.ir.metadata import Metadata

__all__ = [
    "AxisRef",
    "DimensionSharding",
    "IotaTiles",
    "Mesh",
    "MeshReplicaGroups",
    "NamedSharding",
    "ReplicaGroups",
    "Sharding",
    "ShardingType",
    "TileSharding",
    "TupleSharding",
]


class ShardingType(enum.Enum):
    """The kinds of a whole sharding, and of the subgroups that trailing tile dimensions form."""

    REPLICATED = "replicated"
    MAXIMAL = "maximal"
    MANUAL = "manual"
    UNKNOWN = "unknown"
    UNREDUCED = "unreduced"
    TILED = "tiled"


@attrs.frozen
class IotaTiles:
    """Devices 0, 1, 2, … reshaped, transposed, and reshaped to `dimensions`: `[d]<=[reshape]T(transpose)`."""

    dimensions: tuple[int, ...]
    reshape_dims: tuple[int, ...]
    transpose_perm: tuple[int, ...]

    def expand(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """The device numbers as an array of `dimensions`."""
        iota = np.arange(int(np.prod(self.reshape_dims)), dtype=np.int64)
        return iota.reshape(self.reshape_dims).transpose(self.transpose_perm).reshape(self.dimensions)


@attrs.frozen
class TileSharding:
    """A sharding of one array in the tile form, or one of the simple kinds.

    `tile_dimensions` and `devices` (or `iota`) say which device holds which tile; trailing dimensions beyond the rank
    are subgroups of the types in `last_tile_dims`. `last_tile_dim_replicate` is the older spelling of
    `last_tile_dims={replicated}`.
    """

    type: ShardingType
    device: int | None = None
    tile_dimensions: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    iota: IotaTiles | None = None
    last_tile_dims: tuple[ShardingType, ...] = ()
    last_tile_dim_replicate: bool = False
    shard_as: int | None = None
    shard_like: int | None = None
    metadata: tuple[Metadata, ...] = ()


@attrs.frozen
class Mesh:
    """Named axes over devices: `mesh[x=2,y=4]`, with the device order where it is not 0, 1, 2, …

    `maximal_device` is set for `maximal_mesh[device_id=N]`.
    """

    axes: tuple[tuple[str, int], ...] = ()
    device_ids: tuple[int, ...] | None = None
    iota: IotaTiles | None = None
    maximal_device: int | None = None


@attrs.frozen
class AxisRef:
    """An axis of a mesh, or a part of one: `x` or `x:(pre_size)size`."""

    name: str
    sub_axis: tuple[int, int] | None = None


@attrs.frozen
class DimensionSharding:
    """The axes that divide one dimension, major to minor; an open one (`?`) may be divided further."""

    axes: tuple[AxisRef, ...] = ()
    is_closed: bool = True


@attrs.frozen
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


@attrs.frozen
class TupleSharding:
    """One sharding per leaf of a tuple."""

    elements: tuple[TileSharding | NamedSharding, ...] = ()


Sharding: TypeAlias = TileSharding | NamedSharding | TupleSharding


@attrs.frozen
class MeshReplicaGroups:
    """Groups along axes of a mesh (the third form)."""

    mesh: Mesh
    axes: tuple[AxisRef, ...]


@attrs.frozen
class ReplicaGroups:
    """The groups of a collective: explicit lists, an iota, or mesh axes; no groups at all means everyone together."""

    groups: tuple[tuple[int, ...], ...] = ()
    iota: IotaTiles | None = None
    mesh: MeshReplicaGroups | None = None

    def expand(self) -> tuple[tuple[int, ...], ...]:
        """The groups as explicit lists."""
        if self.iota is not None:
            return tuple(tuple(map(int, row)) for row in self.iota.expand())
        return self.groups
