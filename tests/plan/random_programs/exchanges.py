"""Steps in which devices differ, or tell one another."""

from __future__ import annotations

from tests.plan.random_programs.writing import Body, Writer

__all__ = ["device_number", "exchange"]


def exchange(writer: Writer, body: Body) -> None:
    value = writer.pick(body.of_kinds("f32 f64 bf16 s32") or body.values)
    if value.kind in ("pred", "c64"):
        return
    writer.channel += 1
    groups = ",".join(map(str, range(writer.devices)))
    if writer.chance(0.6):
        reducer = writer.reducer("add", value.kind)
        body.emit(
            value.kind,
            value.dims,
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
            body.emit(value.kind, value.dims, f"collective-permute-done({start})")
            return
        body.emit(
            value.kind,
            value.dims,
            f"collective-permute({value.name}), channel_id={writer.channel}, source_target_pairs={{{pairs}}}",
        )


def device_number(writer: Writer, body: Body) -> None:
    number = body.emit("u32", (), "partition-id()", keep=False)
    kind = writer.pick(["f32", "s32"])
    body.emit(kind, (), f"convert({number.name})")
