"""Steps of several operands or many dimension numbers: reduce and sort of pairs, gather, scatter, dots of batches."""

from math import prod

from tests.plan.random_programs.writing import FLOATS, INTEGERS, UNSIGNED, Body, Dims, Value, Writer, cut


def reduce_pair(writer: Writer, body: Body) -> None:
    """The largest elements with their indices, or a maximum and a sum at once."""
    value = _array(writer, body, 30 if writer.depth else 300)
    if value is None:
        return
    axis = writer.number(len(value.dims))
    kind, partner = value.kind, writer.pick(["s32", value.kind])
    name = f"computation_{writer.fresh()}"
    parameters = (
        f"  a = {kind}[] parameter(0)\n  i = {partner}[] parameter(1)\n  b = {kind}[] parameter(2)\n"
        f"  j = {partner}[] parameter(3)\n"
    )
    if writer.chance(0.6):
        text = (
            "  more = pred[] compare(a, b), direction=GT\n  unlike = pred[] compare(a, a), direction=NE\n"
            "  same = pred[] compare(a, b), direction=EQ\n  first = pred[] compare(i, j), direction=LT\n"
            "  tie = pred[] and(same, first)\n  left = pred[] or(more, unlike)\n  take = pred[] or(left, tie)\n"
            f"  m = {kind}[] select(take, a, b)\n  n = {partner}[] select(take, i, j)\n"
        )
    else:
        text = f"  m = {kind}[] maximum(a, b)\n  n = {partner}[] add(i, j)\n"
    writer.computations.append(f"{name} {{\n{parameters}{text}  ROOT t = ({kind}[], {partner}[]) tuple(m, n)\n}}\n")
    places = body.aside(partner, value.dims, f"iota(), iota_dimension={axis}")
    low, zero = body.scalar(kind, _lowest(writer, kind)), body.scalar(partner, "0")
    kept = tuple(size for place, size in enumerate(value.dims) if place != axis)
    likes = [Value("", element, kept, writer.layout(kept)) for element in (kind, partner)]
    both = writer.fresh()
    body.line(
        f"{both} = ({likes[0].shape}, {likes[1].shape}) reduce({value.name}, {places.name}, {low.name}, {zero.name}), "
        f"dimensions={{{axis}}}, to_apply={name}"
    )
    body.elements(both, likes)


def _lowest(writer: Writer, kind: str) -> str:
    """A number that changes no maximum, for the most part."""
    if kind in FLOATS:
        return "-448" if kind == "f8e4m3fn" else "-inf"
    bits = int(kind[1:])
    return "0" if kind in UNSIGNED or writer.chance(0.1) else str(-(1 << bits - 1))


def sort_pair(writer: Writer, body: Body) -> None:
    """Keys with what goes with them, up or down, by the keys alone or by both."""
    value = _array(writer, body, 30 if writer.depth else 300)
    if value is None:
        return
    axis = writer.number(len(value.dims))
    direction = writer.pick(["LT", "GT"])
    order = ", type=TOTALORDER" if value.kind in FLOATS else ""
    name = f"computation_{writer.fresh()}"
    text = (
        f"  a = {value.kind}[] parameter(0)\n  b = {value.kind}[] parameter(1)\n  i = s32[] parameter(2)\n"
        f"  j = s32[] parameter(3)\n"
    )
    if writer.chance(0.4):
        text += (
            f"  less = pred[] compare(a, b), direction={direction}{order}\n"
            f"  same = pred[] compare(a, b), direction=EQ{order}\n  then = pred[] compare(i, j), direction=GT\n"
            "  tie = pred[] and(same, then)\n  ROOT r = pred[] or(less, tie)\n"
        )
    else:
        text += f"  ROOT r = pred[] compare(a, b), direction={direction}{order}\n"
    writer.computations.append(f"{name} {{\n{text}}}\n")
    layout = writer.layout(value.dims)
    keys = body.laid_out(value, layout)
    places = body.emit("s32", value.dims, f"iota(), iota_dimension={axis}", layout=layout, keep=False)
    likes = [Value("", kind, value.dims, layout) for kind in (value.kind, "s32")]
    both = writer.fresh()
    body.line(
        f"{both} = ({likes[0].shape}, {likes[1].shape}) sort({keys.name}, {places.name}), "
        f"dimensions={{{axis}}}, is_stable=true, to_apply={name}"
    )
    body.elements(both, likes)


def top(writer: Writer, body: Body) -> None:
    """The largest elements of the last dimension."""
    value = _array(writer, body, 20000, ("f32", "bf16", "s32"))
    if value is None:
        return
    count = writer.number(1, min(value.dims[-1], 6) + 1)
    dims = (*value.dims[:-1], count)
    likes = [Value("", value.kind, dims), Value("", "s32", dims)]
    both = writer.fresh()
    body.line(f"{both} = ({likes[0].shape}, {likes[1].shape}) topk({value.name}), k={count}, largest=true")
    body.elements(both, likes)


def gather_any(writer: Writer, body: Body) -> None:
    """Windows of any size at computed places, some of them out of bounds."""
    value = _array(writer, body, 20000, (*FLOATS, *INTEGERS, "c64", "pred"))
    if value is None:
        return
    indexed, places = _places(writer, body, value)
    sizes, collapsed, where, dims = _windows(writer, value, places.dims[:-1])
    body.emit(
        value.kind,
        dims,
        f"gather({value.name}, {places.name}), offset_dims={_set(where)}, collapsed_slice_dims={_set(collapsed)}, "
        f"start_index_map={_set(indexed)}, index_vector_dim={len(places.dims) - 1}, slice_sizes={_set(sizes)}",
    )


def scatter_any(writer: Writer, body: Body) -> None:
    """Windows of any size that are combined with an array at computed places, some of them out of bounds or twice."""
    value = _array(writer, body, 20000)
    if value is None:
        return
    indexed, places = _places(writer, body, value)
    _, inserted, where, dims = _windows(writer, value, places.dims[:-1])
    updates = body.emit(value.kind, dims, f"broadcast({body.scalar(value.kind, '2').name}), dimensions={{}}")
    if prod(dims) <= prod(value.dims):
        updates = cut(body, value, dims)
    combine = writer.reducer(writer.pick(["add", "maximum", "multiply"]), value.kind)
    if writer.chance(0.3):
        combine = f"computation_{writer.fresh()}"
        kind = value.kind
        writer.computations.append(f"{combine} {{\n  a = {kind}[] parameter(0)\n  ROOT b = {kind}[] parameter(1)\n}}\n")
    body.like(
        value,
        f"scatter({value.name}, {places.name}, {updates.name}), update_window_dims={_set(where)}, "
        f"inserted_window_dims={_set(inserted)}, scatter_dims_to_operand_dims={_set(indexed)}, "
        f"index_vector_dim={len(places.dims) - 1}, to_apply={combine}",
    )


def dot_batches(writer: Writer, body: Body) -> None:
    """A product of batches of matrices, whose dimensions stand in any order."""
    value = _array(writer, body, 30000, ("f32", "f32", "f64", "bf16", "s32", "s8", "c64"))
    if value is None or prod(value.dims) < 60:
        return
    sizes = {"b": 2, "m": writer.number(1, 5), "k": 5, "n": writer.number(1, 5)}
    orders = ["".join(labels[int(k)] for k in writer.random.permutation(3)) for labels in ("bmk", "bkn")]
    lhs, rhs = (cut(body, value, tuple(sizes[label] for label in order)) for order in orders)
    kind = "s32" if value.kind == "s8" else value.kind
    body.emit(
        kind,
        (2, sizes["m"], sizes["n"]),
        f"dot({lhs.name}, {rhs.name}), "
        + ", ".join(
            f"{side}_{what}_dims={{{order.index(label)}}}"
            for what, label in (("batch", "b"), ("contracting", "k"))
            for side, order in zip(("lhs", "rhs"), orders, strict=True)
        ),
    )


def _places(writer: Writer, body: Body, value: Value) -> tuple[list[int], Value]:
    """Some of an array's dimensions, and index vectors for them: those of one batch dimension, of two, or one alone."""
    rank = len(value.dims)
    indexed = [int(axis) for axis in writer.random.permutation(rank)[: writer.random.integers(1, rank + 1)]]
    batch: Dims = writer.pick([(5,), (2, 3), ()])
    rows = [[writer.number(-2, value.dims[axis] + 2) for axis in indexed] for _ in range(prod(batch))]
    text = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in rows)
    flat = body.emit("s32", (len(rows), len(indexed)), f"constant({{{text}}})", layout="", keep=False)
    return indexed, body.aside("s32", (*batch, len(indexed)), f"reshape({flat.name})")


def _windows(writer: Writer, value: Value, batch: Dims) -> tuple[list[int], list[int], list[int], Dims]:
    """Sizes of windows of an array, which of its dimensions they leave out, and where the others stand in an array of as
    many windows as there are in a batch, with the sizes of that."""
    sizes = [writer.number(1, min(size, 4) + 1) for size in value.dims]
    left_out = [axis for axis, size in enumerate(sizes) if size == 1 and writer.chance(0.6)]
    window = tuple(size for axis, size in enumerate(sizes) if axis not in left_out)
    rank = len(batch) + len(window)
    where = sorted(int(k) for k in writer.random.permutation(rank)[: len(window)])
    parts = iter(window), iter(batch)
    return sizes, left_out, where, tuple(next(parts[0] if axis in where else parts[1]) for axis in range(rank))


def _array(writer: Writer, body: Body, most: int, kinds: tuple[str, ...] = (*FLOATS, *INTEGERS)) -> Value | None:
    found = [value for value in body.values if value.dims and 0 < prod(value.dims) <= most and value.kind in kinds]
    return writer.pick(found) if found else None


def _set(numbers: list[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"
