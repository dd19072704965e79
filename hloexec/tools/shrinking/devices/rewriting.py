"""A module for fewer devices: its groups, pairs, shardings and numbers of devices."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import (
    Computation,
    Instruction,
    IotaTiles,
    Module,
    NamedSharding,
    ReplicaGroups,
    Sharding,
    ShardingType,
    TileSharding,
    TupleSharding,
)
from hloexec.core.ir.editing import map_instructions
from hloexec.errors import InputError
from hloexec.tools.shrinking.devices.axes import DeviceAxes, is_collective
from hloexec.tools.shrinking.devices.grid import Shorter, runs_of
from hloexec.tools.shrinking.devices.permutes import pairs_for


def for_fewer_devices(module: Module, axes: DeviceAxes) -> Module:
    """The module with groups, pairs and shardings along shorter axes."""
    count = axes.shorter.after.count
    is_partitioned = axes.topology.partitions > 1

    def for_fewer(computation: Computation, instruction: Instruction) -> Instruction:
        where = f"%{instruction.name} in {computation.name}"
        attributes, sharding = instruction.attributes, instruction.sharding
        if is_collective(instruction):
            attributes = _attributes(attributes, axes.shorter, where)
        if sharding is not None:
            sharding = _sharding(sharding, axes.shorter, where)
        return attrs.evolve(instruction, attributes=attributes, sharding=sharding)

    counts = {"num_partitions": count if is_partitioned else 1, "replica_count": 1 if is_partitioned else count}
    return map_instructions(module, for_fewer, **counts)


def _attributes(attributes: Any, shorter: Shorter, where: str) -> Any:
    pairs = getattr(attributes, "source_target_pairs", None)
    if pairs is not None:
        return attrs.evolve(attributes, source_target_pairs=pairs_for(pairs, shorter, where))
    groups: ReplicaGroups = attributes.replica_groups
    if groups.device_count != shorter.before.count:
        return attributes
    found = [shorter.renumbered(group) for group in groups.expand()]
    left = tuple(group for group in found if group)
    if groups.groups:
        return attrs.evolve(attributes, replica_groups=ReplicaGroups(left))
    iota = _iota(left, (len(left), len(left[0])))
    return attrs.evolve(attributes, replica_groups=ReplicaGroups(left) if iota is None else ReplicaGroups(iota=iota))


def _iota(devices: Any, dimensions: tuple[int, ...]) -> IotaTiles | None:
    """The short form of a list of all devices that is a transposed grid; None for any other."""
    runs = runs_of(np.array(devices).reshape(-1))
    if runs is None or any(step < 1 for _, step in runs):
        return None
    order = sorted(range(len(runs)), key=lambda number: -runs[number][1])
    sizes = tuple(runs[number][0] for number in order) or (1,)
    found = IotaTiles(dimensions, sizes, tuple(order.index(number) for number in range(len(runs))) or (0,))
    return found if np.array_equal(found.expand().reshape(-1), np.array(devices).reshape(-1)) else None


def _sharding(sharding: Sharding, shorter: Shorter, where: str) -> Sharding:
    if isinstance(sharding, TupleSharding):
        return TupleSharding(tuple(_leaf_sharding(each, shorter, where) for each in sharding.elements))
    return _leaf_sharding(sharding, shorter, where)


def _leaf_sharding(
    sharding: TileSharding | NamedSharding, shorter: Shorter, where: str
) -> TileSharding | NamedSharding:
    if isinstance(sharding, NamedSharding):
        return _named(sharding, shorter, where)
    if sharding.type is ShardingType.MAXIMAL:
        device = sharding.devices[0] if sharding.device is None else sharding.device
        if device not in shorter.kept():
            raise InputError(f"the sharding of {where} is for device {device}, which is left out")
        return attrs.evolve(sharding, device=shorter.renumbered([device])[0], devices=())
    return _tiled(sharding, shorter, where) if sharding.type is ShardingType.TILED else sharding


def _tiled(sharding: TileSharding, shorter: Shorter, where: str) -> TileSharding:
    sizes = sharding.tile_dimensions
    devices = sharding.iota.expand().reshape(-1) if sharding.iota is not None else np.array(sharding.devices)
    tiles = devices.reshape(sizes)
    found = []
    for axis in range(len(sizes)):
        block = shorter.before.along(np.moveaxis(tiles, axis, -1).reshape(-1, sizes[axis])[0])
        if block is None or tiles.size != shorter.before.count:
            raise InputError(f"the sharding of {where} does not lie along axes of the grid of devices")
        found.append(shorter.after.size(block))
    left = shorter.renumbered(devices.tolist())
    dimensions = tuple(found)
    iota = None if sharding.iota is None else _iota(left, dimensions)
    return attrs.evolve(sharding, tile_dimensions=dimensions, devices=() if iota else left, iota=iota)


def _named(sharding: NamedSharding, shorter: Shorter, where: str) -> NamedSharding:
    mesh = sharding.mesh
    if mesh.maximal_device is not None or mesh.device_count != shorter.before.count:
        return sharding
    devices = mesh.devices()
    sizes = []
    for axis, (name, size) in enumerate(mesh.axes):
        block = shorter.before.along(np.moveaxis(devices, axis, -1).reshape(-1, size)[0])
        if block is None:
            raise InputError(f"axis {name!r} of the mesh of {where} does not lie along axes of the grid of devices")
        sizes.append((name, shorter.after.size(block)))
    dimensions = [axis for dimension in sharding.dimensions for axis in dimension.axes]
    if any(axis.sub_axis for axis in (*dimensions, *sharding.replicated, *sharding.unreduced, *sharding.manual)):
        raise InputError(f"the sharding of {where} divides axes of its mesh, which hloexec does not change")
    left = shorter.renumbered(devices.reshape(-1).tolist())
    is_plain = left == tuple(range(len(left)))
    found = attrs.evolve(mesh, axes=tuple(sizes), device_ids=None if is_plain else left, iota=None)
    return attrs.evolve(sharding, mesh=found)
