"""Steps whose called computations are almost, or in another guise, those for which there are kernels.

Maxima by a comparison and a select, sums with their operands swapped, converted or doubled, orders by a key that is
negated, widened or compared the other way round.
"""

from tests.plan.random_programs.writing import (
    ARRAYS,
    FLOATS,
    INTEGERS,
    MATRICES,
    NUMBERS,
    UNSIGNED,
    Body,
    Value,
    Writer,
    spread_scalar,
)


def _combination(writer: Writer, kind: str) -> str:
    """A computation of two numbers, by its name."""
    name = f"computation_{writer.fresh()}"
    lines = [f"a = {kind}[] parameter(0)", f"b = {kind}[] parameter(1)"]
    direction = writer.pick(["GT", "GE", "LT", "LE", "EQ", "NE"])
    pair = writer.pick(["a, b", "b, a"])
    wider = writer.pick(["f64", "f32"]) if kind in FLOATS else writer.pick(["s64", "f32"])
    ways = [
        [f"c = pred[] compare(a, b), direction={direction}", f"r = {kind}[] select(c, {pair})"],
        [f"c = pred[] compare(b, a), direction={direction}", f"r = {kind}[] select(c, {pair})"],
        [f"r = {kind}[] {writer.pick(['add', 'multiply', 'maximum', 'minimum', 'subtract'])}({pair})"],
        [f"t = {kind}[] {writer.pick(['add', 'maximum'])}({pair})", f"r = {kind}[] copy(t)"],
        [
            f"x = {wider}[] convert(a)", f"y = {wider}[] convert(b)",
            f"z = {wider}[] {writer.pick(['add', 'maximum', 'minimum', 'multiply'])}({pair.replace('a', 'x').replace('b', 'y')})",
            f"r = {kind}[] convert(z)",
        ],
        [f"t = {kind}[] add(b, b)", f"r = {kind}[] add(a, t)"],
        [f"t = {kind}[] multiply(b, b)", f"r = {kind}[] {writer.pick(['add', 'maximum'])}({writer.pick(['a, t', 't, a'])})"],
        [f"k = {kind}[] constant(1)", f"t = {kind}[] {writer.pick(['multiply', 'add'])}(b, k)", f"r = {kind}[] add(a, t)"],
        [f"n = pred[] compare(a, a), direction={writer.pick(['NE', 'EQ'])}",
         f"g = pred[] compare({pair}), direction={direction}", f"c = pred[] {writer.pick(['or', 'and'])}(n, g)",
         f"r = {kind}[] select(c, {writer.pick(['a, b', 'b, a'])})"],
        [f"r = {kind}[] copy({writer.pick(['a', 'b'])})"],
    ]  # fmt: skip
    if kind in INTEGERS:
        ways += [[f"r = {kind}[] {opcode}({pair})"] for opcode in ("and", "or", "xor")]
    lines += writer.pick(ways)
    lines[-1] = f"ROOT {lines[-1]}"
    text = "\n".join(f"  {line}" for line in lines)
    writer.computations.append(f"{name} {{\n{text}\n}}\n")
    return name


def reduce_by(writer: Writer, body: Body) -> None:
    """A reduction, over dimensions or windows, or a scatter, by a computation that may look like another."""
    most = 40 if writer.depth else 1500
    value = writer.pick(body.fitting(NUMBERS, ARRAYS, range(1, most + 1)))
    kind, dims, rank = value.kind, value.dims, len(value.dims)
    called = _combination(writer, kind)
    starts = ["0", "1", "3"] + (["-1"] if kind not in UNSIGNED else []) + (["nan", "-0.0"] if kind in FLOATS else [])
    start = body.scalar(kind, writer.pick(starts))
    axis = writer.number(rank)
    how = writer.pick(["reduce", "reduce", "window", "cumulate", "scatter"])
    if how == "reduce":
        axes = sorted(map(int, writer.random.permutation(rank)[: writer.random.integers(1, rank + 1)]))
        kept = tuple(size for k, size in enumerate(dims) if k not in axes)
        text = ",".join(map(str, axes))
        body.emit(kind, kept, f"reduce({value.name}, {start.name}), dimensions={{{text}}}, to_apply={called}")
    elif how in ("window", "cumulate"):
        size = min(3, dims[axis]) if how == "window" else dims[axis]
        ones = "x".join(str(size if k == axis else 1) for k in range(rank))
        low, high = writer.pick([(size - 1, 0), (0, size - 1)])
        padding = "x".join(f"{low}_{high}" if k == axis else "0_0" for k in range(rank))
        window = f"window={{size={ones} pad={padding}}}"
        body.emit(kind, dims, f"reduce-window({value.name}, {start.name}), {window}, to_apply={called}")
    else:
        count = writer.number(1, 6)
        rows = [int(row) for row in writer.random.integers(-1, dims[0] + 1, count)]
        places = body.scalar_list(rows)
        updates = body.aside(
            kind,
            (count, *dims[1:]),
            f"gather({value.name}, {places.name}), offset_dims={{{','.join(map(str, range(1, rank)))}}}, "
            f"collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, "
            f"slice_sizes={{{','.join(map(str, (1, *dims[1:])))}}}",
        )
        body.emit(
            kind,
            dims,
            f"scatter({value.name}, {places.name}, {updates.name}), "
            f"update_window_dims={{{','.join(map(str, range(1, rank)))}}}, inserted_window_dims={{0}}, "
            f"scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={called}",
        )


def sort_by(writer: Writer, body: Body) -> None:
    """Keys sorted by what is computed of them, alone or with what goes with them."""
    most = 30 if writer.depth else 300
    value = writer.pick(body.fitting(NUMBERS, ARRAYS, range(1, most + 1)))
    kind, is_float = value.kind, value.kind in FLOATS
    order = writer.pick([", type=TOTALORDER", ", type=TOTALORDER", ""]) if is_float else ""
    key, of = kind, writer.pick(["copy", "copy", "negate", "abs", "convert", "sign"])
    if kind in UNSIGNED and of in ("negate", "abs", "sign"):
        of = "not"
    if of == "convert":
        key = writer.pick(["f64", "f32"]) if is_float else "s64"
    direction = writer.pick(["LT", "GT"])
    pair = "x, y"
    if writer.chance(0.3):
        pair, direction = "y, x", {"LT": "GT", "GT": "LT"}[direction]
    name = f"computation_{writer.fresh()}"
    two = writer.chance(0.5)
    more = "  i = s32[] parameter(2)\n  j = s32[] parameter(3)\n" if two else ""
    writer.computations.append(
        f"{name} {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n{more}  x = {key}[] {of}(a)\n"
        f"  y = {key}[] {of}(b)\n  ROOT r = pred[] compare({pair}), direction={direction}{order}\n}}\n"
    )
    axis = writer.number(len(value.dims))
    how = f"dimensions={{{axis}}}, is_stable=true, to_apply={name}"
    if not two:
        body.emit(kind, value.dims, f"sort({value.name}), {how}", layout=value.layout)
        return
    places = body.emit("s32", value.dims, f"iota(), iota_dimension={axis}", layout=value.layout, keep=False)
    both = writer.fresh()
    body.line(f"{both} = ({value.shape}, {places.shape}) sort({value.name}, {places.name}), {how}")
    body.elements(both, [value, places])


def dot_as_asked(writer: Writer, body: Body) -> None:
    """A product that says how precise it is to be, or by which algorithm it is to be computed."""
    found = body.fitting("f32", MATRICES, range(1, 20000))
    value = writer.pick(found)
    partners = [v for v in found if v.dims[0] == value.dims[0]]
    other = writer.pick(partners)
    if value.dims[1] * other.dims[1] > 40000:
        return
    how = writer.pick(
        [
            "operand_precision={highest,highest}", "operand_precision={high,default}", "algorithm=dot_bf16_bf16_f32",
            "algorithm=dot_bf16_bf16_f32_x3", "algorithm=dot_tf32_tf32_f32", "algorithm=dot_f32_f32_f32",
            "algorithm=dot_tf32_tf32_f32_x3", "algorithm=dot_bf16_bf16_f32_x6",
        ]
    )  # fmt: skip
    body.emit(
        "f32",
        (value.dims[1], other.dims[1]),
        f"dot({value.name}, {other.name}), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}, {how}",
    )


def groups(writer: Writer, body: Body) -> None:
    """Rows in groups, each multiplied by a matrix of its own; how long the groups are may come from data."""
    value = writer.pick(body.fitting("f32 f64 bf16 s32", MATRICES, range(1, 6000)))
    rows, columns = value.dims
    matrices = body.emit(
        value.kind, (3, columns, 4), f"iota(), iota_dimension={writer.number(3)}", layout="", keep=False
    )
    sizes = body.emit("s32", (3,), f"constant({{{rows // 3}, {writer.pick([0, 1, rows])}, 1}})", layout="", keep=False)
    numbers = [v for v in body.values if (v.kind, v.dims) == ("s32", ())]
    if numbers and writer.chance(0.5):
        wide = spread_scalar(writer, body, Value("", "s32", (3,)))
        number = body.emit(
            "s32", (3,), f"broadcast({writer.pick(numbers).name}), dimensions={{}}", layout="", keep=False
        )
        least = body.emit("s32", (3,), f"minimum({number.name}, {wide.name})", layout="", keep=False)
        sizes = body.emit("s32", (3,), f"abs({least.name})", layout="", keep=False)
    body.emit(
        value.kind,
        (rows, 4),
        f"ragged-dot({value.name}, {matrices.name}, {sizes.name}), lhs_contracting_dims={{1}}, "
        "rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}",
    )
