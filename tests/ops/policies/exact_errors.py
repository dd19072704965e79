"""Errors of results in units in the last place of their element type, against numbers of any precision."""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

import hloexec
from hloexec.core.dtypes import ElementType, element_type_of

BOUND = 0.5 + 2.0**-20
"""What the `exact` policy promises of f32 and narrower results."""


def to_fraction(value: Any) -> Fraction:
    """The value of an mpmath number, exactly."""
    sign, mantissa, exponent, _ = value._mpf_
    whole = -int(mantissa) if sign else int(mantissa)
    return Fraction(whole << max(exponent, 0), 1 << max(-exponent, 0))


def _error(actual: float, expected: Fraction, entry: ElementType) -> float:
    """In units of the last place of the element type at what was expected; denormals all have the same."""
    # Fractions would find common divisors in each step.
    numerator, denominator = actual.as_integer_ratio()
    wanted, divisor = expected.numerator, expected.denominator
    exponent = abs(wanted).bit_length() - divisor.bit_length()
    if abs(wanted) << max(-exponent, 0) < divisor << max(exponent, 0):
        exponent -= 1
    lowest = 2 - (1 << (entry.exponent_bits - 1))
    place = (max(exponent, lowest) if wanted else lowest) - entry.mantissa_bits
    difference = abs(numerator * divisor - wanted * denominator)
    return (difference << max(-place, 0)) / ((denominator * divisor) << max(place, 0))


def largest_error(actual: Any, expected: Iterable[Fraction]) -> float:
    """The largest error of finite results; where the exact one overflows, the result must be what it rounds to."""
    entry = element_type_of(actual.dtype)
    worst = 0.0
    for got, want in zip(np.ravel(actual).astype(np.float64).tolist(), expected, strict=True):
        if math.isfinite(got):
            worst = max(worst, _error(got, want, entry))
        else:
            largest = Fraction(2) ** (1 << (entry.exponent_bits - 1)) * (
                1 - Fraction(1, 2 << (entry.mantissa_bits + 1))
            )
            assert not math.isnan(got) or not entry.has_inf, f"NaN where {float(want)} was expected"
            assert abs(want) >= largest, f"{got} where {float(want)} was expected"
    return worst


def evaluate_exactly(opcode: str, *operands: Any, result: str | None = None, attributes: str = "") -> Any:
    """The result of one instruction under the `exact` policy; without `result`, it has the shape of the operands."""
    shapes = [f"{element_type_of(x.dtype).name}[{','.join(map(str, x.shape))}]" for x in operands]
    parameters = "\n".join(f"  p{i} = {shape} parameter({i})" for i, shape in enumerate(shapes))
    names = ", ".join(f"p{i}" for i in range(len(operands)))
    root = f"  ROOT r = {result or shapes[0]} {opcode}({names}){attributes}"
    return hloexec.run(
        hloexec.parse(f"HloModule m\n\nENTRY e {{\n{parameters}\n{root}\n}}\n"), *operands, numerics="exact"
    )


def context(bits: int) -> Any:
    """An mpmath context of that precision."""
    made = mpmath.MPContext()
    made.prec = bits
    return made
