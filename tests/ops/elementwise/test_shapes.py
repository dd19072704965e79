"""The shape rules of elementwise operations: what they infer, and the sentences with which they refuse."""

import pytest

import hloexec
from hloexec.language.text.shapes import parse_shape
from hloexec.ops.registry import OPCODES
from tests.ops.evaluation import assert_refused
from tests.text.building import op


def _operands(shapes: str) -> dict[str, str]:
    return dict(zip("abc", shapes.split(), strict=False))


@pytest.mark.parametrize(
    ("call", "shapes", "expected"),
    [
        ("add(a, b)", "f32[2,3] f32[2,3]", "f32[2,3]"),
        ("add(a, b)", "bf16[2,3] f32[2,3]", "f32[2,3]"),
        ("add(a, b)", "pred[2,3] pred[2,3]", "pred[2,3]"),
        ("abs(a)", "c64[2,3]", "f32[2,3]"),
        ("abs(a)", "s8[2,3]", "s8[2,3]"),
        ("real(a)", "c128[2,3]", "f64[2,3]"),
        ("imag(a)", "bf16[2,3]", "bf16[2,3]"),
        ("is-finite(a)", "f16[2,3]", "pred[2,3]"),
        ("complex(a, b)", "f32[2,3] f32[2,3]", "c64[2,3]"),
        ("complex(a, b)", "f64[2,3] f64[2,3]", "c128[2,3]"),
        ("select(a, b, c)", "pred[2,3] s4[2,3] s4[2,3]", "s4[2,3]"),
        ("select(a, b, c)", "pred[] f32[4] f32[4]", "f32[4]"),
        ("clamp(a, b, c)", "f16[2,3] f16[2,3] f16[2,3]", "f16[2,3]"),
        ("clamp(a, b, c)", "f32[] f32[4] f32[]", "f32[4]"),
        ("shift-left(a, b)", "u8[2,3] u8[2,3]", "u8[2,3]"),
        ("add(a, b)", "f32[4,3] f32[<=4,3]", "f32[<=4,3]"),
        ("add(a, b)", "f32[?,3] f32[<=4,3]", "f32[<=4,3]"),
        ("negate(a)", "f32[<=4,3]", "f32[<=4,3]"),
    ],
)
def test_the_result_follows_from_the_operands(call: str, shapes: str, expected: str) -> None:
    assert str(hloexec.parse(op(call, **_operands(shapes))).entry.root.shape) == expected


@pytest.mark.parametrize(
    ("call", "shapes", "words"),
    [
        ("f32[2] add(a, b)", "f32[2] s32[2]", "same element type"),
        ("pred[2] subtract(a, b)", "pred[2] pred[2]", "operand 0 of subtract must be of signed integers"),
        ("f32[2] and(a, b)", "f32[2] f32[2]", "operand 0 of and must be of pred, signed integers, unsigned integers"),
        ("pred[2] shift-left(a, b)", "pred[2] pred[2]", "shift-left must be of signed"),
        ("s32[2] cosine(a)", "s32[2]", "floating-point numbers, complex numbers"),
        ("c64[2] ceil(a)", "c64[2]", "must be of floating-point numbers, but has shape"),
        ("c64[2] erf(a)", "c64[2]", "must be of floating-point numbers"),
        ("u8[2] abs(a)", "u8[2]", "signed integers"),
        ("u8[2] sign(a)", "u8[2]", "signed integers"),
        ("bf16[2] not(a)", "bf16[2]", "must be of pred"),
        ("pred[2] popcnt(a)", "pred[2]", "must be of signed integers, unsigned integers"),
        ("pred[2] is-finite(a)", "s32[2]", "floating-point numbers"),
        ("c64[2] complex(a, b)", "f16[2] f16[2]", "f32 or f64"),
        ("c64[2] remainder(a, b)", "c64[2] c64[2]", "remainder must be of"),
        ("f32[2] select(a, b, c)", "s8[2] f32[2] f32[2]", "operand 0 of select must be of pred"),
        ("f32[2] select(a, b, c)", "pred[2] f32[2] s32[2]", "same element type"),
        ("f32[2] clamp(a, b, c)", "s32[2] f32[2] f32[2]", "min of clamp"),
        ("token[] add(a, b)", "token[] token[]", "must be an array"),
        *(
            ("f32[2] add(a, b)", f"f32[2] {other}", r"operands of add must have the same dimensions, but .* f32\[2\]")
            for other in "f32[3] f32[1] f32[] f32[2,1]".split()
        ),
        ("(f32[],f32[]) add(a, b)", "(f32[],f32[]) (f32[],f32[])", "must be an array"),
        ("(f32[],f32[]) negate(a)", "(f32[],f32[])", "must be an array"),
        ("(f32[],f32[]) select(a, b, c)", "pred[] (f32[],f32[]) (f32[],f32[])", "must be an array"),
        ("f32[4] clamp(a, b, c)", "f32[] f32[4] f32[1]", "operand and max of clamp"),
        ("f32[4] select(a, b, c)", "pred[1] f32[4] f32[4]", "pred and the other operands of select"),
        *(
            (f"pred[2] compare(a, a), direction=LT, type={kind}", f"{name}[2]", f"{name} has type .*, but {kind} is given")
            for name, kind in zip("f32 s32 u8 c64 pred".split(), "SIGNED UNSIGNED FLOAT TOTALORDER SIGNED".split(), strict=True)
        ),
        ("f32[2] reduce-precision(a), exponent_bits=0, mantissa_bits=3", "f32[2]", "reduce-precision needs"),
        ("f32[2] reduce-precision(a), exponent_bits=3, mantissa_bits=-1", "f32[2]", "reduce-precision needs"),
        ("s8[2] stochastic-convert(a, b)", "f32[2] u16[2]", "unsigned integers as wide as f32"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(call: str, shapes: str, words: str) -> None:
    assert_refused(call, words, **_operands(shapes))


def test_a_conversion_keeps_bounds() -> None:
    rule = OPCODES["convert"].infer
    assert rule is not None
    assert str(rule(parse_shape("f32[<=4,3]"), shape=parse_shape("s8[4,3]"))) == "s8[<=4,3]"
