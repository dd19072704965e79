"""ULP distances against counting numbers one by one, and statistics against exact sums across the borders of blocks."""

import hashlib
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hloexec.analysis.numerics import leaves as module
from hloexec.analysis.numerics.leaves import statistics
from hloexec.analysis.numerics.measuring import same_bits, ulp_distances
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.values import TOKEN

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
    assert_array_equal(ulp_distances(first, second), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_neighbours_are_one_apart_and_signs_meet_at_zero(dtype: Any) -> None:
    tiny = ml_dtypes.finfo(dtype).smallest_subnormal
    one = np.array([0, 0, -tiny, -0.0, np.inf, np.nan, np.nan, 2]).astype(dtype)
    other = np.array([tiny, -tiny, tiny, 0, ml_dtypes.finfo(dtype).max, np.nan, 1, 2]).astype(dtype)
    assert_array_equal(ulp_distances(one, other), [1, 1, 2, 0, 1, 0, np.inf, 0])
    x = np.arange(-50, 50).astype(dtype)
    assert_array_equal(ulp_distances(np.nextafter(x, dtype(100)), x), 1.0)


def test_the_wider_side_is_rounded_first() -> None:
    expected = np.array([1.0, 1.0078125], ml_dtypes.bfloat16)
    actual = np.array([1.003, 1.003], np.float32)
    assert_array_equal(ulp_distances(actual, expected), [0, 1])
    assert_array_equal(ulp_distances(expected, actual), [0, 1])


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
    assert_array_equal(ulp_distances(actual, expected), [5, 1, 0])


def test_bits_beyond_those_of_a_narrow_type_do_not_count() -> None:
    one = np.array([0x07, 0x17], np.uint8).view(ml_dtypes.int4)
    assert same_bits(one, one[::-1].copy()).all()


def test_nans_are_one_and_zeros_are_two() -> None:
    x = np.array([np.nan, 0.0, 1.0], np.float32)
    y = np.array([-np.nan, -0.0, 1.0], np.float32)
    assert_array_equal(same_bits(x, y), [True, False, True])
    assert_array_equal(same_bits(x + 1j, x - 0j + 1j), [True, True, True])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 64)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int32, ml_dtypes.int4])
def test_moments_agree_with_exact_sums(dtype: Any) -> None:
    array = (np.random.default_rng(1).normal(5, 3, (37, 11)).clip(-8, 7)).astype(dtype)
    (leaf,) = statistics(array)
    exact = [float(element) for element in array.ravel()]
    mean = math.fsum(exact) / len(exact)
    # Merging blocks of 64 makes some twenty roundings on numbers of the size of the mean.
    assert leaf.mean == pytest.approx(mean, rel=64 * 2**-53)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in exact) / len(exact))
    assert leaf.standard_deviation == pytest.approx(deviation, rel=256 * 2**-53)
    assert (leaf.minimum, leaf.maximum) == (min(exact), max(exact))


def test_nan_and_infinities_are_counted_and_left_out() -> None:
    array = np.array([1, np.nan, np.inf, -np.inf, 3, np.nan], np.float32)
    (leaf,) = statistics(array)
    assert (leaf.nan_count, leaf.infinity_count, leaf.minimum, leaf.maximum, leaf.mean) == (2, 2, 1, 3, 2)
    assert leaf.standard_deviation == 1


def test_a_leaf_without_finite_elements_has_no_moments() -> None:
    for array in (np.zeros((0, 3), np.float32), np.full(3, np.nan)):
        (leaf,) = statistics(array)
        assert (leaf.minimum, leaf.maximum, leaf.mean, leaf.standard_deviation) == (None,) * 4


def test_integer_extremes_are_exact() -> None:
    (leaf,) = statistics(np.array([2**63 - 1, -(2**63), 2**63 - 2], np.int64))
    assert (leaf.minimum, leaf.maximum) == (-(2**63), 2**63 - 1)
    (leaf,) = statistics(np.array([2**64 - 1, 3], np.uint64))
    assert (leaf.minimum, leaf.maximum) == (3, 2**64 - 1)


def test_preds_count_as_zero_and_one_and_complex_by_absolute_value() -> None:
    (leaf,) = statistics(np.array([True, False, True, True]))
    assert (leaf.minimum, leaf.maximum, leaf.mean) == (0, 1, 0.75)
    (leaf,) = statistics(np.array([3 + 4j, 0, complex(np.nan, 1)], np.complex64))
    assert (leaf.minimum, leaf.maximum, leaf.mean, leaf.nan_count) == (0, 5, 2.5, 1)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.uint2, np.complex128, np.bool_])
def test_the_hash_is_that_of_the_bytes_in_logical_order_whatever_the_strides(dtype: Any) -> None:
    array = np.random.default_rng(2).integers(0, 4, (20, 30)).astype(dtype)
    expected = hashlib.blake2b(array.tobytes(), digest_size=6).hexdigest()
    fortran = np.asfortranarray(array)
    padded = np.zeros((40, 31), dtype)
    padded[::-2, :30] = array
    for same in (array, fortran, padded[::-2, :30]):
        assert statistics(same)[0].hash == expected
    broadcast = np.broadcast_to(array[:1], (20, 30))
    assert statistics(broadcast)[0].hash == hashlib.blake2b(broadcast.tobytes(), digest_size=6).hexdigest()


def test_leaves_come_depth_first_with_their_paths() -> None:
    value = (np.zeros(1, np.float32), (TOKEN, ()), np.zeros(2, np.int8))
    assert [(leaf.index, str(leaf.element_type)) for leaf in statistics(value)] == [
        ((0,), "f32"),
        ((1, 0), "token"),
        ((2,), "s8"),
    ]
