"""Conversions between element types: as XLA:CPU where that rounds once, else as exact arithmetic says."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type
from hloexec.errors import UnsupportedError
from hloexec.ops.common import converted_into, narrow, round_to_odd, widen
from hloexec.ops.elementwise.selection import convert
from tests.drawing import examples
from tests.families import of_each_family
from tests.ops.against_xla import Case, assert_same_as_xla, evaluated, module_text
from tests.ops.elements import COMPLEXES, FLOATS, INTEGERS, elements

_NARROW = [name for name in FLOATS if ELEMENT_TYPES[name].is_narrow]
_REAL = [*FLOATS, *INTEGERS, "pred"]


_MANY_TARGETS = "f64 f32 f16 bf16 f8e5m2 s64 u64 s32 u32 s8 pred".split()
_FEW_TARGETS = "f64 f32 f16 bf16 f8e5m2 f8e4m3fn f4e2m1fn s32 s4 u8 pred c64".split()


def _conversions(source: str, targets: list[str]) -> list[Case]:
    values = elements(source, random=60)
    if source == "f4e2m1fn":
        # XLA:CPU takes the largest f4e2m1fn for a number beyond the range of any integer.
        values = values[np.abs(widen(values)) < 6]
    return [Case("convert", [values], f"{target}[{values.size}]") for target in targets]


@pytest.mark.parametrize("source", of_each_family(_REAL))
def test_real_numbers_convert_as_in_xla(source: str) -> None:
    assert_same_as_xla(_conversions(source, _FEW_TARGETS))


@pytest.mark.slow_cases(*(set(_MANY_TARGETS) - {"f32", "s64"}))
@pytest.mark.parametrize("source", _MANY_TARGETS)
def test_real_numbers_convert_to_every_type_as_in_xla(source: str) -> None:
    assert_same_as_xla(_conversions(source, [*_REAL, *COMPLEXES]))


@pytest.mark.parametrize("source", COMPLEXES)
def test_complex_numbers_convert_as_in_xla(source: str) -> None:
    assert_same_as_xla(_conversions(source, ["f32", "f64", "bf16", "s32", "u8", *COMPLEXES]))


def test_complex_to_pred_is_whether_any_part_is_not_zero() -> None:
    values = np.array([0, 1j, 1, complex(0, np.nan)], np.complex64)
    assert convert(values, ELEMENT_TYPES["pred"]).tolist() == [False, True, True, True]


def _patterns(entry: ElementType) -> Any:
    patterns = np.arange(1 << (16 if entry.bits == 16 else entry.bits), dtype=f"u{entry.storage.itemsize}")
    return patterns.view(entry.storage)


@pytest.mark.parametrize("name", _NARROW)
def test_f64_rounds_to_the_nearest_narrow_float_once(name: str) -> None:
    entry = ELEMENT_TYPES[name]
    values = widen(_patterns(entry)).astype(np.float64)
    representable = np.unique(values[np.isfinite(values)])
    ties = (representable[1:] + representable[:-1]) / 2
    below, above = representable[:-1], representable[1:]
    assert (narrow(np.nextafter(ties, -np.inf), entry).astype(np.float64) == below).all()
    assert (narrow(np.nextafter(ties, np.inf), entry).astype(np.float64) == above).all()
    assert (narrow(representable, entry).astype(np.float64) == representable).all()


@settings(max_examples=examples(200), deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_to_odd_is_exact_or_the_odd_neighbour(value: float) -> None:
    result = round_to_odd(np.array([value]))
    if np.isinf(result[0]) or Fraction(float(result[0])) == Fraction(value):
        return
    assert result.view(np.int32)[0] & 1
    others = (np.nextafter(result, np.float32(np.inf)), np.nextafter(result, np.float32(-np.inf)))
    assert float(others[1][0]) < value < float(others[0][0])


@pytest.mark.parametrize("source", "s64 u64 s32 u32".split())
@pytest.mark.parametrize("target", ["bf16", "f16", "f8e5m2"])
def test_integers_round_to_narrow_floats_once(source: str, target: str) -> None:
    entry, storage = ELEMENT_TYPES[target], ELEMENT_TYPES[source].storage
    step = entry.mantissa_bits + 1
    tops = [bits for bits in range(step + 1, 8 * storage.itemsize - 1) if bits < 15 or target == "bf16"]
    # Halfway between two neighbours of a binade, and one more and less.
    ties = [(1 << top) + (1 << (top - step)) + delta for top in tops for delta in (-1, 0, 1) if top > step]
    result = convert(np.array(ties, storage), entry).astype(np.float64)
    for value, rounded in zip(ties, result, strict=True):
        unit = 1 << (value.bit_length() - step)
        assert int(rounded) == round(Fraction(value, unit)) * unit


@pytest.mark.parametrize("name", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("target", ["s1", "u1", *INTEGERS])
def test_floats_saturate_to_integers(name: str, target: str) -> None:
    entry = ELEMENT_TYPES[target]
    low, high = (-(1 << entry.bits - 1), (1 << entry.bits - 1) - 1) if target[0] == "s" else (0, (1 << entry.bits) - 1)
    values = elements(name, random=100)
    values = np.concatenate(
        [values, np.array([2.0**k for k in range(66)] + [-(2.0**k) for k in range(66)], values.dtype)]
    )
    result = convert(values, entry)
    assert result.dtype == entry.storage
    for value, integer in zip(values.astype(np.float64), result, strict=True):
        expected = 0 if np.isnan(value) else high if value >= high else low if value <= low else int(value)
        assert int(integer) == expected, value


def test_overflow_gives_infinity_nan_or_the_largest_number() -> None:
    values = np.array([1e9, -1e9, np.inf, np.nan], np.float32)
    as_floats = {
        name: convert(values, ELEMENT_TYPES[name]).astype(np.float64).tolist() for name in ("f8e5m2", "f4e2m1fn")
    }
    assert as_floats["f8e5m2"][:3] == [np.inf, -np.inf, np.inf]
    assert as_floats["f4e2m1fn"] == [6.0, -6.0, 6.0, 0.0]
    for name in "f8e4m3fn f8e4m3fnuz f8e5m2fnuz f8e4m3b11fnuz".split():
        assert np.isnan(convert(values, ELEMENT_TYPES[name]).astype(np.float64)).all()


@pytest.mark.parametrize("name", [name for name in ELEMENT_TYPES if ELEMENT_TYPES[name].is_array])
def test_conversion_to_the_same_type_is_the_operand(name: str) -> None:
    values = elements(name)
    assert convert(values, ELEMENT_TYPES[name]) is values


@settings(max_examples=examples(50), deadline=None)
@given(st.sampled_from(_NARROW), st.integers(0, 2**32))
def test_widening_and_narrowing_again_changes_nothing(name: str, seed: int) -> None:
    entry = ELEMENT_TYPES[name]
    values = _patterns(entry)[np.random.default_rng(seed).permutation(len(_patterns(entry)))[:200]]
    again = narrow(widen(values), entry)
    same = (again.view(f"u{again.itemsize}") == values.view(f"u{again.itemsize}")) | np.isnan(widen(values))
    assert same.all()


def _stochastic(values: np.ndarray, random: np.ndarray, target: str) -> list[int]:
    case = Case("stochastic-convert", [values, random], f"{target}[{values.size}]")
    return [int(x) for x in evaluated(module_text([case]), [values, random])[0]]


def test_stochastic_convert_is_that_of_xla() -> None:
    values = np.repeat(np.array([0.25, -0.25, 1.5, -1.5, 126.9, 300, -300, np.inf, -np.inf, np.nan], np.float32), 4)
    random = np.tile(np.array([0, 2**30 - 1, 2**30, 2**32 - 1], np.uint32), 10)
    assert_same_as_xla([Case("stochastic-convert", [values, random], f"{t}[40]") for t in ("s8", "s32")])


def test_stochastic_convert_rounds_up_as_often_as_the_fraction_says() -> None:
    random = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    result = _stochastic(np.full(random.shape, 2.3, np.float32), random, "s32")
    # The standard deviation of the mean is sqrt(0.3 * 0.7 / 20000) = 0.0032.
    assert set(result) == {2, 3} and abs(np.mean(result) - 2.3) < 5 * 0.0033


@pytest.mark.parametrize(("source", "random"), [("f8e5m2", "u8"), ("f4e2m1fn", "u4"), ("f64", "u64")])
def test_stochastic_convert_compares_as_many_bits_as_the_operand_has(source: str, random: str) -> None:
    bits = ELEMENT_TYPES[random].bits
    numbers = np.array([(1 << bits - 1) - 1, 1 << bits - 1], np.uint64)
    values = convert(np.array([1.5, 1.5]), ELEMENT_TYPES[source])
    assert _stochastic(values, convert(numbers, ELEMENT_TYPES[random]), "s8") == [2, 1]


def test_stochastic_convert_to_floats_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="signed integers only"):
        _stochastic(np.zeros(1, np.float32), np.zeros(1, np.uint32), "bf16")


@pytest.mark.parametrize("types", [("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("s32", "s8"), ("f32", "f32")])
@pytest.mark.parametrize("repeated", [(1, 7), (5, 1), (1, 1)])
def test_repeated_elements_convert_as_each_by_itself(types: tuple[str, str], repeated: tuple[int, int]) -> None:
    """NaNs with payloads, infinities and ties among them."""
    given, wanted = (element_type(name).storage for name in types)
    patterns = np.random.default_rng(0).integers(0, 1 << 8 * given.itemsize, repeated, f"u{given.itemsize}")
    patterns.flat[0] = (1 << 8 * given.itemsize) - 1
    array = np.broadcast_to(patterns.view(given), (5, 7))
    out, expected = np.empty((5, 7), wanted), np.empty((5, 7), wanted)
    with np.errstate(all="ignore"):
        converted_into(array, out)
        for index in np.ndindex(5, 7):
            expected[index] = array[index].astype(wanted)
    assert out.tobytes() == expected.tobytes()
