"""cholesky and triangular-solve: backward errors within the textbook bounds, and XLA:CPU's conventions."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance import xla
from hloexec.errors import ShapeError
from tests.ops.against_xla import needs_xla
from tests.ops.evaluation import evaluate

DTYPES: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128}
UNIT = {"f32": 2.0**-24, "f64": 2.0**-53, "c64": 2.0**-24, "c128": 2.0**-53}


def random_array(element_type: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape)
    if element_type.startswith("c"):
        values = values + 1j * generator.standard_normal(shape)
    return values


def positive_definite(element_type: str, batch: tuple[int, ...], size: int) -> np.ndarray:
    factor = random_array(element_type, (*batch, size, size), size)
    return (factor @ factor.conj().swapaxes(-1, -2) + size * np.eye(size)).astype(DTYPES[element_type])


def cholesky(shape: str, lower: bool) -> str:
    return f"""HloModule m
ENTRY e {{
  a = {shape} parameter(0)
  ROOT r = {shape} cholesky(a), lower={str(lower).lower()}
}}"""


@pytest.mark.parametrize("element_type", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("size", [1, 3, 50])
def test_cholesky_factors_reproduce_the_matrix(element_type: str, lower: bool, size: int) -> None:
    """|a - l lᴴ| ≤ γ(n + 1) |l| |lᴴ| elementwise (Higham, Accuracy and Stability, theorem 10.3); complex: four times."""
    matrices = positive_definite(element_type, (2, 3), size)
    dtype = matrices.dtype
    other = np.triu(np.ones((size, size)), 1) if lower else np.tril(np.ones((size, size)), -1)
    poisoned = np.where(other, np.array(np.nan, dtype), matrices)
    result = evaluate(cholesky(f"{element_type}[2,3,{size},{size}]", lower), poisoned)
    assert not result[..., other.astype(bool)].any()
    factor = result.astype(np.complex128)
    factor = factor if lower else factor.conj().swapaxes(-1, -2)
    product = factor @ factor.conj().swapaxes(-1, -2)
    magnitude = np.abs(factor) @ np.abs(factor).swapaxes(-1, -2)
    assert np.all(np.abs(product - matrices) <= 4 * 1.01 * (size + 1) * UNIT[element_type] * magnitude)


@needs_xla
@pytest.mark.parametrize("lower", [True, False])
def test_only_the_matrices_that_are_not_positive_definite_become_nan(lower: bool) -> None:
    matrices = np.array([[[1, 2], [2, 1]], [[4, 2], [2, 5]], [[np.nan, 0], [0, 1]], [[1, 0], [0, np.nan]]], np.float32)
    text = cholesky("f32[4,2,2]", lower)
    (expected,) = xla.run_hlo(text, matrices)
    actual = evaluate(text, matrices)
    assert_array_equal(actual[1], expected[1])
    # XLA:CPU leaves zeros in the triangle that is no part of the factor in some of these cases.
    assert np.isnan(actual[[0, 2, 3]]).all()
    assert np.isnan(expected[[0, 2, 3]]).any((-1, -2)).all()


def test_narrow_matrices_factor_in_f32_and_round_once() -> None:
    matrix = np.array([[3, 1], [1, 3]], ml_dtypes.bfloat16)
    wide = evaluate(cholesky("f32[2,2]", True), matrix.astype(np.float32))
    assert_array_equal(evaluate(cholesky("bf16[2,2]", True), matrix), wide.astype(ml_dtypes.bfloat16))


def triangular_solve(a: str, b: str, **options: object) -> str:
    text = ", ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()
    )
    return f"""HloModule m
ENTRY e {{
  a = {a} parameter(0)
  b = {b} parameter(1)
  ROOT r = {b} triangular-solve(a, b), {text}
}}"""


@pytest.mark.parametrize("element_type", DTYPES)
@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
@pytest.mark.parametrize("transpose_a", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
def test_solutions_satisfy_their_equations(
    element_type: str, left_side: bool, lower: bool, unit_diagonal: bool, transpose_a: str
) -> None:
    """|b - op(a) x| ≤ γ(n) |op(a)| |x| elementwise (Higham, theorem 8.5); complex: four times.

    What is not read holds NaN.
    """
    size, columns = 45, 3
    dtype = DTYPES[element_type]
    scale = 1 / size if unit_diagonal else 1.0
    matrix = (random_array(element_type, (2, size, size), 0) * scale + 3 * np.eye(size)).astype(dtype)
    triangle = np.tril(np.ones((size, size), bool)) if lower else np.triu(np.ones((size, size), bool))
    if unit_diagonal:
        triangle &= ~np.eye(size, dtype=bool)
    shape = (2, size, columns) if left_side else (2, columns, size)
    right = random_array(element_type, shape, 1).astype(dtype)
    text = triangular_solve(
        f"{element_type}[2,{size},{size}]", f"{element_type}[{','.join(map(str, shape))}]",
        left_side=left_side, lower=lower, unit_diagonal=unit_diagonal, transpose_a=transpose_a,
    )  # fmt: skip
    result = evaluate(text, np.where(triangle, matrix, np.array(np.nan, dtype)), right)
    assert result.dtype == dtype
    x = result.astype(np.complex128)
    applied = np.where(triangle, matrix, 0).astype(np.complex128) + (np.eye(size) if unit_diagonal else 0)
    applied = applied if transpose_a == "NO_TRANSPOSE" else applied.swapaxes(-1, -2)
    applied = applied.conj() if transpose_a == "ADJOINT" else applied
    product = applied @ x if left_side else x @ applied
    magnitude = np.abs(applied) @ np.abs(x) if left_side else np.abs(x) @ np.abs(applied)
    assert np.all(np.abs(product - right) <= 4 * 1.01 * size * UNIT[element_type] * magnitude)


def test_a_singular_matrix_gives_no_finite_solution() -> None:
    text = triangular_solve("f32[2,2]", "f32[2,2]", left_side=True, lower=True, transpose_a="NO_TRANSPOSE")
    matrix, right = np.array([[0, 0], [1, 2]], np.float32), np.array([[1, 0], [4, 2]], np.float32)
    assert not np.isfinite(evaluate(text, matrix, right)).any()


def test_empty_systems_have_empty_solutions() -> None:
    for a, b in (((0, 0), (0, 3)), ((2, 2), (2, 0)), ((0, 2, 2), (0, 2, 1))):
        text = triangular_solve(
            f"f32[{','.join(map(str, a))}]", f"f32[{','.join(map(str, b))}]", left_side=True, transpose_a="TRANSPOSE"
        )
        assert evaluate(text, np.ones(a, np.float32), np.ones(b, np.float32)).shape == b
    assert evaluate(cholesky("f32[0,3,3]", True), np.ones((0, 3, 3), np.float32)).shape == (0, 3, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (cholesky("f32[2,3]", True), "must hold square matrices"),
        (cholesky("f32[3]", True), "must hold square matrices"),
        (cholesky("s32[3,3]", True), "must be floating-point or complex"),
        (triangular_solve("f32[3,3]", "f32[3,2]", left_side=True), "must say transpose_a"),
        (triangular_solve("f32[3,3]", "f32[3,2]", left_side=False, transpose_a="TRANSPOSE"), "on the right side"),
        (triangular_solve("f32[3,3]", "c64[3,2]", left_side=True, transpose_a="TRANSPOSE"), "same element type"),
        (triangular_solve("f32[4,3,3]", "f32[5,3,2]", left_side=True, transpose_a="TRANSPOSE"), "same batch"),
        (triangular_solve("f32[3,4]", "f32[3,2]", left_side=True, transpose_a="TRANSPOSE"), "square"),
    ],
)
def test_wrong_shapes_are_refused(text: str, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        evaluate(text)
