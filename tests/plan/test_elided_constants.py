"""Constants that a text elides: zeros, random numbers, values that are given, or an error."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hloexec.engine.exec import plan_of, run
from hloexec.errors import HloWarning, InputError, ResourceError, UnsupportedError
from tests.exec.programs import parsed, run_text

ELIDED = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  c = f32[4] constant({...})
  d = f32[4] constant({...})
  s = f32[4] add(c, d)
  ROOT r = f32[4] add(x, s) }
"""

X = np.arange(4, dtype=np.float32)


def test_elided_constants_are_zeros_with_a_warning_that_names_each():
    with pytest.warns(HloWarning, match="zeros: c, d"):
        assert_array_equal(run_text(ELIDED, X), X)


def test_elided_constants_can_be_random_and_the_same_each_time():
    with pytest.warns(HloWarning, match="random: c, d"):
        first = run_text(ELIDED, X, elided="random")
    with pytest.warns(HloWarning):
        second = run_text(ELIDED, X, elided="random")
    assert not np.array_equal(first, X)
    assert_array_equal(first, second)


def test_random_complex_constants_have_parts_of_their_own():
    text = "HloModule m\nENTRY e { ROOT c = c64[200] constant({...}) }"
    with pytest.warns(HloWarning, match="random: c"):
        values = run_text(text, elided="random")
    assert abs(np.corrcoef(values.real, values.imag)[0, 1]) < 0.4
    assert len(set(values.real)) == len(set(values.imag)) == 200


def test_elided_constants_can_be_given_by_name():
    given = {"c": np.ones(4, np.float32), "d": np.full(4, 2, np.float32)}
    assert_array_equal(run_text(ELIDED, X, elided=given), X + 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"c": np.ones(4, np.float32)}, "no value was given for %d"),
        ({"c": np.ones(4), "d": X}, r"must be an array f32\[4\], but is float64\[4\]"),
        ({"c": [1, 2, 3, 4], "d": X}, "but is list"),
        ({"c": X, "d": X, "x": X}, "values were given for x"),
    ],
)
def test_given_constants_are_checked(given, message):
    with pytest.raises(InputError, match=message):
        run_text(ELIDED, X, elided=given)


def test_elided_constants_can_be_an_error():
    with pytest.raises(UnsupportedError, match="%c is elided"):
        run_text(ELIDED, X, elided="error")


def test_huge_elided_constants_take_memory_only_if_random():
    text = """HloModule m
ENTRY e { c = f32[1000000,1000000] constant({...})
  s = f32[1,2] slice(c), slice={[0:1], [3:5]}
  ROOT r = f32[2] reshape(s) }
"""
    with pytest.warns(HloWarning):
        assert_array_equal(run_text(text), [0, 0])
    with pytest.raises(ResourceError, match="random values"):
        run_text(text, elided="random")


@pytest.mark.parametrize(
    "shape", ["s32[9223372036854775807]", "f64[4611686018427387904,0]", "c128[65536,65536,65536,65536]"]
)
@pytest.mark.parametrize("elided", ["zeros", "random"])
def test_constants_larger_than_an_array_can_be_are_refused(shape: str, elided: str) -> None:
    text = f"HloModule m\nENTRY e {{ ROOT c = {shape} constant({{...}}) }}"
    for use in (plan_of, run):
        with pytest.raises(ResourceError):
            use(parsed(text), elided=elided)
