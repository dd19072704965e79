"""Steps of random modules: elementwise, movements, reductions and contractions, calls."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape
from hloexec.core.values import Ints
from hloexec.core.wording import braced
from hloexec.ops.registry import OPCODES
from hloexec.testing.bodies import INDEX, PRED, Body, Dimensions, Step, Value


def elementwise_step(name: str) -> Step | None:
    """The step of an opcode whose operands are of one shape and whose rule tells that of the result."""
    entry = OPCODES[name]
    infer = entry.infer
    if not entry.is_elementwise or infer is None or entry.traits.probe is not None:
        return None

    def write(body: Body, kinds: tuple[ElementType, ...]) -> None:
        first = body.operand(kinds)
        operands = [first, *(same(body, first) for _ in range(entry.minimum_operands - 1))]
        shape = infer(*(value.shape for value in operands))
        assert isinstance(shape, ArrayShape)
        body.emit(shape, f"{name}({', '.join(value.name for value in operands)})")

    return Step(write)


def same(body: Body, value: Value) -> Value:
    """Another operand of a value's shape."""
    return body.operand_of(value.element_type, value.dimensions)


def orders(kind: ElementType) -> Sequence[str]:
    """The directions in which numbers of a type compare."""
    return ("EQ", "NE") if kind.is_complex else ("LT", "EQ", "NE", "GE", "GT", "LE")


def compare(body: Body, kinds: tuple[ElementType, ...]) -> None:
    lhs = body.operand(kinds)
    rhs = same(body, lhs)
    direction = body.one_of(orders(lhs.element_type))
    body.emit(lhs.shape.with_element_type(PRED), f"compare({lhs.name}, {rhs.name}), direction={direction}")


def select(body: Body, kinds: tuple[ElementType, ...]) -> None:
    on_true = body.operand(kinds)
    on_false = same(body, on_true)
    chosen = body.operand_of(PRED, on_true.dimensions)
    body.emit(on_true.shape, f"select({chosen.name}, {on_true.name}, {on_false.name})")


def convert(body: Body, kinds: tuple[ElementType, ...]) -> None:
    operand = body.operand(kinds)
    body.emit(_retyped(body, operand, kinds), f"convert({operand.name})")


def bitcast_convert(body: Body, kinds: tuple[ElementType, ...]) -> None:
    operand = body.operand(kinds)
    source = operand.element_type
    alike = [kind for kind in kinds if (kind.bits, kind.is_complex) == (source.bits, source.is_complex)]
    body.emit(_retyped(body, operand, alike), f"bitcast-convert({operand.name})")


def _retyped(body: Body, operand: Value, kinds: Sequence[ElementType]) -> ArrayShape:
    """The operand's shape with another of some element types, or its own."""
    return operand.shape.with_element_type(body.one_of(kinds))


def reduce_precision(body: Body, kinds: tuple[ElementType, ...]) -> None:
    operand = body.operand(kinds)
    exponent, mantissa = body.integer(1, 8), body.integer(0, 23)
    body.emit(operand.shape, f"reduce-precision({operand.name}), exponent_bits={exponent}, mantissa_bits={mantissa}")


def copy(body: Body, kinds: tuple[ElementType, ...]) -> None:
    operand = body.operand(kinds)
    body.emit(operand.shape, f"copy({operand.name})")


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


def _window_sizes(body: Body, operand: Value) -> Dimensions:
    least = body.program.min_size
    return tuple(body.integer(min(least, size), size) for size in operand.dimensions)


def dynamic_slice(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1)
    sizes, starts = _window_sizes(body, operand), _starts(body, operand)
    shape = ArrayShape(operand.element_type, sizes)
    body.emit(shape, f"dynamic-slice({operand.name}, {starts}), dynamic_slice_sizes={braced(sizes)}")


def dynamic_update_slice(body: Body, kinds: Kinds) -> None:
    operand = body.operand(kinds, 1)
    update, starts = body.operand_of(operand.element_type, _window_sizes(body, operand)), _starts(body, operand)
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
    directions = [direction for direction in orders(keys.element_type) if direction in ("LT", "GT")] or ["EQ"]
    direction = body.one_of(directions)
    return body.program.two_numbers(keys.element_type, PRED, f"compare(a, b), direction={direction}")


_MOST_NESTED = 4
_MOST_ITERATIONS = 3


def call(body: Body, kinds: Kinds) -> None:
    name, callee, result = _callee(body)
    body.emit(result.shape, f"call({body.arguments(callee)}), to_apply={name}")


def fusion(body: Body, kinds: Kinds) -> None:
    name, callee, result = _callee(body)
    body.emit(result.shape, f"fusion({body.arguments(callee)}), kind=kLoop, calls={name}")


def _callee(body: Body) -> tuple[str, Body, Value]:
    """A computation of a few steps: its name, its body and its result."""
    callee = body.nested()
    callee.fill(1, _MOST_NESTED)
    result = callee.result()
    return callee.finish(body.program.fresh("callee"), result.name), callee, result


def map_(body: Body, kinds: Kinds) -> None:
    first = body.operand(kinds)
    operands = [first, *(same(body, first) for _ in range(body.integer(0, 1)))]
    callee = body.nested([ArrayShape(first.element_type)] * len(operands), is_scalar=True)
    callee.fill(1, _MOST_NESTED)
    result = callee.result()
    name = callee.finish(body.program.fresh("callee"), result.name)
    names = ", ".join(value.name for value in operands)
    axes = ",".join(map(str, range(first.rank)))
    shape = first.shape.with_element_type(result.element_type)
    body.emit(shape, f"map({names}), dimensions={{{axes}}}, to_apply={name}")


def conditional(body: Body, kinds: Kinds) -> None:
    result = body.operand(body.program.element_types).shape
    branches, operands = [], []
    for _ in range(2):
        operand = body.operand(body.program.element_types)
        branch = body.nested([operand.shape])
        branch.fill(0, _MOST_NESTED)
        root = branch.operand_of(result.element_type, result.dimensions)
        branches.append(branch.finish(body.program.fresh("branch"), root.name))
        operands.append(operand.name)
    if body.flag():
        chosen = body.operand_of(INDEX, ())
        names = f"branch_computations={{{', '.join(branches)}}}"
    else:
        chosen = body.operand_of(PRED, ())
        names = f"true_computation={branches[0]}, false_computation={branches[1]}"
    body.emit(result, f"conditional({chosen.name}, {', '.join(operands)}), {names}")


def while_(body: Body, kinds: Kinds) -> None:
    """A loop over a counter and a few carried values, that runs some times or none."""
    count = body.integer(1, 3)
    carried = [body.operand(body.program.element_types) for _ in range(count)]
    shapes = [ArrayShape(INDEX), *(value.shape for value in carried)]
    state = f"({', '.join(map(str, shapes))})"
    name = body.program.fresh("loop")
    _loop_body(body, name, state, shapes)
    limit = body.integer(0, _MOST_ITERATIONS)
    condition = [
        f"state = {state} parameter(0)",
        "counter = s32[] get-tuple-element(state), index=0",
        f"limit = s32[] constant({limit})",
        "ROOT less = pred[] compare(counter, limit), direction=LT",
    ]
    body.program.add(f"{name}_condition", condition)
    names = [body.scalar(INDEX, "0"), *(value.name for value in carried)]
    start = body.line("t", state, f"tuple({', '.join(names)})")
    end = body.line("t", state, f"while({start}), condition={name}_condition, body={name}_body")
    kept = body.integer(1, count)
    body.emit(shapes[kept], f"get-tuple-element({end}), index={kept}")


def _loop_body(body: Body, name: str, state: str, shapes: Sequence[ArrayShape]) -> None:
    inner = body.nested([])
    carried = inner.line("t", state, "parameter(0)")
    counter, *_ = (inner.emit(shape, f"get-tuple-element({carried}), index={k}") for k, shape in enumerate(shapes))
    following = [inner.line("c", "s32[]", f"add({counter.name}, {inner.scalar(INDEX, '1')})")]
    inner.fill(1, _MOST_NESTED)
    following += [inner.operand_of(shape.element_type, shape.dimensions).name for shape in shapes[1:]]
    inner.finish(f"{name}_body", inner.line("t", state, f"tuple({', '.join(following)})"))
