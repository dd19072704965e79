"""Arrays by number: what is asked for is what was added, however it is kept."""

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hloexec.core.values import Array
from hloexec.tools.diffing.recording.arrays import Arrays, digest_of
from tests.drawing import normal


def held(array: Array) -> Array:
    arrays = Arrays()
    number = arrays.add(array, digest_of(array))
    assert arrays.digest(number) == digest_of(array)
    assert (arrays.shape(number), arrays.dtype(number)) == (array.shape, array.dtype)
    return arrays[number]


@pytest.mark.parametrize(
    "array",
    [
        np.array(3, np.int32),
        np.zeros((0, 4), np.float32),
        normal(5, 7).T,
        normal(6, 9)[::2, ::-3],
        normal(3, 2, 4).transpose(2, 0, 1),
        np.broadcast_to(normal(3, 1), (3, 1000)),
        normal(300, 300),
        np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
        np.array([True, False]),
        np.array([1 + 2j, np.inf], np.complex64),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_come_back_as_they_were(array: Array) -> None:
    found = held(array)
    assert_array_equal(found, array)
    assert not found.flags.writeable or found is array
    # BLAS may round otherwise where an array lies in another order.
    assert (
        np.argsort(np.abs(found.strides), kind="stable").tolist()
        == np.argsort(np.abs(array.strides), kind="stable").tolist()
    )


def test_what_a_broadcast_repeats_is_kept_once() -> None:
    arrays = Arrays()
    array = np.broadcast_to(np.float32(2), (1000, 1000))
    arrays.add(array, digest_of(array))
    assert arrays.byte_size < 100


def test_equal_arrays_are_kept_once() -> None:
    arrays = Arrays()
    first, second = (normal(1000) for _ in range(2))
    assert arrays.add(first, digest_of(first)) == arrays.add(second, digest_of(second))
    reshaped = second.reshape(10, 100)
    number = arrays.add(reshaped, digest_of(reshaped))
    assert_array_equal(arrays[number], reshaped)
    assert arrays.byte_size == first.nbytes


def overwritten(steps: int) -> tuple[Arrays, list[Array], list[int]]:
    """An array of which a window is overwritten again and again: kept by windows, and whole ones."""
    rng = np.random.default_rng(0)
    whole = [np.zeros((64, 48), np.float32)]
    arrays = Arrays()
    numbers = [arrays.add(whole[0], digest_of(whole[0]))]
    for _ in range(steps):
        row, column = rng.integers(0, 60), rng.integers(0, 40)
        window = (slice(row, row + 4), slice(column, column + 8))
        array = whole[-1].copy()
        array[window] = rng.standard_normal((4, 8))
        number = arrays.add_overwritten(numbers[-1], window, whole[-1][window], array)
        assert number is not None
        whole.append(array)
        numbers.append(number)
    return arrays, whole, numbers


def test_windows_are_put_together_in_any_order() -> None:
    arrays, whole, numbers = overwritten(50)
    for place in [50, 0, 49, 3, 4, 5, 4, 30, 50, 1]:
        assert_array_equal(arrays[numbers[place]], whole[place])
        window = (slice(5, 20), slice(0, 9))
        assert_array_equal(arrays.window(numbers[place - 1], window), whole[place - 1][window])
        assert arrays.digest(numbers[place]) == digest_of(whole[place])


def test_windows_take_no_more_than_what_was_written() -> None:
    arrays, whole, _ = overwritten(100)
    assert arrays.byte_size <= whole[0].nbytes + 100 * 4 * 8 * 4


def test_an_array_is_kept_whole_where_its_sums_would_be_lost_in_rounding() -> None:
    arrays = Arrays()
    before = normal(64, 48)
    before[0] = 1e30
    number = arrays.add(before, digest_of(before))
    after = before.copy()
    after[0] = 1
    assert arrays.add_overwritten(number, (slice(0, 1), slice(0, 48)), before[:1], after) is None
