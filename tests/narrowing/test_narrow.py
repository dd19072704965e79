"""What may be narrowed and what may not, in modules of which that is known."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.core.ir import Module
from hloexec.tools.narrowing import Narrowing, Standing

LAYERS = """HloModule layers

ENTRY main {
  x = f32[8,16] parameter(0)
  first = f32[16,16] parameter(1)
  second = f32[16,4] parameter(2)
  hidden = f32[8,16] dot(x, first), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  squashed = f32[8,16] tanh(hidden)
  ROOT out = f32[8,4] dot(squashed, second), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""

CANCELLING = """HloModule cancelling

ENTRY main {
  x = f32[64] parameter(0)
  one = f32[] constant(1)
  ones = f32[64] broadcast(one), dimensions={}
  cosine = f32[64] cosine(x)
  small = f32[64] subtract(ones, cosine)
  ROOT root = f32[64] sqrt(small)
}
"""

LARGE = """HloModule large

ENTRY main {
  x = f32[64] parameter(0)
  exponential = f32[64] exponential(x)
  halves = f32[64] multiply(x, x)
  ROOT both = (f32[64], f32[64]) tuple(exponential, halves)
}
"""

STEP = """HloModule step

ENTRY main {
  w = f32[16] parameter(0)
  count = s32[] parameter(1)
  x = f32[8,16] parameter(2)
  y = f32[8] parameter(3)
  zero = f32[] constant(0)
  one = s32[] constant(1)
  rate = f32[] constant(0.01)
  rates = f32[16] broadcast(rate), dimensions={}
  guess = f32[8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  residual = f32[8] subtract(guess, y)
  squares = f32[8] multiply(residual, residual)
  loss = f32[] reduce(squares, zero), dimensions={0}, to_apply=add
  gradient = f32[16] dot(residual, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  change = f32[16] multiply(gradient, rates)
  new = f32[16] subtract(w, change)
  next = s32[] add(count, one)
  ROOT result = (f32[], f32[16], s32[]) tuple(loss, new, next)
}

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}
"""


def _found(text: str, inputs: Any = None, **options: Any) -> Narrowing:
    return hloexec.narrow(hloexec.parse(text), inputs, **{"tolerance": 0.01, "held_back": 5, **options})


def _standings(found: Narrowing) -> dict[str, Standing]:
    return {each.instruction: each.standing for each in found.instructions}


def _near_zero(seed: int) -> list[Any]:
    return [np.random.default_rng(seed).uniform(0.01, 0.05, 64).astype(np.float32)]


def test_everything_is_narrowed_within_a_wide_tolerance_in_one_trial() -> None:
    found = _found(LAYERS, tolerance=1.0)
    assert set(_standings(found).values()) == {Standing.NARROWED}
    assert found.trials == 1
    assert found.narrowed_share == 1


SUMS = """HloModule sums

ENTRY main {{
  x = f32[16,64] parameter(0)
  y = f32[16,160] parameter(1)
  v = f32[64,8] parameter(2)
  w = f32[160,8] parameter(3)
  scale = f32[] constant({scale})
  scales = f32[16,8] broadcast(scale), dimensions={{}}
  small = f32[16,8] dot(x, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  scaled = f32[16,8] multiply(small, scales)
  large = f32[16,8] dot(y, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT sum = f32[16,8] add(scaled, large)
}}
"""


@pytest.mark.parametrize("scale", [0.2, 0.4, 0.7])
def test_the_largest_instruction_that_is_within_the_tolerance_alone_is_never_given_up_for_smaller_ones(
    scale: float,
) -> None:
    """`small` has less error per FLOP, and takes too much of the tolerance for `large` to fit beside it."""
    text, options = SUMS.format(scale=scale), {"held_back": 0, "seeds": 1, "kinds": ["contraction"]}
    alone = {each.instruction: each for each in _found(text, tolerance=1e-7, **options).instructions}
    largest = alone["large"].alone
    assert largest is not None
    found = _found(text, tolerance=largest.severity * 1e-7 * 1.0001, **options)
    assert _standings(found)["large"] is Standing.NARROWED


def test_given_inputs_of_which_none_is_held_back_may_use_all_of_the_tolerance() -> None:
    text, inputs = SUMS.format(scale=0.0), [hloexec.random_inputs(hloexec.parse(SUMS.format(scale=0.0)))]
    alone = {each.instruction: each for each in _found(text, inputs, tolerance=1e-7).instructions}
    assert alone["large"].alone is not None
    found = _found(text, inputs, tolerance=alone["large"].alone.severity * 1e-7 * 1.5, kinds=["contraction"])
    assert (found.margin, found.held_back_count) == (1.0, 0)
    assert _standings(found)["large"] is Standing.NARROWED
    assert _found(text).margin == 0.25


def test_nothing_is_narrowed_where_the_tolerance_is_that_of_f32() -> None:
    found = _found(LAYERS, tolerance=1e-7)
    assert found.narrowed_share == 0
    assert found.module.entry == hloexec.parse(LAYERS).entry


def test_module_found_is_within_the_tolerance_on_inputs_that_nothing_has_seen() -> None:
    module, tolerance = hloexec.parse(LAYERS), 0.05
    found = _found(LAYERS, tolerance=tolerance)
    assert found.narrowed_share > 0
    for seed in range(500, 540):
        inputs = hloexec.random_inputs(module, seed)
        before, after = (np.asarray(hloexec.run(each, *inputs), np.float64) for each in (module, found.module))
        typical = np.median(np.abs(before))
        assert np.all(np.abs(after - before) <= tolerance * np.maximum(np.abs(before), typical))


def test_cosine_near_one_may_not_even_alone_be_narrowed() -> None:
    standings = _standings(_found(CANCELLING, _near_zero, tolerance=0.05))
    assert standings["cosine"] is Standing.ALONE  # cos 0.05 rounds to 1 in bf16, and the root to 0
    assert standings["root"] is Standing.NARROWED


def test_every_instruction_is_tried_while_trials_are_left() -> None:
    for tolerance in (0.003, 0.01, 0.03, 0.1):
        assert Standing.UNTRIED not in _standings(_found(STEP, steps=3, tolerance=tolerance)).values()


def test_what_may_not_says_why_and_where() -> None:
    found = _found(CANCELLING, _near_zero, tolerance=0.05)
    cosine = next(each for each in found.instructions if each.instruction == "cosine")
    assert cosine.alone is not None and cosine.alone.error >= 1 - 2**-7
    assert "changes output value" in cosine.reason
    assert cosine.narrow_type is None


def test_numbers_beyond_the_range_of_f16_are_never_narrowed_to_it() -> None:
    found = _found(LARGE, lambda seed: [np.linspace(0, 12 + seed, 64, dtype=np.float32)], tolerance=1e9, types=["f16"])
    standings = {each.instruction: (each.standing, each.reason) for each in found.instructions}
    assert standings["exponential"][0] is Standing.RANGE
    assert "f16 up to 65504" in standings["exponential"][1]
    assert standings["halves"][0] is Standing.NARROWED


def test_overflow_that_the_original_does_not_have_is_found_on_inputs_held_back() -> None:
    def inputs(seed: int) -> list[Any]:
        return [np.full(64, 11.0 if seed < 5 else 11.2, np.float32)]  # e^11.2 = 73130

    found = _found(LARGE, inputs, tolerance=1e9, types=["f16"], only_outputs=["1"])
    assert _standings(found)["exponential"] is Standing.RANGE
    assert _standings(found)["halves"] is Standing.NARROWED
    assert np.isfinite(np.asarray(hloexec.run(found.module, *inputs(7))[0], np.float64)).all()  # type: ignore[index]


def test_infinities_stay_wide_where_the_narrow_type_has_none() -> None:
    text = LARGE.replace("multiply(x, x)", "maximum(x, lows)").replace(
        "  exponential =",
        "  low = f32[] constant(-inf)\n  lows = f32[64] broadcast(low), dimensions={}\n  exponential =",
    )
    found = _found(text, lambda seed: [np.linspace(0, 1, 64, dtype=np.float32)], tolerance=1.0, types=["f8e4m3fn"])
    verdict = next(each for each in found.instructions if each.instruction == "halves")
    assert verdict.standing is Standing.RANGE and "has infinities" in verdict.reason


def test_inputs_held_back_take_back_what_failed_on_them() -> None:
    def inputs(seed: int) -> list[Any]:
        # The search sees only numbers that bf16 has exactly.
        x = np.ones(64, np.float32)
        return [x if seed < 5 else x + np.float32(2**-9)]

    text = """HloModule m
ENTRY e {
  x = f32[64] parameter(0)
  one = f32[] constant(1)
  ones = f32[64] broadcast(one), dimensions={}
  ROOT y = f32[64] subtract(x, ones)
}"""
    found = _found(text, inputs, tolerance=0.01)
    assert found.rejections >= 1
    assert found.narrowed_share == 0


def test_errors_that_vary_much_over_inputs_are_no_permission() -> None:
    def inputs(seed: int) -> list[Any]:
        # Rounded to bf16, these numbers are 1: the error is at most a quarter of the tolerance, and a hundredth of that
        # on others.
        error = 0.25 * 0.0039 * 10 ** -np.random.default_rng(seed).uniform(0, 2)
        return [np.full(64, 1 + error, np.float32)]

    text = """HloModule m
ENTRY e {
  x = f32[64] parameter(0)
  one = f32[] constant(1)
  ones = f32[64] broadcast(one), dimensions={}
  ROOT y = f32[64] multiply(x, ones)
}"""
    assert _found(text, inputs, tolerance=0.0039, held_back=5).narrowed_share == 1
    found = _found(text, inputs, tolerance=0.0039, held_back=20)
    assert found.rejections >= 1
    assert found.narrowed_share == 0


def test_narrower_types_come_after_wider_ones() -> None:
    found = _found(LAYERS, tolerance=1.0, types=["f8e4m3fn", "bf16"])
    types = {each.narrow_type for each in found.instructions}
    assert types <= {"bf16", "f8e4m3fn", None} and "f8e4m3fn" in types


def test_only_contractions_are_narrowed_where_asked() -> None:
    found = _found(LAYERS, tolerance=1.0, kinds=["contraction"])
    assert _standings(found) == {"hidden": Standing.NARROWED, "out": Standing.NARROWED}


def test_f64_is_narrowed_to_f32() -> None:
    found = _found(LAYERS.replace("f32", "f64"), tolerance=1e-4, types=["f32"])
    assert found.narrowed_share == 1
    assert found.flops_by_type == {"f32": found.flops}


def test_shares_count_flops_by_hand() -> None:
    found = _found(LAYERS, tolerance=1.0)
    assert found.contraction_flops == 2 * 8 * 16 * 16 + 2 * 8 * 16 * 4
    assert found.flops == found.contraction_flops + 8 * 16
    contraction_bytes = 4 * ((8 * 16 + 16 * 16 + 8 * 16) + (8 * 16 + 16 * 4 + 8 * 4))
    assert found.byte_count == contraction_bytes + 4 * 2 * 8 * 16
    # The results of contractions stay wide.
    assert found.bytes_by_type["bf16"] == found.byte_count - 4 * (8 * 16 + 8 * 4)


def test_same_arguments_give_the_same_module() -> None:
    first, second = (_found(LAYERS, tolerance=0.03) for _ in range(2))
    assert first.module == second.module
    assert [each.reason for each in first.instructions] == [each.reason for each in second.instructions]


def test_training_steps_carry_what_has_equal_shapes_in_order() -> None:
    found = _found(STEP, steps=4, tolerance=0.1)
    assert found.carried is not None
    assert found.carried.pairs == (("1", "0"), ("2", "1"))
    assert [each.output for each in found.outputs] == ["0"]


def test_aliases_of_the_module_say_what_is_carried() -> None:
    text = STEP.replace("HloModule step", "HloModule step, input_output_alias={ {1}: (0, {}, may-alias) }")
    found = _found(text, steps=3, tolerance=0.1)
    assert found.carried is not None and found.carried.pairs == (("1", "0"),)
    assert [each.output for each in found.outputs] == ["0", "2"]


def test_losses_are_compared_at_every_step() -> None:
    module = hloexec.parse(STEP)
    inputs = hloexec.random_inputs(module, 0)
    found = _found(STEP, [inputs] * 3, steps=6, tolerance=10.0, margin=1.0)
    states = {"before": (module, list(inputs)), "after": (found.module, list(inputs))}
    worst = 0.0
    for _ in range(6):
        losses = {}
        for name, (each, values) in states.items():
            loss, w, count = hloexec.run(each, *values)  # type: ignore[misc]
            values[:2] = w, count
            losses[name] = float(loss)  # type: ignore[arg-type]
        worst = max(worst, abs(losses["after"] - losses["before"]) / abs(losses["before"]))
    assert worst > 0
    assert found.outputs[0].worst.error == pytest.approx(worst, rel=1e-12)


def test_outputs_may_have_tolerances_of_their_own() -> None:
    found = _found(LARGE, _near_zero, tolerance=1.0, output_tolerances={"1": 1e-6})
    assert _standings(found) == {"exponential": Standing.NARROWED, "halves": Standing.ALONE}
    assert [each.tolerance for each in found.outputs] == [1.0, 1e-6]


def test_outputs_that_are_not_compared_may_change() -> None:
    found = _found(LARGE, _near_zero, tolerance=1e-6, only_outputs=[0])
    assert _standings(found) == {"exponential": Standing.ALONE, "halves": Standing.NARROWED}


def test_loop_that_rounding_keeps_from_ending_is_no_permission() -> None:
    text = """HloModule m
body {
  state = (f32[], f32[]) parameter(0)
  x = f32[] get-tuple-element(state), index=0
  n = f32[] get-tuple-element(state), index=1
  half = f32[] constant(0.5)
  one = f32[] constant(1)
  y = f32[] multiply(x, half)
  m = f32[] add(n, one)
  ROOT new = (f32[], f32[]) tuple(y, m)
}
condition {
  state = (f32[], f32[]) parameter(0)
  n = f32[] get-tuple-element(state), index=1
  many = f32[] constant(300)
  ROOT more = pred[] compare(n, many), direction=LT
}
ENTRY e {
  x = f32[] parameter(0)
  zero = f32[] constant(0)
  start = (f32[], f32[]) tuple(x, zero)
  end = (f32[], f32[]) while(start), condition=condition, body=body
  ROOT n = f32[] get-tuple-element(end), index=1
}"""
    # In bf16, n + 1 = n from 256 on.
    found = _found(text, tolerance=0.5)
    counter = next(each for each in found.instructions if each.instruction == "m")
    assert counter.standing is Standing.ALONE and "iterations" in counter.reason
    assert _standings(found)["y"] is Standing.NARROWED


def test_modules_for_several_devices_are_searched() -> None:
    text = (
        LAYERS.replace("HloModule layers", "HloModule layers, replica_count=2")
        .replace("  ROOT out =", "  part =")
        .replace(
            "rhs_contracting_dims={0}\n}",
            "rhs_contracting_dims={0}\n  ROOT all = f32[8,4] all-reduce(part), replica_groups={{0,1}}, to_apply=add\n}",
        )
        + "\nadd { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"
    )
    found = _found(text, tolerance=1.0)
    assert set(_standings(found).values()) == {Standing.NARROWED}


def test_constants_are_rounded_once() -> None:
    text = "HloModule m\nENTRY e { x = f32[4] parameter(0) c = f32[4] constant({0.1, 0.2, 0.3, 0.4}) ROOT y = f32[4] multiply(x, c) }"
    x = np.ones(4, np.float32)
    found = _found(text, lambda seed: [x], tolerance=0.1)
    expected = np.array([0.1, 0.2, 0.3, 0.4], np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(hloexec.run(found.module, x), expected)


MODULE = hloexec.parse(LAYERS)
INTEGERS = hloexec.parse("HloModule m\nENTRY e { x = s32[4] parameter(0) ROOT y = s32[4] add(x, x) }")
LONELY = hloexec.parse(
    "HloModule m\nENTRY e { x = f32[4] parameter(0) y = f32[4] add(x, x) ROOT z = f32[1] slice(y), slice={[0:1]} }"
)
TRAINING = hloexec.parse(STEP)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (MODULE, {"tolerance": 0}, "tolerance must be a finite number above 0"),
        (MODULE, {"tolerance": math.nan}, "tolerance must not be negative or NaN"),
        (MODULE, {"tolerance": -0.1}, "tolerance must not be negative"),
        (MODULE, {"tolerance": math.inf}, "tolerance must be a finite number"),
        (MODULE, {"tolerance": "small"}, "tolerance must be a number"),
        (MODULE, {"types": ["bf17"]}, "each of types must be one of"),
        (MODULE, {"types": []}, "types must name at least one"),
        (MODULE, {"types": "bf16"}, "types must be a list"),
        (MODULE, {"types": ["f32"]}, "no instruction that could be narrowed to f32: it computes in f32"),
        (INTEGERS, {}, "no contraction or elementwise instruction on floats"),
        (MODULE, {"kinds": ["reduction"]}, "each of kinds must be one of"),
        (MODULE, {"kinds": []}, "kinds must name some of"),
        (MODULE, {"output_tolerances": {"3": 0.1}}, "output_tolerances names '3', but the outputs of layers are value"),
        (MODULE, {"output_tolerances": {"value": 0}}, "the tolerance of output value must be a finite number above 0"),
        (MODULE, {"output_tolerances": [0.1]}, "output_tolerances must be a mapping"),
        (MODULE, {"only_outputs": []}, "only_outputs must name at least one"),
        (MODULE, {"only_outputs": [7]}, "only_outputs names '7'"),
        (MODULE, {"carry": {"value": 0}}, "carry says what one step hands on to the next; give steps"),
        (LONELY, {"steps": 2}, "no output of e has the shape of a parameter"),
        (TRAINING, {"steps": 2, "carry": {"9": 0}}, "carry names output '9'"),
        (TRAINING, {"steps": 2, "carry": {"1": "v"}}, "carry names parameter 'v'"),
        (TRAINING, {"steps": 2, "carry": {"0": 0}}, "hands output 0 on as parameter 0, but the one is"),
        (TRAINING, {"steps": 2, "carry": {}}, "carry must name at least one output"),
        (
            TRAINING,
            {"steps": 2, "output_tolerances": {"1": 0.1}},
            "output_tolerances has one for 1, which is not compared",
        ),
        (MODULE, {"steps": 0}, "steps must be at least 1"),
        (MODULE, {"seeds": 0}, "seeds must be at least 1"),
        (MODULE, {"margin": 0}, "margin must be above 0"),
        (MODULE, {"margin": 2}, "margin must lie between 0 and 1"),
        (MODULE, {"max_trials": 0}, "max_trials must be at least 1"),
        (MODULE, {"held_back": -1}, "held_back must not be negative"),
        (MODULE, {"inputs": []}, "inputs must have at least one list"),
        (MODULE, {"inputs": [[np.ones(3, np.float32)]]}, "takes 3 inputs"),
        (MODULE, {"computation": "main"}, "takes no computation"),
        (MODULE, {"portable": "yes"}, "portable must be True or False"),
        ("HloModule m", {}, "module must be a Module"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(module: Module, options: dict[str, Any], message: str) -> None:
    with pytest.raises(hloexec.InputError, match=message.replace("(", r"\(")):
        hloexec.narrow(module, **{"tolerance": 0.1, **options})


COUNTING = """HloModule counting

body {
  state = (s32[], f32[]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(count, one)
  x = f32[] get-tuple-element(state), index=1
  ratio = f32[] constant(0.9375)
  smaller = f32[] multiply(x, ratio)
  ROOT end = (s32[], f32[]) tuple(next, smaller)
}

condition {
  state = (s32[], f32[]) parameter(0)
  x = f32[] get-tuple-element(state), index=1
  bound = f32[] constant(BOUND)
  shifted = f32[] add(x, bound)
  target = f32[] constant(TARGET)
  ROOT goes_on = pred[] compare(shifted, target), direction=GT
}

ENTRY main {
  x = f32[] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[]) tuple(zero, x)
  end = (s32[], f32[]) while(start), condition=condition, body=body
  ROOT count = s32[] get-tuple-element(end), index=0
}
"""


def test_a_count_that_changes_is_named_with_what_it_becomes() -> None:
    # 100 + 0.3 is 100.5 or 100 in bf16, so that the loop ends at once or later.
    text = COUNTING.replace("BOUND", "100").replace("TARGET", "100.2")
    found = _found(text, [[np.float32(1)]], tolerance=0.01, held_back=0)
    (verdict,) = (each for each in found.instructions if each.instruction == "shifted")
    assert verdict.standing is Standing.ALONE
    alone = verdict.alone
    assert alone is not None and math.isinf(alone.error)
    assert verdict.reason == (
        f"alone, it changes output value from {alone.original} to {alone.changed}, which has to stay as it is; "
        "a comparison, argmax or conversion to integers behind it decides otherwise"
    )


def test_a_product_in_front_of_an_argmax_is_not_said_to_be_wrong_itself() -> None:
    text = """HloModule m
ENTRY main {
  x = f32[2,2] parameter(0)
  y = f32[2] parameter(1)
  dot = f32[2] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  first = f32[1] slice(dot), slice={[0:1]}
  second = f32[1] slice(dot), slice={[1:2]}
  is_less = pred[1] compare(first, second), direction=LT
  ROOT results = (pred[1], f32[2]) tuple(is_less, dot)
}
"""
    # 1 + 2^-12 is 1 in bf16.
    inputs = [np.array([[1, 0], [1 + 2.0**-12, 0]], np.float32), np.ones(2, np.float32)]
    found = _found(text, [inputs], tolerance=0.01, held_back=0, kinds=["contraction"])
    (verdict,) = found.instructions
    assert verdict.standing is Standing.ALONE and "output 0 from 1 to 0 at [0]" in verdict.reason
    assert verdict.reason.endswith("a comparison, argmax or conversion to integers behind it decides otherwise")
    narrowed = _found(text, [inputs], tolerance=0.01, held_back=0, kinds=["contraction"], only_outputs=["1"])
    assert narrowed.instructions[0].standing is Standing.NARROWED


def test_a_run_that_fails_is_said_in_one_line() -> None:
    # 0.1 is 0.1001 in bf16, so that the loop does not end.
    text = COUNTING.replace("BOUND", "0.1").replace("TARGET", "0.10005").replace("0.9375", "0.5")
    found = _found(text, [[np.float32(1)]], tolerance=0.01, held_back=0)
    (verdict,) = (each for each in found.instructions if each.instruction == "shifted")
    assert verdict.standing is Standing.ALONE
    assert verdict.reason.startswith("alone, it makes the run fail: ") and "\n" not in verdict.reason


def test_other_extents_are_beyond_any_tolerance() -> None:
    """257.5 is 258 in bf16: the array is longer then."""
    module = hloexec.parse(
        "HloModule m\nENTRY main { x = f32[] parameter(0)\n t = f32[] multiply(x, x)\n n = s32[] convert(t)\n"
        " v = f32[300] parameter(1)\n ROOT r = f32[<=300] set-dimension-size(v, n), dimensions={0} }\n"
    )
    inputs = [np.float32(math.sqrt(257.5)), np.ones(300, np.float32)]
    found = hloexec.narrow(module, [inputs], tolerance=0.5, held_back=0)
    (verdict,) = found.instructions
    assert verdict.narrow_type is None
    assert verdict.reason == "alone, it changes the extents of output value"
