"""Random elements: exact values worked out with Python's integers, moments, and every type with every distribution."""

from fractions import Fraction
from statistics import NormalDist
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec.ops  # noqa: F401 - fills the registry
from hloexec.core.dtypes import ELEMENT_TYPES, element_type
from hloexec.core.ir import Module
from hloexec.core.values import TOKEN
from hloexec.engine.inputs import DISTRIBUTIONS, random_inputs
from hloexec.engine.inputs.distributions import _fixed_normal, random_array
from hloexec.errors import HloError, InputError, ResourceError
from hloexec.language.text.parser import parse
from hloexec.ops.intervals import ANYTHING, Demand
from tests.text.building import module, op

ARRAY_TYPES = [entry for entry in ELEMENT_TYPES.values() if entry.is_array]


def identity(*shapes: str) -> Module:
    lines = [f"p{n} = {shape} parameter({n})" for n, shape in enumerate(shapes)]
    return parse(
        module(
            "\n".join(
                [*lines, f"ROOT t = ({', '.join(shapes)}) tuple({', '.join(f'p{n}' for n in range(len(shapes)))})"]
            )
        )
    )


def raw_words(key: tuple[int, int], count: int) -> list[int]:
    return [int(word) for word in np.random.Philox(key=np.array(key, np.uint64)).random_raw(count)]


def test_f32_elements_are_the_quantiles_their_definition_says() -> None:
    found = random_array(element_type("f32"), (8,), ANYTHING, "normal", (7, 3 << 32))
    halves = [part for word in raw_words((7, 3 << 32), 4) for part in (word & 0xFFFFFFFF, word >> 32)]
    for element, half in zip(found, halves, strict=True):
        cell, rest = divmod(half, 1 << 20)
        below, above = (Fraction(round(NormalDist().inv_cdf(i / 4096) * 2**24), 2**24) for i in (cell, cell + 1))
        exact = below + (above - below) * Fraction(rest, 1 << 20)
        assert element == np.float32(float(exact))


def test_bf16_elements_are_the_rounded_quantiles_of_16_bits() -> None:
    found = random_array(element_type("bf16"), (8,), ANYTHING, "normal", (1, 2))
    words = [word >> shift & 0xFFFF for word in raw_words((1, 2), 2) for shift in (0, 16, 32, 48)]
    for element, word in zip(found, words, strict=True):
        exact = NormalDist().inv_cdf((word + 0.5) / 65536)
        # The middle of a cell by its ends differs from the quantile in its middle by less than a bf16 rounding.
        assert float(element) == pytest.approx(exact, rel=2**-8, abs=1e-4)


def test_integers_are_the_high_part_of_their_word_times_the_span() -> None:
    found = random_array(element_type("s32"), (6,), Demand(-3, 1000), "normal", (5, 0))
    halves = [part for word in raw_words((5, 0), 3) for part in (word & 0xFFFFFFFF, word >> 32)]
    assert found.tolist() == [-3 + (half * 1004 >> 32) for half in halves]


def test_no_quantile_depends_on_how_the_logarithm_rounds() -> None:
    quantiles = np.array([NormalDist().inv_cdf(i / 65536) for i in range(1, 65536)]) * 2**24
    distance_from_tie = np.abs(np.abs(quantiles - np.floor(quantiles)) - 0.5)
    # Four units in the last place of a quantile of up to 4.3.
    assert distance_from_tie.min() > 4 * np.spacing(4.3) * 2**24


@pytest.mark.parametrize("step", [1, 16])
def test_the_normal_table_has_the_moments_of_a_standard_normal(step: int) -> None:
    knots = _fixed_normal()[::step] / 2**24
    assert (knots == -knots[::-1]).all() and (np.diff(knots) > 0).all()
    below, above = knots[:-1], knots[1:]
    variance = float(((below * below + below * above + above * above) / 3).mean())
    fourth = float(sum(below**i * above ** (4 - i) for i in range(5)).mean() / 5)
    assert variance == pytest.approx(1, abs=2e-3)
    assert fourth == pytest.approx(3, abs=4e-2)


def test_each_parameter_has_a_stream_of_its_own_that_others_do_not_change() -> None:
    one = random_inputs(identity("f32[100]", "f32[100]"))
    other = random_inputs(identity("bf16[3]", "f32[100]", "s8[7]"))
    assert (one[1] == other[1]).all() and not (one[0] == one[1]).any()  # type: ignore[union-attr]
    again = random_inputs(identity("f32[100]", "f32[100]"), seed=1)
    assert not (one[0] == again[0]).any()  # type: ignore[union-attr]


def test_a_prefix_of_a_larger_array_holds_the_same_elements() -> None:
    small, large = (random_inputs(identity(f"f32[{n}]"))[0] for n in (100, 300_000))
    assert (small == large[:100]).all()  # type: ignore[index,union-attr]


@pytest.mark.parametrize("entry", ARRAY_TYPES, ids=str)
def test_every_type_has_every_distribution(entry: Any) -> None:
    for distribution in DISTRIBUTIONS:
        assert_distributed(entry, distribution)


def assert_distributed(entry: Any, distribution: str) -> None:
    first = random_array(entry, (3, 50), ANYTHING, distribution, (0, 0))
    second = random_array(entry, (3, 50), ANYTHING, distribution, (0, 0))
    assert first.dtype == entry.storage and first.shape == (3, 50)
    assert first.tobytes() == second.tobytes()
    if distribution not in ("zeros", "ones", "large" if entry.bits < 8 else ""):
        assert len(np.unique(first.view(f"V{first.dtype.itemsize}"))) > 1
    if distribution in ("normal", "uniform", "large") and (entry.is_floating or entry.is_complex):
        assert np.isfinite(first.astype(np.complex128 if entry.is_complex else np.float64)).all()
    if distribution == "ones" and entry.name != "s1" and not entry.is_complex:
        assert (first.astype(np.complex64) == 1).all()
    if distribution == "zeros" and entry.name != "f8e8m0fnu":
        assert (first.astype(np.complex64) == 0).all()


@pytest.mark.parametrize("name", "f16 bf16 f32 f64 f8e5m2".split())
def test_special_floats_hold_nan_infinities_denormals_and_extremes(name: str) -> None:
    entry = element_type(name)
    array = random_array(entry, (5000,), ANYTHING, "special", (0, 0))
    info: Any = np.finfo(entry.storage) if entry.storage.isbuiltin == 1 else ml_dtypes.finfo(entry.storage)
    numbers = array.astype(np.float64)
    assert np.isnan(numbers).any() and np.isposinf(numbers).any() and np.isneginf(numbers).any()
    for wanted in (info.max, -info.max, info.smallest_subnormal, info.tiny, 0.0, 1.0):
        assert (numbers == float(wanted)).any()
    assert np.signbit(numbers[numbers == 0]).any()


def test_special_integers_lie_at_the_ends_of_what_is_allowed() -> None:
    array = random_array(element_type("s32"), (99,), Demand(0, 16), "special", (0, 0))
    assert set(array.tolist()) == {0, 1, 8, 15, 16}
    array = random_array(element_type("s8"), (99,), ANYTHING, "special", (0, 0))
    assert {-128, -127, 126, 127, 0, 1, -1} <= set(array.tolist())


@pytest.mark.parametrize("name", "s64 u64 u32 s8 u8 s4 u2 s1".split())
def test_unsigned_and_narrow_integers_cover_their_type(name: str) -> None:
    entry = element_type(name)
    array = random_array(entry, (4000,), ANYTHING, "normal", (0, 0)).astype(object)
    bits = entry.bits
    low, high = (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if name == "s64":
        low, high = 0, 99
    assert min(array) <= low + (high - low) / 100 and max(array) >= high - (high - low) / 100


def test_iota_counts_in_row_major_order_as_far_as_the_type_can() -> None:
    assert random_array(element_type("f32"), (2, 3), ANYTHING, "iota", (0, 0)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert random_array(element_type("bf16"), (600,), ANYTHING, "iota", (0, 0))[255:258].tolist() == [255, 0, 1]
    assert random_array(element_type("s32"), (5,), Demand(2, 4), "iota", (0, 0)).tolist() == [2, 3, 4, 2, 3]


def test_preds_are_mixed() -> None:
    array = random_array(element_type("pred"), (10_000,), ANYTHING, "normal", (0, 0))
    # Standard deviation of the share: 0.005; five times that.
    assert array.mean() == pytest.approx(0.5, abs=0.025)


def test_tokens_that_operations_hand_on_are_not_looked_at() -> None:
    assert random_inputs(parse(op("token[] copy(p)", p="token[]"))) == [TOKEN]


def test_tokens_empty_arrays_scalars_and_deep_tuples() -> None:
    token, empty, scalar = random_inputs(identity("token[]", "f32[0,3]", "f64[]"))
    assert token is TOKEN and empty.shape == (0, 3) and scalar.shape == ()  # type: ignore[union-attr]
    shape = "f32[2]"
    for _ in range(150):
        shape = f"({shape})"
    (value,) = random_inputs(parse(op("token[] after-all()", p=shape)))
    for _ in range(150):
        assert isinstance(value, tuple)
        (value,) = value
    assert isinstance(value, np.ndarray)


def test_another_computation_can_be_given_inputs() -> None:
    text = module("x = f32[] parameter(0)", "other {\n a = s8[7] parameter(0)\n ROOT b = s8[7] copy(a)\n}\n")
    (value,) = random_inputs(parse(text), computation="other")
    assert isinstance(value, np.ndarray) and value.shape == (7,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distribution": "gauss"}, "unknown distribution 'gauss'; the distributions are normal, uniform"),
        ({"seed": -1}, "seed must be an integer from 0 to 2.*64 - 1, but is -1"),
        ({"seed": 2**64}, "seed must be an integer"),
        ({"computation": "none"}, "has no computation none; there are "),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        random_inputs(identity("f32[]"), **options)


def test_a_module_that_is_not_well_formed_is_refused() -> None:
    text = op("f32[2] gather(x)", x="f32[2]").replace("gather(x)", "add(x)")
    with pytest.raises(HloError):
        random_inputs(parse(text))


def test_parameters_that_do_not_fit_into_memory_are_refused_before_it_is_taken() -> None:
    with pytest.raises(ResourceError, match=r"the parameters of main take 4.0 TB, more than .*; the largest is p0"):
        random_inputs(identity("f32[1000000,1000000]"))


def test_shapes_without_values_are_refused() -> None:
    with pytest.raises(InputError, match=r"parameter p0 is opaque\[\], of which no value can be made"):
        random_inputs(parse(op("token[] after-all()", p0="opaque[]")))
    with pytest.raises(InputError, match=r"parameter p0 is f32\[\?\], whose size is not known"):
        random_inputs(parse(op("token[] after-all()", p0="f32[?]")))


def test_a_parameter_larger_than_an_array_can_be_is_refused_even_if_it_is_empty():
    huge = parse("HloModule m\nENTRY e { ROOT x = f32[1000000000000,1000000000000,0] parameter(0) }")
    with pytest.raises(InputError, match=r"parameter x is .* larger than an array can be"):
        random_inputs(huge)


INTEGERS = [f"{sign}{bits}" for sign in "su" for bits in (2, 4, 8, 16, 32, 64)]


@pytest.mark.parametrize("name", INTEGERS)
def test_edges_of_integers_are_both_ends_of_the_type_and_repeat(name: str) -> None:
    bits = int(name[1:])
    low, high = (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    array = random_array(element_type(name), (100,), ANYTHING, "edges", (0, 0)).astype(object)
    assert {low, low + 1, high - 1, high, 0, 1} <= set(array.tolist())
    assert len(set(array.tolist())) <= 10


@pytest.mark.parametrize("name", "f16 bf16 f32 f64 f8e5m2".split())
def test_edges_of_floats_are_finite_and_reach_the_ends_of_the_type(name: str) -> None:
    entry = element_type(name)
    info: Any = np.finfo(entry.storage) if entry.storage.isbuiltin == 1 else ml_dtypes.finfo(entry.storage)
    numbers = random_array(entry, (64,), ANYTHING, "edges", (0, 0)).astype(np.float64)
    assert np.isfinite(numbers).all()
    for wanted in (info.max, info.smallest_subnormal, info.tiny, 0.0, 1.0):
        assert (numbers == float(wanted)).any() and (numbers == -float(wanted)).any()
    assert set(np.signbit(numbers[numbers == 0])) == {True, False}


def test_edges_go_beyond_the_bounds_of_what_is_defined_there_alone() -> None:
    index = random_array(element_type("s32"), (30,), Demand(0, 16, is_defined_beyond=True), "edges", (0, 0))
    assert {-(2**31), -1, 0, 1, 15, 16, 17, 2**31 - 1} <= set(index.tolist())
    size = random_array(element_type("s32"), (30,), Demand(0, 16), "edges", (0, 0))
    assert size.min() == 0 and size.max() == 16
    cosines = random_array(element_type("f32"), (30,), Demand(-1, 1), "edges", (0, 0))
    assert cosines.min() == -1 and cosines.max() == 1
    counts = random_array(element_type("s32"), (30,), Demand(low=1), "edges", (0, 0))
    assert counts.min() == 1 and counts.max() == 2**31 - 1


def test_edges_of_few_elements_change_with_the_seed() -> None:
    found = {random_array(element_type("s32"), (), ANYTHING, "edges", (seed, 0)).item() for seed in range(60)}
    assert len(found) > 5


@pytest.mark.parametrize("name", "s16 u16 s32 s64 u8 s8".split())
def test_iota_counts_through_the_whole_type(name: str) -> None:
    array = random_array(element_type(name), (300,), ANYTHING, "iota", (0, 0))
    expected = np.arange(300).astype(array.dtype)
    np.testing.assert_array_equal(array, expected)


def test_iota_counts_on_from_a_lower_bound_and_between_two() -> None:
    counts = random_array(element_type("s32"), (300,), Demand(low=1), "iota", (0, 0))
    assert counts.tolist() == list(range(1, 301))
    assert random_array(element_type("s8"), (5,), Demand(low=126), "iota", (0, 0)).tolist() == [126, 127, 126, 127, 126]


def test_iota_of_f64_does_not_end_where_that_of_f32_does() -> None:
    array = random_array(element_type("f64"), (2**24 + 2,), ANYTHING, "iota", (0, 0))
    assert array[-2:].tolist() == [2**24, 2**24 + 1]
