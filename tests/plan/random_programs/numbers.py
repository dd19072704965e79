"""Steps about single numbers: ends of ranges, chains of conversions, complex functions, rarer functions, indices."""

from __future__ import annotations

from math import prod

from tests.plan.random_programs.writing import FLOATS, INTEGERS, STORAGE, UNSIGNED, Body, Value, Writer

_MORE_KINDS = (
    "f8e4m3", "f8e3m4", "f8e4m3b11fnuz", "f8e4m3fnuz", "f8e5m2fnuz", "f8e8m0fnu", "f4e2m1fn", "s2", "u2", "s16", "u16",
    "u64",
)  # fmt: skip
_FLOAT_EDGES = ("0", "-0.0", "1", "-1", "0.5", "2", "3", "-2.5", "inf", "-inf", "nan")
_TINIEST = {"f32": "1e-45", "f64": "5e-324", "f16": "6e-08", "bf16": "1e-40", "f8e5m2": "1.52587890625e-05"}
_LARGEST = {"f32": "3.4028235e+38", "f64": "1.7976931348623157e+308", "f16": "65504", "f8e5m2": "57344"}
_FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atanh", "cbrt", "cosh", "erf", "exponential-minus-one", "log", "rsqrt", "sinh",
    "tan", "log-plus-one", "round-nearest-afz",
)  # fmt: skip
_MULHI = ("s32", "u32", "s8", "u8")
_COMPLEX = (
    "negate", "exponential", "log", "sqrt", "tanh", "sine", "cosine", "rsqrt", "sign", "log-plus-one",
    "exponential-minus-one", "logistic", "tan",
)  # fmt: skip


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
    axis = int(writer.random.integers(len(like.dims)))
    if writer.chance(0.5) or not 0 < like.dims[axis] <= 64:
        number = body.scalar(like.kind, _edge_text(writer, like.kind))
        return body.emit(like.kind, like.dims, f"broadcast({number.name}), dimensions={{}}", keep=False)
    row = ", ".join(_edge_text(writer, like.kind) for _ in range(like.dims[axis]))
    numbers = body.emit(like.kind, (like.dims[axis],), f"constant({{{row}}})", keep=False)
    return body.emit(like.kind, like.dims, f"broadcast({numbers.name}), dimensions={{{axis}}}", keep=False)


def edge(writer: Writer, body: Body) -> None:
    """A function of two numbers, one of them at an end of its range or special, as a constant or a broadcast one."""
    found = [value for value in body.values if value.kind in (*FLOATS, *INTEGERS)]
    if not found:
        return
    value = writer.pick(found)
    other = _edges(writer, body, value)
    names = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder", "clamp", "compare"]
    if value.kind in INTEGERS:
        names += ["shift-left", "shift-right-logical", "shift-right-arithmetic", "and", "or", "xor"]
    else:
        names += ["atan2"]
    opcode = writer.pick(names)
    pair = [value.name, other.name]
    if writer.chance(0.5):
        pair.reverse()
    if opcode == "clamp":
        ends = [_edges(writer, body, value).name, _edges(writer, body, value).name]
        body.emit(value.kind, value.dims, f"clamp({ends[0]}, {value.name}, {ends[1]})")
    elif opcode == "compare":
        chosen = body.emit(
            "pred", value.dims, f"compare({', '.join(pair)}), direction={writer.pick(['LT', 'LE', 'GT', 'EQ', 'NE'])}"
        )
        body.emit(value.kind, value.dims, f"select({chosen.name}, {', '.join(pair)})")
    else:
        body.emit(value.kind, value.dims, f"{opcode}({', '.join(pair)})")


def convert_chain(writer: Writer, body: Body) -> None:
    """From one type to another to another, and at times something computed in between."""
    found = [value for value in body.values if value.kind != "c64"]
    if not found:
        return
    value = writer.pick(found)
    kinds = [writer.pick([*STORAGE, *_MORE_KINDS]) for _ in range(int(writer.random.integers(1, 4)))]
    for kind in (*(kind for kind in kinds if kind != "c64"), writer.pick(["f32", *FLOATS, *INTEGERS])):
        value = body.emit(kind, value.dims, f"convert({value.name})", keep=False)
        if writer.chance(0.3) and kind not in ("pred", "f8e8m0fnu"):
            opcode = writer.pick(["add", "multiply"])
            value = body.emit(kind, value.dims, f"{opcode}({value.name}, {value.name})", keep=False)
    body.emit(value.kind, value.dims, f"copy({value.name})")


def complex_chain(writer: Writer, body: Body) -> None:
    """Functions of complex numbers one after the other, with their conjugates."""
    found = [value for value in body.of_kinds("c64 f32") if prod(value.dims) < 20000]
    if not found:
        return
    value = writer.pick(found)
    if value.kind == "f32":
        value = body.emit("c64", value.dims, f"convert({value.name})", keep=False)
    first = value
    for _ in range(int(writer.random.integers(2, 6))):
        how = writer.pick(["unary", "unary", "binary", "conjugate"])
        if how == "unary":
            value = body.emit("c64", value.dims, f"{writer.pick(_COMPLEX)}({value.name})", keep=False)
        elif how == "binary":
            opcode = writer.pick(["add", "subtract", "multiply", "divide", "power", "multiply"])
            value = body.emit("c64", value.dims, f"{opcode}({value.name}, {first.name})", keep=False)
        else:
            parts = [body.emit("f32", value.dims, f"{part}({value.name})", keep=False) for part in ("real", "imag")]
            turned = body.emit("f32", value.dims, f"negate({parts[1].name})", keep=False)
            value = body.emit("c64", value.dims, f"complex({parts[0].name}, {turned.name})", keep=False)
    body.emit("c64", value.dims, f"copy({value.name})")


def rarer_function(writer: Writer, body: Body) -> None:
    """Functions that few programs have; the upper half of a product of integers."""
    found = [value for value in body.values if value.kind in (*FLOATS, *INTEGERS)]
    if not found:
        return
    value = writer.pick(found)
    if value.kind in FLOATS:
        body.emit(value.kind, value.dims, f"{writer.pick(_FUNCTIONS)}({value.name})")
    elif value.kind in _MULHI:
        partners = [other for other in found if (other.kind, other.dims) == (value.kind, value.dims)]
        body.emit(value.kind, value.dims, f"mulhi({value.name}, {writer.pick(partners).name})")


def indices(writer: Writer, body: Body) -> None:
    """Rows that are read and written at places computed from a count or from data: clamped, wrapped or out of bounds."""
    found = [value for value in body.values if len(value.dims) == 2 and 0 < prod(value.dims) < 20000]
    if not found:
        return
    value = writer.pick(found)
    rows, columns = value.dims
    count = int(writer.random.integers(1, 9))
    kind = writer.pick(["s32", "s32", "u32", "s64", "u8"])
    where = body.emit(kind, (count, 1), "iota(), iota_dimension=0", keep=False)
    if writer.chance(0.4):
        sources = [other for other in body.values if prod(other.dims) >= count and other.kind in (*FLOATS, *INTEGERS)]
        if sources:
            source = writer.pick(sources)
            flat = body.emit(source.kind, (prod(source.dims),), f"reshape({source.name})", keep=False)
            part = body.emit(source.kind, (count,), f"slice({flat.name}), slice={{[0:{count}]}}", keep=False)
            whole = body.emit(kind, (count,), f"convert({part.name})", keep=False)
            where = body.emit(kind, (count, 1), f"reshape({whole.name})", keep=False)
    for _ in range(int(writer.random.integers(0, 3))):
        number = body.scalar(kind, str(writer.pick([1, 2, 3, rows % 200, 100])))
        wide = body.emit(kind, (count, 1), f"broadcast({number.name}), dimensions={{}}", keep=False)
        pair = [where.name, wide.name]
        opcode = writer.pick(["add", "subtract", "multiply", "remainder", "minimum", "divide"])
        if opcode == "subtract":
            pair.reverse()
        where = body.emit(kind, (count, 1), f"{opcode}({', '.join(pair)})", keep=False)
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
    body.emit(
        value.kind,
        value.dims,
        f"scatter({value.name}, {where.name}, {read.name}), update_window_dims={{1}}, inserted_window_dims={{0}}, "
        f"scatter_dims_to_operand_dims={{0}}, index_vector_dim=1{unique}, to_apply={reducer}",
    )


def long_chain(writer: Writer, body: Body) -> None:
    """Many elementwise instructions on one shape, through narrow types, with rows and columns spread over it."""
    found = [value for value in body.values if len(value.dims) > 1 and value.kind in (*FLOATS, *INTEGERS, "pred")]
    if not found:
        return
    value = writer.pick(found)
    dims = value.dims
    alive = [value]
    for _ in range(int(writer.random.integers(4, 12))):
        value = alive[-1] if writer.chance(0.6) else writer.pick(alive)
        how = writer.pick(["convert", "convert", "binary", "binary", "row", "unary", "select", "edge"])
        if value.kind == "pred" or how == "convert":
            kind = writer.pick([*FLOATS, *INTEGERS, "s4", "u4", "f8e5m2"])
            alive.append(body.emit(kind, dims, f"convert({value.name})", keep=False))
        elif how == "unary":
            names = ("negate", "abs", "sign") if value.kind not in UNSIGNED else ("not", "popcnt")
            alive.append(body.emit(value.kind, dims, f"{writer.pick(names)}({value.name})", keep=False))
        elif how == "row":
            axis = int(writer.random.integers(len(dims)))
            line = body.emit(value.kind, (dims[axis],), "iota(), iota_dimension=0", keep=False)
            wide = body.emit(value.kind, dims, f"broadcast({line.name}), dimensions={{{axis}}}", keep=False)
            alive.append(body.emit(value.kind, dims, f"add({value.name}, {wide.name})", keep=False))
        else:
            same = [other for other in alive if other.kind == value.kind]
            other = _edges(writer, body, value) if how == "edge" else writer.pick(same)
            if how == "select":
                direction = writer.pick(["LT", "EQ", "GE"])
                chosen = body.emit(
                    "pred", dims, f"compare({value.name}, {writer.pick(same).name}), direction={direction}", keep=False
                )
                alive.append(chosen)
                call = f"select({chosen.name}, {value.name}, {other.name})"
            else:
                call = (
                    f"{writer.pick(['add', 'subtract', 'multiply', 'maximum', 'divide'])}({value.name}, {other.name})"
                )
            alive.append(body.emit(value.kind, dims, call, keep=False))
    last = alive[-1]
    body.emit(last.kind, dims, f"copy({last.name})")
    if last.kind != "pred":
        zero = body.scalar(last.kind, "0")
        reducer = writer.reducer(writer.pick(["add", "maximum"]), last.kind)
        rest = dims[:-1]
        body.emit(
            last.kind, rest, f"reduce({last.name}, {zero.name}), dimensions={{{len(dims) - 1}}}, to_apply={reducer}"
        )
