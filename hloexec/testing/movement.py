"""Steps that move elements."""

from __future__ import annotations

from hypothesis import strategies as st

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape
from hloexec.core.wording import braced
from hloexec.testing.bodies import INDEX, Body, Dimensions, Value

Kinds = tuple[ElementType, ...]


def _put(dimensions: Dimensions, axis: int, *sizes: int) -> Dimensions:
    """Dimensions of which one is replaced by others."""
    return (*dimensions[:axis], *sizes, *dimensions[axis + 1 :])


def _axis(body: Body, value: Value) -> int:
    return body.integer(0, value.rank - 1)


def broadcast(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds)
    sizes, places = list(operand.dimensions), list(range(operand.rank))
    for _ in range(body.integer(0, max(body.program.max_rank - operand.rank, 0))):
        place = body.integer(0, len(sizes))
        sizes.insert(place, body.size(body.room(sizes)))
        places = [kept + (kept >= place) for kept in places]
    shape = ArrayShape(operand.element_type, tuple(sizes))
    body.emit(shape, f"broadcast({operand.name}), dimensions={braced(places)}")


def reshape(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds)
    left, sizes = operand.shape.element_count, list[int]()
    while left > 1 and len(sizes) < max(body.program.max_rank - 1, 0):
        factor = body.one_of([size for size in range(1, left + 1) if left % size == 0][::-1])
        sizes.append(factor)
        left //= factor
    if (left != 1 or body.flag()) and (left != 1 or len(sizes) < body.program.max_rank):
        sizes.insert(body.integer(0, len(sizes)), left)
    body.emit(ArrayShape(operand.element_type, tuple(sizes)), f"reshape({operand.name})")


def transpose(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds)
    order = body.draw(st.permutations(range(operand.rank)))
    shape = ArrayShape(operand.element_type, tuple(operand.dimensions[axis] for axis in order))
    body.emit(shape, f"transpose({operand.name}), dimensions={braced(order)}")


def reverse(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1)
    axes = body.draw(st.lists(st.integers(0, operand.rank - 1), unique=True))
    body.emit(operand.shape, f"reverse({operand.name}), dimensions={braced(axes)}")


def slice_(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1)
    ranges = []
    for size in operand.dimensions:
        start = body.integer(0, max(size - 1, 0))
        limit = body.integer(min(start + body.program.min_size, size), size)
        ranges.append(range(start, limit, body.integer(1, 3)))
    text = ", ".join(f"[{r.start}:{r.stop}:{r.step}]" for r in ranges)
    shape = ArrayShape(operand.element_type, tuple(map(len, ranges)))
    body.emit(shape, f"slice({operand.name}), slice={{{text}}}")


def pad(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1, most=body.program.max_elements // 2)
    value = body.operand_of(operand.element_type, ())
    sizes, paddings = list(operand.dimensions), []
    for axis, size in enumerate(operand.dimensions):
        interior = body.integer(0, 1) if body.room(sizes) > 1 else 0
        whole = size + max(size - 1, 0) * interior
        low = body.integer(-max(whole - body.program.min_size, 0), 0)
        low = low or body.integer(0, min(2, _room_for(body, sizes, axis, whole)))
        high = body.integer(0, min(2, max(_room_for(body, sizes, axis, whole + low), 0)))
        sizes[axis] = whole + low + high
        paddings.append(f"{low}_{high}_{interior}")
    shape = ArrayShape(operand.element_type, tuple(sizes))
    body.emit(shape, f"pad({operand.name}, {value.name}), padding={'x'.join(paddings)}")


def _room_for(body: Body, sizes: list[int], axis: int, size: int) -> int:
    """By how much a dimension that has grown to a size may grow further."""
    others = body.room([*sizes[:axis], *sizes[axis + 1 :]])
    return max(others - size, 0)


def concatenate(body: Body, kinds: Kinds) -> None:
    first = body.operand(kinds, 1, most=body.program.max_elements // 2)
    axis = _axis(body, first)
    rest = _put(first.dimensions, axis)
    operands, size = [first], first.dimensions[axis]
    for _ in range(body.integer(1, 2)):
        added = body.size(max(body.room(rest) - size, 0))
        operands.append(body.operand_of(first.element_type, _put(first.dimensions, axis, added)))
        size += added
    names = ", ".join(value.name for value in operands)
    shape = ArrayShape(first.element_type, _put(first.dimensions, axis, size))
    body.emit(shape, f"concatenate({names}), dimensions={{{axis}}}")


def iota(body: Body, kinds: Kinds) -> None:
    kind, sizes = body.one_of(kinds), [body.size(body.room(()))]
    for _ in range(body.integer(0, max(body.program.max_rank - 1, 0))):
        sizes.append(body.size(body.room(sizes)))
    axis = body.integer(0, len(sizes) - 1)
    body.emit(ArrayShape(kind, tuple(sizes)), f"iota(), iota_dimension={axis}")


def _starts(body: Body, operand: Value) -> str:
    return ", ".join(body.operand_of(INDEX, ()).name for _ in operand.dimensions)


def _window(body: Body, operand: Value) -> Dimensions:
    least = body.program.min_size
    return tuple(body.integer(min(least, size), size) for size in operand.dimensions)


def dynamic_slice(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1)
    sizes, starts = _window(body, operand), _starts(body, operand)
    shape = ArrayShape(operand.element_type, sizes)
    body.emit(shape, f"dynamic-slice({operand.name}, {starts}), dynamic_slice_sizes={braced(sizes)}")


def dynamic_update_slice(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1)
    update, starts = body.operand_of(operand.element_type, _window(body, operand)), _starts(body, operand)
    body.emit(operand.shape, f"dynamic-update-slice({operand.name}, {update.name}, {starts})")


def gather(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1)
    axes = [axis for axis, size in enumerate(operand.dimensions) if size]
    if not axes:
        return  # there is nothing to gather
    axis = body.one_of(axes)
    rest = _put(operand.dimensions, axis)
    count = body.size(body.room(rest))
    indices = body.operand_of(INDEX, (count, 1))
    body.emit(
        ArrayShape(operand.element_type, (count, *rest)),
        f"gather({operand.name}, {indices.name}), offset_dims={braced(range(1, operand.rank))}, "
        f"collapsed_slice_dims={{{axis}}}, start_index_map={{{axis}}}, index_vector_dim=1, "
        f"slice_sizes={braced(_put(operand.dimensions, axis, 1))}",
    )


def scatter(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1)
    axis = _axis(body, operand)
    rest = _put(operand.dimensions, axis)
    count = body.size(body.room(rest))
    indices = body.operand_of(INDEX, (count, 1))
    updates = body.operand_of(operand.element_type, (count, *rest))
    body.emit(
        operand.shape,
        f"scatter({operand.name}, {indices.name}, {updates.name}), "
        f"update_window_dims={braced(range(1, operand.rank))}, inserted_window_dims={{{axis}}}, "
        f"scatter_dims_to_operand_dims={{{axis}}}, index_vector_dim=1, "
        f"to_apply={body.program.combiner(operand.element_type)}",
    )
