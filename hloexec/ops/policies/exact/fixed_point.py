"""Constants and tables, computed from their definitions in whole numbers.

A *fixed* number is an `int` that stands for itself divided by 2^256. Python's integers are exact, so every machine
computes the same constants; the functions here lose a few units in the last of 256 places, and callers keep 106 of them
at most. `parts` cuts a fixed number into f64 that add up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import isqrt

import numpy as np

from hloexec.core.values import Array

_PLACES = 256
_ONE = 1 << _PLACES


def fixed(value: Fraction | int) -> int:
    """The fixed number next below a rational one."""
    return (value.numerator << _PLACES) // value.denominator


def _times(left: int, right: int) -> int:
    """The product of two fixed numbers."""
    return (left * right) >> _PLACES


def _series(first: int, following: Callable[[int, int], int], term: Callable[[int, int], int]) -> int:
    """Σ term(n, pₙ) with p₀ = `first` and pₙ₊₁ = following(n + 1, pₙ), until the powers vanish."""
    total, power, n = 0, first, 0
    while power not in (0, -1):
        total += term(n, power)
        n += 1
        power = following(n, power)
    return total


def _exponential(x: int) -> int:
    """eˣ by its Taylor series; for |x| ≤ 40 at most, where it loses 60 places."""
    return _series(_ONE, lambda n, power: _times(power, x) // n, lambda n, power: power)


def logarithm(value: Fraction) -> int:
    """log(v) = 2 artanh((v − 1) / (v + 1)); for v around 1."""
    x = fixed((value - 1) / (value + 1))
    square = _times(x, x)
    return 2 * _series(x, lambda n, power: _times(power, square), lambda n, power: power // (2 * n + 1))


def arctangent(value: Fraction) -> int:
    """arctan(v), |v| ≤ 1, by Euler's series Σ 4ⁿ n!² / (2n + 1)! · v^(2n + 1) / (1 + v²)^(n + 1)."""
    factor = fixed(value * value / (1 + value * value))
    return _series(
        fixed(value / (1 + value * value)),
        lambda n, power: _times(power, factor) * 2 * n // (2 * n + 1),
        lambda n, power: power,
    )


def sine(x: int) -> int:
    """sin x by its Taylor series, for |x| ≤ 1."""
    square = _times(x, x)
    return _series(x, lambda n, power: -_times(power, square) // (2 * n * (2 * n + 1)), lambda n, power: power)


def cosine(x: int) -> int:
    """cos x by its Taylor series, for |x| ≤ 1."""
    square = _times(x, x)
    return _series(_ONE, lambda n, power: -_times(power, square) // (2 * n * (2 * n - 1)), lambda n, power: power)


def root_of_two(numerator: int, halvings: int) -> int:
    """2^(numerator / 2^halvings) by repeated square roots."""
    value = _ONE << numerator
    for _ in range(halvings):
        value = isqrt(value << _PLACES)
    return value


LN2 = logarithm(Fraction(2))
PI = 16 * arctangent(Fraction(1, 5)) - 4 * arctangent(Fraction(1, 239))
"""Machin's formula."""


def two_over_pi_words(count: int) -> Array:
    """The first bits of 2/π after the binary point as `count` words of 32 bits, the most significant first."""
    places = 32 * count
    guard = places + 64

    def inverse_arctangent(n: int) -> int:
        following, term = lambda k, power: power // (n * n), lambda k, power: (-1) ** k * (power // (2 * k + 1))
        return _series((1 << guard) // n, following, term)

    pi = 16 * inverse_arctangent(5) - 4 * inverse_arctangent(239)
    digits = ((2 << 2 * guard) // pi) >> (guard - places)
    return np.array([(digits >> (places - 32 * (i + 1))) & 0xFFFFFFFF for i in range(count)], np.uint64)


def error_function_coefficients(node: Fraction, count: int) -> list[int]:
    """The Taylor coefficients of erf about `node`, from the order 0 up.

    Those of g(x) = exp(−x²) follow from g′ = −2x g: (n + 1) gₙ₊₁ = −2 (a gₙ + gₙ₋₁); erf is 2/√π times its integral.
    """
    a = fixed(node)
    gauss = [_ONE * _ONE // _exponential(_times(a, a)), 0]
    gauss[1] = -2 * _times(a, gauss[0])
    for n in range(1, count):
        gauss.append(-2 * (_times(a, gauss[n]) + gauss[n - 1]) // (n + 1))
    scale = 2 * _ONE * _ONE // isqrt(PI << _PLACES)
    square = _times(a, a)
    integral = _series(a, lambda n, power: -_times(power, square) // n, lambda n, power: power // (2 * n + 1))
    return [_times(scale, integral), *(_times(scale, gauss[n]) // (n + 1) for n in range(count - 1))]


def parts(value: int, *bits: int) -> tuple[float, ...]:
    """f64 numbers that add up to a fixed number: one of at most so many bits for each of `bits`, cut off, then a last
    one rounded to 53."""
    found = []
    for count in bits:
        dropped = max(0, abs(value).bit_length() - count)
        head = (abs(value) >> dropped) << dropped
        head = head if value >= 0 else -head
        found.append(float(Fraction(head, _ONE)))
        value -= head
    return (*found, float(Fraction(value, _ONE)))


def table(values: Iterable[int]) -> tuple[Array, Array]:
    """Fixed numbers as two arrays of f64: the numbers rounded, and what that leaves."""
    heads = [(value, float(Fraction(value, _ONE))) for value in values]
    rests = [float(Fraction(value - int(Fraction(head) * _ONE), _ONE)) for value, head in heads]
    columns = np.array([[head for _, head in heads], rests])
    columns.setflags(write=False)
    return columns[0], columns[1]
