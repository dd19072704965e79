"""How operations that move elements move the columns of an array (see `ops.intervals`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hloexec.core.ir import ArrayShape, PaddingDimension
from hloexec.ops.intervals import INFINITY, MOST_COLUMNS, Bounds, Columns, Demand, Ends, Use, stride_of

_ANY: Ends = (-INFINITY, INFINITY)


def in_order_columns(use: Use) -> Columns | None:
    """Of elements in the same row-major order."""
    columns = use.bounds[0].columns
    return columns if columns and columns.fits(use.shape.dimensions) else None


def in_order_demand(use: Use, number: int, demand: Demand) -> Demand:
    columns = demand.columns
    return demand.with_columns(columns if columns and columns.fits(use.shapes[number].dimensions) else None)


def repeated_columns(use: Use) -> Columns | None:
    """Of a broadcast."""
    sizes, dimensions, columns = use.shapes[0].dimensions, use.attributes.dimensions, use.bounds[0].columns
    axis = None if columns is None else columns.axis(sizes)
    if columns is None or axis is None:
        return None
    return columns.moved(sizes, use.shape.dimensions, dimensions[axis])


def joined_columns(use: Use) -> Columns | None:
    """Of a concatenate along a short dimension."""
    axis, ends = use.attributes.dimension, []
    if not _is_short(use, axis):
        return None
    for shape, bounds in zip(use.shapes, use.bounds, strict=True):
        ends += _ends(bounds, shape.dimensions, axis)
    return _told_apart(use, axis, ends)


def padded_columns(use: Use) -> Columns | None:
    """Of a pad of one short dimension, at its ends or within."""
    entries = use.attributes.padding
    padded = [axis for axis, size in enumerate(use.shape.dimensions) if size != use.shapes[0].dimensions[axis]]
    if len(padded) != 1 or not _is_short(use, padded[0]) or any(map(_shifts, entries)):
        return None
    (axis,), (operand, padding) = padded, use.bounds
    ends = [(padding.low, padding.high)] * use.shape.dimensions[axis]
    operand_ends = _ends(operand, use.shapes[0].dimensions, axis)
    for place, pair in zip(_kept(entries[axis], len(operand_ends)), operand_ends, strict=True):
        ends[place] = pair
    return _told_apart(use, axis, ends)


def _shifts(entry: PaddingDimension) -> bool:
    """Whether elements are left out."""
    return min(entry.edge_padding_low, entry.edge_padding_high) < 0


def _kept(entry: PaddingDimension, size: int) -> range:
    """Where in a padded dimension the elements of an operand of that size are."""
    step = entry.interior_padding + 1
    return range(entry.edge_padding_low, entry.edge_padding_low + size * step, step)


def _is_short(use: Use, axis: int) -> bool:
    sizes: Sequence[int] = use.shape.dimensions
    return 1 < sizes[axis] <= MOST_COLUMNS and math.prod(sizes) > 0


def _ends(bounds: Bounds, sizes: Sequence[int], axis: int) -> list[Ends]:
    """What is known at each position of a dimension."""
    columns = bounds.columns
    if columns is None or columns.axis(sizes) != axis:
        return [(bounds.low, bounds.high)] * sizes[axis]
    return list(columns.along(sizes, axis))


def _told_apart(use: Use, axis: int, ends: Sequence[Ends]) -> Columns | None:
    """The columns at the positions of a dimension, if they are unlike."""
    return Columns(stride_of(use.shape.dimensions, axis), tuple(ends)) if len(set(ends)) > 1 else None


def physical_columns(use: Use) -> Columns | None:
    """Of elements in the same physical order."""
    columns = use.bounds[0].columns
    return None if columns is None else _reinterpreted(use.shapes[0], use.shape, columns)


def physical_demand(use: Use, number: int, demand: Demand) -> Demand:
    columns = demand.columns
    return demand if columns is None else demand.with_columns(_reinterpreted(use.shape, use.shapes[0], columns))


def _reinterpreted(source: ArrayShape, target: ArrayShape, columns: Columns) -> Columns | None:
    """The columns of an array in another whose elements lie in the same order in memory."""
    is_same = source.element_type is target.element_type and source.element_count == target.element_count
    layouts = source.stated_layout, target.stated_layout
    orders = [layout.minor_to_major[::-1] for layout in layouts]
    is_stated = [len(order) for order in orders] == [source.rank, target.rank]
    if not is_same or not is_stated or not source.element_count or any(layout.tiles for layout in layouts):
        return None
    physical, there = (
        [shape.dimensions[axis] for axis in order] for shape, order in zip((source, target), orders, strict=True)
    )
    axis = columns.axis(source.dimensions)
    lying = None if axis is None else columns.moved(source.dimensions, physical, orders[0].index(axis))
    axis = None if lying is None else lying.axis(there)
    return None if lying is None or axis is None else lying.moved(there, target.dimensions, orders[1][axis])


def repeated_demand(use: Use, number: int, demand: Demand) -> Demand:
    """On the operand of a broadcast: each element is in all columns that new dimensions tell apart."""
    dimensions = use.attributes.dimensions
    return mapped_demand(use, demand, {theirs: ours for ours, theirs in enumerate(dimensions)})


def transpose_demand(use: Use, number: int, demand: Demand) -> Demand:
    return mapped_demand(use, demand, dict(enumerate(use.attributes.dimensions)))


def demand_of_whole_axis(use: Use, number: int, demand: Demand) -> Demand:
    """On an operand of the rank of the result that has the same columns if its size is the same there."""
    return mapped_demand(use, demand, {axis: axis for axis in range(len(use.shape.dimensions))}, number)


def reverse_demand(use: Use, number: int, demand: Demand) -> Demand:
    axis = _axis(use, demand)
    if axis is None or axis not in use.attributes.dimensions:
        return demand_of_whole_axis(use, number, demand)
    ends = _along(use, demand, axis)
    return demand.with_columns(None if ends is None else Columns(stride_of(use.shape.dimensions, axis), ends[::-1]))


def slice_demand(use: Use, number: int, demand: Demand) -> Demand:
    """On an array of which a part is read: what is at other places is free."""
    return _read_demand(use, demand, [range(part.start, part.limit, part.stride) for part in use.attributes.slice])


def window_demand(use: Use, number: int, demand: Demand) -> Demand:
    """On an array of which a window is read, at a known place perhaps."""
    sizes, starts = zip(use.shapes[0].dimensions, use.shape.dimensions, strict=True), use.bounds[1:]
    if len(starts) != use.shape.rank:
        return demand_of_whole_axis(use, number, demand)
    places = [
        range(place, place + taken) if (place := _place(start, size - taken)) is not None else None
        for start, (size, taken) in zip(starts, sizes, strict=True)
    ]
    return _read_demand(use, demand, places)


def _place(start: Bounds, room: int) -> int | None:
    """Where a window starts, if that is known."""
    if room and start.low != start.high:
        return None
    return min(max(int(start.low), 0), room) if room else 0


def _read_demand(use: Use, demand: Demand, places: Sequence[range | None]) -> Demand:
    """A part of a short dimension, if of integers, tells columns apart by itself."""
    sizes, axis = use.shapes[0].dimensions, _axis(use, demand)
    if demand.columns is not None:
        ends = None if axis is None else _along(use, demand, axis)
    else:
        is_cut = demand.has_bounds and use.shape.element_type.is_integral
        cut = [axis for axis, entries in enumerate(places) if entries and len(entries) < sizes[axis] <= MOST_COLUMNS]
        axis = cut[-1] if cut and is_cut else None
        ends = None if axis is None else ((demand.low, demand.high),) * use.shape.dimensions[axis]
    taken = None if axis is None else places[axis]
    if axis is None or not ends or not taken or sizes[axis] > MOST_COLUMNS:
        return demand_of_whole_axis(use, 0, demand)
    entries = [_ANY] * sizes[axis]
    for place, pair in zip(taken, ends, strict=True):
        entries[place] = pair
    return demand.with_columns(Columns(stride_of(sizes, axis), tuple(entries)))


def concatenate_demand(use: Use, number: int, demand: Demand) -> Demand:
    joined, axis = use.attributes.dimension, _axis(use, demand)
    if axis != joined:
        return demand_of_whole_axis(use, number, demand)
    before = sum(shape.dimensions[joined] for shape in use.shapes[:number])
    sizes = use.shapes[number].dimensions
    return _cut(demand, _along(use, demand, joined), range(before, before + sizes[joined]), stride_of(sizes, joined))


def pad_demand(use: Use, number: int, demand: Demand) -> Demand:
    """On the operand, or the padding value, which is in all columns that it pads."""
    axis = _axis(use, demand)
    if axis is None:
        return demand.with_columns(None)
    entries = use.attributes.padding
    entry, size = entries[axis], use.shapes[0].dimensions[axis]
    kept = _kept(entry, size)
    ends = _along(use, demand, axis)
    if number == 0:
        if len(kept) == use.shape.dimensions[axis]:
            return demand_of_whole_axis(use, 0, demand)
        return _cut(demand, ends, kept, stride_of(use.shapes[0].dimensions, axis))
    pads_others = any(
        other.edge_padding_low > 0 or other.edge_padding_high > 0 or other.interior_padding
        for place, other in enumerate(entries)
        if place != axis
    )
    if pads_others or ends is None:
        return demand.with_columns(None)
    padded = [pair for place, pair in enumerate(ends) if place not in kept]
    return _cut(demand, tuple(padded), range(len(padded)), 1, is_one=True)


def updated_demand(use: Use, number: int, demand: Demand) -> Demand:
    """On the operand and the update of a dynamic-update-slice: an update at a known place is in the columns there."""
    axis, first = _axis(use, demand), 2
    if axis is None or number == 0 or len(use.bounds) != first + len(use.shape.dimensions):
        return demand_of_whole_axis(use, number, demand)
    size = use.shapes[1].dimensions[axis]
    place = _place(use.bounds[first + axis], use.shape.dimensions[axis] - size)
    if place is None:
        return demand_of_whole_axis(use, number, demand)
    stride = stride_of(use.shapes[1].dimensions, axis)
    return _cut(demand, _along(use, demand, axis), range(place, place + size), stride)


def _cut(
    demand: Demand, ends: tuple[Ends, ...] | None, places: Sequence[int], stride: int, *, is_one: bool = False
) -> Demand:
    """A demand on what is at some positions of the dimension that tells columns apart: in one column, if `is_one`."""
    if ends is None or not places or not stride:
        return demand.with_columns(None)
    cut = tuple(ends[place] if 0 <= place < len(ends) else _ANY for place in places)
    cut_demand = demand.with_columns(Columns(stride, cut))
    return cut_demand.with_columns(None) if is_one else cut_demand


def mapped_demand(use: Use, demand: Demand, axes: dict[int, int], number: int = 0) -> Demand:
    """A demand on an operand, given to which of its dimensions dimensions of the result correspond."""
    axis, columns = _axis(use, demand), demand.columns
    if axis is None or columns is None or axis not in axes:
        return demand.with_columns(None)
    return demand.with_columns(columns.moved(use.shape.dimensions, use.shapes[number].dimensions, axes[axis]))


def _axis(use: Use, demand: Demand) -> int | None:
    sizes = use.shape.dimensions
    return None if demand.columns is None or not math.prod(sizes) else demand.columns.axis(sizes)


def _along(use: Use, demand: Demand, axis: int) -> tuple[Ends, ...] | None:
    """What is asked at each position of a dimension of the result, if they are few."""
    sizes = use.shape.dimensions
    return None if demand.columns is None or sizes[axis] > MOST_COLUMNS else demand.columns.along(sizes, axis)


def start_demand(room: Sequence[int], stride: int) -> Demand:
    """The demand on index vectors, given how far windows can start from 0 in the dimension in which each component
    counts, and how far from each other components lie in row-major order."""
    demand = Demand(is_defined_beyond=True)
    return demand.with_columns(Columns(stride, tuple((0, max(0, free)) for free in room)) if room else None)
