"""ShapeProto, LayoutProto and LiteralProto to shapes and values (xla/xla_data.proto).

LiteralProto to values: how XLA stores arrays in the snapshots it dumps (xla/xla_data.proto). A literal has a shape and,
in the field that belongs to its element type, its elements in the order of the shape's layout. Elements narrower than a
byte take one byte each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, Kind
from hloexec.core.ir import (
    UNBOUNDED,
    ArrayShape,
    BufferShape,
    Layout,
    Literal,
    Shape,
    SplitConfig,
    TupleShape,
    map_shape,
)
from hloexec.core.values import TOKEN, Array, Value
from hloexec.core.wording import braced
from hloexec.errors import InputError, UnsupportedError
from hloexec.language.interop.wire import Message, read

_ELEMENT_TYPE, _DIMENSIONS, _TUPLE_SHAPES, _LAYOUT, _IS_DYNAMIC_DIMENSION = 2, 3, 4, 5, 6
_TUPLE, _BUFFER = 13, 34
_PRIMITIVE_TYPES = """
    pred 1, s1 30, s2 26, s4 21, s8 2, s16 3, s32 4, s64 5, u1 31, u2 27, u4 22, u8 6, u16 7, u32 8, u64 9, f16 10,
    f32 11, bf16 16, f64 12, f8e5m2 19, f8e4m3 28, f8e4m3fn 20, f8e4m3b11fnuz 23, f8e3m4 29, f8e5m2fnuz 24,
    f8e4m3fnuz 25, f4e2m1fn 32, f8e8m0fnu 33, c64 15, c128 18, opaque 14, token 17
"""
_BY_NUMBER = {
    int(number): ELEMENT_TYPES[name] for name, number in (entry.split() for entry in _PRIMITIVE_TYPES.split(","))
}
DEEPEST = 100
"""How deep messages nest at most in protocol buffers."""
_COMBINED = -1
"""A tile's dimension that is combined with the next."""


def shapes_of(message: Message, number: int) -> tuple[Shape, ...]:
    """The shapes of a repeated field."""
    return tuple(shape_of(bytes(blob)) for blob in message.blobs(number))


@lru_cache(maxsize=4096)  # most instructions of a module have one of few shapes
def shape_of(data: bytes, depth: int = 0) -> Shape:
    """The shape of a serialized ShapeProto; raises InputError where it is damaged."""
    if depth > DEEPEST:
        raise InputError(f"tuples nest deeper than {DEEPEST} levels")
    shape = read(data)
    number = shape.integer(_ELEMENT_TYPE)
    if number in (_TUPLE, _BUFFER):
        parts = tuple(shape_of(bytes(blob), depth + 1) for blob in shape.blobs(_TUPLE_SHAPES))
        if number == _TUPLE:
            return TupleShape(parts)
        if len(parts) != 1 or not isinstance(parts[0], ArrayShape):
            raise InputError("a buffer holds one array")
        return BufferShape(parts[0])
    dynamic = tuple(map(bool, shape.integers(_IS_DYNAMIC_DIMENSION)))
    sizes = shape.integers(_DIMENSIONS)
    if len(dynamic) not in (0, len(sizes)):
        raise InputError(f"a shape has {len(sizes)} dimensions, of which {len(dynamic)} may be dynamic")
    dynamic = dynamic if any(dynamic) else ()
    bounds = tuple(UNBOUNDED if size < 0 and dynamic else size for size in sizes)
    layout = _layout(shape.message(_LAYOUT)) if _LAYOUT in shape else None
    return ArrayShape(_element_type(number), bounds, layout, dynamic)


def _element_type(number: int) -> ElementType:
    if number not in _BY_NUMBER:
        raise InputError(f"a shape has the primitive type {number}, which is not known")
    return _BY_NUMBER[number]


def _layout(layout: Message) -> Layout:
    kinds = layout.integers(9)
    marks = [
        [mark if flags and not flags[place] else "" for place in range(len(kinds))]
        for mark, flags in (("+", layout.integers(13)), ("~", layout.integers(14)))
        if len(flags) in (0, len(kinds))
    ]
    if not {0, 1, 2, 3}.issuperset(kinds) or len(marks) != 2:
        raise InputError("a layout has kinds of dimensions that are not known")
    return Layout(
        minor_to_major=layout.integers(1),
        dim_level_types=tuple("DCSH"[kind] + first + last for kind, first, last in zip(kinds, *marks, strict=True)),
        tiles=tuple(tuple(_COMBINED if size < 0 else size for size in tile.integers(1)) for tile in layout.messages(6)),
        tail_padding_alignment_in_elements=layout.integer(16) or 1,
        index_primitive_type=_element_type(layout.integer(11)) if 11 in layout else None,
        pointer_primitive_type=_element_type(layout.integer(12)) if 12 in layout else None,
        element_size_in_bits=layout.integer(7),
        memory_space=layout.integer(8),
        split_configs=tuple(SplitConfig(split.integer(1), split.integers(2)) for split in layout.messages(17)),
        dynamic_shape_metadata_prefix_bytes=layout.integer(15),
    )


def _fields(table: str) -> dict[str, int]:
    """The fields of LiteralProto that hold elements, by the HLO names of their types."""
    return {name: int(field) for name, field in (entry.split() for entry in table.split(","))}


_IN_BYTES = _fields(
    "s8 15, u8 3, s16 17, u16 16, f16 11, bf16 13, f32 8, f64 9, c64 12, c128 18, s1 30, s2 26, s4 21, u1 31, u2 27, "
    "u4 22, f8e5m2 19, f8e4m3 28, f8e4m3fn 20, f8e4m3b11fnuz 23, f8e3m4 29, f8e5m2fnuz 24, f8e4m3fnuz 25, f4e2m1fn 32, "
    "f8e8m0fnu 33"
)
"""What lies there as in memory, little-endian."""
_AS_VARINTS = _fields("pred 2, s32 4, s64 5, u32 6, u64 7")
_SHAPE, _TUPLE_LITERALS = 1, 10


def literal_value(data: memoryview | bytes) -> Value:
    """The value of a serialized LiteralProto; raises InputError where it is damaged, UnsupportedError where its shape
    has dynamic dimensions."""
    return literal_of(data).mapped(_leaf)


def _leaf(literal: Literal) -> Value:
    if literal.value is None and isinstance(literal.shape, ArrayShape) and literal.shape.is_array:
        raise InputError(f"a literal of shape {literal.shape} has no elements")
    return TOKEN if literal.value is None else literal.value  # type: ignore[return-value]


def literal_of(data: memoryview | bytes, depth: int = 0) -> Literal:
    """The literal of a serialized LiteralProto, elided where it has a shape and no elements."""
    if depth > DEEPEST:
        raise InputError(f"tuples nest deeper than {DEEPEST} levels")
    message = read(data)
    shape = shape_of(bytes(message.blob(_SHAPE)))
    if isinstance(shape, TupleShape):
        parts = tuple(literal_of(part, depth + 1) for part in message.blobs(_TUPLE_LITERALS))
        return Literal(TupleShape(tuple(part.shape for part in parts)), parts)
    if not isinstance(shape, ArrayShape) or not shape.is_array:
        return Literal(shape, None)
    if shape.is_dynamic:
        raise UnsupportedError("a literal has dynamic dimensions, whose extents the file does not say")
    if (_AS_VARINTS | _IN_BYTES)[shape.element_type.name] not in message and shape.element_count:
        return Literal(shape, None)
    elements = _elements(message, shape.element_type, shape.dimensions)
    return Literal.from_array(_from_layout(elements, shape.dimensions, shape.stated_layout.minor_to_major), shape)


def packed_value(data: memoryview) -> Value:
    """The value of a literal as XLA writes it where a protocol buffer would be too large: the size of its shape in 64
    bits, its shape, and its arrays as they lie in memory, elements of fewer than 8 bits next to one another."""
    if len(data) < 8:
        raise InputError(f"a literal should begin with 8 bytes, {len(data)} are left")
    size = int(np.frombuffer(data[:8], "<i8")[0])
    position = 8 + size
    if not 0 <= size <= len(data) - 8:
        raise InputError(f"the shape of a literal should have {size} bytes, {len(data) - 8} are left")

    def array(leaf: ArrayShape | BufferShape) -> Value:
        nonlocal position
        shape = leaf.array_shape
        if shape.is_dynamic or not shape.is_array:
            raise UnsupportedError(f"the shape {shape} of a literal is not supported")
        count, element_type = shape.element_count, shape.element_type
        bits = 1 if element_type.kind is Kind.PRED else element_type.bits
        start, position = position, position + -(-count * bits // 8)
        if min(shape.dimensions, default=0) < 0 or position > len(data):
            raise InputError(f"a literal of shape {shape} has {len(data) - start} bytes")
        raw = data[start:position]
        if bits < 8:
            several = np.frombuffer(raw, np.uint8)[:, np.newaxis] >> np.arange(0, 8, bits, dtype=np.uint8)
            raw = memoryview((several & ((1 << bits) - 1)).tobytes()[:count])
        elements = _decoded(raw, element_type)
        return _from_layout(elements, shape.dimensions, shape.stated_layout.minor_to_major)

    return map_shape(shape_of(bytes(data[8:position])), array)


def _elements(literal: Message, element_type: ElementType, dimensions: Sequence[int]) -> Array:
    """The elements in the order of the layout."""
    if element_type.name in _AS_VARINTS:
        elements: Array = literal.varints(_AS_VARINTS[element_type.name])
        # A negative s32 is written as 64 bits; the low half is it.
        elements = (elements != 0) if element_type.kind is Kind.PRED else elements.astype(element_type.storage)
    else:
        raw = literal.bytes(_IN_BYTES[element_type.name])
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


def _from_layout(elements: Array, dimensions: Sequence[int], minor_to_major: Sequence[int]) -> Array:
    """The array of the logical shape: dimensions are stored from the most major one to the most minor."""
    minor_to_major = minor_to_major or range(len(dimensions))[::-1]
    if sorted(minor_to_major) != list(range(len(dimensions))):
        raise InputError(f"the layout {braced(minor_to_major)} does not fit {len(dimensions)} dimensions")
    stored: Any = elements.reshape([dimensions[axis] for axis in reversed(minor_to_major)])
    order = np.argsort(minor_to_major[::-1]) if minor_to_major else ()
    return np.asarray(stored.transpose(order))
