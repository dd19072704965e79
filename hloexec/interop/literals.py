"""LiteralProto to values: how XLA stores arrays in the snapshots it dumps (xla/xla_data.proto).

A literal has a shape and, in the field that belongs to its element type, its elements in the order of the shape's
layout. Elements narrower than a byte take one byte each.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.dtypes import ELEMENT_TYPES, ElementType, Kind
from hloexec.errors import InputError, UnsupportedError
from hloexec.interop.wire import Message, read
from hloexec.structs import frozen
from hloexec.values import TOKEN, Array, Value
from hloexec.wording import braced

__all__ = ["literal_value"]


class _Encoding(enum.Enum):
    """How the elements of a type are written."""

    BYTES = enum.auto()
    """As they lie in memory, little-endian."""
    VARINTS = enum.auto()


@frozen
class _Storage:
    """Where a literal keeps the elements of one type."""

    element_type: ElementType
    field: int
    encoding: _Encoding


def _storages() -> dict[int, _Storage]:
    """By the number of the primitive type: its HLO name, and the field of LiteralProto that holds its elements."""
    in_bytes = """
        2 s8 15, 6 u8 3, 3 s16 17, 7 u16 16, 10 f16 11, 16 bf16 13, 11 f32 8, 12 f64 9, 15 c64 12, 18 c128 18,
        30 s1 30, 26 s2 26, 21 s4 21, 31 u1 31, 27 u2 27, 22 u4 22,
        19 f8e5m2 19, 28 f8e4m3 28, 20 f8e4m3fn 20, 23 f8e4m3b11fnuz 23, 29 f8e3m4 29, 24 f8e5m2fnuz 24,
        25 f8e4m3fnuz 25, 32 f4e2m1fn 32, 33 f8e8m0fnu 33
    """
    as_varints = "1 pred 2, 4 s32 4, 5 s64 5, 8 u32 6, 9 u64 7"
    return {
        int(number): _Storage(ELEMENT_TYPES[name], int(field), encoding)
        for encoding, table in ((_Encoding.BYTES, in_bytes), (_Encoding.VARINTS, as_varints))
        for number, name, field in (entry.split() for entry in table.split(","))
    }


_STORAGES = _storages()
_TUPLE, _TOKEN = 13, 17
_SHAPE, _TUPLE_LITERALS = 1, 10
_ELEMENT_TYPE, _DIMENSIONS, _LAYOUT, _IS_DYNAMIC_DIMENSION = 2, 3, 5, 6
_MINOR_TO_MAJOR = 1
_DEEPEST = 100
"""How deep messages nest at most in protocol buffers."""


def literal_value(data: memoryview | bytes, depth: int = 0) -> Value:
    """The value of a serialized LiteralProto; raises InputError where it is damaged, UnsupportedError where its shape
    has dynamic dimensions."""
    if depth > _DEEPEST:
        raise InputError(f"tuples nest deeper than {_DEEPEST} levels")
    literal = read(data)
    shape = read(literal.blob(_SHAPE))
    number = shape.number(_ELEMENT_TYPE)
    if number == _TUPLE:
        return tuple(literal_value(element, depth + 1) for element in literal.blobs(_TUPLE_LITERALS))
    if number == _TOKEN:
        return TOKEN
    if number not in _STORAGES:
        raise InputError(f"a literal has the primitive type {number}, which has no elements")
    if shape.varints(_IS_DYNAMIC_DIMENSION).any():
        raise UnsupportedError("a literal has dynamic dimensions, whose extents the file does not say")
    dimensions = [int(size) for size in shape.varints(_DIMENSIONS).view(np.int64)]
    storage = _STORAGES[number]
    elements = _elements(literal, storage, dimensions)
    return _from_layout(elements, dimensions, read(shape.blob(_LAYOUT)))


def _elements(literal: Message, storage: _Storage, dimensions: Sequence[int]) -> Array:
    """The elements in the order of the layout."""
    element_type = storage.element_type
    if storage.encoding is _Encoding.VARINTS:
        elements: Array = literal.varints(storage.field)
        # A negative s32 is written as 64 bits; the low half is it.
        elements = (elements != 0) if element_type.kind is Kind.PRED else elements.astype(element_type.storage)
    else:
        raw = literal.bytes(storage.field)
        size = element_type.byte_size
        if len(raw) % size:
            raise InputError(
                f"a literal of {element_type.name} has {len(raw)} bytes, which is not a multiple of {size}"
            )
        elements = _decoded(raw, element_type)
    if min(dimensions, default=0) < 0 or math.prod(dimensions) != len(elements):
        shape = f"{element_type.name}[{','.join(map(str, dimensions))}]"
        raise InputError(f"a literal of shape {shape} has {len(elements)} elements")
    return elements


def _decoded(raw: memoryview, element_type: ElementType) -> Array:
    little_endian = np.dtype(element_type.storage).newbyteorder("<")
    if element_type.bits >= 8 or not element_type.is_integral:
        return np.frombuffer(raw, little_endian).astype(element_type.storage, copy=False)
    unused = 8 - element_type.bits
    # Shifting to the top and back extends the sign, or clears what is above an unsigned element.
    return (np.frombuffer(raw, element_type.compute) << unused >> unused).astype(element_type.storage)


def _from_layout(elements: Array, dimensions: Sequence[int], layout: Message) -> Array:
    """The array of the logical shape: dimensions are stored from the most major one to the most minor."""
    minor_to_major = [int(axis) for axis in layout.varints(_MINOR_TO_MAJOR)] or list(range(len(dimensions)))[::-1]
    if sorted(minor_to_major) != list(range(len(dimensions))):
        raise InputError(f"the layout {braced(minor_to_major)} does not fit {len(dimensions)} dimensions")
    stored: Any = elements.reshape([dimensions[axis] for axis in reversed(minor_to_major)])
    order = np.argsort(minor_to_major[::-1]) if minor_to_major else ()
    return np.asarray(stored.transpose(order))
