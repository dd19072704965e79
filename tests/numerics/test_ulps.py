"""ULP distances against counting representable values one by one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloexec.analysis.numerics.measuring import same_bits, ulp_distances
from hloexec.core.dtypes import ELEMENT_TYPES

_SMALL = [entry for entry in ELEMENT_TYPES.values() if entry.is_floating and entry.storage.itemsize == 1]


@pytest.mark.parametrize("entry", _SMALL, ids=str)
def test_distances_count_the_values_of_a_type_in_between(entry: Any) -> None:
    every = np.arange(1 << entry.bits, dtype=np.uint8).view(entry.storage)
    numbers = every.astype(np.float64)
    order = np.unique(numbers[~np.isnan(numbers)])
    first, second = (side.reshape(-1) for side in np.meshgrid(every, every))
    x, y = first.astype(np.float64), second.astype(np.float64)
    expected = np.abs(np.searchsorted(order, x) - np.searchsorted(order, y)).astype(np.float64)
    expected[np.isnan(x) | np.isnan(y)] = np.inf
    expected[np.isnan(x) & np.isnan(y)] = 0
    np.testing.assert_array_equal(ulp_distances(first, second), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_neighbours_are_one_apart_and_signs_meet_at_zero(dtype: Any) -> None:
    tiny = ml_dtypes.finfo(dtype).smallest_subnormal
    one = np.array([0, 0, -tiny, -0.0, np.inf, np.nan, np.nan, 2]).astype(dtype)
    other = np.array([tiny, -tiny, tiny, 0, ml_dtypes.finfo(dtype).max, np.nan, 1, 2]).astype(dtype)
    np.testing.assert_array_equal(ulp_distances(one, other), [1, 1, 2, 0, 1, 0, np.inf, 0])
    x = np.arange(-50, 50).astype(dtype)
    np.testing.assert_array_equal(ulp_distances(np.nextafter(x, dtype(100)), x), 1.0)


def test_the_wider_side_is_rounded_first() -> None:
    expected = np.array([1.0, 1.0078125], ml_dtypes.bfloat16)
    actual = np.array([1.003, 1.003], np.float32)
    np.testing.assert_array_equal(ulp_distances(actual, expected), [0, 1])
    np.testing.assert_array_equal(ulp_distances(expected, actual), [0, 1])


@pytest.mark.parametrize(
    ("actual", "expected", "distance"),
    [
        (np.int64(-(2**63)), np.int64(2**63 - 1), 2.0**64),
        (np.uint64(2**64 - 1), np.uint64(2**64 - 3), 2),
        (np.int8(-128), np.int8(127), 255),
        (ml_dtypes.int4(-8), ml_dtypes.int4(7), 15),
        (np.bool_(True), np.bool_(False), 1),
        (np.int32(-5), np.int64(7), 12),
    ],
)
def test_integers_are_as_far_apart_as_their_difference(actual: Any, expected: Any, distance: float) -> None:
    assert ulp_distances(np.array([actual]), np.array([expected]))[0] == distance


def test_complex_distances_are_in_units_of_the_spacing_at_the_expected_magnitude() -> None:
    expected = np.array([3 + 4j, 0, complex(np.nan, 1)], np.complex64)
    actual = np.array([3 + 4j + 5 * 2.0**-21, 2.0**-149, complex(1, np.nan)], np.complex64)
    np.testing.assert_array_equal(ulp_distances(actual, expected), [5, 1, 0])


def test_bits_beyond_those_of_a_narrow_type_do_not_count() -> None:
    one = np.array([0x07, 0x17], np.uint8).view(ml_dtypes.int4)
    assert same_bits(one, one[::-1].copy()).all()


def test_nans_are_one_and_zeros_are_two() -> None:
    x = np.array([np.nan, 0.0, 1.0], np.float32)
    y = np.array([-np.nan, -0.0, 1.0], np.float32)
    np.testing.assert_array_equal(same_bits(x, y), [True, False, True])
    np.testing.assert_array_equal(same_bits(x + 1j, x - 0j + 1j), [True, True, True])
