"""Literals in text: `42`, `{1, 2}`, `{ { (0, 1) }, { (2, inf) } }`, `(1, {2, 3})`, `{...}`.

The elements of literals: whole arrays of plain numbers at once, and numbers as elements of a type. An array that is
written the way XLA prints it has full rows, which string methods split and NumPy converts.

An array that is written the way XLA prints it is read as a whole (`literal_arrays`). Only where that finds something
unusual are its tokens read one by one, which also finds the place of an error.
"""

from __future__ import annotations

import math
import re
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from hloexec.core.dtypes import DType, ElementType, Kind
from hloexec.core.ir import ArrayShape, FirstElement, Layout, Literal, Shape, TupleShape
from hloexec.core.ir.literal import tuple_literal
from hloexec.core.ir.shape import elements_of
from hloexec.core.tree import fold
from hloexec.core.values import Array, Ints
from hloexec.errors import warn
from hloexec.language.text.lexer import END, NAME, NUMBER, SHAPE, Lexer, end_of_braces
from hloexec.language.text.shapes import ShapeParser

BOOLEANS = {"true": 1, "false": 0}
"""The words for truth values."""

_BRACE = re.compile(r"[^{}/]*+([{}]|/\*)")
_COMMENT = re.compile(r"/\*(?:[^*\0]|\*(?!/))*+\*/")
_ROW = re.compile(
    r"\{[ \t\n\r]*+((?:(?:-?[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?|-?inf|true|false)[, \t\n\r]*+)*+)\}"
)
_ROW_OF_INTEGERS = re.compile(r"\{([-0-9, \t\n\r]*+)\}")
"""Finds what `_ROW` finds where `int` takes every word, in a tenth of the time."""
_NOT_A_BRACE = re.compile(r"[^{}]+")
_INTEGER_BEYOND_64_BITS = re.compile(r"[0-9]{19}")
"""Where there may be one."""
_CONVERTED_AT_ONCE = 1 << 14
"""As words, numbers take ten times the memory."""


def regular_array(text: str, start: int, shape: ArrayShape, *, strict: bool) -> tuple[Array, int] | None:
    """The array whose literal begins at `start`, and the offset behind it; None where it is not regular.

    It is where it consists of full rows of plain numbers, properly nested. Integers of more than 64 bits are left to
    the reading of tokens where `strict` or truth values ask for an error there.
    """
    end = end_of_braces(text, start, _BRACE, _COMMENT)
    if end is None or shape.element_count == 0:
        return None
    body = text[start:end]
    is_checked = strict or shape.element_type.kind is Kind.PRED
    if is_checked and _INTEGER_BEYOND_64_BITS.search(body):
        return None
    if "/" in body:
        body = _COMMENT.sub("", body)
    array = _rows(body, shape)
    # Only rows that matched were counted, so equal skeletons mean that nothing but rows is there.
    if array is None or _NOT_A_BRACE.sub("", body) != _skeleton(shape.dimensions):
        return None
    return array.reshape(shape.dimensions), end


def _rows(body: str, shape: ArrayShape) -> Array | None:
    """The numbers of all rows, one after the other; None where a row has more or less of them, or there are others."""
    row_size = shape.dimensions[-1]
    parts: list[Array] = []
    words: list[str] = []
    count = 0
    is_integral = shape.element_type.is_integral
    for row in (_ROW_OF_INTEGERS if is_integral else _ROW).finditer(body):
        row_words = row[1].replace(",", " ").split()
        if len(row_words) != row_size:
            return None
        words += row_words
        count += row_size
        if len(words) >= _CONVERTED_AT_ONCE:
            part = _convert(words, shape.element_type)
            if part is None:
                return None
            parts.append(part)
            words = []
    if count != shape.element_count:
        return None
    if words:
        part = _convert(words, shape.element_type)
        if part is None:
            return None
        parts.append(part)
    return np.concatenate(parts)


def _skeleton(dimensions: Ints) -> str:
    """The braces of a literal of these dimensions."""
    braces = "{}"
    for size in reversed(dimensions[:-1]):
        braces = "{" + braces * size + "}"
    return braces


def _convert(words: list[str], element_type: ElementType) -> Array | None:
    """Plain numbers as an array of the element type; None where a word is no plain number or out of range."""
    try:
        if element_type.kind is Kind.PRED:
            return np.array([bool(BOOLEANS[word] if word in BOOLEANS else int(word)) for word in words])
        if element_type.is_integral:
            return integers(list(map(int, words)), element_type)
        values = np.fromiter(map(float, words), np.float64, len(words))
    except (ValueError, OverflowError):
        return None
    if np.count_nonzero(np.isinf(values)) != sum(word.endswith("inf") for word in words):
        return None  # a number too large for a double
    return floats(values, element_type.storage)


def integers(values: list[int], element_type: ElementType) -> Array | None:
    """Integers as an array of the storage type, [n]; None where one is out of range. 64-bit types wrap, as in XLA."""
    low, high = element_type.integer_range
    if element_type.bits == 64:
        if min(values) < -(1 << 63) or max(values) >= 1 << 64:
            return None
        if max(values) < 1 << 63:
            return np.array(values, np.int64).view(element_type.storage)
        return np.array([value & 0xFFFFFFFFFFFFFFFF for value in values], np.uint64).view(element_type.storage)
    if min(values) < low or max(values) > high:
        return None
    return np.array(values, element_type.compute).astype(element_type.storage)


def floats(values: Array, dtype: DType) -> Array | None:
    """Doubles rounded to a float type, None where a finite one overflows.

    As in XLA, types of fewer than 32 bits are reached through f32.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype.itemsize <= 2 and dtype != np.float16:
            rounded = values.astype(np.float32).astype(dtype)
        else:
            rounded = values.astype(dtype)
        overflowed = np.isfinite(values) & ~np.isfinite(rounded.astype(np.float64))
    return None if overflowed.any() else rounded


def nan_bits(dtype: DType, negative: bool, payload: int | None) -> Any:
    """A NaN of a float type with a sign and a payload; None where the type has no such NaN.

    The payload includes the quiet bit; without one it is the quiet bit alone. Types with a single NaN take no payload.
    """
    info = ml_dtypes.finfo(dtype)
    bits = dtype.itemsize * 8
    unsigned = np.dtype(f"u{dtype.itemsize}")
    quiet = np.array(math.nan).astype(dtype)
    if not np.isnan(quiet.astype(np.float64)):
        return None
    exponent_mask = ((1 << (bits - 1)) - 1) & ~((1 << int(info.nmant)) - 1)
    has_payload = bool(np.isinf(np.array(exponent_mask, unsigned).view(dtype).astype(np.float64)))
    if not has_payload:
        signed = quiet.view(unsigned) | unsigned.type(int(negative) << (bits - 1))
        return np.asarray(signed, unsigned).view(dtype) if payload is None else None
    if payload is None:
        payload = 1 << (int(info.nmant) - 1)
    if not 0 < payload < 1 << int(info.nmant):
        return None
    return np.array((int(negative) << (bits - 1)) | exponent_mask | payload, unsigned).view(dtype)


_ELIDED = re.compile(r"\{[ \t\n\r]*\.\.\.[ \t\n\r]*\}")
_LARGE = 1 << 20
"""Bytes of an array that is not made before it is needed, where a single value is given."""
_NAN_PAYLOAD = re.compile(r"(-?)nan(?:\(0x([0-9a-fA-F]+)\))?")
_SHAPE_OF_TUPLE = re.compile(r"\((?:[^()]|\([^()]*\))*\)\s*\(")
"""A tuple's shape and the beginning of its elements: no literal is followed by a parenthesis."""


class LiteralParser(ShapeParser):
    """Reads literals."""

    __slots__ = ()

    def with_shape(self) -> Literal:
        """literal with its own shape ::= shape literal | '(' [literal with shape (',' …)*] ')'"""
        open_tuples: list[list[Literal]] = []
        while True:
            if self.take("("):
                if not self.at(")"):
                    open_tuples.append([])
                    continue
                self.advance()
                literal = Literal(TupleShape(()), ())
            else:
                shape = self.shape()
                if isinstance(shape, ArrayShape) and shape.rank and shape.layout is None and not self.at("{"):
                    # All elements are printed, and a layout keeps them from being read as one.
                    shape = attrs.evolve(shape, layout=Layout(tuple(reversed(range(shape.rank)))))
                literal = self.of_shape(shape)
            while open_tuples:
                open_tuples[-1].append(literal)
                if self.take(","):
                    break
                self.expect(")", "at the end of a tuple literal")
                elements = tuple(open_tuples.pop())
                literal = Literal(TupleShape(tuple(element.shape for element in elements)), elements)
            else:
                return literal

    def of_shape(self, shape: Shape) -> Literal:
        """literal ::= dense | '(' [literal (',' literal)*] ')', with the elements that `shape` asks for"""
        open_tuples: list[tuple[TupleShape, list[Literal]]] = []
        while True:
            self._take_shape(shape)
            if self._take_elision(shape):
                literal = _elided(shape)
            elif isinstance(shape, TupleShape):
                self.expect("(", "before the elements of a tuple literal")
                if shape.elements:
                    open_tuples.append((shape, []))
                    shape = shape.elements[0]
                    continue
                self.expect(")", "at the end of a tuple literal without elements")
                literal = Literal(shape, ())
            elif isinstance(shape, ArrayShape) and shape.is_array:
                literal = self._array(shape)
            else:
                self.fail(f"a literal cannot have the shape {shape}")
            while open_tuples:
                tuple_shape, elements = open_tuples[-1]
                elements.append(literal)
                if len(elements) < len(tuple_shape.elements):
                    self.expect(",", f"after element {len(elements) - 1} of a tuple literal of shape {tuple_shape}")
                    shape = tuple_shape.elements[len(elements)]
                    break
                self.expect(")", f"at the end of a tuple literal of {len(elements)} elements")
                literal = Literal(tuple_shape, tuple(elements))
                open_tuples.pop()
            else:
                return literal

    def _take_shape(self, shape: Shape) -> None:
        """Move past the literal's shape, which XLA wrote before a literal until 2019."""
        if self.kind != SHAPE and not (self.at("(") and _SHAPE_OF_TUPLE.match(self.text, self.start)):
            return
        start = self.start
        if not self.strict:
            # A brace that follows behind a space begins the elements, not a layout.
            stated: Shape | None = self.known(self.value) if self.kind == SHAPE else None
            if stated is not None:
                self.advance()
            else:
                stated = self.shape()
            if not stated.compatible(shape):
                self.fail(f"the literal of a constant of shape {shape} is given the shape {stated}", start)

    def _take_elision(self, shape: Shape) -> bool:
        """Move past `{...}` in place of a tuple or a scalar: XLA prints that, though it does not read it."""
        is_usual = isinstance(shape, ArrayShape) and shape.rank > 0
        if is_usual or self.strict or not _ELIDED.match(self.text, self.start):
            return False
        for _ in range(3):
            self.advance()
        return True

    def _array(self, shape: ArrayShape) -> Literal:
        """dense ::= scalar | '{' [dense ([','] dense)*] '}' | '{...}'"""
        if any(size < 0 for size in shape.dimensions):
            self.fail(f"a literal cannot have the unbounded shape {shape}")
        if self.at("{") and shape.rank and not shape.element_type.is_complex:
            found = regular_array(self.text, self.start, shape, strict=self.strict)
            if found is not None:
                array, end = found
                self.move_to(end)
                return Literal.from_array(array, shape)
        elif shape.rank and shape.element_count and not shape.element_type.is_complex and not self.at("{"):
            return self._scalar_for_array(shape)
        return self._by_tokens(shape)

    def _scalar_for_array(self, shape: ArrayShape) -> Literal:
        """`5` in place of `{5, 0, 0, …}`: as XLA reads it, the first element is given and the others are zero."""
        start, first = self.start, self._element(shape.element_type)
        if shape.is_too_large:
            self.fail(f"a literal of shape {shape} is larger than an array can be", start)
        first_element = FirstElement(np.asarray(first, shape.element_type.storage), shape)
        if shape.element_count > 1:
            place = self.error("", start)
            warn(
                f"{place.filename}:{place.line}:{place.column}: a single value is given for {shape}: "
                "XLA takes it for the first element and sets all others to zero"
            )
        return Literal(shape, first_element if shape.byte_size > _LARGE else first_element.array())

    def _by_tokens(self, shape: ArrayShape) -> Literal:
        """The literal read token by token, as XLA does: commas are optional, braces are counted."""
        nesting = _Nesting(self, shape)
        elements: list[Any] = []
        elided = False
        while True:
            if self.at("{"):
                nesting.open()
                self.advance()
            elif self.at("}"):
                nesting.close()
                self.advance()
            elif self.at("..."):
                nesting.elide()
                elided = True
                self.advance()
            elif self.at(",") and nesting.depth:
                self.advance()
            else:
                nesting.element()
                elements.append(self._element(shape.element_type))
            if nesting.depth == 0:
                break
        if elided:
            return Literal(shape, None)
        if shape.is_too_large:
            self.fail(f"a literal of shape {shape} is larger than an array can be")
        array = np.empty(len(elements), dtype=shape.element_type.storage)
        for index, element in enumerate(elements):
            array[index] = element
        return Literal.from_array(array.reshape(shape.dimensions), shape)

    def _element(self, element_type: ElementType) -> Any:
        """One element, as a zero-dimensional array of the storage type."""
        start = self.start
        if element_type.is_complex:
            if not self.take("("):
                self.fail(f"expected '(' before a complex number, found {self.describe()}")
            part = np.dtype(np.float32 if element_type.bits == 64 else np.float64)
            real = self._float(part, "the real part")
            self.expect(",", "between the parts of a complex number")
            imaginary = self._float(part, "the imaginary part")
            self.expect(")", "after a complex number")
            pair = np.array([real, imaginary], dtype=part)
            return pair.view(element_type.storage)[0]
        if element_type.is_floating:
            return self._float(element_type.storage, f"a value of type {element_type.name}")
        if self.kind == NAME and self.value in BOOLEANS:
            if element_type.kind is not Kind.PRED:
                self.fail(f"expected an integer for a value of type {element_type.name}, found {self.describe()}")
            return self.boolean("a truth value")
        value = self.integer(f"a value of type {element_type.name}")
        if element_type.kind is Kind.PRED:
            return value != 0
        converted = integers([value], element_type)
        if converted is None:
            low, high = element_type.integer_range
            self.fail(f"{value} is out of the range of {element_type.name}, [{low}, {high}]", start)
        return converted[0]

    def _float(self, dtype: DType, subject: str) -> Any:
        start = self.start
        match = _NAN_PAYLOAD.match(self.text, start)
        if match and self.kind in (NAME, NUMBER) and self.value in ("nan", "-nan"):
            bits = nan_bits(dtype, match[1] == "-", int(match[2], 16) if match[2] else None)
            if bits is None:
                self.fail(f"a NaN of type {dtype} cannot have the payload 0x{match[2]}", start)
            self.move_to(match.end())
            return bits
        if self.kind == END:
            self.fail(f"expected {subject}, found {self.describe()}")
        if self.strict and self.kind == NUMBER and self.value.removeprefix("-").isdigit():
            digits = self.value
            self.integer(subject)
            value = float(int(digits))
        else:
            value = self.number(subject)
        array = floats(np.array([value]), dtype)
        if array is None:
            self.fail(f"{value:g} is out of the range of {subject.removeprefix('a value of type ')}", start)
        return array[0]


def _elided(shape: Shape) -> Literal:
    """A literal of which nothing is known; a tuple is known to be one."""
    return fold(shape, elements_of, lambda leaf: Literal(leaf, None), tuple_literal)


class _Nesting:
    """Counts the elements in the braces of a literal, and raises ParseError if they do not fit its shape."""

    def __init__(self, lexer: Lexer, shape: ArrayShape) -> None:
        self._lexer = lexer
        self._shape = shape
        self._seen = [0] * shape.rank
        self.depth = 0

    def open(self) -> None:
        rank, dimensions = self._shape.rank, self._shape.dimensions
        if self.depth == rank:
            self._lexer.fail(f"a literal of shape {self._shape} nests {rank} deep, found one more '{{'")
        if self.depth:
            self._count(self.depth - 1, f"dimension {self.depth - 1} of the literal has {dimensions[self.depth - 1]}")
        self.depth += 1

    def close(self) -> None:
        if self.depth == 0:
            self._lexer.fail(f"expected a literal of shape {self._shape}, found '}}'")
        self.depth -= 1
        size, seen = self._shape.dimensions[self.depth], self._seen[self.depth]
        if seen != size:
            self._lexer.fail(f"dimension {self.depth} of the literal has {size} elements, found {seen}")
        self._seen[self.depth] = 0

    def elide(self) -> None:
        if self.depth != 1:
            self._lexer.fail(f"'...' replaces a whole literal and needs one pair of braces, found {self.depth}")
        self._seen[0] = self._shape.dimensions[0]

    def element(self) -> None:
        rank = self._shape.rank
        if self.depth != rank:
            description = f"found {self._lexer.describe()} at depth {self.depth}"
            self._lexer.fail(f"a literal of shape {self._shape} nests {rank} deep, {description}")
        if rank:
            self._count(-1, f"the last dimension of the literal has {self._shape.dimensions[-1]}")

    def _count(self, axis: int, subject: str) -> None:
        self._seen[axis] += 1
        if self._seen[axis] > self._shape.dimensions[axis]:
            self._lexer.fail(f"{subject} elements, found more: {self._lexer.describe()}")
