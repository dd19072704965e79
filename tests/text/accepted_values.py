"""Texts that XLA accepts: shapes, layouts and literals."""

from __future__ import annotations

from tests.text.building import module, op


def _parameter(shape: str) -> str:
    return module(f"ROOT p = {shape} parameter(0)")


def _constant(text: str) -> str:
    return module(f"ROOT c = {text}")


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
    VALUES[f"shape {_shape}"] = _parameter(_shape)

for _element in (
    "pred s1 s2 s4 s8 s16 s32 s64 u1 u2 u4 u8 u16 u32 u64 f16 bf16 f32 f64 f8e5m2 f8e4m3 f8e4m3fn f8e4m3b11fnuz f8e5m2fnuz "
    "f8e4m3fnuz f8e3m4 f4e2m1fn f8e8m0fnu c64 c128"
).split():
    VALUES[f"parameter of {_element}"] = _parameter(f"{_element}[2,2]{{1,0}}")

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
VALUES |= {f"literal {text}": _constant(text) for text in _LITERALS}
VALUES["a compare of large constants"] = op("pred[40] compare(a, a), direction=EQ", a="s32[40]")
