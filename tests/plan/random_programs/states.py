"""Steps whose states are more than a list: tuples in tuples through loops and conditionals, loops that go on in loops."""

from __future__ import annotations

from tests.plan.random_programs.writing import ARRAYS, FLOATS, INTEGERS, NUMBERS, Body, Value, Writer, spread_scalar


def branches(writer: Writer, body: Body) -> None:
    """A conditional that takes and gives tuples in tuples; its branches may share a computation."""
    given = [writer.pick(body.values) for _ in range(3)]
    pair = f"({given[1].shape}, {given[2].shape})"
    state = f"({given[0].shape}, {pair})"
    likes = [given[0], given[1], given[0]]
    result = f"(({likes[0].shape}, {likes[1].shape}), {likes[2].shape})"
    names = []
    for _ in range(writer.number(2, 4)):
        inside = Body(writer, f"computation_{writer.fresh()}")
        inside.line(f"s = {state} parameter(0)")
        inside.line(f"p = {pair} get-tuple-element(s), index=1")
        taken = [*inside.elements("s", given[:1]), *inside.elements("p", given[1:])]
        writer.depth += 1
        writer.fill(inside, writer.number(0, 4))
        writer.depth -= 1
        parts = [inside.laid_out(_like(writer, inside, like), like.layout).name for like in likes]
        if writer.chance(0.2):
            parts = [taken[0].name, taken[1].name, taken[0].name]
        inside.line(f"q = ({likes[0].shape}, {likes[1].shape}) tuple({parts[0]}, {parts[1]})")
        writer.computations.append(inside.finish(f"tuple(q, {parts[2]})", result))
        names.append(inside.name)
    if writer.chance(0.3):
        names[-1] = names[0]
    inner, outer, found, both = (writer.fresh() for _ in range(4))
    body.line(f"{inner} = {pair} tuple({given[1].name}, {given[2].name})")
    body.line(f"{outer} = {state} tuple({given[0].name}, {inner})")
    index = _number(writer, body)
    if len(names) == 2 and writer.chance(0.5):
        limit = body.scalar("s32", writer.pick(["2", "20"]))
        index = body.aside("pred", (), f"compare({index.name}, {limit.name}), direction=LT")
        called = f"true_computation={names[0]}, false_computation={names[1]}"
    else:
        called = f"branch_computations={{{', '.join(names)}}}"
    operands = ", ".join([index.name, *[outer] * len(names)])
    body.line(f"{found} = {result} conditional({operands}), {called}")
    body.line(f"{both} = ({likes[0].shape}, {likes[1].shape}) get-tuple-element({found}), index=0")
    body.elements(both, likes[:2])
    body.emit(likes[2].kind, likes[2].dims, f"get-tuple-element({found}), index=1", layout=likes[2].layout)


def _like(writer: Writer, body: Body, like: Value) -> Value:
    """A value of this type and these dimensions, the last one for the most part."""
    same = [value for value in body.values if (value.kind, value.dims) == (like.kind, like.dims)]
    return same[-1] if writer.chance(0.7) else writer.pick(same)


def _number(writer: Writer, body: Body) -> Value:
    """A whole number, which only a run knows where one is at hand."""
    found = [value for value in body.values if (value.kind, value.dims) == ("s32", ())]
    if body.name == "main" and writer.trips is not None:
        found.append(writer.trips)
    return writer.pick(found) if found and writer.is_in_step else body.scalar("s32", writer.pick(["0", "1", "3"]))


def swaps(writer: Writer, body: Body) -> None:
    """A loop over a tuple in a tuple, whose elements change places, are computed again, stay, or become one another."""
    first = writer.pick(body.values)
    alike = [value for value in body.values if (value.kind, value.dims, value.layout) == _type(first)]
    carried = [first, writer.pick(alike), writer.pick(alike), writer.pick(body.values)]
    pair = f"({carried[0].shape}, {carried[1].shape})"
    rest = f"({pair}, {carried[2].shape})"
    state = f"({rest}, s32[], {carried[3].shape})"
    inside = Body(writer, f"body_{writer.fresh()}")
    for text in (
        f"s = {state} parameter(0)",
        f"r = {rest} get-tuple-element(s), index=0",
        f"p = {pair} get-tuple-element(r), index=0",
        "i = s32[] get-tuple-element(s), index=1",
    ):
        inside.line(text)
    taken = [
        *inside.elements("p", carried[:2]),
        inside.like(first, "get-tuple-element(r), index=1", layout=first.layout),
        inside.emit(carried[3].kind, carried[3].dims, "get-tuple-element(s), index=2", layout=carried[3].layout),
    ]
    writer.depth += 1
    writer.fill(inside, writer.number(0, 4))
    writer.depth -= 1
    names = [taken[int(k)].name for k in writer.random.permutation(3)]
    for place in range(3):
        if writer.chance(0.4):
            names[place] = inside.laid_out(_like(writer, inside, first), first.layout).name
    last = inside.laid_out(_like(writer, inside, carried[3]), carried[3].layout).name
    one = inside.scalar("s32", "1")
    inside.line(f"n = s32[] add(i, {one.name})")
    inside.line(f"q = {pair} tuple({names[0]}, {names[1]})")
    inside.line(f"t = {rest} tuple(q, {names[2]})")
    writer.computations.append(inside.finish(f"tuple(t, n, {last})", state))
    condition = f"condition_{writer.fresh()}"
    end = writer.pick("1 2 5 21".split())
    writer.computations.append(
        f"{condition} {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=1\n"
        f"  e = s32[] constant({end})\n  ROOT c = pred[] compare(i, e), direction=LT\n}}\n"
    )
    a, b, c, w, r, p = (writer.fresh() for _ in range(6))
    start = body.scalar("s32", "0") if writer.chance(0.7) else _number(writer, body)
    body.line(f"{a} = {pair} tuple({carried[0].name}, {carried[1].name})")
    body.line(f"{b} = {rest} tuple({a}, {carried[2].name})")
    body.line(f"{c} = {state} tuple({b}, {start.name}, {carried[3].name})")
    body.line(f"{w} = {state} while({c}), condition={condition}, body={inside.name}")
    body.line(f"{r} = {rest} get-tuple-element({w}), index=0")
    body.line(f"{p} = {pair} get-tuple-element({r}), index=0")
    body.elements(p, carried[:2])
    body.like(first, f"get-tuple-element({r}), index=1", layout=first.layout)
    body.emit(carried[3].kind, carried[3].dims, f"get-tuple-element({w}), index=2", layout=carried[3].layout)


def _type(value: Value) -> tuple[object, ...]:
    return value.kind, value.dims, value.layout


def nested_loops(writer: Writer, body: Body) -> None:
    """A loop in a loop, on one state: the inner one goes on counting where it stopped, up to a bound that the outer
    one moves."""
    value = writer.pick(body.values)
    state = f"(s32[], s32[], {value.shape}, {value.shape})"
    inner, outer = (f"body_{writer.fresh()}" for _ in range(2))
    for name in (inner, outer):
        inside = Body(writer, name)
        inside.line(f"s = {state} parameter(0)")
        if name == outer:
            inside.line(f"after = {state} while(s), condition=condition_{inner}, body={inner}")
        held = "s" if name == inner else "after"
        inside.line(f"i = s32[] get-tuple-element({held}), index=0")
        inside.line(f"m = s32[] get-tuple-element({held}), index=1")
        taken = [inside.like(value, f"get-tuple-element({held}), index={k}", layout=value.layout) for k in (2, 3)]
        writer.depth += 1
        writer.fill(inside, writer.number(1, 3))
        writer.depth -= 1
        parts = [inside.laid_out(_like(writer, inside, value), value.layout).name, taken[0].name]
        if writer.chance(0.5):
            parts[1] = taken[1].name
        step = inside.scalar("s32", "1" if name == inner else writer.pick(["2", "3"]))
        counts = ["n", "m"] if name == inner else ["i", "n"]
        inside.line(f"n = s32[] add({'i' if name == inner else 'm'}, {step.name})")
        writer.computations.append(inside.finish(f"tuple({', '.join([*counts, *parts])})", state))
        bound = "e = s32[] get-tuple-element(s), index=1" if name == inner else "e = s32[] constant(8)"
        writer.computations.append(
            f"condition_{name} {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), "
            f"index={0 if name == inner else 1}\n  {bound}\n  ROOT c = pred[] compare(i, e), direction=LT\n}}\n"
        )
    zero, two = body.scalar("s32", "0"), body.scalar("s32", writer.pick(["0", "2"]))
    partners = [other for other in body.values if _type(other) == _type(value)]
    start, end = writer.fresh(), writer.fresh()
    body.line(f"{start} = {state} tuple({zero.name}, {two.name}, {value.name}, {writer.pick(partners).name})")
    body.line(f"{end} = {state} while({start}), condition=condition_{outer}, body={outer}")
    for k in (2, 3):
        body.like(value, f"get-tuple-element({end}), index={k}", layout=value.layout)
    if writer.chance(0.5):
        body.emit("s32", (), f"get-tuple-element({end}), index={writer.pick([0, 1])}")


def rows_of_a_loop(writer: Writer, body: Body) -> None:
    """A scan as loops have it: a row is read by number, computed with, and written to a row of the results, in fusions
    or not, upwards or downwards, with indices that are wrapped, halved or of another type."""
    found = [value for value in body.values if len(value.dims) > 1 and 0 < value.dims[0] <= 200]
    found = [value for value in found if value.kind in (*FLOATS, *INTEGERS)]
    value = writer.pick(found)
    kind, dims = value.kind, value.dims
    row, shape, size = (1, *dims[1:]), value.shape, dims[0]
    like = Value("", kind, row, value.layout)
    state = f"(s32[], {like.shape}, {shape}, {shape})"
    index = writer.pick(
        [
            "  r = s32[] copy(i)\n",
            f"  e = s32[] constant({size - 1})\n  r = s32[] subtract(e, i)\n",
            f"  z = s32[] constant(0)\n  n = s32[] constant({size})\n  l = pred[] compare(i, z), direction=LT\n"
            "  u = s32[] add(i, n)\n  r = s32[] select(l, u, i)\n",
            "  t = s32[] constant(2)\n  r = s32[] divide(i, t)\n",
            "  t = s64[] convert(i)\n  r = s32[] convert(t)\n",
            "  t = s32[] constant(3)\n  r = s32[] multiply(i, t)\n",
        ]
    )
    sizes = ",".join(map(str, row))
    starts = ", ".join(["r", *["o"] * (len(dims) - 1)])
    opcode = writer.pick(["add", "multiply", "maximum"])
    read = f"{index}  o = s32[] constant(0)\n  x = {like.shape} dynamic-slice(a, {starts}), dynamic_slice_sizes={{{sizes}}}\n"
    write = f"{index}  o = s32[] constant(0)\n  d = {shape} dynamic-update-slice(b, v, {starts})\n"
    name = f"computation_{writer.fresh()}"
    head = (
        f"body_{name} {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        f"  c = {like.shape} get-tuple-element(s), index=1\n  a = {shape} get-tuple-element(s), index=2\n"
        f"  b = {shape} get-tuple-element(s), index=3\n"
    )
    if writer.chance(0.5):
        writer.computations.append(
            f"read_{name} {{\n  a = {shape} parameter(0)\n  i = s32[] parameter(1)\n  c = {like.shape} parameter(2)\n"
            f"{read}  ROOT v = {like.shape} {opcode}(x, c)\n}}\n"
        )
        writer.computations.append(
            f"write_{name} {{\n  b = {shape} parameter(0)\n  i = s32[] parameter(1)\n  v = {like.shape} parameter(2)\n"
            f"{write}  ROOT w = {shape} {'copy(d)' if writer.chance(0.3) else write.rpartition('= ')[2].partition(' ')[2].strip()}\n}}\n"
        )
        middle = (
            f"  v = {like.shape} fusion(a, i, c), kind=kLoop, calls=read_{name}\n"
            f"  d = {shape} fusion(b, i, v), kind=kLoop, calls=write_{name}\n"
        )
    else:
        both = write.partition("  d = ")[2]
        middle = f"{read}  v = {like.shape} {opcode}(x, c)\n  d = {both}"
    kept = writer.pick("v v c x2".split())
    last = f"  x2 = {like.shape} negate(v)\n" if kept == "x2" and kind not in ("u4", "u8", "u32") else ""
    kept = kept if kept != "x2" or last else "v"
    carried = writer.pick(["a", "a", "d"])
    one = "  one = s32[] constant(1)\n  next = s32[] add(i, one)\n"
    writer.computations.append(f"{head}{middle}{last}{one}  ROOT tt = {state} tuple(next, {kept}, {carried}, d)\n}}\n")
    end = min(size + writer.pick([-1, 0, 0, 2]), 40)
    writer.computations.append(
        f"condition_{name} {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        f"  e = s32[] constant({end})\n  ROOT l = pred[] compare(i, e), direction=LT\n}}\n"
    )
    first = body.emit(
        kind,
        row,
        f"slice({value.name}), slice={{{', '.join(f'[0:{n}]' for n in row)}}}",
        layout=value.layout,
        keep=False,
    )
    target = value if writer.chance(0.4) else spread_scalar(writer, body, value)
    target = body.laid_out(target, value.layout)
    zero = body.scalar("s32", writer.pick(["0", "0", "-2"]))
    names = [writer.fresh(), writer.fresh()]
    body.line(f"{names[0]} = {state} tuple({zero.name}, {first.name}, {value.name}, {target.name})")
    body.line(f"{names[1]} = {state} while({names[0]}), condition=condition_{name}, body=body_{name}")
    for k, part in ((1, like), (2, value), (3, value)):
        body.emit(kind, part.dims, f"get-tuple-element({names[1]}), index={k}", layout=value.layout)


def mapped(writer: Writer, body: Body) -> None:
    """A computation of several instructions for every element, with numbers of its own."""
    # An audit asks the computation of each element by itself.
    most = 40 if writer.depth else 1000
    found = body.fitting(NUMBERS, ARRAYS, range(most + 1))
    value = writer.pick(found)
    other = writer.pick([v for v in found if v.dims == value.dims])
    kind, name = value.kind, f"computation_{writer.fresh()}"
    first, second = (writer.pick("add multiply subtract maximum divide".split()) for _ in range(2))
    result = writer.pick([kind, "f32", "s32"])
    direction = writer.pick(["LT", "GE"])
    writer.computations.append(
        f"{name} {{\n  a = {kind}[] parameter(0)\n  b = {other.kind}[] parameter(1)\n  c = {kind}[] convert(b)\n"
        f"  t = {kind}[] constant(2)\n  d = {kind}[] {first}(a, c)\n  e = {kind}[] {second}(d, t)\n"
        f"  p = pred[] compare(e, a), direction={direction}\n  f = {kind}[] select(p, e, c)\n"
        f"  ROOT r = {result}[] convert(f)\n}}\n"
    )
    places = ",".join(map(str, range(len(value.dims))))
    body.emit(result, value.dims, f"map({value.name}, {other.name}), dimensions={{{places}}}, to_apply={name}")


def reduce_many(writer: Writer, body: Body) -> None:
    """Three arrays of different types reduced at once, along some axes; the numbers they start from are computed."""
    # An audit asks the computation of each pair by itself.
    most = 40 if writer.depth else 400
    found = body.fitting(NUMBERS, ARRAYS, range(1, most + 1))
    value = writer.pick(found)
    alike = [other for other in found if other.dims == value.dims]
    three = [value, writer.pick(alike), writer.pick(alike)]
    opcodes = [writer.pick("add maximum minimum multiply".split()) for _ in three]
    name = f"computation_{writer.fresh()}"
    lines = [f"  a{k} = {v.kind}[] parameter({k})" for k, v in enumerate(three)]
    lines += [f"  b{k} = {v.kind}[] parameter({k + 3})" for k, v in enumerate(three)]
    lines += [
        f"  c{k} = {v.kind}[] {opcode}(a{k}, b{k})" for k, (v, opcode) in enumerate(zip(three, opcodes, strict=True))
    ]
    if writer.chance(0.3):
        # The first decides about the second: the order counts, and no kernel for whole arrays stands for it.
        kind = three[1].kind
        lines.append("  p = pred[] compare(a0, b0), direction=LT")
        lines.append(f"  d1 = {kind}[] select(p, a1, b1)")
        lines = [line.replace(" c1 ", " x1 ") if line.startswith("  c1 ") else line for line in lines]
        lines.append(f"  c1 = {kind}[] copy(d1)")
    scalars = ", ".join(f"{v.kind}[]" for v in three)
    text = "\n".join(lines)
    writer.computations.append(f"{name} {{\n{text}\n  ROOT t = ({scalars}) tuple(c0, c1, c2)\n}}\n")
    rank = len(value.dims)
    axes = sorted(map(int, writer.random.permutation(rank)[: writer.random.integers(1, rank + 1)]))
    kept = tuple(size for axis, size in enumerate(value.dims) if axis not in axes)
    starts = []
    for v in three:
        one = body.scalar(v.kind, writer.pick(["0", "1", "2"]))
        known = [other for other in body.values if (other.kind, other.dims) == (v.kind, ())]
        starts.append(writer.pick([one, *known]) if writer.chance(0.5) else one)
    likes = [Value("", v.kind, kept, writer.layout(kept)) for v in three]
    result = writer.fresh()
    operands = ", ".join(v.name for v in (*three, *starts))
    body.line(
        f"{result} = ({', '.join(like.shape for like in likes)}) reduce({operands}), "
        f"dimensions={{{','.join(map(str, axes))}}}, to_apply={name}"
    )
    body.elements(result, likes)


def sort_keys(writer: Writer, body: Body) -> None:
    """Arrays of different types sorted together by two of them, one after the other."""
    most = 30 if writer.depth else 300
    found = body.fitting(NUMBERS, ARRAYS, range(1, most + 1))
    value = writer.pick(found)
    layout = value.layout
    three = [value, *(writer.pick([v for v in found if v.dims == value.dims]) for _ in range(2))]
    three = [body.laid_out(v, layout) for v in three]
    name = f"computation_{writer.fresh()}"
    directions = [writer.pick(["LT", "GT"]) for _ in range(2)]
    orders = [", type=TOTALORDER" if v.kind in FLOATS else "" for v in three]
    text = "\n".join(
        f"  {side}{k} = {v.kind}[] parameter({2 * k + s})" for k, v in enumerate(three) for s, side in enumerate("ab")
    )
    writer.computations.append(
        f"{name} {{\n{text}\n  l = pred[] compare(a0, b0), direction={directions[0]}{orders[0]}\n"
        f"  e = pred[] compare(a0, b0), direction=EQ{orders[0]}\n"
        f"  m = pred[] compare(a1, b1), direction={directions[1]}{orders[1]}\n"
        "  "
        + writer.pick(["n = pred[] and(e, m)\n  ROOT r = pred[] or(l, n)", "ROOT r = pred[] select(e, m, l)"])
        + "\n}\n"
    )
    axis = writer.number(len(value.dims))
    result = writer.fresh()
    body.line(
        f"{result} = ({', '.join(v.shape for v in three)}) sort({', '.join(v.name for v in three)}), "
        f"dimensions={{{axis}}}, is_stable=true, to_apply={name}"
    )
    body.elements(result, three)


def random_bits(writer: Writer, body: Body) -> None:
    """Bits drawn twice from a state that is carried on, as numbers and as indices."""
    numbers = writer.pick(["1, 2", "18446744073709551615, 0"])
    state = body.emit("u64", (2,), f"constant({{{numbers}}})", layout="", keep=False)
    algorithm = writer.pick(["rng_three_fry", "rng_three_fry", "rng_philox"])
    if algorithm == "rng_philox":
        state = body.emit("u64", (3,), "constant({7, 18446744073709551615, 5})", layout="", keep=False)
    for _ in range(2):
        like = Value("", writer.pick(["u32", "u32", "u8"]), writer.pick([(), (5,), (3, 4), (70, 33)]))
        both = writer.fresh()
        body.line(f"{both} = ({state.shape}, {like.shape}) rng-bit-generator({state.name}), algorithm={algorithm}")
        state = body.emit("u64", state.dims, f"get-tuple-element({both}), index=0", layout="", keep=False)
        body.like(like, f"get-tuple-element({both}), index=1", layout="")
