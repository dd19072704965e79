"""Results of integers and preds alone: an element is right or wrong, and a policy explains what it makes right."""

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.tools.explaining.findings import Explained

LARGER = """HloModule larger

ENTRY main {
  x = f32[64,48] parameter(0)
  w = f32[48,32] parameter(1)
  limit = f32[64,32] parameter(2)
  y = f32[64,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  above = pred[64,32] compare(y, limit), direction=GT
  index = s32[64,32] convert(above)
  ROOT both = (pred[64,32], s32[64,32]) tuple(above, index)
}
"""


def _inputs() -> list[np.ndarray]:
    """Limits so near to the products that rounding operands to bf16 decides some comparisons."""
    draw = np.random.default_rng(5)
    x, w = (draw.standard_normal(shape).astype(np.float32) for shape in ((64, 48), (48, 32)))
    product = x.astype(np.float64) @ w
    return [x, w, (product + draw.normal(0, 0.02, product.shape)).astype(np.float32)]


def _in_bf16(x: np.ndarray, w: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """What a product of operands in bf16, added up in f64, gives."""
    rounded = [array.astype(ml_dtypes.bfloat16).astype(np.float64) for array in (x, w)]
    return rounded[0] @ rounded[1] > limit


@pytest.mark.parametrize("is_fault", [False, True])
def test_a_policy_that_makes_comparisons_right_explains_them(is_fault: bool) -> None:
    inputs = _inputs()
    above = _in_bf16(*inputs)
    if is_fault:
        above[:8] = ~above[:8]
    found = hloexec.explain(hloexec.parse(LARGER), inputs, (above, above.astype(np.int32)))
    if is_fault:
        assert found.verdict is Explained.NONE
    else:
        assert found.verdict is Explained.POLICY and found.best.policy.name == "bf16"


def test_flushed_denormals_show_in_a_comparison() -> None:
    text = """HloModule m
ENTRY e {
  x = f32[40] parameter(0)
  half = f32[] constant(0.5)
  halves = f32[40] broadcast(half), dimensions={}
  y = f32[40] multiply(x, halves)
  zero = f32[] constant(0)
  zeros = f32[40] broadcast(zero), dimensions={}
  ROOT p = pred[40] compare(y, zeros), direction=GT
}
"""
    x = np.where(np.arange(40) % 3 == 0, np.float32(1.5e-38), np.float32(1)).astype(np.float32)
    expected = x * 0.5 >= np.finfo(np.float32).smallest_normal
    found = hloexec.explain(hloexec.parse(text), [x], expected)
    assert found.verdict is Explained.POLICY and found.best.policy.name == "ftz"


INDICES = """HloModule indices

ENTRY main {
  x = f32[512] parameter(0)
  y = f32[512] exponential(x)
  large = f32[] constant(1000000)
  larges = f32[512] broadcast(large), dimensions={}
  z = f32[512] multiply(y, larges)
  ROOT r = s32[512] convert(z)
}
"""


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_integers_that_rounding_moves_may_not_be_anything(size: int) -> None:
    """exp(x) · 10⁶ in f32 is a step or two off, below 3 here; 100 000 is no rounding."""
    x = np.random.default_rng(2).uniform(-1, 1, 512).astype(np.float32)
    module = hloexec.parse(INDICES)
    expected = np.array(hloexec.run(module, x, numerics="exact"))
    expected[50] += size
    verdict = hloexec.explain(module, [x], expected).verdict
    assert (verdict is Explained.NONE) == (size == 100_000)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("element_type", ["s64", "u64"])
def test_neighbours_among_large_integers_are_told_apart(element_type: str, size: int) -> None:
    """2⁶⁰ and 2⁶⁰ + 1 are one number in f64."""
    text = f"""HloModule m
ENTRY e {{
  x = {element_type}[40] parameter(0)
  ROOT y = {element_type}[40] add(x, x)
}}
"""
    x = np.full(40, 2**59, {"s64": np.int64, "u64": np.uint64}[element_type])
    expected = x + x
    expected[:20] += x.dtype.type(size)
    found = hloexec.explain(hloexec.parse(text), [x], expected)
    assert (found.verdict is Explained.NONE) == bool(size)


TWICE = """HloModule twice

ENTRY main {
  x = f32[40,48] parameter(0)
  w = f32[48,30] parameter(1)
  one = f32[40,30] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  other = f32[40,30] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT larger = pred[40,30] compare(one, other), direction=GT
}
"""


def test_a_policy_that_cancels_in_the_whole_module_is_found_for_one_instruction() -> None:
    x, w, _ = _inputs()
    w = w[:, :30].copy()
    x = x[:40].copy()
    rounded = [array.astype(ml_dtypes.bfloat16).astype(np.float64) for array in (x, w)]
    expected = x.astype(np.float64) @ w > rounded[0] @ rounded[1]
    found = hloexec.explain(hloexec.parse(TWICE), [x, w], expected)
    assert found.verdict is Explained.POLICY
    assert found.best.policy.name == "reference,main/other=bf16"


def test_a_mode_of_a_whole_run_is_not_named_for_one_comparison() -> None:
    text = """HloModule m
ENTRY e {
  x = f32[60] parameter(0)
  zero = f32[] constant(0)
  zeros = f32[60] broadcast(zero), dimensions={}
  larger = pred[60] compare(x, zeros), direction=GT
  none = pred[60] compare(x, zeros), direction=EQ
  ROOT t = (pred[60], pred[60]) tuple(larger, none)
}
"""
    x = np.full(60, 1e-40, np.float32)
    no, yes = np.zeros(60, bool), np.ones(60, bool)
    assert hloexec.explain(hloexec.parse(text), [x], (no, no)).verdict is Explained.NONE
    found = hloexec.explain(hloexec.parse(text), [x], (no, yes))
    assert found.verdict is Explained.POLICY and found.best.policy.name == "ftz"
