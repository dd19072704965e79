"""Steps that compute: elementwise instructions, sums, products, convolutions, reducers of several instructions."""

from math import prod

from tests.plan.random_programs.writing import (
    ARRAYS,
    FLOATS,
    INTEGERS,
    LARGER,
    SHAPES,
    UNSIGNED,
    Body,
    Writer,
    shape_text,
    spread_scalar,
)

_UNARY = "negate abs exponential sine cosine tanh logistic sqrt floor sign log-plus-one".split()
_BINARY = "add subtract multiply divide maximum minimum power atan2".split()
_REPEATED = {*_UNARY, *_BINARY, "transpose", "reshape", "slice", "broadcast", "reverse", "pad", "dynamic-slice", "dot"}
_INTEGER_BINARY = (
    "add subtract multiply maximum minimum and or xor shift-left divide remainder shift-right-logical "
    "shift-right-arithmetic"
).split()  # fmt: skip
_BITWISE = ("negate", "not", "popcnt", "count-leading-zeros")


def again(writer: Writer, body: Body) -> None:
    """What an earlier instruction computes, once more."""
    found = [value for value in body.values if body.calls[value.name].split("(")[0] in _REPEATED]
    if found:
        value = writer.pick(found)
        once_more = body.like(value, body.calls[value.name])
        body.like(value, f"add({value.name}, {once_more.name})")


def elementwise(writer: Writer, body: Body) -> None:
    value = writer.pick(body.values)
    if value.kind == "pred":
        body.emit("pred", value.dims, f"not({value.name})")
        return
    partners = [other for other in body.values if (other.kind, other.dims) == (value.kind, value.dims)]
    if value.kind in INTEGERS:
        if writer.chance(0.2):
            names = _BITWISE if value.kind in UNSIGNED else (*_BITWISE, "abs", "sign")
            body.like(value, f"{writer.pick(names)}({value.name})")
            return
        opcode = writer.pick(_INTEGER_BINARY)
        body.like(value, f"{opcode}({value.name}, {writer.pick(partners).name})")
    elif writer.chance(0.4):
        names = ("negate", "exponential", "sine", "tanh", "sqrt") if value.kind == "c64" else _UNARY
        body.like(value, f"{writer.pick(names)}({value.name})")
    else:
        names = ("add", "subtract", "multiply", "divide") if value.kind == "c64" else _BINARY
        other = writer.pick(partners) if writer.chance(0.6) else spread_scalar(writer, body, value)
        pair = [value.name, other.name]
        if writer.chance(0.5):
            pair.reverse()
        body.like(value, f"{writer.pick(names)}({', '.join(pair)})")


def turned_sum(writer: Writer, body: Body) -> None:
    """A transposed matrix, something computed of it, and its sum along an axis: the order in memory is at stake."""
    value = writer.pick(body.fitting("f32 f64 bf16", LARGER))
    order = list(range(len(value.dims)))[::-1]
    dims = value.dims[::-1]
    turned = body.emit(value.kind, dims, f"transpose({value.name}), dimensions={{{','.join(map(str, order))}}}")
    for opcode in [writer.pick(["sine", "tanh", "negate"]) for _ in range(writer.number(0, 3))]:
        turned = body.emit(value.kind, dims, f"{opcode}({turned.name})")
    if writer.chance(0.3) and dims[0] == dims[-1] and len(dims) == 2 and value.kind != "bf16":
        body.emit(value.kind, dims, f"dot({turned.name}, {value.name}), lhs_contracting_dims={{1}}, "
                  "rhs_contracting_dims={0}")  # fmt: skip
    axis = writer.number(len(dims))
    zero = body.scalar(value.kind, "0")
    kept = tuple(size for place, size in enumerate(dims) if place != axis)
    reducer = writer.reducer("add", value.kind)
    body.emit(value.kind, kept, f"reduce({turned.name}, {zero.name}), dimensions={{{axis}}}, to_apply={reducer}")


def reduce(writer: Writer, body: Body) -> None:
    value = writer.pick([value for value in body.values if value.dims and value.kind not in ("pred", "c64")])
    rank = len(value.dims)
    axes = sorted(map(int, writer.random.permutation(rank)[: writer.random.integers(1, rank + 1)]))
    opcode = writer.pick("add add add maximum multiply".split())
    start = body.scalar(
        value.kind, {"add": "0", "maximum": "-5" if value.kind not in UNSIGNED else "0", "multiply": "1"}[opcode]
    )
    kept = tuple(size for axis, size in enumerate(value.dims) if axis not in axes)
    text = ",".join(map(str, axes))
    reducer = writer.reducer(opcode, value.kind)
    total = body.emit(
        value.kind, kept, f"reduce({value.name}, {start.name}), dimensions={{{text}}}, to_apply={reducer}"
    )
    if writer.chance(0.5):
        axes_kept = ",".join(str(axis) for axis in range(rank) if axis not in axes)
        whole = body.like(value, f"broadcast({total.name}), dimensions={{{axes_kept}}}")
        body.like(value, f"subtract({value.name}, {whole.name})")


def dot(writer: Writer, body: Body) -> None:
    lhs = writer.pick(body.fitting("f32 f64 bf16 c64", ARRAYS, range(30000)))
    axis = writer.number(len(lhs.dims))
    partners = [
        (other, place)
        for other in body.values
        if other.kind == lhs.kind
        for place, size in enumerate(other.dims)
        if size == lhs.dims[axis] and prod(other.dims) * prod(lhs.dims) // max(size, 1) ** 2 < 50000
    ]
    if not partners:
        return
    rhs, place = writer.pick(partners)
    free = [size for k, size in enumerate(lhs.dims) if k != axis] + [
        size for k, size in enumerate(rhs.dims) if k != place
    ]
    body.emit(
        lhs.kind,
        tuple(free),
        f"dot({lhs.name}, {rhs.name}), lhs_contracting_dims={{{axis}}}, rhs_contracting_dims={{{place}}}",
    )


def cumulate(writer: Writer, body: Body) -> None:
    """Sums over windows: all that came before, along one dimension."""
    value = writer.pick(body.fitting("f32 bf16 s32", ARRAYS, range(20000)))
    axis = writer.number(len(value.dims))
    size = value.dims[axis]
    ones = "x".join(str(size if k == axis else 1) for k in range(len(value.dims)))
    padding = "x".join(f"{size - 1}_0" if k == axis else "0_0" for k in range(len(value.dims)))
    zero = body.scalar(value.kind, "0")
    window = f"window={{size={ones} pad={padding}}}"
    reducer = writer.reducer("add", value.kind)
    body.like(value, f"reduce-window({value.name}, {zero.name}), {window}, to_apply={reducer}")


def by_rows(writer: Writer, body: Body) -> None:
    """A softmax, which is one region where it is large."""
    value = writer.pick(body.fitting("f32 bf16", LARGER))
    last = len(value.dims) - 1
    kept = ",".join(map(str, range(last)))
    low, zero = body.scalar(value.kind, "-inf"), body.scalar(value.kind, "0")
    dims = value.dims[:-1]
    most = body.emit(
        value.kind,
        dims,
        f"reduce({value.name}, {low.name}), dimensions={{{last}}}, to_apply={writer.reducer('maximum', value.kind)}",
    )
    wide = body.like(value, f"broadcast({most.name}), dimensions={{{kept}}}")
    below = body.like(value, f"subtract({value.name}, {wide.name})")
    weights = body.like(value, f"exponential({below.name})")
    total = body.emit(
        value.kind,
        dims,
        f"reduce({weights.name}, {zero.name}), dimensions={{{last}}}, to_apply={writer.reducer('add', value.kind)}",
    )
    spread = body.like(value, f"broadcast({total.name}), dimensions={{{kept}}}")
    body.like(value, f"divide({weights.name}, {spread.name})")


def convolve(writer: Writer, body: Body) -> None:
    """A matrix seen as one image of one feature, under a window of 3 × 3 that comes from it."""
    found = [value for value in body.of_kinds("f32 bf16") if len(value.dims) == 2 and min(value.dims) >= 3]
    if found:
        value = writer.pick(found)
        rows, columns = value.dims
        image = body.aside(value.kind, (1, rows, columns, 1), f"reshape({value.name})")
        corner = body.aside(value.kind, (3, 3), f"slice({value.name}), slice={{[0:3], [0:3]}}")
        kernel = body.aside(value.kind, (3, 3, 1, 1), f"reshape({corner.name})")
        seen = body.aside(
            value.kind,
            (1, rows, columns, 1),
            f"convolution({image.name}, {kernel.name}), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_01io->b01f",
        )
        body.like(value, f"reshape({seen.name})")


def draw(writer: Writer, body: Body) -> None:
    if writer.devices == 1:
        low, high = body.scalar("f32", "0"), body.scalar("f32", "1")
        dims = writer.pick(SHAPES)
        body.emit("f32", dims, f"rng({low.name}, {high.name}), distribution=rng_uniform")


def mixed(writer: Writer, body: Body) -> None:
    """Floats of two widths that meet, as they do in optimized modules."""
    value = writer.pick(body.of_kinds("f32 f64 f16 bf16") or body.values)
    others = [kind for kind in ("f32", "bf16", "f16") if kind != value.kind]
    if value.kind not in FLOATS:
        return
    kind = writer.pick(others)
    name, shape, to = value.name, value.shape, shape_text(kind, value.dims)
    how = writer.pick("operand result move tuple call call".split())
    if how == "operand":
        other = body.aside(kind, value.dims, f"convert({name})")
        body.emit(writer.pick([kind, value.kind]), value.dims, f"add({name}, {other.name})")
    elif how == "result":
        body.emit(kind, value.dims, f"negate({name})")
    elif how == "move":
        body.emit(kind, (1, *value.dims), f"reshape({name})")
    elif how == "tuple":
        both = writer.fresh()
        body.line(f"{both} = ({to}, {shape}) tuple({name}, {name})")
        body.like(value, f"get-tuple-element({both}), index=0", layout="")
    else:
        parameter, root = writer.pick([(shape, to), (to, shape), (to, to)])
        called, result = writer.fresh(), writer.pick([kind, value.kind])
        writer.computations.append(
            f"computation_{called} {{\n  a = {parameter} parameter(0)\n  ROOT b = {root} add(a, a)\n}}\n"
        )
        body.emit(result, value.dims, f"call({name}), to_apply=computation_{called}", layout="")


def element_by_element(writer: Writer, body: Body) -> None:
    """A called computation that no vectorised kernel stands for, with a loop that some elements leave sooner."""
    found = body.fitting("f32 bf16 s32", ARRAYS, range(65))
    value = writer.pick(found)
    called = _halving(writer, value.kind)
    if writer.chance(0.5):
        partners = [other for other in found if (other.kind, other.dims) == (value.kind, value.dims)]
        places = ",".join(map(str, range(len(value.dims))))
        operands = f"{value.name}, {writer.pick(partners).name}"
        body.like(value, f"map({operands}), dimensions={{{places}}}, to_apply={called}")
        return
    axis = writer.number(len(value.dims))
    kept = tuple(size for place, size in enumerate(value.dims) if place != axis)
    first = body.scalar(value.kind, writer.pick(["0", "3"]))
    body.emit(value.kind, kept, f"reduce({value.name}, {first.name}), dimensions={{{axis}}}, to_apply={called}")


def _halving(writer: Writer, kind: str) -> str:
    """A computation that halves one number as long as it is above 1, and says how often, by another's sign."""
    name = f"computation_{writer.fresh()}"
    state = f"({kind}[], s32[], {kind}[3])"
    few = writer.pick(["2", "5"])
    writer.computations.append(
        f"body_{name} {{\n  state = {state} parameter(0)\n  x = {kind}[] get-tuple-element(state), index=0\n"
        f"  n = s32[] get-tuple-element(state), index=1\n  all = {kind}[3] get-tuple-element(state), index=2\n"
        f"  two = {kind}[] constant(2)\n  y = {kind}[] divide(x, two)\n  one = s32[] constant(1)\n"
        f"  m = s32[] add(n, one)\n  wide = {kind}[3] broadcast(x), dimensions={{}}\n"
        f"  more = {kind}[3] subtract(all, wide)\n  ROOT t = {state} tuple(y, m, more)\n}}\n"
    )
    writer.computations.append(
        f"condition_{name} {{\n  state = {state} parameter(0)\n  x = {kind}[] get-tuple-element(state), index=0\n"
        f"  n = s32[] get-tuple-element(state), index=1\n  one = {kind}[] constant(1)\n  size = {kind}[] abs(x)\n"
        f"  big = pred[] compare(size, one), direction=GT\n  few = s32[] constant({few})\n"
        f"  early = pred[] compare(n, few), direction=LT\n  ROOT c = pred[] and(big, early)\n}}\n"
    )
    writer.computations.append(
        f"plus_{name} {{\n  q = {kind}[] parameter(0)\n  ROOT r = {kind}[] add(q, q)\n}}\n"
        f"\nsame_{name} {{\n  ROOT q = {kind}[] parameter(0)\n}}\n"
    )
    writer.computations.append(
        f"{name} {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n  zero = s32[] constant(0)\n"
        f"  none = {kind}[3] broadcast(b), dimensions={{}}\n  first = {state} tuple(a, zero, none)\n"
        f"  last = {state} while(first), condition=condition_{name}, body=body_{name}\n"
        f"  n = s32[] get-tuple-element(last), index=1\n  all = {kind}[3] get-tuple-element(last), index=2\n"
        f"  part = {kind}[1] slice(all), slice={{[1:2]}}\n  one = {kind}[] reshape(part)\n"
        f"  odd = {kind}[] convert(n)\n  less = pred[] compare(a, b), direction=LT\n"
        f"  some = {kind}[] conditional(less, one, odd), true_computation=plus_{name}, "
        f"false_computation=same_{name}\n  ROOT r = {kind}[] add(some, b)\n}}\n"
    )
    return name
