"""Algorithms, operand precision and policies of dot: what operands are rounded to, and how sums are."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.contraction import matrix_product
from hloexec.ops.contraction.dot import DOT_ALGORITHMS, DotAttributes
from hloexec.ops.policies.policy import POLICIES
from tests.ops.against_xla import Case, module_text
from tests.ops.contraction.products import MATMUL_TEXT, dot, normal


def rounded(array: Any, bits: int) -> Any:
    """To `bits` explicit bits of the significand, ties to even, by exact scaling of f64."""
    mantissa, exponent = np.frexp(array.astype(np.float64))
    return np.ldexp(np.rint(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)


@pytest.mark.parametrize(
    ("algorithm", "bits"), [("dot_bf16_bf16_f32", 7), ("dot_tf32_tf32_f32", 10), ("dot_f16_f16_f32", 10)]
)
def test_an_algorithm_rounds_the_operands(algorithm, bits):
    """Products of rounded operands have at most 22 bits and are exact in f32; the sum of 16 has error 16·2⁻²⁴ at most."""
    lhs, rhs = normal(1, 6, 16), normal(2, 16, 5)
    value = dot(
        lhs, rhs, "f32", DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(0,), algorithm=algorithm)
    )
    exact = rounded(lhs, bits) @ rounded(rhs, bits)
    assert (np.abs(value - exact) <= 16 * 2.0**-24 * (np.abs(rounded(lhs, bits)) @ np.abs(rounded(rhs, bits)))).all()
    assert (np.abs(value - lhs.astype(np.float64) @ rhs) > 1e-5).any()


@pytest.mark.parametrize(("lhs_type", "rhs_type"), [("f32", "f32"), ("f32", "bf16"), ("f16", "f32"), ("f64", "f64")])
def test_under_xla_cpu_an_algorithm_is_ignored_as_xla_does(lhs_type, rhs_type):
    """Any order of k f32 products and sums is within k·2⁻²⁴/(1 - k·2⁻²⁴) · Σ|lhs·rhs| of the exact product."""
    xla = pytest.importorskip("conformance.xla")
    result = "f64" if lhs_type == "f64" else "f32"
    lhs, rhs = (
        normal(seed, *sizes).astype(ELEMENT_TYPES[name].storage)
        for seed, sizes, name in ((0, (5, 64), lhs_type), (1, (64, 6), rhs_type))
    )
    algorithms = ["dot_bf16_bf16_f32", "dot_tf32_tf32_f32", "dot_f16_f16_f16"]
    text = module_text(
        [Case("dot", [lhs, rhs], f"{result}[5,6]", f"{MATMUL_TEXT}, algorithm={each}") for each in algorithms]
    )
    exact = lhs.astype(np.float64) @ rhs.astype(np.float64)
    bound = 65 * 2**-24 / (1 - 65 * 2**-24) * (np.abs(lhs).astype(np.float64) @ np.abs(rhs).astype(np.float64))
    module, operands = hloexec.parse(text), [lhs, rhs] * len(algorithms)
    for value in (*xla.run_hlo(text, *operands), *hloexec.run(module, *operands, numerics="xla-cpu")):
        assert (np.abs(value - exact) <= bound).all()
    for value in hloexec.run(module, *operands):
        assert (np.abs(value - exact) > bound).any()


@pytest.mark.parametrize(
    ("algorithm", "exponent"),
    [
        ("dot_bf16_bf16_f32_x3", 15),
        ("dot_tf32_tf32_f32_x3", 20),
        ("dot_bf16_bf16_f32_x6", 20),
        ("dot_bf16_bf16_f32_x9", 20),
    ],
)
def test_splitting_algorithms_are_as_accurate_as_their_terms(algorithm, exponent):
    """x3 drops products of two second terms: 2⁻¹⁶ of each for bf16 (8 bits a term), 2⁻²² for tf32, and the second terms
    are themselves rounded: 2·2⁻¹⁷ and 2·2⁻²³. x6 and x9 lose 2⁻²⁴ and less. f32 sums add k·2⁻²⁴ = 2⁻²⁰ with k = 16."""
    lhs, rhs = normal(1, 6, 16), normal(2, 16, 5)
    value = dot(
        lhs, rhs, "f32", DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(0,), algorithm=algorithm)
    )
    exact = lhs.astype(np.float64) @ rhs
    error = np.abs(value - exact) / (np.abs(lhs).astype(np.float64) @ np.abs(rhs))
    assert (error <= 2.0**-exponent + 2.0**-20).all()


def test_a_splitting_algorithm_keeps_infinity():
    lhs, rhs = normal(1, 2, 3), np.abs(normal(2, 3, 2))
    lhs[0, 1] = np.inf
    attributes = DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(0,), algorithm="dot_bf16_bf16_f32_x3")
    value = dot(lhs, rhs, "f32", attributes)
    assert (value[0] == np.inf).all()
    assert np.isfinite(value[1]).all()


def test_an_accumulation_type_of_16_bits_rounds_the_sum():
    lhs = np.array([[1, 2.0**-9]], np.float32)
    attributes = DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(1,), algorithm="dot_bf16_bf16_bf16")
    assert dot(lhs, np.ones((1, 2), np.float32), "f32", attributes)[0, 0] == 1


def test_every_algorithm_of_xla_is_known():
    _hlo = pytest.importorskip("jaxlib._hlo")
    for algorithm in DOT_ALGORITHMS:
        text = f"HloModule m\n\nENTRY e {{\n  a = f32[2,2] parameter(0)\n  ROOT r = f32[2,2] dot(a, a), {MATMUL_TEXT}, algorithm={algorithm}\n}}\n"
        printed = _hlo.hlo_module_from_text(text).to_string()
        assert (f"algorithm={algorithm}" in printed) == (algorithm != "unset")


@pytest.mark.parametrize(("policy", "bits"), [("tf32", 10), ("bf16", 7)])
def test_a_policy_rounds_f32_operands_of_default_dots_only(policy, bits):
    lhs, rhs = normal(1, 3, 1), normal(2, 1, 4)
    product = (rounded(lhs, bits) @ rounded(rhs, bits)).astype(np.float32)
    assert (dot(lhs, rhs, "f32", numerics=POLICIES[policy]) == product).all()
    for extra in ({"operand_precision": ("highest", "highest")}, {"algorithm": "dot_f32_f32_f32"}):
        attributes = DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(0,), **extra)
        assert (dot(lhs, rhs, "f32", attributes, numerics=POLICIES[policy]) == lhs @ rhs).all()
    wide = lhs.astype(np.float64), rhs.astype(np.float64)
    assert (dot(*wide, "f64", numerics=POLICIES[policy]) == wide[0] @ wide[1]).all()


def test_rounding_a_significand_keeps_nan_and_infinity():
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4028235e38], np.float32)
    special = np.append(special, np.array([0x7FFFFFFF, 0x7F800001], np.uint32).view(np.float32))
    value = matrix_product.round_mantissa(special, 7)
    assert np.isnan(value[[0, 6, 7]]).all()
    assert (value[1:6] == np.array([np.inf, -np.inf, 0, 0, np.inf])).all()
    assert np.signbit(value[4])
