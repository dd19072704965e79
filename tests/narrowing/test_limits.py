"""Tolerance limits, against the exact factors of the noncentral t distribution and against samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hloexec.tools.narrowing.running import upper_limit

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
