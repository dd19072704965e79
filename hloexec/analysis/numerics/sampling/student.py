"""Student's t distribution, and the distribution of sample variances: the few statistical functions that are needed."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

_MOST_DEGREES = 200.0
"""Beyond, the normal distribution is as near as it matters; fewer degrees of freedom are on the safe side."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


@cache
def student_quantile(degrees: float, chance: float) -> float:
    """What |t| exceeds with this chance, where t follows Student's distribution with `degrees` degrees of freedom."""
    low, high = 0.0, 1.0
    while student_tail(high, degrees) > chance:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, degrees) > chance else (low, middle)
    return high


def student_tail(t: float, degrees: float) -> float:
    """P(|T| > t): with t = √ν tan φ the density is proportional to cos^(ν − 1) φ, of which this is the integral from φ
    to π/2 over that from 0, B(½, ν/2)/2."""
    count = min(degrees, _MOST_DEGREES)
    end = math.atan2(math.sqrt(count), t)
    angles = end / 2 * (_NODES + 1)
    integral = float(end / 2 * np.sum(_WEIGHTS * np.sin(angles) ** (count - 1)))
    whole = math.exp(math.lgamma(0.5) + math.lgamma(count / 2) - math.lgamma((count + 1) / 2)) / 2
    return integral / whole


def digamma(x: float) -> float:
    """ψ(x) for x > 0: ψ(x) = ψ(x + 1) − 1/x up to where its asymptotic series is exact (DLMF 5.11.2)."""
    shift = 0.0
    while x < 12:
        shift += 1 / x
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    return math.log(x) - 1 / (2 * x) - series - shift


def trigamma(x: float) -> float:
    """ψ′(x) for x > 0, in the same way (DLMF 5.15.8)."""
    shift = 0.0
    while x < 12:
        shift += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    series = 1 / x + square / 2 + square / x * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30)))
    return series + shift


def inverse_trigamma(y: float) -> float:
    """x > 0 with ψ′(x) = y > 0; ψ′ falls from infinity to 0."""
    low, high = 1e-6, 1.0
    while trigamma(high) > y:
        low, high = high, 2 * high
        if high > 1e12:
            return high
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if trigamma(middle) > y else (low, middle)
    return high
