"""Fast variants of movement: of concatenate, pad and iota; and views whose strides are known before the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller

import numpy as np

from hloexec.core.dtypes import DType, Kind
from hloexec.core.ir import ArrayShape, ArrayShapes, PaddingDimension
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.common import reshaped
from hloexec.ops.elementwise.fast.formulas import OfScalars
from hloexec.ops.movement.assembly import ConcatenateAttributes, PadAttributes, Padding, numbers_between, placement
from hloexec.ops.movement.bitcast import bits_plan, is_row_major
from hloexec.ops.movement.dynamic_shapes import part
from hloexec.ops.movement.strided import BroadcastAttributes, Indexing, SliceAttributes, Spreading, without_units
from hloexec.ops.registry import fast
from hloexec.ops.traits import RowForm, RowFunction, behind_prefix, prefix_length, prefixes


@frozen
class Joining:
    """The kernel that puts arrays of one type one after the other, into a new one in row-major order."""

    axis: int
    sizes: Dimensions
    storage: DType

    def __call__(self, *operands: Array) -> Array:
        return np.concatenate(operands, self.axis, out=np.empty(self.sizes, self.storage))


@fast("concatenate")
class FastConcatenate:
    """For operands of one type."""

    @staticmethod
    def bind(
        *, attributes: ConcatenateAttributes, shape: ArrayShape, operand_shapes: ArrayShapes
    ) -> Callable[..., Array] | None:
        if any(operand.element_type is not shape.element_type for operand in operand_shapes):
            return None
        axis, sizes, storage = attributes.dimension, shape.dimensions, shape.element_type.storage
        return Joining(axis, sizes, storage)

    @staticmethod
    def by_rows(*, attributes: ConcatenateAttributes, shape: ArrayShape, operand_shapes: ArrayShapes) -> RowForm | None:
        if {operand.element_type for operand in operand_shapes} != {shape.element_type}:
            return None

        def bind(count: int) -> RowFunction:
            behind = attributes.dimension - prefix_length(shape.dimensions, count) + 1
            return lambda *blocks: np.concatenate(blocks[:-1], behind, out=blocks[-1])

        return RowForm(prefixes(shape.dimensions[: attributes.dimension]), bind, fills=True)


@fast("pad")
class FastPad:
    """For an operand and a value of one type."""

    @staticmethod
    def bind(*, attributes: PadAttributes, shape: ArrayShape, operand_shapes: ArrayShapes) -> Padding | None:
        if {operand.element_type for operand in operand_shapes} != {shape.element_type}:
            return None
        return Padding.of(operand_shapes[0].dimensions, attributes.padding)

    @staticmethod
    def by_rows(*, attributes: PadAttributes, shape: ArrayShape, operand_shapes: ArrayShapes) -> RowForm | None:
        padding = attributes.padding
        if {operand.element_type for operand in operand_shapes} != {shape.element_type}:
            return None
        if all(max(entry.edge_padding_low, entry.edge_padding_high, entry.interior_padding) <= 0 for entry in padding):
            # A crop is a view of the operand.
            return None
        whole = next(axis for axis, entry in enumerate(padding) if entry != _NO_PADDING)

        def bind(count: int) -> RowFunction:
            behind = padding[prefix_length(shape.dimensions, count) :]
            return partial(_fill_padded, (_NO_PADDING, *behind))

        return RowForm(prefixes(shape.dimensions[:whole]), bind, fills=True)


_NO_PADDING = PaddingDimension(0, 0, 0)


def _fill_padded(padding: Sequence[PaddingDimension], operand: Array, padding_value: Array, out: Array) -> None:
    """`Pad` of arrays of one type, into an array apart from them."""
    placed = list(map(placement, operand.shape, out.shape, padding))
    out[...] = padding_value
    out[tuple(target for _, target in placed)] = part(operand, (kept for kept, _ in placed))


@fast("iota")
class FastIota:
    """By rows of one number each."""

    @staticmethod
    def by_rows(*, shape: ArrayShape) -> RowForm | None:
        """Only of one dimension: of others, `evaluate` makes no more than the numbers along one."""
        if shape.rank != 1:
            return None

        def numbered(bounds: tuple[int, int]) -> Array:
            return numbers_between(*bounds, shape.element_type)

        return RowForm(prefixes(shape.dimensions), lambda _: numbered, numbers_rows=True)


_COPIED_BYTES = 1 << 12
"""Broadcasts to no more than this are copies: they take less time than NumPy's views."""


@fast("broadcast")
class FastBroadcast:
    """One index, or a view or copy that repeats elements."""

    @staticmethod
    def bind(
        *, attributes: BroadcastAttributes, shape: ArrayShape, operand_shapes: ArrayShapes
    ) -> Callable[[Array], Array] | None:
        dimensions, sizes = attributes.dimensions, shape.dimensions
        if not sizes or list(dimensions) != sorted(dimensions):
            return None
        fill = tuple(slice(None) if dimension in dimensions else None for dimension in range(len(sizes)))
        if all(size == 1 for size, part in zip(sizes, fill, strict=True) if part is None):
            return Indexing(fill)
        return Spreading(fill if dimensions else (), sizes, shape.byte_size <= _COPIED_BYTES)

    @staticmethod
    def by_rows(*, attributes: BroadcastAttributes, shape: ArrayShape, operand_shapes: ArrayShapes) -> RowForm | None:
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
    def bind(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> Callable[[Array], Array] | None:
        sizes, kept = shape.dimensions, [size for size in shape.dimensions if size != 1]
        if kept == [size for size in operand_shapes[0].dimensions if size != 1]:
            return Indexing(without_units(operand_shapes[0].dimensions, sizes))
        if not sizes:
            return None
        return lambda operand: operand.reshape(sizes) if operand.flags.c_contiguous else reshaped(operand, sizes)

    @staticmethod
    def by_rows(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> RowForm:
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
    def by_rows(*, attributes: SliceAttributes, shape: ArrayShape, operand_shapes: ArrayShapes) -> RowForm:
        sizes = operand_shapes[0].dimensions
        whole = next((axis for axis, size in enumerate(sizes) if size != shape.dimensions[axis]), len(sizes))
        slices = [slice(entry.start, entry.limit, entry.stride) for entry in attributes.slice]

        def bind(count: int) -> RowFunction:
            index = (slice(None), *slices[prefix_length(shape.dimensions, count) :])
            return lambda block: block[index]

        return RowForm(prefixes(sizes[:whole]), bind, is_view=True)


@fast("bitcast")
class FastBitcast:
    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> Callable[[Array], Array] | None:
        """A reshape between transposes, where all that changes is sizes and the order of dimensions."""
        (source,) = operand_shapes
        if source.element_type is not shape.element_type or shape.dynamic_dimensions or source.dynamic_dimensions:
            return None
        plan = bits_plan(source, shape)
        if not plan.is_whole or plan.tiling.splits or plan.result_tiling.splits:
            return None
        order, sizes, axes = plan.major_to_minor, plan.result_tiling.sizes, plan.result_axes
        if sizes == plan.tiling.sizes:
            return methodcaller("transpose", tuple(order[axis] for axis in axes))
        if all(map(is_row_major, (source, shape))):
            return FastReshape.bind(shape=shape, operand_shapes=operand_shapes)
        return lambda operand: reshaped(operand.transpose(order), sizes).transpose(axes)

    @staticmethod
    def by_rows(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> RowForm | None:
        (source,) = operand_shapes
        is_reshape = (
            source.element_type is shape.element_type
            and source.element_count == shape.element_count
            and all(map(is_row_major, (source, shape)))
        )
        return FastReshape.by_rows(shape=shape, operand_shapes=operand_shapes) if is_reshape else None


@fast("bitcast-convert")
class FastBitcastConvert:
    """A view, where both types have one width."""

    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> Callable[..., Array] | None:
        view = _view(shape, operand_shapes[0])
        return view and OfScalars(view, view)

    @staticmethod
    def by_rows(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> RowForm | None:
        view = _view(shape, operand_shapes[0])
        return None if view is None else RowForm(prefixes(shape.dimensions), lambda _: view, is_view=True)


def _view(shape: ArrayShape, operand: ArrayShape) -> Callable[..., Array] | None:
    """The method that reads the bits of numbers, or of one, as another type of their width; None where there is more
    to it."""
    source, target = operand.element_type, shape.element_type
    is_plain = source.bits == target.bits and source.byte_size == target.byte_size
    if not is_plain or source is target or Kind.PRED in (source.kind, target.kind):
        return None
    return methodcaller("view", target.storage)
