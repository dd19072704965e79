"""Which values may be the same but for rounding, and in which order."""

import ml_dtypes
import numpy as np
import pytest

from hloexec.analysis.numerics.tolerances import rounding, summing
from hloexec.tools.diffing.matching import agrees, aligned, could_agree, is_near, rearranged, rounds_alike
from hloexec.tools.diffing.recording.arrays import digest_of
from tests.drawing import normal


def test_elements_agree_to_within_what_is_allowed_of_each() -> None:
    values = normal(100)
    allowed = np.full(100, 1e-6)
    allowed[7] = 1e10
    moved = values + np.float32(9e-7)
    moved[7] = 1e9
    assert agrees(moved, values, allowed)
    moved[8] += np.float32(1e-6)
    assert not agrees(moved, values, allowed)


def test_a_denormal_that_was_flushed_does_not_agree() -> None:
    assert not agrees(np.zeros(1, np.float32), np.full(1, 1e-39, np.float32), np.full(1, 2.0**-24 * 2.0**-126))


def test_what_is_wider_is_rounded_first() -> None:
    values = normal(100)
    narrow = values.astype(ml_dtypes.bfloat16)
    assert agrees(values, narrow, np.zeros(100))
    assert not agrees(values * np.float32(1.02), narrow, np.zeros(100))


def test_integers_must_be_the_same() -> None:
    assert agrees(np.arange(3), np.arange(3), None)
    assert not agrees(np.arange(3), np.arange(1, 4), None)


@pytest.mark.parametrize("seed", range(5))
def test_the_sums_of_values_that_agree_never_rule_them_out(seed: int) -> None:
    values = normal(1000, seed=seed)
    relative = 1e-5
    size = np.sqrt(np.mean(values.astype(np.float64) ** 2))
    errors = relative * (np.abs(values) + size) * np.sign(normal(1000, seed=seed + 100))
    other = digest_of(values.astype(np.float64) + 0.999 * errors)
    sums = np.array([[other.total, other.magnitude, other.squares]])
    assert could_agree(digest_of(values), sums, relative).all()
    assert not could_agree(digest_of(values), sums * 1.01, relative).any()


def test_arrays_are_aligned_by_permuting_dimensions() -> None:
    array = normal(2, 3, 4)
    assert any(np.array_equal(found, array.transpose(2, 0, 1)) for found in aligned(array, (4, 2, 3)))
    _, turned = aligned(array, (3, 1, 2, 4))
    assert np.array_equal(turned, array.transpose(1, 0, 2).reshape(3, 1, 2, 4))
    assert list(aligned(array, (5, 5))) == []


def test_dimensions_that_are_merged_may_be_permuted() -> None:
    array = np.arange(64).reshape(4, 4, 4)
    turned = array.transpose(1, 2, 0).reshape(16, 4)
    assert any(np.array_equal(found, turned) for found in aligned(array, (16, 4)))
    assert any(np.array_equal(found, array) for found in aligned(turned, (4, 4, 4)))
    # None of its dimensions is of two, or of 32 if others are merged.
    assert len(list(aligned(array, (2, 32)))) == 1


def test_of_sparse_arrays_what_is_filled_has_to_be_near() -> None:
    expected, moved = np.zeros((2, 300), np.float32)
    expected[::30] = moved[7::30] = 1.5
    assert not is_near(moved, expected)
    assert is_near(expected + np.float32(0), expected)


def test_rearranged_finds_the_permutation() -> None:
    array = normal(4, 4, 4)
    found = rearranged(array.transpose(1, 2, 0), array, None)
    assert found is not None
    assert np.array_equal(found, array.transpose(1, 2, 0))


def test_any_other_order_is_told_by_sorting_many_different_numbers() -> None:
    array = normal(100)
    shuffled = np.random.default_rng(1).permutation(array)
    assert rearranged(shuffled, array, None) is shuffled
    assert rearranged(shuffled, array + np.float32(0.01), None) is None


def test_few_numbers_in_another_order_are_no_evidence() -> None:
    mask = (np.arange(100) % 2).astype(np.float32)
    assert rearranged(mask[::-1].copy(), mask, None) is None
    assert rearranged(np.array([2, 1, 3]), np.array([1, 2, 3]), None) is None


def test_a_rounding_too_many_is_told_by_how_many_elements_differ() -> None:
    once, twice = rounding(2.0**-9), rounding(2.0**-9).then(rounding(2.0**-9))
    values = normal(1000)
    nearly = values.copy()
    nearly[:10] *= np.float32(1.002)
    assert rounds_alike(nearly, values, once, twice)
    assert rounds_alike(values * np.float32(1.002), values, once, once)
    assert not rounds_alike(values * np.float32(1.002), values, once, twice)


def test_partial_sums_in_a_narrow_type_round_as_its_results_do() -> None:
    """A reduce in bf16 may round each partial sum, or the last one alone: XLA:CPU does the one, a GPU the other."""
    values = normal(100).astype(ml_dtypes.bfloat16).astype(np.float32)
    in_steps = summing(20, 2.0**-8)
    at_the_end = in_steps.then(rounding(2.0**-8))
    assert rounds_alike(values * np.float32(1.01), values.astype(ml_dtypes.bfloat16), in_steps, at_the_end)
    assert not rounds_alike(
        values * np.float32(1.01), values.astype(ml_dtypes.bfloat16), summing(20, 2.0**-24), at_the_end
    )
