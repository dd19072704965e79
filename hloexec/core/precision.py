"""The precision and range of floating-point and complex types."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType


def part_type(entry: ElementType) -> ElementType:
    """The type of a complex type's parts; any other type itself."""
    return ELEMENT_TYPES[f"f{entry.bits // 2}"] if entry.is_complex else entry


@cache
def unit_roundoff(entry: ElementType) -> float:
    """u of a floating or complex type: half the distance from 1 to the next larger number (of its parts)."""
    return float(2.0 ** -(part_type(entry).mantissa_bits + 1))


@cache
def smallest_normal(entry: ElementType) -> float:
    """The smallest normal number of a floating or complex type (of its parts)."""
    return float(_info(entry).smallest_normal)


@cache
def largest_number(entry: ElementType) -> float:
    """The largest finite number of a floating or complex type (of its parts)."""
    return float(_info(entry).max)


@cache
def least_number(entry: ElementType) -> float:
    """The least finite number of a floating or complex type (of its parts): below zero unless it has no signs."""
    return float(_info(entry).min)


def _info(entry: ElementType) -> Any:
    return ml_dtypes.finfo(part_type(entry).storage)
