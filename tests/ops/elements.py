"""Operands for elementwise operations: the special values of each element type, and random ones."""

from typing import Any

import numpy as np

from conformance.values import crossed, special
from hloexec.core.dtypes import ELEMENT_TYPES

__all__ = ["COMPLEXES", "FLOATS", "INTEGERS", "crossed", "elements"]

FLOATS = [name for name, entry in ELEMENT_TYPES.items() if entry.is_floating]
# jaxlib imports s1 as pred and refuses u1.
INTEGERS = [name for name, entry in ELEMENT_TYPES.items() if entry.is_integral and entry.bits > 1]
COMPLEXES = ["c64", "c128"]


def elements(name: str, random: int = 16, seed: int = 0) -> np.ndarray[Any, Any]:
    """Special values of an element type and `random` others; no number that is denormal in f32."""
    return special(name, np.random.default_rng(seed), random)
