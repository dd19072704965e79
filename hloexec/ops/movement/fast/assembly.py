"""Fast variants of concatenate, pad and iota."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hloexec.core.dtypes import DType
from hloexec.core.ir import ArrayShape, PaddingDimension
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.movement.assembly import ConcatenateAttributes, PadAttributes, Padding, numbers_between, placement
from hloexec.ops.movement.extents import part
from hloexec.ops.registry import fast
from hloexec.ops.rows import RowForm, RowFunction, prefix_length, prefixes


@frozen
class Joining:
    """The kernel that puts arrays of one type one after the other, into a new one in row-major order."""

    axis: int
    sizes: tuple[int, ...]
    storage: DType

    def __call__(self, *operands: Array) -> Array:
        return np.concatenate(operands, self.axis, out=np.empty(self.sizes, self.storage))


@frozen
class Stacking:
    """The kernel that puts arrays of one type side by side along a new dimension, in a new one in row-major order."""

    axis: int
    sizes: tuple[int, ...]
    storage: DType

    def __call__(self, *operands: Array) -> Array:
        result = np.empty(self.sizes, self.storage)
        before: tuple[Any, ...] = (slice(None),) * self.axis
        for place, operand in enumerate(operands):
            result[(*before, place)] = operand
        return result


@fast("concatenate")
class FastConcatenate:
    """For operands of one type."""

    @staticmethod
    def bind(
        *, attributes: ConcatenateAttributes, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]
    ) -> Callable[..., Array] | None:
        if any(operand.element_type is not shape.element_type for operand in operand_shapes):
            return None
        axis, sizes, storage = attributes.dimension, shape.dimensions, shape.element_type.storage
        return Joining(axis, sizes, storage)

    @staticmethod
    def by_rows(
        *, attributes: ConcatenateAttributes, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]
    ) -> RowForm | None:
        if {operand.element_type for operand in operand_shapes} != {shape.element_type}:
            return None

        def bind(count: int) -> RowFunction:
            behind = attributes.dimension - prefix_length(shape.dimensions, count) + 1
            return lambda *blocks: np.concatenate(blocks[:-1], behind, out=blocks[-1])

        return RowForm(prefixes(shape.dimensions[: attributes.dimension]), bind, fills=True, moves=True)


@fast("pad")
class FastPad:
    """For an operand and a value of one type."""

    @staticmethod
    def bind(*, attributes: PadAttributes, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Padding | None:
        if {operand.element_type for operand in operand_shapes} != {shape.element_type}:
            return None
        return Padding.of(operand_shapes[0].dimensions, attributes.padding)

    @staticmethod
    def by_rows(
        *, attributes: PadAttributes, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]
    ) -> RowForm | None:
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

        return RowForm(prefixes(shape.dimensions[:whole]), bind, fills=True, moves=True)


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
