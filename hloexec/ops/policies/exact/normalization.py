"""Batch normalization in doubled precision: every result is rounded once.

Arrays are f64 `[features, elements]`, a feature's elements in a row; what is one number per feature is `[features, 1]`.
What is infinite or NaN comes out as f64 arithmetic gives it.
"""

from __future__ import annotations

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.policies.exact import doubled
from hloexec.ops.policies.exact.doubled import Pair
from hloexec.ops.policies.exact.sums import add_pairs, kept_finite, sum_pairs


def mean_and_variance(x: Array) -> tuple[Pair, Pair]:
    """The mean of each row, and the mean square of the distances from it."""
    count = float(x.shape[1])
    mean = _divide(sum_pairs(pair(x)), pair(count))
    distance = _subtract(pair(x), mean)
    return mean, _divide(sum_pairs(_multiply(distance, distance)), pair(count))


def normalized(x: Array, mean: Pair, variance: Pair, epsilon: float, scale: Array, offset: Array) -> Array:
    """scale · (x − mean) / √(variance + epsilon) + offset."""
    deviation = _square_root(add_pairs(variance, pair(epsilon)))
    normal = _divide(_multiply(pair(scale), _subtract(pair(x), mean)), deviation)
    return _value(add_pairs(normal, pair(offset)))


def gradients(
    x: Array, g: Array, scale: Array, mean: Array, variance: Array, epsilon: float
) -> tuple[Array, Array, Array]:
    """grad_operand, grad_scale and grad_offset; see batch-norm-grad."""
    count = pair(float(max(1, x.shape[1])))
    deviation = _square_root(add_pairs(pair(variance), pair(epsilon)))
    normal = _divide(_subtract(pair(x), pair(mean)), deviation)
    grad_offset = sum_pairs(pair(g))
    grad_scale = sum_pairs(_multiply(pair(g), normal))
    along = _multiply(normal, _divide(grad_scale, count))
    rest = _subtract(_subtract(pair(g), _divide(grad_offset, count)), along)
    grad_operand = _multiply(_divide(pair(scale), deviation), rest)
    return _value(grad_operand), _value(grad_scale), _value(grad_offset)


def pair(value: Array | float) -> Pair:
    """An f64 as a pair."""
    high = np.asarray(value, np.float64)
    return high, np.zeros_like(high)


def _value(x: Pair) -> Array:
    return np.asarray(x[0] + x[1])


def _subtract(x: Pair, y: Pair) -> Pair:
    return add_pairs(x, (-y[0], -y[1]))


def _multiply(x: Pair, y: Pair) -> Pair:
    return kept_finite(doubled.multiply(x, y), x[0] * y[0])


def _divide(x: Pair, y: Pair) -> Pair:
    return kept_finite(doubled.divide(x, y), x[0] / y[0])


def _square_root(x: Pair) -> Pair:
    return kept_finite(doubled.square_root(x), np.sqrt(x[0]))
