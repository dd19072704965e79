"""More samples are taken where chance may be behind what is off, and only there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.analysis.numerics.comparison import Verdict
from hloexec.analysis.numerics.sampling.decided import CHANCE, is_open, severity_in_common
from hloexec.analysis.numerics.sampling.runs import sampled, sampled_in_stages
from hloexec.analysis.numerics.sampling.spread import SAMPLES, STAGES, Spread, are_in_tails
from hloexec.engine.exec import running
from tests.text.building import module

SUMS = """HloModule sums
add { p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT r = f32[] add(p, q) }
ENTRY main {
  x = f32[128,256,3] parameter(0)
  zero = f32[] constant(0)
  ROOT s = f32[128,256] reduce(x, zero), dimensions={2}, to_apply=add
}
"""


@pytest.fixture(scope="module")
def sums():
    """A module, inputs of which six samples leave one element of 32768 beyond its tolerance, and its sums in the order
    of the terms and in the opposite one."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((128, 256, 3)).astype(np.float32)
    x *= np.exp(rng.standard_normal(x.shape)).astype(np.float32)
    forwards = (x[..., 0] + x[..., 1]) + x[..., 2]
    backwards = (x[..., 2] + x[..., 1]) + x[..., 0]
    return hloexec.parse(SUMS), x, forwards, backwards


@pytest.fixture
def seeds(monkeypatch):
    """The seeds of the runs that round at random."""
    found = []
    run = running.run_with

    def counted(module, inputs, options, *how):
        if options.numerics.rounding_seed is not None:
            found.append(options.numerics.rounding_seed)
        return run(module, inputs, options, *how)

    together = running.run_seeds

    def counted_together(module, inputs, some, options):
        results = together(module, inputs, some, options)
        found.extend(some if results else ())
        return results

    monkeypatch.setattr(running, "run_with", counted)
    monkeypatch.setattr(running, "run_seeds", counted_together)
    return found


def test_what_six_samples_call_different_by_chance_is_rounding_by_more(sums, seeds):
    module, x, forwards, backwards = sums
    few = hloexec.compare(backwards, forwards, module=module, spreads=sampled(module, [[x]]).spreads)
    assert few.verdict is Verdict.DIFFERENT
    assert few.leaves[0].mismatches == 1
    seeds.clear()
    (leaf,) = hloexec.compare(backwards, forwards, module=module, inputs=[x]).leaves
    assert leaf.verdict is Verdict.ROUNDING
    assert leaf.tolerance.samples == STAGES[1]
    assert f"as {STAGES[1]} runs show" in leaf.tolerance.derivation
    # Those of the first stage are not taken again.
    assert seeds == [*range(STAGES[1])]


def test_stages_show_what_as_many_samples_show_at_once(sums):
    module, x, _, _ = sums
    places = np.arange(0, x.size // 3, 7)
    for count, found in zip((4, 7), sampled_in_stages(module, [[x]], stages=(4, 7)), strict=True):
        (spread,), (other,) = found.spreads.values(), sampled(module, [[x]], samples=count).spreads.values()
        assert spread.samples == count
        assert np.array_equal(spread.scales, other.scales)
        assert np.array_equal(spread.means(places), other.means(places))


@pytest.mark.slow_cases("row", "element", "nan")
@pytest.mark.parametrize("fault", "row element nan small".split())
def test_faults_take_no_more_runs(sums, seeds, fault):
    module, x, forwards, _ = sums
    (spread,) = sampled(module, [[x]]).spreads.values()
    seeds.clear()
    actual = forwards.copy()
    match fault:
        case "row":
            actual[5] += 15 * spread.scales[5]
        case "element":
            actual[5, 6] += 30 * spread.scales[5, 6]
        case "nan":
            actual[5, 6] = np.nan
        case "small":  # One element alone is beyond its tolerance, but all are far off.
            actual[5] += 3 * spread.scales[5]
            actual[5, 6] += 5 * spread.scales[5, 6]
    assert hloexec.compare(actual, forwards, module=module, inputs=[x]).verdict is Verdict.DIFFERENT
    assert seeds == [*range(SAMPLES)]


def test_a_leaf_that_is_surely_different_leaves_nothing_open(sums, seeds):
    _, x, forwards, backwards = sums
    pair = hloexec.parse(
        SUMS.replace("ROOT s = ", "s = ").replace(
            "to_apply=add\n}", "to_apply=add\n ROOT t = (f32[128,256], f32[128,256]) tuple(s, s)\n}"
        )
    )
    expected = forwards, forwards
    assert hloexec.compare((backwards, backwards), expected, module=pair, inputs=[x]).verdict is Verdict.ROUNDING
    assert seeds == [*range(STAGES[1])]
    seeds.clear()
    found = hloexec.compare((backwards, forwards + 1), expected, module=pair, inputs=[x])
    assert [leaf.mismatches for leaf in found.leaves] == [1, forwards.size]
    assert seeds == [*range(SAMPLES)]


@pytest.mark.parametrize(
    ("places", "severity", "samples", "expected"),
    [
        ([(1, 2)], 1.5, 6, True),
        ([(1, 2)], 1.5, 64, False),  # 63 degrees of freedom do not underestimate so much.
        ([(1, 2)], 2.5, 6, False),
        ([(row, row) for row in range(0, 40, 5)], 1.5, 6, True),
        ([(row, row) for row in range(9)], 1.5, 6, False),
        ([(3, 1), (3, 7)], 1.5, 6, True),
        ([(3, 1), (3, 7), (3, 9)], 1.5, 6, False),  # Of one row.
        ([(3, 1), (3, 7), (4, 9)], 1.5, 6, True),
    ],
)
def test_few_elements_a_little_beyond_their_tolerance_are_open(places, severity, samples, expected):
    values = np.ones((64, 128))
    scales = np.full(values.shape, 1e-3)
    actual = values.copy()
    for place in places:
        actual[place] += severity * 5.5e-3
    spread = Spread(scales, samples, 5.0 * (samples - 1), 5.5)
    comparison = hloexec.compare(actual, values, spreads={"value": spread})
    assert comparison.leaves[0].mismatches == len(places)
    assert is_open(comparison) is expected


@pytest.mark.parametrize(("share", "expected"), [(0.04, True), (0.01, False), (1e-6, False)])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_errors_that_have_grown_to_the_size_of_elements_are_open_however_many_and_far_off(share, expected, kind):
    """Tolerances of 5.5 spreads: of 0.22 of each element, of 0.055, and of next to nothing."""
    values = np.arange(1, 8193, dtype=np.float32).reshape(64, 128)
    actual = values.copy()
    actual[10:20, 7:90] *= 1 + np.float32(max(5.5 * share, 0.02) * 4)
    actual, values = (side.astype(kind if kind == "float32" else ml_dtypes.bfloat16) for side in (actual, values))
    spread = Spread(share * values.astype(np.float32), 6, 25.0, 5.5)
    comparison = hloexec.compare(actual, values, spreads={"value": spread})
    assert comparison.verdict is Verdict.DIFFERENT
    assert is_open(comparison) is expected


def test_what_was_not_sampled_is_not_open():
    values = np.ones((64, 128), np.float32)
    actual = values.copy()
    actual[3, 4] += np.float32(0.01)
    for tolerance in ({}, {"rtol": 5e-3}):
        comparison = hloexec.compare(actual, values, **tolerance)
        assert comparison.verdict is Verdict.DIFFERENT
        assert not is_open(comparison)


def test_runs_that_fail_later_leave_what_is_known(sums, monkeypatch):
    module, x, forwards, backwards = sums
    run = running.run_with

    def limited(module, inputs, options, *how):
        if options.numerics.rounding_seed == SAMPLES + 3:
            raise hloexec.ResourceError("no memory is left")
        return run(module, inputs, options, *how)

    monkeypatch.setattr(running, "run_with", limited)
    monkeypatch.setattr(running, "run_seeds", lambda *_: [])
    (leaf,) = hloexec.compare(backwards, forwards, module=module, inputs=[x]).leaves
    assert leaf.verdict is Verdict.DIFFERENT
    assert leaf.tolerance.samples == SAMPLES


def test_diff_takes_more_samples_of_before(sums, seeds):
    module, x, _, backwards = sums
    after = hloexec.parse(
        SUMS.replace("reduce(x,", "reduce(y,").replace(
            "  zero", "  y = f32[128,256,3] reverse(x), dimensions={2}\n  zero"
        )
    )
    assert np.array_equal(hloexec.run(after, x), backwards)
    found = hloexec.diff(module, after, [x])
    assert found.verdict == "rounding only"
    assert found.outputs.leaves[0].tolerance.samples == STAGES[1]
    assert seeds == [*range(STAGES[1])]


def test_the_report_says_how_many_samples_were_taken(sums, empty_folder, cli):
    module, x, forwards, backwards = sums
    Path("sums.hlo").write_text(hloexec.format(module), encoding="utf-8")
    for name, value in (("x", x), ("forwards", forwards), ("backwards", backwards)):
        np.save(f"{name}.npy", value)
    record = cli.record("compare backwards.npy forwards.npy --module sums.hlo --inputs x.npy")
    tolerance = record["leaves"][0]["measured"]["tolerance"]
    assert tolerance["samples"] == STAGES[1]
    assert f"as {STAGES[1]} runs show" in tolerance["derivation"]


@pytest.mark.parametrize("seed", range(3))
def test_a_factor_that_all_elements_have_in_common_is_a_fault(seed: int) -> None:
    """1 % is within the rounding of each element, but far beyond that of what they have in common."""
    text = module(
        """x = bf16[200,64] parameter(0)
        y = bf16[64,30] parameter(1)
        p = bf16[200,30] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT t = bf16[200,30] tanh(p)"""
    )
    draw = np.random.default_rng(seed)
    x, y = (draw.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((200, 64), (64, 30)))
    parsed = hloexec.parse(text)
    ours = hloexec.run(parsed, x, y)
    exact = np.tanh(x.astype(np.float64) @ y.astype(np.float64))
    assert hloexec.compare(ours, exact.astype(ours.dtype), module=parsed, inputs=[x, y]).agrees
    faulty = (exact * (1.01 if seed else 0.99)).astype(ours.dtype)
    found = hloexec.compare(ours, faulty, module=parsed, inputs=[x, y])
    assert found.verdict is Verdict.DIFFERENT
    assert "in common" in found.leaves[0].note


@pytest.mark.parametrize(
    ("share", "common", "samples", "expected"),
    [(0.0275, 0.0056, 6, 0.0), (0.0275, 0.0056, 24, 0.2), (2.75, 0.6, 64, 0.0), (0.0, 0.0, 64, 0.0)],
)
def test_a_factor_in_common_is_no_fault_where_elements_are_errors(
    share: float, common: float, samples: int, expected: float
) -> None:
    """Few samples leave it open; of what varies by more than a tenth in common, nothing is left but errors."""
    measured: Any = SimpleNamespace(common=(share, 1.0), unequal=64)
    spread = Spread(np.ones(64), samples, samples - 1.0, 5.0, None, common)
    assert severity_in_common(measured, spread, 64) == expected
    if expected:
        few = Spread(np.ones(64), 6, 5.0, 5.0, None, common)
        assert severity_in_common(measured, few, 64, CHANCE) == expected


def test_sides_beside_a_pole_may_be_further_than_all_samples() -> None:
    """1 / y for y about 3 ± 1 has tails of index 1; those of normal numbers end."""
    draw = np.random.default_rng(0)
    normal, pole = draw.normal(3, 1, 64), 1 / np.abs(draw.normal(3, 1, 64))
    middle = float(np.median(pole))
    assert are_in_tails(middle, middle + 1.5 * (pole.max() - middle), pole)
    assert not are_in_tails(middle, middle + 3 * (pole.max() - middle), pole)
    assert not are_in_tails(middle, -pole.max(), pole)
    assert not are_in_tails(3.0, 3 + 1.5 * (normal.max() - 3), normal)
    assert not are_in_tails(3.0, 12.0, normal)
