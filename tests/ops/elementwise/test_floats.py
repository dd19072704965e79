"""Operations on floats that are exact or correctly rounded: bit for bit as XLA:CPU, NaNs aside."""

import warnings
from math import copysign
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.common import narrow
from hloexec.ops.elementwise.arithmetic import fill_maximum, fill_minimum, maximum, minimum
from hloexec.ops.elementwise.formula import choose, choose_by_mask, mask_into, mask_type
from tests.families import of_each_family
from tests.ops.against_xla import Case, assert_same_as_xla, evaluated, module_text
from tests.ops.elements import FLOATS, crossed, elements

_BINARY = "add subtract multiply divide remainder maximum minimum".split()
_UNARY = "abs ceil floor round-nearest-afz round-nearest-even sign negate real imag".split()
_REDUCED = "f16 bf16 f32 f64 f8e5m2".split()
_PRECISIONS = [(5, 2), (8, 7), (5, 10), (3, 1), (1, 3), (11, 3)]


def _result(opcode: str, *operands: np.ndarray, result: str, attributes: str = "") -> np.ndarray:
    return evaluated(module_text([Case(opcode, operands, result, attributes)]), operands)[0]


@pytest.mark.parametrize("name", of_each_family(FLOATS))
def test_exact_float_operations_have_the_bits_of_xla(name: str) -> None:
    single = elements(name)
    lhs, rhs = crossed(single, single)
    with np.errstate(invalid="ignore"):
        less = lhs < rhs
    low, middle, high = crossed(*[single[[0, 1, 2, 3, 8, 12, 24, 25, 26]]] * 3)
    cases = [Case(opcode, [lhs, rhs], f"{name}[{lhs.size}]") for opcode in _BINARY]
    cases += [Case(opcode, [single], f"{name}[{single.size}]") for opcode in _UNARY]
    cases += [
        Case("compare", [lhs, rhs], f"pred[{lhs.size}]", f"direction={direction}, type={kind}")
        for direction in (("EQ", "LT") if ELEMENT_TYPES[name].bits <= 8 else ("EQ", "NE", "GE", "GT", "LE", "LT"))
        for kind in ("FLOAT", "TOTALORDER")
    ]
    cases += [
        Case("is-finite", [single], f"pred[{single.size}]"),
        Case("clamp", [low, middle, high], f"{name}[{low.size}]"),
        Case("clamp", [single[3], single, single[4]], f"{name}[{single.size}]"),
        Case("select", [less, lhs, rhs], f"{name}[{lhs.size}]"),
        Case("select", [np.array(False), lhs, rhs], f"{name}[{lhs.size}]"),
    ]
    assert_same_as_xla(cases)


_SPECIAL = [0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x00000001, 0x80000001, 0x7F800000, 0xFF800000]
_NANS = [0x7FC00000, 0x7FC01234, 0xFFC00000, 0xFF800001]
_TOGETHER = {
    "numbers that differ": ([0x3F800000, 0xC0000000], [0x40000000, 0xBF800000]),
    "equal numbers": ([0x3F800000, 0xBF800000, 0x7F800000], [0x3F800000, 0xBF800000, 0x40000000]),
    "zeros on one side": ([0x00000000, 0x80000000, 0x3F800000], [0x00000001, 0x80000001, 0x3F800000]),
    "zeros": (_SPECIAL, _SPECIAL),
    "NaN": ([0x3F800000, *_NANS], [0x3F800000, 0x40000000, *_NANS]),
    "everything": ([*_SPECIAL, *_NANS], [*_SPECIAL, *_NANS]),
}
"""The bits of f32 that an array has and those that the other has: kernels ask what there is in all of them."""


def _all_pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Each number with each, more than a thousand times."""
    lhs, rhs = (np.array(bits, np.uint32).view(np.float32) for bits in _TOGETHER[name])
    return tuple(np.tile(operand, 1 + 1024 // operand.size) for operand in crossed(lhs, rhs))


@pytest.mark.parametrize("name", _TOGETHER)
def test_the_total_order_is_that_of_sign_and_magnitude(name: str) -> None:
    lhs, rhs = _all_pairs(name)

    def places(array: np.ndarray) -> np.ndarray:
        bits = array.view(np.uint32).astype(np.int64)
        return np.where(bits >> 31, -1 - (bits & 0x7FFFFFFF), bits)

    left, right = places(lhs), places(rhs)
    expected = {"EQ": left == right, "NE": left != right, "GE": left >= right, "GT": left > right}
    expected |= {"LE": left <= right, "LT": left < right}
    for direction, relation in expected.items():
        attributes = f"direction={direction}, type=TOTALORDER"
        found = _result("compare", lhs, rhs, result=f"pred[{lhs.size}]", attributes=attributes)
        assert_array_equal(found, relation)


@pytest.mark.parametrize("name", _TOGETHER)
def test_extrema_of_many_numbers_know_the_signs_of_zeros(name: str) -> None:
    lhs, rhs = _all_pairs(name)
    is_nan = np.isnan(lhs) | np.isnan(rhs)
    # Of numbers, the larger one is that in the total order.
    key = [np.where(x.view(np.int32) < 0, -1 - (x.view(np.int32) & 0x7FFFFFFF), x.view(np.int32)) for x in (lhs, rhs)]
    for opcode, takes_lhs in (("maximum", key[0] >= key[1]), ("minimum", key[0] <= key[1])):
        found = _result(opcode, lhs, rhs, result=f"f32[{lhs.size}]")
        expected = np.where(takes_lhs, lhs, rhs)
        assert np.isnan(found[is_nan]).all()
        assert found[~is_nan].tobytes() == expected[~is_nan].tobytes()


def _reduced(name: str, exponent_bits: int, mantissa_bits: int) -> Case:
    # XLA:CPU reduces f16 as f32 and the other 8-bit types as f16, whose smallest normal numbers are not theirs.
    single = elements(name, random=200)
    single = single[~(np.abs(single.astype(np.float64)) < 2.0**-14) | (single == 0)]
    precision = f"exponent_bits={exponent_bits}, mantissa_bits={mantissa_bits}"
    return Case("reduce-precision", [single], f"{name}[{single.size}]", precision)


def test_reduce_precision_has_the_bits_of_xla() -> None:
    assert_same_as_xla([_reduced(name, *precision) for name in _REDUCED for precision in _PRECISIONS])


@pytest.mark.usefixtures("newer_emitters")
def test_reduce_precision_to_no_mantissa_has_the_bits_of_xla() -> None:
    assert_same_as_xla([_reduced(name, 2, 0) for name in _REDUCED])


@pytest.mark.parametrize("name", [name for name in FLOATS if name != "f8e8m0fnu"])
def test_reduce_precision_to_its_own_format_changes_nothing(name: str) -> None:
    entry = ELEMENT_TYPES[name]
    values = elements(name)
    precision = f"exponent_bits={entry.exponent_bits}, mantissa_bits={entry.mantissa_bits}"
    result = _result("reduce-precision", values, result=f"{name}[{values.size}]", attributes=precision)
    assert result.tobytes() == values.tobytes()


def test_reduce_precision_rounds_denormals_at_their_own_last_place() -> None:
    # With two bits of mantissa the denormals of f16's exponents are the multiples of 2**-16.
    values = np.array([2.0**-23, 2.0**-16, 2.0**-17, 1.5 * 2.0**-16, -2.5 * 2.0**-16], np.float16)
    result = _result("reduce-precision", values, result="f16[5]", attributes="exponent_bits=5, mantissa_bits=2")
    assert_array_equal(result.astype(np.float64) * 2.0**16, [0, 1, 0, 2, -2])


def test_minimum_and_maximum_tell_zeros_apart() -> None:
    lhs, rhs = np.array([0.0, -0.0, -0.0, 0.0]), np.array([-0.0, 0.0, -0.0, 0.0])
    assert np.signbit(_result("maximum", lhs, rhs, result="f64[4]")).tolist() == [False, False, True, False]
    assert np.signbit(_result("minimum", lhs, rhs, result="f64[4]")).tolist() == [True, True, True, False]


@pytest.mark.parametrize("count", [1000, 1024, 3001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extrema_of_many_numbers_and_one_are_those_of_each_pair(dtype: type, count: int) -> None:
    """Of two zeros the sign decides; an array to fill gives the same as none."""
    single = elements("f32").astype(dtype)

    def chosen(choose: Any, lhs: float, rhs: float) -> float:
        is_nan = lhs != lhs or rhs != rhs
        return np.nan if is_nan else choose(lhs, rhs, key=lambda number: (number, copysign(1, number)))

    many, out = np.resize(single, count), np.empty(count, dtype)
    for one in single:
        for larger, function, fill in ((max, maximum, fill_maximum), (min, minimum, fill_minimum)):
            values = np.array([chosen(larger, float(number), float(one)) for number in single], dtype)
            expected = np.resize(values, count)
            signs = np.signbit(expected)[expected == expected]
            for pair in ((many, one.reshape(1)), (one.reshape(1), many)):
                fill(*pair, out)
                for found in (function(*pair), out):
                    assert_array_equal(found, expected)
                    assert np.array_equal(np.signbit(found)[expected == expected], signs)


def test_denormals_are_kept() -> None:
    tiny = np.array([1e-40, -1e-45], np.float32)
    one = np.ones(2, np.float32)
    assert_array_equal(_result("multiply", tiny, one, result="f32[2]"), tiny)
    assert_array_equal(_result("add", tiny, tiny, result="f32[2]"), tiny + tiny)


def test_remainder_is_exact_and_has_the_sign_of_the_dividend() -> None:
    lhs, rhs = np.array([5.5, -5.5, 5.5, 1e300]), np.array([-2.0, 2.0, np.inf, 3.0])
    expected = [1.5, -1.5, 5.5, int(1e300) % 3]
    assert _result("remainder", lhs, rhs, result="f64[4]").tolist() == expected


def test_rounding_keeps_the_sign_of_zero() -> None:
    values = np.array([-0.3, -0.0, 0.49999999999999994])
    for opcode in ("round-nearest-afz", "round-nearest-even", "ceil"):
        result = _result(opcode, values[:2], result="f64[2]")
        assert (result == 0).all() and np.signbit(result).all()
    assert _result("round-nearest-afz", values, result="f64[3]")[2] == 0


def test_mixed_precisions_round_once_to_the_declared_type() -> None:
    lhs, rhs = narrow(np.array([1.0, 3.0]), ELEMENT_TYPES["bf16"]), np.array([2.0**-9, 1e-30], np.float32)
    assert _result("add", lhs, rhs, result="f32[2]").tolist() == [1 + 2.0**-9, 3.0]
    assert _result("select", np.array([True, False]), lhs, rhs, result="f32[2]").tolist() == [1.0, rhs[1]]


def test_no_warning_escapes() -> None:
    values = elements("f32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for opcode in "exponential log sqrt rsqrt acos atanh sine".split():
            _result(opcode, values, result=f"f32[{values.size}]")
        _result("divide", values, np.zeros_like(values), result=f"f32[{values.size}]")
        _result("convert", values, result=f"s8[{values.size}]")
        _result("convert", values.astype(np.float64) * 1e300, result=f"bf16[{values.size}]")


@pytest.mark.parametrize("name", "f32 bf16 f8e4m3fn f64 s4 pred c64".split())
def test_operations_take_scalars_and_empty_arrays(name: str) -> None:
    values = elements(name)
    for operand in (values[1].reshape(()), values[:0].reshape(0, 3)):
        shape = f"{name}[{','.join(map(str, operand.shape))}]"
        for opcode in ("add", "maximum", "multiply"):
            assert _result(opcode, operand, operand, result=shape).shape == operand.shape
        pred = shape.replace(name, "pred")
        assert _result("compare", operand, operand, result=pred, attributes="direction=EQ").shape == operand.shape
        assert _result("select", operand == operand, operand, operand, result=shape).shape == operand.shape
        assert _result("convert", operand, result=shape.replace(name, "f16")).dtype == np.float16


_TYPES = (
    np.bool_,
    np.int8,
    ml_dtypes.int4,
    ml_dtypes.bfloat16,
    np.float16,
    np.float32,
    np.int64,
    np.complex64,
    np.complex128,
)


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("sizes", [(), (3,), (40, 50), (0, 7)])
def test_choose_agrees_with_where(dtype: type, sizes: tuple[int, ...]) -> None:
    generator = np.random.default_rng(3)
    pred = generator.integers(0, 2, sizes).astype(np.bool_)
    first, second = (generator.integers(-8, 8, sizes).astype(np.float32).astype(dtype) for _ in range(2))
    for on_true, on_false in ((first, second), (first, np.broadcast_to(second.reshape(-1)[:1].sum(), sizes))):
        on_false = np.asarray(on_false, dtype)
        chosen = choose(pred, on_true, on_false)
        expected = np.where(pred, on_true, on_false)
        assert chosen.dtype == expected.dtype
        assert chosen.shape == expected.shape
        assert chosen.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", _TYPES)
def test_choose_between_numbers_agrees_with_where(dtype: type) -> None:
    generator = np.random.default_rng(5)
    pred = generator.integers(0, 2, (40, 50)).astype(np.bool_)
    on_true, on_false = (np.array([number], np.float32).astype(dtype) for number in (-3, 5))
    chosen = choose(pred, on_true, on_false)
    expected = np.where(pred, on_true, on_false)
    assert chosen.dtype == expected.dtype
    assert chosen.shape == expected.shape
    assert chosen.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [dtype for dtype in _TYPES if dtype is not np.complex128])
@pytest.mark.parametrize("numbers", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("is_zero", [False, True])
def test_choosing_by_a_mask_agrees_with_where(dtype: type, numbers: tuple[int, ...], is_zero: bool) -> None:
    """`numbers` are the operands that are one number everywhere; `is_zero` makes that number +0."""
    generator = np.random.default_rng(7)
    pred = generator.integers(0, 2, (40, 50)).astype(np.bool_)
    operands = [generator.integers(-8, 8, (40, 50)).astype(np.float32).astype(dtype) for _ in range(2)]
    for place in numbers:
        operands[place] = np.array([0 if is_zero else place - 3], np.float32).astype(dtype)
    width = mask_type(np.dtype(dtype))
    assert width is not None
    mask, chosen = np.empty((40, 50), width), np.empty((40, 50), dtype)
    mask_into(pred, mask)
    choose_by_mask(mask, *operands, chosen)
    assert chosen.tobytes() == np.where(pred, *operands).tobytes()


def test_choose_keeps_every_bit_of_a_nan() -> None:
    bits = np.random.default_rng(4).integers(0, 1 << 32, 4096, np.uint32) | np.uint32(0x7F800000)
    pred = np.arange(4096) % 3 == 0
    values = bits.view(np.float32)
    chosen = choose(pred, values, values[::-1])
    assert_array_equal(chosen.view(np.uint32), np.where(pred, bits, bits[::-1]))


def test_choose_takes_operands_of_any_strides() -> None:
    generator = np.random.default_rng(5)
    first = generator.normal(size=(60, 50)).astype(np.float32).T
    second = generator.normal(size=(50, 120)).astype(np.float32)[:, ::-2]
    pred = first < second
    assert_array_equal(choose(pred, first, second), np.minimum(first, second))
