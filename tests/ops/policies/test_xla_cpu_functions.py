"""Functions under the `xla-cpu` policy have the bits that XLA:CPU gives them, and multiply-adds round once."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hloexec
from hloexec.core.dtypes import element_type
from hloexec.ops.policies.backends import XLA_CPU_FUNCTIONS, multiply_add
from tests.drawing import examples

xla = pytest.importorskip("conformance.xla")

pytestmark = pytest.mark.fused_multiply_add

_F32 = np.float32


_OTHER_FUNCTIONS = {"exponential", "exponential-minus-one", "logistic"} if xla.jaxlib_version() >= (0, 11) else set()
"""What XLA:CPU of jaxlib 0.12 computes in another way than that of 0.10, whose bits the policy gives."""
_MOST_ULPS = 12
"""Both ways are within 6 ULP."""


def _agree(opcode: str, dtype: str, operand: Any) -> None:
    """All bits are XLA's, of functions that XLA computes as ever; one NaN is as good as another."""
    shape = f"{dtype}[{operand.size}]"
    text = f"HloModule m\n\nENTRY e {{\n  p = {shape} parameter(0)\n  ROOT r = {shape} {opcode}(p)\n}}\n"
    (expected,) = xla.run_hlo(text, operand)
    actual = hloexec.run(hloexec.parse(text), operand, numerics="xla-cpu")
    assert actual.dtype == expected.dtype
    bits = f"u{actual.itemsize}"
    both_nan = np.isnan(actual.astype(_F32)) & np.isnan(np.asarray(expected).astype(_F32))
    ordered = [
        np.where(pattern >> (8 * actual.itemsize - 1), -(pattern & ((1 << 8 * actual.itemsize - 1) - 1)), pattern)
        for pattern in (value.view(bits).astype(np.int64) for value in (actual, np.asarray(expected)))
    ]
    apart = np.abs(ordered[0] - ordered[1])
    equal = actual.view(bits) == np.asarray(expected).view(bits)
    is_right = equal | (apart <= _MOST_ULPS) if opcode in _OTHER_FUNCTIONS else equal
    wrong = np.flatnonzero(~is_right & ~both_nan)
    assert not wrong.size, (
        f"{wrong.size} differ, as at {operand[wrong[0]]}: {actual[wrong[0]]} is not {expected[wrong[0]]}"
    )


@pytest.mark.slow_cases("erf", "log")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("opcode", XLA_CPU_FUNCTIONS)
def test_functions_of_f32_have_the_bits_of_xla(opcode: str) -> None:
    """Every 2047th pattern (a prime number of steps per binade), and numbers of everyday size; a fifth in quick runs."""
    step = 2047 * (100 // examples(100))
    patterns = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32).view(_F32)
    generator = np.random.default_rng(0)
    normal, uniform = generator.normal(size=examples(1 << 19)), generator.uniform(-100, 100, examples(1 << 18))
    everyday = np.concatenate([normal, uniform]).astype(_F32)
    _agree(opcode, "f32", np.concatenate([patterns, everyday]))


_ROUNDED_AT_EACH_STEP = {("exponential-minus-one", "f16"), ("logistic", "f16")}
"""What XLA:CPU makes of several instructions, each of them rounded to f16: the policy rounds the function once."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("opcode", "dtype"),
    [
        (name, dtype)
        for name in XLA_CPU_FUNCTIONS
        for dtype in ("bf16", "f16")
        if (name, dtype) not in _ROUNDED_AT_EACH_STEP
    ],
)
def test_functions_of_narrow_floats_have_the_bits_of_xla(opcode: str, dtype: str) -> None:
    _agree(opcode, dtype, np.arange(1 << 16, dtype=np.uint16).view(element_type(dtype).storage))


def _ends_in_the_c_library(opcode: str, size: int) -> bool:
    """Whether XLA:CPU leaves the last 3, 5, 6 or 7 of few elements to the C library."""
    return opcode in ("exponential", "log") and size < 16 and size % 8 in (3, 5, 6, 7)


@pytest.mark.sampled(13)
@pytest.mark.parametrize(
    ("opcode", "size"),
    [
        (opcode, size)
        for opcode in XLA_CPU_FUNCTIONS
        for size in (1, 2, 3, 5, 8, 9, 13, 15, 16, 23, 100, 1003)
        if not _ends_in_the_c_library(opcode, size)
    ],
)
def test_functions_of_few_elements_have_the_bits_of_xla(opcode: str, size: int) -> None:
    _agree(opcode, "f32", np.random.default_rng(size).uniform(0.05, 3, size).astype(_F32))


def _is_nearest(result: np.floating[Any], exact: Fraction) -> bool:
    """Whether no neighbour is nearer to `exact`, nor as near with an even last bit where the result's is odd."""
    distance = abs(Fraction(float(result)) - exact)
    neighbours = [np.nextafter(result, _F32(side)) for side in (-np.inf, np.inf)]
    distances = [abs(Fraction(float(neighbour)) - exact) for neighbour in neighbours]
    is_odd = bool(result.view(np.uint32) & 1)
    return all(distance < other or (distance == other and not is_odd) for other in distances)


_NUMBERS = st.floats(2.0**-40, 2.0**40, width=32).flatmap(lambda value: st.sampled_from([value, -value]))


@settings(max_examples=examples(300), deadline=None)
@given(_NUMBERS, _NUMBERS, _NUMBERS)
def test_multiply_add_rounds_once(factor: float, other: float, addend: float) -> None:
    operands = [np.array([value], _F32) for value in (factor, other, addend)]
    exact = Fraction(factor) * Fraction(other) + Fraction(addend)
    result = multiply_add(*operands)
    assert result.dtype == _F32
    assert _is_nearest(result[0], exact)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("direction", [1, -1])
def test_multiply_add_rounds_once_where_f64_lands_on_a_tie(sign: int, direction: int) -> None:
    """The product is ±(2⁻²⁴ − 2⁻⁷⁰), and the addend ±(1 + 2⁻²³): f64 loses the 2⁻⁷⁰, which decides."""
    factor, other = _F32(sign * direction * (2.0**-12 + 2.0**-35)), _F32(2.0**-12 - 2.0**-35)
    addend = _F32(sign * (1 + 2.0**-23))
    exact = Fraction(float(factor)) * Fraction(float(other)) + Fraction(float(addend))
    assert not _is_nearest(_F32(float(factor) * float(other) + float(addend)), exact)
    assert _is_nearest(multiply_add(np.array([factor]), np.array([other]), np.array([addend]))[0], exact)


def test_multiply_add_of_infinities_and_nan_follows_ieee() -> None:
    inf, nan = np.inf, np.nan
    cases = ((inf, 1, 1), (inf, 0, 1), (inf, 1, -inf), (nan, 1, 1), (3e38, 3e38, -inf))
    factors, others, addends = np.array(cases, _F32).T
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            multiply_add(factors, others, addends), np.array([inf, nan, nan, nan, -inf], _F32)
        )
