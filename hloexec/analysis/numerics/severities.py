"""Each element's error in units of its tolerance."""

from __future__ import annotations

import numpy as np

from hloexec.analysis.numerics.tolerances import Tolerance
from hloexec.analysis.numerics.ulps import magnitudes, same_bits, ulp_distances
from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.precision import largest_number
from hloexec.core.values import Array
from hloexec.ops.common import wide


def agreement(actual: Array, expected: Array, tolerance: Tolerance, scales: Array | None) -> Array:
    """Which elements of two arrays of one type agree within a tolerance: pred, of their dimensions."""
    with np.errstate(all="ignore"):
        x, y = wide(actual), wide(expected)
        ulps = ulp_distances(actual, expected)
        narrow = element_type_of(actual.dtype)
        found = severities(x, y, absolute_errors(x, y, ulps), ulps, tolerance, narrow, scales)
        return np.asarray(same_bits(actual, expected) | ~exceeds(found, tolerance))


def severities(
    x: Array,
    y: Array,
    errors: Array,
    ulps: Array,
    tolerance: Tolerance,
    narrow: ElementType,
    scales: Array | None = None,
    means: Array | None = None,
) -> Array:
    """The errors in units of the tolerance, NaN counting as infinite.

    `scales` are the elements' own, where a tolerance was measured (`numerics.sampling.spread`), and `means`
    those of the samples it was measured by. With them an error is the distance of the side that is farther from the
    mean, where that is less: two honest sides share an error, while a fault is of one of them.
    """
    if tolerates_nothing(tolerance):
        return np.where(np.isnan(errors), np.inf, errors)
    found = np.full(errors.shape, np.inf)
    if tolerance.rtol or tolerance.atol or tolerance.factor:
        if not tolerance.is_given and x.dtype.kind in "fc":
            # Beyond the largest number, a rounding decides between it and infinity.
            x, y = _clipped(x, narrow), _clipped(y, narrow)
            errors = np.abs(x - y)
            if means is not None:
                errors = np.fmin(errors, np.maximum(np.abs(x - means), np.abs(y - means)))
        sizes = magnitudes(y)
        allowed = tolerance.rtol * np.where(np.isfinite(sizes), sizes, 0.0)
        if scales is not None:
            allowed = np.hypot(allowed, tolerance.factor * scales)
        allowed = allowed + tolerance.atol
        found = np.where(errors == 0, 0.0, errors / allowed)
    if tolerance.ulp is not None:
        found = np.fmin(found, np.where(ulps == 0, 0.0, ulps / tolerance.ulp))
    return np.where(np.isnan(found), np.inf, found)


def exceeds(severity: Array, tolerance: Tolerance) -> Array:
    """Which severities a tolerance does not allow."""
    if not tolerates_nothing(tolerance):
        return np.asarray(severity > 1)
    # Who gives a tolerance of zero means numbers, of which −0 and +0 are one; else bits are meant.
    return np.asarray(severity > 0) if tolerance.is_given else np.ones(severity.shape, np.bool_)


def tolerates_nothing(tolerance: Tolerance) -> bool:
    """Whether elements must be the same."""
    return not (tolerance.rtol or tolerance.atol or tolerance.factor or tolerance.ulp)


def absolute_errors(x: Array, y: Array, ulps: Array) -> Array:
    """|x − y|: infinite or NaN where either is not finite, unless they are the same infinity."""
    if x.dtype.kind not in "fc":
        return ulps
    return np.where(x == y, 0.0, np.abs(x - y))


def _clipped(values: Array, entry: ElementType) -> Array:
    """Infinities replaced by the largest number of a type."""
    largest = largest_number(entry)
    if values.dtype.kind == "c":
        clipped = values.copy()
        clipped.real, clipped.imag = _clipped(values.real, entry), _clipped(values.imag, entry)
        return clipped
    return np.where(np.isinf(values), np.copysign(largest, values), values)
