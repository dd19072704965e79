"""Steps that only concern the order in memory: copies to other layouts, and bitcasts that layouts make possible."""

from math import prod

from tests.plan.random_programs.writing import ANY, LARGER, Body, Dims, Value, Writer, shape_text


def copy_to_layout(writer: Writer, body: Body) -> None:
    """The same value in another order, at times in tiles, and what is computed of both orders."""
    value = _matrix(writer, body)
    if value is None:
        return
    layout = _layout(writer, value.dims)
    if writer.chance(0.3):
        tile = writer.pick("T(2,4) T(8,128) T(4) T(8,128)(2,1)".split())
        layout = f"{layout[:-1]}:{tile}}}"
    other = body.like(value, f"copy({value.name})", layout=layout)
    if value.kind != "pred":
        body.like(value, f"add({value.name}, {other.name})")


def transpose_as_bitcast(writer: Writer, body: Body) -> None:
    """A transpose whose layout leaves every element where it is, and the bitcast that says the same."""
    value = _matrix(writer, body)
    if value is None or ":" in value.layout:
        return
    order = [int(axis) for axis in writer.random.permutation(len(value.dims))]
    dims = tuple(value.dims[axis] for axis in order)
    layout = f"{{{','.join(str(order.index(axis)) for axis in _minor_to_major(value))}}}"
    opcode = writer.pick(["transpose", "bitcast"])
    attributes = f", dimensions={{{','.join(map(str, order))}}}" if opcode == "transpose" else ""
    body.emit(value.kind, dims, f"{opcode}({value.name}){attributes}", layout=layout)


def reinterpret(writer: Writer, body: Body) -> None:
    """A bitcast to other dimensions: those in memory, with some split and some merged, in any layout; or other types."""
    value = _matrix(writer, body)
    if value is None:
        return
    physical = [value.dims[axis] for axis in _minor_to_major(value)[::-1]]
    place = writer.number(len(physical))
    how = writer.pick("split merge ones type".split())
    if how == "split":
        divisors = [size for size in (2, 3, 4, 5) if physical[place] % size == 0]
        if divisors:
            divisor = writer.pick(divisors)
            physical[place : place + 1] = [divisor, physical[place] // divisor]
    elif how == "merge":
        physical[place : place + 2] = [prod(physical[place : place + 2])]
    else:
        physical.insert(place, 1)
    # The dimensions in memory, from major to minor, are given to any of the result's.
    order = [int(axis) for axis in writer.random.permutation(len(physical))]
    dims = tuple(physical[order.index(axis)] for axis in range(len(order)))
    layout = f"{{{','.join(map(str, order[::-1]))}}}"
    kind = value.kind
    if how == "type":
        kind = {"s8": "u8", "u8": "s8", "s32": "u32", "u32": "s32", "s4": "u4", "u4": "s4"}.get(kind, kind)
    seen = body.emit(kind, dims, f"bitcast({value.name})", layout=layout)
    if kind != "pred" and writer.chance(0.5):
        _fused_with_bitcast(writer, body, seen)


def _fused_with_bitcast(writer: Writer, body: Body, value: Value) -> None:
    """A fusion that reads an array by a bitcast, as fusions that were made of transposes do."""
    name = f"computation_{writer.fresh()}"
    flat: Dims = (prod(value.dims),)
    shape = shape_text(value.kind, flat)
    writer.computations.append(
        f"{name} {{\n  a = {value.shape} parameter(0)\n  b = {shape} bitcast(a)\n  c = {shape} add(b, b)\n"
        f"  ROOT d = {value.shape} bitcast(c)\n}}\n"
    )
    body.like(value, f"fusion({value.name}), kind=kLoop, calls={name}", layout=value.layout)


def _matrix(writer: Writer, body: Body) -> Value | None:
    found = body.fitting(ANY, LARGER)
    return writer.pick(found) if found else None


def _layout(writer: Writer, dims: Dims) -> str:
    return f"{{{','.join(str(axis) for axis in writer.random.permutation(len(dims)))}}}"


def _minor_to_major(value: Value) -> list[int]:
    if not value.layout:
        return list(range(len(value.dims)))[::-1]
    return [int(axis) for axis in value.layout[1:-1].partition(":")[0].split(",")]
