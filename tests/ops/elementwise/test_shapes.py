"""The shape rules of elementwise operations: what they infer, and the sentences with which they refuse."""

from __future__ import annotations

import pytest

from hloexec.core.dtypes import element_type
from hloexec.core.ir import UNBOUNDED, ArrayShape, Shape, TupleShape
from hloexec.errors import ShapeError
from hloexec.ops.elementwise.selection import CompareAttributes, ReducePrecisionAttributes
from hloexec.ops.registry import OPCODES


def _shape(name: str, *dimensions: int, dynamic: tuple[bool, ...] = ()) -> ArrayShape:
    return ArrayShape(element_type(name), dimensions, dynamic_dimensions=dynamic)


def _infer(opcode: str, *operands: Shape, **keywords: object) -> Shape:
    rule = OPCODES[opcode].infer
    assert rule is not None
    return rule(*operands, **keywords)


@pytest.mark.parametrize(
    ("opcode", "operands", "expected"),
    [
        ("add", ["f32", "f32"], "f32"),
        ("add", ["bf16", "f32"], "f32"),
        ("add", ["pred", "pred"], "pred"),
        ("abs", ["c64"], "f32"),
        ("abs", ["s8"], "s8"),
        ("real", ["c128"], "f64"),
        ("imag", ["bf16"], "bf16"),
        ("is-finite", ["f16"], "pred"),
        ("complex", ["f32", "f32"], "c64"),
        ("complex", ["f64", "f64"], "c128"),
        ("select", ["pred", "s4", "s4"], "s4"),
        ("clamp", ["f16", "f16", "f16"], "f16"),
        ("shift-left", ["u8", "u8"], "u8"),
    ],
)
def test_the_result_type_follows_from_the_operands(opcode: str, operands: list[str], expected: str) -> None:
    assert _infer(opcode, *(_shape(name, 2, 3) for name in operands)) == _shape(expected, 2, 3)


@pytest.mark.parametrize(
    ("opcode", "operands", "words"),
    [
        ("add", ["f32", "s32"], "same element type"),
        ("subtract", ["pred", "pred"], "operand 0 of subtract must be of signed integers"),
        ("and", ["f32", "f32"], "operand 0 of and must be of pred, signed integers, unsigned integers"),
        ("shift-left", ["pred", "pred"], "shift-left must be of signed"),
        ("cosine", ["s32"], "floating-point numbers, complex numbers"),
        ("ceil", ["c64"], "must be of floating-point numbers, but has shape"),
        ("erf", ["c64"], "must be of floating-point numbers"),
        ("abs", ["u8"], "signed integers"),
        ("sign", ["u8"], "signed integers"),
        ("not", ["bf16"], "must be of pred"),
        ("popcnt", ["pred"], "must be of signed integers, unsigned integers"),
        ("is-finite", ["s32"], "floating-point numbers"),
        ("complex", ["f16", "f16"], "f32 or f64"),
        ("remainder", ["c64", "c64"], "remainder must be of"),
        ("select", ["s8", "f32", "f32"], "operand 0 of select must be of pred"),
        ("select", ["pred", "f32", "s32"], "same element type"),
        ("clamp", ["s32", "f32", "f32"], "min of clamp"),
        ("add", ["token", "token"], "must be an array"),
    ],
)
def test_wrong_element_types_are_refused(opcode: str, operands: list[str], words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        _infer(opcode, *(_shape(name, *(() if name == "token" else (2,))) for name in operands))


@pytest.mark.parametrize("other", [(3,), (1,), (), (2, 1)])
def test_operands_of_other_dimensions_are_refused(other: tuple[int, ...]) -> None:
    with pytest.raises(
        ShapeError, match=r"the operands of add must have the same dimensions, but have shapes f32\[2\]"
    ):
        _infer("add", _shape("f32", 2), _shape("f32", *other))


def test_tuples_are_refused() -> None:
    pair = TupleShape((_shape("f32"), _shape("f32")))
    for opcode, operands in (("add", [pair, pair]), ("negate", [pair]), ("select", [_shape("pred"), pair, pair])):
        with pytest.raises(ShapeError, match="must be an array"):
            _infer(opcode, *operands)


def test_bounds_of_clamp_may_be_scalars() -> None:
    assert _infer("clamp", _shape("f32"), _shape("f32", 4), _shape("f32")) == _shape("f32", 4)
    with pytest.raises(ShapeError, match="operand and max of clamp"):
        _infer("clamp", _shape("f32"), _shape("f32", 4), _shape("f32", 1))


def test_the_predicate_of_select_may_be_a_scalar() -> None:
    assert _infer("select", _shape("pred"), _shape("f32", 4), _shape("f32", 4)) == _shape("f32", 4)
    with pytest.raises(ShapeError, match="pred and the other operands of select"):
        _infer("select", _shape("pred", 1), _shape("f32", 4), _shape("f32", 4))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("f32", "SIGNED"), ("s32", "UNSIGNED"), ("u8", "FLOAT"), ("c64", "TOTALORDER"), ("pred", "SIGNED")],
)
def test_compare_refuses_a_type_that_is_not_its_operands(name: str, kind: str) -> None:
    attributes = CompareAttributes(direction="LT", type=kind)
    with pytest.raises(ShapeError, match=f"a compare of {name} has type .*, but {kind} is given"):
        _infer("compare", _shape(name, 2), _shape(name, 2), attributes=attributes)


@pytest.mark.parametrize(("exponent", "mantissa"), [(0, 3), (3, -1)])
def test_reduce_precision_refuses_impossible_formats(exponent: int, mantissa: int) -> None:
    attributes = ReducePrecisionAttributes(exponent_bits=exponent, mantissa_bits=mantissa)
    with pytest.raises(ShapeError, match="reduce-precision needs"):
        _infer("reduce-precision", _shape("f32", 2), attributes=attributes)


def test_stochastic_convert_wants_random_bits_as_wide_as_the_operand() -> None:
    with pytest.raises(ShapeError, match="unsigned integers as wide as f32"):
        _infer("stochastic-convert", _shape("f32", 2), _shape("u16", 2), shape=_shape("s8", 2))


def test_dynamic_dimensions_are_passed_on() -> None:
    bounded, static = _shape("f32", 4, 3, dynamic=(True, False)), _shape("f32", 4, 3)
    assert _infer("add", static, bounded) == bounded
    assert _infer("convert", bounded, shape=_shape("s8", 4, 3)) == bounded.with_element_type(element_type("s8"))
    unbounded = _shape("f32", UNBOUNDED, 3, dynamic=(True, False))
    assert _infer("add", unbounded, bounded) == bounded
