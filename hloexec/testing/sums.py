"""Steps that combine elements: reductions, windows, contractions, sorts."""

from __future__ import annotations

from hypothesis import strategies as st

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape
from hloexec.core.values import Ints
from hloexec.core.wording import braced
from hloexec.testing.bodies import PRED, Body, Value
from hloexec.testing.elementwise import orders

Kinds = tuple[ElementType, ...]


def reduce(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1)
    axes = body.draw(st.lists(st.integers(0, operand.rank - 1), min_size=1, unique=True))
    init_value = body.operand_of(operand.element_type, ())
    kept = tuple(size for axis, size in enumerate(operand.dimensions) if axis not in axes)
    body.emit(
        ArrayShape(operand.element_type, kept),
        f"reduce({operand.name}, {init_value.name}), dimensions={braced(sorted(axes))}, "
        f"to_apply={body.program.combiner(operand.element_type)}",
    )


def reduce_window(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1)
    init_value = body.operand_of(operand.element_type, ())
    window, sizes = _window(body, operand.dimensions)
    body.emit(
        ArrayShape(operand.element_type, sizes),
        f"reduce-window({operand.name}, {init_value.name}), window={{{window}}}, "
        f"to_apply={body.program.combiner(operand.element_type)}",
    )


def _window(body: Body, dimensions: Ints) -> tuple[str, Ints]:
    """A window over these dimensions, and at how many places along each it stands."""
    sizes, strides, paddings, places = [], [], [], []
    for size in dimensions:
        low, high = body.integer(0, 1), body.integer(0, 1)
        extent = size + low + high
        window = body.integer(1, max(extent, 1))
        stride = body.integer(1, 2)
        sizes.append(window)
        strides.append(stride)
        paddings.append(f"{low}_{high}")
        places.append(max(extent - window + stride, 0) // stride)
    text = f"size={'x'.join(map(str, sizes))} stride={'x'.join(map(str, strides))} pad={'x'.join(paddings)}"
    return text, tuple(places)


def dot(body: Body, kinds: Kinds) -> None:
    lhs = body.operand(kinds, 1)
    axis = body.integer(0, lhs.rank - 1)
    kept = tuple(size for place, size in enumerate(lhs.dimensions) if place != axis)
    sizes = [lhs.dimensions[axis]]
    if body.program.max_rank > 1 and body.flag():
        sizes.append(body.size(min(body.room(kept), body.room(sizes))))
    place = body.integer(0, len(sizes) - 1)
    sizes.insert(place, sizes.pop(0))
    rhs = body.operand_of(lhs.element_type, sizes)
    free = tuple(size for number, size in enumerate(sizes) if number != place)
    body.emit(
        ArrayShape(lhs.element_type, (*kept, *free)),
        f"dot({lhs.name}, {rhs.name}), lhs_contracting_dims={{{axis}}}, rhs_contracting_dims={{{place}}}",
    )


def convolution(body: Body, kinds: Kinds) -> None:
    lhs = body.operand(kinds, 2, 4)
    batch, *spatial, features = lhs.dimensions
    window, places = _window(body, tuple(spatial))
    outputs = body.size(body.room((batch, *places)))
    sizes = [int(size) for size in window.split()[0].removeprefix("size=").split("x") if size]
    rhs = body.operand_of(lhs.element_type, (*sizes, features, outputs))
    digits = "".join(map(str, range(len(spatial))))
    attributes = f"dim_labels=b{digits}f_{digits}io->b{digits}f"
    if spatial:
        attributes = f"window={{{window}}}, {attributes}"
    shape = ArrayShape(lhs.element_type, (batch, *places, outputs))
    body.emit(shape, f"convolution({lhs.name}, {rhs.name}), {attributes}")


def sort(body: Body, kinds: Kinds) -> None:
    keys = body.operand([kind for kind in kinds if not kind.is_complex] or kinds, 1)
    axis = body.integer(0, keys.rank - 1)
    body.emit(keys.shape, f"sort({keys.name}), dimensions={{{axis}}}, is_stable=true, to_apply={_order(body, keys)}")


def _order(body: Body, keys: Value) -> str:
    found = [direction for direction in orders(keys.element_type) if direction in ("LT", "GT")] or ["EQ"]
    direction = body.one_of(found)
    return body.program.two_numbers(keys.element_type, PRED, f"compare(a, b), direction={direction}")
