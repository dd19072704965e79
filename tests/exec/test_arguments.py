"""What may be passed in, and what the messages say where it may not."""

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.errors import InputError
from tests.exec.programs import run_text


def identity(shape: str) -> str:
    return f"HloModule m\nENTRY e {{ p = {shape} parameter(0)\n c = {shape} copy(p)\n ROOT t = ({shape}) tuple(c) }}"


@pytest.mark.parametrize(
    ("shape", "given", "expected"),
    [
        ("pred[]", True, np.array(True)),
        ("s32[]", -5, np.array(-5, np.int32)),
        ("u8[]", 255, np.array(255, np.uint8)),
        ("f32[]", 2, np.array(2, np.float32)),
        ("f32[]", 0.1, np.array(0.1, np.float32)),
        ("bf16[]", 1.00390625, np.array(1, ml_dtypes.bfloat16)),
        ("f64[]", 0.1, np.array(0.1)),
        ("c64[]", 1 + 2j, np.array(1 + 2j, np.complex64)),
        ("s4[]", -8, np.array(-8, ml_dtypes.int4)),
        ("f32[2]", np.array([1, 2], np.float32), np.array([1, 2], np.float32)),
        ("f32[]", np.float32(3), np.array(3, np.float32)),
        ("f64[]", np.float64(3), np.array(3.0)),
    ],
)
def test_values_of_the_right_kind_are_taken(shape, given, expected):
    (result,) = run_text(identity(shape), given)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("shape", "given", "message"),
    [
        ("f32[2]", np.zeros(2), r"parameter 0 \(p\) must be f32\[2\].*but f64\[2\] was given"),
        ("f32[2]", np.zeros((1, 2), np.float32), r"but f32\[1,2\] was given"),
        ("f32[2]", [1.0, 2.0], r"but a list of 2 values was given"),
        ("f32[2]", 1.0, r"but the Python float 1.0 was given"),
        ("f32[2]", np.zeros(2, ">f4"), r"array of type >f4"),
        ("f32[2]", np.array(["a", "b"]), r"not an HLO element type"),
        ("f32[2]", None, r"but None was given"),
        ("f32[2]", np.ma.masked_array(np.zeros(2, np.float32), [False, True]), r"mask"),
        ("s32[]", True, r"or a Python int, but is True"),
        ("s32[]", 1.0, r"or a Python int, but is 1.0"),
        ("s32[]", 2**31, r"from -2147483648 to 2147483647, but is 2147483648"),
        ("u4[]", 16, r"from 0 to 15"),
        ("pred[]", 1, r"or a Python bool"),
        ("f32[]", 1j, r"or a Python int or float"),
        ("f32[]", np.float64(1), r"but f64\[\] was given"),
        ("f32[]", 10**400, r"beyond the range"),
        ("f32[]", "1", r"the Python str '1' was given"),
    ],
)
def test_nothing_is_converted_in_silence(shape, given, message):
    with pytest.raises(InputError, match=message):
        run_text(identity(shape), given)


def test_the_number_of_inputs_must_be_right():
    with pytest.raises(InputError, match=r"takes 1 inputs \(p: f32\[2\]\), but 0 were given"):
        run_text(identity("f32[2]"))


TUPLES = """HloModule m
ENTRY e { p = (f32[2], (s32[], token[])) parameter(0)
  q = (s32[], token[]) get-tuple-element(p), index=1
  ROOT s = s32[] get-tuple-element(q), index=0 }
"""


def test_tuple_parameters_take_tuples_and_tokens_take_none():
    assert run_text(TUPLES, (np.zeros(2, np.float32), (7, None))) == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.zeros(2, np.float32),), r"parameter 0 \(p\) must be a tuple of 2 values, but a tuple of 1 values"),
        ((np.zeros(2, np.float32), 3), r"element 1 of parameter 0 \(p\) must be a tuple of 2 values"),
        ((np.zeros(2, np.float32), (1, 2)), r"element 1 of element 1 of parameter 0 \(p\) must be a token"),
        ((np.zeros(3, np.float32), (1, None)), r"element 0 of parameter 0 \(p\) must be f32\[2\]"),
    ],
)
def test_the_place_within_a_tuple_is_named(given, message):
    with pytest.raises(InputError, match=message):
        run_text(TUPLES, given)


def test_values_one_by_one_are_no_tuples_of_values():
    text = """HloModule m
ENTRY e { p = (f32[], s32[]) parameter(0)
  q = (f32[], s32[]) parameter(1)
  n = s32[] get-tuple-element(q), index=1
  ROOT r = s32[] negate(n) }
"""
    assert run_text(text, (1.0, 2), (3.0, 4)) == run_text(text, [(1.0, 2), (3.0, 4)]) == -4
    with pytest.raises(InputError, match=r"takes 2 inputs .*, but 3 were given"):
        run_text(text, 1.0, 2, 3)
    with pytest.raises(InputError, match=r"parameter 1 \(q\) must be a tuple of 2 values, but the Python int 4"):
        run_text(text, (1.0, 2), 4)


def test_a_dynamic_parameter_takes_sizes_up_to_its_bound():
    text = "HloModule m\nENTRY e { p = f32[<=4] parameter(0)\n ROOT r = f32[<=4] copy(p) }"
    assert run_text(text, np.zeros(3, np.float32)).shape == (3,)
    with pytest.raises(InputError, match=r"must be f32\[<=4\]"):
        run_text(text, np.zeros(5, np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"elided": "ones"}, "elided must be one of zeros, random, error"),
        ({"elided": 3}, "elided must be one of"),
        ({"unknown": "skip"}, "unknown must be one of error, zeros, random"),
        ({"unknown": {}}, "unknown must be one of"),
        ({"memory_limit": -1}, "memory_limit must not be negative"),
        ({"computation": "nope"}, "has no computation nope; there are e"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        run_text(identity("f32[]"), 1.0, **options)


def test_one_object_may_be_given_for_parameters_of_several_types():
    text = """HloModule m, replica_count=2
ENTRY e { x = f32[] parameter(0)
  n = s32[] parameter(1)
  h = f16[] parameter(2)
  ROOT r = (f32[], s32[], f16[]) tuple(x, n, h) }
"""
    for results in hloexec.run_devices(hloexec.parse(text), [[3, 3, 3], [3, 3, 3]]):
        assert [value.dtype for value in results] == [np.float32, np.int32, np.float16]
        assert [float(value) for value in results] == [3, 3, 3]


def test_results_share_no_memory_with_one_another():
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  y = f32[4] add(x, x)
  v = f32[2,2] reshape(y)
  w = f32[2] slice(y), slice={[1:3]}
  ROOT r = (f32[4], f32[4], f32[2,2], f32[2]) tuple(y, y, v, w) }
"""
    results = hloexec.run(hloexec.parse(text), np.ones(4, np.float32))
    for number, result in enumerate(results):
        result[...] = number
    assert [float(result.reshape(-1)[0]) for result in results] == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 5])
def test_memory_that_runs_backwards_changes_no_bit(size):
    """NumPy's arctan2 goes another way through it, and rounds otherwise; so it does for a single element, which its
    flags call contiguous whatever the stride."""
    text = (
        f"HloModule m\nENTRY e {{ a = f32[{size}] parameter(0)\n b = f32[{size}] parameter(1)\n"
        f" ROOT r = f32[{size}] atan2(a, b) }}"
    )
    differ = 0
    for seed in range(40):
        forwards = list(np.random.default_rng(seed).standard_normal((2, size), dtype=np.float32))
        backwards = [array[::-1].copy()[::-1] for array in forwards]
        differ += np.arctan2(*forwards).tobytes() != np.arctan2(*backwards).tobytes()
        assert run_text(text, *forwards).tobytes() == run_text(text, *backwards).tobytes()
    if not differ:
        pytest.skip("on this processor NumPy's arctan2 rounds alike both ways")
