"""The axes of a module's devices: where they are found, what depends on them, and the module for shorter ones.

The axes are dimensions, too: what a collective gathers is as many times longer as there are devices in a group. What
devices compute from their numbers counts along them, as positions do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise, product
from math import prod
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import (
    ArrayShape,
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
    flat_shapes,
)
from hloexec.core.ir.editing import map_instructions
from hloexec.core.structs import define
from hloexec.engine.devices.manual_regions import tiles_of
from hloexec.engine.devices.topology import Topology, groups_of
from hloexec.errors import HloError, InputError
from hloexec.ops.collective.sending import AllToAllAttributes
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.ops.relations import Place, Position, Relations, Value
from hloexec.tools.shrinking.devices.constants import NOTHING, DeviceConstants, DeviceValues
from hloexec.tools.shrinking.devices.grid import Block, Grid, Run, Shorter, pairs_for, runs_of
from hloexec.tools.shrinking.grouping import divisors


def is_collective(instruction: Instruction) -> bool:
    attributes = instruction.attributes
    return hasattr(attributes, "replica_groups") or hasattr(attributes, "source_target_pairs")


def device_counts(module: Module, count: int) -> frozenset[int]:
    """The number of devices, and the sizes of the groups in which collectives have them, if larger than 1."""
    sizes = {count}
    for computation in module:
        for instruction in computation:
            groups: ReplicaGroups | None = getattr(instruction.attributes, "replica_groups", None)
            if groups is not None:
                sizes.update(map(len, groups.expand()[:1]))
    return frozenset(sizes - {0, 1})


def grid_of(module: Module, topology: Topology, values: DeviceValues) -> Grid:
    """The grid whose axes end wherever something steps over; InputError where that is no grid."""
    cuts: dict[int, str] = {}
    for where, runs in chain(_collective_runs(module, topology), _value_runs(values), _sharding_runs(module, topology)):
        for length, step in runs:
            for cut in (abs(step), abs(step) * length):
                if cut and topology.count % cut == 0:
                    cuts.setdefault(cut, where)
    for low, high in pairwise(sorted(cuts)):
        if high % low:
            raise InputError(
                f"the devices form no grid: {cuts[low]} divides them into {low}, and {cuts[high]} into {high}"
            )
    return Grid.of_cuts(topology.count, list(cuts))


def _collective_runs(module: Module, topology: Topology) -> Iterator[tuple[str, list[Run]]]:
    for computation in module:
        for instruction in computation:
            if not is_collective(instruction):
                continue
            where = f"%{instruction.name} in {computation.name}"
            groups = [list(group.values()) for group in groups_of(instruction, topology)]
            pairs = getattr(instruction.attributes, "source_target_pairs", None)
            runs_of_groups = [runs_of(group) for group in groups]
            if pairs is not None:
                sources = runs_of([source for source, _ in sorted(pairs, key=lambda pair: pair[1])])
                whole = len(pairs) == topology.count and sources is not None
                yield from ((where, runs) for runs in ([sources] if whole else runs_of_groups) if runs)
                continue
            if runs_of_groups[0] is None or any(runs != runs_of_groups[0] for runs in runs_of_groups):
                raise InputError(
                    f"the groups of {where} do not lie along axes of a grid of devices, so that there is no part of it "
                    f"to keep: {instruction.attributes.replica_groups.expand()}"
                )
            yield where, runs_of_groups[0]


def _value_runs(values: DeviceValues) -> Iterator[tuple[str, list[Run]]]:
    for place in values.known:
        numbers = values.differing(place)
        runs = None if numbers is None or numbers.dtype == bool else runs_of(numbers.astype(np.int64))
        if runs is not None:
            strides = np.cumprod([1, *(length for length, _ in runs[:0:-1])])[::-1]
            steps = [(length, int(stride)) for (length, _), stride in zip(runs, strides, strict=True)]
            yield f"%{place[1]} in {place[0]}", steps


def _sharding_runs(module: Module, topology: Topology) -> Iterator[tuple[str, list[Run]]]:
    for instruction in module.entry:
        leaves = flat_shapes(instruction.shape)
        elements: Sequence[Any] = getattr(instruction.sharding, "elements", (instruction.sharding,))
        for leaf, sharding in zip(leaves, elements, strict=False):
            if isinstance(leaf, ArrayShape) and isinstance(sharding, (TileSharding, NamedSharding)):
                try:
                    tiles = tiles_of(sharding, leaf.rank, topology.partitions)
                except HloError:
                    continue
                for axis in range(leaf.rank):
                    runs = runs_of(np.moveaxis(tiles, axis, -1).reshape(-1, tiles.shape[axis])[0])
                    if runs is not None:
                        yield f"the sharding of %{instruction.name}", runs


@define(eq=False)
class DeviceAxes:
    """A grid with shorter axes, what devices compute on it, and the axes as dimensions that values have."""

    shorter: Shorter
    topology: Topology
    values: DeviceValues
    constants: DeviceConstants
    dimensions: dict[Block, int] = attrs.field(factory=dict)

    @property
    def grid(self) -> Grid:
        return self.shorter.before

    def dimension(self, block: Block, relations: Relations, where: Place) -> int:
        """The dimension that is as long as a block of axes."""
        if block not in self.dimensions:
            (dimension,) = relations.new((self.grid.size(block),))
            self.dimensions[block] = dimension
            relations.to_one.add(dimension)
            if len(block) > 1:
                parts = [self.dimension((axis,), relations, where) for axis in block]
                relations.split(dimension, parts, where)
        return self.dimensions[block]

    def group(self, instruction: Instruction) -> Block | None:
        """The axes along which a collective's groups lie; None where each device is alone."""
        if not hasattr(instruction.attributes, "replica_groups"):
            return None
        (first, *_) = groups_of(instruction, self.topology)
        block = self.grid.along(list(first.values()))
        if block is None:
            raise InputError(f"the groups of %{instruction.name} do not lie along axes of the grid of devices")
        return block or None

    def counted(self, place: Place) -> Block | None:
        """The axes along which a value counts, or from the numbers along which it is computed."""
        blocks = set()
        for source in self.values.known.get(place, NOTHING).sources:
            numbers = self.values.differing(source)
            block = None if numbers is None or numbers.dtype == bool else self.grid.block_of(numbers.astype(np.int64))
            if block is not None:
                blocks.add(block)
        return blocks.pop() if len(blocks) == 1 else None


def arrangements(
    module: Module, topology: Topology, values: DeviceValues, wanted: int | tuple[int, ...]
) -> Iterator[Shorter]:
    """All ways to shorten axes to so many devices, those first that keep most axes and shorten them evenly.

    The new sizes of all axes may be given instead.
    """
    grid = grid_of(module, topology, values)
    if isinstance(wanted, tuple):
        yield Shorter(grid, Grid(_checked_axes(grid, wanted)))
        return
    choices = [[size, *divisors(size)] if size > 1 else [1] for size in grid.sizes]
    fitting = [sizes for sizes in product(*choices) if prod(sizes) == wanted]
    if not fitting:
        counts = sorted({prod(sizes) for sizes in product(*choices)} - {grid.count}, reverse=True)
        raise InputError(
            f"{grid.count} devices, a grid of {' × '.join(map(str, grid.sizes))}, cannot become {wanted}: "
            f"possible are {', '.join(map(str, counts))}"
        )

    def order(sizes: tuple[int, ...]) -> tuple[int, float]:
        factors = [before // after for before, after in zip(grid.sizes, sizes, strict=True)]
        return sum(after == 1 < before for before, after in zip(grid.sizes, sizes, strict=True)), max(factors)

    for sizes in sorted(fitting, key=order):
        yield Shorter(grid, Grid(sizes))


def _checked_axes(grid: Grid, wanted: tuple[int, ...]) -> tuple[int, ...]:
    pairs = list(zip(grid.sizes, wanted, strict=False))
    if len(wanted) != len(grid.sizes) or any(before % after for before, after in pairs):
        raise InputError(
            f"the devices form a grid of {' × '.join(map(str, grid.sizes))}, which cannot become "
            f"{' × '.join(map(str, wanted))}: each axis needs a size that divides it"
        )
    return wanted


def require_partitioned(module: Module) -> None:
    """InputError where XLA's partitioner has not divided a module yet, or something names devices in another way."""
    for computation in module:
        for instruction in computation:
            where = f"%{instruction.name} in {computation.name}"
            target = getattr(instruction.attributes, "custom_call_target", "")
            if target in _UNPARTITIONED or target.startswith("xla.sdy."):
                raise InputError(
                    f"{where} ({target}) is for XLA's partitioner: the number of devices can change only after it"
                )
            if any("source_target_pairs" in name for name, _ in instruction.frontend_attributes or ()):
                raise InputError(f"{where} names devices in its frontend attributes, which hloexec does not change")


_UNPARTITIONED = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})


def device_group(instruction: Instruction, relations: Relations, where: Place, axes: DeviceAxes) -> int | None:
    """The dimension that is as long as a group of a collective."""
    block = axes.group(instruction) if is_collective(instruction) else None
    if block is None:
        return None
    is_split = isinstance(instruction.attributes, AllToAllAttributes) and instruction.attributes.dimension is None
    if is_split and axes.shorter.changes(block):
        raise InputError(
            f"%{instruction.name} in {where[0]} has one operand for each of {axes.grid.size(block)} devices, and their "
            "number cannot change; XLA makes it of an all-to-all of one array, and before that it can"
        )
    return axes.dimension(block, relations, where)


def device_starts(
    computation: Computation, instruction: Instruction, relations: Relations, axes: DeviceAxes
) -> Mapping[int, int]:
    """By operand, the dimension of the axes along which a slice's start index counts."""
    if role_of(instruction) is not Role.KERNEL:
        return {}
    dimensions = {}
    for number, name in enumerate(instruction.operands[1:], 1):
        block = axes.counted((computation.name, name))
        if block is not None:
            dimensions[number] = axes.dimension(block, relations, (computation.name, instruction.name))
    return dimensions


def relate_devices(
    module: Module, relations: Relations, values: Mapping[str, Mapping[str, Value]], axes: DeviceAxes
) -> None:
    """Say along which axes numbers of devices count."""
    for computation in module:
        for instruction in computation:
            place = (computation.name, instruction.name)
            value = values[computation.name][instruction.name]
            if axes.values.known.get(place, NOTHING).sources and isinstance(instruction.shape, ArrayShape):
                _relate_index(instruction, place, value, values[computation.name], relations, axes)
    for place, block in axes.constants.tables.items():
        (axis,) = values[place[0]][place[1]].axes
        relations.tie(axis, axes.dimension(block, relations, place))


def _relate_index(
    instruction: Instruction,
    place: Place,
    value: Value,
    values: Mapping[str, Value],
    relations: Relations,
    axes: DeviceAxes,
) -> None:
    numbers = axes.values.differing(place)
    if numbers is not None and numbers.dtype != bool:
        wide = numbers.astype(np.int64)
        block = axes.grid.block_of(wide)
        if block is not None and wide.max() - wide.min() < axes.grid.size(block):
            position = Position(value.unit, (axes.dimension(block, relations, place),))
            relations.positions.append(position)
    if numbers is None and traits_of(instruction).keeps_unit:
        for name in instruction.operands:
            relations.units.tie(values[name].unit, value.unit)


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
    new_groups = [shorter.renumbered(group) for group in groups.expand()]
    left = tuple(group for group in new_groups if group)
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
    tiles = IotaTiles(dimensions, sizes, tuple(order.index(number) for number in range(len(runs))) or (0,))
    return tiles if np.array_equal(tiles.expand().reshape(-1), np.array(devices).reshape(-1)) else None


def _sharding(sharding: Sharding, shorter: Shorter, where: str) -> Sharding:
    if isinstance(sharding, TupleSharding):
        return TupleSharding(tuple(_leaf_sharding(element, shorter, where) for element in sharding.elements))
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
    new_sizes = []
    for axis in range(len(sizes)):
        block = shorter.before.along(np.moveaxis(tiles, axis, -1).reshape(-1, sizes[axis])[0])
        if block is None or tiles.size != shorter.before.count:
            raise InputError(f"the sharding of {where} does not lie along axes of the grid of devices")
        new_sizes.append(shorter.after.size(block))
    left = shorter.renumbered(devices.tolist())
    dimensions = tuple(new_sizes)
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
    new_mesh = attrs.evolve(mesh, axes=tuple(sizes), device_ids=None if is_plain else left, iota=None)
    return attrs.evolve(sharding, mesh=new_mesh)
