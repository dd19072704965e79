"""What stands for the boundaries of manual regions, where devices take their shards of arrays, or assemble them."""

from __future__ import annotations

from math import prod

import numpy as np

from hloexec.core.dtypes import element_type
from hloexec.core.ir import ArrayShape, Instruction, Literal, ReplicaGroups
from hloexec.core.ir.editing import take_name
from hloexec.core.values import Array
from hloexec.engine.devices.manual_regions import Crossing, crossings
from hloexec.engine.devices.topology import Topology
from hloexec.ops.control.flow import make_constant
from hloexec.ops.equivalents.instructions import Values
from hloexec.ops.equivalents.writing import Writer, array_of, sizes_of


def cross(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The operands as devices have them behind a boundary."""
    pairs = zip(operands, crossings(write.module, write.source, instruction), strict=True)
    return write.in_form([_crossed(write, value, crossing) for value, crossing in pairs], instruction.shape)


def _crossed(write: Writer, value: Instruction, crossing: Crossing) -> Instruction:
    """The tiles of all devices, or of each alone, in a row, of which each takes those that a table says."""
    if crossing.is_identity:
        return value
    topology = Topology(write.replicas, write.partitions)
    is_alone = all(len(group) == 1 for group in crossing.members)
    tile, counts = crossing.tile, _counts(sizes_of(value), crossing.tile)
    value = write.reshape(value, (1, *(size for pair in zip(counts, tile, strict=True) for size in pair)))
    if not is_alone:
        shape = ArrayShape(array_of(value).element_type, (topology.count, *sizes_of(value)[1:]))
        groups = ReplicaGroups((tuple(range(topology.count)),))
        value = write.emit("all-gather", value, shape=shape, dimension=0, replica_groups=groups)
    rank = len(tile)
    value = write.transpose(value, (0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2)))
    value = write.reshape(value, (sizes_of(value)[0] * prod(counts), *tile))
    taken = _taken(crossing, topology, counts, is_alone=is_alone)
    literal = Literal.from_array(taken, ArrayShape(element_type("s32"), taken.shape))
    table = write.add(make_constant(take_name(f"{write.prefix}.tiles", write.taken), literal))
    device = write.convert(write.emit("replica-id"), element_type("s32"))
    row = write.emit(
        "dynamic-slice", table, device, write.constant(0, element_type("s32")), dynamic_slice_sizes=(1, taken.shape[1])
    )
    value = write.emit(
        "gather",
        value,
        write.reshape(row, (taken.shape[1],)),
        offset_dims=tuple(range(1, rank + 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        index_vector_dim=1,
        slice_sizes=(1, *tile),
    )
    value = write.reshape(value, (*_counts(crossing.shape.dimensions, tile), *tile))
    value = write.transpose(value, np.arange(2 * rank).reshape(2, rank).T.reshape(-1))
    return write.convert(write.reshape(value, crossing.shape.dimensions), crossing.shape.element_type)


def _counts(sizes: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, ...]:
    """How many tiles there are along each dimension."""
    return tuple(size // part if part else 1 for size, part in zip(sizes, tile, strict=True))


def _taken(crossing: Crossing, topology: Topology, counts: tuple[int, ...], *, is_alone: bool) -> Array:
    """Which tiles each device takes, [device, tile], in row-major order."""
    numbers = np.arange(prod(counts)).reshape(counts)
    tiles = np.zeros(_counts(crossing.shape.dimensions, crossing.tile), np.int32)
    table = np.zeros((topology.count, tiles.size), np.int32)
    for group in crossing.groups(topology):
        for number, device in group.items():
            for target, source in crossing.pieces[number]:
                tiles[target] = numbers[source] + (0 if is_alone else device * numbers.size)
        table[list(group.values())] = tiles.reshape(-1)
    return table
