"""Numbers for people."""

from typing import Any

import pytest

from hloexec.core.wording import count_text, number_text, plural
from hloexec.report.units import flop_text, seconds_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 FLOP"),
        (999, "999 FLOP"),
        (1500, "1.5 kFLOP"),
        (999_960, "1.0 MFLOP"),
        (23.1e12, "23.1 TFLOP"),
        (5e20, "500.0 EFLOP"),
    ],
)
def test_flops(count: float, text: str) -> None:
    assert flop_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (12e-6, "12 µs"),
        (0.0012345, "1.23 ms"),
        (0.0456, "45.6 ms"),
        (0.2, "200 ms"),
        (0.9996, "1.00 s"),
        (59.94, "59.9 s"),
        (83, "1 min 23 s"),
        (3725, "1 h 2 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (-3, "-3"),
        (31999, "31999"),
        (1.0, "1"),
        (0.0123456, "0.01235"),
        (1.5e-7, "1.500e-07"),
        (123456.0, "123456"),
        (1234567.0, "1.235e+06"),
        (2**63, "9.223e+18"),
    ],
)
def test_numbers_have_four_digits(number: Any, text: str) -> None:
    assert number_text(number) == text


def test_counts_are_grouped_and_named() -> None:
    assert count_text(9917) == "9 917" and plural(1, "array") == "1 array" and plural(1000, "array") == "1 000 arrays"
