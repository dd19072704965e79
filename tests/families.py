"""Families of element types: what is computed in one way. Where cases differ by type alone, a few of each are enough."""

import enum
from collections.abc import Iterable
from typing import Any

import pytest

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, Kind


class Family(enum.Enum):
    """Element types that one way of computing is for."""

    PRED = "pred"
    NARROW_SIGNED = "s1–s4"
    SIGNED = "s8–s64"
    NARROW_UNSIGNED = "u1–u4"
    UNSIGNED = "u8–u64"
    FLOAT_8 = "f4, f8"
    FLOAT_16 = "f16, bf16"
    FLOAT_32 = "f32"
    FLOAT_64 = "f64"
    COMPLEX = "c64, c128"


def family_of(element_type: ElementType) -> Family:
    """What is computed as the element type is."""
    if element_type.is_integral:
        signed = element_type.kind is Kind.SIGNED
        if element_type.is_narrow:
            return Family.NARROW_SIGNED if signed else Family.NARROW_UNSIGNED
        return Family.SIGNED if signed else Family.UNSIGNED
    if element_type.is_floating:
        wide = {32: Family.FLOAT_32, 64: Family.FLOAT_64, 16: Family.FLOAT_16}
        return wide.get(element_type.bits, Family.FLOAT_8)
    return Family.COMPLEX if element_type.is_complex else Family.PRED


def of_each_family(names: Iterable[str]) -> list[Any]:
    """Element types as parameters: the first and the last of each family run every time, those between are slow."""
    families: dict[Family, list[str]] = {}
    for name in names:
        families.setdefault(family_of(ELEMENT_TYPES[name]), []).append(name)
    return [
        pytest.param(name, marks=() if name in (members[0], members[-1]) else pytest.mark.slow)
        for members in families.values()
        for name in members
    ]
