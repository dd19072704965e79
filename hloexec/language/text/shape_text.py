"""Shapes and literals as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import ml_dtypes
import numpy as np

from hloexec.core.ir import ArrayShape, BufferShape, FirstElement, Layout, Literal, Shape, TupleShape
from hloexec.core.values import Array


def shape_text(shape: Shape, layouts: bool = True) -> str:
    """Written with a stack of our own: tuples nest as deep as they like."""
    if isinstance(shape, ArrayShape):
        return _array(shape, layouts)
    pieces: list[str] = []
    stack: list[Shape | str] = [shape]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif isinstance(item, TupleShape):
            stack.append(")")
            for i in range(len(item.elements) - 1, -1, -1):
                stack.append(item.elements[i])
                if i:
                    stack.append(f", /*index={i}*/" if i % 5 == 0 else ", ")
            stack.append("(")
        elif isinstance(item, BufferShape):
            pieces.append(f"b({_array(item.element, layouts)})")
        else:
            pieces.append(_array(item, layouts))
    return "".join(pieces)


def _array(shape: ArrayShape, layouts: bool = True) -> str:
    text = str(shape)
    if shape.layout is not None and layouts and (layout := _layout(shape.layout)) != "{}":
        text += layout
    return text


def _layout(layout: Layout) -> str:
    text = ",".join(map(str, layout.minor_to_major))
    fields = "".join(_layout_fields(layout))
    return f"{{{text}:{fields}}}" if fields else f"{{{text}}}"


def _layout_fields(layout: Layout) -> Iterator[str]:
    if layout.dim_level_types:
        yield f"D({','.join(layout.dim_level_types)})"
    if layout.tiles:
        tiles = (",".join("*" if size == -1 else str(size) for size in tile) for tile in layout.tiles)
        yield "T" + "".join(f"({tile})" for tile in tiles)
    if layout.tail_padding_alignment_in_elements != 1:
        yield f"L({layout.tail_padding_alignment_in_elements})"
    if layout.index_primitive_type is not None:
        yield f"#({layout.index_primitive_type.name})"
    if layout.pointer_primitive_type is not None:
        yield f"*({layout.pointer_primitive_type.name})"
    if layout.element_size_in_bits:
        yield f"E({layout.element_size_in_bits})"
    if layout.memory_space:
        yield f"S({layout.memory_space})"
    if layout.split_configs:
        configs = (
            f"({config.dimension}:{','.join(map(str, config.split_indices))})" for config in layout.split_configs
        )
        yield "SC" + "".join(configs)
    if layout.dynamic_shape_metadata_prefix_bytes:
        yield f"M({layout.dynamic_shape_metadata_prefix_bytes})"


def shapes_text(shapes: Iterable[Shape], layouts: bool = True) -> str:
    pieces = [shape_text(shape, layouts) for shape in shapes]
    return ", ".join(f"/*index={i}*/{text}" if i and i % 5 == 0 else text for i, text in enumerate(pieces))


def literal_text(literal: Literal) -> str:
    """The value alone, the shape being written elsewhere."""
    return _nested_literal(literal, _leaf_text)


def literal_with_shape_text(literal: Literal) -> str:
    """The value with the shape of each leaf before it."""
    return _nested_literal(literal, lambda leaf: f"{shape_text(leaf.shape)} {literal_text(leaf)}")


def _leaf_text(leaf: Literal) -> str:
    if isinstance(leaf.held, FirstElement):
        return _words(leaf.held.element.reshape(1))[0]
    return _elements(leaf.held) if isinstance(leaf.held, np.ndarray) else "{...}"


def _nested_literal(literal: Literal, leaf_text: Callable[[Literal], str]) -> str:
    pieces: list[str] = []
    stack: list[Literal | str] = [literal]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif isinstance(item.held, tuple):
            stack.append(")")
            for number in range(len(item.held) - 1, -1, -1):
                stack.append(item.held[number])
                if number:
                    stack.append(", ")
            stack.append("(")
        else:
            pieces.append(leaf_text(item))
    return "".join(pieces)


def _elements(array: Array) -> str:
    """An array as nested braces."""
    words = _words(array.reshape(-1))
    for depth in reversed(range(array.ndim)):
        size = array.shape[depth]
        count = int(np.prod(array.shape[:depth], dtype=np.int64))
        words = [f"{{{', '.join(words[i * size : (i + 1) * size])}}}" for i in range(count)]
    return words[0]


def _words(flat: Array) -> list[str]:
    """Each element as the shortest text that reads back to the same bits."""
    dtype = flat.dtype
    if dtype == np.bool_:
        return ["true" if value else "false" for value in flat.tolist()]
    if dtype.kind == "c":
        part = np.dtype(np.float32 if dtype.itemsize == 8 else np.float64)
        parts = [_LARGEST_PARTS.get(word, word) for word in _words(flat.view(part))]
        return [f"({real}, {imaginary})" for real, imaginary in zip(parts[::2], parts[1::2], strict=True)]
    if dtype.kind in "iu" or dtype in _SMALL_INTEGERS:
        return list(
            map(str, flat.astype(np.int8 if dtype.itemsize == 1 and dtype.kind not in "iu" else dtype).tolist())
        )
    if dtype == np.float64:
        words = list(map(repr, flat.tolist()))
    else:
        with np.errstate(all="ignore"):
            words = [_shortest(value) for value in flat.astype(np.float32)]
        if dtype == ml_dtypes.float8_e8m0fnu:
            words = [_SMALLEST_SCALE.get(word, word) for word in words]
    with np.errstate(all="ignore"):
        values = flat.astype(np.float64)
    for index in np.flatnonzero(np.isnan(values)):
        words[index] = _nan(flat[index : index + 1])
    return words


_LARGEST_PARTS = {f"{sign}3.4028235e+38": f"{sign}3.4028234663852886e+38" for sign in ("", "-")}
"""XLA rejects parts of c64 that are larger than the largest f32 before they are rounded."""
_SMALLEST_SCALE = {"5.877472e-39": "5.877471754111438e-39"}
"""The smallest f8e8m0fnu, 2⁻¹²⁷: XLA rounds what is larger by however little to 2⁻¹²⁶."""
_SMALL_INTEGERS = {np.dtype(getattr(ml_dtypes, f"{sign}int{bits}")) for sign in ("", "u") for bits in (1, 2, 4)}


def _shortest(value: np.float32) -> str:
    text = str(value)
    return text if text == "-0.0" else text.removesuffix(".0")  # XLA reads -0 as an integer, and loses the sign


def _nan(element: Array) -> str:
    """`nan`, `-nan`, or with the payload where it is not the usual one; types without infinities have no payloads."""
    dtype = element.dtype
    info = ml_dtypes.finfo(dtype)
    bits = int(element.view(f"u{dtype.itemsize}")[0])
    payload = bits & ((1 << int(info.nmant)) - 1)
    sign = "-" if info.min < 0 and bits >> (dtype.itemsize * 8 - 1) else ""
    is_usual = not np.isinf(np.array([np.inf]).astype(dtype)) or payload == 1 << (int(info.nmant) - 1)
    return f"{sign}nan" if is_usual else f"{sign}nan(0x{payload:x})"
