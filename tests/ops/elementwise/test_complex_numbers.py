"""Complex arithmetic: against mpmath by the error relative to the result's modulus, and by C99's special values.

XLA:CPU is followed bit for bit only where no rounding and no infinity is involved: it gives NaN for several infinities
of C99's Annex G, drops the sign of zero imaginary parts, and orders complex numbers by their real parts.
"""

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from tests.drawing import examples
from tests.ops.against_xla import Case, assert_same_as_xla, evaluated, module_text
from tests.ops.elements import COMPLEXES, crossed, elements

_mp = mpmath.MPContext()
_mp.prec = 200

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "acos": _mp.acos,
    "acosh": _mp.acosh,
    "asin": _mp.asin,
    "asinh": _mp.asinh,
    "atanh": _mp.atanh,
    "cosine": _mp.cos,
    "cosh": _mp.cosh,
    "exponential": _mp.exp,
    "exponential-minus-one": _mp.expm1,
    "log": _mp.log,
    "log-plus-one": lambda z: _mp.log(1 + z),
    "logistic": lambda z: 1 / (1 + _mp.exp(-z)),
    "rsqrt": lambda z: 1 / _mp.sqrt(z),
    "sign": lambda z: z / abs(z),
    "sine": _mp.sin,
    "sinh": _mp.sinh,
    "sqrt": _mp.sqrt,
    "tan": _mp.tan,
    "tanh": _mp.tanh,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "power": lambda a, b: _mp.exp(b * _mp.log(a)),
    "atan2": lambda a, b: -1j * _mp.log((b + 1j * a) / _mp.sqrt(a * a + b * b)),
}
# In units of the relative spacing: c64 is computed in c128 and rounded once (multiply is not: two roundings). c128 bounds
# are what the composition of the formulas' correctly rounded steps gives, times two.
_BOUND = {"c64": 2.0, "c128": 16.0}
_COUNT = examples(250)
_POWER_BOUND = 400.0
"""b log a is up to 60 here and its absolute error becomes relative."""


def _results(opcode: str, result: str, *operands: np.ndarray, attributes: str = "") -> np.ndarray:
    return evaluated(module_text([Case(opcode, operands, result, attributes)]), operands)[0]


def _worst_error(actual: np.ndarray, expected: list[Any]) -> float:
    epsilon = float(np.finfo(actual.dtype).eps)
    errors = [
        abs(_mp.mpc(complex(ours)) - exact) / (abs(exact) * epsilon)
        for ours, exact in zip(actual, expected, strict=True)
        if exact != 0
    ]
    return float(max(errors))


def _numbers(dtype: str, count: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    scale = 10.0 ** generator.uniform(-8, 0.7, count)
    values = scale * np.exp(1j * generator.uniform(-np.pi, np.pi, count))
    return values.astype({"c64": np.complex64, "c128": np.complex128}[dtype])


@pytest.mark.parametrize("name", COMPLEXES)
@pytest.mark.parametrize("opcode", _FUNCTIONS)
def test_complex_functions_are_accurate(opcode: str, name: str) -> None:
    values = _numbers(name, _COUNT, 1)
    expected = [_FUNCTIONS[opcode](_mp.mpc(complex(z))) for z in values]
    assert _worst_error(_results(opcode, f"{name}[{_COUNT}]", values), expected) <= _BOUND[name]


@pytest.mark.parametrize("name", COMPLEXES)
@pytest.mark.parametrize("opcode", _BINARY)
def test_complex_arithmetic_is_accurate(opcode: str, name: str) -> None:
    lhs, rhs = _numbers(name, _COUNT, 2), _numbers(name, _COUNT, 3)
    expected = [_BINARY[opcode](_mp.mpc(complex(a)), _mp.mpc(complex(b))) for a, b in zip(lhs, rhs, strict=True)]
    bound = _POWER_BOUND if (opcode, name) == ("power", "c128") else _BOUND[name]
    assert _worst_error(_results(opcode, f"{name}[{_COUNT}]", lhs, rhs), expected) <= bound


@pytest.mark.parametrize(("name", "part"), [("c64", "f32"), ("c128", "f64")])
def test_exact_complex_operations_have_the_bits_of_xla(name: str, part: str) -> None:
    single = elements(name)
    lhs, rhs = crossed(single, single[::3])
    real, imag = crossed(elements(part), elements(part))
    assert_same_as_xla(
        [
            *(Case(o, [lhs, rhs], f"{name}[{lhs.size}]") for o in ("add", "subtract", "multiply")),
            *(Case(o, [single], f"{part}[{single.size}]") for o in ("real", "imag")),
            *(Case("compare", [lhs, rhs], f"pred[{lhs.size}]", f"direction={d}") for d in ("EQ", "NE")),
            Case("complex", [real, imag], f"{name}[{real.size}]"),
            Case("negate", [single], f"{name}[{single.size}]"),
            Case("select", [lhs == rhs, lhs, rhs], f"{name}[{lhs.size}]"),
        ]
    )


def test_the_modulus_of_an_infinite_number_is_infinite() -> None:
    values = np.array([complex(np.inf, np.nan), complex(np.nan, -np.inf), 3 + 4j, 1e200 + 1e200j])
    np.testing.assert_allclose(_results("abs", "f64[4]", values), [np.inf, np.inf, 5, np.sqrt(2) * 1e200], rtol=1e-15)


def test_division_recovers_infinities() -> None:
    inf, nan = np.inf, np.nan
    lhs = np.array([1 + 1j, complex(inf, inf), 1 + 1j, complex(nan, inf), complex(1, -2)])
    rhs = np.array([0j, 1j, complex(inf, nan), 1j, complex(inf, inf)])
    result = _results("divide", "c128[5]", lhs, rhs)
    assert np.isinf(result[[0, 1]]).all() and np.isinf(result[3].real)
    assert result[2] == 0 and result[4] == 0


def test_functions_at_infinity() -> None:
    inf = np.inf
    cases = {
        "exponential": (complex(-inf, 1), 0),
        "exponential-minus-one": (complex(-inf, 1), -1),
        "logistic": (complex(-inf, 1), 0),
        "tanh": (complex(inf, 1), 1),
        "rsqrt": (complex(-inf, 1), 0),
        "log-plus-one": (complex(inf, 0), inf),
    }
    for opcode, (value, expected) in cases.items():
        assert _results(opcode, "c128[1]", np.array([value]))[0] == expected, opcode
    assert _results("exponential-minus-one", "c128[1]", np.array([complex(inf, 0)]))[0] == complex(inf, 0)


def test_complex_order_is_lexicographic() -> None:
    lhs, rhs = np.array([1 + 2j, 1 + 2j, 0 + 9j], np.complex64), np.array([1 + 3j, 1 - 3j, 1 - 9j], np.complex64)
    assert _results("maximum", "c64[3]", lhs, rhs).tolist() == [1 + 3j, 1 + 2j, 1 - 9j]
    assert _results("minimum", "c64[3]", lhs, rhs).tolist() == [1 + 2j, 1 - 3j, 0 + 9j]
    assert _results("compare", "pred[3]", lhs, rhs, attributes="direction=LT").tolist() == [True, False, True]


def test_zero_to_the_zero_is_one() -> None:
    assert _results("power", "c128[1]", np.array([0j]), np.array([0j]))[0] == 1
