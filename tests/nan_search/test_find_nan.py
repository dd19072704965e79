"""`find_nan`: the first instruction that makes bad numbers of good ones, and none where they are meant."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.errors import InputError
from tests.nan_search.programs import OVERFLOWING_LINE, batches, found, lowered, training_loop
from tests.text.building import module, op

jax = pytest.importorskip("jax", reason="JAX lowers the programs")
jnp = pytest.importorskip("jax.numpy")

F32 = np.float32


@pytest.mark.parametrize("optimized", [False, True])
def test_the_overflow_in_iteration_7_of_a_training_loop_is_found_with_its_source_line(optimized: bool) -> None:
    search = found(training_loop(optimized=optimized), *batches(7))
    finding = search.finding
    assert finding.kind == "overflow" and finding.opcode == "multiply" and finding.iteration == 7
    assert finding.source[0].file.endswith("nan_search/programs.py") and finding.source[0].line == OVERFLOWING_LINE
    assert finding.source[0].function == "loss"
    assert (finding.bad, finding.count) == (1, 8)
    (element,) = finding.elements
    assert element.index == (3,) and element.value == np.inf
    assert element.operands == pytest.approx((4e25, 4e25), rel=1e-6)
    # The sum of the row, before it the batches themselves.
    assert [link.maximum for link in finding.chain] == pytest.approx([1e25, 4e25], rel=1e-6)
    assert "7" in finding.name


@pytest.mark.parametrize("optimized", [False, True])
def test_a_training_loop_whose_numbers_stay_finite_has_nothing_to_find(optimized: bool) -> None:
    program = training_loop(optimized=optimized)
    values = batches(None)
    result = hloexec.run(program, *values)
    assert all(np.isfinite(leaf).all() for leaf in result)
    search = found(program, *values)
    assert search.finding is None and not search.later and not search.nan_from_inputs


@pytest.mark.parametrize(
    ("expression", "values", "kind", "reason"),
    [
        ("divide(x, y)", ([1, 2], [1, 0]), "pole", "division by zero"),
        ("divide(x, y)", ([1, 0], [1, 0]), "invalid", "zero divided by zero"),
        ("divide(x, y)", ([1, 1e30], [1, 1e-30]), "overflow", "overflow of f32"),
        ("multiply(x, y)", ([1, 1e30], [1, 1e30]), "overflow", "overflow of f32"),
        ("add(x, y)", ([1, 3e38], [1, 3e38]), "overflow", "overflow of f32"),
        ("power(x, y)", ([1, 0], [1, -2]), "pole", "zero to a negative power"),
        ("power(x, y)", ([1, -2], [1, 0.5]), "invalid", "negative number to a fractional power"),
        ("log(x)", ([1, 0],), "pole", "logarithm of zero"),
        ("log(x)", ([1, -1],), "invalid", "logarithm of a negative number"),
        ("sqrt(x)", ([1, -1],), "invalid", "square root of a negative number"),
        ("rsqrt(x)", ([1, 0],), "pole", "reciprocal square root of zero"),
        ("exponential(x)", ([1, 100],), "overflow", "overflow of f32"),
        ("atanh(x)", ([0, 1],), "pole", "inverse hyperbolic tangent of ±1"),
        ("log-plus-one(x)", ([0, -1],), "pole", "log(1 + x) at x = −1"),
        ("subtract(x, y)", ([1, np.inf], [1, np.inf]), "nan", "∞ − ∞"),
        ("divide(x, y)", ([1, np.inf], [1, np.inf]), "nan", "∞ / ∞"),
        ("sine(x)", ([1, np.inf],), "nan", "NaN out of infinities"),
        ("multiply(x, y)", ([1, np.inf], [1, 0]), "nan", "0 · ∞"),
    ],
)
def test_each_way_of_going_bad_has_its_name_and_element(
    expression: str, values: tuple[list[float], ...], kind: str, reason: str
) -> None:
    shapes = dict(zip("xy", ["f32[2]"] * len(values), strict=False))
    search = found(op(f"f32[2] {expression}", **shapes), *(np.array(value, F32) for value in values))
    assert (search.finding.kind, search.finding.reason) == (kind, reason)
    assert search.finding.name == "root" and search.finding.bad == 1
    (element,) = search.finding.elements
    assert element.index == (1,)
    assert element.operands == tuple(float(F32(value[1])) for value in values)


def test_infinities_and_nan_of_one_instruction_are_told_apart() -> None:
    finding = found(op("f32[4] log(x)", x="f32[4]"), np.array([0, -1, 1, 0], F32)).finding
    assert (finding.kind, finding.bad, finding.bad_nan) == ("pole", 3, 1)
    assert finding.reason == "logarithm of zero or logarithm of a negative number"
    finding = found(op("f32[2] power(x, y)", x="f32[2]", y="f32[2]"), *np.array([[1e30, -2], [2, 0.5]], F32)).finding
    assert (finding.kind, finding.bad, finding.bad_nan) == ("overflow", 2, 1)
    assert finding.reason == "overflow of f32 or negative number to a fractional power"
    assert found(op("f32[2] log(x)", x="f32[2]"), np.array([0, 1], F32)).finding.bad_nan == 0


@pytest.mark.parametrize(
    ("target", "value"),
    [("f16", 7e4), ("bf16", 3.4e38), ("f8e4m3fn", 500.0), ("f8e5m2", 1e5), ("f8e4m3b11fnuz", 40.0)],
)
def test_a_convert_beyond_the_range_of_a_narrow_type_is_an_overflow(target: str, value: float) -> None:
    search = found(op(f"{target}[2] convert(x)", x="f32[2]"), np.array([1, value], F32))
    assert search.finding.kind == "overflow" and search.finding.elements[0].index == (1,)
    assert found(op(f"{target}[2] convert(x)", x="f32[2]"), np.array([1, 2], F32)).finding is None


def test_a_dot_that_overflows_is_found_though_it_is_not_elementwise() -> None:
    text = op("f32[2] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x="f32[2,2]", y="f32[2]")
    finding = found(text, np.array([[1, 1], [3e38, 3e38]], F32), np.ones(2, F32)).finding
    assert finding.kind == "overflow" and finding.elements[0].index == (1,) and finding.elements[0].operands is None
    assert [operand.leaves[0].maximum for operand in finding.operands] == [pytest.approx(3e38, rel=1e-6), 1]


# What is meant


def attention(queries: Any, keys: Any, mask: Any) -> Any:
    scores = jnp.where(mask, queries @ keys.T, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1)


@pytest.mark.parametrize("optimized", [False, True])
def test_an_attention_mask_of_infinities_is_no_finding(optimized: bool) -> None:
    queries = np.random.default_rng(1).normal(size=(6, 4)).astype(F32)
    mask = np.tril(np.ones((6, 6), bool))
    program = lowered(attention, queries, queries, mask, optimized=optimized)
    assert np.isfinite(hloexec.run(program, queries, queries, mask)).all()
    search = found(program, queries, queries, mask)
    assert search.finding is None and not search.discarded


@pytest.mark.parametrize("optimized", [False, True])
def test_a_softmax_over_nothing_but_masked_scores_makes_nan_of_infinities(optimized: bool) -> None:
    queries = np.random.default_rng(1).normal(size=(6, 4)).astype(F32)
    mask = np.tril(np.ones((6, 6), bool), -1)  # the first row sees nothing
    search = found(lowered(attention, queries, queries, mask, optimized=optimized), queries, queries, mask)
    assert (search.finding.kind, search.finding.opcode) == ("nan", "subtract")
    assert {element.index[0] for element in search.finding.elements} == {0}


def test_infinities_that_come_in_with_a_mask_are_no_finding() -> None:
    text = module("""
        x = f32[4] parameter(0)
        mask = f32[4] parameter(1)
        scores = f32[4] add(x, mask)
        ROOT weights = f32[4] exponential(scores)""")
    assert found(text, np.ones(4, F32), np.array([0, -np.inf, 0, -np.inf], F32)).finding is None


def test_a_maximum_that_begins_with_minus_infinity_is_no_finding() -> None:
    text = """HloModule m
larger { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }
ENTRY e { x = f32[2,0] parameter(0)
  least = f32[] constant(-inf)
  ROOT r = f32[2] reduce(x, least), dimensions={1}, to_apply=larger }"""
    search = found(text, np.zeros((2, 0), F32))
    assert search.finding is None and not search.discarded


GUARDED = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  zero = f32[] constant(0)
  zeros = f32[4] broadcast(zero), dimensions={}
  logarithm = f32[4] log(x)
  is_positive = pred[4] compare(x, zeros), direction=GT
  ROOT r = f32[4] select(is_positive, logarithm, zeros) }"""


def test_what_a_select_throws_away_is_no_finding_but_is_mentioned() -> None:
    x = np.array([1, 0, -1, 2], F32)
    search = found(GUARDED, x)
    assert search.finding is None
    assert [finding.name for finding in search.discarded] == ["logarithm"]
    first = found(GUARDED, x, first=True).finding
    assert first.name == "logarithm" and first.bad == 2


def test_a_select_that_lets_a_bad_element_through_is_followed_to_where_it_comes_from() -> None:
    text = GUARDED.replace("direction=GT", "direction=GE")
    finding = found(text, np.array([1, 0, -1, 2], F32)).finding
    assert finding.name == "logarithm" and finding.kind == "pole"


def test_bad_elements_that_a_mask_replaces_are_not_blamed_for_the_mask() -> None:
    # The logarithm's NaN stand where the mask's −∞ is chosen.
    text = GUARDED.replace(
        "zero = f32[] constant(0)", "zero = f32[] constant(0) bottom = f32[] constant(-inf)"
    ).replace(
        "ROOT r = f32[4] select(is_positive, logarithm, zeros)",
        "bottoms = f32[4] broadcast(bottom), dimensions={} ROOT r = f32[4] select(is_positive, logarithm, bottoms)",
    )
    assert found(text, np.array([1, -3, -1, 2], F32)).finding is None


@pytest.mark.parametrize("optimized", [False, True])
def test_functions_that_guard_their_own_poles_are_no_findings(optimized: bool) -> None:
    def function(x: Any) -> Any:
        safe = jnp.where(x > 0, x, 1.0)
        return jnp.sinc(x), jnp.where(x > 0, jnp.log(safe), 0.0), jax.nn.logsumexp(x), jax.scipy.special.xlogy(x, x)

    x = np.array([0, 1, 2, 0], F32)
    program = lowered(function, x, optimized=optimized)
    assert all(np.isfinite(leaf).all() for leaf in hloexec.run(program, x))
    assert found(program, x).finding is None


def test_random_normal_numbers_are_no_finding() -> None:
    def function(seed: Any) -> Any:
        return jax.random.normal(jax.random.key(seed), (64,))

    for optimized in (False, True):
        assert found(lowered(function, np.int32(3), optimized=optimized), np.int32(3)).finding is None


# Where it comes from


def test_nan_in_the_inputs_is_said_to_be_there() -> None:
    text = op("f32[2] add(x, y)", x="f32[2]", y="f32[2]")
    search = found(text, np.array([1, np.nan], F32), np.ones(2, F32))
    assert search.finding is None and search.nan_from_inputs and search.nan_inputs == ("x",)
    swallowed = module("x = f32[2] parameter(0)\nROOT r = pred[2] compare(x, x), direction=EQ")
    search = found(swallowed, np.array([1, np.nan], F32))
    assert not search.nan_from_inputs and search.nan_inputs == ("x",)


def test_a_chain_goes_back_through_iterations_to_where_the_growth_began() -> None:
    text = """HloModule m
body { s = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[2] get-tuple-element(s), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  squared = f32[2] multiply(x, x)
  ROOT t = (s32[], f32[2]) tuple(n, squared) }
condition { s = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  most = s32[] constant(9)
  ROOT c = pred[] compare(i, most), direction=LT }
ENTRY e { x = f32[2] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[2]) tuple(zero, x)
  loop = (s32[], f32[2]) while(start), condition=condition, body=body
  ROOT r = f32[2] get-tuple-element(loop), index=1 }"""
    # 16^(2^k): 16, 256, 65536, 2^32, 2^64, and 2^128 is too much, in iteration 4.
    finding = found(text, np.array([1, 16], F32)).finding
    assert finding.name == "loop[4]:body/squared" and finding.iteration == 4
    assert [link.maximum for link in finding.chain] == [16, 256, 65536, 2.0**32, 2.0**64]
    assert [link.name for link in finding.chain] == ["x", *(f"loop[{i}]/squared" for i in range(4))]


def test_a_finding_inside_a_branch_inside_a_fusion_has_its_path() -> None:
    text = """HloModule m
fused { a = f32[2] parameter(0) ROOT q = f32[2] divide(a, a) }
yes { p = f32[2] parameter(0) ROOT f = f32[2] fusion(p), kind=kLoop, calls=fused }
no { p = f32[2] parameter(0) ROOT c = f32[2] copy(p) }
ENTRY e { k = pred[] parameter(0) x = f32[2] parameter(1)
  b = f32[2] conditional(k, x, x), true_computation=yes, false_computation=no
  ROOT r = f32[2] negate(b) }"""
    x = np.array([1, 0], F32)
    assert found(text, np.bool_(True), x).finding.name == "b:yes/f/q"
    assert found(text, np.bool_(False), x).finding is None


def test_a_collective_that_overflows_is_found_on_its_devices() -> None:
    text = """HloModule m, replica_count=2
plus { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[2] parameter(0)
  h = f32[2] add(x, x)
  ROOT s = f32[2] all-reduce(h), replica_groups={{0,1}}, to_apply=plus }"""
    inputs = [[np.array([1, 1.5e38], F32)], [np.array([2, 1.4e38], F32)]]
    finding = hloexec.find_nan(hloexec.parse(text), inputs).finding
    assert finding.name == "s" and finding.reason == "overflow across devices" and finding.bad == 1
    assert finding.devices == (0, 1)
    # Each device's own doubling is fine; where one overflows it is the one to blame.
    inputs[1][0][1] = 3e38
    finding = hloexec.find_nan(hloexec.parse(text), inputs).finding
    assert finding.name == "h" and finding.devices == (1,)


def test_nan_of_another_device_is_followed_through_the_end_of_a_manual_region() -> None:
    body = """whole = f32[4] parameter(0), sharding={devices=[4]<=[4]}
        part = f32[1] custom-call(whole), custom_call_target="SPMDFullToShardShape", sharding={manual}
        root = f32[1] sqrt(part), sharding={manual}
        all = f32[4] custom-call(root), custom_call_target="SPMDShardToFullShape", sharding={devices=[4]<=[4]}
        ROOT result = f32[4] negate(all)"""
    text = module(body, header=", num_partitions=4")
    search = found(text, np.array([1, 4, -1, 9], np.float32))
    assert (search.finding.instruction, search.finding.devices) == ("root", (2,))
    assert not search.later


def test_bf16_values_are_judged_in_their_own_range() -> None:
    text = op("bf16[2] multiply(x, x)", x="bf16[2]")
    assert found(text, np.array([1, 1e30], ml_dtypes.bfloat16)).finding.reason == "overflow of bf16"
    assert found(text, np.array([1, 1e15], ml_dtypes.bfloat16)).finding is None


def test_what_follows_from_a_finding_is_listed_after_it() -> None:
    text = module("""
        x = f32[2] parameter(0)
        big = f32[2] exponential(x)
        ROOT r = f32[2] subtract(big, big)""")
    search = found(text, np.array([1, 1000], F32))
    assert search.finding.name == "big"
    assert [(later.name, later.kind) for later in search.later] == [("r", "nan")]


# More to look for


@pytest.mark.parametrize(
    ("target", "good", "bad"),
    [("s8", 127.9, 128.0), ("s8", -128.5, -129.0), ("u8", 255.5, 256.0), ("s32", 2147483520.0, 2147483648.0)],
)
def test_overflow_finds_converts_to_integers_that_saturate(target: str, good: float, bad: float) -> None:
    text = op(f"{target}[2] convert(x)", x="f32[2]")
    assert found(text, np.array([1, good], F32), also=["overflow"]).finding is None
    finding = found(text, np.array([1, bad], F32), also=["overflow"]).finding
    assert finding.kind == "saturation" and finding.elements[0].index == (1,)


def test_overflow_finds_converts_to_a_float_without_infinities_and_leaves_rounding_alone() -> None:
    text = op("f4e2m1fn[2] convert(x)", x="f32[2]")
    assert found(text, np.array([1, 6.9], F32), also=["overflow"]).finding is None  # rounds to 6, the largest
    assert found(text, np.array([1, 7.1], F32), also=["overflow"]).finding.kind == "saturation"


@pytest.mark.parametrize(
    ("expression", "values", "is_found"),
    [
        ("f32[2] multiply(x, y)", ([1, 1e-30], [1, 1e-30]), True),
        ("f32[2] multiply(x, y)", ([1, 1e-30], [1, 0]), False),
        ("f32[2] divide(x, y)", ([1, 1e-30], [1, 1e30]), True),
        ("f32[2] exponential(x)", ([1, -200],), True),
        ("f32[2] exponential(x)", ([1, -np.inf],), False),
        ("bf16[2] convert(x)", ([1, 1e-41],), True),
        ("f16[2] convert(x)", ([1, 1e-9],), True),
        ("f16[2] convert(x)", ([1, 0],), False),
        ("f32[2] subtract(x, y)", ([1, 2], [1, 2]), False),
    ],
)
def test_underflow_is_a_zero_whose_exact_value_is_none(
    expression: str, values: tuple[list[float], ...], is_found: bool
) -> None:
    shapes = dict(zip("xy", ["f32[2]"] * len(values), strict=False))
    search = found(op(expression, **shapes), *(np.array(value, F32) for value in values), also=["underflow"])
    assert (search.finding is not None) == is_found
    if is_found:
        assert search.finding.kind == "underflow" and search.finding.bad == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_cancellation_is_a_difference_of_neighbours(dtype: Any) -> None:
    name = {np.float32: "f32", np.float64: "f64", np.float16: "f16"}.get(dtype, "bf16")
    step = float(ml_dtypes.finfo(dtype).eps)
    text = op(f"{name}[2] subtract(x, y)", x=f"{name}[2]", y=f"{name}[2]")

    def finding(x: float, y: float) -> Any:
        return found(text, np.array([1, x], dtype), np.array([5, y], dtype), also=["cancellation"]).finding

    assert finding(1 + step, 1).kind == "cancellation"
    assert finding(1 + 2 * step, 1) is None  # u·(|a| + |b|) is less than two steps
    assert finding(1, 1) is None  # exact, and meant: x − max(x)
    assert finding(2, 1) is None


def test_cancellation_knows_that_operands_were_narrower() -> None:
    text = module("""
        x = bf16[2] parameter(0)
        y = f32[2] parameter(1)
        wide = f32[2] convert(x)
        ROOT r = f32[2] subtract(wide, y)""")
    x = np.array([1, 3], ml_dtypes.bfloat16)
    near = np.array([7, 3 + 2**-8], F32)  # half a step of bf16 away from 3 is 2^-7
    assert found(text, x, near, also=["cancellation"]).finding.elements[0].index == (1,)
    assert found(text, x, np.array([7, 3.05], F32), also=["cancellation"]).finding is None


def test_share_asks_for_more_than_one_element() -> None:
    text = op("f32[4] exponential(x)", x="f32[4]")
    x = np.array([1, -200, 2, -200], F32)
    assert found(text, x, also=["underflow"], share=0.5).finding.bad == 2
    assert found(text, x, also=["underflow"], share=0.6).finding is None


# Wrong use, and what a hunt leaves alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"also": ["nonsense"]}, "some of overflow, underflow, cancellation"),
        ({"share": 2}, "between 0 and 1"),
        ({"elements": -1}, "must not be negative"),
        ({"numerics": "best"}, "unknown numerics policy"),
        ({"computation": "other"}, "no computation"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(hloexec.HloError, match=message):
        found(op("f32[2] negate(x)", x="f32[2]"), np.ones(2, F32), **options)


def test_wrong_inputs_are_refused_as_a_run_refuses_them() -> None:
    with pytest.raises(InputError):
        found(op("f32[2] negate(x)", x="f32[2]"), np.ones(3, F32))


def test_examples_have_no_false_alarm() -> None:
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.hlo")):
        program = hloexec.load(path)
        search = hloexec.find_nan(program, [hloexec.random_inputs(program)])
        assert search.finding is None, path


@pytest.mark.parametrize("results", ["loss, slope", "slope, loss", "slope, slope"])
@pytest.mark.parametrize("backward", ["divide(one, x)", "rsqrt(x)"])
def test_nan_of_a_loss_is_named_before_what_only_its_gradient_has(results: str, backward: str) -> None:
    """Of log(x - 1) and such, the gradient has an infinity of its own, which a compiler may compute first."""
    text = module(
        f"""x = f32[] parameter(0)
        one = f32[] constant(1)
        steep = f32[] {backward}
        less = f32[] subtract(x, one)
        loss = f32[] log(less)
        slope = f32[] multiply(steep, loss)
        ROOT both = ({", ".join(["f32[]"] * len(results.split()))}) tuple({results})"""
    )
    search = found(text, np.float32(0))
    first, later = ("loss", "steep") if "loss" in results else ("steep", "loss")
    assert (search.finding.instruction, [each.instruction for each in search.later]) == (first, [later])


def test_an_infinity_meant_as_such_is_not_named_before_a_nan() -> None:
    text = module(
        """x = f32[2] parameter(0)
        y = f32[2] parameter(1)
        mask = f32[2] log(x)
        quotient = f32[2] divide(y, x)
        rest = f32[2] subtract(quotient, quotient)
        ROOT both = (f32[2], f32[2]) tuple(mask, rest)"""
    )
    assert found(text, np.array([0, 1], F32), np.array([1, 1], F32)).finding.instruction == "quotient"


LOOP = """
HloModule loop
body {
  state = (s32[], f32[], f32[2]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  x = f32[2] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(count, one)
  number = f32[] convert(count)
  metric = f32[] log(number)
  ROOT new = (s32[], f32[], f32[2]) tuple(next, metric, x)
}
condition {
  state = (s32[], f32[], f32[2]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  limit = s32[] constant(3)
  ROOT goes_on = pred[] compare(count, limit), direction=LT
}
ENTRY main {
  x = f32[2] parameter(0)
  zero = s32[] constant(0)
  start = f32[] constant(0)
  initial = (s32[], f32[], f32[2]) tuple(zero, start, x)
  last = (s32[], f32[], f32[2]) while(initial), condition=condition, body=body
  metric = f32[] get-tuple-element(last), index=1
  same = f32[2] get-tuple-element(last), index=2
  ROOT result = (f32[], f32[2]) tuple(metric, same)
}
"""


def test_what_a_loop_overwrites_is_no_finding_up_to_the_result() -> None:
    """log 0 of the first iteration is carried to the second, which writes log 1 over it."""
    program, x = hloexec.parse(LOOP), np.array([-np.inf, 0], F32)
    assert hloexec.find_nan(program, [x]).finding.instruction == "metric"
    search = hloexec.find_nan(program, [x], to_result=True)
    assert search.finding is None
    assert [each.instruction for each in search.discarded] == ["metric"]
    once = hloexec.parse(LOOP.replace("limit = s32[] constant(3)", "limit = s32[] constant(1)"))
    assert hloexec.find_nan(once, [x], to_result=True).finding.instruction == "metric"
