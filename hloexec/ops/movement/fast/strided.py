"""Fast variants of broadcast, reshape and slice: views whose strides are known before the run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.ops.movement.copying import reshaped
from hloexec.ops.movement.strided import BroadcastAttributes, SliceAttributes
from hloexec.ops.movement.views import Indexing, Spreading, without_units
from hloexec.ops.registry import fast
from hloexec.ops.rows import RowForm, RowFunction, behind_prefix, prefix_length, prefixes

_COPIED_BYTES = 1 << 12
"""Broadcasts to no more than this are copies: they take less time than NumPy's views."""


@fast("broadcast")
class FastBroadcast:
    """One index, or a view or copy that repeats elements."""

    @staticmethod
    def bind(
        *, attributes: BroadcastAttributes, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]
    ) -> Callable[[Array], Array] | None:
        dimensions, sizes = attributes.dimensions, shape.dimensions
        if not sizes or list(dimensions) != sorted(dimensions):
            return None
        fill = tuple(slice(None) if dimension in dimensions else None for dimension in range(len(sizes)))
        if all(size == 1 for size, part in zip(sizes, fill, strict=True) if part is None):
            return Indexing(fill)
        return Spreading(fill if dimensions else (), sizes, shape.byte_size <= _COPIED_BYTES)

    @staticmethod
    def by_rows(
        *, attributes: BroadcastAttributes, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]
    ) -> RowForm | None:
        sizes, dimensions = operand_shapes[0].dimensions, attributes.dimensions
        if list(dimensions) != sorted(dimensions):
            return None
        shared = next((axis for axis, dimension in enumerate(dimensions) if dimension != axis), len(dimensions))
        # Dimensions behind the prefix stay behind it.
        rows = frozenset(
            count
            for count in prefixes(sizes[:shared])
            if prefix_length(sizes, count) == prefix_length(shape.dimensions, count)
        )

        def bind(count: int) -> RowFunction:
            length = prefix_length(shape.dimensions, count)
            fill = tuple(slice(None) if dimension in dimensions else None for dimension in range(length, shape.rank))
            row = shape.dimensions[length:]
            return lambda block: np.broadcast_to(block[slice(None), *fill], (block.shape[0], *row))

        return RowForm(rows, bind, is_view=True)


@fast("reshape")
class FastReshape:
    """An index where dimensions of size 1 come and go; else a view, if the operand is in row-major order."""

    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Callable[[Array], Array] | None:
        sizes, kept = shape.dimensions, [size for size in shape.dimensions if size != 1]
        if kept == [size for size in operand_shapes[0].dimensions if size != 1]:
            return Indexing(without_units(operand_shapes[0].dimensions, sizes))
        if not sizes:
            return None
        return lambda operand: operand.reshape(sizes) if operand.flags.c_contiguous else reshaped(operand, sizes)

    @staticmethod
    def by_rows(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> RowForm:
        rows = prefixes(operand_shapes[0].dimensions) & prefixes(shape.dimensions)

        def bind(count: int) -> RowFunction:
            row = behind_prefix(shape.dimensions, count)
            return lambda block: block.reshape((block.shape[0], *row))

        return RowForm(rows, bind, is_view=True)


@fast("slice")
class FastSlice:
    """One index."""

    @staticmethod
    def bind(*, attributes: SliceAttributes) -> Callable[[Array], Array] | None:
        index = tuple(slice(entry.start, entry.limit, entry.stride) for entry in attributes.slice)
        return Indexing(index) if index else None

    @staticmethod
    def by_rows(*, attributes: SliceAttributes, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> RowForm:
        sizes = operand_shapes[0].dimensions
        whole = next((axis for axis, size in enumerate(sizes) if size != shape.dimensions[axis]), len(sizes))
        slices = [slice(entry.start, entry.limit, entry.stride) for entry in attributes.slice]

        def bind(count: int) -> RowFunction:
            index = (slice(None), *slices[prefix_length(shape.dimensions, count) :])
            return lambda block: block[index]

        return RowForm(prefixes(sizes[:whole]), bind, is_view=True)
