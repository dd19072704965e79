"""Steps that run other computations: calls, fusions, conditionals, loops."""

from collections.abc import Sequence

from tests.plan.random_programs.arithmetic import turned_sum
from tests.plan.random_programs.writing import Body, Value, Writer, spread_scalar


def call(writer: Writer, body: Body) -> None:
    given = some(writer, body)
    name, root = inner(writer, given, writer.number(2, 8))
    operands = ", ".join(value.name for value in given)
    how = "call({}), to_apply={}" if writer.chance(0.5) else "fusion({}), kind=kLoop, calls={}"
    for _ in range(writer.number(1, 3)):
        body.like(root, how.format(operands, name), layout=root.layout)


def conditional(writer: Writer, body: Body) -> None:
    given = writer.pick(body.values)
    how = writer.pick(["limit", "limit", "index", "device" if writer.devices > 1 else "index"])
    was_in_step, writer.is_in_step = writer.is_in_step, writer.is_in_step and how != "device"
    first, root = inner(writer, [given], writer.number(1, 5))
    writer.is_in_step = was_in_step
    second = Body(writer, f"computation_{writer.fresh()}")
    second.like(given, "parameter(0)", layout=given.layout)
    scalar = spread_scalar(writer, second, Value("", root.kind, root.dims)) if root.kind != "pred" else None
    if scalar is None:
        body.like(root, f"call({given.name}), to_apply={first}", layout=root.layout)
        return
    writer.computations.append(second.finish(f"copy({scalar.name})", root.shape))
    if how == "limit":
        limit = body.scalar("s32", "20")
        choice = body.aside("pred", (), f"compare({_trip_count(writer, body).name}, {limit.name}), direction=LT")
        branches = f"true_computation={first}, false_computation={second.name}"
    else:
        # 2 and more are out of range: they take the last branch, as 1 does.
        choice = _index_of_branch(writer, body, how)
        branches = f"branch_computations={{{first}, {second.name}}}"
    operands = ", ".join([choice.name, given.name, given.name])
    body.like(root, f"conditional({operands}), {branches}", layout=root.layout)


def _index_of_branch(writer: Writer, body: Body, how: str) -> Value:
    if how == "device":
        device = body.aside("u32", (), "partition-id()")
        return body.aside("s32", (), f"convert({device.name})")
    three = body.scalar("s32", "3")
    return body.aside("s32", (), f"remainder({_trip_count(writer, body).name}, {three.name})")


def _trip_count(writer: Writer, body: Body) -> Value:
    """A number that only a run knows, where it is at hand."""
    return writer.trips if body.name == "main" else body.scalar("s32", writer.pick(["3", "19", "24"]))


def loop(writer: Writer, body: Body) -> None:
    carried = some(writer, body)
    how = writer.pick("known known short unknown data".split())
    limit = {"known": writer.pick(["17", "20", "33"]), "short": writer.pick(["1", "3", "6"]), "data": "25"}.get(how)
    end = _trip_count(writer, body) if limit is None else body.scalar("s32", limit)
    pace = 1 if how == "data" else writer.pick([1, 1, 1, 2, 3, -1])
    has_token = writer.chance(0.15)
    kinds = ["s32[]", "s32[]", *(value.shape for value in carried), *(["token[]"] if has_token else [])]
    state = f"({', '.join(kinds)})"
    inside = Body(writer, f"body_{writer.fresh()}")
    inside.line(f"state = {state} parameter(0)")
    counter = inside.emit("s32", (), "get-tuple-element(state), index=0", keep=writer.chance(0.2))
    bound = inside.aside("s32", (), "get-tuple-element(state), index=1")
    leaves = [
        inside.like(value, f"get-tuple-element(state), index={number + 2}", layout=value.layout)
        for number, value in enumerate(carried)
    ]
    increment = inside.scalar("s32", str(pace))
    writer.depth += 1
    if writer.chance(0.5):
        writer.step(turned_sum, inside)
    was_in_step, writer.is_in_step = writer.is_in_step, writer.is_in_step and how != "data"
    writer.fill(inside, writer.number(2, 9))
    writer.is_in_step = was_in_step
    if writer.chance(0.4):
        _accumulate(writer, inside, leaves)
    if writer.chance(0.5):
        _calm(writer, inside)
    writer.depth -= 1
    following = inside.aside("s32", (), f"add({counter.name}, {increment.name})")
    parts = [following.name, bound.name]
    for leaf in leaves:
        same = [value for value in inside.values if (value.kind, value.dims) == (leaf.kind, leaf.dims)]
        found = same[-1] if writer.chance(0.7) else writer.pick(same)
        parts.append(inside.laid_out(found, leaf.layout).name)
    if has_token:
        inside.line(f"old_token = token[] get-tuple-element(state), index={len(kinds) - 1}")
        inside.line("new_token = token[] after-all(old_token)")
        parts.append("new_token")
    writer.computations.append(inside.finish(f"tuple({', '.join(parts)})", state))
    goes_on = _condition(writer, how, state, carried, pace)
    first = body.scalar("s32", "0") if pace > 0 else end if how == "unknown" else body.scalar("s32", "23")
    start = [first.name, end.name, *(value.name for value in carried)]
    if has_token:
        token = writer.fresh()
        body.line(f"{token} = token[] after-all()")
        start.append(token)
    names = [writer.fresh(), writer.fresh()]
    body.line(f"{names[0]} = {state} tuple({', '.join(start)})")
    body.line(f"{names[1]} = {state} while({names[0]}), condition={goes_on}, body={inside.name}")
    for number, value in enumerate(carried):
        body.like(value, f"get-tuple-element({names[1]}), index={number + 2}", layout=value.layout)
    if writer.chance(0.3):
        body.emit("s32", (), f"get-tuple-element({names[1]}), index=0")


def _calm(writer: Writer, body: Body) -> None:
    """Keep a carried value small, so that loops may come to rest or go round in circles."""
    found = body.of_kinds("f32 f64")
    if found:
        value = writer.pick(found)
        half = body.like(value, f"tanh({value.name})")
        body.like(value, f"multiply({half.name}, {spread_scalar(writer, body, half).name})")


def _accumulate(writer: Writer, body: Body, leaves: Sequence[Value]) -> None:
    """A product that is added to a carried matrix."""
    square = [leaf for leaf in leaves if len(leaf.dims) == 2 and max(leaf.dims) <= 300 and leaf.kind in ("f32", "f64")]
    if square:
        total = writer.pick(square)
        rows, columns = total.dims
        narrow = [value for value in body.values if value.kind == total.kind and value.dims == total.dims]
        operand = writer.pick(narrow)
        other = body.emit(total.kind, (columns, columns), f"dot({operand.name}, {writer.pick(narrow).name}), "
                          "lhs_contracting_dims={0}, rhs_contracting_dims={0}")  # fmt: skip
        product = body.emit(total.kind, (rows, columns), f"dot({operand.name}, {other.name}), "
                            "lhs_contracting_dims={1}, rhs_contracting_dims={0}")  # fmt: skip
        body.like(total, f"add({total.name}, {product.name})")


def _condition(writer: Writer, how: str, state: str, carried: Sequence[Value], pace: int) -> str:
    body = Body(writer, f"condition_{writer.fresh()}")
    body.line(f"state = {state} parameter(0)")
    counter = body.aside("s32", (), "get-tuple-element(state), index=0")
    bound = body.aside("s32", (), "get-tuple-element(state), index=1")
    if how in ("known", "short"):
        # The bound is a constant within the condition, as loops of known length have it.
        bound = body.scalar("s32", str(writer.number(1, 7)) if how == "short" else "21")
    if how == "data" and carried[0].kind in ("f32", "f64") and carried[0].dims:
        like = carried[0]
        value = body.like(like, "get-tuple-element(state), index=2", layout=like.layout, keep=False)
        zero = body.scalar(value.kind, "0")
        axes = ",".join(map(str, range(len(value.dims))))
        reducer = writer.reducer("add", value.kind)
        total = body.emit(
            value.kind, (), f"reduce({value.name}, {zero.name}), dimensions={{{axes}}}, to_apply={reducer}"
        )
        few = body.emit("pred", (), f"compare({total.name}, {body.scalar(value.kind, '30').name}), direction=LT")
        more = body.emit("pred", (), f"compare({counter.name}, {bound.name}), direction=LT")
        writer.computations.append(body.finish(f"and({few.name}, {more.name})", "pred[]"))
    else:
        if pace < 0:
            bound = body.scalar("s32", writer.pick(["0", "17", "20"]))
        writer.computations.append(body.finish(_comparison(writer, counter, bound, pace), "pred[]"))
    return body.name


def _comparison(writer: Writer, counter: Value, bound: Value, pace: int) -> str:
    """Whether a loop goes on; a loop that only asks for a number that it never meets would not end."""
    directions = ["LT", "LT", "LE"] if pace > 1 else "LT LT LE NE".split() if pace > 0 else ["GT", "GE"]
    direction = writer.pick(directions)
    if writer.chance(0.3):
        turned = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}[direction]
        return f"compare({bound.name}, {counter.name}), direction={turned}"
    return f"compare({counter.name}, {bound.name}), direction={direction}"


def inner(writer: Writer, given: Sequence[Value], length: int) -> tuple[str, Value]:
    """A computation of these parameters; its name, and the value that it returns."""
    name = f"computation_{writer.fresh()}"
    body = Body(writer, name)
    for number, value in enumerate(given):
        body.like(value, f"parameter({number})", layout=value.layout)
    writer.depth += 1
    writer.fill(body, length)
    writer.depth -= 1
    root = body.values[-1]
    if len(root.dims) > 1 and writer.chance(0.3):
        order = [int(axis) for axis in writer.random.permutation(len(root.dims))]
        root = Value("", root.kind, tuple(root.dims[axis] for axis in order), root.layout)
        last = f"transpose({body.values[-1].name}), dimensions={{{','.join(map(str, order))}}}"
    else:
        last = f"copy({root.name})"
    writer.computations.append(body.finish(last, root.shape))
    return name, root


def some(writer: Writer, body: Body) -> list[Value]:
    count = writer.number(1, 4)
    return [writer.pick(body.values) for _ in range(count)]
