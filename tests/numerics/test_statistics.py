"""Statistics against exact sums (math.fsum) on values that cross block borders."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloexec.analysis.numerics import leaves as module
from hloexec.analysis.numerics.leaves import statistics
from hloexec.core.values import TOKEN


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
