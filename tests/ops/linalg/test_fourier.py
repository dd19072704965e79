"""fft against the definition, evaluated in higher precision."""

from typing import Any

import numpy as np
import pytest

import hloexec
from conformance import xla
from conformance.cell import text_of
from hloexec.errors import ShapeError
from tests.ops.against_xla import needs_xla
from tests.ops.evaluation import evaluate

COMPLEX_OF_REAL = {"f32": "c64", "f64": "c128"}
DTYPES: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128}
CASES = [((1,), 1), ((8,), 1), ((7,), 1), ((3, 12), 1), ((5, 6), 2), ((2, 4, 5), 3), ((2, 3, 4, 6), 3), ((97,), 1)]
# Of more points than one thread transforms at a time.
CASES += [((600, 128), 1), ((300, 256), 2)]


def fft(kind: str, operand: str, result: str, lengths: tuple[int, ...]) -> str:
    return f"""HloModule m
ENTRY e {{
  a = {operand} parameter(0)
  ROOT r = {result} fft(a), fft_type={kind}, fft_length={{{",".join(map(str, lengths))}}}
}}"""


def transform(values: np.ndarray, rank: int, sign: int) -> np.ndarray:
    """sum of x[n] exp(sign · 2πi · k · n / N), dimension by dimension, with exponents reduced exactly."""
    result = values.astype(np.clongdouble)
    for axis in range(values.ndim - rank, values.ndim):
        size = values.shape[axis]
        steps = np.outer(np.arange(size), np.arange(size)) % size
        angle = 2 * np.arctan2(np.longdouble(0), np.longdouble(-1)) * steps / size
        matrix = np.cos(angle) + sign * 1j * np.sin(angle)
        result = np.moveaxis(np.tensordot(result, matrix, (axis, 0)), -1, axis)
    return result


def assert_close(actual: np.ndarray, expected: np.ndarray, rank: int) -> None:
    """‖error‖₂ ≤ log2(N) · η · ‖y‖₂ with η ≈ 7 u for powers of two (Higham, theorem 24.2); other radices: three times."""
    unit = np.finfo(actual.dtype).eps / 2
    axes = tuple(range(actual.ndim - rank, actual.ndim))
    points = int(np.prod([actual.shape[axis] for axis in axes]))
    error = np.sqrt(np.sum(np.abs(actual - expected) ** 2, axes))
    norm = np.sqrt(np.sum(np.abs(expected) ** 2, axes))
    assert np.all(error <= 3 * 7 * unit * (np.log2(points) + 2) * norm)


def random_complex(dimensions: tuple[int, ...]) -> np.ndarray:
    generator = np.random.default_rng(len(dimensions))
    return generator.standard_normal(dimensions) + 1j * generator.standard_normal(dimensions)


@pytest.mark.slow_cases("dimensions9-2-c64")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("element_type", ["c64", "c128"])
@pytest.mark.parametrize(("dimensions", "rank"), CASES)
def test_fft_and_its_inverse_are_the_sums_of_their_definition(
    element_type: str, dimensions: tuple[int, ...], rank: int
) -> None:
    shape, lengths = text_of(element_type, dimensions), dimensions[-rank:]
    values = random_complex(dimensions).astype(DTYPES[element_type])
    assert_close(evaluate(fft("FFT", shape, shape, lengths), values), transform(values, rank, -1), rank)
    inverse = transform(values, rank, 1) / np.prod(lengths)
    assert_close(evaluate(fft("IFFT", shape, shape, lengths), values), inverse, rank)


@pytest.mark.slow_cases("dimensions9-2-f32")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("element_type", ["f32", "f64"])
@pytest.mark.parametrize(("dimensions", "rank"), CASES)
def test_real_transforms_are_halves_of_complex_ones(element_type: str, dimensions: tuple[int, ...], rank: int) -> None:
    half = (*dimensions[:-1], dimensions[-1] // 2 + 1)
    real, spectrum = text_of(element_type, dimensions), text_of(COMPLEX_OF_REAL[element_type], half)
    lengths = dimensions[-rank:]
    values = random_complex(dimensions).real.astype(DTYPES[element_type])
    whole = transform(values, rank, -1)
    assert_close(evaluate(fft("RFFT", real, spectrum, lengths), values), whole[..., : half[-1]], rank)
    halved = whole[..., : half[-1]].astype(DTYPES[COMPLEX_OF_REAL[element_type]])
    result = evaluate(fft("IRFFT", spectrum, real, lengths), halved)
    # Rounding the spectrum costs one more unit.
    assert_close(result, values.astype(np.float64), rank)


@needs_xla
def test_irfft_ignores_what_a_real_signal_cannot_have_as_xla_does() -> None:
    text = fft("IRFFT", "c128[5]", "f64[8]", (8,))
    values = random_complex((5,))
    (expected,) = xla.run_hlo(text, values)
    np.testing.assert_allclose(evaluate(text, values), expected, rtol=0, atol=8 * 21 * 2.0**-53)


def test_empty_batches_transform_to_empty_batches() -> None:
    text = fft("RFFT", "f32[0,4]", "c64[0,3]", (4,))
    assert evaluate(text, np.zeros((0, 4), np.float32)).shape == (0, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (fft("FFT", "f32[4]", "c64[4]", (4,)), "operand of FFT must be c64 or c128"),
        (fft("RFFT", "c64[4]", "c64[3]", (4,)), "operand of RFFT must be f32 or f64"),
        (fft("RFFT", "bf16[4]", "c64[3]", (4,)), "operand of RFFT must be f32 or f64"),
        (fft("FFT", "c64[4]", "c64[4]", (5,)), r"must be \[5\]"),
        (fft("IRFFT", "c64[4]", "f32[8]", (8,)), r"must be \[5\]"),
        (fft("FFT", "c64[4]", "c64[4]", (4, 4)), "fft_length has 2"),
        (fft("FFT", "c64[2,2,2,2]", "c64[2,2,2,2]", (2, 2, 2, 2)), "fft_length has 4"),
        (fft("FFT", "c64[4]", "c64[4]", ()), "fft_length has 0"),
    ],
)
def test_wrong_transforms_are_refused(text: str, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        evaluate(text)


@pytest.mark.parametrize("numerics", "reference exact ftz random-rounding:3".split())
@pytest.mark.parametrize("kinds", [("FFT", "IFFT"), ("IFFT", "FFT")])
def test_a_transform_in_the_memory_of_its_operand_gives_the_same_bits(kinds: tuple[str, str], numerics: str) -> None:
    first, second = kinds
    shape, exact = "c64[6,10,64]", "c64[2,3,8]"
    shape, lengths = (exact, "3,8") if numerics == "exact" else (shape, "10,64")
    module = hloexec.parse(f"""HloModule m
ENTRY e {{
  a = {shape} parameter(0)
  b = {shape} fft(a), fft_type={first}, fft_length={{{lengths}}}
  ROOT c = {shape} fft(b), fft_type={second}, fft_length={{{lengths}}}
}}""")
    given = hloexec.random_inputs(module, seed=5)
    (operand,) = given if isinstance(given, tuple | list) else (given,)
    before = operand.tobytes()
    expected = hloexec.run(module, operand, numerics=numerics, planner=False).tobytes()
    for _ in range(18):
        assert hloexec.run(module, operand, numerics=numerics).tobytes() == expected
    assert operand.tobytes() == before
