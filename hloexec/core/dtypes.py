"""The table of element types, and the precision and range of those with a floating point.

An element type has an HLO name, a *storage* type (of the arrays that hold it) and a *compute* type (for arithmetic).
They differ where NumPy's or ml_dtypes' own arithmetic is not accurate: narrow floats are computed in f32 and rounded
once, 1-, 2- and 4-bit integers are computed in 8 bits and wrap. Storage types and element types correspond one to one,
so the element type of an array is always known.
"""

from __future__ import annotations

import enum
from functools import cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from hloexec.core.structs import frozen

DType: TypeAlias = "np.dtype[Any]"
"""A type of NumPy's, or one that ml_dtypes registers with it."""


class Kind(enum.Enum):
    """What the bits of an element mean."""

    PRED = "pred"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"
    COMPLEX = "complex"
    TOKEN = "token"
    OPAQUE = "opaque"


@frozen(eq=False)
class ElementType:
    """One element type. There is exactly one instance per type, so `is` compares them."""

    name: str
    kind: Kind
    bits: int
    """Width in bits, as HLO counts it (pred is 8 bits wide in memory but holds one)."""
    storage: DType
    """The NumPy type of arrays that hold this element type."""
    compute: DType
    """The NumPy type in which arithmetic on it is done."""
    accumulate: DType
    """The NumPy type in which contractions and the usual reductions add up."""
    exponent_bits: int = 0
    mantissa_bits: int = 0
    """Explicitly stored bits of the significand (floats only)."""
    has_inf: bool = False
    has_nan: bool = False
    has_negative_zero: bool = False

    @property
    def is_integral(self) -> bool:
        """Signed or unsigned integer; pred is not."""
        return self.kind is Kind.SIGNED or self.kind is Kind.UNSIGNED

    @property
    def is_floating(self) -> bool:
        """Whether it is a real floating-point type, of any width."""
        return self.kind is Kind.FLOAT

    @property
    def has_sign(self) -> bool:
        """Of floats, whether a bit is left for the sign."""
        return self.exponent_bits + self.mantissa_bits < self.bits

    @property
    def is_complex(self) -> bool:
        """Whether it is c64 or c128."""
        return self.kind is Kind.COMPLEX

    @property
    def is_inexact(self) -> bool:
        """Whether elements are floating-point or complex numbers, which are rounded."""
        return self.is_floating or self.is_complex

    @property
    def integer_range(self) -> tuple[int, int]:
        """The least and the largest number of an integral type."""
        highest = (1 << self.bits - (self.kind is Kind.SIGNED)) - 1
        return (-highest - 1 if self.kind is Kind.SIGNED else 0), highest

    @property
    def is_array(self) -> bool:
        """Whether arrays of this type exist (all but token and opaque)."""
        return self.kind is not Kind.TOKEN and self.kind is not Kind.OPAQUE

    @property
    def is_narrow(self) -> bool:
        """Whether arithmetic widens before it computes and rounds after it."""
        return self.storage != self.compute

    @property
    def byte_size(self) -> int:
        """Bytes one element takes in a hloexec array (sub-byte types take one each)."""
        return self.storage.itemsize

    def __repr__(self) -> str:
        return self.name

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis asks for, which would show every field."""
        printer.text(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return element_type, (self.name,)


def _integer(name: str, bits: int, storage: Any, compute: Any = None) -> ElementType:
    kind = Kind.SIGNED if name.startswith("s") else Kind.UNSIGNED
    dtype = np.dtype(storage)
    computed = np.dtype(compute or storage)
    return ElementType(name, kind, bits, dtype, computed, computed)


def _float(
    name: str, bits: int, storage: Any, exponent: int, mantissa: int, special: str = "inf nan -0"
) -> ElementType:
    dtype = np.dtype(storage)
    compute = dtype if dtype in (np.dtype(np.float32), np.dtype(np.float64)) else np.dtype(np.float32)
    present = special.split()
    return ElementType(
        name,
        Kind.FLOAT,
        bits,
        dtype,
        compute,
        compute,
        exponent_bits=exponent,
        mantissa_bits=mantissa,
        has_inf="inf" in present,
        has_nan="nan" in present,
        has_negative_zero="-0" in present,
    )


def _complex(name: str, bits: int, storage: Any) -> ElementType:
    dtype = np.dtype(storage)
    return ElementType(
        name, Kind.COMPLEX, bits, dtype, dtype, dtype, has_inf=True, has_nan=True, has_negative_zero=True
    )


_NOTHING = np.dtype("V1")

_TABLE = (
    ElementType("pred", Kind.PRED, 8, np.dtype(np.bool_), np.dtype(np.bool_), np.dtype(np.bool_)),
    _integer("s1", 1, ml_dtypes.int1, np.int8),
    _integer("s2", 2, ml_dtypes.int2, np.int8),
    _integer("s4", 4, ml_dtypes.int4, np.int8),
    _integer("s8", 8, np.int8),
    _integer("s16", 16, np.int16),
    _integer("s32", 32, np.int32),
    _integer("s64", 64, np.int64),
    _integer("u1", 1, ml_dtypes.uint1, np.uint8),
    _integer("u2", 2, ml_dtypes.uint2, np.uint8),
    _integer("u4", 4, ml_dtypes.uint4, np.uint8),
    _integer("u8", 8, np.uint8),
    _integer("u16", 16, np.uint16),
    _integer("u32", 32, np.uint32),
    _integer("u64", 64, np.uint64),
    _float("f16", 16, np.float16, 5, 10),
    _float("bf16", 16, ml_dtypes.bfloat16, 8, 7),
    _float("f32", 32, np.float32, 8, 23),
    _float("f64", 64, np.float64, 11, 52),
    _float("f8e5m2", 8, ml_dtypes.float8_e5m2, 5, 2),
    _float("f8e4m3", 8, ml_dtypes.float8_e4m3, 4, 3),
    _float("f8e4m3fn", 8, ml_dtypes.float8_e4m3fn, 4, 3, "nan -0"),
    _float("f8e4m3b11fnuz", 8, ml_dtypes.float8_e4m3b11fnuz, 4, 3, "nan"),
    _float("f8e5m2fnuz", 8, ml_dtypes.float8_e5m2fnuz, 5, 2, "nan"),
    _float("f8e4m3fnuz", 8, ml_dtypes.float8_e4m3fnuz, 4, 3, "nan"),
    _float("f8e3m4", 8, ml_dtypes.float8_e3m4, 3, 4),
    _float("f4e2m1fn", 4, ml_dtypes.float4_e2m1fn, 2, 1, "-0"),
    _float("f8e8m0fnu", 8, ml_dtypes.float8_e8m0fnu, 8, 0, "nan"),
    _complex("c64", 64, np.complex64),
    _complex("c128", 128, np.complex128),
    ElementType("token", Kind.TOKEN, 0, _NOTHING, _NOTHING, _NOTHING),
    ElementType("opaque", Kind.OPAQUE, 0, _NOTHING, _NOTHING, _NOTHING),
)

ELEMENT_TYPES: dict[str, ElementType] = {entry.name: entry for entry in _TABLE}
"""Every element type by its HLO name."""

_BY_STORAGE = {entry.storage: entry for entry in _TABLE if entry.is_array}


def element_type(name: str) -> ElementType:
    """The element type of an HLO name such as `bf16`; KeyError where there is none."""
    return ELEMENT_TYPES[name]


def element_type_of(dtype: DType) -> ElementType:
    """The element type whose arrays have this NumPy type; KeyError where HLO has none (float128, str, …)."""
    return _BY_STORAGE[dtype]


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
