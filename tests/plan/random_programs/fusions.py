"""Steps of optimized dumps that run other computations: fusions of several results or in place, asynchronous pairs."""

from tests.plan.random_programs.control_flow import inner, some
from tests.plan.random_programs.writing import Body, Value, Writer


def several_results(writer: Writer, body: Body) -> None:
    """A fusion or a call whose result is a tuple."""
    given = some(writer, body)
    name, likes, shape = _tupled(writer, given)
    operands = ", ".join(value.name for value in given)
    result = writer.fresh()
    how = writer.pick("call kLoop kInput kOutput".split())
    called = f"call({operands}), to_apply={name}" if how == "call" else f"fusion({operands}), kind={how}, calls={name}"
    body.line(f"{result} = {shape} {called}")
    body.elements(result, likes)


def _tupled(writer: Writer, given: list[Value]) -> tuple[str, list[Value], str]:
    """A computation of several results: its name, what they are like, and its shape."""
    name = f"computation_{writer.fresh()}"
    inside = Body(writer, name)
    for number, value in enumerate(given):
        inside.like(value, f"parameter({number})", layout=value.layout)
    writer.depth += 1
    writer.fill(inside, writer.number(2, 7))
    writer.depth -= 1
    likes = [inside.values[-1], *(writer.pick(inside.values) for _ in range(writer.number(1, 4)))]
    shape = f"({', '.join(like.shape for like in likes)})"
    writer.computations.append(inside.finish(f"tuple({', '.join(like.name for like in likes)})", shape))
    return name, likes, shape


def update_in_fusion(writer: Writer, body: Body) -> None:
    """A fusion whose root writes a window into its first operand, as bodies of optimized loops have it.

    At times it also gives back what it read there, or the array as it was.
    """
    value = writer.pick([value for value in body.values if value.dims and value.kind != "pred"])
    kind, dims, shape = value.kind, value.dims, value.shape
    starts = [other for other in body.values if (other.kind, other.dims) == ("s32", ())] or [body.scalar("s32", "1")]
    start, zero = writer.pick(starts), body.scalar("s32", "0")
    axis = writer.number(len(dims))
    row = tuple(min(1, size) if place == axis else size for place, size in enumerate(dims))
    like = Value("", kind, row, value.layout)
    names = ", ".join("i" if place == axis else "z" for place in range(len(dims)))
    sizes = ",".join(map(str, row))
    name = f"computation_{writer.fresh()}"
    text = (
        f"  a = {shape} parameter(0)\n  i = s32[] parameter(1)\n  z = s32[] parameter(2)\n"
        f"  w = {like.shape} dynamic-slice(a, {names}), dynamic_slice_sizes={{{sizes}}}\n"
        f"  d = {like.shape} add(w, w)\n"
    )
    last = f"{shape} dynamic-update-slice(a, d, {names})"
    operands = f"{value.name}, {start.name}, {zero.name}"
    more = writer.pick(["", "", "w", "a"])
    if not more:
        writer.computations.append(f"{name} {{\n{text}  ROOT u = {last}\n}}\n")
        body.emit(kind, dims, f"fusion({operands}), kind=kLoop, calls={name}", layout=value.layout)
        return
    second = like if more == "w" else value
    tuple_shape = f"({shape}, {second.shape})"
    writer.computations.append(f"{name} {{\n{text}  u = {last}\n  ROOT t = {tuple_shape} tuple(u, {more})\n}}\n")
    both = writer.fresh()
    body.line(f"{both} = {tuple_shape} fusion({operands}), kind=kLoop, calls={name}")
    body.elements(both, [value, second])


def copy_pair(writer: Writer, body: Body) -> None:
    """A copy that goes on while something else is computed, at times into another layout."""
    value = writer.pick(body.values)
    target = Value("", value.kind, value.dims, writer.layout(value.dims))
    start = writer.fresh()
    body.line(f"{start} = ({target.shape}, {value.shape}, u32[]) copy-start({value.name})")
    _meanwhile(writer, body)
    body.like(value, f"copy-done({start})", layout=target.layout)


def asynchronous(writer: Writer, body: Body) -> None:
    """A computation that is started, and finished later."""
    given = some(writer, body)
    name, root = inner(writer, given, writer.number(1, 6))
    shape = f"(({', '.join(value.shape for value in given)}), {root.shape}, u32[])"
    start = writer.fresh()
    operands = ", ".join(value.name for value in given)
    body.line(f"{start} = {shape} async-start({operands}), calls={name}")
    if writer.chance(0.3):
        _meanwhile(writer, body)
        later = writer.fresh()
        body.line(f"{later} = {shape} async-update({start})")
        start = later
    _meanwhile(writer, body)
    body.like(root, f"async-done({start})", layout=root.layout)


def _meanwhile(writer: Writer, body: Body) -> None:
    if writer.chance(0.5):
        writer.depth += 1
        writer.fill(body, 1)
        writer.depth -= 1
