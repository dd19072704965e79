"""What stands for devices taking tiles of arrays that others hold."""

from __future__ import annotations

from math import prod

import numpy as np

from hloexec.core.dtypes import element_type
from hloexec.core.ir import ArrayShape, Instruction, Literal, ReplicaGroups
from hloexec.core.ir.editing import take_name
from hloexec.core.values import Array, Dimensions
from hloexec.ops.control.flow import make_constant
from hloexec.ops.equivalents.writing import Writer, array_of, sizes_of

_S32 = element_type("s32")


def tile_counts(sizes: Dimensions, tile: Dimensions) -> Dimensions:
    """How many tiles an array has along each dimension."""
    return tuple(size // part if part else 1 for size, part in zip(sizes, tile, strict=True))


def take_tiles(
    write: Writer, value: Instruction, tile: Dimensions, result: ArrayShape, table: Array, *, from_all: bool
) -> Instruction:
    """The result, in row-major order of the tiles [device, tile] that the table has for each device.

    They are numbers of tiles of the device's own value, or, `from_all`, of those of all devices behind one another.
    """
    counts, rank = tile_counts(sizes_of(value), tile), len(tile)
    value = write.reshape(value, (1, *(size for pair in zip(counts, tile, strict=True) for size in pair)))
    if from_all:
        shape = ArrayShape(array_of(value).element_type, (len(table), *sizes_of(value)[1:]))
        groups = ReplicaGroups((tuple(range(len(table))),))
        value = write.emit("all-gather", value, shape=shape, dimension=0, replica_groups=groups)
    value = write.transpose(value, (0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2)))
    value = write.reshape(value, (sizes_of(value)[0] * prod(counts), *tile))
    value = write.emit(
        "gather",
        value,
        _row(write, table),
        offset_dims=tuple(range(1, rank + 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        index_vector_dim=1,
        slice_sizes=(1, *tile),
    )
    value = write.reshape(value, (*tile_counts(result.dimensions, tile), *tile))
    value = write.transpose(value, np.arange(2 * rank).reshape(2, rank).T.reshape(-1))
    return write.convert(write.reshape(value, result.dimensions), result.element_type)


def _row(write: Writer, table: Array) -> Instruction:
    """That of the device."""
    numbers = Literal.from_array(table.astype(np.int32), ArrayShape(_S32, table.shape))
    rows = write.add(make_constant(take_name(f"{write.prefix}.tiles", write.taken), numbers))
    starts = write.convert(write.emit("replica-id"), _S32), write.constant(0, _S32)
    row = write.emit("dynamic-slice", rows, *starts, dynamic_slice_sizes=(1, table.shape[1]))
    return write.reshape(row, table.shape[1:])
