"""Texts that XLA accepts since jaxlib 0.12."""

from __future__ import annotations

from tests.text.building import ADD, op

__all__ = ["NEWER"]

_F2 = "f32[2]{0}"
_GROUPS = "replica_groups={{0,1},{2,3}}"

NEWER: dict[str, str] = {
    "exp2": op("f32[2] exp2(a)", a=_F2),
    "exp2 with an accuracy": op("f32[2] exp2(a), result_accuracy={mode=highest}", a=_F2),
    "log2": op("f32[2] log2(a)", a=_F2),
    "shuffle": op("f32[2,3] shuffle(a), dimensions={1,0}, mode=rotate, shifts={1,-4}", a="f32[2,3]"),
    "collective-reduce": op(
        f"f32[2] collective-reduce(a), {_GROUPS}, has_dynamic_root=false, to_apply=add_f32", ADD, a=_F2
    ),
    "collective-reduce to a dynamic root": op(
        f"(f32[2], f32[2]) collective-reduce(a, b, r), channel_id=1, {_GROUPS}, use_global_device_ids=true, "
        "has_dynamic_root=true, to_apply=add_f32",
        ADD,
        a=_F2,
        b=_F2,
        r="s32[2]",
    ),
    "collective-broadcast from a dynamic root": op(
        f"f32[2] collective-broadcast(a, r), {_GROUPS}, has_dynamic_root=true", a=_F2, r="s32[1]"
    ),
    "convolution by an algorithm": op(
        "f32[1,3,3,5] convolution(a, b), window={size=2x2}, dim_labels=b01f_01io->b01f, algorithm=dot_bf16_bf16_f32",
        a="f32[1,4,4,3]",
        b="f32[2,2,3,5]",
    ),
    "topk that need not be stable": op("(f32[2], s32[2]) topk(a), k=2, largest=true, is_stable=false", a="f32[5]"),
}
