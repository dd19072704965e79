"""Shapes and layouts in text: parsing and printing; literals as text.

An array shape is one token, and parsed shapes are cached by their text: a shape that occurs ten thousand times in a
dump is parsed once, and equal shapes are usually one object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import (
    UNBOUNDED,
    ArrayShape,
    BufferShape,
    FirstElement,
    Layout,
    Literal,
    Shape,
    SplitConfig,
    TupleShape,
)
from hloexec.core.ir.literal import literals_of
from hloexec.core.ir.shape import elements_of
from hloexec.core.tree import fold, parenthesized
from hloexec.core.values import Array, Ints
from hloexec.language.text.lexer import NAME, NUMBER, SHAPE, SKIPPED, Lexer


def shape_text(shape: Shape, layouts: bool = True) -> str:
    """The text of a shape, with or without its layouts."""

    def leaf_text(leaf: ArrayShape | BufferShape) -> str:
        text = _array(leaf.array_shape, layouts)
        return f"b({text})" if isinstance(leaf, BufferShape) else text

    def tuple_text(_: object, texts: list[str]) -> str:
        for number in range(5, len(texts), 5):
            texts[number] = f"/*index={number}*/{texts[number]}"
        return parenthesized(None, texts)

    return fold(shape, elements_of, leaf_text, tuple_text)


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
    return fold(literal, literals_of, leaf_text, parenthesized)


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


ARRAY_PATTERN = r"[a-z][a-z0-9]*\[[0-9,]*+\](?:\{[^{}\"/]*+\})?"
"""What the usual array shape looks like; `ShapeParser.known` says whether a text is one."""

_SIMPLE = re.compile(r"(\w+)\[((?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)\](?:\{([0-9]{1,3}(?:,[0-9]{1,3})*)\})?")
_FLAT_TUPLE = re.compile(r"\([^()]++\)")
"""A tuple without others within, most of which repeat."""
_LAYOUT_START = re.compile(SKIPPED + "-?[0-9]|" + SKIPPED + ":")
_MOST_NESTED = 10_000
_DIM_LEVEL_TYPES = ("D", "C", "S", "H")
MAXIMUM_SIZE = (1 << 63) - 1
"""Of a dimension."""

_T = TypeVar("_T")


def parse_shape(text: str) -> Shape:
    """A shape by itself, `f32[2,3]` or `(f32[2,3], s32[])`; raises ParseError."""
    parser = ShapeParser(text, "<shape>")
    found = parser.shape()
    parser.end_of("the shape")
    return found


class ShapeParser(Lexer):
    """Reads shapes."""

    __slots__ = ("_known", "_known_tuples")

    def __init__(self, text: str, filename: str = "<string>", *, strict: bool = False) -> None:
        super().__init__(text, filename, strict=strict)
        self._known: dict[str, ArrayShape] = {}
        self._known_tuples: dict[str, TupleShape] = {}

    def _layout_fields(self) -> tuple[tuple[str, str, Callable[[], Any]], ...]:
        """The fields that a layout may have, in their order: what begins each, its name, and what reads it."""
        number, stored_type = self._number, self._stored_type
        return (
            ("D", "dim_level_types", self._dim_level_types),
            ("T", "tiles", self._tiles),
            ("L", "tail_padding_alignment_in_elements", lambda: number("the tail padding alignment", 1)),
            ("#", "index_primitive_type", lambda: stored_type("index")),
            ("*", "pointer_primitive_type", lambda: stored_type("pointer")),
            ("E", "element_size_in_bits", lambda: number("the element size")),
            ("S", "memory_space", lambda: number("the memory space")),
            ("SC", "split_configs", self._split_configs),
            ("P", "", self._no_physical_shape),
            ("M", "dynamic_shape_metadata_prefix_bytes", lambda: number("the metadata prefix")),
        )

    def known(self, text: str) -> ArrayShape | None:
        """The array shape of a text that was read before, or that is a simple one."""
        return self._known.get(text) or self._simple(text)

    def at_shape(self) -> bool:
        """Whether the current token can begin a shape."""
        if self.kind == SHAPE or self.at("("):
            return True
        if self.kind != NAME:
            return False
        following = self.text[self.end : self.end + 1]
        return (self.value == "b" and following == "(") or self.value in ELEMENT_TYPES

    def shape(self) -> Shape:
        """shape ::= array | '(' [shape (',' shape)*] ')' | 'b(' shape ')'

        The open tuples are on a stack of our own, and no more than a limit: what else works on nested tuples takes time
        in proportion to the square of their depth.
        """
        open_tuples: list[tuple[list[Shape], re.Match[str] | None]] = []
        while True:
            shape: Shape | None
            if self.at("("):
                flat = _FLAT_TUPLE.match(self.text, self.start)
                shape = None if flat is None else self._known_tuples.get(flat[0])
                if flat is not None and shape is not None:
                    self.move_to(flat.end())
                else:
                    if len(open_tuples) == _MOST_NESTED:
                        self.fail(f"a tuple shape nests deeper than {_MOST_NESTED} tuples")
                    self.advance()
                    if not self.take(")"):
                        open_tuples.append(([], flat))
                        continue
                    shape = TupleShape(())
            elif self.at_word("b") and self.text.startswith("(", self.end):
                shape = self._buffer()
            else:
                shape = self.array()
            while open_tuples:
                open_tuples[-1][0].append(shape)
                if self.take(","):
                    break
                self.expect(")", "at the end of a tuple shape")
                elements, flat = open_tuples.pop()
                shape = TupleShape(tuple(elements))
                if flat is not None and not self.text[flat.end() : self.start].strip():
                    self._known_tuples[flat[0]] = shape
            else:
                return shape

    def _buffer(self) -> BufferShape:
        """'b(' array ')'"""
        self.advance()
        self.expect("(", "after 'b' of a buffer shape")
        start = self.start
        element = self.array()
        if not element.is_array:
            self.fail("a buffer shape holds an array", start)
        self.expect(")", "at the end of a buffer shape")
        return BufferShape(element)

    def array(self) -> ArrayShape:
        """array ::= type '[' [dimension (',' dimension)*] ']' [layout]"""
        if self.kind == SHAPE:
            text = self.value
            cached = self._known.get(text)
            if cached is None:
                return self._new_array(text)
            start = self.start
            self.advance()
            if self.value != "{" or text[-1] == "}" or not _LAYOUT_START.match(self.text, self.end):
                return cached
            # A layout that the token's pattern does not hold (a comment in it, say): read it token by token.
            self.move_to(start)
        return self._array_by_parts()

    def _new_array(self, text: str) -> ArrayShape:
        """An array shape that was not seen before; remembered if the token holds all of it."""
        token_end = self.end
        simple = self._simple(text) if text[-1] == "}" else None
        if simple is not None:
            self.advance()
            return simple
        shape = self._array_by_parts()
        if self.end > token_end and not self.text[token_end : self.start].strip():
            self._known[text] = shape
        return shape

    def _simple(self, text: str) -> ArrayShape | None:
        """The shape of a text such as `f32[2,3]{1,0}`; None where it is more than that, or not a shape."""
        match = _SIMPLE.fullmatch(text)
        if match is None or match[1] not in ELEMENT_TYPES:
            return None
        dimensions = tuple(map(int, match[2].split(","))) if match[2] else ()
        layout = None
        if match[3] is not None:
            layout = Layout(tuple(map(int, match[3].split(","))))
            if sorted(layout.minor_to_major) != list(range(len(dimensions))):
                return None
        element_type = ELEMENT_TYPES[match[1]]
        if max(dimensions, default=0) > MAXIMUM_SIZE or (dimensions and not element_type.is_array):
            return None
        shape = self._known[text] = ArrayShape(element_type, dimensions, layout)
        return shape

    def _array_by_parts(self) -> ArrayShape:
        start = self.start
        element_type = self._element_type("a shape")
        self.expect("[", "after the element type of a shape")
        dimensions: list[int] = []
        dynamic: list[bool] = []
        while not self.at("]"):
            if self.take("?"):
                dimensions.append(UNBOUNDED)
                dynamic.append(True)
            else:
                bounded = self.take("<=")
                dimensions.append(self._at_least(0, "a dimension"))
                dynamic.append(bounded)
            if not self.take(","):
                break
            if self.at("]"):
                self.fail("expected a dimension after ','")
        self.expect("]", "at the end of the dimensions")
        if not element_type.is_array and dimensions:
            self.fail(f"a shape of type {element_type.name} has no dimensions", start)
        layout = None
        if self.at("{") and _LAYOUT_START.match(self.text, self.end):
            layout_start = self.start
            layout = self._layout()
            if len(layout.minor_to_major) != len(dimensions):
                self.fail(
                    f"the shape has {len(dimensions)} dimensions, but its layout orders {len(layout.minor_to_major)}",
                    layout_start,
                )
            if sorted(layout.minor_to_major) != list(range(len(dimensions))):
                self.fail("a layout names every dimension once", layout_start)
            if layout == Layout(()):  # says nothing: {:S(0)} of a scalar
                layout = None
            elif self.strict and not element_type.is_array:
                self.fail(f"a shape of type {element_type.name} has no layout", layout_start)
        return ArrayShape(element_type, tuple(dimensions), layout, tuple(dynamic) if any(dynamic) else ())

    def _element_type(self, subject: str) -> ElementType:
        """The name of an element type, whether it stands alone or begins a shape token."""
        if self.kind == SHAPE:
            name = self.value[: self.value.index("[")]
            self.move_to(self.start + len(name))
            return ELEMENT_TYPES[name]
        if self.kind == NAME and self.value in ELEMENT_TYPES:
            return ELEMENT_TYPES[self.word("an element type")]
        raise self.error(f"expected the element type of {subject}, found {self.describe()}")

    def _layout(self) -> Layout:
        """layout ::= '{' [int (',' int)*] [':' fields] '}'

        fields ::= ['D(' level… ')'] ['T' ('(' tile ')')+] ['L(' int ')'] ['#(' type ')'] ['*(' type ')'] ['E(' int ')']
                   ['S(' int ')'] ['SC' ('(' int ':' int… ')')+] ['P(' shape ')'] ['M(' int ')']
        """
        self.expect("{", "at the start of a layout")
        minor_to_major: list[int] = []
        if self.kind == NUMBER:
            minor_to_major.append(self.integer("a dimension number"))
            while self.take(","):
                minor_to_major.append(self.integer("a dimension number"))
        fields: dict[str, Any] = {}
        if self.take(":"):
            for mark, field, read in self._layout_fields():
                if self._take_mark(mark):
                    fields[field] = read()
        self.expect("}", "at the end of a layout")
        return Layout(tuple(minor_to_major), **fields)

    def _no_physical_shape(self) -> None:
        self.fail("a physical shape belongs to sparse arrays, which XLA no longer has", self.start)

    def _take_mark(self, mark: str) -> bool:
        """Whether a layout field of this letter or sign comes next; moves past it."""
        if self.at_word(mark) or self.at(mark):
            self.advance()
            return True
        return False

    def _at_least(self, minimum: int, subject: str) -> int:
        """An integer from `minimum` to the largest of 64 bits."""
        start, written = self.start, self.value
        value = self.integer(subject)
        if value < minimum:
            self.fail(f"{subject} is a number from {minimum} to {MAXIMUM_SIZE}, but is {written}", start)
        return value

    def _number(self, subject: str, minimum: int = 0) -> int:
        """'(' int ')'"""
        self.expect("(", f"before {subject}")
        value = self._at_least(minimum, subject)
        self.expect(")", f"after {subject}")
        return value

    def _dim_level_types(self) -> tuple[str, ...]:
        """'(' level (',' level)* ')', level ::= [DCSH] ['+'] ['~']"""
        self.expect("(", "before the dimension level types")

        def level() -> str:
            if self.kind != NAME or self.value not in _DIM_LEVEL_TYPES:
                self.fail(f"expected a dimension level type (D, C, S or H), found {self.describe()}")
            found = self.word("a dimension level type")
            return found + "".join(mark for mark in "+~" if self.take(mark))

        return self.rest(level, "the dimension level types")

    def rest(self, item: Callable[[], _T], subject: str) -> tuple[_T, ...]:
        """[item (',' item)* [',']] ')'"""
        found: list[_T] = []
        while not self.at(")"):
            found.append(item())
            if not self.take(","):
                break
        self.expect(")", f"after {subject}")
        return tuple(found)

    def _tiles(self) -> tuple[Ints, ...]:
        """('(' (int | '*') (',' (int | '*'))* ')')+"""
        tiles: list[Ints] = []
        while not tiles or self.at("("):
            self.expect("(", "before a tile")
            tiles.append(self.rest(lambda: -1 if self.take("*") else self._at_least(1, "a tile dimension"), "a tile"))
        return tuple(tiles)

    def _stored_type(self, subject: str) -> ElementType:
        """'(' type ')'"""
        self.expect("(", f"before the {subject} type of a layout")
        element_type = self._element_type("a layout")
        self.expect(")", f"after the {subject} type of a layout")
        return element_type

    def _split_configs(self) -> tuple[SplitConfig, ...]:
        """('(' int ':' [int (',' int)*] ')')+"""
        configs: list[SplitConfig] = []
        while not configs or self.at("("):
            self.expect("(", "before a split config")
            dimension = self.integer("the dimension of a split")
            self.expect(":", "after the dimension of a split")
            indices = self.rest(lambda: self.integer("a split index"), "a split config")
            configs.append(SplitConfig(dimension, indices))
        return tuple(configs)
