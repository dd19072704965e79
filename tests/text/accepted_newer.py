"""Texts that XLA accepts since jaxlib 0.12."""

from __future__ import annotations

from tests.text.building import ADD, module, op

_F2 = "f32[2]{0}"
_STARTED = "((f32[2], f32[2]), f32[2], s32[])"
_DIFFERENCE = "inner {\n x = f32[2] parameter(0)\n y = f32[2] parameter(1)\n ROOT r = f32[2] subtract(x, y)\n}\n"
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
    "dot of scaled operands": op(
        "f32[2,3] dot(a, b, s, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
        "block_scaling_config={lhs={scale_idx=2 strides=1x8 steps=1x1} rhs={scale_idx=3 strides=8x1 steps=1x1}}",
        a="f8e4m3fn[2,16]",
        b="f8e4m3fn[16,3]",
        s="f8e8m0fnu[2,2]",
        t="f8e8m0fnu[2,3]",
    ),
    "dot of an operand with zero points": op(
        "f32[2,3] dot(a, b, s, z), lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
        "block_scaling_config={lhs={scale_idx=2 zero_idx=3}}",
        a="s8[2,16]",
        b="f32[16,3]",
        s="f32[2,2]",
        z="f32[2,2]",
    ),
    "dot of a sparse operand": op(
        "bf16[4,3] dot(a, b, i), lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
        "sparsity_config={rhs={sparsity=2x4 dimension=0 stride=1 idx=2}}",
        a="bf16[4,16]",
        b="bf16[8,3]",
        i="s8[8,3]",
    ),
    "dot of a sparse and scaled operand": op(
        "f32[2,4,3] dot(a, b, s, i), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
        "rhs_contracting_dims={1}, sparsity_config={lhs={sparsity=2x4 dimension=2 stride=1 idx=3}}, "
        "block_scaling_config={lhs={scale_idx=2 strides=1x1x8 steps=1x1x1}}",
        a="bf16[2,4,8]",
        b="bf16[2,16,3]",
        s="f8e8m0fnu[2,4,2]",
        i="s8[2,4,8]",
    ),
    "convolution of a scaled operand": op(
        "f32[2,3] convolution(a, b, s), dim_labels=bf_io->bf, block_scaling_config={lhs={scale_idx=2 strides=1x8}}",
        a="bf16[2,16]",
        b="bf16[16,3]",
        s="f8e8m0fnu[2,2]",
    ),
    "topk that need not be stable": op("(f32[2], s32[2]) topk(a), k=2, largest=true, is_stable=false", a="f32[5]"),
    "async-update and async-done of a parameter": op(f"f32[2] async-done({_STARTED} async-update(a))", a=_STARTED),
    "shorthand's update and done of a parameter": op(f"f32[2] add-done({_STARTED} add-update(a))", a=_STARTED),
    "async-done on a thread, of a parameter": op('f32[2] async-done(a), async_execution_thread="side"', a=_STARTED),
    "async-done of a tuple's element": module(
        f"""a = f32[2] parameter(0)
        s = {_STARTED} async-start(a, a), calls=inner
        t = (f32[2], {_STARTED}) tuple(a, s)
        g = {_STARTED} get-tuple-element(t), index=1
        ROOT d = f32[2] async-done(g)""",
        _DIFFERENCE,
    ),
    "async-update with further operands and aliases": module(
        """a = f32[2] parameter(0)
        s = ((f32[2]), (), (s32[], s32[3])) async-start(a), calls=inner
        u = ((f32[2], f32[2]), f32[2], (s32[3])) async-update(s, a), output_to_operand_aliasing={{2,0}: (0, {2,1})}
        ROOT d = f32[2] async-done(u)""",
        _DIFFERENCE,
    ),
    "shorthand whose operands come late": module(
        """a = f32[2] parameter(0)
        s = ((), (), s32[]) call-start(), to_apply=inner
        t = ((f32[2]), (), s32[]) call-update(s, a)
        u = ((f32[2], f32[2]), f32[2], s32[]) call-update(t, a)
        ROOT d = f32[2] call-done(u)""",
        _DIFFERENCE,
    ),
    "async-update with further operands": module(
        f"""a = f32[2] parameter(0)
        b = f32[2] parameter(1)
        s = ((f32[2]), (), s32[]) async-start(a), calls=inner
        u = {_STARTED} async-update(s, b)
        ROOT d = f32[2] async-done(u)""",
        _DIFFERENCE,
    ),
}
