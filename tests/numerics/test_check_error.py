"""`compare(check_error=…)`: which statistic of the errors is held to a tolerance, and that the verdict says no more."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec import InputError, Verdict
from hloexec.analysis.numerics.tolerances import CHECK_ERRORS
from tests.drawing import examples

EXPECTED = np.full(200, 8.0, np.float32)


def _off(*errors: float, expected: Any = EXPECTED) -> Any:
    """The expected value with its first elements moved."""
    actual = expected.copy()
    actual[: len(errors)] += np.array(errors, actual.dtype)
    return actual


@pytest.mark.parametrize(
    ("errors", "check_error", "verdict"),
    [
        ([1.0], "max", Verdict.DIFFERENT),
        ([0.5] * 200, "max", Verdict.WITHIN),
        ([0.5] * 200, "median", Verdict.WITHIN),
        ([], "mean", Verdict.EQUAL),
        ([1.0] * 100, "median", Verdict.MEDIAN),
        ([1.0] * 101, "median", Verdict.DIFFERENT),
        ([1e6] * 2, "p99", Verdict.P99),
        ([1.0] * 3, "p99", Verdict.DIFFERENT),
        ([100.0], "mean", Verdict.MEAN),
        ([100.5], "mean", Verdict.DIFFERENT),
        ([-50.0, 50.0], "mean", Verdict.MEAN),
        ([-50.0, 50.5], "mean", Verdict.DIFFERENT),
    ],
)
def test_statistics_are_held_to_the_tolerance(errors: list[float], check_error: str, verdict: Verdict) -> None:
    found = hloexec.compare(_off(*errors), EXPECTED, atol=0.5, check_error=check_error)
    assert found.verdict is verdict and found.agrees == (verdict is not Verdict.DIFFERENT)


@pytest.mark.parametrize("seed", range(examples(20)))
@pytest.mark.parametrize("check_error", CHECK_ERRORS)
def test_verdicts_are_those_of_numpy(seed: int, check_error: str) -> None:
    generator = np.random.default_rng(seed)
    expected = generator.standard_normal(int(generator.integers(1, 300)))
    actual = expected + generator.standard_normal(expected.size) * generator.choice([0, 1e-3, 1], expected.size)
    atol, rtol = 1e-3, 0.05 * seed
    severities = np.abs(actual - expected) / (atol + rtol * np.abs(expected))
    statistic = {
        "max": severities.max(),
        "mean": severities.mean(),
        "median": np.percentile(severities, 50, method="inverted_cdf"),
        "p99": np.percentile(severities, 99, method="inverted_cdf"),
    }[check_error]
    found = hloexec.compare(actual, expected, atol=atol, rtol=rtol, check_error=check_error)
    assert found.agrees == (statistic <= 1)
    (leaf,) = found.leaves
    assert leaf.measured is not None and leaf.measured.mean_severity == pytest.approx(severities.mean(), rel=1e-12)


@pytest.mark.parametrize("check_error", CHECK_ERRORS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinities_stand_where_they_are_expected(check_error: str, value: float) -> None:
    for actual, expected in ((_off(value), EXPECTED), (EXPECTED, _off(value))):
        found = hloexec.compare(actual, expected, atol=1.0, check_error=check_error)
        assert found.verdict is Verdict.DIFFERENT
    assert hloexec.compare(_off(value), _off(value), atol=1.0, check_error=check_error).verdict is Verdict.EQUAL


def test_the_words_say_what_was_measured() -> None:
    found = hloexec.compare(_off(1.0, 2.0), EXPECTED, atol=0.5, check_error="median")
    (leaf,) = found.leaves
    assert str(found) == "median within tolerance"
    assert leaf.statistic_text == "the median of the errors: within the tolerance; beyond it: 2 of 200 elements"
    assert leaf.tolerance.derivation == "given: atol 0.5, for the median of the errors alone"
    (leaf,) = hloexec.compare(_off(*[1.0] * 150), EXPECTED, atol=0.5, check_error="mean").leaves
    assert leaf.statistic_text == (
        "the mean of the errors, 1.5 times what is tolerated: outside of the tolerance; beyond it: 150 of 200 elements"
    )
    (leaf,) = hloexec.compare(_off(np.nan), EXPECTED, atol=0.5, check_error="p99").leaves
    assert leaf.statistic_text.endswith("1 of 200 elements, 1 of them without a finite error (NaN, infinities)")
    (leaf,) = hloexec.compare(_off(1.0), EXPECTED, atol=0.5).leaves
    assert leaf.statistic_text == ""


def test_units_in_the_last_place_and_zero_are_tolerances_too() -> None:
    actual = EXPECTED.copy()
    actual[:90] = np.nextafter(actual[:90], np.float32(np.inf))
    actual[:3] = 9
    assert hloexec.compare(actual, EXPECTED, ulp=1, check_error="median").verdict is Verdict.MEDIAN
    assert hloexec.compare(actual, EXPECTED, ulp=1, check_error="p99").verdict is Verdict.DIFFERENT
    assert hloexec.compare(actual, EXPECTED, atol=0, check_error="median").verdict is Verdict.MEDIAN
    assert hloexec.compare(actual, EXPECTED, atol=0, check_error="mean").verdict is Verdict.DIFFERENT


def test_integers_are_held_to_it_as_well() -> None:
    expected = np.arange(10)
    actual = expected + np.array([5, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    assert hloexec.compare(actual, expected, atol=1, check_error="mean").verdict is Verdict.MEAN
    assert hloexec.compare(actual, expected, atol=1, check_error="p99").verdict is Verdict.DIFFERENT


def test_the_worst_leaf_decides() -> None:
    found = hloexec.compare((_off(0.1), _off(9.0)), (EXPECTED, EXPECTED), atol=0.5, check_error="median")
    assert [leaf.verdict for leaf in found.leaves] == [Verdict.WITHIN, Verdict.MEDIAN]
    assert found.verdict is Verdict.MEDIAN


def test_values_of_nothing_agree() -> None:
    nothing = np.zeros((0, 3), np.float32)
    assert hloexec.compare(nothing, nothing, atol=1, check_error="mean").verdict is Verdict.EQUAL


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check_error": "median"}, "check_error=median needs a tolerance to hold the errors to: atol, rtol or ulp"),
        ({"atol": 1, "check_error": "p90"}, "check_error must be one of max, p99, median, mean"),
        ({"atol": 1, "check_error": None}, "check_error must be one of"),
        ({"atol": 1, "check_error": []}, "check_error must be one of"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hloexec.compare(EXPECTED, EXPECTED, **options)
