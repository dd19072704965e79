"""Ranges that users give for parameters."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.errors import InputError

NUMERIC = [entry for entry in ELEMENT_TYPES.values() if entry.is_array and entry.name != "pred"]


def drawn(type_name: str, low: float, high: float, seed: int = 0, count: int = 3000) -> Any:
    module = hloexec.parse(f"HloModule m\nENTRY e {{ ROOT x = {type_name}[{count}] parameter(0) }}")
    (array,) = hloexec.random_inputs(module, seed, ranges={"x": (low, high)})
    return array


def numbers(array: Any, entry: ElementType) -> list[Any]:
    """The elements as numbers of Python's, exactly; of complex ones both parts."""
    if entry.is_complex:
        array = np.concatenate([array.real, array.imag])
    return [int(x) for x in array] if entry.is_integral else [float(x) for x in array]


@pytest.mark.parametrize("entry", NUMERIC, ids=lambda entry: entry.name)
def test_elements_lie_within_the_range_or_there_are_none(entry: ElementType) -> None:
    for low, high in [(0, 1), (-1, 0), (0.25, 0.75), (0.1, 0.35), (-3, 5), (1, 1), (-1e30, 1e30)]:
        try:
            found = numbers(drawn(entry.name, low, high), entry)
        except InputError as error:
            assert "holds no number of type" in str(error) or "reaches beyond the numbers of type" in str(error)
            assert entry.bits <= 16 or entry.is_integral
        else:
            assert min(found) >= low and max(found) <= high, (low, high)


@pytest.mark.slow
@given(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.integers(0, 2**64 - 1),
)
def test_floats_keep_to_their_ends(first: float, second: float, seed: int) -> None:
    low, high = sorted((first, second))
    found = drawn("f32", low, high, seed, 64)
    assert low <= found.min() and found.max() <= high


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_integers_keep_to_their_ends_exactly(first: int, second: int) -> None:
    low, high = sorted((first, second))
    found = [int(x) for x in drawn("s64", low, high, 0, 64)]
    assert low <= min(found) and max(found) <= high


def test_a_range_is_filled_evenly_and_as_the_seed_says() -> None:
    array = drawn("f32", 10, 20, 3)
    counts, _ = np.histogram(array, 10, (10, 20))
    # 300 in each tenth, with a standard deviation of 16.4: five of these either way.
    assert (np.abs(counts - 300) < 82).all()
    assert_array_equal(array, drawn("f32", 10, 20, 3))
    assert sorted(set(drawn("s32", -2, 2).tolist())) == [-2, -1, 0, 1, 2]


def test_the_whole_of_f64_can_be_drawn_from() -> None:
    largest = np.finfo(np.float64).max
    array = drawn("f64", -largest, largest)
    assert np.isfinite(array).all() and array.min() < -0.9 * largest and array.max() > 0.9 * largest


def test_other_parameters_stay_as_they_are() -> None:
    module = hloexec.parse(
        "HloModule m\nENTRY e { x = f32[4] parameter(0)\n y = f32[4] parameter(1)\n ROOT z = f32[4] add(x, y) }"
    )
    plain, ranged = hloexec.random_inputs(module), hloexec.random_inputs(module, ranges={0: (5, 6)})
    assert_array_equal(plain[1], ranged[1])
    assert (np.asarray(ranged[0]) >= 5).all()


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(0, 1)], "ranges must be a mapping from parameters to pairs of numbers"),
        ({"y": (0, 1)}, "e has no parameter 'y', but 1, numbered from 0"),
        ({"xx": (0, 1)}, "; did you mean x?"),
        ({3: (0, 1)}, "e has no parameter 3, but 1"),
        ({0: (0, 1), "x": (0, 1)}, "parameter 0 is given two ranges"),
        ({0: 1}, "the range of parameter 0 must be a pair of finite numbers"),
        ({0: (0, float("nan"))}, "must be a pair of finite numbers"),
        ({0: (0, "1")}, "must be a pair of finite numbers"),
        ({0: (False, True)}, "must be a pair of finite numbers"),
        ({0: (2, 1)}, "must not end below its start, but is 2 to 1"),
        ({0: (-1e39, 1e39)}, "reaches beyond the numbers of type f32"),
    ],
)
def test_a_wrong_range_is_named(ranges: Any, message: str) -> None:
    module = hloexec.parse("HloModule m\nENTRY e { ROOT x = f32[2] parameter(0) }")
    with pytest.raises(InputError, match=message):
        hloexec.random_inputs(module, ranges=ranges)


def test_preds_have_no_range() -> None:
    with pytest.raises(InputError, match="is for numbers, but the parameter holds preds"):
        drawn("pred", 0, 1)


@pytest.mark.parametrize("type_name", ["c64", "c128"])
def test_both_parts_of_a_complex_scalar_lie_within_the_range(type_name: str) -> None:
    module = hloexec.parse(f"HloModule m\nENTRY e {{ ROOT x = {type_name}[] parameter(0) }}")
    (number,) = hloexec.random_inputs(module, ranges={"x": (2, 3)})
    assert isinstance(number, np.ndarray) and number.shape == ()
    assert 2 <= number.real <= 3 and 2 <= number.imag <= 3
