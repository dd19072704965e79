"""Steps about single numbers: ends of ranges, chains of conversions, complex functions, rarer functions, indices."""

from math import prod

from tests.plan.random_programs.writing import (
    ANY,
    FLOATS,
    INTEGERS,
    MATRICES,
    NUMBERS,
    STORAGE,
    UNSIGNED,
    Body,
    Value,
    Writer,
)

_MORE_KINDS = "f8e4m3 f8e3m4 f8e4m3b11fnuz f8e4m3fnuz f8e5m2fnuz f8e8m0fnu f4e2m1fn s2 u2 s16 u16 u64".split()  # fmt: skip
_FLOAT_EDGES = "0 -0.0 1 -1 0.5 2 3 -2.5 inf -inf nan".split()
_TINIEST = {"f32": "1e-45", "f64": "5e-324", "f16": "6e-08", "bf16": "1e-40", "f8e5m2": "1.52587890625e-05"}
_LARGEST = {"f32": "3.4028235e+38", "f64": "1.7976931348623157e+308", "f16": "65504", "f8e5m2": "57344"}
_FUNCTIONS = (
    "acos acosh asin asinh atanh cbrt cosh erf exponential-minus-one log rsqrt sinh tan log-plus-one "
    "round-nearest-afz"
).split()  # fmt: skip
_MULHI = ("s32", "u32", "s8", "u8")
_COMPLEX = (
    "negate exponential log sqrt tanh sine cosine rsqrt sign log-plus-one exponential-minus-one logistic tan"
).split()  # fmt: skip


def _edge_text(writer: Writer, kind: str) -> str:
    if kind in FLOATS:
        more = [table[kind] for table in (_TINIEST, _LARGEST) if kind in table]
        choices = [text for text in _FLOAT_EDGES if kind != "f8e4m3fn" or "inf" not in text]
        return str(writer.pick([*choices, *more]))
    bits = int(kind[1:])
    if kind in UNSIGNED:
        return str(writer.pick([0, 1, 2, 3, bits, (1 << bits - 1), (1 << bits) - 1]) % (1 << bits))
    high = (1 << bits - 1) - 1
    return str(max(-high - 1, min(high, writer.pick([-high - 1, -1, 0, 1, 2, high, bits - 1, bits, -bits]))))


def _edges(writer: Writer, body: Body, like: Value) -> Value:
    """Ends of a type's range in the shape of a value: one number in all places, or several along an axis."""
    if not like.dims:
        return body.scalar(like.kind, _edge_text(writer, like.kind))
    axis = writer.number(len(like.dims))
    if writer.chance(0.5) or not 0 < like.dims[axis] <= 64:
        number = body.scalar(like.kind, _edge_text(writer, like.kind))
        return body.like(like, f"broadcast({number.name}), dimensions={{}}", keep=False)
    row = ", ".join(_edge_text(writer, like.kind) for _ in range(like.dims[axis]))
    numbers = body.aside(like.kind, (like.dims[axis],), f"constant({{{row}}})")
    return body.like(like, f"broadcast({numbers.name}), dimensions={{{axis}}}", keep=False)


def edge(writer: Writer, body: Body) -> None:
    """A function of two numbers, one of them at an end of its range or special, as a constant or a broadcast one."""
    value = writer.pick(body.fitting(NUMBERS))
    other = _edges(writer, body, value)
    names = "add subtract multiply divide maximum minimum power remainder clamp compare".split()
    if value.kind in INTEGERS:
        names += "shift-left shift-right-logical shift-right-arithmetic and or xor".split()
    else:
        names += ["atan2"]
    opcode = writer.pick(names)
    pair = [value.name, other.name]
    if writer.chance(0.5):
        pair.reverse()
    if opcode == "clamp":
        ends = [_edges(writer, body, value).name, _edges(writer, body, value).name]
        body.like(value, f"clamp({ends[0]}, {value.name}, {ends[1]})")
    elif opcode == "compare":
        chosen = body.emit(
            "pred", value.dims, f"compare({', '.join(pair)}), direction={writer.pick('LT LE GT EQ NE'.split())}"
        )
        body.like(value, f"select({chosen.name}, {', '.join(pair)})")
    else:
        body.like(value, f"{opcode}({', '.join(pair)})")


def convert_chain(writer: Writer, body: Body) -> None:
    """From one type to another to another, and at times something computed in between."""
    value = writer.pick([value for value in body.values if value.kind != "c64"])
    kinds = [writer.pick([*STORAGE, *_MORE_KINDS]) for _ in range(writer.number(1, 4))]
    for kind in (*(kind for kind in kinds if kind != "c64"), writer.pick(["f32", *FLOATS, *INTEGERS])):
        value = body.aside(kind, value.dims, f"convert({value.name})")
        if writer.chance(0.3) and kind not in ("pred", "f8e8m0fnu"):
            opcode = writer.pick(["add", "multiply"])
            value = body.aside(kind, value.dims, f"{opcode}({value.name}, {value.name})")
    body.like(value, f"copy({value.name})")


def complex_chain(writer: Writer, body: Body) -> None:
    """Functions of complex numbers one after the other, with their conjugates."""
    value = writer.pick(body.fitting("c64 f32", sizes=range(20000)))
    if value.kind == "f32":
        value = body.aside("c64", value.dims, f"convert({value.name})")
    first = value
    for _ in range(writer.number(2, 6)):
        how = writer.pick("unary unary binary conjugate".split())
        if how == "unary":
            value = body.aside("c64", value.dims, f"{writer.pick(_COMPLEX)}({value.name})")
        elif how == "binary":
            opcode = writer.pick("add subtract multiply divide power multiply".split())
            value = body.aside("c64", value.dims, f"{opcode}({value.name}, {first.name})")
        else:
            parts = [body.aside("f32", value.dims, f"{part}({value.name})") for part in ("real", "imag")]
            turned = body.aside("f32", value.dims, f"negate({parts[1].name})")
            value = body.aside("c64", value.dims, f"complex({parts[0].name}, {turned.name})")
    body.emit("c64", value.dims, f"copy({value.name})")


def rarer_function(writer: Writer, body: Body) -> None:
    """Functions that few programs have; the upper half of a product of integers."""
    found = body.fitting(NUMBERS)
    value = writer.pick(found)
    if value.kind in FLOATS:
        body.like(value, f"{writer.pick(_FUNCTIONS)}({value.name})")
    elif value.kind in _MULHI:
        partners = [other for other in found if (other.kind, other.dims) == (value.kind, value.dims)]
        body.like(value, f"mulhi({value.name}, {writer.pick(partners).name})")


def indices(writer: Writer, body: Body) -> None:
    """Rows that are read and written at places computed from a count or from data: clamped, wrapped or out of bounds."""
    value = writer.pick(body.fitting(ANY, MATRICES, range(1, 20000)))
    rows, columns = value.dims
    count = writer.number(1, 9)
    kind = writer.pick("s32 s32 u32 s64 u8".split())
    where = body.aside(kind, (count, 1), "iota(), iota_dimension=0")
    if writer.chance(0.4):
        sources = [other for other in body.values if prod(other.dims) >= count and other.kind in (*FLOATS, *INTEGERS)]
        if sources:
            source = writer.pick(sources)
            flat = body.aside(source.kind, (prod(source.dims),), f"reshape({source.name})")
            part = body.aside(source.kind, (count,), f"slice({flat.name}), slice={{[0:{count}]}}")
            whole = body.aside(kind, (count,), f"convert({part.name})")
            where = body.aside(kind, (count, 1), f"reshape({whole.name})")
    for _ in range(writer.number(0, 3)):
        number = body.scalar(kind, str(writer.pick([1, 2, 3, rows % 200, 100])))
        wide = body.aside(kind, (count, 1), f"broadcast({number.name}), dimensions={{}}")
        pair = [where.name, wide.name]
        opcode = writer.pick("add subtract multiply remainder minimum divide".split())
        if opcode == "subtract":
            pair.reverse()
        where = body.aside(kind, (count, 1), f"{opcode}({', '.join(pair)})")
    read = body.emit(
        value.kind,
        (count, columns),
        f"gather({value.name}, {where.name}), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
        f"index_vector_dim=1, slice_sizes={{1,{columns}}}",
    )
    if value.kind in ("pred", "c64") or writer.chance(0.3):
        return
    reducer = writer.reducer(writer.pick(["add", "maximum", "minimum"]), value.kind)
    unique = "" if writer.chance(0.8) else ", indices_are_sorted=false"
    body.like(
        value,
        f"scatter({value.name}, {where.name}, {read.name}), update_window_dims={{1}}, inserted_window_dims={{0}}, "
        f"scatter_dims_to_operand_dims={{0}}, index_vector_dim=1{unique}, to_apply={reducer}",
    )


def long_chain(writer: Writer, body: Body) -> None:
    """Many elementwise instructions on one shape, through narrow types, with rows and columns spread over it."""
    value = writer.pick(
        [value for value in body.values if len(value.dims) > 1 and value.kind in (*FLOATS, *INTEGERS, "pred")]
    )
    dims = value.dims
    alive = [value]
    for _ in range(writer.number(4, 12)):
        value = alive[-1] if writer.chance(0.6) else writer.pick(alive)
        how = writer.pick("convert convert binary binary row unary select edge".split())
        if value.kind == "pred" or how == "convert":
            kind = writer.pick([*FLOATS, *INTEGERS, "s4", "u4", "f8e5m2"])
            alive.append(body.aside(kind, dims, f"convert({value.name})"))
        elif how == "unary":
            names = ("negate", "abs", "sign") if value.kind not in UNSIGNED else ("not", "popcnt")
            alive.append(body.aside(value.kind, dims, f"{writer.pick(names)}({value.name})"))
        elif how == "row":
            axis = writer.number(len(dims))
            line = body.aside(value.kind, (dims[axis],), "iota(), iota_dimension=0")
            wide = body.aside(value.kind, dims, f"broadcast({line.name}), dimensions={{{axis}}}")
            alive.append(body.aside(value.kind, dims, f"add({value.name}, {wide.name})"))
        else:
            same = [other for other in alive if other.kind == value.kind]
            other = _edges(writer, body, value) if how == "edge" else writer.pick(same)
            if how == "select":
                direction = writer.pick(["LT", "EQ", "GE"])
                chosen = body.aside(
                    "pred", dims, f"compare({value.name}, {writer.pick(same).name}), direction={direction}"
                )
                alive.append(chosen)
                call = f"select({chosen.name}, {value.name}, {other.name})"
            else:
                call = f"{writer.pick('add subtract multiply maximum divide'.split())}({value.name}, {other.name})"
            alive.append(body.aside(value.kind, dims, call))
    last = alive[-1]
    body.emit(last.kind, dims, f"copy({last.name})")
    if last.kind != "pred":
        zero = body.scalar(last.kind, "0")
        reducer = writer.reducer(writer.pick(["add", "maximum"]), last.kind)
        rest = dims[:-1]
        body.emit(
            last.kind, rest, f"reduce({last.name}, {zero.name}), dimensions={{{len(dims) - 1}}}, to_apply={reducer}"
        )
