"""What an element's error is relative to, and limits against the exact factors of the noncentral t distribution and samples."""

import math
from typing import Any

import numpy as np
import pytest

from hloexec.tools.narrowing.running import upper_limit
from hloexec.tools.narrowing.search import Expected, worst_element

INFINITY = math.inf


def _error(before: Any, after: Any, dtype: Any = np.float32) -> tuple[float, tuple[int, ...]]:
    return worst_element(Expected.of(np.array(before, dtype)), np.array(after, dtype))


def test_error_of_a_scalar_is_relative() -> None:
    assert _error(4.0, 4.5) == (0.125, ())


def test_elements_above_the_median_are_held_to_their_own_size() -> None:
    assert _error([1, 2, 1024], [1, 2, 1025]) == (1 / 1024, (2,))


def test_small_elements_are_held_to_the_median_magnitude() -> None:
    assert _error([0.001, 2, 4], [0.251, 2, 4]) == (pytest.approx(0.125), (0,))


def test_zeros_do_not_count_as_typical_elements() -> None:
    error, index = _error([0, 0, 0, 0, 8], [0, 1, 0, 0, 8])
    assert (error, index) == (0.125, (1,))


def test_one_large_element_does_not_hide_the_others() -> None:
    assert _error([1, 1, 1e6], [1, 1.5, 1e6]) == (0.5, (1,))


@pytest.mark.parametrize("after", [INFINITY, -INFINITY, math.nan])
def test_numbers_must_not_become_infinite_or_nan(after: float) -> None:
    assert _error([1, 2], [1, after]) == (INFINITY, (1,))


@pytest.mark.parametrize("value", [INFINITY, math.nan])
def test_what_is_not_finite_may_stay_so(value: float) -> None:
    assert _error([1, value], [1, value])[0] == 0


def test_arrays_of_zeros_have_to_stay_zero() -> None:
    assert _error([0, 0], [0, 1e-30]) == (INFINITY, (1,))
    assert _error([0, 0], [0, -0.0])[0] == 0


@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_integers_and_booleans_have_to_stay(dtype: Any) -> None:
    assert _error([1, 0], [1, 1], dtype) == (INFINITY, (1,))
    assert _error([1, 0], [1, 0], dtype)[0] == 0


def test_complex_elements_are_measured_by_their_magnitude() -> None:
    assert _error([3 + 4j], [3 + 4.5j], np.complex64) == (pytest.approx(0.1), (0,))


def test_empty_arrays_have_no_error() -> None:
    assert _error(np.zeros((0, 3)), np.zeros((0, 3))) == (0.0, ())


FACTORS = {20: 4.3181912117, 40: 3.8654498020, 100: 3.5394843444}
"""By the number of samples, as SciPy has the noncentral t distribution."""


@pytest.mark.slow
@pytest.mark.parametrize("count", FACTORS)
def test_factors_are_those_of_scipy(count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    exact = stats.nct.ppf(0.95, count - 1, stats.norm.ppf(0.999) * math.sqrt(count)) / math.sqrt(count)
    assert FACTORS[count] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("count", FACTORS)
def test_factor_is_that_of_the_noncentral_t_distribution_within_a_percent(count: int) -> None:
    logarithms = np.linspace(-2, -1, count)
    limit = math.log(upper_limit(np.exp(logarithms).tolist()))
    factor = (limit - logarithms.mean()) / logarithms.std(ddof=1)
    assert factor == pytest.approx(FACTORS[count], rel=0.01)


def test_limit_covers_999_of_1000_for_19_of_20_samples() -> None:
    normal, generator = 3.0902323, np.random.default_rng(5)
    samples = np.exp(0.4 * generator.normal(size=(2000, 40)))
    covers = np.mean([upper_limit(sample.tolist()) >= math.exp(0.4 * normal) for sample in samples])
    # 95 % with a standard error of 0.5 %.
    assert 0.935 <= covers <= 0.97


def test_errors_of_zero_have_a_limit() -> None:
    assert upper_limit([0.0] * 20) == pytest.approx(1e-3)
