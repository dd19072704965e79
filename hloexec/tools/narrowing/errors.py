"""How far the outputs of a narrowed module lie from those of the original, element by element.

The error of an element is |changed - original| / max(|original|, m), where m is the median of the magnitudes of the
array's elements that are finite and not zero. An element of at least the typical size is thus held to its own size, and
a smaller one to the typical: a relative error alone would never allow an element near zero to change, and a norm of the
array would let a small one change by any factor where a few are large. Of a scalar it is the relative error. An element
that is not finite has to stay what it is, and so have integers and booleans; where all elements are zero, all have to
stay zero.
"""

from __future__ import annotations

import math

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import widen


@frozen(eq=False)
class Expected:
    """An array of the original's outputs, and what the errors of its elements are relative to."""

    array: Array
    sizes: Array | None
    """None where elements have to stay as they are."""

    @classmethod
    def of(cls, array: Array) -> Expected:
        if not element_type_of(array.dtype).is_inexact:
            return cls(array, None)
        magnitudes = np.abs(_in_double(array))
        numbers = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
        typical = float(np.median(numbers)) if numbers.size else 0.0
        return cls(array, np.maximum(magnitudes, typical))


def worst_element(expected: Expected, changed: Array) -> tuple[float, tuple[int, ...]]:
    """The largest error of an element and where it is; infinity where an element changed that has to stay."""
    if not changed.size:
        return 0.0, ()
    with np.errstate(all="ignore"):
        if expected.sizes is None:
            errors = np.where(expected.array != changed, math.inf, 0.0)
        else:
            before, after = _in_double(expected.array), _in_double(changed)
            errors = np.abs(after - before) / expected.sizes
            same = (before == after) | (np.isnan(before) & np.isnan(after))
            errors = np.where(same, 0.0, np.where(np.isfinite(before) & np.isfinite(after), errors, math.inf))
    place = int(errors.argmax())
    index = tuple(int(number) for number in np.unravel_index(place, errors.shape))
    return float(errors.reshape(-1)[place]), index


def _in_double(array: Array) -> Array:
    """The array in f64, or in c128."""
    element_type: ElementType = element_type_of(array.dtype)
    return widen(array).astype(np.complex128 if element_type.is_complex else np.float64)
