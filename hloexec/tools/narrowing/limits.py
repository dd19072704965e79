"""What the errors on a few inputs say of those on others: one-sided tolerance limits.

Logarithms of the worst errors of training steps are nearly normal over inputs (of 300 inputs each, the kurtosis was 3.0
for a convolutional network and 3.5 for a transformer). The limit that all but a share of a normal distribution stays
below follows from the mean and the standard deviation of a sample, with a factor that makes up for both being
estimates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

LEAST_SAMPLE = 20
"""Of how many errors a limit is made: the factor grows fast for fewer."""
_COVERAGE = 0.999
_CONFIDENCE = 0.95
_LEAST = 1e-3
"""Severities below are taken for it: of an error of zero there is no logarithm."""


def upper_limit(severities: Sequence[float]) -> float:
    """The severity that 999 of 1000 inputs stay below, with 95 % confidence, from those of a sample.

    exp(mean + k · standard deviation) of the logarithms; k is the one-sided tolerance factor in the approximation of
    Natrella (NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.6.3), within 1 % for 20 and more.
    """
    logarithms = [math.log(max(severity, _LEAST)) for severity in severities]
    return math.exp(fmean(logarithms) + _factor(len(logarithms)) * stdev(logarithms))


def _factor(count: int) -> float:
    covered, sure = NormalDist().inv_cdf(_COVERAGE), NormalDist().inv_cdf(_CONFIDENCE)
    a = 1 - sure**2 / (2 * (count - 1))
    b = covered**2 - sure**2 / count
    return (covered + math.sqrt(covered**2 - a * b)) / a
