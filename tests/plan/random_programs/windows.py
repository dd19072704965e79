"""Steps that look at windows of arrays: reduce-window, select-and-scatter, convolution, pad."""

from math import prod

from tests.plan.random_programs.writing import ANY, ARRAYS, FLOATS, Body, Dims, Value, Writer, cut


def pad_any(writer: Writer, body: Body) -> None:
    """Edges that add and take away, and elements in between."""
    value = writer.pick(body.fitting(ANY, ARRAYS, range(10000)))
    padding = [(*map(int, writer.random.integers(-2, 4, 2)), writer.pick([0, 0, 1, 2])) for _ in value.dims]
    dims = tuple(
        size + low + high + max(size - 1, 0) * interior
        for size, (low, high, interior) in zip(value.dims, padding, strict=True)
    )
    if min(dims) > 0:
        text = "x".join("_".join(map(str, entry)) for entry in padding)
        filler = body.scalar(value.kind, {"pred": "true", "c64": "(1, 2)"}.get(value.kind, "1"))
        body.emit(value.kind, dims, f"pad({value.name}, {filler.name}), padding={text}")


def _fitting(writer: Writer, body: Body) -> list[Value]:
    """Small arrays of ordered numbers."""
    most = 30 if writer.depth else 300
    return [value for value in body.values if value.dims and 0 < prod(value.dims) < most and value.kind not in _NEITHER]


def reduce_windows(writer: Writer, body: Body) -> None:
    """Windows of any size, stride, dilation and padding; at times of two arrays at once."""
    found = _fitting(writer, body)
    value = writer.pick(found)
    sizes = [writer.number(1, 4) for _ in value.dims]
    strides = [writer.number(1, 3) for _ in value.dims]
    edges = [(*map(int, writer.random.integers(0, 3, 2)),) for _ in value.dims]
    dilations = [writer.pick([1, 1, 2]) for _ in value.dims]
    spread = [writer.pick([1, 1, 1, 2]) for _ in value.dims]
    dims = tuple(map(_count, value.dims, sizes, strides, edges, spread, dilations))
    if min(dims) <= 0:
        return
    window = (
        f"window={{size={_by_axis(sizes)} stride={_by_axis(strides)} pad={_padding(edges)} "
        f"lhs_dilate={_by_axis(spread)} rhs_dilate={_by_axis(dilations)}}}"
    )
    if writer.chance(0.3):
        partners = [other for other in found if other.dims == value.dims]
        _of_two(writer, body, value, writer.pick(partners), dims, window)
        return
    opcode = writer.pick(["add", "maximum", "minimum"])
    first = body.scalar(value.kind, {"add": "0", "maximum": "0", "minimum": "3"}[opcode])
    reducer = writer.reducer(opcode, value.kind)
    body.emit(value.kind, dims, f"reduce-window({value.name}, {first.name}), {window}, to_apply={reducer}")


def _of_two(writer: Writer, body: Body, value: Value, other: Value, dims: Dims, window: str) -> None:
    """The largest of one, and the sum of the other, of the same windows."""
    name = f"computation_{writer.fresh()}"
    a, b = value.kind, other.kind
    writer.computations.append(
        f"{name} {{\n  a = {a}[] parameter(0)\n  b = {b}[] parameter(1)\n  c = {a}[] parameter(2)\n"
        f"  d = {b}[] parameter(3)\n  m = {a}[] maximum(a, c)\n  s = {b}[] add(b, d)\n"
        f"  ROOT t = ({a}[], {b}[]) tuple(m, s)\n}}\n"
    )
    first, second = body.scalar(a, "0"), body.scalar(b, "0")
    likes = [Value("", kind, dims, writer.layout(dims)) for kind in (a, b)]
    both = writer.fresh()
    body.line(
        f"{both} = ({likes[0].shape}, {likes[1].shape}) reduce-window({value.name}, {other.name}, {first.name}, "
        f"{second.name}), {window}, to_apply={name}"
    )
    body.elements(both, likes)


def select_and_scatter(writer: Writer, body: Body) -> None:
    """The gradient of a maximum over windows."""
    value = writer.pick(_fitting(writer, body))
    sizes = [min(writer.number(1, 4), size) for size in value.dims]
    strides = [writer.number(1, 4) for _ in value.dims]
    edges = [writer.pick([(0, 0), (0, 0), (size // 2, (size - 1) // 2)]) for size in sizes]
    ones = [1] * len(sizes)
    dims = tuple(map(_count, value.dims, sizes, strides, edges, ones, ones))
    source = cut(body, value, dims) if prod(dims) <= prod(value.dims) and writer.chance(0.7) else None
    zero = body.scalar(value.kind, "0")
    if source is None:
        source = body.emit(value.kind, dims, f"broadcast({body.scalar(value.kind, '2').name}), dimensions={{}}")
    name = f"computation_{writer.fresh()}"
    kind = value.kind
    writer.computations.append(
        f"{name} {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n"
        f"  ROOT c = pred[] compare(a, b), direction=GE\n}}\n"
    )
    body.emit(
        kind,
        value.dims,
        f"select-and-scatter({value.name}, {source.name}, {zero.name}), window={{size={_by_axis(sizes)} "
        f"stride={_by_axis(strides)} pad={_padding(edges)}}}, select={name}, scatter={writer.reducer('add', kind)}",
    )


def convolve_any(writer: Writer, body: Body) -> None:
    """Convolutions of one or two dimensions: strides, dilations, negative edges, groups, reversal, any labels."""
    kinds = (*FLOATS, "s32", "s8") if writer.chance(0.5) else ("f32",)
    value = writer.pick([value for value in body.values if value.kind in kinds and 400 <= prod(value.dims) < 30000])
    rank = writer.number(1, 3)
    groups = writer.pick([("feature", 1), ("feature", 1), ("feature", 2), ("batch", 2)])
    count = groups[1]
    batch, channels, outputs = count * writer.number(1, 3), 2 * count, 2 * count
    space = [writer.number(3, 7) for _ in range(rank)]
    sizes = [writer.number(1, 4) for _ in range(rank)]
    strides = [writer.number(1, 3) for _ in range(rank)]
    edges = [(*map(int, writer.random.integers(-1, 3, 2)),) for _ in range(rank)]
    spread = [writer.pick([1, 1, 2]) for _ in range(rank)]
    dilations = [writer.pick([1, 1, 2]) for _ in range(rank)]
    seen = tuple(map(_count, space, sizes, strides, edges, spread, dilations))
    if min(seen) <= 0:
        return
    spatial = "01"[:rank]
    per_group = channels // count if groups[0] == "feature" else channels
    batches = batch // count if groups[0] == "batch" else batch
    lhs = _labelled(writer, "bf" + spatial, {"b": batch, "f": channels, **dict(zip(spatial, space, strict=True))})
    rhs = _labelled(writer, "io" + spatial, {"i": per_group, "o": outputs, **dict(zip(spatial, sizes, strict=True))})
    out = _labelled(writer, "bf" + spatial, {"b": batches, "f": outputs, **dict(zip(spatial, seen, strict=True))})
    if prod(lhs[1]) > prod(value.dims) or prod(rhs[1]) > prod(value.dims):
        return
    image, kernel = cut(body, value, lhs[1]), cut(body, value, rhs[1])
    reversal = _by_axis([int(writer.chance(0.3)) for _ in range(rank)])
    body.emit(
        value.kind,
        out[1],
        f"convolution({image.name}, {kernel.name}), window={{size={_by_axis(sizes)} stride={_by_axis(strides)} "
        f"pad={_padding(edges)} lhs_dilate={_by_axis(spread)} rhs_dilate={_by_axis(dilations)} "
        f"rhs_reversal={reversal}}}, dim_labels={lhs[0]}_{rhs[0]}->{out[0]}, {groups[0]}_group_count={count}",
    )


_NEITHER = ("pred", "c64")


def _labelled(writer: Writer, labels: str, sizes: dict[str, int]) -> tuple[str, Dims]:
    """The labels in any order, and the dimensions that they name."""
    order = "".join(labels[int(place)] for place in writer.random.permutation(len(labels)))
    return order, tuple(sizes[label] for label in order)


def _count(size: int, window: int, stride: int, edges: tuple[int, int], spread: int, dilation: int) -> int:
    """How many windows there are."""
    length = (size - 1) * spread + 1 + sum(edges)
    return (length - ((window - 1) * dilation + 1)) // stride + 1


def _by_axis(numbers: list[int]) -> str:
    return "x".join(map(str, numbers))


def _padding(edges: list[tuple[int, int]]) -> str:
    return "x".join(f"{low}_{high}" for low, high in edges)
