"""Which values may be the same but for rounding, and in which order."""

from __future__ import annotations

import numpy as np
import pytest

from hloexec.diffing.agreement import agrees, aligned, could_agree, local_tolerance, rearranged, rounds_alike
from hloexec.diffing.digests import digest_of
from hloexec.dtypes import ELEMENT_TYPES
from hloexec.numerics.error_budget import rounding, summing
from hloexec.numerics.tolerances import Tolerance

F32 = ELEMENT_TYPES["f32"]
_UNIT = 2.0**-24


def _random(*dimensions: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(dimensions, np.float32)


def test_sums_in_another_order_agree_and_sums_in_bf16_do_not() -> None:
    terms = _random(200, 512)
    chain = summing(512, _UNIT).then(rounding(_UNIT, cancels=True))
    forwards = np.add.accumulate(terms, axis=1)[:, -1]
    backwards = np.add.accumulate(terms[:, ::-1], axis=1)[:, -1]
    tolerance = local_tolerance(F32, F32, float(np.sqrt(np.mean(forwards**2))), chain)
    assert not np.array_equal(forwards, backwards)
    assert agrees(backwards, forwards, tolerance)
    coarse = (terms.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert not agrees(np.add.accumulate(coarse, axis=1)[:, -1], forwards, tolerance)


def test_a_denormal_that_was_flushed_does_not_agree() -> None:
    tolerance = local_tolerance(F32, F32, 0.0, rounding(_UNIT))
    assert not agrees(np.zeros(1, np.float32), np.full(1, 1e-39, np.float32), tolerance)


def test_integers_must_be_the_same() -> None:
    tolerance = local_tolerance(ELEMENT_TYPES["s32"], ELEMENT_TYPES["s32"], 5.0, summing(9, 0.1))
    assert agrees(np.arange(3), np.arange(3), tolerance)
    assert not agrees(np.arange(3), np.arange(1, 4), tolerance)


@pytest.mark.parametrize("seed", range(5))
def test_the_sums_of_values_that_agree_never_rule_them_out(seed: int) -> None:
    values = _random(1000, seed=seed)
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)
    errors = (tolerance.atol + tolerance.rtol * np.abs(values)) * np.sign(_random(1000, seed=seed + 100))
    other = digest_of(values.astype(np.float64) + 0.999 * errors)
    sums = np.array([[other.total, other.magnitude, other.squares]])
    assert could_agree(digest_of(values), sums, tolerance).all()
    assert not could_agree(digest_of(values), sums * 1.01, tolerance).any()


def test_arrays_are_aligned_by_permuting_dimensions() -> None:
    array = _random(2, 3, 4)
    assert any(np.array_equal(found, array.transpose(2, 0, 1)) for found in aligned(array, (4, 2, 3)))
    _, turned = aligned(array, (3, 1, 2, 4))
    assert np.array_equal(turned, array.transpose(1, 0, 2).reshape(3, 1, 2, 4))
    assert list(aligned(array, (5, 5))) == []


def test_rearranged_finds_the_permutation() -> None:
    array = _random(4, 4, 4)
    found = rearranged(array.transpose(1, 2, 0), array, Tolerance())
    assert found is not None
    assert np.array_equal(found, array.transpose(1, 2, 0))


def test_any_other_order_is_told_by_sorting_many_different_numbers() -> None:
    array = _random(100)
    shuffled = np.random.default_rng(1).permutation(array)
    assert rearranged(shuffled, array, Tolerance()) is shuffled
    assert rearranged(shuffled, array + np.float32(0.01), Tolerance()) is None


def test_few_numbers_in_another_order_are_no_evidence() -> None:
    mask = (np.arange(100) % 2).astype(np.float32)
    assert rearranged(mask[::-1].copy(), mask, Tolerance()) is None
    assert rearranged(np.array([2, 1, 3]), np.array([1, 2, 3]), Tolerance()) is None


def test_a_rounding_too_many_is_told_by_how_many_elements_differ() -> None:
    once, twice = rounding(2.0**-9), rounding(2.0**-9).then(rounding(2.0**-9))
    values = _random(1000)
    nearly = values.copy()
    nearly[:10] *= np.float32(1.002)
    assert rounds_alike(nearly, values, once, twice)
    assert rounds_alike(values * np.float32(1.002), values, once, once)
    assert not rounds_alike(values * np.float32(1.002), values, once, twice)
