"""sort and topk.

Both run on integer keys (see `comparators`). A sort whose comparator is not a lexicographic order of keys is a merge
sort that evaluates the comparator on whole arrays of pairs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of
from hloexec.core.ir import ArrayShape, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.arena import empty
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, require, same_dimensions
from hloexec.ops.elementwise.selection import total_order_key
from hloexec.ops.movement.copying import as_integers, reshaped
from hloexec.ops.movement.extents import cut_to_common_extents
from hloexec.ops.probes import COMPARATOR, Probe
from hloexec.ops.registry import ANY, Callee, ProgramShape, opcode
from hloexec.ops.relations import Relating, pointwise
from hloexec.ops.signatures import one_or_tuple, require_scalar_comparison
from hloexec.ops.sorting.comparators import Keys, keys_of, order_key
from hloexec.ops.threads import in_blocks

_BLOCK_ELEMENTS = 1 << 15


@frozen
class SortAttributes:
    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    is_stable: bool = attribute(Grammar.BOOL, default=False)
    to_apply: str = attribute(Grammar.COMPUTATION)


@frozen
class TopKAttributes:
    k: int = attribute(Grammar.INT)
    largest: bool = attribute(Grammar.BOOL, default=True, always_printed=True)
    is_stable: bool = attribute(Grammar.BOOL, default=True)


@opcode("sort", operands=(1, ANY), attributes=SortAttributes, any_order=True, is_leafwise=True)
class Sort:
    """Sorts the operands together along a dimension: element a comes before b where to_apply(a0, b0, a1, b1, …).

    Always stable, even if `is_stable` is false. A comparator that is not a strict weak order gives some permutation.
    Source: XLA, Sort.
    """

    probe = Probe("T[2] sort(a0), dimensions={0}, to_apply=c", ("T[2]",), COMPARATOR)

    @staticmethod
    def relate(use: Relating) -> None:
        pointwise(use)
        use.same_leaf_units(len(use.operands))

    @staticmethod
    def infer(*operands: Shape, attributes: SortAttributes, computations: tuple[ProgramShape, ...]) -> Shape:
        arrays = [array_shape(operand, f"operand {number} of sort") for number, operand in enumerate(operands)]
        for array in arrays[1:]:
            same_dimensions(arrays[0], array, "the operands of sort")
        rank = arrays[0].rank
        require(
            0 <= attributes.dimension < rank,
            f"the sort dimension {attributes.dimension} is out of range for operands of rank {rank}",
        )
        require_scalar_comparison(computations[0], arrays, "to_apply of sort")
        return one_or_tuple(arrays)

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: SortAttributes,
        operand_shapes: tuple[ArrayShape, ...],
        computations: tuple[Callee, ...],
    ) -> Array | tuple[Array, ...]:
        comparator, dimension = computations[0], attributes.dimension
        given, operands = operands, tuple(cut_to_common_extents(operands, operand_shapes))
        if operands[0].size == 0 or operands[0].shape[dimension] < 2:
            return given if len(given) > 1 else given[0]
        transposed = [np.moveaxis(operand, dimension, -1) for operand in operands]
        length = transposed[0].shape[-1]
        rows = [reshaped(operand, (operands[0].size // length, length)) for operand in transposed]
        targets = [empty(row.shape, row.dtype) for row in rows]
        for start, stop in _sort_by_keys(keys_of(comparator.computation), rows, targets):
            sorted_rows = _merge_sorted(comparator, [row[start:stop] for row in rows])
            for target, row in zip(targets, sorted_rows, strict=True):
                target[start:stop] = row
        results = tuple(
            _beside_rest(np.moveaxis(target.reshape(transposed[0].shape), -1, dimension), operand)
            for target, operand in zip(targets, given, strict=True)
        )
        return results if len(results) > 1 else results[0]

    @staticmethod
    def order(*operands: Array, attributes: SortAttributes, computations: tuple[Callee, ...]) -> tuple[int, Array]:
        dimension = attributes.dimension
        rows = [np.moveaxis(operand, dimension, -1) for operand in operands]
        length = rows[0].shape[-1]
        if operands[0].size == 0 or length < 2:
            return dimension, np.zeros(operands[0].shape, np.int64)
        flat = [np.ascontiguousarray(row).reshape(-1, length) for row in rows]
        places = first_indices(computations[0], flat, length)
        return dimension, np.moveaxis(places.reshape(rows[0].shape), -1, dimension)


def relate_chosen(use: Relating, count: int) -> None:
    """How the dimensions of an operand, and of values and indices that are chosen along its last one, depend."""
    operand = use.operands[0].axes
    for axes in use.result.leaves.values():
        use.same(operand[:-1], axes[:-1])
        use.keep(axes[-1:], "it is how many elements are chosen")
    use.at_least(operand[-1], count)
    use.result_positions(1, operand[-1])


@opcode("topk", operands=1, attributes=TopKAttributes, any_order=True)
class TopK:
    """(values, indices) of the k largest or smallest elements of the last dimension, the best first.

    operand [..., n] gives values [..., k] and s32 indices [..., k], k ≤ n. Elements are compared in total order (-NaN
    first, +NaN last, -0 before +0); among equal ones the lower index comes first, even if `is_stable` is false. Source:
    XLA, TopK.
    """

    probe = Probe("(T[2,1], s32[2,1]) topk(a0), k=1", ("T[2,3]",))

    @staticmethod
    def relate(use: Relating) -> None:
        relate_chosen(use, use.attributes.k)

    @staticmethod
    def infer(operand: Shape, *, attributes: TopKAttributes) -> Shape:
        array = array_shape(operand, "the operand of topk")
        require(array.rank > 0, "the operand of topk must have at least one dimension, but is a scalar")
        require(
            not array.element_type.is_complex, f"topk compares its elements, which {array.element_type} does not allow"
        )
        extent, k = array.dimensions[-1], attributes.k
        require(0 <= k <= extent, f"k of topk must be between 0 and the last dimension's size, {extent}, but is {k}")
        sizes = (*array.dimensions[:-1], k)
        dynamic = (*array.dynamic_dimensions[:-1], False) if array.is_dynamic else ()
        values = ArrayShape(array.element_type, sizes, dynamic_dimensions=dynamic if any(dynamic) else ())
        return TupleShape((values, values.with_element_type(ELEMENT_TYPES["s32"])))

    @staticmethod
    def evaluate(operand: Array, *, attributes: TopKAttributes) -> tuple[Array, Array]:
        rows = reshaped(operand, (prod(operand.shape[:-1]), operand.shape[-1]))
        values = np.empty((len(rows), attributes.k), operand.dtype)
        indices = np.empty(values.shape, np.int32)

        def select(start: int, stop: int) -> None:
            key = order_key(rows[start:stop])
            order = _stable_order([~key if attributes.largest else key], attributes.k)
            indices[start:stop] = order
            _take_all([rows[start:stop]], order, [values[start:stop]])

        in_blocks(select, len(rows), _block(rows))
        sizes = (*operand.shape[:-1], attributes.k)
        return values.reshape(sizes), indices.reshape(sizes)

    @staticmethod
    def order(operand: Array, *, attributes: TopKAttributes) -> tuple[int, Array]:
        return operand.ndim - 1, TopK.evaluate(operand, attributes=attributes)[1].astype(np.int64)


def _beside_rest(first: Array, operand: Array) -> Array:
    """A static operand whose elements within the extents of dynamic ones are sorted; those behind them stay."""
    if first.shape == operand.shape:
        return first
    result = operand.copy()
    result[tuple(map(slice, first.shape))] = first
    return result


def first_indices(comparator: Callee, rows: Sequence[Array], count: int) -> Array:
    """The indices along the last axis of the `count` elements that come first by a comparator, in its order.

    The comparator takes pairs of elements of each row, as sort's does. Of equal elements the lower index comes first.
    """
    keys = keys_of(comparator.computation)(rows)
    if keys is not None:
        return _stable_order(keys, count)
    index = np.broadcast_to(np.arange(rows[0].shape[-1]), rows[0].shape)
    # The comparator does not see the pairs of indices, which come last.
    return _merge_sorted(
        lambda *pairs: comparator(*pairs[:-2]), [*map(np.ascontiguousarray, rows), np.ascontiguousarray(index)]
    )[-1][..., :count]


def _sort_by_keys(keys_of_rows: Keys, rows: Sequence[Array], targets: Sequence[Array]) -> list[tuple[int, int]]:
    """Sort `[batch, n]` rows into `targets`, and give the ranges of the batch that have no keys to sort by."""
    unsorted: list[tuple[int, int]] = []

    def sort(start: int, stop: int) -> None:
        part = [row[start:stop] for row in rows]
        keys = keys_of_rows(part)
        if keys is None:
            unsorted.append((start, stop))
            return
        sorted_part = [target[start:stop] for target in targets]
        if len(part) > 1 or len(keys) > 1 or not _sort_alone(part[0], keys[0], sorted_part[0]):
            _take_all(part, _stable_order(keys), sorted_part)

    in_blocks(sort, len(rows[0]), _block(rows[0]))
    return unsorted


def _sort_alone(rows: Array, key: Array, target: Array) -> bool:
    """Sort `[batch, n]` rows into `target` if the key is the own order of elements, or its reverse; say whether it is.

    No index needs to tell elements apart then: those that the key orders alike are the same.
    """
    element_type, own = element_type_of(rows.dtype), order_key(rows)
    is_reversed = not np.array_equal(key, own)
    if element_type.bits != 8 * own.itemsize or (is_reversed and not np.array_equal(~key, own)):
        return False
    bits = target.view(own.dtype)
    bits[...] = key
    # NumPy sorts single bytes digit by digit.
    bits.sort(axis=-1, kind="stable" if bits.itemsize == 1 else None)
    if is_reversed:
        np.invert(bits, out=bits)
    if element_type.is_floating:
        bits[...] = total_order_key(bits)
    return True


def _block(rows: Array) -> int:
    """How many rows to sort at a time, so that what is made of them stays in the cache."""
    length: int = rows.shape[-1]
    return max(1, _BLOCK_ELEMENTS // max(1, length))


def _stable_order(keys: list[Array], count: int | None = None) -> Array:
    """The indices along the last axis that sort by the keys, the first key being the most significant.

    With `count`, only that many indices, of the first elements in the order. The list is emptied, so that a key can be
    freed as soon as it is not needed.
    """
    order = stable_argsort(keys.pop(), None if keys else count)
    while keys:
        order = np.take_along_axis(order, stable_argsort(np.take_along_axis(keys.pop(), order, -1)), -1)
    return order[..., :count]


_LEAST_BY_DIGITS = 1 << 8


def stable_argsort(key: Array, count: int | None = None) -> Array:
    """The indices along the last axis that sort integers, the first `count` of them.

    Where there is room, key and index are sorted as one number: vectorised, and stable since no two are equal.
    """
    length = key.shape[-1]
    if count is not None and 0 < count < length // 8:
        return _first_of_few(key, count)
    index_bits = max(length - 1, 1).bit_length()
    low, high = (int(key.min()), int(key.max())) if key.size else (0, 0)
    if (high - low).bit_length() + index_bits > 64:
        return np.argsort(key, axis=-1, kind="stable")[..., :count]
    if length >= _LEAST_BY_DIGITS and 0 <= high - low < 1 << 16:
        # NumPy sorts two bytes digit by digit.
        digits = (key - np.array(low, key.dtype)).astype(np.uint16)
        return np.argsort(digits, axis=-1, kind="stable")[..., :count]
    # Differences of 64-bit numbers wrap, and wrap back when seen as unsigned.
    offset = np.array(low, key.dtype).astype(np.int64 if key.dtype.kind == "i" else np.uint64)
    packed = key.astype(offset.dtype)
    del key
    packed -= offset
    packed = packed.view(np.uint64)
    packed <<= np.uint64(index_bits)
    for start in range(0, length, _BLOCK_ELEMENTS):
        stop = min(start + _BLOCK_ELEMENTS, length)
        packed[..., start:stop] |= np.arange(start, stop, dtype=np.uint64)
    packed.sort(axis=-1)
    first = packed[..., :count]
    first &= np.uint64((1 << index_bits) - 1)
    return first.view(np.int64)


def _first_of_few(key: Array, count: int) -> Array:
    """`stable_argsort` of far fewer elements than there are: only those that are no larger than the last are sorted."""
    length = key.shape[-1]
    rows = key.reshape(-1, length)
    last = np.partition(rows, count - 1, axis=-1)[:, count - 1 : count]
    found = np.flatnonzero(rows <= last)
    order = _stable_order([found // length, rows.reshape(-1)[found]])
    found = found[order]
    # Of equal elements there may be more than there is room for.
    first = np.searchsorted(found // length, np.arange(len(rows)))
    chosen: Array = found[first[:, None] + np.arange(count)] % length
    return chosen.reshape(*key.shape[:-1], count)


def _take_all(rows: Sequence[Array], order: Array, targets: Sequence[Array]) -> None:
    """Each row's elements in the given order, which is lost."""
    if len(order) > 1:
        order += (np.arange(len(order)) * rows[0].shape[-1])[:, None]
    for row, target in zip(rows, targets, strict=True):
        # Indices are in range: `wrap` is what NumPy does fastest.
        as_integers(row).reshape(-1).take(order, mode="wrap", out=as_integers(target))


def _merge_sorted(comparator: Callable[..., Any], rows: Sequence[Array]) -> list[Array]:
    """Merge sort with any comparator, which is asked about one pair of each merge at a time.

    Each pass merges neighbouring runs of `width` elements. An element of the left run goes behind as many elements of
    the right run as come before it; that number is found by bisection, for all elements at once. Elements of the right
    run fill the gaps. O(n log² n) comparisons in O(log² n) calls.
    """
    shape, length = rows[0].shape, rows[0].shape[-1]
    batch = rows[0].size // length
    columns = [as_integers(row).reshape(batch, length) for row in rows]
    position = np.arange(length)
    width = 1
    while width < length:
        start = position - position % (2 * width)
        middle = np.minimum(start + width, length)
        end = np.minimum(start + 2 * width, length)
        left = np.flatnonzero((position < middle) & (middle < end))
        behind = _count_before(comparator, columns, rows, left, middle[left], end[left])
        # A comparator that contradicts itself must not lose elements: targets keep growing whatever it said.
        targets = left + np.maximum.accumulate(start[left] + behind, axis=-1) - start[left]
        columns = [_merged(column, left, targets) for column in columns]
        width *= 2
    return [column.view(row.dtype).reshape(shape) for column, row in zip(columns, rows, strict=True)]


def _count_before(
    comparator: Callable[..., Any],
    columns: Sequence[Array],
    rows: Sequence[Array],
    left: Array,
    middle: Array,
    end: Array,
) -> Array:
    """For each element at `left` of each batch row, how many of the right run [middle, end) come before it."""
    batch = columns[0].shape[0]
    low = np.broadcast_to(middle, (batch, len(left)))
    high = np.broadcast_to(end, (batch, len(left)))
    lines = np.arange(batch)[:, None]
    while (open_ := low < high).any():
        probe = (low + high) >> 1
        safe = np.where(open_, probe, middle)
        arguments: list[Array] = []
        for column, row in zip(columns, rows, strict=True):
            for place in (column[lines, safe], column[:, left]):
                arguments.append(place.view(row.dtype).reshape(-1))
        comes_before = np.asarray(comparator(*arguments)).reshape(batch, len(left))
        low = np.where(open_ & comes_before, probe + 1, low)
        high = np.where(open_ & ~comes_before, probe, high)
    return low - middle


def _merged(column: Array, left: Array, targets: Array) -> Array:
    """A column after one pass: left elements at their targets, all others in their old order in the gaps."""
    is_left = np.zeros(column.shape[-1], np.bool_)
    is_left[left] = True
    taken = np.zeros(column.shape, np.bool_)
    np.put_along_axis(taken, targets, True, -1)
    result = np.empty_like(column)
    result[taken] = column[:, is_left].reshape(-1)
    result[~taken] = column[:, ~is_left].reshape(-1)
    return result
