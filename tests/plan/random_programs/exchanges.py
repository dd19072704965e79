"""Steps in which devices differ, or tell one another."""

from tests.plan.random_programs.writing import Body, Value, Writer


def exchange(writer: Writer, body: Body) -> None:
    value = writer.pick([value for value in body.values if value.kind not in ("pred", "c64")])
    writer.channel += 1
    groups = ",".join(map(str, range(writer.devices)))
    if writer.chance(0.6):
        reducer = writer.reducer("add", value.kind)
        body.like(
            value,
            f"all-reduce({value.name}), channel_id={writer.channel}, replica_groups={{{{{groups}}}}}, "
            f"use_global_device_ids=true, to_apply={reducer}",
        )
    else:
        pairs = ",".join(f"{{{k},{(k + 1) % writer.devices}}}" for k in range(writer.devices))
        if writer.chance(0.5):
            start = writer.fresh()
            body.line(
                f"{start} = ({value.shape}, {value.shape}, u32[], u32[]) collective-permute-start({value.name}), "
                f"channel_id={writer.channel}, source_target_pairs={{{pairs}}}"
            )
            body.like(value, f"collective-permute-done({start})", layout=value.layout)
            return
        body.like(
            value,
            f"collective-permute({value.name}), channel_id={writer.channel}, source_target_pairs={{{pairs}}}",
        )


def device_number(writer: Writer, body: Body) -> None:
    number = body.aside("u32", (), "partition-id()")
    kind = writer.pick(["f32", "s32"])
    body.emit(kind, (), f"convert({number.name})")


def collective(writer: Writer, body: Body) -> None:
    """A collective in groups of devices, at once or as a pair of start and done."""
    found = [value for value in body.values if value.dims and value.kind not in ("pred", "c64")]
    value = writer.pick(found)
    if writer.devices == 4:
        groups, count = writer.pick(
            [
                ("{{0,1},{2,3}}", 2),
                ("{{0,2},{3,1}}", 2),
                ("[2,2]<=[4]", 2),
                ("[2,2]<=[2,2]T(1,0)", 2),
                ("[1,4]<=[4]", 4),
            ]
        )
    else:
        groups, count = writer.pick([("{{0,1}}", 2), ("{{1,0}}", 2), ("{{0},{1}}", 1)])
    writer.channel += 1
    where = f"channel_id={writer.channel}, replica_groups={groups}, use_global_device_ids=true"
    axis = writer.number(len(value.dims))
    divided = [value for value in found if value.dims[axis : axis + 1] and value.dims[axis] % count == 0]
    before, after = value.dims[:axis], value.dims[axis + 1 :]
    how = writer.pick("all-reduce all-gather reduce-scatter all-to-all collective-broadcast".split())
    reducer = writer.reducer(writer.pick(["add", "maximum"]), value.kind)
    if how == "all-reduce":
        _pair(writer, body, how, value.name, value, value.shape, f", {where}, to_apply={reducer}")
    elif how == "all-gather":
        dims = (*before, value.dims[axis] * count, *after)
        like = Value("", value.kind, dims, value.layout)
        _pair(
            writer, body, how, value.name, like, f"({value.shape}, {like.shape})", f", {where}, dimensions={{{axis}}}"
        )
    elif how == "collective-broadcast":
        body.like(value, f"{how}({value.name}), channel_id={writer.channel}, replica_groups={groups}")
    elif divided:
        value = writer.pick(divided)
        if how == "reduce-scatter":
            dims = (*value.dims[:axis], value.dims[axis] // count, *value.dims[axis + 1 :])
            reducer = writer.reducer("add", value.kind)
            body.emit(value.kind, dims, f"{how}({value.name}), {where}, dimensions={{{axis}}}, to_apply={reducer}")
        else:
            body.like(
                value,
                f"{how}({value.name}), channel_id={writer.channel}, replica_groups={groups}, dimensions={{{axis}}}",
            )


def _pair(
    writer: Writer, body: Body, opcode: str, operand: str, like: Value, start_shape: str, attributes: str
) -> None:
    if writer.chance(0.5):
        body.like(like, f"{opcode}({operand}){attributes}")
        return
    start = writer.fresh()
    body.line(f"{start} = {start_shape} {opcode}-start({operand}){attributes}")
    if writer.chance(0.5):
        writer.depth += 1
        writer.fill(body, 1)
        writer.depth -= 1
    body.like(like, f"{opcode}-done({start})", layout=like.layout)
