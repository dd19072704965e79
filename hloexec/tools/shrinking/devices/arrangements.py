"""The ways in which a module may have fewer devices, with what it takes to rewrite it for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import attrs
import numpy as np

from hloexec.core.ir import Literal, Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.core.wording import argument
from hloexec.engine.devices.topology import Topology, topology_of
from hloexec.errors import HloError, InputError
from hloexec.ops.relations import Place
from hloexec.tools.shrinking.devices.axes import DeviceAxes, arrangements, for_fewer_devices, require_partitioned
from hloexec.tools.shrinking.devices.constants import (
    DeviceConstants,
    DeviceValues,
    Originals,
    literal_of,
    with_own_constants,
    without_copies,
)
from hloexec.tools.shrinking.dimensions import Dimensions
from hloexec.tools.shrinking.positions import ConstantChange, lengths_by_constant


@frozen
class AxisChange:
    """An axis of the grid of devices, and how long it has become; devices next to one another differ by the stride."""

    before: int
    """The length, as it was."""
    after: int
    """What it became."""
    stride: int
    """By how much the numbers of devices differ that are next to one another along the axis."""


@frozen(eq=False)
class FewerDevices:
    """A module whose constants for numbers of devices have one use each, and the axes that get shorter."""

    module: Module
    originals: Originals
    axes: DeviceAxes

    @property
    def count(self) -> int:
        return self.axes.shorter.after.count

    @property
    def changes(self) -> tuple[AxisChange, ...]:
        before, after = self.axes.shorter.before, self.axes.shorter.after
        return tuple(AxisChange(size, after.sizes[axis], before.stride(axis)) for axis, size in enumerate(before.sizes))

    def literals(
        self, dimensions: Dimensions, sizes: Mapping[int, int]
    ) -> tuple[dict[Place, Literal], list[ConstantChange]]:
        """The constants of what devices compute from their numbers, for new sizes of dimensions."""
        literals: dict[Place, Literal] = {}
        changes: list[ConstantChange] = []
        constants = self.axes.constants
        lengths = lengths_by_constant(dimensions, sizes, constants.tables)
        for place, numbers in constants.replaced.items():
            constant = self.module.by_name[place[0]].by_name[place[1]]
            array = literal_of(constant)
            assert array is not None
            if place in constants.tables:
                numbers = _in_steps_of(numbers, lengths[place])
            is_certain = place not in constants.uncertain
            if is_certain and np.array_equal(array.reshape(-1), numbers):
                continue
            literal = constant.attributes.literal
            literals[place] = attrs.evolve(literal, value=numbers if array.ndim == 1 else numbers.reshape(array.shape))
            old, new = int(array.max()), int(numbers.max())
            changes.append(ConstantChange(*place, old, new, self.axes.grid.count, is_certain=is_certain))
        for place in constants.unclear:
            array = literal_of(self.module.by_name[place[0]].by_name[place[1]])
            assert array is not None
            number = int(array.reshape(-1)[0])
            changes.append(ConstantChange(*place, number, number, self.axes.grid.count, is_certain=False))
        return literals, changes

    def applied(self, module: Module) -> Module:
        """A module with smaller dimensions, for fewer devices."""
        return without_copies(for_fewer_devices(module, self.axes), self.originals)


@frozen(eq=False)
class Arranging:
    """A module that may have fewer devices, each constant for numbers of devices with one use."""

    module: Module
    originals: Originals
    topology: Topology
    values: DeviceValues

    @classmethod
    def of(cls, module: Module) -> Arranging:
        """InputError where the number of devices cannot change."""
        topology = _checked_topology(module)
        require_partitioned(module)
        values = DeviceValues.of(module, topology.replicas, topology.partitions)
        module, originals = with_own_constants(module, values)
        return cls(module, originals, topology, DeviceValues.of(module, topology.replicas, topology.partitions))

    def fewer(self, wanted: int | tuple[int, ...]) -> Iterator[FewerDevices]:
        """All arrangements of so many devices, or of one grid, for which constants and pairs can be fitted; InputError
        where there is none."""
        first: HloError | None = None
        is_any = False
        for shorter in arrangements(self.module, self.topology, self.values, wanted):
            try:
                axes = DeviceAxes(shorter, self.topology, self.values, DeviceConstants.of(self.values, shorter))
                for_fewer_devices(self.module, axes)
            except HloError as error:
                first = first or error
                continue
            is_any = True
            yield FewerDevices(self.module, self.originals, axes)
        if first is not None and not is_any:
            raise first


def fewer_devices(module: Module, wanted: int | tuple[int, ...]) -> Iterator[FewerDevices]:
    """The arrangements of so many devices, or of one grid; InputError where there are none, or not fewer."""
    topology = _checked_topology(module)
    count = prod(wanted) if isinstance(wanted, tuple) else wanted
    if count >= topology.count:
        raise InputError(
            f"{argument('devices')} is {count}, but module {module.name} has {topology.count}, and can only have fewer"
        )
    return Arranging.of(module).fewer(wanted)


def _checked_topology(module: Module) -> Topology:
    topology = topology_of(module)
    if topology.count == 1:
        raise InputError(f"module {module.name} is for one device, and cannot have fewer")
    if min(topology.replicas, topology.partitions) > 1:
        raise InputError(f"module {module.name} has {topology}; the number of devices can change of one kind alone")
    return topology


def _in_steps_of(table: Array, lengths: Mapping[int, int]) -> Array:
    """A table of offsets, for parts of another size."""
    steps = table[table != 0]
    step = int(np.gcd.reduce(steps)) if steps.size else 0
    return table // step * lengths[step] if lengths.get(step, step) != step else table
