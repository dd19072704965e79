"""Powers of floating-point numbers, by one formula however the exponent lies in memory."""

from __future__ import annotations

import numpy as np

from hloexec.core.values import Array


def power(base: Array, exponent: Array) -> Array:
    """base to the power exponent, squares rounded once.

    NumPy has other formulas for an exponent that is a single number, or one repeated by strides of 0, which are right
    for squares alone (√x is not x to the power ½ at −0 and −∞), and round otherwise than its general one. Here each
    element uses its own.
    """
    if exponent.size == 1 or (exponent.size and not any(exponent.strides)):
        if exponent.item(0) == 2:
            return np.asarray(np.multiply(base, base))
        exponent = np.full(np.broadcast_shapes(base.shape, exponent.shape), exponent[(0,) * exponent.ndim])
        return np.asarray(np.power(base, exponent))
    result = np.asarray(np.power(base, exponent))
    squares = exponent == 2
    if squares.any():
        np.multiply(base, base, out=result, where=squares)
    return result
