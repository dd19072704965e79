"""How libraries for GPUs round: as HLO does, but for integers and floats of eight bits, which saturate."""

from __future__ import annotations

import numpy as np

from hloexec.dtypes import ElementType
from hloexec.ops.common import narrow
from hloexec.precision import largest_number
from hloexec.values import Array

__all__ = ["saturating"]


def saturating(array: Array, element_type: ElementType) -> Array:
    """The array rounded once to `element_type`, integers to the nearest; these and 8-bit floats saturate, NaN aside.

    HLO's convert truncates towards an integer, and lets 8-bit floats overflow.
    """
    with np.errstate(all="ignore"):
        if element_type.is_integral:
            limits = np.iinfo(element_type.compute)
            wide = np.nan_to_num(np.rint(array.astype(np.float64)), nan=0.0)
            return narrow(np.clip(wide, limits.min, limits.max).astype(np.int64), element_type)
        if element_type.is_floating and element_type.bits == 8:
            largest = array.dtype.type(largest_number(element_type))
            array = np.clip(array, -largest, largest)
        return narrow(array, element_type)
