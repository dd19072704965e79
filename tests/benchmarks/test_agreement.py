"""The verdict on two contestants' results."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from benchmarks.agreement import agreement, relative_roundings, stirred
from benchmarks.arrays import read_arrays, write_arrays

_UNIT = 2.0**-24
_TRUTH = [np.linspace(1, 2, 1000, dtype=np.float32)]


def _holds(actual: list[np.ndarray], moved: list[np.ndarray] = _TRUTH, instructions: int = 1) -> bool:
    return agreement(actual, _TRUTH, moved, _UNIT, relative_roundings(_UNIT, instructions, 1)).holds


def test_a_rounding_agrees_and_ten_do_not() -> None:
    assert _holds([np.nextafter(_TRUTH[0], np.float32(4))])
    assert not _holds([_TRUTH[0] * np.float32(1 + 10 * 2.0**-23)])


def test_a_hundred_instructions_allow_ten_roundings() -> None:
    assert _holds([_TRUTH[0] * np.float32(1 + 4 * 2.0**-23)], instructions=100)


def test_an_ill_conditioned_result_may_differ_by_what_stirring_changes() -> None:
    off = [_TRUTH[0] * np.float32(1.001)]
    assert not _holds(off)
    assert _holds(off, moved=[_TRUTH[0] * np.float32(1.0015)])


def test_infinities_must_stand_at_the_same_places() -> None:
    actual = _TRUTH[0].copy()
    actual[3] = np.inf
    assert not _holds([actual])


def test_integers_must_be_equal() -> None:
    truth = [np.arange(5)]
    assert agreement(truth, truth, truth, _UNIT, 1.0).holds
    assert not agreement([truth[0] + 1], truth, truth, _UNIT, 1.0).holds


def test_a_zero_leaf_must_be_zero() -> None:
    zeros = [np.zeros(4, np.float32)]
    assert agreement(zeros, zeros, zeros, _UNIT, 1.0).holds
    assert not agreement([zeros[0] + np.float32(1e-30)], zeros, zeros, _UNIT, 1.0).holds


def test_results_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="number, type or shape"):
        agreement([np.zeros(3, np.float32)], _TRUTH, _TRUTH, _UNIT, 1.0)


def test_stirring_moves_floats_by_two_units_and_nothing_else() -> None:
    unit = 2.0**-8
    floats, integers = stirred([np.full(100, 1.0, ml_dtypes.bfloat16), np.arange(4)], unit)
    assert set(floats.astype(float)) == {1 - 2 * unit, 1 + 2 * unit}
    assert_array_equal(integers, np.arange(4))


def test_arrays_survive_a_file(tmp_path: Path) -> None:
    arrays = [
        np.array(3.5, np.float32),
        np.arange(6, dtype=np.int32).reshape(2, 3).T,
        np.zeros((0, 4), ml_dtypes.bfloat16),
        np.array([1 + 2j], np.complex64),
        np.array([True, False]),
    ]
    write_arrays(tmp_path / "arrays", arrays)
    for read, array in zip(read_arrays(tmp_path / "arrays"), arrays, strict=True):
        assert read.dtype == array.dtype
        assert_array_equal(read, array)
