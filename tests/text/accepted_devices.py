"""Texts that XLA accepts: what talks to other devices, to the host and to libraries."""

from tests.text.building import ADD, module, op

_F2 = "f32[2]{0}"
_PAIR = """negated {
  a = f32[2] parameter(0)
  ROOT n = f32[2] negate(a)
}
"""
_SIDE = """negated {
  a = f32[2] parameter(0)
  ROOT n = f32[2] negate(a)
}, execution_thread="side"
"""


def _all_reduce(attributes: str) -> str:
    return op(f"f32[2] all-reduce(a), {attributes}to_apply=add_f32", ADD, a=_F2)


def _custom_call(attributes: str, shape: str = "f32[2]{0}", computations: str = "") -> str:
    return op(f'{shape} custom-call(a, b), custom_call_target="target"{attributes}', computations, a=_F2, b=_F2)


DEVICES: dict[str, str] = {
    "all-reduce without groups": _all_reduce(""),
    "all-reduce with empty groups": _all_reduce("replica_groups={}, "),
    "all-reduce with one group": _all_reduce("replica_groups={{0,1,2,3}}, "),
    "all-reduce with groups": _all_reduce("replica_groups={{0,1},{2,3}}, "),
    "all-reduce with spaced groups": _all_reduce("replica_groups={{0, 1}, {2, 3}}, "),
    "all-reduce with an iota": _all_reduce("replica_groups=[2,4]<=[8], "),
    "all-reduce with a transposed iota": _all_reduce("replica_groups=[2,4]<=[4,2]T(1,0), "),
    "all-reduce with a three-dimensional iota": _all_reduce("replica_groups=[4,2]<=[2,2,2]T(2,0,1), "),
    "all-reduce along a mesh axis": _all_reduce("replica_groups=mesh['x'=2,'y'=2] {'x'}, "),
    "all-reduce along several mesh axes": _all_reduce("replica_groups=mesh['x'=2,'y'=2] {'x','y'}, "),
    "all-reduce along part of a mesh axis": _all_reduce("replica_groups=mesh['x'=4,'y'=2] {'x':(1)2}, "),
    "all-reduce along several parts of a mesh axis": _all_reduce("replica_groups=mesh['x'=12] {'x':(6)2,'x':(1)3}, "),
    "all-reduce along mesh axes by number": _all_reduce("replica_groups=mesh['x'=2,'y'=4] {'1':(1)2,'0'}, "),
    "all-reduce along an axis whose name is a number": _all_reduce("replica_groups=mesh['1'=2,'y'=4] {'1'}, "),
    "sharding along mesh axes by number": op("f32[2] copy(a), sharding={mesh['x'=2,'y'=4], [{'1'}]}", a=_F2),
    "sharding along an empty mesh axis": op("f32[2] copy(a), sharding={mesh['x'=0,'y'=4], [{'x'}]}", a=_F2),
    "all-reduce along a mesh of listed devices": _all_reduce(
        "replica_groups=mesh['x'=2,'y'=2], device_ids=(3,2,1,0) {'y'}, "
    ),
    "all-reduce along a transposed mesh": _all_reduce(
        "replica_groups=mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'x'}, "
    ),
    "all-reduce with a channel": _all_reduce("channel_id=7, replica_groups={{0,1}}, use_global_device_ids=true, "),
    "all-reduce that constrains layouts": _all_reduce("constrain_layout=true, "),
    "all-reduce with the attribute mode": _all_reduce("channel_id=1, mode=cross_replica_and_partition, "),
    "all-reduce of several operands": op(
        "(f32[2], f32[3]) all-reduce(a, b), replica_groups={{0,1}}, to_apply=add_f32", ADD, a=_F2, b="f32[3]"
    ),
    "all-reduce with an inline reducer": op(
        "f32[2] all-reduce(a), to_apply={ x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }",
        a=_F2,
    ),
    "all-reduce-start": module(
        """a = f32[2] parameter(0)
        s = f32[2] all-reduce-start(a), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add_f32
        ROOT d = f32[2] all-reduce-done(s)""",
        ADD,
    ),
    "all-gather": op("f32[4] all-gather(a), replica_groups={{0,1}}, dimensions={0}", a=_F2),
    "all-gather with everything": op(
        "f32[4] all-gather(a), channel_id=1, replica_groups=[1,2]<=[2], constrain_layout=true, dimensions={0}, "
        "use_global_device_ids=true",
        a=_F2,
    ),
    "all-gather of several operands": op(
        "(f32[4], s32[6]) all-gather(a, b), replica_groups={{0,1}}, dimensions={0}", a=_F2, b="s32[3]"
    ),
    "all-gather-start": module(
        """a = f32[2] parameter(0)
        s = (f32[2], f32[4]) all-gather-start(a), replica_groups={{0,1}}, dimensions={0}
        ROOT d = f32[4] all-gather-done(s)"""
    ),
    "reduce-scatter": op(
        "f32[1] reduce-scatter(a), channel_id=2, replica_groups={{0,1}}, use_global_device_ids=true, dimensions={0}, "
        "to_apply=add_f32",
        ADD,
        a=_F2,
    ),
    "reduce-scatter of several operands": op(
        "(f32[1], f32[2]) reduce-scatter(a, b), replica_groups={{0,1}}, dimensions={0}, to_apply=add_f32",
        ADD,
        a=_F2,
        b="f32[4]",
    ),
    "all-to-all": op("f32[4] all-to-all(a), replica_groups={{0,1}}, dimensions={0}", a="f32[4]"),
    "all-to-all of a tuple": op("(f32[2], f32[2]) all-to-all(a, b), replica_groups={{0,1}}", a=_F2, b=_F2),
    "all-to-all with a channel": op(
        "f32[4] all-to-all(a), channel_id=3, replica_groups={{0,1}}, constrain_layout=true, dimensions={0}", a="f32[4]"
    ),
    "ragged-all-to-all": op(
        "f32[8] ragged-all-to-all(a, o, i, s, t, r), channel_id=1, replica_groups={{0,1}}",
        a="f32[8]",
        o="f32[8]",
        i="s32[2]",
        s="s32[2]",
        t="s32[2]",
        r="s32[2]",
    ),
    "collective-broadcast": op("f32[2] collective-broadcast(a), channel_id=1, replica_groups={{0,1},{2,3}}", a=_F2),
    "collective-permute": op("f32[2] collective-permute(a), source_target_pairs={{0,1},{1,0}}", a=_F2),
    "collective-permute of no pairs": op("f32[2] collective-permute(a), source_target_pairs={}", a=_F2),
    "collective-permute with a channel": op(
        "f32[2] collective-permute(a), channel_id=4, source_target_pairs={{0,1},{1,2},{2,0}}", a=_F2
    ),
    "collective-permute of several operands": op(
        "(f32[2], f32[3]) collective-permute(a, b), source_target_pairs={{0,1}}", a=_F2, b="f32[3]"
    ),
    "collective-permute in place": op(
        "f32[8] collective-permute(a, o, i, j), source_target_pairs={{0,1}}, slice_sizes={{2}}",
        a="f32[8]",
        o="f32[8]",
        i="(s32[])",
        j="(s32[])",
    ),
    "collective-permute-start": module(
        """a = f32[2] parameter(0)
        s = (f32[2], f32[2], u32[], u32[]) collective-permute-start(a), source_target_pairs={{0,1}}
        ROOT d = f32[2] collective-permute-done(s)"""
    ),
    "partition-id": op("u32[] partition-id()"),
    "replica-id": op("u32[] replica-id()"),
    "send and recv": module(
        """a = f32[2] parameter(0)
        t = token[] after-all()
        r = (f32[2], u32[], token[]) recv(t), channel_id=1
        rd = (f32[2], token[]) recv-done(r), channel_id=1
        s = (f32[2], u32[], token[]) send(a, t), channel_id=2
        ROOT sd = token[] send-done(s), channel_id=2"""
    ),
    "send and recv with the host": module(
        """a = f32[2] parameter(0)
        t = token[] after-all()
        r = (f32[2], u32[], token[]) recv(t), channel_id=1, is_host_transfer=true
        rd = (f32[2], token[]) recv-done(r), channel_id=1, is_host_transfer=true
        s = (f32[2], u32[], token[]) send(a, t), channel_id=2, is_host_transfer=true
        ROOT sd = token[] send-done(s), channel_id=2, is_host_transfer=true"""
    ),
    "send and recv between pairs": module(
        """a = f32[2] parameter(0)
        t = token[] after-all()
        r = (f32[2], u32[], token[]) recv(t), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1}}}
        s = (f32[2], u32[], token[]) send(a, t), channel_id=1, control-predecessors={r}
        rd = (f32[2], token[]) recv-done(r), channel_id=1, control-predecessors={s, a}
        ROOT sd = token[] send-done(s), channel_id=1"""
    ),
    "send without a channel": module(
        """a = f32[2] parameter(0)
        t = token[] after-all()
        s = (f32[2], u32[], token[]) send(a, t)
        ROOT sd = token[] send-done(s)"""
    ),
    "infeed": op("(f32[2], token[]) infeed(t)", t="token[]"),
    "infeed with configuration": op('((f32[2], s32[]), token[]) infeed(t), infeed_config="\\001x"', t="token[]"),
    "outfeed": op("token[] outfeed(a, t)", a=_F2, t="token[]"),
    "outfeed with shape and configuration": op(
        'token[] outfeed(a, t), outfeed_shape=f32[2]{0}, outfeed_config="abc"', a=_F2, t="token[]"
    ),
    "custom-call": _custom_call(""),
    "custom-call with side effect": _custom_call(", custom_call_has_side_effect=true"),
    "custom-call of every version": _custom_call(", api_version=API_VERSION_ORIGINAL"),
    "custom-call that returns status": _custom_call(", api_version=API_VERSION_STATUS_RETURNING"),
    "custom-call that returns status in one": _custom_call(", api_version=API_VERSION_STATUS_RETURNING_UNIFIED"),
    "custom-call typed": _custom_call(', api_version=API_VERSION_TYPED_FFI, backend_config={a = 1 : i32, b = "x"}'),
    "custom-call scheduled early": _custom_call(", schedule=SCHEDULE_EARLIEST"),
    "custom-call scheduled late": _custom_call(", schedule=SCHEDULE_LATEST"),
    "custom-call scheduled anywhere": _custom_call(", schedule=SCHEDULE_NONE"),
    "custom-call with layouts": _custom_call(", operand_layout_constraints={f32[2]{0}, f32[2]{0}}"),
    "custom-call with aliases": _custom_call(
        ", output_to_operand_aliasing={{0}: (0, {}), {1}: (1, {})}", "(f32[2], f32[2])"
    ),
    "custom-call with a window": _custom_call(
        ", window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=2, batch_group_count=3"
    ),
    "custom-call with question marks": _custom_call(", dim_labels=b??f_?i?o->bf??"),
    "custom-call with padding type": _custom_call(", padding_type=PADDING_SAME"),
    "custom-call with valid padding": _custom_call(", padding_type=PADDING_VALID"),
    "custom-call with a literal": _custom_call(", literal=s32[2]{0} {1, 2}"),
    "custom-call with a tuple literal": _custom_call(", literal=(s32[] 1, f32[2]{0} {1, 2})"),
    "custom-call with a scalar literal": _custom_call(", literal=f32[] 2.5"),
    "custom-call with precision": _custom_call(", operand_precision={highest,default}"),
    "custom-call with to_apply": _custom_call(", to_apply=add_f32", computations=ADD),
    "custom-call with computations": _custom_call(", called_computations={add_f32, negated}", computations=ADD + _PAIR),
    "custom-call with no computations": _custom_call(", called_computations={}"),
    "custom-call with a string": _custom_call(', backend_config="opaque \\"bytes\\" \\001\\377 \\\\ \\n\\t end"'),
    "custom-call with an empty string": _custom_call(', backend_config=""'),
    "custom-call with an object": _custom_call(
        ', backend_config={"gemm_backend_config":{"alpha_real":1,"epilogue":"DEFAULT","s":"}{\\"\\\\"},"queue":["0"]}'
    ),
    "custom-call with an object in a string": _custom_call(', backend_config="{\\"alpha\\":1}"'),
    "custom-call with an unbalanced string": _custom_call(', backend_config="{\\"alpha\\":1"'),
    "custom-call with an empty object": _custom_call(", backend_config={}"),
    "custom-call with a target of odd characters": op('f32[] custom-call(), custom_call_target="a b\\"c\'d\\303\\251"'),
    "async-start": module(
        """a = f32[2] parameter(0)
        s = ((f32[2]), f32[2], s32[]) async-start(a), calls=negated
        u = ((f32[2]), f32[2], s32[]) async-update(s)
        ROOT d = f32[2] async-done(u)""",
        _PAIR,
    ),
    "async-start on a thread": module(
        """a = f32[2] parameter(0)
        s = ((f32[2]), f32[2], s32[]) async-start(a), async_execution_thread="side", calls=negated
        ROOT d = f32[2] async-done(s), calls=negated""",
        _SIDE,
    ),
    "async-done that repeats what it knows": module(
        """a = f32[2] parameter(0)
        s = ((f32[2]), f32[2], s32[]) async-start(a), async_execution_thread="main", calls=%negated
        u = ((f32[2]), f32[2], s32[]) async-update(s), async_execution_thread="main", calls=%negated
        ROOT d = f32[2] async-done(u), async_execution_thread="main", calls=%negated""",
        _PAIR,
    ),
    "async-start with aliases": module(
        """a = f32[2] parameter(0)
        s = ((f32[2]), f32[2], s32[]) async-start(a), output_to_operand_aliasing={{1}: (0, {})}, calls=negated
        ROOT d = f32[2] async-done(s)""",
        _PAIR,
    ),
    "async sugar": module(
        """a = f32[2] parameter(0)
        b = f32[2] parameter(1)
        s = ((f32[2], f32[2]), f32[2], u32[]) add-start(a, b)
        u = ((f32[2], f32[2]), f32[2], u32[]) add-update(s)
        ROOT d = f32[2] add-done(u)"""
    ),
    "async sugar twice": module(
        """a = f32[2] parameter(0)
        s = ((f32[2]), f32[2], u32[]) negate-start(a)
        d = f32[2] negate-done(s)
        t = ((f32[2]), f32[2], u32[]) negate-start(d)
        ROOT e = f32[2] negate-done(t)"""
    ),
    "async sugar on a thread": module(
        """a = f32[2] parameter(0)
        s = ((f32[2]), f32[2], u32[]) negate-start(a), async_execution_thread="side"
        u = ((f32[2]), f32[2], u32[]) negate-update(s), async_execution_thread="side"
        ROOT d = f32[2] negate-done(u), async_execution_thread="side\""""
    ),
    "async custom-call": module(
        """a = f32[2] parameter(0)
        s = ((f32[2]), f32[2], s32[]) custom-call-start(a), custom_call_target="foo", metadata={op_name="n"}
        ROOT d = f32[2] custom-call-done(s)"""
    ),
    "async slice with metadata and configuration": module(
        """a = f32[8] parameter(0)
        s = ((f32[8]), f32[2], s32[]) slice-start(a), slice={[0:2]}, metadata={op_name="n"}, backend_config={"a":1}
        ROOT d = f32[2] slice-done(s)"""
    ),
    "async all-to-all": module(
        """a = f32[4] parameter(0)
        s = ((f32[4]), f32[4]) all-to-all-start(a), replica_groups={{0,1}}, dimensions={0}
        u = ((f32[4]), f32[4]) all-to-all-update(s)
        ROOT d = f32[4] all-to-all-done(u)"""
    ),
    "async reduce-scatter": module(
        """a = f32[4] parameter(0)
        s = ((f32[4]), f32[2], u32[]) reduce-scatter-start(a), replica_groups={{0,1}}, dimensions={0}, to_apply=add_f32
        ROOT d = f32[2] reduce-scatter-done(s)""",
        ADD,
    ),
    "async dynamic-slice of scalars": module(
        """a = f32[8] parameter(0)
        i = s32[] parameter(1)
        s = ((f32[8], s32[]), f32[2], u32[]) dynamic-slice-start(a, i), dynamic_slice_sizes={2}
        ROOT d = f32[2] dynamic-slice-done(s)"""
    ),
    "async call": module(
        """a = f32[2] parameter(0)
        s = ((f32[2]), f32[2], s32[]) call-start(a), to_apply=negated
        ROOT d = f32[2] call-done(s)""",
        _PAIR,
    ),
}

for _algorithm in (
    "dot_any_f8_any_f8_f32 dot_any_f8_any_f8_f32_fast_accum dot_f16_f16_f16 dot_f16_f16_f32 dot_bf16_bf16_bf16 "
    "dot_bf16_bf16_f32 dot_bf16_bf16_f32_x3 dot_bf16_bf16_f32_x6 dot_bf16_bf16_f32_x9 dot_tf32_tf32_f32 "
    "dot_tf32_tf32_f32_x3 dot_f32_f32_f32 dot_f64_f64_f64"
).split():
    DEVICES[f"dot with {_algorithm}"] = op(
        f"f32[] dot(a, b), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}, algorithm={_algorithm}", a=_F2, b=_F2
    )
