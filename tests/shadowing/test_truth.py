"""Shadows against exact arithmetic: rational numbers, and mpmath for functions."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import element_type
from tests.shadowing.running import exact_numbers, shadows_of

ADD = "add { a = T[] parameter(0)\n b = T[] parameter(1)\n ROOT r = T[] add(a, b) }\n"


def parsed(body: str, kind: str, *, computations: str = "") -> hloexec.Module:
    lines = "\n".join(line.strip() for line in body.strip().splitlines())
    return hloexec.parse(f"HloModule m\n{computations}\nENTRY e {{\n{lines}\n}}\n".replace("T[", f"{kind}["))


def numbers(kind: str, *shape: int, seed: int = 0) -> Any:
    found = 1 + np.random.default_rng(seed).random(shape)
    return found.astype(element_type(kind).storage)


def require_near(found: list[Fraction], expected: list[Fraction], value: Any, tolerance: float) -> None:
    """Each shadow within `tolerance` times the error of the value, or 2⁻⁴⁸ of the value, of the exact number: shadows are
    computed in f64, and kept as differences with 24 bits."""
    for shadow, exact, own in zip(found, expected, exact_numbers(value), strict=True):
        allowed = tolerance * float(abs(own - exact)) + 2.0**-48 * float(abs(exact))
        assert float(abs(shadow - exact)) <= allowed, (float(shadow), float(exact), float(own))


@pytest.mark.parametrize("kind", "f32 bf16 f16 f8e4m3fn f8e5m2".split())
def test_shadows_of_sums_and_products_are_rational_arithmetic(kind: str) -> None:
    module = parsed(
        """x = T[40] parameter(0)
        y = T[40] parameter(1)
        p = T[40] multiply(x, y)
        q = T[40] add(p, x)
        d = T[40] divide(q, y)
        ROOT r = T[40] subtract(d, x)""",
        kind,
    )
    x, y = numbers(kind, 40), numbers(kind, 40, seed=1)
    pairs = list(zip(exact_numbers(x), exact_numbers(y), strict=True))
    expected = [(a * b + a) / b - a for a, b in pairs]
    (found,) = shadows_of(module, [x, y]).values()
    require_near(found, expected, hloexec.run(module, x, y), 2.0**-20)


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
def test_shadows_of_contractions_and_reductions_are_rational_arithmetic(kind: str) -> None:
    module = parsed(
        """a = T[4,24] parameter(0)
        b = T[24,3] parameter(1)
        c = T[4,3] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        z = T[] constant(0)
        ROOT s = T[4] reduce(c, z), dimensions={1}, to_apply=add""",
        kind,
        computations=ADD,
    )
    a, b = numbers(kind, 4, 24), numbers(kind, 24, 3, seed=1)
    left = np.array(exact_numbers(a), object).reshape(4, 24)
    right = np.array(exact_numbers(b), object).reshape(24, 3)
    (found,) = shadows_of(module, [a, b]).values()
    require_near(found, list((left @ right).sum(1)), hloexec.run(module, a, b), 2.0**-20)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exponential": mpmath.exp,
    "log": mpmath.log,
    "tanh": mpmath.tanh,
    "sine": mpmath.sin,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)),
    "exponential-minus-one": mpmath.expm1,
}


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_shadows_of_functions_inherit_and_add_as_mpmath_says(name: str, kind: str) -> None:
    module = parsed(f"x = T[64] parameter(0)\n y = T[64] multiply(x, x)\n ROOT r = T[64] {name}(y)", kind)
    x = numbers(kind, 64)
    with mpmath.workdps(40):
        exact = [
            FUNCTIONS[name](mpmath.mpf(a.numerator) ** 2 / mpmath.mpf(a.denominator) ** 2) for a in exact_numbers(x)
        ]
        expected = list(map(_rational, exact))
    (found,) = shadows_of(module, [x]).values()
    # Functions of f64 are within 4 ULP.
    require_near(found, expected, hloexec.run(module, x), 2.0**-20)


def _rational(number: Any) -> Fraction:
    sign, mantissa, exponent, _ = number._mpf_
    return (-1) ** sign * int(mantissa) * Fraction(2) ** exponent


def test_shadows_of_f64_have_more_digits_than_it() -> None:
    module = parsed(
        """x = T[40] parameter(0)
        y = T[40] parameter(1)
        p = T[40] multiply(x, y)
        q = T[40] add(p, x)
        ROOT r = T[40] subtract(q, p)""",
        "f64",
    )
    x, y = numbers("f64", 40), 1e6 * numbers("f64", 40, seed=1)
    value = hloexec.run(module, x, y)
    (found,) = shadows_of(module, [x, y]).values()
    errors = 0
    for shadow, exact, own in zip(found, exact_numbers(x), exact_numbers(value), strict=True):
        errors += own != exact
        # What operands' errors do is computed enlarged by 2²⁶, and rounded at 2⁻⁵³ of p, which is below 2²².
        assert abs(shadow - exact) <= Fraction(2) ** (22 - 26 - 53)
    assert errors > 20


def test_shadows_of_f64_sums_of_products_see_their_cancellation() -> None:
    module = parsed(
        """x = T[1,3] parameter(0)
        y = T[3,1] parameter(1)
        p = T[1,3] multiply(x, x)
        ROOT r = T[1,1] dot(p, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}""",
        "f64",
    )
    x = np.array([[1e8 + 1, 1e8, 3.0]])
    y = np.array([[1.0], [-1.0], [1.0]])
    value = hloexec.run(module, x, y)
    (found,) = shadows_of(module, [x, y]).values()
    exact = Fraction(10**8 + 1) ** 2 - Fraction(10**8) ** 2 + 9
    assert abs(exact_numbers(value)[0] - exact) >= 1
    # The product's own rounding is known to half an ULP of its result only.
    assert abs(found[0] - exact) <= Fraction(2) ** -52 * exact


def test_shadows_of_f64_sums_of_products_have_the_roundings_of_the_sum_itself() -> None:
    """Most of what is added up cancels, in whichever order: 2⁻³⁰ of it is left, and has the errors of all of it."""
    module = parsed(
        """x = T[6,80] parameter(0)
        y = T[80,5] parameter(1)
        ROOT r = T[6,5] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}""",
        "f64",
    )
    half, order = numbers("f64", 6, 40), np.random.default_rng(2).permutation(40)
    x = np.concatenate([half, -half[:, order] * (1 + 2.0**-30)], axis=1)
    column = numbers("f64", 40, 5, seed=1)
    y = np.concatenate([column, column[order]])
    exact = np.array(exact_numbers(x), object).reshape(x.shape) @ np.array(exact_numbers(y), object).reshape(y.shape)
    values = exact_numbers(hloexec.run(module, x, y))
    (found,) = shadows_of(module, [x, y]).values()
    lost = 0
    for shadow, number, value in zip(found, exact.ravel(), values, strict=True):
        assert abs(shadow - number) <= Fraction(2) ** -52 * abs(number)
        lost += abs(value - number) > Fraction(2) ** -40 * abs(number)
    assert lost > 10


def test_shadows_of_complex_numbers_are_complex() -> None:
    module = parsed("x = c64[8] parameter(0)\n p = c64[8] multiply(x, x)\n ROOT r = c64[8] multiply(p, x)", "c64")
    x = (numbers("f32", 8) + 1j * numbers("f32", 8, seed=1)).astype(np.complex64)
    found = hloexec.shadow(module, [x])
    value = hloexec.run(module, x)
    exact = x.astype(np.complex128) ** 3
    expected = np.linalg.norm(value - exact) / np.linalg.norm(exact)
    assert found.outputs[0].relative_error == pytest.approx(expected, rel=1e-6)


def test_what_moves_takes_its_shadow_along() -> None:
    module = parsed(
        """x = T[4,6] parameter(0)
        y = T[4,6] multiply(x, x)
        t = T[6,4] transpose(y), dimensions={1,0}
        s = T[3,4] slice(t), slice={[1:6:2], [0:4]}
        c = T[5,4] concatenate(s, w), dimensions={0}
        w = T[2,4] parameter(1)
        i = s32[3,1] constant({{4},{0},{2}})
        ROOT g = T[3,4] gather(c, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}""",
        "bf16",
    )
    x, w = numbers("bf16", 4, 6), numbers("bf16", 2, 4, seed=1)
    squares = np.array([a * a for a in exact_numbers(x)], object).reshape(4, 6)
    rows = np.concatenate([squares.T[1:6:2], np.array(exact_numbers(w), object).reshape(2, 4)])[[4, 0, 2]]
    (found,) = shadows_of(module, [x, w]).values()
    assert found == list(rows.ravel())


def test_sorts_follow_the_order_of_the_run() -> None:
    module = parsed(
        """x = T[6] parameter(0)
        y = T[6] multiply(x, x)
        v = T[6] parameter(1)
        u = T[6] multiply(v, v)
        s = (T[6], T[6]) sort(y, u), dimensions={0}, is_stable=true, to_apply=less
        ROOT r = T[6] get-tuple-element(s), index=1""",
        "bf16",
        computations="less { a = T[] parameter(0)\n b = T[] parameter(1)\n c = T[] parameter(2)\n d = T[] parameter(3)\n"
        " ROOT r = pred[] compare(a, b), direction=LT }\n",
    )
    # The first two have squares that round to the same number; exactly, the second one is the smaller.
    x = np.array([1.0078125 * 8, 1.0 * 8, 3.0, 2.0, 1.0, 5.0]).astype(ml_dtypes.bfloat16)
    x[0], x[1] = 1.515625, 1.5078125
    v = numbers("bf16", 6)
    squares = [a * a for a in exact_numbers(x)]
    rounded = exact_numbers(np.asarray([float(s) for s in squares]).astype(ml_dtypes.bfloat16))
    order = sorted(range(6), key=lambda k: rounded[k])
    found = shadows_of(module, [x, v])[0, 0]
    assert found == [exact_numbers(v)[k] ** 2 for k in order]


def test_select_and_scatter_goes_where_the_run_went() -> None:
    module = parsed(
        """x = T[4] parameter(0)
        y = T[4] multiply(x, x)
        v = T[2] parameter(1)
        u = T[2] multiply(v, v)
        z = T[] constant(0)
        ROOT r = T[4] select-and-scatter(y, u, z), window={size=2 stride=2}, select=ge, scatter=add""",
        "bf16",
        computations=ADD
        + "ge { a = T[] parameter(0)\n b = T[] parameter(1)\n ROOT r = pred[] compare(a, b), direction=GE }\n",
    )
    x = np.array([1.5078125, 1.515625, 1.0, 1.25]).astype(ml_dtypes.bfloat16)
    v = numbers("bf16", 2)
    value = np.asarray(hloexec.run(module, x, v), np.float64)
    squares = [a * a for a in exact_numbers(v)]
    found = shadows_of(module, [x, v])[0, 0]
    places = np.flatnonzero(value)
    assert [found[place] for place in places] == squares
