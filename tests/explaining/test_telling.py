"""Which choices of a policy the values can tell: single numbers that two products went into, computed by NumPy."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.tools.explaining import Explained, Untold
from tests.command_line import CommandLine

TEXT = """HloModule energies

ENTRY e {
  x = f32[40] parameter(0)
  a = f32[40,40] parameter(1)
  y = f32[40] parameter(2)
  b = f32[40,40] parameter(3)
  d1 = f32[40] dot(x, a), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  d2 = f32[40] dot(y, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  q1 = f32[] dot(d1, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision={highest,highest}
  q2 = f32[] dot(d2, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision={highest,highest}
  ROOT sum = f32[] add(q1, q2)
}
"""
"""One number of two quadratic forms, whose second products are never in TF32."""


_EMULATIONS = {"bf16x3", "bf16x6", "tf32x3"}
"""Policies that come near f32: whether their effect on one number is larger than rounding's is a matter of last bits."""


def _untold(found: hloexec.Explanation) -> list[Untold]:
    """What the values are said not to tell, but for what the last bits of our own sums decide."""
    return [untold for untold in found.untold if untold.policy not in _EMULATIONS]


@pytest.fixture(scope="module")
def module() -> hloexec.Module:
    return hloexec.parse(TEXT)


def _inputs(size_of_second: float = 1.0) -> list[Any]:
    random = np.random.default_rng(3)
    x, y = (random.normal(size=40).astype(np.float32) for _ in range(2))
    a, b = (random.normal(size=(40, 40)).astype(np.float32) for _ in range(2))
    return [x, a, (y * size_of_second).astype(np.float32), b]


def _in_tf32(array: Any) -> Any:
    """To 10 bits of the significand, to nearest, ties to even."""
    words = array.view(np.uint32)
    words = words + np.uint32(0xFFF) + ((words >> np.uint32(13)) & np.uint32(1))
    return (words & ~np.uint32(0x1FFF)).view(np.float32)


def _expected(inputs: list[Any], *in_tf32: int) -> Any:
    """The number, with these of the products in TF32, and everything else as exactly as f64 and f32 results allow."""
    x, a, y, b = inputs
    total = np.float32(0)
    for number, (vector, matrix) in enumerate([(x, a), (y, b)], 1):
        operands = [_in_tf32(each) if number in in_tf32 else each for each in (vector, matrix)]
        product = (operands[0].astype(np.float64) @ operands[1].astype(np.float64)).astype(np.float32)
        total += np.float32(product.astype(np.float64) @ vector.astype(np.float64))
    return total


@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("number", [1, 2])
def test_one_of_two_products_of_a_single_number_is_named_alone(module: hloexec.Module, number: int) -> None:
    inputs = _inputs()
    found = hloexec.explain(module, inputs, _expected(inputs, number))
    assert found.verdict is Explained.POLICY
    assert [found.best.name, *(trial.name for trial in found.alike)] == [f"reference,e/d{number}=tf32"]
    assert not _untold(found)


def test_both_products_are_named_where_both_show(module: hloexec.Module) -> None:
    inputs = _inputs()
    found = hloexec.explain(module, inputs, _expected(inputs, 1, 2))
    assert found.best.name == "tf32"
    assert not _untold(found)


@pytest.mark.parametrize("in_tf32", [(1,), (1, 2)])
def test_a_product_that_does_not_show_cannot_be_told(module: hloexec.Module, in_tf32: tuple[int, ...]) -> None:
    """The second form is a thousandth of a thousandth of the first one: TF32 moves it by less than rounding does."""
    inputs = _inputs(1e-3)
    found = hloexec.explain(module, inputs, _expected(inputs, *in_tf32))
    assert found.best.name == "reference,e/d1=tf32"
    assert [trial.name for trial in found.alike] == ["tf32"]
    assert _untold(found) == [Untold("e/d2", "tf32")]


def test_of_two_equal_products_neither_can_be_told(module: hloexec.Module) -> None:
    """One of them is in TF32, but which of them makes no difference."""
    x, a, _, _ = _inputs()
    inputs = [x, a, x, a]
    found = hloexec.explain(module, inputs, _expected(inputs, 1))
    assert found.best.name in ("reference,e/d1=tf32", "reference,e/d2=tf32")
    assert _untold(found) == [Untold("e/d1", "tf32"), Untold("e/d2", "tf32")]


def test_products_of_a_stated_precision_are_no_choice(module: hloexec.Module) -> None:
    from hloexec.ops.policies.policy import POLICIES
    from hloexec.tools.explaining.trying import single_units

    assert single_units(module, POLICIES["tf32"]) == ["e/d1", "e/d2"]


def test_the_command_names_what_cannot_be_told(module: hloexec.Module, empty_folder: Path, cli: CommandLine) -> None:
    inputs = _inputs(1e-3)
    Path("energies.hlo").write_text(TEXT)
    np.savez("inputs.npz", *inputs)
    np.save("other.npy", _expected(inputs, 1))
    command = "explain energies.hlo --inputs inputs.npz --expected other.npy".split()
    said = " ".join(cli(*command).split())
    assert said.startswith("tf32 for %d1 explains it: ")
    assert "the values cannot tell whether tf32 holds for %d2" in said
    untold = json.loads(cli(*command, "--json"))["untold"]
    assert [each for each in untold if each["policy"] not in _EMULATIONS] == [{"instruction": "e/d2", "policy": "tf32"}]


def test_a_search_that_runs_out_of_runs_says_so(module: hloexec.Module) -> None:
    inputs = _inputs()
    found = hloexec.explain(module, inputs, _expected(inputs, 1) * np.float32(1.01), runs=10)
    assert not found.is_complete
    assert hloexec.explain(module, inputs, _expected(inputs, 1)).is_complete


NEWTON_SCHULZ = """HloModule orthogonal

ENTRY e {
  w0 = f32[4,4] parameter(0)
  three_halves = f32[] constant(1.5)
  t = f32[4,4] broadcast(three_halves), dimensions={}
  half = f32[] constant(0.5)
  h = f32[4,4] broadcast(half), dimensions={}
STEPS
  x = f32[4,16] parameter(1)
  ROOT y = f32[4,16] dot(w3, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
_STEP = """  g{0} = f32[4,4] dot(w{0}, w{0}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  p{0} = f32[4,4] dot(g{0}, w{0}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  a{0} = f32[4,4] multiply(t, w{0})
  b{0} = f32[4,4] multiply(h, p{0})
  w{1} = f32[4,4] subtract(a{0}, b{0})"""


def test_fewer_instructions_are_not_named_where_more_remains_then() -> None:
    """Seven products in three passes of bf16: some hardly show, but with all of them far less remains."""
    module = hloexec.parse(NEWTON_SCHULZ.replace("STEPS", "\n".join(_STEP.format(k, k + 1) for k in range(3))))
    random = np.random.default_rng(3)
    start = random.normal(size=(4, 4)).astype(np.float32)
    w = start = (start / np.sqrt((start * start).sum())).astype(np.float32)
    x = random.laplace(size=(4, 16)).astype(np.float32)
    for _ in range(3):
        w = np.float32(1.5) * w - np.float32(0.5) * _in_three_passes(_in_three_passes(w, w.T), w)
    found = hloexec.explain(module, [start, x], _in_three_passes(w, x))
    assert found.best.name == "bf16x3"


def _in_three_passes(lhs: Any, rhs: Any) -> Any:
    """The product of matrices, each as a sum of two bf16 numbers, without that of the smaller ones."""
    (first, second), (third, fourth) = _two_bf16(lhs), _two_bf16(rhs)
    return (first @ third + first @ fourth + second @ third).astype(np.float32)


def _two_bf16(array: Any) -> tuple[Any, Any]:
    larger = array.astype(ml_dtypes.bfloat16).astype(np.float32)
    return larger.astype(np.float64), (array - larger).astype(ml_dtypes.bfloat16).astype(np.float64)


_INVOKED = """HloModule invoked
gemm {
  lhs = f32[16,32] parameter(0)
  rhs = f32[32,16] parameter(1)
  ROOT inner = f32[16,16] dot(lhs, rhs), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY e {
  a = f32[16,32] parameter(0)
  b = f32[32,16] parameter(1)
  g = f32[16,16] custom-call(a, b), custom_call_target="__triton_gemm", called_computations={gemm}
  p = f32[16,16] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = (f32[16,16], f32[16,16]) tuple(g, p)
}
"""


def test_a_policy_is_told_of_what_a_library_call_runs() -> None:
    module = hloexec.parse(_INVOKED)
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(sizes).astype(np.float32) for sizes in ((16, 32), (32, 16)))
    rounded = _two_bf16(a)[0] @ _two_bf16(b)[0]
    exact = a.astype(np.float64) @ b.astype(np.float64)
    found = hloexec.explain(module, [a, b], tuple(each.astype(np.float32) for each in (rounded, exact)))
    assert found.best.name == "reference,gemm/inner=bf16"
