"""What rounding does to each element, measured: its statistics, and verdicts that stand on it."""

import math

import numpy as np
import pytest

import hloexec
from hloexec.analysis.numerics.comparison import Verdict
from hloexec.analysis.numerics.sampling import runs
from hloexec.analysis.numerics.sampling.runs import Samples, sampled
from hloexec.analysis.numerics.sampling.spread import (
    SAMPLES,
    Spread,
    digamma,
    inverse_trigamma,
    student_quantile,
    trigamma,
)
from hloexec.engine.exec import running
from hloexec.tools.golden import check_golden, record_golden
from hloexec.tools.golden.recording import SPREAD

RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_numbers_whatever_ran_before():
    RANDOM.bit_generator.state = np.random.default_rng(5).bit_generator.state


@pytest.mark.parametrize("chance", [0.3, 1e-3, 1e-8])
def test_quantiles_of_student_are_those_of_the_closed_forms(chance):
    """ν = 1: P(|T| > t) = 1 − 2 atan(t)/π; ν = 2: 1 − t/√(2 + t²)."""
    assert student_quantile(1, chance) == pytest.approx(math.tan(math.pi / 2 * (1 - chance)), rel=1e-6)
    share = (1 - chance) ** 2
    assert student_quantile(2, chance) == pytest.approx(math.sqrt(2 * share / (1 - share)), rel=1e-5)


def test_quantiles_of_student_are_those_of_tables():
    for degrees, chance, value in ((5, 0.05, 2.5706), (10, 0.01, 3.1693), (30, 0.001, 3.6460)):
        assert student_quantile(degrees, chance) == pytest.approx(value, rel=1e-4)
    assert student_quantile(1e9, 0.05) == pytest.approx(1.972, rel=1e-3)


def test_polygammas_are_known_at_halves_and_ones():
    gamma = 0.5772156649015329
    assert digamma(1) == pytest.approx(-gamma, rel=1e-12)
    assert digamma(0.5) == pytest.approx(-gamma - 2 * math.log(2), rel=1e-12)
    assert trigamma(1) == pytest.approx(math.pi**2 / 6, rel=1e-12)
    assert trigamma(0.5) == pytest.approx(math.pi**2 / 2, rel=1e-12)
    for x in (0.1, 0.7, 3.0, 40.0):
        assert digamma(x + 1) - digamma(x) == pytest.approx(1 / x, rel=1e-10)
        assert inverse_trigamma(trigamma(x)) == pytest.approx(x, rel=1e-9)


def spread_of(samples, **options):
    found = Samples(samples[0])
    for sample in samples[1:]:
        found.add(sample)
    return found.spread(**options)


def noisy(scales, count, offset=100.0):
    """Samples about a value of 100 whose errors have these standard deviations."""
    return [offset + scales * RANDOM.standard_normal(scales.shape) for _ in range(count)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.complex64])
@pytest.mark.parametrize(
    "dimensions", [(), (3, 0), (2, 1 << 17, 3), pytest.param((2, 1 << 19, 3), marks=pytest.mark.slow)]
)
def test_the_moments_are_those_of_all_samples(kind, dimensions):
    """Whatever they are kept in: beside what six samples know of a deviation, a few hundredths are nothing."""
    samples = [(3 + RANDOM.standard_normal(dimensions) / 8).astype(kind) for _ in range(SAMPLES)]
    found = Samples(samples[0])
    for sample in samples[1:]:
        found.add(sample)
    means = np.mean(samples, axis=0)
    assert np.abs(found.means() - means).max(initial=0) < 0.01
    places = np.arange(0, means.size, 3)
    assert np.array_equal(found.means(places), found.means().reshape(-1)[places])
    scales = found.spread().scales
    assert scales.shape == dimensions
    if dimensions == ():
        assert scales == pytest.approx(np.std(samples, ddof=1), rel=0.05)
    elif scales.size:
        assert np.median(scales) == pytest.approx(1 / 8, rel=0.1)


def test_scales_that_follow_rows_and_columns_are_found_by_few_samples():
    """With six samples a single standard deviation is off by a factor of 2 in one case of twenty; a fit of 1 600 equal
    ones is not."""
    scales = np.exp(RANDOM.standard_normal((40, 1)) + RANDOM.standard_normal((1, 40)))
    found = spread_of(noisy(scales, SAMPLES))
    ratio = found.scales / scales
    # The fit counts as much as twenty samples more, and not for the one in a thousand that is unlike it by chance.
    assert found.degrees == 5 * (SAMPLES - 1)
    assert 0.6 < ratio.min() < 1 < np.quantile(ratio, 0.995) < 1.7
    assert found.factor < 6.5


@pytest.mark.parametrize("count", [SAMPLES, 16])
def test_elements_that_follow_nothing_are_held_to_their_own_samples_among_others_that_do(count):
    scales = np.exp(RANDOM.standard_normal((40, 1)) + RANDOM.standard_normal((1, 40)))
    scales[::7, ::7] *= 20
    ratio = spread_of(noisy(scales, count)).scales[::7, ::7] / scales[::7, ::7]
    assert np.quantile(ratio, 0.1) > 0.3


def test_rows_of_stacked_matrices_are_told_apart():
    scales = np.exp(2 * RANDOM.standard_normal((3, 40, 1)) + 2 * RANDOM.standard_normal((3, 1, 40)))
    found = spread_of(noisy(scales, SAMPLES))
    assert found.degrees == 5 * (SAMPLES - 1)
    # Of 25 degrees of freedom, a variance is less than 0.36 of what it should be once in ten thousand times.
    assert np.quantile(found.scales / scales, 0.001) > 0.6


def test_scales_that_follow_nothing_are_their_samples_own():
    scales = np.exp(4 * RANDOM.standard_normal((30, 30)))
    found = spread_of(noisy(scales, 16, offset=1e9))
    samples = np.stack(noisy(scales, 4))
    assert samples.shape == (4, 30, 30)
    assert 15 <= found.degrees < 18
    assert found.factor > 6
    assert np.median(found.scales / scales) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("factor", [1e20, 1e-20])
def test_other_rows_change_nothing_of_a_row(factor):
    scales = np.exp(RANDOM.standard_normal((40, 1)) + RANDOM.standard_normal((1, 30)))
    samples = noisy(scales, SAMPLES)
    changed = [sample.copy() for sample in samples]
    for sample in changed:
        sample[7] *= factor
    first, second = spread_of(samples), spread_of(changed)
    rest = np.delete(second.scales, 7, axis=0) / np.delete(first.scales, 7, axis=0)
    # The medians that others have a part in move a little.
    assert 0.8 < rest.min() <= rest.max() < 1.25
    assert np.mean(abs(rest - 1)) < 0.01
    assert second.scales[7] / first.scales[7] == pytest.approx(np.full(30, factor), rel=0.1)


def test_elements_that_never_change_have_what_the_others_say_and_those_that_overflow_any():
    """What none of four samples moves may be moved by the next; zeros and infinities stay what they are."""
    samples = noisy(np.ones((20, 20)), 4)
    for number, sample in enumerate(samples):
        sample[3, 4] = 7.0
        sample[5] = 0.0
        sample[6, 0] = np.inf
        sample[6, 1] = np.inf if number % 2 else 1e308
        sample[6, 2] = np.nan
    found = spread_of(samples)
    assert 0 < found.scales[3, 4] < 1.5
    assert found.scales[6, 0] == 0
    assert not found.scales[5].any()
    assert found.scales[6, 1] == found.scales[6, 2] == np.inf
    assert 0.3 < np.median(found.scales) < 1.5


@pytest.mark.parametrize("outlier", [1e-20, 1e20])
def test_a_few_elements_of_another_size_take_nothing_from_what_the_rest_say(outlier):
    """Of thirty elements two never change, and get the scale of the others, whatever two more are."""
    samples = noisy(np.ones(30), SAMPLES)
    for sample in samples:
        sample[3] = sample[7] = 100.0
    alone = spread_of(samples)
    for sample in samples:
        sample[11:13] *= outlier
    beside = spread_of(samples)
    assert 0.2 < alone.scales[3] < 2
    assert beside.scales[[3, 7]] == pytest.approx(alone.scales[[3, 7]], rel=0.3)
    assert beside.factor == pytest.approx(alone.factor, rel=0.1)


def test_few_elements_are_judged_by_their_samples_and_those_that_none_moves_by_their_size():
    found = spread_of([np.array([1.0, 2.0]), np.array([1.1, 2.0]), np.array([0.9, 2.0])])
    assert found.degrees == 2
    assert found.scales == pytest.approx(np.array([0.1, 0.2]))
    assert not spread_of([np.array([1.0, 2.0])] * 3).scales.any()


# Verdicts


@pytest.mark.parametrize("kind", [np.float32, np.complex64])
def test_two_sides_share_an_error_that_is_too_much_for_one(kind):
    """Beside 5 of their scales, the last roundings of numbers near 100 are nothing."""
    scales, means = np.full(5, 0.1, np.float32), np.full(5, 100, kind)
    actual = means + np.array([0.4, 0.8, -0.1, 0.56, np.nan], np.float32).astype(kind)
    expected = means - np.array([0.4, 0.0, 0.6, 0.1, 0.0], np.float32).astype(kind)
    alone, both = (Spread(scales, SAMPLES, 5.0, 5.0, given) for given in (None, means.__getitem__))
    for spread, wrong in ((alone, [0, 1, 3, 4]), (both, [1, 3, 4])):
        comparison = hloexec.compare(actual, expected, spreads={"value": spread})
        found = comparison.leaves[0].measured
        assert [element.index[0] for element in found.first] == wrong
        assert found.worst[1].severity == pytest.approx(0.8 / 0.5, rel=0.01)
    assert comparison.leaves[0].measured.worst[1].absolute_error == pytest.approx(0.8, rel=1e-4)


def test_infinite_means_say_nothing():
    """Where all samples are infinite, the largest number is as good, and any other is not."""
    samples = [np.array([np.inf, np.inf, 1.0], np.float32)] * SAMPLES
    spread = spread_of(samples, has_means=True)
    expected = samples[0]
    for value, agrees in ((np.inf, True), (np.finfo(np.float32).max, True), (1e30, False), (-np.inf, False)):
        actual = np.array([value, np.inf, 1.0], np.float32)
        assert hloexec.compare(actual, expected, spreads={"value": spread}).agrees == agrees, value


MODULE = """HloModule layer
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[24,64] parameter(0)
  w = f32[64,32] parameter(1)
  r = f32[24,32] parameter(2)
  d = f32[24,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[24,32] add(d, r)
  z = f32[] constant(0)
  s = f32[24] reduce(t, z), dimensions={1}, to_apply=add
  ROOT out = (f32[24,32], f32[24]) tuple(t, s) }
"""


def layer_inputs(outlier=1.0):
    x, w, r = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((24, 64), (64, 32), (24, 32)))
    x[5] *= np.float32(outlier)
    return x, w, r


def one_after_the_other(x, w, r):
    """The layer in f32, each sum in the order of its terms."""
    total = np.zeros((24, 32), np.float32)
    for k in range(64):
        total += x[:, k : k + 1] * w[k]
    total = total + r
    sums = np.zeros(24, np.float32)
    for k in range(32):
        sums += total[:, k]
    return total, sums


@pytest.mark.slow_cases("1.0", "1000000000000.0")
@pytest.mark.parametrize("outlier", [1.0, 1e12, 1e30])
def test_another_order_of_sums_is_rounding_and_a_fault_is_not(outlier):
    module, inputs = hloexec.parse(MODULE), layer_inputs(outlier)
    expected = hloexec.run(module, *inputs)
    clean = one_after_the_other(*inputs)
    assert hloexec.compare(clean, expected, module=module, inputs=inputs).verdict is Verdict.ROUNDING
    spreads = sampled(module, [list(inputs)], samples=64).spreads
    for leaf, place in ((0, (2, 3)), (0, (20, 31)), (0, (5, 0)), (1, (4,))):
        wrong = [value.copy() for value in clean]
        wrong[leaf][place] += np.float32(12 * spreads[str(leaf)].scales[place])
        found = hloexec.compare(tuple(wrong), expected, module=module, inputs=inputs)
        assert found.verdict is Verdict.DIFFERENT
        assert found.leaves[leaf].mismatches == 1
        assert found.leaves[leaf].first[0].index == place
        assert found.leaves[1 - leaf].verdict.agrees


@pytest.mark.parametrize(("kept", "agrees"), [(10, True), (8, False)])
def test_operands_that_a_device_cuts_off_are_rounding_under_tf32(kept, agrees):
    """Tensor cores leave out what they have no room for: 13 of 23 bits."""
    x, w, r = layer_inputs()
    mask = np.uint32(0xFFFFFFFF << (23 - kept) & 0xFFFFFFFF)
    total = (x.view(np.uint32) & mask).view(np.float32) @ (w.view(np.uint32) & mask).view(np.float32) + r
    module = hloexec.parse(MODULE)
    expected = hloexec.run(module, x, w, r, numerics="tf32")
    actual = total, total.sum(axis=1)
    assert hloexec.compare(actual, expected, module=module, inputs=[x, w, r], numerics="tf32").agrees == agrees


def test_a_large_number_excuses_no_other():
    """Eleven of sixteen rows are half as large again, beside one element of 1e20."""
    expected = RANDOM.standard_normal((16, 16)).astype(np.float32)
    expected[0, 0] = 1e20
    actual = expected.copy()
    actual[5:] *= np.float32(1.5)
    found = hloexec.compare(actual, expected)
    assert found.verdict is Verdict.DIFFERENT
    assert found.leaves[0].mismatches == 11 * 16
    assert "their own size" in found.leaves[0].note


def test_what_cancelled_is_different_until_the_module_says_what_was_added_up():
    x = np.array([[1e4, 1.0, -1e4, 1e-3]], np.float32)
    text = (
        "HloModule m\nadd { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }\n"
        "ENTRY e { x = f32[1,4] parameter(0)\n z = f32[] constant(0)\n"
        " ROOT s = f32[1] reduce(x, z), dimensions={1}, to_apply=add }"
    )
    module = hloexec.parse(text)
    forwards = x[0, 0] + x[0, 1] + x[0, 2] + x[0, 3]
    backwards = x[0, 3] + x[0, 2] + x[0, 1] + x[0, 0]
    assert forwards != backwards
    results = np.array([forwards], np.float32), np.array([backwards], np.float32)
    assert hloexec.compare(*results).verdict is Verdict.DIFFERENT
    assert hloexec.compare(*results, module=module, inputs=[x]).verdict is Verdict.ROUNDING


def test_a_comparison_takes_as_many_runs_as_it_says(monkeypatch):
    module, inputs = hloexec.parse(MODULE), layer_inputs()
    expected = hloexec.run(module, *inputs)
    seeds = []
    run = running.run_with
    monkeypatch.setattr(
        running,
        "run_with",
        lambda module, inputs, options, *how: seeds.append(options.numerics.name) or run(module, inputs, options, *how),
    )
    together = running.run_seeds
    monkeypatch.setattr(
        running,
        "run_seeds",
        lambda module, inputs, some, options: [
            seeds.append(f"random-rounding:{seed}") or result
            for seed, result in zip(some, together(module, inputs, some, options), strict=False)
        ],
    )
    assert hloexec.compare(expected, expected, module=module, inputs=inputs).verdict is Verdict.EQUAL
    assert seeds == []
    hloexec.compare(one_after_the_other(*inputs), expected, module=module, inputs=inputs)
    assert seeds == [f"random-rounding:{seed}" for seed in range(SAMPLES)]
    seeds.clear()
    hloexec.compare(one_after_the_other(*inputs), expected, module=module, inputs=inputs, rtol=1e-3)
    assert seeds == []


def test_a_module_that_does_not_run_is_read():
    text = MODULE.replace("add(d, r)", 'custom-call(d, r), custom_call_target="nobody_knows"')
    module, inputs = hloexec.parse(text), layer_inputs()
    values = one_after_the_other(*inputs)
    moved = values[0] * np.float32(1 + 2**-22), values[1]
    found = hloexec.compare(moved, values, module=module, inputs=inputs)
    assert found.leaves[0].tolerance.factor == 0
    assert found.verdict is Verdict.ROUNDING
    (leaf, _) = hloexec.compare((values[0] + np.float32(1), values[1]), values, module=module, inputs=inputs).leaves
    assert "the module does not run on these inputs (" in leaf.note
    assert "nobody_knows" in leaf.note


CANCELLING = """HloModule m
ENTRY e { a = f32[512] parameter(0)
  b = f32[512] parameter(1)
  p = f32[512] multiply(a, a)
  q = f32[512] multiply(b, b)
  d = f32[512] subtract(p, q)
  s = f32[512] add(a, b)
  t = f32[512] subtract(a, b)
  u = f32[512] multiply(s, t)
  ROOT r = f32[512] subtract(d, u) }
"""


@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("seed", range(2))
def test_fused_multiply_adds_are_rounding_where_nothing_but_errors_is_left(seed):
    """Of numbers that are 0 but for errors, some are 0 in all samples, and others where a product is not rounded."""
    a, b = np.random.default_rng(seed).standard_normal((2, 512)).astype(np.float32)
    wide = [array.astype(np.float64) for array in (a, b, a + b, a - b)]
    d = (wide[0] * wide[0] - b * b).astype(np.float32)
    fused = (d - wide[2] * wide[3]).astype(np.float32)
    module = hloexec.parse(CANCELLING)
    reference = hloexec.run(module, a, b)
    (leaf,) = hloexec.compare(fused, reference, module=module, inputs=[a, b]).leaves
    assert leaf.verdict is Verdict.ROUNDING
    place = int(np.argmin(np.abs(reference)))
    fused[place] = 1e-5
    (leaf,) = hloexec.compare(fused, reference, module=module, inputs=[a, b]).leaves
    assert not leaf.verdict.agrees and leaf.worst[0].index == (place,)


def test_zeros_beside_numbers_may_not_differ():
    module = hloexec.parse(
        CANCELLING.replace("subtract(d, u)", "maximum(d, z)").replace("ROOT", "z = f32[512] subtract(a, a)\n  ROOT")
    )
    a, b = np.random.default_rng(5).standard_normal((2, 512)).astype(np.float32)
    values = hloexec.run(module, a, b)
    faulty = np.where(np.arange(512) == np.argmin(values), np.float32(1e-8), values)
    assert hloexec.compare(faulty, values, module=module, inputs=[a, b]).leaves[0].mismatches == 1


@pytest.mark.parametrize("header", ["num_partitions=4", "replica_count=2"])
def test_a_module_for_several_devices_that_ran_on_one_is_measured_on_one(header):
    module, inputs = hloexec.parse(MODULE.replace("HloModule layer", f"HloModule layer, {header}")), layer_inputs(1e12)
    values = one_after_the_other(*inputs)
    found = hloexec.compare(values, hloexec.run(module, *inputs), module=module, inputs=inputs)
    assert found.verdict is Verdict.ROUNDING
    assert all(leaf.tolerance.factor > 0 for leaf in found.leaves)


# Goldens


def record(folder, text=MODULE, outlier=1e12):
    module, inputs = hloexec.parse(text), layer_inputs(outlier)
    return record_golden(module, inputs, folder / "layer.golden").folder


def test_a_golden_finds_a_subtraction_beside_a_row_of_huge_numbers(tmp_path):
    folder = record(tmp_path)
    assert check_golden(folder).passed
    other = hloexec.parse(MODULE.replace("add(d, r)", "subtract(d, r)"))
    found = check_golden(folder, module=other)
    assert not found.passed
    assert found.comparison is not None
    # All but the huge row, where r is lost in either.
    assert found.comparison.leaves[0].mismatches > 22 * 32


def test_a_check_takes_one_run(tmp_path, monkeypatch):
    folder = record(tmp_path)
    assert (folder / SPREAD).is_file()
    monkeypatch.setattr(runs, "at_random", None)
    assert check_golden(folder).passed
    other = hloexec.parse(MODULE.replace("add(d, r)", "add(r, d)"))
    assert check_golden(folder, module=other).passed


@pytest.mark.parametrize("damage", ["other leaves", "negative", "no numbers", "short"])
def test_a_damaged_spread_is_said_to_be(tmp_path, damage):
    folder = record(tmp_path)
    scales, facts = np.ones((24, 32), np.float32), np.array([16.0, 20.0, 6.0])
    sums = np.ones(24, np.float32), facts
    value = {
        "other leaves": ((scales, facts),),
        "negative": ((-scales, facts), sums),
        "no numbers": ((scales * np.nan, facts), sums),
        "short": ((scales[:3], facts), sums),
    }[damage]
    hloexec.literals.save(folder / SPREAD, value)
    found = check_golden(folder)
    assert not found.passed
    assert "spread.npz is damaged" in found.message


def test_results_of_dynamic_extents_have_a_spread(tmp_path):
    text = (
        "HloModule m\nENTRY e { x = f32[8] parameter(0)\n n = s32[] constant(5)\n t = f32[8] tanh(x)\n"
        " ROOT d = f32[<=8] set-dimension-size(t, n), dimensions={0} }"
    )
    inputs = [RANDOM.standard_normal(8).astype(np.float32)]
    folder = record_golden(hloexec.parse(text), inputs, tmp_path / "dynamic.golden").folder
    assert (folder / SPREAD).is_file()
    found = check_golden(folder)
    assert found.passed, found.message


def test_goldens_without_a_spread_are_still_read(tmp_path):
    folder = record(tmp_path, outlier=1.0)
    (folder / SPREAD).unlink()
    assert check_golden(folder).passed


TWO_DEVICES = """HloModule two, replica_count=2
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[16,40] parameter(0)
  w = f32[40,8] parameter(1)
  d = f32[16,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[16,8] all-reduce(d), to_apply=add
  ROOT r = f32[16,8] OPERATION(s, d) }
"""


def two_devices(operation="add", seed=5):
    rng = np.random.default_rng(seed)
    inputs = [
        [rng.standard_normal((16, 40)).astype(np.float32), rng.standard_normal((40, 8)).astype(np.float32)]
        for _ in range(2)
    ]
    inputs[1][0][4] *= np.float32(1e15)
    return hloexec.parse(TWO_DEVICES.replace("OPERATION", operation)), inputs


def test_results_of_several_devices_are_held_to_their_own_spread():
    """The factor is what one leaf in a hundred exceeds: of 20 leaves, two or more do so in 17 of a thousand sets."""
    verdicts = []
    for seed in range(10):
        module, inputs = two_devices(seed=seed)
        expected = tuple(hloexec.run_devices(module, inputs))
        turned = [[x[:, ::-1].copy(), w[::-1].copy()] for x, w in inputs]
        actual = tuple(hloexec.run_devices(module, turned))
        found = hloexec.compare(actual, expected, module=module, inputs=inputs)
        assert found.leaves[0].tolerance.factor > 0
        verdicts.append(found.verdict)
    assert verdicts.count(Verdict.ROUNDING) >= 9
    moved = [array.copy() for array in expected]
    moved[1][0, 0] *= np.float32(1.001)
    found = hloexec.compare(tuple(moved), expected, module=module, inputs=inputs)
    assert [leaf.mismatches for leaf in found.leaves] == [0, 1]


def test_a_result_of_the_first_device_is_held_to_what_rounding_does_on_all_of_them():
    module, inputs = two_devices()
    expected = hloexec.run_devices(module, inputs)[0]
    turned = [[x[:, ::-1].copy(), w[::-1].copy()] for x, w in inputs]
    actual = hloexec.run_devices(module, turned)[0]
    (leaf,) = hloexec.compare(actual, expected, module=module, inputs=inputs).leaves
    assert leaf.tolerance.factor > 0 and leaf.verdict is Verdict.ROUNDING
    moved = expected.copy()
    moved[0, 0] *= np.float32(1.001)
    assert hloexec.compare(moved, expected, module=module, inputs=inputs).leaves[0].mismatches == 1


@pytest.mark.fused_multiply_add
@pytest.mark.parametrize("negation", ["", "n = f32[99] negate(d)\n"])
def test_what_multiply_adds_leave_of_products_that_cancel_is_rounding(negation):
    """XLA:CPU's a · a − b · b rounds one of the products only: for a = b the result is its rounding error, up to half a
    unit in its last place. Ten of these are not rounding."""
    xla = pytest.importorskip("conformance.xla")
    module = hloexec.parse(
        "HloModule m\nENTRY e { a = f32[99] parameter(0)\n b = f32[99] parameter(1)\n c = f32[99] multiply(a, a)\n"
        f" d = f32[99] multiply(b, b)\n {negation} ROOT r = f32[99] {'add(n, c)' if negation else 'subtract(c, d)'} }}"
    )
    x = RANDOM.standard_normal(99).astype(np.float32)
    given = hloexec.run(module, x, x)
    (expected,) = xla.run_hlo(hloexec.format(module), x, x)
    assert np.abs(expected).max() > 0
    assert hloexec.compare(given, expected, module=module, inputs=[x, x]).verdict is Verdict.ROUNDING
    wrong = given + 10 * np.spacing(x * x)
    assert hloexec.compare(wrong, expected, module=module, inputs=[x, x]).leaves[0].mismatches > 90


def test_goldens_of_several_devices_have_a_spread(tmp_path):
    module, inputs = two_devices()
    folder = record_golden(module, inputs, tmp_path / "two.golden").folder
    assert (folder / SPREAD).is_file()
    assert check_golden(folder).passed
    found = check_golden(folder, module=two_devices("subtract")[0])
    assert not found.passed
    assert all(leaf.mismatches > 100 for leaf in found.comparison.leaves)


def test_indices_tie_where_the_keys_round(monkeypatch):
    """Two keys of which rounding decides which is larger, beside keys of another size; and two of which it does not."""
    text = """HloModule m
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
larger { a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  p = pred[] compare(a, b), direction=GE
  k = f32[] select(p, a, b)
  l = s32[] select(p, i, j)
  ROOT t = (f32[], s32[]) tuple(k, l) }
ENTRY e { x = f32[3,3,100] parameter(0)
  z = f32[] constant(0)
  k = f32[3,3] reduce(x, z), dimensions={2}, to_apply=add
  i = s32[3,3] iota(), iota_dimension=1
  m = f32[] constant(-inf)
  n = s32[] constant(0)
  r = (f32[3], s32[3]) reduce(k, i, m, n), dimensions={1}, to_apply=larger
  ROOT w = s32[3] get-tuple-element(r), index=1 }
"""
    x = np.random.default_rng(1).random((3, 3, 100)).astype(np.float32)
    x[:, 1] = x[:, 0, ::-1]  # the same sum, but for rounding
    x[:, 2] /= 2
    x[0] *= np.float32(1e20)
    module = hloexec.parse(text)
    runs = []
    run = running.run_with
    monkeypatch.setattr(
        running,
        "run_with",
        lambda module, inputs, options, *how: runs.append(options.numerics.name) or run(module, inputs, options, *how),
    )
    either = np.array([0, 1, 0], np.int32), np.array([1, 0, 1], np.int32)
    assert hloexec.compare(*either, module=module, inputs=[x]).verdict is Verdict.ROUNDING
    assert len(runs) == SAMPLES
    wrong = np.array([0, 2, 0], np.int32)
    assert hloexec.compare(wrong, either[1], module=module, inputs=[x]).leaves[0].mismatches == 1
