"""Steps that move elements, choose among them and convert them."""

from math import prod

from tests.plan.random_programs.writing import ANY, ARRAYS, LARGER, MATRICES, SHAPES, Body, Writer, spread_scalar


def transpose(writer: Writer, body: Body) -> None:
    found = body.fitting(ANY, LARGER)
    if found:
        value = writer.pick(found)
        order = [int(axis) for axis in writer.random.permutation(len(value.dims))]
        dims = tuple(value.dims[axis] for axis in order)
        text = ",".join(map(str, order))
        turned = body.emit(value.kind, dims, f"transpose({value.name}), dimensions={{{text}}}")
        if writer.chance(0.5) and turned.kind in ("f32", "f64"):
            partner = spread_scalar(writer, body, turned)
            body.emit(turned.kind, dims, f"multiply({turned.name}, {partner.name})")


def move(writer: Writer, body: Body) -> None:
    value = writer.pick(body.values)
    if not value.dims:
        dims = writer.pick([dims for dims in SHAPES if dims])
        body.emit(value.kind, dims, f"broadcast({value.name}), dimensions={{}}")
        return
    axis = writer.number(len(value.dims))
    size = value.dims[axis]
    choice = writer.pick("reshape reverse slice pad concatenate broadcast copy".split())
    before, after = value.dims[:axis], value.dims[axis + 1 :]
    if choice == "reshape":
        merged = (prod(value.dims[: axis + 1]), *after) if axis else (*value.dims[:-1], 1, value.dims[-1])
        body.emit(value.kind, merged, f"reshape({value.name})")
    elif choice == "reverse":
        body.like(value, f"reverse({value.name}), dimensions={{{axis}}}")
    elif choice == "slice" and size:
        start = writer.number(0, size)
        stride = writer.number(1, 3)
        limit = writer.number(start + 1, size + 1)
        bounds = [f"[0:{length}]" for length in value.dims]
        bounds[axis] = f"[{start}:{limit}:{stride}]"
        dims = (*before, -(-(limit - start) // stride), *after)
        body.emit(value.kind, dims, f"slice({value.name}), slice={{{', '.join(bounds)}}}")
    elif choice == "pad":
        low, high = writer.number(-1, 3), writer.number(0, 3)
        if size + low + high > 0 and value.kind not in ("pred", "c64"):
            padding = "x".join(f"{low}_{high}" if k == axis else "0_0" for k in range(len(value.dims)))
            filler = body.scalar(value.kind, "1")
            dims = (*before, size + low + high, *after)
            body.emit(value.kind, dims, f"pad({value.name}, {filler.name}), padding={padding}")
    elif choice == "concatenate" and prod(value.dims) < 20000:
        dims = (*before, 2 * size, *after)
        body.emit(value.kind, dims, f"concatenate({value.name}, {value.name}), dimensions={{{axis}}}")
    elif choice == "broadcast" and prod(value.dims) < 8000:
        places = ",".join(str(k + 1) for k in range(len(value.dims)))
        body.emit(value.kind, (3, *value.dims), f"broadcast({value.name}), dimensions={{{places}}}")
    else:
        body.like(value, f"copy({value.name})")


def bitcast(writer: Writer, body: Body) -> None:
    """The same elements in physical order, twice, under layouts that may differ."""
    value = writer.pick([value for value in body.values if len(value.dims) > 1 and value.kind != "pred"])
    dims = writer.pick([value.dims, value.dims[::-1], (1, prod(value.dims)), (*value.dims, 1)])
    turned = []
    for _ in range(2):
        order = ",".join(str(int(axis)) for axis in writer.random.permutation(len(dims)))
        turned.append(body.emit(value.kind, dims, f"bitcast({value.name})", layout=f"{{{order}}}"))
    body.emit(value.kind, dims, f"subtract({turned[0].name}, {turned[1].name})")


def update(writer: Writer, body: Body) -> None:
    """A window read at a computed place, changed, and written back."""
    value = writer.pick([value for value in body.values if value.dims and value.kind != "pred"])
    starts = [body.scalar("s32", str(writer.number(-1, 4))).name for _ in value.dims]
    sizes = tuple(writer.number(min(1, size), size + 1) for size in value.dims)
    text = ",".join(map(str, sizes))
    window = body.emit(
        value.kind, sizes, f"dynamic-slice({value.name}, {', '.join(starts)}), dynamic_slice_sizes={{{text}}}"
    )
    doubled = body.emit(value.kind, sizes, f"add({window.name}, {window.name})")
    body.like(value, f"dynamic-update-slice({value.name}, {doubled.name}, {', '.join(starts)})")


def select(writer: Writer, body: Body) -> None:
    value = writer.pick([value for value in body.values if value.kind != "pred"])
    partners = [other for other in body.values if (other.kind, other.dims) == (value.kind, value.dims)]
    direction = "EQ" if value.kind == "c64" else writer.pick("LT GE EQ NE".split())
    against = spread_scalar(writer, body, value) if writer.chance(0.5) else writer.pick(partners)
    chosen = body.emit("pred", value.dims, f"compare({value.name}, {against.name}), direction={direction}")
    other = spread_scalar(writer, body, value) if writer.chance(0.5) else writer.pick(partners)
    pair = [value.name, other.name]
    if writer.chance(0.5):
        pair.reverse()
    body.like(value, f"select({chosen.name}, {', '.join(pair)})")


def convert(writer: Writer, body: Body) -> None:
    value = writer.pick(body.of_kinds("f32 f64 f16 bf16 s32") or body.values)
    if value.kind in ("pred", "c64"):
        return
    kind = writer.pick("f32 bf16 f64 f16".split())
    body.emit(kind, value.dims, f"convert({value.name})")


def scatter(writer: Writer, body: Body) -> None:
    """Rows added to others, some of them twice."""
    value = writer.pick(body.fitting("f32 f64 bf16 s32", MATRICES))
    if value.dims[0] < 3:
        return
    rows = [int(row) for row in writer.random.integers(0, value.dims[0], 3)]
    places = body.scalar_list(rows)
    sizes = (3, value.dims[1])
    updates = body.emit(value.kind, sizes, f"slice({value.name}), slice={{[0:3], [0:{value.dims[1]}]}}")
    reducer = writer.reducer("add", value.kind)
    body.like(
        value,
        f"scatter({value.name}, {places.name}, {updates.name}), update_window_dims={{1}}, "
        f"inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={reducer}",
    )


def gather(writer: Writer, body: Body) -> None:
    found = [value for value in body.values if len(value.dims) == 2 and value.dims[0]]
    if found:
        value = writer.pick(found)
        rows = [int(row) for row in writer.random.integers(-1, value.dims[0] + 1, 4)]
        places = body.scalar_list(rows)
        body.emit(
            value.kind,
            (4, value.dims[1]),
            f"gather({value.name}, {places.name}), offset_dims={{1}}, collapsed_slice_dims={{0}}, "
            f"start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,{value.dims[1]}}}",
        )


def sort(writer: Writer, body: Body) -> None:
    # An audit asks the comparator of each pair by itself, in a loop again in each iteration.
    most = 2000 if writer.depth else 20000
    found = body.fitting("f32 f64 bf16 s32", ARRAYS, range(most))
    if found:
        value = writer.pick(found)
        axis = writer.number(len(value.dims))
        key = "less", value.kind
        if key not in writer.reducers:
            name = writer.reducers[key] = f"less_{value.kind}"
            writer.computations.append(
                f"{name} {{\n  a = {value.kind}[] parameter(0)\n  b = {value.kind}[] parameter(1)\n"
                f"  ROOT c = pred[] compare(a, b), direction=LT\n}}\n"
            )
        body.like(value, f"sort({value.name}), dimensions={{{axis}}}, to_apply={writer.reducers[key]}")
