"""How far a result may be from the exact one, and how far it is.

u is the unit roundoff of a type: half the distance from 1 to the next larger number. What rounds at every step has

    fl(x₁ + … + xₙ) = Σ xᵢ (1 + θᵢ),  |θᵢ| ≤ γ(n) = n·u / (1 − n·u)

in whatever order it adds, since no term passes through more than n − 1 additions (Higham, Accuracy and Stability of
Numerical Algorithms, section 4.2). A product rounds once more, a complex product of two terms at most √2·γ(2) (section
3.6), which a factor of 4 covers. Narrow floats add in f32 and round once at the end: u(f32) for the sum, u(type) for
the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.cell import Array
from hloexec.core.dtypes import ElementType, element_type_of, unit_roundoff
from hloexec.ops.common import narrow


def allowed_steps(entry: ElementType) -> float:
    """4 representable values in f32 and f64, 1 in narrower types: 4 ULP of f32 move a rounding by one at most.

    Complex numbers are measured in units of ε·|result|. c64 is held to 4 of them (the functions are evaluated in c128);
    c128 formulas compose up to a dozen rounded steps, and get 16.
    """
    if entry.is_complex:
        return 4.0 if entry.bits == 64 else 16.0
    return 4.0 if entry.bits >= 32 else 1.0


def smallest_normal(entry: ElementType) -> float:
    """The smallest normal number of a floating or complex type."""
    if entry.is_complex or entry.bits >= 32:
        part = {"c64": "f4", "c128": "f8"}.get(entry.name, f"f{entry.bits // 8}")
        return float(np.finfo(part).smallest_normal)
    return float(2.0 ** (2 - 2 ** (entry.exponent_bits - 1)))


def accumulation(entry: ElementType, length: int, stepwise: bool, exact: Array, magnitude: Array) -> Array:
    """The bound of Σ over `length` terms: γ(length + 2)·Σ|terms|, and the rounding of the result.

    `magnitude` is Σ|terms|. f64's exact value is another f64 computation with the same bound, so its bound is doubled.
    A partial sum or a result below the smallest normal number may be flushed to zero: one such number is added.
    """
    own = unit_roundoff(entry)
    summing = own if stepwise or entry.bits >= 32 else 2.0**-24
    gamma = (length + 2) * summing / (1 - min(0.5, (length + 2) * summing))
    factor = (4.0 if entry.is_complex else 1.0) * (2.0 if entry.name in ("f64", "c128") else 1.0)
    with np.errstate(all="ignore"):
        return np.asarray(
            factor * gamma * magnitude + own * (np.abs(exact) + gamma * magnitude) + smallest_normal(entry)
        )


def normwise(entry: ElementType, factor: float, exact: Array) -> float:
    """factor · u · ‖exact‖₂, with f32's u beside the type's own for types that compute in f32."""
    unit = unit_roundoff(entry)
    doubled = 2.0 if entry.name in ("f64", "c128") else 1.0
    summing = 2.0**-24 if entry.bits < 32 else unit
    norm = float(np.linalg.norm(np.asarray(exact, np.complex128).ravel()))
    return doubled * (factor * summing + 2 * unit) * norm + smallest_normal(entry)


def rounded(exact: Any, entry: ElementType) -> Array:
    """The exact results in an element type: f64 (c128) arrays, or sequences of mpmath numbers, rounded once."""
    if not isinstance(exact, np.ndarray) or exact.dtype == object:
        number = complex if entry.is_complex else float
        exact = np.array([number(value) for value in np.ravel(exact)]).reshape(np.shape(exact))
    with np.errstate(all="ignore"):
        return exact.astype(entry.storage) if entry.is_complex else narrow(np.asarray(exact, np.float64), entry)


def steps(values: Array, reference: Array) -> Array:
    """How many representable values lie from one to the other: 0 for two NaNs, infinity for one, or for unlike zeros.

    Complex: |difference| in units of ε·|reference|; infinity where only one is not finite.
    """
    entry = element_type_of(values.dtype)
    with np.errstate(all="ignore"):
        if entry.is_complex:
            return _relative(values, reference, entry)
        wide_values, wide_reference = (array.astype(np.float64) for array in (values, reference))
        distance = np.abs(_ordinals(values, entry) - _ordinals(reference, entry))
        zeros = (wide_values == 0) & (wide_reference == 0)
        unlike = zeros & (np.signbit(wide_values) != np.signbit(wide_reference))
        nan, its_nan = np.isnan(wide_values), np.isnan(wide_reference)
        return np.where(nan & its_nan, 0.0, np.where((nan != its_nan) | unlike, np.inf, distance))


def _ordinals(array: Array, entry: ElementType) -> Array:
    """The number of each value in the order of all values of the type."""
    bits = np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.itemsize}")
    if not entry.has_sign:
        return bits.astype(np.float64)
    sign = 1 << entry.bits - 1
    magnitude = (bits & (sign - 1)).astype(np.int64)
    signed = np.where((bits & sign) != 0, -magnitude, magnitude)
    # Differences of f64 ordinals exceed int64; as f64 they are off by so little that no bound notices.
    return signed.astype(np.longdouble)


def _relative(values: Array, reference: Array, entry: ElementType) -> Array:
    epsilon = 2 * unit_roundoff(entry)
    wide, exact = values.astype(np.complex128), reference.astype(np.complex128)
    error = np.abs(wide - exact) / (np.abs(exact) * epsilon)
    error = np.where(wide == exact, 0.0, error)
    both = ~np.isfinite(wide) & ~np.isfinite(exact)
    return np.where(both, 0.0, np.where(np.isnan(error), np.inf, error))
