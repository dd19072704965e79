"""Batch normalization against its formulas in f64, and XLA:CPU."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance import xla
from hloexec.errors import ShapeError
from tests.ops.against_xla import needs_xla
from tests.ops.evaluation import evaluate

DTYPES: dict[str, Any] = {"f64": np.float64, "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
SIZES = (4, 5, 6)
COUNT = 24
EPSILON = 0.001


def module(opcode: str, element_type: str, operands: int) -> str:
    """batch-norm-*: the operand, vectors, and for the gradient another array at the end."""
    array, vector = f"{element_type}[4,5,6]", f"{element_type}[5]"
    shapes = [array, *[vector] * (operands - 1)]
    if opcode == "batch-norm-grad":
        shapes[-1] = array
    result = array if opcode == "batch-norm-inference" else f"({array}, {vector}, {vector})"
    body = "".join(f"  p{number} = {shape} parameter({number})\n" for number, shape in enumerate(shapes))
    names = ", ".join(f"p{number}" for number in range(operands))
    return (
        f"HloModule m\nENTRY e {{\n{body}  ROOT r = {result} {opcode}({names}), epsilon={EPSILON}, feature_index=1\n}}"
    )


def random_inputs(element_type: str, operands: int) -> list[np.ndarray]:
    generator = np.random.default_rng(operands)
    values = [generator.standard_normal(SIZES) + 1]
    values += [generator.random(5) + 0.5 for _ in range(operands - 1)]
    return [value.astype(DTYPES[element_type]) for value in values]


def column(vector: np.ndarray) -> np.ndarray:
    return vector.reshape(5, 1)


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


def assert_close(actual: np.ndarray, expected: np.ndarray, element_type: str, magnitude: np.ndarray) -> None:
    """Sums of n terms and a few more operations in precision u: (n + 10) u times what they add up; then u."""
    accumulation = min(UNIT[element_type], UNIT["f32"])
    error = np.abs(actual.astype(np.float64) - expected)
    assert actual.dtype == DTYPES[element_type]
    assert np.all(error <= (COUNT + 10) * accumulation * magnitude + UNIT[element_type] * np.abs(expected))


def trained(x: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """batch-norm-training's three results, each with the magnitude of what is added up to make each element.

    The variance may be E[x²] − E[x]², where the mean's error comes in by 2 |E[x]|; those of the mean m and of the
    variance v pass on to (x − m) / √(v + ε) by 1 / √(v + ε) and by its own size times 1 / 2 (v + ε).
    """
    mean, variance = x.mean((0, 2)), x.var((0, 2))
    summed = np.abs(x).mean((0, 2))
    squares = np.square(x).mean((0, 2)) + 2 * np.abs(mean) * summed
    deviation = np.sqrt(variance + np.float32(EPSILON))
    normal = (x - column(mean)) / column(deviation)
    error = (np.abs(x) + column(summed)) / column(deviation)
    error += np.abs(normal) * (1 + column(squares / (2 * deviation**2)))
    result = normal * column(scale) + column(offset)
    return [(result, np.abs(column(scale)) * error + np.abs(column(offset))), (mean, summed), (variance, squares)]


def gradient_magnitudes(
    x: np.ndarray, scale: np.ndarray, mean: np.ndarray, variance: np.ndarray, gradient: np.ndarray
) -> list[np.ndarray]:
    """The magnitudes of what batch-norm-grad adds up for each element of its three results: with n = (x − m) / √(v + ε),
    s / √(v + ε) (g − mean g − n mean (g n)), Σ g n and Σ g."""
    deviation = np.sqrt(column(variance) + np.float32(EPSILON))
    normal, g = (np.abs(x) + np.abs(column(mean))) / deviation, np.abs(gradient)
    products = (g * normal).sum((0, 2))
    offset = g.sum((0, 2))
    by_operand = column(scale) / deviation * (g + (column(offset) + normal * column(products)) / COUNT)
    return [by_operand, products, offset]


@pytest.mark.parametrize("element_type", DTYPES)
def test_training_normalizes_by_the_batch(element_type: str) -> None:
    inputs = random_inputs(element_type, 3)
    actual = evaluate(module("batch-norm-training", element_type, 3), *inputs)
    for ours, (expected, magnitude) in zip(actual, trained(*map(wide, inputs)), strict=True):
        assert_close(ours, expected, element_type, magnitude)


@pytest.mark.parametrize("element_type", DTYPES)
def test_inference_normalizes_by_what_it_is_given(element_type: str) -> None:
    inputs = random_inputs(element_type, 5)
    x, scale, offset, mean, variance = map(wide, inputs)
    factor = column(scale) / np.sqrt(column(variance) + np.float32(EPSILON))
    expected = factor * (x - column(mean)) + column(offset)
    actual = evaluate(module("batch-norm-inference", element_type, 5), *inputs)
    assert_close(actual, expected, element_type, factor * (np.abs(x) + column(mean)) + column(offset))


def test_the_gradient_is_that_of_the_training_step() -> None:
    """Central differences of the training step itself: error h² plus u / h, h = 1e-5."""
    operand, scale, _, _, _ = random_inputs("f64", 5)
    generator = np.random.default_rng(0)
    gradient, offset = generator.standard_normal(SIZES), np.zeros(5)
    training = module("batch-norm-training", "f64", 3)
    _, mean, variance = evaluate(training, operand, scale, offset)
    by_operand, by_scale, by_offset = evaluate(
        module("batch-norm-grad", "f64", 5), operand, scale, mean, variance, gradient
    )

    def slope(direction: list[np.ndarray]) -> float:
        step = 1e-5
        ends = [
            np.sum(gradient * evaluate(training, *(v + s * step * d for v, d in zip((operand, scale, offset), direction, strict=True)))[0])
            for s in (1, -1)
        ]  # fmt: skip
        return float(ends[0] - ends[1]) / (2 * step)

    for number, result in enumerate((by_operand, by_scale, by_offset)):
        direction = [np.zeros(SIZES), np.zeros(5), np.zeros(5)]
        direction[number] = generator.standard_normal(result.shape)
        assert slope(direction) == pytest.approx(float(np.sum(direction[number] * result)), abs=1e-7)


@needs_xla
@pytest.mark.parametrize("element_type", ["f64", "f32"])  # XLA:CPU rounds every step of its expansion in f16
@pytest.mark.parametrize(("opcode", "operands"), [("batch-norm-training", 3), ("batch-norm-grad", 5)])
def test_results_agree_with_xla(opcode: str, operands: int, element_type: str) -> None:
    inputs = random_inputs(element_type, operands)
    if opcode == "batch-norm-grad":
        inputs[-1] = np.cos(np.arange(120)).reshape(SIZES).astype(DTYPES[element_type])
    text = module(opcode, element_type, operands)
    given = [wide(values) for values in inputs]
    if opcode == "batch-norm-training":
        magnitudes = [magnitude for _, magnitude in trained(*given)]
    else:
        magnitudes = gradient_magnitudes(*given)
    sides = evaluate(text, *inputs), xla.run_hlo(text, *inputs)
    for ours, theirs, magnitude in zip(*sides, magnitudes, strict=True):
        # Both sides are within the bound of `assert_close` of the formula.
        assert_close(ours, wide(theirs), element_type, 2 * magnitude)


GOOD = module("batch-norm-training", "f32", 3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("feature_index=1", "feature_index=3", "feature_index 3 of batch-norm-training is out of range"),
        ("feature_index=1", "feature_index=0", "one element for each of 4 features"),
        ("p1 = f32[5]", "p1 = f32[5,1]", "scale of batch-norm-training must have one element"),
        ("p2 = f32[5]", "p2 = s32[5]", "same element type"),
        ("p0 = f32[4,5,6]", "p0 = s32[4,5,6]", "must be floating-point"),
    ],
)
def test_wrong_shapes_are_refused(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ShapeError, match=message):
        evaluate(GOOD.replace(old, new))
