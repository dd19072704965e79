"""ShapeProto and LayoutProto to shapes (xla/xla_data.proto)."""

from __future__ import annotations

from functools import lru_cache

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import UNBOUNDED, ArrayShape, BufferShape, Layout, Shape, SplitConfig, TupleShape
from hloexec.errors import InputError
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
