"""`compare`: its figures against whole-array formulas in f64, its verdicts against cases with known causes."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec import Verdict
from hloexec.analysis.numerics import measuring
from hloexec.core.values import TOKEN
from tests.drawing import normal
from tests.text.building import ADD, op

bf16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_BLOCK", 64)


def _leaf(actual: Any, expected: Any, **options: Any) -> hloexec.LeafComparison:
    (leaf,) = hloexec.compare(actual, expected, **options).leaves
    return leaf


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bf16, np.complex64, np.int32])
@pytest.mark.parametrize("turn", [False, True])
def test_figures_are_those_of_the_formulas(dtype: Any, turn: bool) -> None:
    expected = (normal(37, 19, dtype=np.float64) * 100).astype(dtype)
    actual = expected.copy()
    actual[3:9, 5:7] = (actual[3:9, 5:7] * 2).astype(dtype)
    if turn:
        actual, expected = actual.T, np.asfortranarray(expected).T
    measured = _leaf(actual, expected).measured
    assert measured is not None
    kind = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    x, y = actual.astype(kind), expected.astype(kind)
    error = np.abs(x - y)
    related = error[y != 0] / np.abs(y[y != 0])
    assert measured.unequal == np.count_nonzero(x != y)
    assert measured.max_absolute_error == error.max()
    assert measured.mean_absolute_error == pytest.approx(error.mean(), rel=1e-12)
    assert measured.max_relative_error == pytest.approx(related.max(), rel=1e-12)
    assert measured.mean_relative_error == pytest.approx(related.mean(), rel=1e-12)
    cosine = np.vdot(x, y).real / (np.linalg.norm(x) * np.linalg.norm(y))
    assert measured.cosine == pytest.approx(cosine, rel=1e-12)
    tolerance = measured.tolerance
    allowed = tolerance.atol + tolerance.rtol * np.abs(y) if tolerance.rtol else np.ones(y.shape)
    assert (error / allowed)[measured.worst[0].index] == pytest.approx((error / allowed).max(), rel=1e-12)


def test_percentiles_of_ulp_distances() -> None:
    expected = np.ones(1000, np.float32)
    steps = np.arange(1000)
    actual = (expected.view(np.int32) + steps.astype(np.int32)).view(np.float32)
    measured = _leaf(actual, expected).measured
    assert measured is not None and measured.ulp_percentiles[100] == 999
    for percentile in (50, 90, 99):
        exact = np.percentile(steps, percentile, method="inverted_cdf")
        assert exact * (1 - 1 / 32) <= measured.ulp_percentiles[percentile] <= exact


def test_first_and_worst_places() -> None:
    expected = np.ones((20, 30), np.float32)
    actual = expected.copy()
    actual[4, 5], actual[2, 29], actual[19, 0] = 1.5, 1.1, 9
    leaf = _leaf(actual, expected)
    assert [element.index for element in leaf.first] == [(2, 29), (4, 5), (19, 0)]
    assert [element.index for element in leaf.worst] == [(19, 0), (4, 5), (2, 29)]
    assert (leaf.worst[0].actual, leaf.worst[0].expected, leaf.worst[0].absolute_error) == (9, 1, 8)


def test_where_nans_and_infinities_stand() -> None:
    actual = np.array([np.nan, np.nan, 1, np.inf, -np.inf, 1, 0.0], np.float32)
    expected = np.array([np.nan, 1, np.nan, np.inf, np.inf, -np.inf, -0.0], np.float32)
    measured = _leaf(actual, expected, atol=1e30).measured
    assert measured is not None
    assert (measured.nans, measured.infinities) == ((1, 1, 1), (2, 0, 1))
    assert (measured.unlike_zeros, measured.unequal, measured.mismatches) == (1, 5, 4)
    assert measured.max_absolute_error == 0 and math.isinf(measured.worst[0].absolute_error)


def test_the_map_shows_where() -> None:
    expected = np.ones((2, 24, 96), np.float32)
    actual = expected.copy()
    actual[1, 4:6, 10:12] = 2
    found = _leaf(actual, expected).error_map
    assert found is not None and found.cells.shape == (12, 48)
    marked = [
        (row, column) for row, line in enumerate(found.lines()) for column, mark in enumerate(line) if mark != " "
    ]
    assert marked == [(2, 5)] and found.lines()[2][5] == "█"


def test_verdicts_from_equal_to_different() -> None:
    x = normal(50)
    y = np.nextafter(x, np.float32(9))
    assert hloexec.compare(x, x).verdict is Verdict.EQUAL
    assert hloexec.compare(y, x).verdict is Verdict.ROUNDING
    assert hloexec.compare(y, x, ulp=1).verdict is Verdict.WITHIN
    assert hloexec.compare(y, x, ulp=0).verdict is Verdict.DIFFERENT
    assert hloexec.compare(y, x, atol=0, rtol=1e-6).verdict is Verdict.WITHIN
    assert hloexec.compare(y, x, rtol=1e-9).verdict is Verdict.DIFFERENT
    assert hloexec.compare((x, y), (x, x)).verdict is Verdict.ROUNDING
    assert hloexec.compare((x, x * 2), (x, x)).verdict is Verdict.DIFFERENT
    assert hloexec.compare((), ()).verdict is Verdict.EQUAL


def test_given_tolerances_are_those_of_numpy() -> None:
    x, y = normal(400), normal(400, seed=1) * 1e-3
    for atol, rtol in ((1e-3, 0.0), (0.0, 1e-3), (1e-4, 1e-3)):
        wide = x.astype(np.float64)
        close = np.isclose((x + y).astype(np.float64), wide, atol=atol, rtol=rtol)
        assert _leaf(x + y, x, atol=atol, rtol=rtol).mismatches == np.count_nonzero(~close)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_, ml_dtypes.int4])
def test_integers_and_preds_must_be_the_same(dtype: Any) -> None:
    x = np.array([0, 1, 1, 0]).astype(dtype)
    y = np.array([0, 1, 0, 0]).astype(dtype)
    assert hloexec.compare(x, x).verdict is Verdict.EQUAL
    leaf = _leaf(y, x)
    assert (leaf.verdict, leaf.mismatches, leaf.first[0].index) == (Verdict.DIFFERENT, 1, (2,))


def test_sums_in_another_order_are_rounding_and_a_lost_term_is_not() -> None:
    module = hloexec.parse(
        op("f32[] reduce(x, zero), dimensions={0}, to_apply=add_f32", ADD, x="f32[100000]", zero="f32[]")
    )
    x = normal(100000)
    expected = np.float32(math.fsum(x.tolist()))
    one_by_one = np.add.accumulate(x)[-1]
    assert one_by_one != expected
    assert hloexec.compare(one_by_one, expected, module=module).verdict is Verdict.ROUNDING
    assert hloexec.compare(expected - x[7], expected, module=module).verdict is Verdict.DIFFERENT


def test_what_only_moves_must_keep_its_bits() -> None:
    module = hloexec.parse(op("f32[3,2] transpose(x), dimensions={1,0}", x="f32[2,3]"))
    x = normal(3, 2)
    comparison = hloexec.compare(np.nextafter(x, np.float32(9)), x, module=module)
    assert comparison.verdict is Verdict.DIFFERENT
    assert "nothing in the module rounds" in comparison.leaves[0].tolerance.derivation


def test_a_product_without_sums_is_held_to_its_own_size() -> None:
    """Nothing cancels: a small element is not excused by large ones beside it."""
    module = hloexec.parse(op("f32[2] multiply(x, y)", x="f32[2]", y="f32[2]"))
    expected = np.array([1.0, 1e6], np.float32)
    assert hloexec.compare(np.array([1.001, 1e6], np.float32), expected, module=module).verdict is Verdict.DIFFERENT


def test_low_precision_of_contractions_is_rounding_under_its_policy_only() -> None:
    module = hloexec.parse(
        op("f32[8,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x="f32[8,64]", y="f32[64,8]")
    )
    x, y = normal(8, 64), normal(64, 8, seed=1)
    exact, tf32 = (hloexec.run(module, x, y, numerics=policy) for policy in ("exact", "tf32"))
    given = {"module": module, "inputs": [x, y]}
    assert hloexec.compare(tf32, exact, **given).verdict is Verdict.DIFFERENT
    assert hloexec.compare(tf32, exact, **given, numerics="tf32").verdict is Verdict.ROUNDING
    bf16_products = hloexec.run(module, x, y, numerics="bf16")
    assert hloexec.compare(bf16_products, exact, **given, numerics="tf32").verdict is Verdict.DIFFERENT


def test_a_wider_result_is_held_to_the_narrower_type() -> None:
    x = normal(100)
    leaf = _leaf(x, x.astype(bf16))
    assert (leaf.verdict, leaf.ulp_type, leaf.actual_shape) == (Verdict.ROUNDING, "bf16", "f32[100]")
    assert leaf.measured is not None and leaf.measured.ulp_percentiles[100] == 0


def test_overflow_to_infinity_may_be_rounding() -> None:
    largest = np.finfo(np.float16).max
    x = np.array([1, np.inf], np.float16)
    assert hloexec.compare(x, np.array([1, largest], np.float16)).verdict is Verdict.ROUNDING
    assert hloexec.compare(x, np.array([1, largest / 2], np.float16)).verdict is Verdict.DIFFERENT


def test_large_numbers_do_not_widen_the_tolerance_without_bound() -> None:
    x = np.array([1e308, 1.0])
    assert hloexec.compare(np.array([1e307, 1.0]), x).verdict is Verdict.DIFFERENT


def test_leaves_are_paired_by_place_or_name() -> None:
    x = normal(3)
    comparison = hloexec.compare({"loss": x, "grad": x}, {"loss": x, "weights": x})
    notes = {leaf.label: leaf.note for leaf in comparison.leaves}
    assert notes == {
        "loss": "",
        "weights": "the actual value has no such leaf",
        "grad": "the expected value has no such leaf",
    }
    assert [leaf.label for leaf in hloexec.compare((x, (x, TOKEN)), (x, (x, TOKEN))).leaves] == ["0", "1.0"]
    assert hloexec.compare((x,), x).verdict is Verdict.EQUAL


@pytest.mark.parametrize(
    ("actual", "expected", "note"),
    [
        (normal(3), normal(4), "the dimensions differ"),
        (normal(3), np.zeros(3, np.int32), "the element types cannot be compared"),
        (normal(3), np.zeros(3, np.bool_), "the element types cannot be compared"),
        (normal(3), np.zeros(3, np.complex64), "the element types cannot be compared"),
    ],
)
def test_what_cannot_be_compared_is_different(actual: Any, expected: Any, note: str) -> None:
    leaf = _leaf(actual, expected)
    assert (leaf.verdict, leaf.note, leaf.measured) == (Verdict.DIFFERENT, note, None)


def test_empty_arrays_are_equal() -> None:
    leaf = _leaf(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
    assert (leaf.verdict, leaf.measured and leaf.measured.max_absolute_error) == (Verdict.EQUAL, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"atol": -1}, "atol must not be negative or NaN"),
        ({"rtol": float("nan")}, "rtol must not be negative"),
        ({"contraction_length": 0}, "contraction_length must be at least 1"),
        ({"selects": {"3": normal(3)}}, "selects names leaf '3'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(hloexec.InputError, match=message):
        hloexec.compare(normal(3), normal(3), **options)


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(hloexec.InputError, match="is not an array of an HLO element type"):
        hloexec.compare(np.array(["a"]), np.array(["a"]))


def test_another_modules_result_is_refused() -> None:
    module = hloexec.parse(op("f32[3] negate(x)", x="f32[3]"))
    with pytest.raises(hloexec.InputError, match="has no leaf 'loss'"):
        hloexec.compare({"loss": normal(3)}, {"loss": normal(3)}, module=module)


def test_devices_results_are_held_to_the_modules_leaves() -> None:
    module = hloexec.parse(op("f32[3] negate(x)", header=", replica_count=2", x="f32[3]"))
    x = normal(3)
    comparison = hloexec.compare([x, x], [x, x], module=module)
    assert [leaf.label for leaf in comparison.leaves] == ["0", "1"] and comparison.verdict is Verdict.EQUAL
    with pytest.raises(hloexec.InputError, match=r"has no leaf '1\.0'"):
        hloexec.compare([x, (x,)], [x, (x,)], module=module)


@pytest.mark.parametrize("has_inputs", [False, True])
def test_it_says_whose_rounding_sets_the_tolerance(has_inputs: bool) -> None:
    module = hloexec.parse(op("bf16[4] multiply(x, x)", x="bf16[4]"))
    x = np.array([1.1, 1.2, 1.3, 1.4], ml_dtypes.bfloat16)
    exact = x.astype(np.float32) ** 2
    narrow = hloexec.run(module, x)
    inputs = [x] if has_inputs else None
    found = hloexec.compare(narrow, exact, module=module, inputs=inputs).leaves[0]
    assert found.verdict is Verdict.ROUNDING
    assert found.tolerance.derivation.endswith(
        "f32 compared with bf16: bf16 is the type of the actual value, whose rounding sets it"
    )
    found = hloexec.compare(exact, narrow, module=module, inputs=inputs).leaves[0]
    assert found.tolerance.derivation.endswith(
        "f32 compared with bf16: bf16 is the type of the expected value, whose rounding sets it"
    )
    found = hloexec.compare(exact, exact * np.float32(1.000001), module=module, inputs=inputs).leaves[0]
    assert "whose rounding" not in found.tolerance.derivation
