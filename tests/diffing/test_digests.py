"""Digests tell arrays apart by their numbers, and by nothing else."""

from itertools import combinations

import ml_dtypes
import numpy as np
import pytest

from hloexec.tools.diffing.recording.arrays import digest_of, digest_with, digests_of
from tests.drawing import normal


def test_a_transposed_array_has_the_digest_in_any_order_only() -> None:
    array = normal(40, 50)
    ours, counterpart = digest_of(array), digest_of(array.T)
    assert ours.in_any_order == counterpart.in_any_order
    assert ours.in_order != counterpart.in_order


def test_dimensions_and_strides_do_not_count() -> None:
    array = normal(40, 50)
    assert digest_of(array.reshape(2000)) == digest_of(array)
    assert digest_of(np.asfortranarray(array)) == digest_of(array)
    assert digest_of(np.repeat(array, 2, 1)[:, ::2]) == digest_of(array)


def test_one_element_among_many_changes_it() -> None:
    array = normal(300, 300)
    other = array.copy()
    other[299, 299] = np.nextafter(other[299, 299], np.float32(np.inf))
    assert digest_of(other).in_any_order != digest_of(array).in_any_order


def test_two_exchanged_elements_change_the_order_only() -> None:
    array = normal(70_000)
    other = array.copy()
    other[[3, 69_000]] = other[[69_000, 3]]
    ours, counterpart = digest_of(array), digest_of(other)
    assert (ours.in_any_order == counterpart.in_any_order, ours.in_order == counterpart.in_order) == (True, False)


def test_masks_with_as_many_true_elements_have_digests_of_their_own() -> None:
    """Among them are many whose places have the same sum."""
    places = list(combinations(range(12), 6))
    masks = np.zeros((len(places), 12), np.bool_)
    np.put_along_axis(masks, np.array(places), True, 1)
    digests = [digest_of(mask) for mask in masks]
    assert len({digest.in_any_order for digest in digests}) == 1
    assert len({digest.in_order for digest in digests}) == len(masks)


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.float32, np.complex64])
@pytest.mark.parametrize("step", [1, 32_768, 40_000])
def test_few_numbers_at_places_with_the_same_sum_have_digests_of_their_own(dtype: type, step: int) -> None:
    array = np.zeros(200_000, dtype)
    digests = []
    for places in ((0, 3), (1, 2)):
        other = array.copy()
        other[[step * place + 5 for place in places]] = 1
        digests.append(digest_of(other))
    assert digests[0].in_order != digests[1].in_order


def test_the_same_numbers_in_a_wider_type_are_the_same() -> None:
    narrow = normal(100).astype(ml_dtypes.bfloat16)
    assert digest_of(narrow) == digest_of(narrow.astype(np.float32))
    integers = np.arange(-50, 50, dtype=np.int8)
    assert digest_of(integers) == digest_of(integers.astype(np.int64))


def test_integers_and_floats_and_preds_are_of_different_families() -> None:
    ones = [np.ones(3, dtype) for dtype in (np.float32, np.int32, np.bool_, np.complex64)]
    assert [digest_of(array).family for array in ones] == "float integer pred complex".split()


def test_zeros_are_one_and_nans_are_one() -> None:
    assert digest_of(np.array([0.0, -0.0])) == digest_of(np.array([0.0, 0.0]))
    nans = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    assert digest_of(nans) == digest_of(np.full(2, np.nan, np.float32))
    assert digest_of(nans).nonfinite == (2, 0, 0)


def test_sums_are_over_the_finite_elements() -> None:
    digest = digest_of(np.array([3.0, np.inf, -np.inf, -4.0, np.nan]))
    assert (digest.total, digest.magnitude, digest.squares, digest.nonfinite) == (-1.0, 7.0, 25.0, (1, 1, 1))


def test_parts_of_complex_numbers_belong_together() -> None:
    array = np.array([1 + 2j, 3 + 4j], np.complex64)
    assert digest_of(array).in_any_order != digest_of(np.array([1 + 4j, 3 + 2j], np.complex64)).in_any_order
    assert digest_of(array).in_any_order == digest_of(array[::-1]).in_any_order


@pytest.mark.parametrize(("array", "expected"), [(np.ones(9), True), (np.arange(9), False), (np.zeros(0), True)])
def test_uniform_is_what_has_one_number(array: np.ndarray, expected: bool) -> None:
    assert digest_of(array).is_uniform == expected


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.int32, np.bool_, np.uint8])
@pytest.mark.parametrize("shape", [(6, 5, 7), (6, 5, 3000)])
def test_the_digest_of_what_is_overwritten_follows_from_what_was_and_is_there(
    shape: tuple[int, ...], dtype: type
) -> None:
    rng = np.random.default_rng(0)
    before = (3 * rng.standard_normal(shape)).astype(dtype)
    after, window = before.copy(), (slice(3, 5), slice(0, 5), slice(2, 3))
    after[window] = (3 * rng.standard_normal((2, 5, 1))).astype(dtype)
    if np.issubdtype(dtype, np.inexact):
        before[3, 0, 2], after[4, 1, 2] = np.nan, np.inf
    found = digest_with(digest_of(before), before.shape, window, before[window], after[window])
    expected = digest_of(after)
    assert found == expected
    np.testing.assert_allclose(
        [found.total, found.magnitude, found.squares],
        [expected.total, expected.magnitude, expected.squares],
        rtol=0,
        atol=after.size * 2.0**-52 * (expected.squares + expected.magnitude + digest_of(before).squares),
    )


@pytest.mark.parametrize("number", [0.0, -2.5, 1e200, np.nan, np.inf, -np.inf, 3, -3, True, 2 - 1j, complex(np.nan, 4)])
def test_single_elements_have_the_digests_of_others(number: complex) -> None:
    one, two = digest_of(np.array(number)), digest_of(np.array([number, number]))
    assert two.in_any_order == 2 * one.in_any_order % 2**64
    assert one.in_order == one.in_any_order
    assert (two.total, two.magnitude, two.squares) == (2 * one.total, 2 * one.magnitude, 2 * one.squares)
    assert two.nonfinite == tuple(2 * count for count in one.nonfinite)


@pytest.mark.parametrize("shape", [(4, 3), (4, 32_768), (4, 30_001)])
def test_what_becomes_uniform_is_told_from_what_is_not(shape: tuple[int, int]) -> None:
    ones, zeros = np.ones(shape), np.zeros(shape)
    window = (slice(1, 2), slice(0, 3))
    holed = ones.copy()
    holed[window] = 0
    assert digest_with(digest_of(holed), shape, window, holed[window], ones[window]).is_uniform
    assert not digest_with(digest_of(zeros), shape, window, zeros[window], ones[window]).is_uniform


def test_digests_of_many_are_those_of_each() -> None:
    rng = np.random.default_rng(5)
    sizes = [0, 1, 2, 3, 7, 8, 9, 100, 129, 1000, 4096, 5000]
    types = [np.float32, np.float64, ml_dtypes.bfloat16, np.int32, np.uint64, np.bool_, np.complex64]
    arrays = []
    for number in range(300):
        values = 3 * rng.standard_normal(sizes[number % len(sizes)])
        if number % 5 == 0:
            values[:1] = (np.nan, np.inf, -np.inf)[number % 3]
        if number % 7 == 0:
            values[:] = 2
        kind = types[number % len(types)]
        with np.errstate(all="ignore"):
            array = values.astype(kind)
        arrays.append(np.broadcast_to(array, (2, array.size)).T if number % 11 == 0 else array)
    # Their sums, too, are the same to the bit.
    assert list(map(repr, digests_of(arrays))) == list(map(repr, map(digest_of, arrays)))


def test_digests_of_many_in_a_type_without_zero_are_those_of_each() -> None:
    exponents = np.random.default_rng(2).integers(0, 255, (4, 9), np.uint8)
    arrays = [*exponents.view(ml_dtypes.float8_e8m0fnu), np.full(3, 2.0**-127, ml_dtypes.float8_e8m0fnu)]
    assert list(map(repr, digests_of(arrays))) == list(map(repr, map(digest_of, arrays)))
