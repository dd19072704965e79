"""Policies of instructions that rounding hides, and what no policy can reach: against what NumPy computes in f64."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.tools.explaining import Explained, Untold
from tests.command_line import CommandLine

TEXT = """HloModule scores

ENTRY e {
  x = f32[30,40] parameter(0)
  a = f32[40,20] parameter(1)
  dot = f32[30,20] dot(x, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  size = f32[30,20] abs(dot)
  small = f32[] constant(-0.25)
  smalls = f32[30,20] broadcast(small), dimensions={}
  scaled = f32[30,20] multiply(size, smalls)
  exp = f32[30,20] exponential(scaled)
  ROOT sum = f32[30,20] add(exp, dot)
}
"""
"""Of the sum, the exponential is a small part: its last places are mostly rounded away."""

SUMS = """HloModule energies

add {
  p = f16[] parameter(0)
  q = f16[] parameter(1)
  ROOT s = f16[] add(p, q)
}

ENTRY e {
  x = f16[30,30] parameter(0)
  y = f32[30,16] parameter(1)
  a = f32[16,12] parameter(2)
  zero = f16[] constant(0)
  energies = f16[30] reduce(x, zero), dimensions={1}, to_apply=add
  wide = f32[30] convert(energies)
  wides = f32[30,12] broadcast(wide), dimensions={0}
  dot = f32[30,12] dot(y, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT scaled = f32[30,12] multiply(dot, wides)
}
"""


def _inputs() -> list[Any]:
    random = np.random.default_rng(5)
    return [random.normal(size=shape).astype(np.float32) for shape in ((30, 40), (40, 20))]


def _cut(array: Any) -> Any:
    """To 7 bits of the significand, to nearest, ties to even."""
    words = array.view(np.uint32)
    return ((words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) & ~np.uint32(0xFFFF)).view(
        np.float32
    )


def _product(x: Any, a: Any) -> Any:
    """Added in f32, from the last to the first: no BLAS adds so, and each rounds otherwise."""
    total = np.zeros((x.shape[0], a.shape[1]), np.float32)
    for n in reversed(range(x.shape[1])):
        total = total + x[:, n, None] * a[n]
    return total


def _expected(inputs: list[Any], *, is_in_bf16: bool) -> Any:
    dot = _product(*(map(_cut, inputs) if is_in_bf16 else inputs))
    return np.exp((np.abs(dot) * np.float32(-0.25)).astype(np.float64)).astype(np.float32) + dot


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("is_in_bf16", [False, True])
def test_a_function_that_rounding_hides_is_named_beside_what_shows(is_in_bf16: bool) -> None:
    module, inputs = hloexec.parse(TEXT), _inputs()
    found = hloexec.explain(module, inputs, _expected(inputs, is_in_bf16=is_in_bf16))
    assert found.best.name == ("bf16" if is_in_bf16 else "reference")
    assert Untold("e/exp", "fast-functions") in found.untold
    # A product whose operands are cut further shows: rounding hides none of that.
    assert not {Untold("e/dot", policy) for policy in ("tf32", "bf16")} & set(found.untold)


def test_a_policy_that_shows_is_not_said_to_be_hidden() -> None:
    """Large powers of small integers: rounding the exponents' products with log₂ e moves them by many last places."""
    text = "HloModule m\nENTRY e { x = f32[200] parameter(0)\n ROOT y = f32[200] exponential(x) }\n"
    values = np.linspace(20, 80, 200, dtype=np.float32)
    expected = np.exp(values.astype(np.float64)).astype(np.float32)
    found = hloexec.explain(hloexec.parse(text), [values], np.nextafter(expected, np.float32(0)))
    assert found.verdict is Explained.ROUNDING
    assert not found.untold


def test_the_command_names_what_rounding_hides(empty_folder: Path, cli: CommandLine) -> None:
    inputs = _inputs()
    Path("scores.hlo").write_text(TEXT)
    np.savez("inputs.npz", *inputs)
    np.save("other.npy", _expected(inputs, is_in_bf16=True))
    command = "explain scores.hlo --inputs inputs.npz --expected other.npy".split()
    said = " ".join(cli(*command).split())
    assert said.startswith("bf16 explains it: ")
    assert "the values cannot tell whether fast-functions holds for %exp" in said
    untold = json.loads(cli(*command, "--json"))["untold"]
    assert {"instruction": "e/exp", "policy": "fast-functions"} in untold


@pytest.mark.parametrize("policy", ["reference", "tf32"])
def test_what_no_policy_can_reach_takes_few_runs(policy: str) -> None:
    module, inputs = hloexec.parse(TEXT), _inputs()
    expected = hloexec.run(module, *inputs, numerics=policy) * np.float32(1.5)
    found = hloexec.explain(module, inputs, expected)
    assert found.verdict is Explained.NONE
    assert found.is_complete
    assert found.runs < 60


def test_a_few_elements_that_are_far_off_do_not_end_the_search_early() -> None:
    module, inputs = hloexec.parse(TEXT), _inputs()
    expected = np.array(_expected(inputs, is_in_bf16=True))
    expected[0, :8] *= 2
    found = hloexec.explain(module, inputs, expected, runs=100)
    assert found.verdict is Explained.NONE
    assert found.best.mismatches == 8


@pytest.mark.slow_cases("0", "2")
@pytest.mark.parametrize("seed", range(3))
def test_sums_of_a_product_are_no_effect_of_its_policy_where_others_are_narrow(seed: int) -> None:
    """The products are added from the last to the first, as ours are not. That is no reason to name `bf16x6` for them."""
    module, random = hloexec.parse(SUMS), np.random.default_rng(seed)
    x = np.square(random.normal(size=(30, 30))).astype(np.float16)
    y, a = (random.normal(size=shape).astype(np.float32) for shape in ((30, 16), (16, 12)))
    energies = np.zeros(30, np.float16)
    for n in range(30):
        energies = (energies + x[:, n]).astype(np.float16)
    found = hloexec.explain(module, [x, y, a], _product(y, a) * energies.astype(np.float32)[:, None])
    assert found.best.name in ("narrow-sums", "reference,e/energies=narrow-sums")
