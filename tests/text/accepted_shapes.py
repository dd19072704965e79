"""Texts that XLA accepts though they leave result shapes out, or state them in part: it has a rule for each layout."""

from __future__ import annotations

from tests.text.building import ADD, LESS, module, op

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
