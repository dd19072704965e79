"""Fast variants of reduce, of reducers that are one usual operation or choose by order, and of reduce-window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType, Kind
from hloexec.core.ir import ArrayShape, ArrayShapes, Shape, Window
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.common import array_shape, in_order
from hloexec.ops.reduction.reduce import Reduce, ReduceAttributes, choice_of, element_types, is_long, usual_operations
from hloexec.ops.reduction.reduce_window import BLOCK_BYTES, ReduceWindowAttributes, are_apart
from hloexec.ops.reduction.reducers import (
    KNOWN_REDUCERS,
    KnownReducer,
    accumulation_dtype,
    merging_of,
    recognise_components,
    reduce_axes,
    reduce_axis,
    reduce_known,
    reduces_columns,
)
from hloexec.ops.registry import Callee, Callees, fast
from hloexec.ops.relations.parts import output_size
from hloexec.ops.traits import RowForm, RowFunction, prefix_length, prefixes


@fast("reduce")
class FastReduce:
    """One function for the sizes, the dimensions and the operation."""

    @staticmethod
    def bind(
        *, attributes: ReduceAttributes, shape: Shape, operand_shapes: ArrayShapes, computations: Callees
    ) -> Callable[..., Any] | None:
        dimensions = attributes.dimensions
        if not isinstance(shape, ArrayShape):
            return _bound_choice(operand_shapes, dimensions, shape, computations[0])
        element_type = shape.element_type
        names = usual_operations(computations[0], [element_type], is_exact=False)
        if names is None or len(operand_shapes) != 2:
            return None
        reducer = KNOWN_REDUCERS[names[0]]
        if element_type.kind is Kind.PRED and len(dimensions) == operand_shapes[0].rank and names[0] in ("and", "or"):
            return _all if names[0] == "and" else _any
        return bound_reduction(operand_shapes[0].dimensions, dimensions, reducer, element_type)

    @staticmethod
    def by_rows(
        *, attributes: ReduceAttributes, shape: Shape, operand_shapes: ArrayShapes, computations: Callees
    ) -> RowForm | None:
        """Reductions of one operand that lies in row-major order, by a usual operation: the order of sums is that of
        the kernel, as how the elements of one row are grouped depends on their number alone."""
        names, dimensions = recognise_components(computations[0].computation), attributes.dimensions
        if len(operand_shapes) != 2 or not isinstance(shape, ArrayShape) or names is None or not dimensions:
            return None
        operand, element_type = operand_shapes[0], shape.element_type
        if names[0] not in KNOWN_REDUCERS or element_type.is_complex:
            return None
        if not operand.element_type is operand_shapes[1].element_type is element_type:
            return None
        first, reducer = min(dimensions), KNOWN_REDUCERS[names[0]]
        is_at_end = sorted(dimensions) == list(range(first, operand.rank))

        def bind(count: int) -> RowFunction:
            before = prefix_length(operand.dimensions, count) - 1
            places = tuple(dimension - before for dimension in dimensions)

            def reduced_rows(block: Array, init_value: Array) -> Array:
                return reduce_known(in_order(block), places, init_value, reducer, element_type)

            if not is_at_end or element_type.is_narrow:
                return reduced_rows
            length, kept = prod(operand.dimensions[first:]), operand.dimensions[before + 1 : first]

            def reduced_neighbours(block: Array, init_value: Array) -> Array:
                # What `reduce_known` does where it finds nothing to convert or to order.
                total: Array
                if block.dtype == init_value.dtype and block.flags.c_contiguous:
                    total = reducer.combine(init_value, reduce_axis(block.reshape(-1, length), 1, reducer))
                    return total.reshape((block.shape[0], *kept))
                rows = block.size // length
                if block.dtype == init_value.dtype and reduces_columns(rows, length, reducer, block.dtype):
                    terms = block.reshape((block.shape[0], *kept, length))
                    total = reducer.combine(init_value, reduce_axis(terms, terms.ndim - 1, reducer))
                    return total
                return reduced_rows(block, init_value)

            return reduced_neighbours

        return RowForm(prefixes(operand.dimensions[:first]), bind, is_reduction=True)


def _any(array: Array, init_value: Array) -> Array:
    """Whether any of these truth values is true."""
    return np.array(np.count_nonzero(array) > 0 or bool(init_value))


def _all(array: Array, init_value: Array) -> Array:
    """Whether all of these truth values are true."""
    return np.array(np.count_nonzero(array) == array.size and bool(init_value))


@frozen
class _Choosing:
    """The kernel of a reduction of values with places, as argmin and argmax are."""

    callee: Callee
    order: Dimensions
    """The dimensions, reduced ones last."""
    rows: tuple[int, int]
    """How many results there are, and of how many elements each."""
    sizes: Dimensions
    """Of the results."""
    general: Callable[..., Any]
    """The kernel of any reduction."""

    def __call__(self, *operands: Array) -> Any:
        choice = choice_of(self.callee)
        if choice.place is not None:
            arrays = [operand.transpose(self.order).reshape(self.rows) for operand in operands[:2]]
            chosen = choice.chosen(arrays)
            if chosen is not None and choice.decides(operands[2], chosen[0]):
                return tuple(total.reshape(self.sizes) for total in chosen)
        return self.general(*operands)


def _bound_choice(
    operands: Sequence[ArrayShape], dimensions: Dimensions, shape: Shape, callee: Callee
) -> _Choosing | None:
    """The kernel where each operand is of the type of its parameter and its result, if what is chosen is asked for."""
    types = [operand.element_type for operand in operands]
    taken = [array_shape(parameter, "a parameter").element_type for parameter in callee.computation.parameter_shapes]
    if len(operands) != 4 or types[2:] + types[:2] != taken or types[:2] != element_types(shape):
        return None
    if usual_operations(callee, types[:2], is_exact=False) is not None:
        return None
    kept = [axis for axis in range(operands[0].rank) if axis not in dimensions]
    sizes = tuple(operands[0].dimensions[axis] for axis in kept)
    rows = prod(sizes), prod(operands[0].dimensions[axis] for axis in dimensions)
    if not prod(rows) or not is_long(*rows):
        return None
    attributes = ReduceAttributes(dimensions=dimensions, to_apply=callee.computation.name)
    general = partial(Reduce.evaluate, attributes=attributes, shape=shape, computations=(callee,))
    return _Choosing(callee, (*kept, *sorted(dimensions)), rows, sizes, general)


def bound_reduction(
    sizes: Dimensions, dimensions: Sequence[int], reducer: KnownReducer, element_type: ElementType
) -> Callable[[Array, Array], Array]:
    """`reduce_known` for arrays of these sizes: what does not depend on their elements is decided once."""
    dtype = element_type.storage
    is_plain = accumulation_dtype(element_type, element_type) == dtype
    kept = tuple(size for axis, size in enumerate(sizes) if axis not in dimensions)
    strides = tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
    merging = merging_of(sizes, strides, tuple(dimensions)) if is_plain and prod(sizes) > 0 else None

    def reduced(array: Array, init_value: Array) -> Array:
        if merging is None or not array.dtype == init_value.dtype == dtype:
            return reduce_known(array, dimensions, init_value, reducer, element_type)
        if array.shape != sizes or not array.flags.c_contiguous:
            return reduce_known(array, dimensions, init_value, reducer, element_type)
        total = reduce_axes(array.reshape(merging.sizes), merging.axes, reducer)
        return np.asarray(reducer.combine(init_value, total.reshape(kept)))

    return reduced


@fast("reduce-window")
class FastReduceWindow:
    """Windows along rows, of a reducer that is a usual operation."""

    @staticmethod
    def bind(
        *, attributes: ReduceWindowAttributes, shape: Shape, operand_shapes: ArrayShapes, computations: Callees
    ) -> Callable[..., Array] | None:
        names = usual_operations(computations[0], element_types(shape), is_exact=False)
        if names is None or len(operand_shapes) != 2 or not isinstance(shape, ArrayShape):
            return None
        sizes, reducer = operand_shapes[0].dimensions, KNOWN_REDUCERS[names[0]]
        return rows_of_windows(sizes, attributes.window, reducer, shape.element_type)


def rows_of_windows(
    sizes: Dimensions, window: Window, reducer: KnownReducer, element_type: ElementType
) -> Callable[[Array, Array], Array] | None:
    """`reduce_windows_known` for arrays of these sizes, where windows become rows; None where they do not.

    XLA:CPU makes such windows of most reductions.
    """
    dtype = element_type.storage
    is_shared = reducer.ufunc is not np.add and prod(sizes) * dtype.itemsize > BLOCK_BYTES
    is_plain = accumulation_dtype(element_type, element_type) == dtype
    if is_shared or not is_plain or not prod(sizes) or not are_apart(sizes, window):
        return None
    rows: list[int] = []
    whole, kept, placed = [], [], []
    for extent, one in zip(sizes, window.dimensions, strict=True):
        rows += [output_size(extent, one), one.size]
        whole.append(prod(rows[-2:]))
        count = min(extent, whole[-1] - one.padding_low)
        kept.append(slice(count))
        placed.append(slice(one.padding_low, one.padding_low + count))
    source, target = tuple(kept), tuple(placed)
    is_crop = all(part == slice(0, reach) for part, reach in zip(target, whole, strict=True))
    neutral = reducer.identity(dtype)
    function = bound_reduction(tuple(rows), range(1, len(rows), 2), reducer, element_type)

    def reduced(array: Array, init_value: Array) -> Array:
        block = in_order(array)[source]
        if not is_crop:
            layout = np.full(whole, neutral, dtype)
            layout[target] = block
            block = layout
        return function(block.reshape(rows), init_value)

    return reduced
