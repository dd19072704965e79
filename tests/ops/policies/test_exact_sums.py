"""Contractions, convolutions and reductions under the `exact` policy, against sums of fractions."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import element_type, element_type_of
from hloexec.ops.common import narrow
from tests.ops.policies.exact_errors import BOUND, evaluate_exactly, largest_error

_DOT = ", lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def _fractions(array: Any) -> Any:
    wide = array.astype(np.float64)
    return np.array([Fraction(x) for x in wide.reshape(-1).tolist()], object).reshape(wide.shape)


def _dot_error(lhs: Any, rhs: Any, result: str) -> float:
    shape = f"{result}[{lhs.shape[0]},{rhs.shape[1]}]"
    actual = evaluate_exactly("dot", lhs, rhs, result=shape, attributes=_DOT)
    return largest_error(actual, (_fractions(lhs) @ _fractions(rhs)).reshape(-1).tolist())


def _normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.slow_cases("f16-f16-1500")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("length", [1, 3, 300, 1500])
@pytest.mark.parametrize(
    ("operand", "result"),
    [("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32"), ("f16", "f16"), ("f8e4m3fn", "f32"), ("f8e5m2", "bf16")],
)
def test_dot_is_rounded_once(operand: str, result: str, length: int) -> None:
    entry = element_type(operand)
    lhs, rhs = narrow(_normal(0, 9, length), entry), narrow(_normal(1, length, 7), entry)
    assert _dot_error(lhs, rhs, result) <= BOUND


def test_dot_of_f64_is_within_an_ulp() -> None:
    assert _dot_error(_normal(2, 8, 700), _normal(3, 700, 8), "f64") <= 0.51


@pytest.mark.slow_cases("40", "80")
@pytest.mark.parametrize("spread", [5, 40, 80])
def test_dot_of_numbers_of_very_different_size_is_rounded_once(spread: float) -> None:
    sizes = np.exp(np.random.default_rng(4).uniform(-spread, spread, (8, 600)))
    lhs = (_normal(5, 8, 600) * sizes).astype(np.float32)
    assert _dot_error(lhs, _normal(6, 600, 6).astype(np.float32), "f32") <= BOUND


def test_dot_whose_terms_cancel_is_rounded_once() -> None:
    lhs, rhs = _normal(7, 8, 400).astype(np.float32), _normal(8, 400, 6).astype(np.float32)
    lhs[:, 200:], rhs[200:] = -lhs[:, :200], rhs[:200]
    lhs[::2, 0] += np.float32(1e-7)
    lhs[3, 5] = np.float32(1e-20)
    assert _dot_error(lhs, rhs, "f32") <= BOUND


def test_dot_with_denormal_results_is_rounded_once() -> None:
    lhs, rhs = (_normal(9, 8, 100) * 1e-22).astype(np.float32), (_normal(10, 100, 6) * 1e-19).astype(np.float32)
    assert _dot_error(lhs, rhs, "f32") <= BOUND


def test_dot_of_infinities_and_nan_is_what_the_formula_gives() -> None:
    lhs, rhs = _normal(11, 6, 50).astype(np.float32), _normal(12, 50, 5).astype(np.float32)
    rhs[:, 1] = 0
    lhs[0, 3], lhs[1, 5], lhs[2, 6], lhs[2, 7] = np.inf, -np.inf, np.inf, np.inf
    rhs[7, 2], rhs[3, 3] = np.nan, -np.inf
    actual = evaluate_exactly("dot", lhs, rhs, result="f32[6,5]", attributes=_DOT)
    with np.errstate(all="ignore"):
        expected = (lhs[:, :, None] * rhs[None]).sum(axis=1)
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    infinite = np.isinf(expected)
    assert np.array_equal(actual[infinite], expected[infinite])
    assert np.isfinite(actual[np.isfinite(expected)]).all()


@pytest.mark.parametrize("dtype", ["c64", "c128"])
def test_dot_of_complex_numbers_is_rounded_once_in_each_part(dtype: str) -> None:
    entry = element_type(dtype)
    lhs = (_normal(13, 5, 80) + 1j * _normal(14, 5, 80)).astype(entry.storage)
    rhs = (_normal(15, 80, 4) + 1j * _normal(16, 80, 4)).astype(entry.storage)
    actual = evaluate_exactly("dot", lhs, rhs, result=f"{dtype}[5,4]", attributes=_DOT)
    a, b, c, d = (_fractions(part) for part in (lhs.real, lhs.imag, rhs.real, rhs.imag))
    assert largest_error(actual.real, (a @ c - b @ d).reshape(-1).tolist()) <= 0.51
    assert largest_error(actual.imag, (a @ d + b @ c).reshape(-1).tolist()) <= 0.51


def test_an_algorithm_is_honoured() -> None:
    lhs, rhs = _normal(17, 5, 60).astype(np.float32), _normal(18, 60, 4).astype(np.float32)
    actual = evaluate_exactly("dot", lhs, rhs, result="f32[5,4]", attributes=_DOT + ", algorithm=dot_bf16_bf16_f32")
    rounded = [narrow(operand, element_type("bf16")) for operand in (lhs, rhs)]
    expected = (_fractions(rounded[0]) @ _fractions(rounded[1])).reshape(-1).tolist()
    assert largest_error(actual, expected) <= BOUND


@pytest.mark.parametrize(
    ("window", "attributes", "features"),
    [
        ("size=3x3 pad=1_1x1_1", "", (4, 4, 6)),
        ("size=3x3 pad=1_1x1_1 lhs_dilate=2x2 rhs_dilate=1x2", "", (4, 4, 6)),
        ("size=3x3 stride=2x1 rhs_reversal=1x0", ", feature_group_count=4", (4, 1, 4)),
    ],
)
def test_convolution_is_rounded_once(window: str, attributes: str, features: tuple[int, int, int]) -> None:
    inputs, kernel_inputs, outputs = features
    # Whole numbers below 2^12 over 2^11: all sums are exact in f64.
    generator = np.random.default_rng(19)
    image = (generator.integers(-4095, 4096, (2, 9, 8, inputs)) / 2**11).astype(np.float32)
    kernel = (generator.integers(-4095, 4096, (3, 3, kernel_inputs, outputs)) / 2**11).astype(np.float32)
    rest = f", window={{{window}}}, dim_labels=b01f_01io->b01f{attributes}"
    rows, columns = (17, 13) if "dilate" in window else (9, 8) if "pad" in window else (4, 6)
    shape = f"[2,{rows},{columns},{outputs}]"
    actual = evaluate_exactly("convolution", image, kernel, result="f32" + shape, attributes=rest)
    exact = evaluate_exactly(
        "convolution", image.astype(np.float64), kernel.astype(np.float64), result="f64" + shape, attributes=rest
    )
    names = "\n".join(
        f"  p{i} = f64[{','.join(map(str, x.shape))}] parameter({i})" for i, x in enumerate((image, kernel))
    )
    text = f"HloModule m\n\nENTRY e {{\n{names}\n  ROOT r = f64{shape} convolution(p0, p1){rest}\n}}\n"
    expected = hloexec.run(hloexec.parse(text), image.astype(np.float64), kernel.astype(np.float64))
    assert np.array_equal(exact, expected)
    assert np.array_equal(actual, expected.astype(np.float32))


def _reduced(opcode: str, array: Any, init: float, instruction: str, result: str, rest: str) -> Any:
    name = element_type_of(array.dtype).name
    text = f"""HloModule m

f {{
  a = {name}[] parameter(0)
  b = {name}[] parameter(1)
  ROOT c = {name}[] {opcode}(a, b)
}}

ENTRY e {{
  p = {name}[{",".join(map(str, array.shape))}] parameter(0)
  q = {name}[] parameter(1)
  ROOT r = {name}[{result}] {instruction}(p, q), {rest}, to_apply=f
}}
"""
    return hloexec.run(hloexec.parse(text), array, np.array(init, array.dtype), numerics="exact")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("length", [1, 2, 77, 1001])
def test_sums_are_rounded_once(dtype: str, length: int) -> None:
    sizes = 10.0 ** np.random.default_rng(20).uniform(-3, 3, (6, length))
    array = narrow(_normal(21, 6, length) * sizes, element_type(dtype))
    expected = [sum(row, Fraction(1)) for row in _fractions(array)]
    assert largest_error(_reduced("add", array, 1, "reduce", "6", "dimensions={1}"), expected) <= BOUND


def test_long_sums_are_rounded_once() -> None:
    array = _normal(22, 3, 150_000).astype(np.float32)
    expected = [Fraction(math.fsum(row)) for row in array.astype(np.float64).tolist()]
    assert largest_error(_reduced("add", array, 0, "reduce", "3", "dimensions={1}"), expected) <= BOUND


def test_sums_do_not_depend_on_how_an_array_lies_in_memory() -> None:
    array = _normal(23, 40, 50).astype(np.float32)
    results = {
        _reduced("add", each, 0, "reduce", "40", "dimensions={1}").tobytes()
        for each in (array, np.asfortranarray(array), array[:, ::-1][:, ::-1])
    }
    assert len(results) == 1


def test_products_that_leave_the_range_on_the_way_are_rounded_once() -> None:
    array = np.exp(np.random.default_rng(24).uniform(-80, 80, (5, 300))).astype(np.float32)
    array[:, 150:] = np.float32(1.01) / array[:, :150]
    expected = [math.prod(row, start=Fraction(1)) for row in _fractions(array)]
    assert largest_error(_reduced("multiply", array, 1, "reduce", "5", "dimensions={1}"), expected) <= BOUND


_TAILS = [2.0**-60, -(2.0**-60), 2.0**-45, -(2.0**-45), 0.0]


def _next_to_a_middle(filling: int) -> tuple[Any, Any]:
    """Rows whose sums are 1 + 2⁻²⁴, the middle between two f32, and a little more or less, with terms that cancel; and
    what the sums round to."""
    generator = np.random.default_rng(filling)
    fill = generator.standard_normal((len(_TAILS), filling)).astype(np.float32)
    ends = np.array([[1, 2.0**-24, tail] for tail in _TAILS], np.float32)
    rows = generator.permuted(np.concatenate([ends, fill, -fill], axis=1), axis=1)
    return rows, np.array([1 + 2.0**-23 if tail > 0 else 1 for tail in _TAILS], np.float32)


@pytest.mark.parametrize("filling", [0, 1, 30, 1000])
def test_sums_next_to_the_middle_between_two_numbers_are_rounded_to_the_nearer(filling: int) -> None:
    rows, expected = _next_to_a_middle(filling)
    assert np.array_equal(_reduced("add", rows, 0, "reduce", "5", "dimensions={1}"), expected)
    length = rows.shape[1]
    for window in (f"size=1x{length} pad=0_0x{length - 1}_0", f"size=1x{length}"):
        shape = f"5,{length}" if "pad" in window else "5,1"
        sums = _reduced("add", rows, 0, "reduce-window", shape, f"window={{{window}}}")
        assert np.array_equal(sums[:, -1], expected)
    ones = np.ones((length, 3), np.float32)
    product = evaluate_exactly("dot", rows, ones, result="f32[5,3]", attributes=_DOT)
    assert np.array_equal(product, np.repeat(expected[:, None], 3, axis=1))


@pytest.mark.parametrize(
    "window", ["size=1x3", "size=1x3 stride=1x3 pad=0_0x1_1", "size=1x3 pad=0_0x2_2 rhs_dilate=1x2"]
)
def test_a_few_windows_next_to_the_middle_are_rounded_to_the_nearer(window: str) -> None:
    array = _normal(28, 5, 3001).astype(np.float32)
    dilation, stride = 1 + ("rhs" in window), 3 if "stride" in window else 1
    pad = 0 if "pad" not in window else 2 if "rhs" in window else 1
    places = [(row, 200 * row + 7) for row in range(5)]
    for row, place in places:
        for tap, term in enumerate((1, 2.0**-24, 2.0**-60 * (-1) ** row)):
            array[row, place * stride - pad + tap * dilation] = term
    count = (3001 + 2 * pad - (2 * dilation + 1)) // stride + 1
    sums = _reduced("add", array, 0, "reduce-window", f"5,{count}", f"window={{{window}}}")
    assert [sums[place] for place in places] == [1 + 2.0**-23 * (row % 2 == 0) for row, _ in places]


@pytest.mark.parametrize("filling", [0, 1000])
def test_products_next_to_the_middle_between_two_numbers_are_rounded_to_the_nearer(filling: int) -> None:
    rows, expected = _next_to_a_middle(filling)
    # Each column undoes what it multiplies: the same terms, of factors of different size.
    scales = 2.0 ** np.random.default_rng(1).integers(-20, 20, rows.shape[1])
    lhs, rhs = (rows * scales).astype(np.float32), np.stack([1 / scales] * 100, axis=1).astype(np.float32)
    product = evaluate_exactly("dot", lhs, rhs, result="f32[5,100]", attributes=_DOT)
    assert np.array_equal(product, np.repeat(expected[:, None], 100, axis=1))


def test_sums_of_infinities_nan_and_negative_zeros_are_what_the_formula_gives() -> None:
    array = np.ones((5, 8), np.float32)
    array[0, 1], array[1, 2], array[1, 3], array[2, 2], array[3] = np.inf, -np.inf, np.inf, np.nan, -0.0
    array[4] = np.finfo(np.float32).max
    actual = _reduced("add", array, -0.0, "reduce", "5", "dimensions={1}")
    assert np.array_equal(actual, np.array([np.inf, np.nan, np.nan, -0.0, np.inf], np.float32), equal_nan=True)
    assert np.signbit(actual[3])


@pytest.mark.parametrize("size", [5, 200])
def test_sums_in_windows_are_rounded_once(size: int) -> None:
    array = _normal(25, 3, 200).astype(np.float32)
    rest = f"window={{size=1x{size} pad=0_0x{size - 1}_0}}"
    exact = _fractions(array)
    expected = [sum(row[max(0, i - size + 1) : i + 1], Fraction(0)) for row in exact for i in range(200)]
    assert largest_error(_reduced("add", array, 0, "reduce-window", "3,200", rest), expected) <= BOUND


def test_scattered_sums_are_rounded_once() -> None:
    operand = np.ones((10, 3), element_type("bf16").storage)
    indices = np.random.default_rng(26).integers(0, 12, 900).astype(np.int32)
    updates = narrow(_normal(27, 900, 3), element_type("bf16"))
    text = """HloModule m

f {
  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT c = bf16[] add(a, b)
}

ENTRY e {
  o = bf16[10,3] parameter(0)
  i = s32[900] parameter(1)
  u = bf16[900,3] parameter(2)
  ROOT r = bf16[10,3] scatter(o, i, u), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=f
}
"""
    actual = hloexec.run(hloexec.parse(text), operand, indices, updates, numerics="exact")
    expected = _fractions(operand)
    for index, row in zip(indices, _fractions(updates), strict=True):
        if index < 10:
            expected[index] += row
    assert largest_error(actual, expected.reshape(-1).tolist()) <= BOUND
