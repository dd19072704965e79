"""How the dimensions of a module depend on the axes of its devices, where these get shorter.

The axes are dimensions, too: what a collective gathers is as many times longer as there are devices in a group. What
devices compute from their numbers counts along them, as positions do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.errors import InputError
from hloexec.ops.collective.sending import AllToAllAttributes
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.ops.relations import Place, Position, Relations, Value
from hloexec.tools.shrinking.devices.axes import DeviceAxes, is_collective
from hloexec.tools.shrinking.devices.numbers import NOTHING


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
    found = {}
    for number, name in enumerate(instruction.operands[1:], 1):
        block = axes.counted((computation.name, name))
        if block is not None:
            found[number] = axes.dimension(block, relations, (computation.name, instruction.name))
    return found


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
