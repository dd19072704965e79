"""The policy that rounds at random, against exact results and against what adding in some order does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hloexec
from hloexec.engine.exec import running
from hloexec.engine.plan import planner
from hloexec.errors import UnsupportedError
from tests.plan.random_programs import RandomProgram, random_program
from tests.plan.ways import bits, differences

STORAGE = {
    "f64": np.float64, "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
}  # fmt: skip
ADD = "add {{ a = {0}[] parameter(0)\n b = {0}[] parameter(1)\n ROOT c = {0}[] add(a, b) }}\n"
SEEDS = 200


def random(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape)


def samples(text, *inputs, seeds=SEEDS):
    """The results of runs with different seeds, as f64, stacked."""
    module = hloexec.parse(text)
    runs = [hloexec.run(module, *inputs, numerics=f"random-rounding:{seed}") for seed in range(seeds)]
    return np.stack([np.asarray(run).astype(np.float64) for run in runs])


def binary(opcode, kind, count):
    return (
        f"HloModule m\nENTRY e {{ a = {kind}[{count}] parameter(0)\n b = {kind}[{count}] parameter(1)\n"
        f" ROOT c = {kind}[{count}] {opcode}(a, b) }}"
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", STORAGE)
@pytest.mark.parametrize("opcode", ["add", "subtract", "multiply"])
def test_a_result_is_one_of_its_two_neighbours_in_proportion(opcode, kind):
    """With n samples of a number that is up with probability p, the share is within 4.5 √(p(1 − p) / n) of p, once in
    150 000 elements excepted; and the mean is as near to the exact result in the distance of the neighbours."""
    count = 60
    lhs, rhs = (values.astype(STORAGE[kind]) for values in random(2, count))
    found = samples(binary(opcode, kind, count), lhs, rhs)
    pairs = zip(lhs.astype(np.float64).tolist(), rhs.astype(np.float64).tolist(), strict=True)
    operation = {"add": Fraction.__add__, "subtract": Fraction.__sub__, "multiply": Fraction.__mul__}[opcode]
    for number, (x, y) in enumerate(pairs):
        exact = operation(Fraction(x), Fraction(y))
        values = sorted(set(found[:, number]))
        low, high = Fraction(values[0]), Fraction(values[-1])
        assert len(values) <= 2
        if low == high:
            # Either exact, or so near to a number that it was met each time.
            step = Fraction(float(np.spacing(np.asarray(values[0], STORAGE[kind]))))
            assert abs(exact - low) <= abs(step) * Fraction(1, 20)
        else:
            assert low <= exact <= high
            share = float((exact - low) / (high - low))
            bound = 4.5 * (share * (1 - share) / SEEDS) ** 0.5 + 1e-9
            assert abs(np.mean(found[:, number] == values[-1]) - share) <= bound + 1 / SEEDS


@pytest.mark.parametrize("kind", "f32 bf16 f16 f64".split())
def test_what_its_type_holds_stays_as_it_is(kind):
    whole = np.arange(-10, 11).astype(STORAGE[kind])
    for opcode in "add subtract multiply maximum".split():
        for partner in (whole[::-1].copy(), np.full(21, 0.5, STORAGE[kind])):
            text = binary(opcode, kind, 21)
            expected = np.asarray(hloexec.run(hloexec.parse(text), whole, partner)).astype(np.float64)
            assert_array_equal(samples(text, whole, partner, seeds=5), [expected] * 5)


EXACT_SUMS = {
    "a row with a single one": (np.eye(40, 300, dtype=np.float32)[::-1], random(300, 20).astype(np.float32)),
    "whole numbers": (random(40, 300).round().astype(np.float32), (9 * random(300, 20)).round().astype(np.float32)),
    "zeros": (np.zeros((40, 300), np.float32), random(300, 20).astype(np.float32)),
}


@pytest.mark.parametrize("name", EXACT_SUMS)
def test_sums_that_round_nothing_stay_as_they_are(name):
    lhs, rhs = EXACT_SUMS[name]
    text = (
        "HloModule m\nENTRY e { a = f32[40,300] parameter(0)\n b = f32[300,20] parameter(1)\n"
        " ROOT d = f32[40,20] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"
    )
    exact = lhs.astype(np.float64) @ rhs.astype(np.float64)
    assert_array_equal(samples(text, lhs, rhs, seeds=5), [exact] * 5)
    text = (
        f"HloModule m\n{ADD.format('f32')}ENTRY e {{ a = f32[40,300] parameter(0)\n z = f32[] constant(0)\n"
        " ROOT s = f32[40] reduce(a, z), dimensions={1}, to_apply=add }"
    )
    assert_array_equal(samples(text, lhs, seeds=5), [lhs.astype(np.float64).sum(axis=1)] * 5)


@pytest.mark.slow_cases("0.0")
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_the_spread_of_sums_is_what_adding_one_after_the_other_does(offset):
    """Of a sum S of n terms t in random order, Σ sₖ² over the partial sums is n S²/3 + n Σt²/6 in the mean (a random
    walk that ends at S), and errors are uniform within a unit of roundoff u, so of variance u²/3. The root mean square
    over 40 · 30 sums of 200 samples is within a tenth of that. Adding in f32, with errors of 0.42 u in the mean, gives
    two thirds of it."""
    terms = 400
    lhs, rhs = (offset + random(40, terms)).astype(np.float32), (offset + random(terms, 30)).astype(np.float32)
    text = (
        f"HloModule m\nENTRY e {{ a = f32[40,{terms}] parameter(0)\n b = f32[{terms},30] parameter(1)\n"
        " ROOT d = f32[40,30] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"
    )
    found = samples(text, lhs, rhs)
    left, right = lhs.astype(np.float64), rhs.astype(np.float64)
    variance = 2.0**-48 / 3 * terms * ((left @ right) ** 2 / 3 + left**2 @ right**2 / 6)
    assert 0.9 < np.sqrt(np.mean(found.var(axis=0, ddof=1) / variance)) < 1.1
    one_by_one = np.zeros((40, 30), np.float32)
    for term in range(terms):
        one_by_one += lhs[:, term : term + 1] * rhs[term]
    assert 0.4 < np.sqrt(np.mean((one_by_one - left @ right) ** 2 / variance)) < 1


SUM = (
    "HloModule m\n{add}ENTRY e {{ a = f32[{rows},{terms}] parameter(0)\n z = f32[] constant(0)\n"
    " ROOT s = f32[{rows}] reduce(a, z), dimensions={{1}}, to_apply=add }}"
)


def test_equal_rows_have_equal_sums_and_others_errors_of_their_own():
    """As on a machine, which adds equal rows alike wherever they stand. 200 pairs of sums over 100 samples have
    correlations of a tenth, so that more than 0.6 is hardly met; and 0.2 for rows that differ in one term alone."""
    values = np.tile(random(1, 700), (30, 1)).astype(np.float32)
    values[10:, 3] = random(20)
    found = samples(SUM.format(add=ADD.format("f32"), rows=30, terms=700), values, seeds=100)
    assert (found[:, :10] == found[:, :1]).all()
    assert len(set(found[:, 0])) > 1
    errors = np.corrcoef(found[:, 9:], rowvar=False)
    rest = errors[~np.eye(len(errors), dtype=bool)]
    assert np.abs(rest).max() < 0.6
    assert np.abs(rest.mean()) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("terms", [(1 << 16) - 1, (1 << 16) + 1, 3 << 16])
def test_long_sums_spread_as_their_partial_sums_do(terms):
    """Errors of a growing sum are those of its partial sums, whatever is looked at together; the root of a mean over 200
    samples of 8 sums is known to 2 %."""
    values = np.ones((8, terms), np.float32) + random(8, terms).astype(np.float32) / 64
    spread = samples(SUM.format(add=ADD.format("f32"), rows=8, terms=terms), values)
    partial = values.astype(np.float64).cumsum(axis=1)
    expected = 2.0**-24 * np.sqrt((partial**2).sum(axis=1) / 3)
    ratio = spread.std(axis=0, ddof=1) / expected
    assert np.sqrt(np.mean(ratio**2)) == pytest.approx(1, abs=0.1)


def test_sums_of_several_operands_have_errors_each_of_its_own_type():
    """Whole numbers none; floats those of a sum of their own, within a fifth over 40 rows."""
    text = (
        "HloModule m\nadd { a = f32[] parameter(0)\n b = s32[] parameter(1)\n c = f32[] parameter(2)\n"
        " d = s32[] parameter(3)\n e = f32[] add(a, c)\n f = s32[] add(b, d)\n ROOT t = (f32[], s32[]) tuple(e, f) }\n"
        "ENTRY e { x = f32[40,500] parameter(0)\n n = s32[40,500] parameter(1)\n z = f32[] constant(0)\n"
        " o = s32[] constant(0)\n ROOT r = (f32[40], s32[40]) reduce(x, n, z, o), dimensions={1}, to_apply=add }"
    )
    module = hloexec.parse(text)
    x, n = 3 + random(40, 500).astype(np.float32), np.arange(20000, dtype=np.int32).reshape(40, 500)
    runs = [hloexec.run(module, x, n, numerics=f"random-rounding:{seed}") for seed in range(60)]
    assert all((run[1] == n.sum(axis=1)).all() for run in runs)
    partial = x.astype(np.float64).cumsum(axis=1)
    expected = 2.0**-24 * np.sqrt((partial**2).sum(axis=1) / 3)
    spread = np.array([run[0] for run in runs]).astype(np.float64).std(axis=0, ddof=1)
    assert np.sqrt(np.mean((spread / expected) ** 2)) == pytest.approx(1, abs=0.2)


def test_sums_of_whole_rows_have_no_errors_whatever_stands_beside_them():
    values = random(40, 300).astype(np.float32)
    values[::2] = np.rint(8 * values[::2])
    found = samples(SUM.format(add=ADD.format("f32"), rows=40, terms=300), values, seeds=20)
    assert (found[:, ::2] == values[::2].astype(np.float64).sum(axis=1)).all()
    assert (found[:, 1::2].std(axis=0) > 0).all()


def test_sums_in_structured_order_spread_as_their_partial_sums_do():
    """The first half of the terms is about 1, the second about −1: partial sums grow to n/2, and leave errors that no
    spread of the terms' own size explains."""
    terms = 1000
    values = (np.repeat([1.0, -1.0], terms // 2) + random(50, terms) / 8).astype(np.float32)
    text = (
        f"HloModule m\n{ADD.format('f32')}ENTRY e {{ a = f32[50,{terms}] parameter(0)\n z = f32[] constant(0)\n"
        " ROOT s = f32[50] reduce(a, z), dimensions={1}, to_apply=add }"
    )
    spread = samples(text, values).std(axis=0, ddof=1)
    partial = values.astype(np.float64).cumsum(axis=1)
    expected = 2.0**-24 * np.sqrt((partial**2).sum(axis=1) / 3)
    assert 0.9 < np.mean(spread / expected) < 1.1


@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT"])
def test_transforms_of_equal_numbers_have_errors_where_all_cancels(kind):
    """Equal lines have equal errors. So each dimension of n places makes independent errors of n sums of the others,
    each uniform up to √(4 log₂(n)/6) units, where the others' places are 0; elsewhere, none is left."""
    operand = "f32" if kind == "RFFT" else "c64"
    module = hloexec.parse(
        f"HloModule m\nENTRY e {{ x = {operand}[10,12] parameter(0)\n"
        f" ROOT y = c64[10,{7 if kind == 'RFFT' else 12}] fft(x), fft_type={kind}, fft_length={{10,12}} }}"
    )
    ones = np.ones((10, 12), np.float32 if kind == "RFFT" else np.complex64)
    found = np.std([hloexec.run(module, ones, numerics=f"random-rounding:{seed}") for seed in range(SEEDS)], axis=0)
    for n, others, line in ((10, 12, found[1:, 0]), (12, 10, found[0, 1:])):
        due = 2.0**-24 * np.sqrt(4 * np.log2(n) / 6) * np.sqrt(n / 3) * others
        assert_allclose(line, due / (120 if kind == "IFFT" else 1), rtol=0.25)


@pytest.mark.parametrize("planner", [True, False])
def test_transforms_of_what_lies_in_another_order_have_the_same_errors(planner):
    given = np.random.default_rng(2).standard_normal((4, 6, 5)).astype(np.float32) * np.complex64(1 + 2j)
    transform = "y = c64[5,4,6] fft({}), fft_type=FFT, fft_length={{4,6}}"
    rows = f"HloModule m\nENTRY e {{ x = c64[5,4,6] parameter(0)\n ROOT {transform.format('x')} }}"
    columns = "HloModule m\nENTRY e { x = c64[4,6,5] parameter(0)\n t = c64[5,4,6] transpose(x), dimensions={2,0,1}\n"
    columns += f" ROOT {transform.format('t')} }}"
    expected = hloexec.run(
        hloexec.parse(rows), np.ascontiguousarray(given.transpose(2, 0, 1)), numerics="random-rounding:1"
    )
    found = hloexec.run(hloexec.parse(columns), given, numerics="random-rounding:1", planner=planner)
    assert_array_equal(found, expected)


def test_narrow_sums_may_be_rounded_at_each_step():
    """Whether partial sums are rounded to the reducer's type is the implementation's: XLA:CPU does so, in blocks of 32
    terms along a dimension, and GPUs do not. The spread covers what the first gives, and is no wider than adding one
    after the other makes it."""
    values = random(50, 30).astype(ml_dtypes.bfloat16)
    text = (
        f"HloModule m\n{ADD.format('bf16')}ENTRY e {{ a = bf16[50,30] parameter(0)\n z = bf16[] constant(0)\n"
        " ROOT s = bf16[50] reduce(a, z), dimensions={1}, to_apply=add }"
    )
    spread = samples(text, values, seeds=60).std(axis=0, ddof=1)
    total = np.zeros(50, ml_dtypes.bfloat16)
    for term in range(30):
        total = (total + values[:, term]).astype(ml_dtypes.bfloat16)
    errors = total.astype(np.float64) - values.astype(np.float64).sum(axis=1)
    assert 0.3 < np.sqrt(np.mean(errors**2)) / np.sqrt(np.mean(spread**2)) < 1.2


def test_what_narrow_sums_lose_term_by_term_is_rounding():
    """Terms that are less than half a last place of the sum so far vanish, one and all, where each partial sum is
    rounded to nearest: errors by chance would cancel."""
    values = (random(50, 30) / 400).astype(ml_dtypes.bfloat16)
    values[:, 0] = 2
    text = (
        f"HloModule m\n{ADD.format('bf16')}ENTRY e {{ a = bf16[50,30] parameter(0)\n z = bf16[] constant(0)\n"
        " ROOT s = bf16[50] reduce(a, z), dimensions={1}, to_apply=add }"
    )
    values = np.abs(values)
    lost = np.full(50, 2, ml_dtypes.bfloat16)
    module = hloexec.parse(text)
    whole = hloexec.run(module, values)
    assert (whole > lost).all()
    assert hloexec.compare(lost, whole, module=module, inputs=[values]).agrees


@pytest.mark.parametrize("step", ["multiply", "add"])
def test_what_an_implementation_keeps_wide_is_rounding(step):
    """XLA:CPU does not round what one elementwise instruction hands to the next. That moves elements by up to half a
    last place of the narrow type, also those which six roundings by chance have left where they are."""
    text = (
        "HloModule m\nENTRY e { a = bf16[500] parameter(0)\n b = bf16[500] parameter(1)\n c = f32[500] parameter(2)\n"
        f" p = bf16[500] multiply(a, b)\n w = f32[500] convert(p)\n ROOT r = f32[500] {step}(w, c) }}"
    )
    module = hloexec.parse(text)
    lhs, rhs = random(2, 500).astype(ml_dtypes.bfloat16)
    other = random(500).astype(np.float32)
    product = lhs.astype(np.float32) * rhs.astype(np.float32)
    kept = product * other if step == "multiply" else product + other
    rounded = hloexec.run(module, lhs, rhs, other)
    assert hloexec.compare(kept, rounded, module=module, inputs=[lhs, rhs, other]).agrees
    off = kept.copy()
    off[3] += 16 * np.spacing(product.astype(ml_dtypes.bfloat16)[3]).astype(np.float32)
    assert not hloexec.compare(off, rounded, module=module, inputs=[lhs, rhs, other]).agrees


@pytest.mark.parametrize("options", [{}, {"planner": False}])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_what_a_contraction_gives_is_kept_wide_for_elementwise_users(kind, options):
    """XLA:CPU leaves the roundings out where an f32 follows: a sum just below 1 is then no 1."""
    text = f"""HloModule m
        ENTRY e {{ a = {kind}[9,2] parameter(0)
          b = {kind}[2,70] parameter(1)
          d = {kind}[9,70] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
          w = f32[9,70] convert(d)
          f = f32[9,70] floor(w)
          t = {kind}[9,70] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
          ROOT r = (f32[9,70], f32[9,70], {kind}[9,70]) tuple(w, f, t) }}"""
    module = hloexec.parse(text)
    lhs = np.tile(np.array([1, 2.0**-14], STORAGE[kind]), (9, 1))
    rhs = np.tile(np.array([[1], [-1]], STORAGE[kind]), (1, 70))
    exact, below = 1 - 2.0**-14, 1 - 2.0 ** (-8 if kind == "bf16" else -11)
    for seed in range(8):
        wide, floor, stored = hloexec.run(module, lhs, rhs, numerics=f"random-rounding:{seed}", **options)
        assert stored.dtype == STORAGE[kind]
        assert {*stored.astype(np.float64).reshape(-1)} <= {1.0, below}
        if seed % 2:
            assert np.abs(wide - exact).max() < 1e-6
            assert not floor.any()
        else:
            assert {*wide.astype(np.float64).reshape(-1)} <= {1.0, below}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
def test_results_are_of_their_types_whatever_is_kept_wide(kind, seed):
    """The module's, and those that fusions hand to their callers. What odd seeds keep wide, even ones round."""
    text = (
        f"HloModule m\nfused {{ a = {kind}[50] parameter(0)\n b = {kind}[50] multiply(a, a)\n"
        f" ROOT c = {kind}[50] add(b, a) }}\nENTRY e {{ a = {kind}[50] parameter(0)\n"
        f" f = {kind}[50] fusion(a), kind=kLoop, calls=fused\n s = {kind}[50] sine(f)\n"
        f" ROOT n = {kind}[50] multiply(s, s) }}"
    )
    seen = {}

    class Observer:
        def on_instruction(self, event):
            seen[event.name] = event.value

    (values,) = random(1, 50).astype(STORAGE[kind])
    policy = f"random-rounding:{seed}"
    result = hloexec.run(hloexec.parse(text), values, numerics=policy, check=True)
    assert result.dtype == STORAGE[kind]
    assert_array_equal(hloexec.run(hloexec.parse(text), values, numerics=policy, planner=False), result)
    assert_array_equal(hloexec.run(hloexec.parse(text), values, numerics=policy, observers=[Observer()]), result)
    product = seen["f/b"]
    assert product.dtype == (np.float64 if kind == "f32" else np.float32)
    assert (product == product.astype(STORAGE[kind])).all() == (seed % 2 == 0)
    assert {seen["n"].dtype, seen["a"].dtype} == {np.dtype(STORAGE[kind])}


def test_a_format_rounds_up_or_down():
    text = "HloModule m\nENTRY e { a = f32[100] parameter(0)\n ROOT r = f32[100] reduce-precision(a), exponent_bits=8, mantissa_bits=7 }"
    values = random(100).astype(np.float32)
    found = samples(text, values)
    assert (found == found.astype(ml_dtypes.bfloat16).astype(np.float64)).all()
    step = 2.0 ** (np.floor(np.log2(np.abs(values))) - 7)
    assert (np.abs(found - values) < step).all()
    assert (np.abs(found.mean(axis=0) - values) < 4.5 * step / 2 / SEEDS**0.5).all()


def test_an_element_depends_on_no_other():
    """Neither its value nor its error: what stands beside it may be anything."""
    text = (
        f"HloModule m\n{ADD.format('f32')}ENTRY e {{ a = f32[20,30] parameter(0)\n b = f32[30,8] parameter(1)\n"
        " z = f32[] constant(0)\n d = f32[20,8] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        " t = f32[20,8] tanh(d)\n m = f32[20,8] multiply(t, d)\n"
        " ROOT s = f32[20] reduce(m, z), dimensions={1}, to_apply=add }"
    )
    lhs, rhs = random(20, 30).astype(np.float32), random(30, 8).astype(np.float32)
    first = samples(text, lhs, rhs, seeds=5)
    for factor in (1e20, 1e-20):
        changed = lhs.copy()
        changed[3] *= np.float32(factor)
        second = samples(text, changed, rhs, seeds=5)
        assert_array_equal(np.delete(first, 3, axis=1), np.delete(second, 3, axis=1))


def test_devices_that_hold_the_same_round_alike():
    text = (
        f"HloModule m, replica_count=4\n{ADD.format('f32')}ENTRY e {{ a = f32[50] parameter(0)\n"
        " s = f32[50] all-reduce(a), replica_groups={}, to_apply=add\n ROOT t = f32[50] tanh(s) }"
    )
    inputs = [[row] for row in random(4, 50).astype(np.float32)]
    module = hloexec.parse(text)
    runs = [hloexec.run_devices(module, inputs, numerics=f"random-rounding:{seed}") for seed in range(8)]
    assert all((run[0] == other).all() for run in runs for other in run)
    assert len({run[0].tobytes() for run in runs}) > 1


@pytest.mark.slow_cases("f32-", "bf16-tf32+")
@pytest.mark.parametrize("policy", ["", "tf32+"])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_one_plan_serves_all_seeds(kind, policy, monkeypatch):
    """And several runs at once, also of bf16, which odd seeds keep wide. A run gives what it gives alone, of a module
    that has no plan yet."""
    text = (
        f"HloModule m, replica_count=2\n{ADD.format(kind)}"
        "c { p = (s32[], K[9,9]) parameter(0)\n i = s32[] get-tuple-element(p), index=0\n n = s32[] constant(3)\n"
        " ROOT t = pred[] compare(i, n), direction=LT }\n"
        "b { p = (s32[], K[9,9]) parameter(0)\n i = s32[] get-tuple-element(p), index=0\n one = s32[] constant(1)\n"
        " x = K[9,9] get-tuple-element(p), index=1\n j = s32[] add(i, one)\n s = K[9,9] sine(x)\n"
        " t = K[9,9] multiply(s, x)\n d = K[9,9] dot(t, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        " r = K[9,9] all-reduce(d), replica_groups={}, to_apply=add\n"
        " ROOT q = (s32[], K[9,9]) tuple(j, r) }\n"
        "ENTRY e { x = K[9,9] parameter(0)\n i = s32[] constant(0)\n p = (s32[], K[9,9]) tuple(i, x)\n"
        " w = (s32[], K[9,9]) while(p), condition=c, body=b\n ROOT r = K[9,9] get-tuple-element(w), index=1 }"
    ).replace("K[", f"{kind}[")
    inputs = [[row.astype(STORAGE[kind])] for row in random(2, 9, 9)]

    def run(module, seed):
        return bits(hloexec.run_devices(module, inputs, numerics=f"{policy}random-rounding:{seed}"))

    seeds = (0, 1, 2, 3, 2, 10**18 + 5)
    alone = [run(hloexec.parse(text), seed) for seed in seeds]
    made = []

    def counted(*arguments):
        made.append(arguments)
        return planner.build(*arguments)

    monkeypatch.setattr(running, "build", counted)
    module = hloexec.parse(text)
    assert [run(module, seed) for seed in seeds] == alone
    assert len(made) == 1
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(partial(run, module), 4 * seeds)) == 4 * alone
    assert len(made) == 1
    assert len(set(alone)) == len(set(seeds))


@pytest.mark.sampled(24)
@pytest.mark.parametrize("seed", range(7000, 7024))
def test_the_bits_are_the_same_in_every_way(seed):
    program = random_program(seed)
    with np.errstate(all="ignore"):
        assert differences(program, numerics=f"random-rounding:{seed}") == []


def test_updates_added_to_a_computed_array_run_as_planned():
    text = (
        f"HloModule m\n{ADD.format('f32')}ENTRY e {{ a = f32[5,3] parameter(0)\n u = f32[2,3] parameter(1)\n"
        " s = f32[5,3] sine(a)\n i = s32[2,1] constant({{1}, {1}})\n"
        " ROOT r = f32[5,3] scatter(s, i, u), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add }"
    )
    inputs = [row.astype(np.float32) for row in (random(5, 3), random(2, 3))]
    assert differences(RandomProgram(text, [inputs]), numerics="random-rounding:3") == []


@pytest.mark.parametrize("exponent", ["0.5", "-1"])
def test_powers_with_one_exponent_run_as_planned(exponent):
    """In a fusion the exponent is a single number, for which NumPy has other formulas."""
    program = RandomProgram(
        "HloModule m\nENTRY e { a = f32[60,50] parameter(0)\n s = f32[60,50] sine(a)\n"
        f" c = f32[] constant({exponent})\n b = f32[60,50] broadcast(c), dimensions={{}}\n"
        " ROOT p = f32[60,50] power(s, b) }",
        [[random(60, 50).astype(np.float32)]],
    )
    assert differences(program, numerics="random-rounding:3") == []


@pytest.mark.parametrize(
    "name",
    ["random-rounding", "random-rounding:", "random-rounding:-1", "random-rounding:1.5", "random-rounding:x",
     "random-rounding: 1", "random-rounding:1:2", "random:1", "Random-Rounding:1", "random-rounding:٣", "random-rounding:" + "9" * 5000],
)  # fmt: skip
def test_a_seed_is_a_whole_number(name):
    module = hloexec.parse("HloModule m\nENTRY e { ROOT a = f32[] constant(1) }")
    with pytest.raises(UnsupportedError, match=r"unknown numerics policy .*random-rounding:SEED"):
        hloexec.run(module, numerics=name)


@pytest.mark.parametrize("kind", "f32 bf16 f16 f64".split())
def test_infinities_zeros_and_nans_stay_what_they_are(kind):
    values = np.array([np.inf, -np.inf, np.nan, 0.0, 1e4]).astype(STORAGE[kind])
    text = f"HloModule m\nENTRY e {{ a = {kind}[5] parameter(0)\n ROOT c = {kind}[5] OPCODE(a) }}"
    with np.errstate(all="ignore"):
        for opcode in "exponential sqrt tanh negate".split():
            changed = text.replace("OPCODE", opcode)
            found = samples(changed, values, seeds=3)
            plain = np.asarray(hloexec.run(hloexec.parse(changed), values)).astype(np.float64)
            assert_array_equal(np.isnan(found), np.isnan([plain] * 3))
            assert_array_equal(np.isinf(found), np.isinf([plain] * 3))
            assert (found[:, 3] == plain[3]).all()


def test_narrow_prefix_sums_are_rounded_on_their_way():
    """XLA adds up prefix sums in blocks, each partial sum in the declared type; plain sums once in the end."""
    count = 500
    values = random(40, count).astype(ml_dtypes.bfloat16)
    text = (
        f"HloModule m\n{ADD.format('bf16')}ENTRY e {{ a = bf16[40,{count}] parameter(0)\n z = bf16[] constant(0)\n"
        f" ROOT s = bf16[40,{count}] reduce-window(a, z), window={{size=1x{count} pad=0_0x{count - 1}_0}}, to_apply=add }}"
    )
    spread = samples(text, values, seeds=20)[:, :, -1].std(axis=0, ddof=1)
    blocks = values.astype(np.float64).reshape(40, 50, 10)
    total = np.zeros(40, ml_dtypes.bfloat16)
    for block in range(50):
        partial = np.zeros(40, ml_dtypes.bfloat16)
        for place in range(10):
            partial = (partial + blocks[:, block, place].astype(ml_dtypes.bfloat16)).astype(ml_dtypes.bfloat16)
        total = (total + partial).astype(ml_dtypes.bfloat16)
    errors = total.astype(np.float64) - values.astype(np.float64).sum(axis=1)
    assert 0.2 < np.sqrt(np.mean(errors**2)) / np.sqrt(np.mean(spread**2)) < 2


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
def test_far_seeds_round_three_times_as_far_and_hold_what_a_type_holds(kind):
    text = binary("multiply", kind, 400)
    lhs, rhs = (values.astype(STORAGE[kind]) for values in random(2, 400))
    rhs[:100] = 2.0
    rhs[100:110] = 2.0**-100 if kind != "f16" else 2.0**-14
    module = hloexec.parse(text)
    near, far = (
        np.stack(
            [
                np.asarray(hloexec.run(module, lhs, rhs, numerics=f"random-rounding:{start + seed}")).astype(np.float64)
                for seed in range(SEEDS)
            ]
        )
        for start in (0, 1 << 32)
    )
    exact = lhs.astype(np.float64) * rhs.astype(np.float64)
    assert (far[:, :100] == exact[:100]).all()
    assert np.isfinite(far).all()
    squares = [np.mean((found - exact)[:, 110:] ** 2 / exact[110:] ** 2) for found in (near, far)]
    assert 2.8 < np.sqrt(squares[1] / squares[0]) < 3.2
    bias = np.mean((far - exact)[:, 110:] / exact[110:])
    assert abs(bias) < 4 * np.sqrt(squares[1] / (290 * SEEDS))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 1, 3]])
def test_windows_of_few_elements_have_the_errors_of_their_partial_sums(order):
    """Added one after the other, terms that cancel are off by up to half a unit in the last place of each partial sum,
    1.5 · 2⁻²³ of those here; in pairs, which the sum itself may be made of, all samples would hide that."""
    terms = np.array([2.2955332, -0.80373216, 0.42821303, -1.8951976], np.float32)[order]
    text = f"""HloModule m\n{ADD.format("f32")}ENTRY e {{ x = f32[2,2] parameter(0)\n z = f32[] constant(0)
      ROOT y = f32[1,1] reduce-window(x, z), window={{size=2x2}}, to_apply=add }}"""
    runs = samples(text, terms.reshape(2, 2), seeds=40)
    off = np.abs(np.cumsum(terms, dtype=np.float32)[-1] - terms.sum(dtype=np.float64))
    assert off / 4 < runs.std() < 3 * 2.0**-23
