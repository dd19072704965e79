"""fft, cholesky, triangular-solve and batch normalization under the `exact` policy, against exact arithmetic."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import element_type, element_type_of
from hloexec.ops.library_calls.user_calls import unregister_custom_call
from tests.ops.policies.exact_errors import BOUND, context, evaluate_exactly, largest_error, to_fraction

MP = context(300)


def _numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def _complex(seed: int, *shape: int) -> Any:
    return _numbers(seed, *shape) + 1j * _numbers(seed + 1, *shape)


def _transform(values: Any, sign: int) -> list[Any]:
    """The sums that define the transform, in numbers of 300 bits."""
    count = len(values)
    exact = [MP.mpc(complex(value)) for value in values]
    roots = [MP.expjpi(MP.mpf(2 * sign * k) / count) for k in range(count)]
    return [MP.fsum(value * roots[j * k % count] for j, value in enumerate(exact)) for k in range(count)]


def _fractions(values: Any) -> list[Fraction]:
    return [to_fraction(part) for value in values for part in (MP.mpc(value).real, MP.mpc(value).imag)]


def _flat(array: Any) -> Any:
    """Real and imaginary parts by turns."""
    return np.ascontiguousarray(array).view(array.real.dtype)


# 67 and 71 are too large for a sum of their own, 101 is prime.
LENGTHS = (1, 2, 3, 4, 8, 12, 35, 64, 101, 2 * 67)


@pytest.mark.slow_cases("complex64-101", "complex64-134", "complex128-101", "complex128-134")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_transforms_are_rounded_once(length: int, dtype: Any) -> None:
    """2⁻⁹⁰ of the sum of magnitudes is far below 2⁻²⁰ ULP of anything here."""
    z = _complex(length, length).astype(dtype)
    shape = f"{element_type_of(z.dtype).name}[{length}]"
    options = f", fft_length={{{length}}}, fft_type="
    forward = evaluate_exactly("fft", z, result=shape, attributes=options + "FFT")
    assert largest_error(_flat(forward), _fractions(_transform(z, -1))) <= BOUND
    backward = evaluate_exactly("fft", z, result=shape, attributes=options + "IFFT")
    assert largest_error(_flat(backward), _fractions([x / length for x in _transform(z, 1)])) <= BOUND


@pytest.mark.parametrize("length", [1, 2, 5, 8, 12, 101])
def test_transforms_of_reals_are_rounded_once(length: int) -> None:
    half = length // 2 + 1
    x, z = _numbers(1, length).astype(np.float32), _complex(2, half).astype(np.complex64)
    options = f", fft_length={{{length}}}, fft_type="
    forward = evaluate_exactly("fft", x, result=f"c64[{half}]", attributes=options + "RFFT")
    assert largest_error(_flat(forward), _fractions(_transform(x, -1)[:half])) <= BOUND
    whole = np.concatenate([z, z[(length - 1) // 2 : 0 : -1].conj()])
    # The ends stand for themselves mirrored: their imaginary parts do not count.
    whole[0] = whole[0].real
    if length % 2 == 0:
        whole[length // 2] = whole[length // 2].real
    backward = evaluate_exactly("fft", z, result=f"f32[{length}]", attributes=options + "IRFFT")
    assert largest_error(backward, [to_fraction(y.real / length) for y in _transform(whole, 1)]) <= BOUND


def test_transforms_of_several_dimensions_agree_with_f64() -> None:
    """NumPy's f64 transform is off by a few 2⁻⁵³ · log₂ N of the largest element: 2⁻⁴⁸ is more than that."""
    z = _complex(3, 2, 6, 10, 8)
    value = evaluate_exactly("fft", z, attributes=", fft_length={6,10,8}, fft_type=FFT")
    expected = np.fft.fftn(z, axes=(1, 2, 3))
    assert np.abs(value - expected).max() <= 2.0**-48 * np.abs(expected).max()


def test_transforms_of_extreme_numbers_neither_overflow_nor_vanish() -> None:
    for scale in (2.0**1000, 2.0**-1040):
        z = _complex(4, 12) * scale
        value = evaluate_exactly("fft", z, attributes=", fft_length={12}, fft_type=FFT")
        expected = _transform(z, -1)
        assert largest_error(_flat(value), _fractions(expected)) <= BOUND


def test_what_is_not_finite_makes_its_own_transform_nan() -> None:
    z = _complex(5, 3, 8).astype(np.complex64)
    z[1, 2] = np.inf
    value = evaluate_exactly("fft", z, attributes=", fft_length={8}, fft_type=FFT")
    assert np.isnan(value[1]).all() and np.isfinite(value[[0, 2]]).all()


def _exactly(matrix: Any) -> Any:
    return [[Fraction(float(value)) for value in row] for row in matrix]


def _gamma(n: int) -> Fraction:
    return Fraction(n, 2**53) / (1 - Fraction(n, 2**53))


def test_factors_in_f64_meet_the_bound_of_cholesky() -> None:
    """|l lᵀ − a| ≤ γ(n + 1) |l| |lᵀ|, in fractions."""
    n = 12
    root = _numbers(6, n, n)
    a = root @ root.T
    factor = _exactly(evaluate_exactly("cholesky", a, attributes=", lower=true"))
    for i in range(n):
        for j in range(i + 1):
            terms = [factor[i][k] * factor[j][k] for k in range(j + 1)]
            assert abs(sum(terms) - Fraction(float(a[i, j]))) <= _gamma(n + 1) * sum(map(abs, terms))


def test_solutions_in_f64_meet_the_bound_of_substitution() -> None:
    """|l x − b| ≤ γ(n) |l| |x|, in fractions."""
    n = 12
    lower, b = np.tril(_numbers(7, n, n)), _numbers(8, n, 3)
    options = ", left_side=true, lower=true, transpose_a=NO_TRANSPOSE"
    shape = f"f64[{n},3]"
    solution = _exactly(evaluate_exactly("triangular-solve", lower, b, result=shape, attributes=options))
    rows = _exactly(lower)
    for i in range(n):
        for column in range(3):
            terms = [rows[i][k] * solution[k][column] for k in range(i + 1)]
            assert abs(sum(terms) - Fraction(float(b[i, column]))) <= _gamma(n) * sum(map(abs, terms))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("complex_numbers", [False, True])
def test_narrow_systems_are_those_of_f64_rounded_once(complex_numbers: bool, upper: bool) -> None:
    narrow, wide = (np.complex64, np.complex128) if complex_numbers else (np.float32, np.float64)
    root = (_complex(9, 2, 9, 9) if complex_numbers else _numbers(9, 2, 9, 9)).astype(narrow)
    a = (root @ root.conj().swapaxes(-1, -2)).astype(narrow)
    b = root[..., :4].copy()
    options = f", lower={'false' if upper else 'true'}"
    assert (
        evaluate_exactly("cholesky", a, attributes=options)
        == evaluate_exactly("cholesky", a.astype(wide), attributes=options).astype(narrow)
    ).all()
    options = f", left_side=true, lower={'false' if upper else 'true'}, transpose_a=ADJOINT"
    solutions = [
        evaluate_exactly(
            "triangular-solve",
            a.astype(dtype),
            b.astype(dtype),
            result=f"{element_type_of(np.dtype(dtype)).name}[2,9,4]",
            attributes=options,
        )
        for dtype in (narrow, wide)
    ]
    assert (solutions[0] == solutions[1].astype(narrow)).all()


def test_a_complex_factor_is_one() -> None:
    """|l lᴴ − a| ≤ 4 γ(n + 1) |l| |lᴴ|, the sums here in numbers of 300 bits."""
    n = 8
    root = _complex(10, n, n)
    a = root @ root.conj().T
    a = (a + a.conj().T) / 2
    factor = evaluate_exactly("cholesky", a, attributes=", lower=true")
    for i in range(n):
        for j in range(i + 1):
            terms = [MP.mpc(complex(factor[i, k])) * MP.conj(MP.mpc(complex(factor[j, k]))) for k in range(j + 1)]
            bound = 4 * float(_gamma(n + 1)) * sum(abs(term) for term in terms)
            assert abs(MP.fsum(terms) - MP.mpc(complex(a[i, j]))) <= bound


def test_a_matrix_that_is_not_positive_definite_gives_nan_alone() -> None:
    a = np.stack([np.eye(3), -np.eye(3), np.eye(3)]).astype(np.float32)
    value = evaluate_exactly("cholesky", a, attributes=", lower=true")
    assert np.isnan(value[1]).all() and (value[[0, 2]] == np.eye(3)).all()


def _normalized(x: Any, scale: Any, offset: Any, epsilon: float) -> tuple[list[Any], list[Any], list[Any]]:
    """Of `[elements, features]`, in numbers of 300 bits."""
    count, features = x.shape
    exact = [[MP.mpf(float(value)) for value in row] for row in x]
    means = [MP.fsum(row[f] for row in exact) / count for f in range(features)]
    variances = [MP.fsum((row[f] - means[f]) ** 2 for row in exact) / count for f in range(features)]
    result = [
        MP.mpf(float(scale[f])) * (row[f] - means[f]) / MP.sqrt(variances[f] + MP.mpf(epsilon))
        + MP.mpf(float(offset[f]))
        for row in exact
        for f in range(features)
    ]
    return result, means, variances


@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_normalization_is_rounded_once(name: str) -> None:
    storage = element_type(name).storage
    x = (_numbers(11, 40, 3) * [1, 100, 0.01] + [0, 30, 1]).astype(storage)
    scale, offset = _numbers(12, 3).astype(storage), _numbers(13, 3).astype(storage)
    epsilon = float(np.float32(0.001))
    triple = f"({name}[40,3], {name}[3], {name}[3])"
    options = ", epsilon=0.001, feature_index=1"
    found = evaluate_exactly("batch-norm-training", x, scale, offset, result=triple, attributes=options)
    for actual, expected in zip(found, _normalized(x, scale, offset, epsilon), strict=True):
        assert largest_error(actual, map(to_fraction, expected)) <= BOUND


def test_gradients_of_normalization_are_rounded_once() -> None:
    x, g = _numbers(14, 40, 3).astype(np.float32), _numbers(15, 40, 3).astype(np.float32)
    scale, mean, variance = (np.abs(_numbers(seed, 3)).astype(np.float32) for seed in (16, 17, 18))
    triple = "(f32[40,3], f32[3], f32[3])"
    options = ", epsilon=0.001, feature_index=1"
    found = evaluate_exactly("batch-norm-grad", x, scale, mean, variance, g, result=triple, attributes=options)
    exact: Any = np.vectorize(lambda value: MP.mpf(float(value)), otypes=[object])
    x, g, scale, mean, variance = map(exact, (x, g, scale, mean, variance))
    deviation = np.array([MP.sqrt(value + MP.mpf(float(np.float32(0.001)))) for value in variance])
    normal = (x - mean) / deviation
    grad_offset, grad_scale = g.sum(0), (g * normal).sum(0)
    grad_operand = scale / deviation * (g - grad_offset / 40 - normal * grad_scale / 40)
    for actual, expected in zip(found, (grad_operand, grad_scale, grad_offset), strict=True):
        assert largest_error(actual, [to_fraction(value) for value in expected.ravel()]) <= BOUND


def test_library_calls_that_depend_on_the_processor_are_refused_before_a_run() -> None:
    text = """HloModule m

ENTRY e {
  a = f32[4,4] parameter(0)
  ROOT qr = (f32[4,4], f32[4]) custom-call(a), custom_call_target="Qr"
}
"""
    module = hloexec.parse(text)
    hloexec.run(module, np.eye(4, dtype=np.float32))
    with pytest.raises(hloexec.UnsupportedError, match=r'"Qr".* where numerics=exact asks for the same bits'):
        hloexec.run(module, np.eye(4, dtype=np.float32), numerics="exact")


def test_users_functions_run_under_the_exact_policy() -> None:
    module = hloexec.parse('HloModule m\nENTRY e {\n  ROOT r = f32[2] custom-call(), custom_call_target="mine"\n}\n')
    hloexec.register_custom_call("mine", lambda: np.ones(2, np.float32))
    try:
        assert hloexec.run(module, numerics="exact").tolist() == [1, 1]
    finally:
        unregister_custom_call("mine")
