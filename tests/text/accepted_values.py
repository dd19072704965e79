"""Texts that XLA accepts: shapes, layouts and literals."""

from tests.text.building import ADD, F2, LESS, constant, module, op, parameter

VALUES: dict[str, str] = {}

for _shape in (
    "f32[]",
    "f32[0]",
    "f32[2,0,3]",
    "f32[2,3]{0,1}",
    "f32[2, 3]{1, 0}",
    "f32[ 2 , 3 ] { 1 , 0 }",
    "f32[2,3,4,5]{3,1,2,0}",
    "f32[9223372036854775807]",
    "token[]",
    "opaque[]",
    "()",
    "(f32[2])",
    "(f32[2], (s32[], (pred[1,1], token[])), ())",
    "(f32[2],f32[3]{0},)".replace(",)", ")"),
    "(f32[2], /*index=1*/f32[3])",
    "f32[<=4]",
    "f32[<=4,8,<=2]{2,1,0}",
    "f32[?]",
    "f32[?,4]{1,0}",
    "b(f32[8]{0})",
    "(b(f32[8]{0}), s32[])",
    "f32[256,128]{1,0:T(8,128)}",
    "bf16[256,128]{1,0:T(8,128)(2,1)}",
    "pred[256,128]{1,0:T(32,128)(4,1)}",
    "f32[2,3]{1,0:T(2,*)}",
    "f32[2,3,4]{2,1,0:T(*,4)}",
    "f32[4]{0:T(128)S(1)}",
    "f32[4]{0:S(5)}",
    "f32[4]{0:S(6)}",
    "f32[4]{0:T(256)L(2)E(32)S(1)SC(0:1,2)}",
    "f32[8,8]{1,0:SC(0:2,4)(1:4)}",
    "f32[4]{0:E(64)}",
    "s4[4]{0:E(4)}",
    "f32[4]{0:L(1024)}",
    "f32[4]{0:T(128)L(2)}",
    "f32[4]{0:#(u32)*(u64)}",
    "f32[4]{0:#(s32)*(s64)}",
    "f32[4]{0:#(u8)}",
    "f32[4]{0:*(u16)}",
    "f32[4]{0:D(D)}",
    "f32[8,8]{1,0:D(D,C)}",
    "f32[8,8]{1,0:D(D,C+)#(u32)*(u32)}",
    "f32[8,8]{1,0:D(C+~,S~)}",
    "f32[8]{0:D(H)}",
    "f32[<=4]{0:M(16)}",
    "f32[<=4]{0:T(4)M(64)}",
    "f32[4]{0:}",
    "f32[]{:T(128)}",
    "f32[]{:S(0)}",
    "f32[]{:S(1)}",
    "f32[]{:T(128)S(6)}",
):
    VALUES[f"shape {_shape}"] = parameter(_shape)

for _element in (
    "pred s1 s2 s4 s8 s16 s32 s64 u1 u2 u4 u8 u16 u32 u64 f16 bf16 f32 f64 f8e5m2 f8e4m3 f8e4m3fn f8e4m3b11fnuz f8e5m2fnuz "
    "f8e4m3fnuz f8e3m4 f4e2m1fn f8e8m0fnu c64 c128"
).split():
    VALUES[f"parameter of {_element}"] = parameter(f"{_element}[2,2]{{1,0}}")

_LITERALS = (
    "pred[] constant(true)",
    "pred[3] constant({true, false, true})",
    "pred[3] constant({1, 0, 1})",
    "pred[2] constant({1,7})",
    "s1[2] constant({0, -1})",
    "s2[4] constant({-2, -1, 0, 1})",
    "s4[4] constant({-8, -1, 0, 7})",
    "s8[3] constant({-128, 0, 127})",
    "s16[2] constant({-32768, 32767})",
    "s32[2] constant({-2147483648, 2147483647})",
    "s64[2] constant({-9223372036854775808, 9223372036854775807})",
    "u1[2] constant({0, 1})",
    "u2[4] constant({0, 1, 2, 3})",
    "u4[2] constant({0, 15})",
    "u8[2] constant({0, 255})",
    "u16[2] constant({0, 65535})",
    "u32[2] constant({0, 4294967295})",
    "u64[2] constant({0, 18446744073709551615})",
    "f16[6] constant({0, -0.0, 1.5, 65504, -65504, 5.96e-08})",
    "f16[4] constant({inf, -inf, nan, -nan})",
    "bf16[5] constant({0, -0.0, 3.14, 3.38953139e+38, 1e-40})",
    "bf16[4] constant({inf, -inf, nan, -nan})",
    "f32[8] constant({0, -0.0, 0.5, -.5, 5., 1e10, 1E-5, 3.40282347e+38})",
    "f32[3] constant({1e-45, -1.17549435e-38, 0.1})",
    "f32[4] constant({inf, -inf, nan, -nan})",
    "f32[3] constant({nan(0x1), -nan(0x7fffff), nan(0x400000)})",
    "f64[3] constant({0.1, 1.7976931348623157e+308, 5e-324})",
    "f64[4] constant({inf, -inf, nan, -nan(0xfffffffffffff)})",
    "f16[2] constant({nan(0x1), nan(0x3ff)})",
    "bf16[2] constant({nan(0x1), -nan(0x7f)})",
    "f32[2] constant({1, 123456789012})",
    "f32[] constant(9223372036854775807)",
    "f8e5m2[5] constant({0, -0.0, 57344, inf, nan})",
    "f8e5m2[2] constant({nan(0x1), -nan(0x3)})",
    "f8e4m3[4] constant({1.5, 240, -inf, nan})",
    "f8e4m3fn[4] constant({1.5, 448, -0.0, nan})",
    "f8e4m3b11fnuz[3] constant({0.5, 30, -nan})",
    "f8e5m2fnuz[3] constant({0.5, 57344, -nan})",
    "f8e4m3fnuz[3] constant({0.5, 240, -nan})",
    "f8e3m4[3] constant({0.5, 15.5, inf})",
    "f4e2m1fn[4] constant({0, 0.5, -6, 6})",
    "f8e8m0fnu[3] constant({1, 0.5, nan})",
    "c64[2] constant({(1, 2), (-0.5, inf)})",
    "c64[] constant((1, -0.0))",
    "c64[1] constant({(nan, nan)})",
    "c128[1,2] constant({{(0.1, 1e300), (3, -4)}})",
    "f32[0] constant({})",
    "f32[2,0] constant({{}, {}})",
    "f32[0,2] constant({})",
    "f32[2,3] constant({{1, 2, 3}, {4, 5, 6}})",
    "f32[2,3] constant({ {1,2,3}, {4,5,6} })",
    "f32[2,3]{0,1} constant({{1, 2, 3}, {4, 5, 6}})",
    "f32[1,2,2] constant({ { /*i1=0*/ {1, 2}, {3, 4} } })",
    "s32[2,2,2] constant({{{1,2},{3,4}},{{5,6},{7,8}}})",
    "f32[3] constant({1 2 3})",
    "f32[3] constant({,1,,2,3,})",
    "s32[12] constant({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})",
    "f32[100] constant({...})",
    "f32[20,3] constant({...})",
    "pred[7,2]{0,1} constant({...})",
    "s4[30] constant({...})",
    "c64[30] constant({...})",
    "(f32[2], s32[]) constant(({1, 2}, 3))",
    "(f32[2], (s32[], pred[1])) constant(({1, 2}, (3, {true})))",
    "() constant(())",
    "(f32[20]) constant(({...}))",
    "f32[]{:T(128)} constant(1)",
    "f32[2]{0:T(128)S(1)} constant({1, 2})",
    "f32[2] constant(/* first */{1, /* second */ 2})",
    "f32[2]\n constant({1,\n // a remark\n 2})",
    "s32[] constant(007)",
    "u8[] constant(-0)",
    "f32[] constant(-0.0)",
    "f32[] constant(00.50e+01)",
)
VALUES |= {f"literal {text}": constant(text) for text in _LITERALS}
VALUES["a compare of large constants"] = op("pred[40] compare(a, a), direction=EQ", a="s32[40]")


_M = "f32[2,3]{0,1}"
_TILED = "f32[2,3]{0,1:T(8,128)S(1)}"
_PACKED = "s4[2,3]{0,1:E(4)}"
_SCATTER = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
_DOT = "dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
_NEGATED = "inner {\n x = f32[2] parameter(0)\n ROOT r = f32[2]{0:S(4)} negate(x)\n}\n"
_LOOP = """condition {
  x = (f32[2,3]) parameter(0)
  ROOT r = pred[] constant(false)
}
body {
  ROOT x = (f32[2,3]{1,0:S(3)}) parameter(0)
}
"""

SHAPES: dict[str, str] = {
    "layout of a negation": op("negate(a)", a=_TILED),
    "layout of a negation with other fields": op("negate(a)", a="f32[2,3]{0,1:L(2)SC(0:1)M(2)}"),
    "layout of a negation with level types": op("negate(a)", a="f32[2,3]{0,1:D(D,S)}"),
    "layout of a sum is the first operand's": op("add(a, b)", a=_M, b="f32[2,3]{1,0:S(1)}"),
    "layout of a sum whose first operand has none": op("add(a, b)", a="f32[2,3]", b=_M),
    "layout of a sum of packed integers": op("add(a, a)", a=_PACKED),
    "layout of packed integers that does not say so": op("add(a, a)", a="s4[2,3]{0,1}"),
    "type of a sum of bf16 and f16": op("add(b, a)", a="bf16[2,3]{0,1}", b="f16[2,3]"),
    "type of a sum of floats of eight bits": op("add(a, b)", a="f8e4m3fn[2,3]{0,1}", b="f8e5m2[2,3]"),
    "dynamic dimensions of a sum": op("add(a, b)", a="f32[<=2,3]{0,1}", b="f32[2,<=3]{1,0}"),
    "sum of an array and a scalar": op("add(a, b)", a=_M, b="f32[]"),
    "sum of a scalar and an array": op("add(b, a)", a=_M, b="f32[]"),
    "sum along a dimension of size 1": op("add(b, a)", a=_M, b="f32[2,1]"),
    "dynamic dimensions of a sum along a dimension of size 1": op("add(a, b)", a="f32[2,3]", b="f32[<=1,3]"),
    "dynamic dimensions of topk": op("topk(a), k=3, largest=true", a="f32[<=2,<=3]"),
    "scaled-dot whose third operand counts": op(
        "scaled-dot(a, s, b, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        a="f8e4m3fn[4,2]", s="f32[1]", b="f8e5m2[2,3]", t="f32[1]",
    ),
    "shift of an array by a scalar": op("shift-left(a, b)", a="s32[2,3]{0,1}", b="s32[]"),
    "element size of a sum of floats": op("add(a, a)", a="f32[2]{0:E(4)}"),
    "element size of a negation of floats": op("negate(a)", a="f32[2]{0:E(4)}"),
    "element size of a selection is the first choice's": op("select(p, a, a)", p="pred[2]{0:E(8)}", a="f32[2]{0:E(4)}"),
    "layout of a selection of scalars is the first choice's": op("select(p, a, a)", p="pred[]{:S(1)}", a="f32[]{:S(2)}"),
    "layout of a constant as operand": module("c = s4[2]{0:E(4)S(1)} constant({1, 2})\nROOT t = tuple(c)"),
    "constant with a dynamic dimension as operand": module("c = f32[<=2] constant({1, 2})\nROOT t = tuple(c)"),
    "layout of a comparison": op("compare(a, a), direction=LT", a=_TILED),
    "layout of a comparison of packed integers": op("compare(a, a), direction=LT", a=_PACKED),
    "layout of is-finite": op("is-finite(a)", a="f4e2m1fn[2,3]{0,1:E(4)}"),
    "layout of a complex number": op("complex(a, a)", a="f32[<=2,3]{0,1:S(1)}"),
    "layout of a real part": op("real(a)", a="c64[2,3]{0,1:S(1)}"),
    "layout of an absolute value": op("abs(a)", a="c64[2,3]{0,1:S(1)}"),
    "layout of a selection is the predicate's": op("select(p, a, a)", p="pred[2,3]{0,1:T(2,2)}", a="f32[2,3]{1,0}"),
    "layout of a selection of packed integers": op("select(p, a, a)", p="pred[2,3]{0,1}", a="s4[2,3]{1,0:E(4)}"),
    "layout of a selection by a scalar": op("select(p, a, b)", p="pred[]", a=_M, b="f32[2,3]{1,0}"),
    "dynamic dimensions of a selection": op("select(p, a, b)", p="pred[<=2,3]{0,1}", a="f32[2,3]", b="f32[2,<=3]"),
    "layout of clamp is that of the operand between": op("clamp(z, a, z)", z="f32[<=2,3]{1,0}", a=_M),
    "type of clamp is that of the operand between": op("clamp(z, a, z)", z="f32[]", a="bf16[2,3]{0,1}"),
    "layout of a transpose": op("transpose(a), dimensions={2,0,1}", a="f32[2,3,4]{0,1,2:T(2,2)(2)S(3)}"),
    "layout of a transpose of rows": op("transpose(a), dimensions={2,0,1}", a="f32[2,3,4]"),
    "layout of a transpose of packed integers": op("transpose(a), dimensions={1,0}", a=_PACKED),
    "bitcast of a transpose": module(
        "a = f32[2,3,4] parameter(0)\nt = transpose(a), dimensions={1,2,0}\nROOT b = f32[24] bitcast(t)"
    ),
    "layout of a reversal": op("reverse(a), dimensions={0}", a="f32[<=2,3]{0,1:T(2,2)}"),
    "no layout of a concatenation": op("concatenate(a, a), dimensions={0}", a=_TILED),
    "type of a concatenation": op("concatenate(a, b), dimensions={0}", a="f16[2,3]{0,1}", b="bf16[2,3]"),
    "no layout of a pad": op("pad(a, z), padding=1_1x0_0", a=_PACKED, z="s4[]"),
    "type of a pad": op("pad(a, z), padding=1_1x0_0", a="bf16[2,3]{0,1}", z="f32[]"),
    "broadcast whose dimensions are sizes": op("broadcast(a), dimensions={5,1}", a="f32[<=3]{0:S(1)}"),
    "broadcast of a scalar to sizes": op("broadcast(a), dimensions={5,7}", a="f32[]"),
    "no layout of a reduction": op("reduce(a, z), dimensions={0}, to_apply=add_f32", ADD, a="f32[2,3,4]{0,1,2}", z="f32[]"),
    "type of a dot of two widths": op(_DOT, a="bf16[2,3]{0,1}", b="f32[3,2]"),
    "type of a dot of integers": op(_DOT, a="s4[2,3]", b="s8[3,2]"),
    "type of a dot of signed and unsigned integers": op(_DOT, a="u8[2,3]", b="s8[3,2]"),
    "type of a dot of integers and floats": op(_DOT, a="s8[2,3]", b="f32[3,2]"),
    "type of a convolution of two widths": op(
        "convolution(a, k), window={size=3}, dim_labels=b0f_0io->b0f", a="bf16[1,6,4]{0,1,2}", k="f32[3,4,8]"
    ),
    "dynamic dimension of a convolution": op(
        "convolution(a, k), window={size=3}, dim_labels=b0f_0io->b0f", a="f32[1,6,4]", k="f32[<=3,4,8]"
    ),
    "dynamic features of batch-norm-training": op("batch-norm-training(a, s, s), epsilon=1, feature_index=1", a="f32[2,<=3]", s="f32[3]"),
    "layout of set-dimension-size": op("set-dimension-size(a, n), dimensions={0}", a="f32[2,3]{0,1:S(1)}", n="s32[]"),
    "layouts of a tuple": op("tuple(a, b)", a=_TILED, b="s4[2]{0:E(4)}"),
    "layouts of a copied tuple": op("copy(a)", a=f"({_TILED})"),
    "layout of a sorted array": op("sort(a), dimensions={0}, to_apply=less", LESS, a=_TILED),
    "layout of an fft": op("fft(a), fft_type=RFFT, fft_length={3}", a=_TILED),
    "layout of a Cholesky factor": op("cholesky(a), lower=true", a="f32[3,3]{0,1}"),
    "layout of a solution is the right side's": op(
        "triangular-solve(a, b), left_side=true, lower=true, transpose_a=NO_TRANSPOSE, unit_diagonal=false",
        a="f32[3,3]", b="f32[3,2]{0,1:S(1)}",
    ),
    "layout of batch-norm-training": op("batch-norm-training(a, s, s), epsilon=1, feature_index=1", a=_TILED, s="f32[3]{0:S(2)}"),
    "layout of batch-norm-inference": op("batch-norm-inference(a, s, s, s, s), epsilon=1, feature_index=1", a=_TILED, s="f32[3]"),
    "layout of batch-norm-grad": op("batch-norm-grad(a, s, s, s, b), epsilon=1, feature_index=1", a=_TILED, b="f32[2,3]", s="f32[3]"),
    "layout of a scatter": op(f"scatter(a, i, u), {_SCATTER}, to_apply=add_f32", ADD, a=_TILED, i="s32[5,1]", u="f32[5,3]"),
    "layout of select-and-scatter": op(
        "select-and-scatter(a, s, z), window={size=1x1}, select=less, scatter=add_f32", LESS + ADD, a=_M, s="f32[2,3]", z="f32[]"
    ),
    "layout of a loop's result is its operand's": op("while(a), condition=condition, body=body", _LOOP, a="(f32[2,3]{0,1:S(1)})"),
    "layout of a call is the callee's": op("call(a), to_apply=inner", _NEGATED, a="f32[2]{0:S(1)}"),
    "layout of a conditional is the branch's": op(
        "conditional(p, a, a), true_computation=inner, false_computation=inner", _NEGATED, p="pred[]", a="f32[2]"
    ),
    "types on operands that are dynamic elsewhere": module("a = f32[<=2,3] parameter(0)\nROOT b = f32[<=2,3] negate(f32[2,<=3] a)"),
    "tuple types on operands that are dynamic elsewhere": module(
        "a = (f32[<=2], s32[]) parameter(0)\nROOT b = s32[] get-tuple-element((f32[2], s32[]) a), index=1"
    ),
    "nested operand with a type that is dynamic elsewhere": module(
        "a = f32[2] parameter(0)\nROOT b = f32[2] negate(f32[<=2] negate(a))"
    ),
    "result of a computation that is dynamic elsewhere": "HloModule m\nENTRY e (a: f32[2]) -> f32[2] {\n a = f32[<=2] parameter(0)\n}\n",
    "names that asynchronous opcodes make up": module(
        "async_param = f32[2] parameter(0)\nnegate = f32[2] abs(async_param)\n"
        "s = ((f32[2]), f32[2], u32[]) negate-start(negate)\nROOT d = f32[2] negate-done(s)"
    ),
    "aliases of an asynchronous custom-call": op(
        '((f32[4]), f32[4], s32[]) custom-call-start(a), custom_call_target="t", output_to_operand_aliasing={{}: (0, {})}',
        a="f32[4]",
    ),
    "asynchronous opcode whose shape holds more operands": op("((f32[4], f32[4]), f32[4], s32[]) negate-start(a)", a="f32[4]"),
    "nested asynchronous instructions": module(
        "a = f32[2] parameter(0)\nnegate = f32[2] copy(a)\n"
        "ROOT r = f32[2] add(negate, f32[2] negate-done(((f32[2]), f32[2], s32[]) negate-start(a)))"
    ),
}  # fmt: skip


_STARTED = "((f32[2], f32[2]), f32[2], s32[])"
_DIFFERENCE = "inner {\n x = f32[2] parameter(0)\n y = f32[2] parameter(1)\n ROOT r = f32[2] subtract(x, y)\n}\n"
_GROUPS = "replica_groups={{0,1},{2,3}}"

NEWER: dict[str, str] = {
    "exp2": op("f32[2] exp2(a)", a=F2),
    "exp2 with an accuracy": op("f32[2] exp2(a), result_accuracy={mode=highest}", a=F2),
    "log2": op("f32[2] log2(a)", a=F2),
    "shuffle": op("f32[2,3] shuffle(a), dimensions={1,0}, mode=rotate, shifts={1,-4}", a="f32[2,3]"),
    "collective-reduce": op(
        f"f32[2] collective-reduce(a), {_GROUPS}, has_dynamic_root=false, to_apply=add_f32", ADD, a=F2
    ),
    "collective-reduce to a dynamic root": op(
        f"(f32[2], f32[2]) collective-reduce(a, b, r), channel_id=1, {_GROUPS}, use_global_device_ids=true, "
        "has_dynamic_root=true, to_apply=add_f32",
        ADD,
        a=F2,
        b=F2,
        r="s32[2]",
    ),
    "collective-broadcast from a dynamic root": op(
        f"f32[2] collective-broadcast(a, r), {_GROUPS}, has_dynamic_root=true", a=F2, r="s32[1]"
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
