"""Steps that few programs have: arrays without elements, bounded sizes, complex parts, bits as other types, ranges."""

from math import prod

from tests.plan.random_programs.writing import (
    ARRAYS,
    FLOATS,
    NUMBERS,
    STORAGE,
    UNSIGNED,
    Body,
    Writer,
    spread_scalar,
)


def empty(writer: Writer, body: Body) -> None:
    """An array without elements: what is left of it when it is summed, put beside others, padded or multiplied."""
    value = writer.pick(body.fitting(NUMBERS, ARRAYS))
    axis = writer.number(len(value.dims))
    dims = (*value.dims[:axis], 0, *value.dims[axis + 1 :])
    place = writer.number(value.dims[axis] + 1)
    bounds = ", ".join(f"[{place}:{place}]" if k == axis else f"[0:{size}]" for k, size in enumerate(value.dims))
    none = body.aside(value.kind, dims, f"slice({value.name}), slice={{{bounds}}}")
    none = body.emit(value.kind, dims, f"add({none.name}, {none.name})", keep=writer.chance(0.1))
    how = writer.pick("reduce concatenate pad dot update".split())
    first = body.scalar(value.kind, writer.pick(["1", "3"]))
    if how == "reduce":
        kept = tuple(size for k, size in enumerate(value.dims) if k != axis)
        reducer = writer.reducer("add", value.kind)
        body.emit(value.kind, kept, f"reduce({none.name}, {first.name}), dimensions={{{axis}}}, to_apply={reducer}")
    elif how == "concatenate":
        body.like(value, f"concatenate({none.name}, {value.name}), dimensions={{{axis}}}")
    elif how == "pad":
        padding = "x".join("1_2" if k == axis else "0_0" for k in range(len(dims)))
        wider = (*dims[:axis], 3, *dims[axis + 1 :])
        body.emit(value.kind, wider, f"pad({none.name}, {first.name}), padding={padding}")
    elif how == "update":
        starts = ", ".join(body.scalar("s32", "1").name for _ in dims)
        body.like(value, f"dynamic-update-slice({value.name}, {none.name}, {starts})")
    elif len(dims) == 2:
        size = dims[1 - axis]
        body.emit(
            value.kind,
            (size, size),
            f"dot({none.name}, {none.name}), lhs_contracting_dims={{{axis}}}, rhs_contracting_dims={{{axis}}}",
        )


def bounded(writer: Writer, body: Body) -> None:
    """A dimension cut to a size that only a run knows, computed with, summed, and made whole again."""
    found = [value for value in body.values if value.dims and value.kind in ("f32", "s32")]
    if not found or writer.trips is None:
        return
    value = writer.pick(found)
    axis = writer.number(len(value.dims))
    most = value.dims[axis]
    size, zero, limit = body.scalar("s32", "3"), body.scalar("s32", "0"), body.scalar("s32", str(most))
    if body.name == "main":
        size = writer.trips
    size = body.aside("s32", (), f"clamp({zero.name}, {size.name}, {limit.name})")
    shape = ",".join(f"<={n}" if k == axis else str(n) for k, n in enumerate(value.dims))
    names = [writer.fresh() for _ in range(2)]
    body.line(
        f"{names[0]} = {value.kind}[{shape}]{value.layout} set-dimension-size({value.name}, {size.name}), "
        f"dimensions={{{axis}}}"
    )
    body.line(f"{names[1]} = {value.kind}[{shape}]{value.layout} add({names[0]}, {names[0]})")
    body.emit("s32", (), f"get-dimension-size({names[1]}), dimensions={{{axis}}}")
    first = body.scalar(value.kind, "0")
    kept = tuple(n for k, n in enumerate(value.dims) if k != axis)
    reducer = writer.reducer("add", value.kind)
    body.emit(value.kind, kept, f"reduce({names[1]}, {first.name}), dimensions={{{axis}}}, to_apply={reducer}")


def clamp(writer: Writer, body: Body) -> None:
    found = body.fitting(NUMBERS)
    if found:
        value = writer.pick(found)
        low = body.scalar(value.kind, "1" if value.kind in UNSIGNED else "-1")
        high = body.scalar(value.kind, "2")
        if writer.chance(0.5):
            low, high = (body.like(value, f"broadcast({end.name}), dimensions={{}}", keep=False) for end in (low, high))
        body.like(value, f"clamp({low.name}, {value.name}, {high.name})")


def convert_any(writer: Writer, body: Body) -> None:
    """Between any two types; from complex numbers by their real part."""
    value = writer.pick(body.values)
    if value.kind == "c64":
        value = body.emit("f32", value.dims, f"real({value.name})")
    body.emit(writer.pick(list(STORAGE)), value.dims, f"convert({value.name})")


def bits_of(writer: Writer, body: Body) -> None:
    """The bits of numbers as another type: of the same width, narrower with one more dimension, and back."""
    found = [value for value in body.values if value.kind in _PARTS]
    if found:
        value = writer.pick(found)
        kind, count = writer.pick(_PARTS[value.kind])
        dims = value.dims if count == 1 else (*value.dims, count)
        if prod(dims) < 60000:
            parts = body.emit(kind, dims, f"bitcast-convert({value.name})")
            if writer.chance(0.5):
                body.like(value, f"bitcast-convert({parts.name})")


_PARTS: dict[str, list[tuple[str, int]]] = {
    "f32": [("s32", 1), ("u32", 1), ("u8", 4), ("bf16", 2)],
    "s32": [("u32", 1), ("s8", 4), ("f16", 2)],
    "u32": [("s32", 1), ("u8", 4)],
    "s64": [("s32", 2), ("f64", 1)],
    "f64": [("s64", 1), ("u32", 2)],
    "s8": [("u8", 1), ("f8e5m2", 1)],
    "u8": [("s8", 1), ("f8e4m3fn", 1)],
    "s4": [("u4", 1)],
    "u4": [("s4", 1)],
}


def complex_parts(writer: Writer, body: Body) -> None:
    found = body.of_kinds("f32 c64")
    if found:
        value = writer.pick(found)
        if value.kind == "c64":
            body.emit("f32", value.dims, f"{writer.pick(['real', 'imag', 'abs'])}({value.name})")
        else:
            partners = [other for other in found if (other.kind, other.dims) == ("f32", value.dims)]
            body.emit("c64", value.dims, f"complex({value.name}, {writer.pick(partners).name})")


def count_up(writer: Writer, body: Body) -> None:
    """Indices along a dimension, beside a value of the same dimensions."""
    found = body.fitting(NUMBERS, ARRAYS)
    if found:
        value = writer.pick(found)
        axis = writer.number(len(value.dims))
        places = body.like(value, f"iota(), iota_dimension={axis}")
        direction = writer.pick(["LT", "GE", "EQ"])
        chosen = body.emit("pred", value.dims, f"compare({places.name}, {value.name}), direction={direction}")
        other = spread_scalar(writer, body, value)
        body.like(value, f"select({chosen.name}, {value.name}, {other.name})")


def round_to(writer: Writer, body: Body) -> None:
    found = [value for value in body.values if value.kind in FLOATS]
    if found:
        value = writer.pick(found)
        how = writer.pick("round-nearest-even round-nearest-afz ceil reduce-precision is-finite".split())
        if how == "is-finite":
            body.emit("pred", value.dims, f"is-finite({value.name})")
        elif how != "reduce-precision":
            body.like(value, f"{how}({value.name})")
        elif value.kind in "f32 f64 bf16 f16".split():
            bits = writer.pick(["exponent_bits=5, mantissa_bits=7", "exponent_bits=4, mantissa_bits=3"])
            body.like(value, f"reduce-precision({value.name}), {bits}")


def barrier(writer: Writer, body: Body) -> None:
    """Values that pass a barrier together, in a tuple in a tuple."""
    likes = [writer.pick(body.values) for _ in range(3)]
    inner = f"({likes[1].shape}, {likes[2].shape})"
    shape = f"({likes[0].shape}, {inner})"
    names = [writer.fresh() for _ in range(4)]
    body.line(f"{names[0]} = {inner} tuple({likes[1].name}, {likes[2].name})")
    body.line(f"{names[1]} = {shape} tuple({likes[0].name}, {names[0]})")
    body.line(f"{names[2]} = {shape} opt-barrier({names[1]})")
    body.line(f"{names[3]} = {inner} get-tuple-element({names[2]}), index=1")
    body.elements(names[2], likes[:1])
    body.elements(names[3], likes[1:])
