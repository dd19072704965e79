"""What XLA is given in place of a module; also for the boundaries of manual regions, where devices take their shards of
arrays, or assemble them."""

from __future__ import annotations

from math import prod

import attrs
import numpy as np

from hloexec.core.ir import Instruction, Module
from hloexec.core.process import remembered
from hloexec.engine.devices.manual_regions import Crossing, crossings
from hloexec.engine.devices.topology import Topology
from hloexec.ops.equivalents.instructions import Values
from hloexec.ops.equivalents.modules import for_xla, is_optimized
from hloexec.ops.equivalents.tiles import take_tiles, tile_counts
from hloexec.ops.equivalents.writing import Writer, sizes_of


@remembered
def compiled_by_xla(module: Module) -> Module:
    """What XLA is given in place of a module, and computes the same."""
    if is_optimized(module) or module.num_partitions > 1:
        return for_xla(module, boundary=cross)
    # An execution would use up the inputs that the result may alias.
    return attrs.evolve(module, input_output_alias=(), buffer_donor=())


def cross(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The operands as devices have them behind a boundary."""
    pairs = zip(operands, crossings(write.module, write.source, instruction), strict=True)
    return write.in_form([_crossed(write, value, crossing) for value, crossing in pairs], instruction.shape)


def _crossed(write: Writer, value: Instruction, crossing: Crossing) -> Instruction:
    if crossing.is_identity:
        return value
    topology = Topology(write.replicas, write.partitions)
    from_all = any(len(group) > 1 for group in crossing.members)
    counts = tile_counts(sizes_of(value), crossing.tile)
    numbers = np.arange(prod(counts)).reshape(counts)
    tiles = np.zeros(tile_counts(crossing.shape.dimensions, crossing.tile), np.int64)
    table = np.zeros((topology.count, tiles.size), np.int64)
    for group in crossing.groups(topology):
        for number, device in group.items():
            for target, source in crossing.pieces[number]:
                tiles[target] = numbers[source] + (device * numbers.size if from_all else 0)
        table[list(group.values())] = tiles.reshape(-1)
    return take_tiles(write, value, crossing.tile, crossing.shape, table, from_all=from_all)
