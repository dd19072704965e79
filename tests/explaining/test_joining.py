"""Different policies of different products, found jointly; NumPy computes what is expected."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.tools.explaining import Explained

TEXT = """HloModule residual_layers

ENTRY e {
  x = f32[40,24] parameter(0)
  u = f32[24,24] parameter(1)
  v = f32[24,24] parameter(2)
  w = f32[24,12] parameter(3)
  d1 = f32[40,24] dot(x, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h1 = f32[40,24] add(d1, x)
  d2 = f32[40,24] dot(h1, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h2 = f32[40,24] add(d2, h1)
  ROOT d3 = f32[40,12] dot(h2, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
"""Three products, the first two beside what skips them."""
_BITS = {"tf32": 10, "bf16": 7}


@pytest.fixture(scope="module")
def module() -> hloexec.Module:
    return hloexec.parse(TEXT)


def _inputs() -> list[Any]:
    """The first two products are a tenth of what they are added to: their errors are small, and later ones drawn anew."""
    random = np.random.default_rng(8)
    sizes = (1.0, 0.02, 0.02, 0.2)
    shapes = ((40, 24), (24, 24), (24, 24), (24, 12))
    return [(random.normal(size=shape) * size).astype("f4") for shape, size in zip(shapes, sizes, strict=True)]


def _product(lhs: Any, rhs: Any, policy: str) -> Any:
    """Added up in f64 and rounded once; operands to so many bits of the significand, to nearest, ties to even."""
    if policy:
        shift = np.uint32(23 - _BITS[policy])
        words = [each.view(np.uint32) for each in (lhs, rhs)]
        half = np.uint32((1 << int(shift - 1)) - 1)
        lhs, rhs = (((each + half + ((each >> shift) & 1)) >> shift << shift).view(np.float32) for each in words)
    return (lhs.astype(np.float64) @ rhs.astype(np.float64)).astype(np.float32)


def _expected(inputs: list[Any], policies: tuple[str, str, str], skip: float = 1.0) -> Any:
    x, u, v, w = inputs
    h1 = _product(x, u, policies[0]) + x
    h2 = _product(h1, v, policies[1]) + h1 * np.float32(skip)
    return _product(h2, w, policies[2])


@pytest.mark.slow_cases("tf32--bf16")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "policies",
    [("bf16", "", "tf32"), ("tf32", "bf16", ""), ("tf32", "", "bf16"), ("bf16", "tf32", "bf16")],
    ids="-".join,
)
def test_products_of_different_policies_are_named(module: hloexec.Module, policies: tuple[str, str, str]) -> None:
    inputs = _inputs()
    found = hloexec.explain(module, inputs, _expected(inputs, policies))
    assert found.verdict is Explained.POLICY
    named = [f"e/d{number}={policy}" for number, policy in enumerate(policies, 1) if policy]
    assert found.best.name == ",".join(["reference", *named])


@pytest.mark.slow
def test_no_policies_explain_what_skips_a_product_in_another_size(module: hloexec.Module) -> None:
    inputs = _inputs()
    expected = _expected(inputs, ("bf16", "", "tf32"), skip=1.001)
    found = hloexec.explain(module, inputs, expected, runs=300)
    assert found.verdict is Explained.NONE


def test_what_comes_nearest_has_no_more_elements_off_than_the_reference_and_is_listed_once() -> None:
    """Of a product in bf16 the first rows are given in bf16, the others, whose errors 2048 hides in part, are not."""
    module = hloexec.parse(
        """HloModule m
ENTRY e {
  x = f32[20,40] parameter(0)
  w = f32[40,20] parameter(1)
  d = f32[20,20] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  a = f32[5,20] slice(d), slice={[0:5], [0:20]}
  r = f32[15,20] slice(d), slice={[5:20], [0:20]}
  c = f32[] constant(2048)
  cs = f32[15,20] broadcast(c), dimensions={}
  b = f32[15,20] add(r, cs)
  ROOT t = (f32[5,20], f32[15,20]) tuple(a, b)
}
"""
    )
    inputs = hloexec.random_inputs(module, seed=1)
    results = [hloexec.run(module, *inputs, numerics=policy) for policy in ("bf16", "reference")]
    found = hloexec.explain(module, inputs, tuple(result[number] for number, result in enumerate(results)))
    assert found.verdict is Explained.NONE
    assert found.best.name == "reference" and found.best.mismatches == 100
    by_count = {trial.name: trial.mismatches for trial in found.trials}
    assert by_count["bf16"] is not None and by_count["bf16"] > 100
    # A policy of the only product is one of the whole module.
    assert "reference,e/d=bf16" not in by_count
