"""Texts that XLA rejects: shapes, layouts and literals."""

from __future__ import annotations

from tests.text.building import module

__all__ = ["VALUES"]


def _parameter(shape: str) -> str:
    return module(f"ROOT p = {shape} parameter(0)")


def _constant(text: str) -> str:
    return module(f"ROOT c = {text}")


VALUES: dict[str, str] = {
    "type unknown": module("ROOT p = §f31[2] parameter(0)"),
    "type without brackets": module("ROOT p = f32 §parameter(0)").replace("= f32", "= §f32"),
    "dimension that is a word": _parameter("§f32[§x]"),
    "dimension that is negative": _parameter("§f32[§-1]§"),
    "dimension that is a decimal": _parameter("§f32[§1.5]"),
    "number of more digits than Python reads": _constant(f"f32[] constant(§{'9' * 5000})"),
    "dimension beyond 64 bits": _parameter("§f32[§99999999999999999999]"),
    "dimensions of a type without an end": _parameter("§f32[2§"),
    "dimensions of a type with an open comma": _parameter("§f32[2,§]"),
    "dimensions of a type without commas": _parameter("§f32[2 §3]"),
    "bound of nothing": _parameter("§f32[<=§]"),
    "bound unknown": _parameter("§f32[<=§?]"),
    "tuple without commas": _parameter("(f32[2] §f32[3])"),
    "tuple without an end": _parameter("(f32[2], f32[3] §"),
    "tuple with an open comma": _parameter("(f32[2], §)"),
    "buffer of a tuple": _parameter("§b(§(f32[2])§)"),
    "layout of another rank": _parameter("§f32[2,3]§{§0}§"),
    "layout of an unknown letter": _parameter("§f32[2]{0:§Z(1)}"),
    "layout with fields out of order": _parameter("§f32[2]{0:S(1)§T(8)}"),
    "layout with an empty element size": _parameter("§f32[2]{0:E(§)}"),
    "layout with an unknown level": _parameter("§f32[2]{0:D(§Q)}"),
    "layout with a tile of words": _parameter("§f32[2]{0:T(§x)}"),
    "layout with a tile of less than nothing": _parameter("§f32[2]{0:T(§-1)}"),
    "layout with an alignment of nothing": _parameter("§f32[2]{0:L(§0)}"),
    "layout with a decimal": _parameter("§f32[2]{§0.0}"),
    "layout with a physical shape": _parameter("§f32[2]§{0:§P§(f32[2])}§"),
    "literal of too few elements": _constant("f32[3] constant({1, 2§})"),
    "literal of too many elements": _constant("f32[2] constant({1, 2, §3§})"),
    "literal of too few rows": _constant("f32[2,2] constant({{1, 2}§})"),
    "literal of too many rows": _constant("f32[1,2] constant({{1, 2}, §{3, 4}})"),
    "literal nested too deeply": _constant("f32[2] constant({§{1, 2}})"),
    "literal not nested enough": _constant("f32[2,2] constant({§1, 2, 3, 4})"),
    "literal of a scalar in braces": _constant("f32[] constant(§{1})"),
    "literal of a vector without braces": _constant("f32[2] constant(§1§, 2)"),
    "literal that is empty": _constant("f32[] constant(§)"),
    "literal that is a word": _constant("f32[] constant(§x)"),
    "literal that is a string": _constant('f32[] constant(§"1")'),
    "literal of decimals for integers": _constant("s32[] constant(§1.0)"),
    "literal of an exponent for integers": _constant("s32[] constant(§1e3)"),
    "literal of infinity for integers": _constant("s32[] constant(§inf)"),
    "literal of NaN for integers": _constant("s32[] constant(§nan)"),
    "literal beyond s8": _constant("s8[] constant(§128)"),
    "literal below s8": _constant("s8[] constant(§-129)"),
    "literal beyond u8": _constant("u8[] constant(§256)"),
    "literal below u8": _constant("u8[] constant(§-1)"),
    "literal beyond s4": _constant("s4[] constant(§8)"),
    "literal beyond u4": _constant("u4[] constant(§16)"),
    "literal beyond s2": _constant("s2[] constant(§2)"),
    "literal beyond u1": _constant("u1[] constant(§2)"),
    "literal beyond s32": _constant("s32[] constant(§2147483648)"),
    "literal beyond u32": _constant("u32[] constant(§4294967296)"),
    "literal beyond u64": _constant("u64[] constant(§18446744073709551616)"),
    "literal below s64": _constant("s64[] constant(§-9223372036854775809)"),
    "literal beyond f16": _constant("f16[] constant(§1e6)"),
    "literal beyond bf16": _constant("bf16[] constant(§1e39)"),
    "literal beyond f32": _constant("f32[] constant(§3.5e38)"),
    "literal beyond f64": _constant("f64[] constant(§1e400)"),
    "literal beyond f8e4m3fn": _constant("f8e4m3fn[] constant(§1000)"),
    "literal beyond f8e5m2": _constant("f8e5m2[] constant(§1e6)"),
    "literal with a payload too large": _constant("f16[] constant(§nan(0x400))"),
    "literal with a payload of zero": _constant("f32[] constant(§nan(§0x0))"),
    "literal with a payload of no number": _constant("f32[] constant(§nan§(§zz))"),
    "literal with a payload where there is none": _constant("f8e4m3fn[] constant(§nan(0x1))"),
    "literal complex without an imaginary part": _constant("c64[] constant(§(1§))"),
    "literal complex without parentheses": _constant("c64[] constant(§1)"),
    "literal complex of words": _constant("c64[] constant((§x, 1))"),
    "literal complex beyond its range": _constant("c64[] constant(§(§1e39, 0))"),
    "literal real in parentheses": _constant("f32[] constant(§(1, 2))"),
    "literal elided in a row": _constant("f32[2,2] constant({{§...}, {...}})"),
    "literal elided without braces": _constant("f32[2] constant(§...)"),
    "literal of a tuple elided": _constant("(f32[2], s32[]) constant(§{§...})"),
    "literal of a tuple of too few": _constant("(f32[], f32[]) constant((1§))"),
    "literal of a tuple of too many": _constant("(f32[]) constant((1§, 2))"),
    "literal of a tuple without parentheses": _constant("(f32[]) constant(§1)"),
    "literal without an end": _constant("f32[2] constant({1, 2§") + "§",
    "literal true for a float": _constant("f32[] constant(§true)"),
    "literal of a token": _constant("token[] §constant(§0)"),
}  # fmt: skip
