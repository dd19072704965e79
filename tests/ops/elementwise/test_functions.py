"""Mathematical functions of real numbers, measured in ULP against mpmath and against f64.

The bound is 4 ULP of the correctly rounded result in f32 and f64 and 1 ULP in narrower types, where the rounding of an
f32 result that is 4 ULP off moves by at most one neighbour. Denormal results are left out: their ULP is not relative.
"""

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.common import narrow, widen
from hloexec.ops.elementwise.formula import power
from tests.drawing import examples
from tests.ops.against_xla import Case, evaluated, module_text
from tests.ops.elements import FLOATS

_mp = mpmath.MPContext()
_mp.prec = 160


def _logistic(x: Any) -> Any:
    return 1 / (1 + _mp.exp(-x))


# name: reference, and the interval that random operands are taken from.
_FUNCTIONS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "acos": (_mp.acos, -1, 1),
    "acosh": (_mp.acosh, 1, 50),
    "asin": (_mp.asin, -1, 1),
    "asinh": (_mp.asinh, -50, 50),
    "atanh": (_mp.atanh, -1, 1),
    "cbrt": (lambda x: _mp.sign(x) * _mp.cbrt(abs(x)), -1000, 1000),
    "cosine": (_mp.cos, -100, 100),
    "cosh": (_mp.cosh, -80, 80),
    "erf": (_mp.erf, -5, 5),
    "exponential": (_mp.exp, -80, 80),
    "exp2": (lambda x: _mp.power(2, x), -120, 120),
    "exponential-minus-one": (_mp.expm1, -2, 80),
    "log": (_mp.log, 0, 1000),
    "log2": (lambda x: _mp.log(x, 2), 0, 1000),
    "log-plus-one": (_mp.log1p, -1, 100),
    "logistic": (_logistic, -80, 80),
    "rsqrt": (lambda x: 1 / _mp.sqrt(x), 0, 1000),
    "sine": (_mp.sin, -100, 100),
    "sinh": (_mp.sinh, -80, 80),
    "sqrt": (_mp.sqrt, 0, 1000),
    "tan": (_mp.tan, -100, 100),
    "tanh": (_mp.tanh, -10, 10),
}


def _results(opcode: str, *operands: np.ndarray) -> np.ndarray:
    name = next(n for n, entry in ELEMENT_TYPES.items() if entry.storage == operands[0].dtype)
    case = Case(opcode, operands, f"{name}[{operands[0].size}]")
    return evaluated(module_text([case]), operands)[0]


def _worst_ulp(actual: np.ndarray, expected: list[Any]) -> float:
    worst = 0.0
    for ours, exact in zip(actual, expected, strict=True):
        if abs(exact) < float(np.finfo(actual.dtype).smallest_normal) * 4:
            continue
        rounded = actual.dtype.type(float(exact))
        if np.isfinite(rounded):
            worst = max(worst, float(abs(_mp.mpf(float(ours)) - exact) / float(np.spacing(abs(rounded)))))
    return worst


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("opcode", _FUNCTIONS)
def test_functions_are_within_four_ulp(opcode: str, dtype: type) -> None:
    reference, low, high = _FUNCTIONS[opcode]
    generator = np.random.default_rng(3)
    values = np.concatenate(
        [generator.uniform(low, high, examples(300)), generator.uniform(max(low, -1), min(high, 1.5), examples(200))]
    )
    values = values.astype(dtype)
    values = values[(values > low) & (values < high)]
    assert _worst_ulp(_results(opcode, values), [reference(_mp.mpf(float(x))) for x in values]) <= 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_is_within_four_ulp_from_where_it_is_linear_to_where_it_is_one(dtype: type) -> None:
    values = np.concatenate([np.geomspace(1e-9, 1, 300), np.linspace(0.98, 1.02, 100), np.linspace(3.6, 6.4, 300)])
    values = values.astype(dtype)
    assert _worst_ulp(_results("erf", values), [_mp.erf(_mp.mpf(float(x))) for x in values]) <= 4
    # It rounds to 1 there, and is nowhere larger.
    larger = np.concatenate([np.linspace(4.5 if dtype is np.float32 else 6.25, 40, 20_000), [1e30]]).astype(dtype)
    assert (_results("erf", larger) == 1).all()
    assert (_results("erf", np.linspace(3, 6.3, 40_000).astype(dtype)) <= 1).all()


@pytest.mark.parametrize("name", [name for name in FLOATS if ELEMENT_TYPES[name].is_narrow])
def test_functions_of_narrow_floats_are_within_one_ulp(name: str) -> None:
    # One ULP at most: the result is the f64 one or a neighbour of it.
    entry = ELEMENT_TYPES[name]
    bits = 16 if entry.bits == 16 else entry.bits
    patterns = np.arange(1 << bits, dtype=f"u{entry.storage.itemsize}")[:: 1 if bits < 16 else 37]
    values = patterns.view(entry.storage)
    values = values[~(np.abs(widen(values)) < 1.2e-38) & ~np.isnan(widen(values))]
    for opcode in _FUNCTIONS:
        wide = narrow(_results(opcode, widen(values).astype(np.float64)), entry)
        ours = _results(opcode, values)
        both = np.isnan(widen(wide)) & np.isnan(widen(ours))
        signless = (x.view(f"u{x.itemsize}").astype(np.int64) & ((1 << (bits - 1)) - 1) for x in (wide, ours))
        first, second = signless
        tiny = np.abs(widen(wide)) < 1.2e-38
        assert (both | tiny | (np.abs(first - second) <= 1)).all(), (name, opcode)


def test_special_values_of_functions() -> None:
    inf, nan = np.inf, np.nan
    operands = np.array([0.0, -0.0, inf, -inf, nan])
    expected = {
        "exponential": [1, 1, inf, 0, nan],
        "exp2": [1, 1, inf, 0, nan],
        "exponential-minus-one": [0, -0.0, inf, -1, nan],
        "log": [-inf, -inf, inf, nan, nan],
        "log2": [-inf, -inf, inf, nan, nan],
        "log-plus-one": [0, -0.0, inf, nan, nan],
        "logistic": [0.5, 0.5, 1, 0, nan],
        "erf": [0, -0.0, 1, -1, nan],
        "tanh": [0, -0.0, 1, -1, nan],
        "sqrt": [0, -0.0, inf, nan, nan],
        "rsqrt": [inf, -inf, 0, nan, nan],
        "cbrt": [0, -0.0, inf, -inf, nan],
        "sine": [0, -0.0, nan, nan, nan],
    }
    for opcode, values in expected.items():
        result = _results(opcode, operands)
        assert_array_equal(result, values, err_msg=opcode)
        assert_array_equal(np.signbit(result)[:2], np.signbit(values)[:2], err_msg=opcode)


def test_logistic_keeps_denormals() -> None:
    values = np.array([-88, -95, -103], np.float32)
    expected = np.exp(values.astype(np.float64)).astype(np.float32)
    assert_allclose(_results("logistic", values), expected, rtol=0, atol=4 * 2.0**-149)


def test_power_and_atan2_have_the_special_values_of_c() -> None:
    inf, nan = np.inf, np.nan
    base = np.array([1.0, nan, -1.0, -8.0, 0.0, -0.0, -0.0, inf, 0.5, 2.0])
    exponent = np.array([nan, 0.0, inf, 1 / 3, -1.0, -3.0, -2.0, -1.0, inf, -inf])
    assert_array_equal(_results("power", base, exponent), [1, 1, 1, nan, inf, -inf, inf, 0, 0, 0])
    y, x = np.array([0.0, -0.0, 0.0, inf, 1.0, nan]), np.array([-1.0, -1.0, 0.0, -inf, 0.0, 1.0])
    expected = [np.pi, -np.pi, 0, 3 * np.pi / 4, np.pi / 2, nan]
    assert_array_equal(_results("atan2", y, x), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_power_and_atan2_are_within_four_ulp(dtype: type) -> None:
    generator = np.random.default_rng(9)
    base, exponent = generator.uniform(0, 20, 400).astype(dtype), generator.uniform(-20, 20, 400).astype(dtype)
    for opcode, reference in (("power", _mp.power), ("atan2", _mp.atan2)):
        expected = [reference(_mp.mpf(float(a)), _mp.mpf(float(b))) for a, b in zip(base, exponent, strict=True)]
        assert _worst_ulp(_results(opcode, base, exponent), expected) <= 4


_EXPONENTS: dict[str, Callable[[Any], Any]] = {
    "one number": lambda value: value.reshape(1),
    "repeated by strides of 0": lambda value: np.broadcast_to(value, (20, 20)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("repeated", _EXPONENTS)
@pytest.mark.parametrize("exponent", [-1, -0.5, 0, 0.5, 1, 2, 3])
def test_powers_do_not_depend_on_how_the_exponent_lies_in_memory(exponent: float, repeated: str, dtype: type) -> None:
    base = np.random.default_rng(11).random((20, 20)).astype(dtype)
    found = power(base, _EXPONENTS[repeated](np.asarray(exponent, dtype)))
    assert_array_equal(found, power(base, np.full((20, 20), exponent, dtype)))


@pytest.mark.parametrize("policy", "reference exact fast-functions random-rounding:1".split())
@pytest.mark.parametrize("planner", [True, False])
def test_the_power_one_half_is_that_of_c_where_the_root_is_not(policy: str, planner: bool) -> None:
    """√−0 = −0 and √−∞ is no number, but C's pow(−0, ½) = +0 and pow(−∞, ½) = ∞."""
    module = hloexec.parse(
        "HloModule m\nENTRY e { x = f32[4] parameter(0)\n n = f32[4] negate(x)\n c = f32[] constant(0.5)\n"
        " b = f32[4] broadcast(c), dimensions={}\n ROOT p = f32[4] power(n, b) }\n"
    )
    found = hloexec.run(module, np.array([0, np.inf, -0.0, -np.inf], np.float32), numerics=policy, planner=planner)
    assert_array_equal(found, np.array([0, np.inf, 0, np.inf], np.float32))
    assert not np.signbit(found).any()
