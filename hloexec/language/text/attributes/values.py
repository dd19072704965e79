"""Attributes in text: lists, words, windows, padding, slices, dimension labels, aliasing, layouts.

Geometry, annotations and shardings have files of their own, built on this one; `instructions` holds the table from the
grammars that opcodes declare to the methods that read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from hloexec.core.ir import (
    Alias,
    ConvolutionDimensionNumbers,
    EntryLayout,
    PaddingDimension,
    Shape,
    SliceDimension,
    Window,
    WindowDimension,
)
from hloexec.core.values import Ints
from hloexec.language.text.lexer import END, NAME, NUMBER, STRING
from hloexec.language.text.state import ParserState
from hloexec.ops.attributes import OperandAlias

_T = TypeVar("_T")

_CLOSING = {"{": "}", "(": ")", "[": "]"}
_INTEGERS = re.compile(r"\{[ ]*(-?[0-9]{1,18}(?:,[ ]*-?[0-9]{1,18})*)?[ ]*\}")


class AttributeParser(ParserState):
    """Reads values of attributes."""

    __slots__ = ()

    def items(self, opening: str, closing: str, subject: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        """opening [item (',' item)*] closing"""
        self.expect(opening, f"before {subject}")
        elements: list[_T] = []
        if not self.at(closing):
            elements.append(item())
            while self.take(","):
                elements.append(item())
        self.expect(closing, f"after {subject}")
        return tuple(elements)

    def braced(self, subject: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        """'{' [item (',' item)*] '}'"""
        return self.items("{", "}", subject, item)

    def integers(self, subject: str) -> Ints:
        """'{' [int (',' int)*] '}'"""
        match = _INTEGERS.match(self.text, self.start)
        if match:
            self.move_to(match.end())
            return tuple(map(int, match[1].split(","))) if match[1] else ()
        return self.braced(subject, lambda: self.integer(subject))

    def single_integer(self, subject: str) -> int:
        """'{' int '}'"""
        start = self.start
        values = self.integers(subject)
        if len(values) != 1:
            self.fail(f"{subject} takes exactly one integer, found {len(values)}", start)
        return values[0]

    def integer_lists(self, subject: str) -> tuple[Ints, ...]:
        """'{' [integers (',' integers)*] '}'"""
        return self.braced(subject, lambda: self.integers(subject))

    def integer_pairs(self, subject: str) -> tuple[tuple[int, int], ...]:
        """'{' ['{' int ',' int '}' (',' …)*] '}'"""
        return self.braced(subject, lambda: self._pair(subject))

    def _pair(self, subject: str) -> tuple[int, int]:
        start = self.start
        values = self.integers(subject)
        if len(values) != 2:
            self.fail(f"{subject} is a list of pairs, found {len(values)} integers", start)
        return values[0], values[1]

    def enumeration(self, subject: str, choices: tuple[str, ...], *, any_case: bool = False) -> str:
        """A word out of `choices`, in any case where `any_case`; one of another XLA is kept, unless strict."""
        start = self.start
        word = self.word(f"{subject} ({', '.join(choices)})")
        matched_choice = next(
            (choice for choice in choices if word == choice or (any_case and word.lower() == choice.lower())), None
        )
        if matched_choice is None:
            self.unknown(f"the word '{word}' of {subject}", start, choices)
        return matched_choice or word

    def enumerations(self, subject: str, choices: tuple[str, ...], *, any_case: bool = False) -> tuple[str, ...]:
        """'{' [word (',' word)*] '}'"""
        return self.braced(subject, lambda: self.enumeration(subject, choices, any_case=any_case))

    def booleans(self, subject: str) -> tuple[bool, ...]:
        """'{' [bool (',' bool)*] '}' | bool"""
        if not self.at("{"):
            return (self.boolean(subject),)
        return self.flags(subject)

    def flags(self, subject: str) -> tuple[bool, ...]:
        """'{' [bool (',' bool)*] '}'"""
        return self.braced(subject, lambda: self.boolean(subject))

    # Aliasing and layouts of whole programs

    def operand_aliases(self, subject: str) -> tuple[OperandAlias, ...]:
        """'{' [index ':' '(' int ',' index ')' (',' …)*] '}'"""
        return self.braced(subject, lambda: self._operand_alias(subject))

    def _operand_alias(self, subject: str) -> OperandAlias:
        alias = OperandAlias(self._output_index(subject), *self._numbered_index(subject, "operand"))
        self.expect(")", f"after an operand in {subject}")
        return alias

    def _output_index(self, subject: str) -> Ints:
        """index ':'"""
        index = self.integers(subject)
        self.expect(":", f"after an output index in {subject}")
        return index

    def _numbered_index(self, subject: str, place: str) -> tuple[int, Ints]:
        """'(' int ',' index: what part of an operand or a parameter; what closes it stays"""
        self.expect("(", f"before the {place} in {subject}")
        number = self.integer(f"the {place} number in {subject}")
        self.expect(",", f"before an index in {subject}")
        return number, self.integers(subject)

    def input_output_alias(self, subject: str) -> tuple[Alias, ...]:
        """'{' [index ':' '(' int ',' index [',' kind] ')' (',' …)*] '}', kind ::= may-alias | must-alias"""
        return self.braced(subject, lambda: self._output_alias(subject))

    def _output_alias(self, subject: str) -> Alias:
        output, (number, index) = self._output_index(subject), self._numbered_index(subject, "parameter")
        kind = self.enumeration("the kind of alias", ("may-alias", "must-alias")) if self.take(",") else "may-alias"
        self.expect(")", f"after the parameter in {subject}")
        return Alias(output, number, index, kind)

    def buffer_donor(self, subject: str) -> tuple[tuple[int, Ints], ...]:
        """'{' ['(' int ',' index ')' (',' …)*] '}'"""
        return self.braced(subject, lambda: self._donor(subject))

    def _donor(self, subject: str) -> tuple[int, Ints]:
        donor = self._numbered_index(subject, "parameter")
        self.expect(")", f"after the parameter in {subject}")
        return donor

    def entry_layout(self, subject: str) -> EntryLayout:
        """'{' '(' [shape (',' shape)*] ')' '->' shape '}'"""
        self.expect("{", f"before {subject}")
        parameters = self.items("(", ")", "the shapes of the parameters", self.shape)
        self.expect("->", "before the shape of the result")
        result = self.shape()
        self.expect("}", f"after {subject}")
        return EntryLayout(parameters, result)

    def shapes(self, subject: str) -> tuple[Shape, ...]:
        """'{' [shape (',' shape)*] '}'"""
        return self.braced(subject, self.shape)

    def unknown_value(self) -> str:
        """The verbatim text of a value whose grammar is not known: up to the next ',' or closing bracket outside
        brackets and strings, or to the end of the line where no bracket is open."""
        start = end = self.start
        while self.kind != END and self.value not in (",", "}", ")", "]"):
            if end > start and "\n" in self.text[end : self.start]:
                break
            end = self._end_of_unknown()
        if end == start:
            self.fail(f"expected a value, found {self.describe()}")
        return self.text[start:end]

    def unknown_word(self) -> str:
        """The verbatim text of one token, or of one pair of brackets and what they hold."""
        start = self.start
        if self.kind not in (NAME, NUMBER, STRING) and self.value not in _CLOSING:
            self.fail(f"expected a value, found {self.describe()}")
        return self.text[start : self._end_of_unknown()]

    def _end_of_unknown(self) -> int:
        """Move past one token, or one pair of brackets and what they hold; returns where they end."""
        expected: list[str] = []
        while True:
            value, end = self.value, self.end
            if value in _CLOSING:
                expected.append(_CLOSING[value])
            elif expected and value == expected[-1]:
                expected.pop()
            elif self.kind == END or value in _CLOSING.values():
                self.fail(f"expected '{expected[-1]}', found {self.describe()}")
            elif value == "\0":
                self.fail(f"expected a value, found {self.describe()}")
            self.advance()
            if not expected:
                return end


_SIZES = re.compile(r"(?:-?[0-9]{1,19}(?!x)|[0-9]{1,19}(?:x[0-9]{1,19})+)(?![A-Za-z0-9_.])")
"""As in XLA, a size of one dimension may be negative, but not one of several."""
_AMOUNTS = r"-?[0-9]{1,19}_-?[0-9]{1,19}(?:_[0-9]{1,19})?"
_PADDING = re.compile(rf"{_AMOUNTS}(?:x{_AMOUNTS})*(?![A-Za-z0-9_.])")
_DIMENSION_LABELS = re.compile(r"([0-9bf?]{2,})_([0-9io?]{2,})->([0-9bf?]{2,})(?![A-Za-z0-9_.])")
_WINDOW_FIELDS = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")


class GeometryParser(AttributeParser):
    """Reads geometry."""

    __slots__ = ()

    def window(self, subject: str) -> Window:
        """'{' (field '=' sizes)* '}', field ::= size | stride | pad | lhs_dilate | rhs_dilate | rhs_reversal"""
        self.expect("{", "before a window")
        start = self.start
        fields: dict[str, list[Any]] = {}
        while not self.at("}"):
            position = self.start
            name = self.attribute_name(f"a field of a window ({', '.join(_WINDOW_FIELDS)})")
            if name not in _WINDOW_FIELDS:
                self.fail(f"a window has the fields {', '.join(_WINDOW_FIELDS)}, found '{name}'", position)
            if name in fields:
                self.fail(f"the window field '{name}' occurs twice", position)
            fields[name] = self._paddings() if name == "pad" else self._sizes(name)
        self.advance()
        rank = len(fields.get("size", ()))
        for name, values in fields.items():
            if len(values) != rank:
                self.fail(f"the window has {rank} sizes, but '{name}' has {len(values)} entries", start)
        size = fields.get("size", [])
        ones = [1] * rank
        stride, base, dilation = (fields.get(name, ones) for name in ("stride", "lhs_dilate", "rhs_dilate"))
        padding = fields.get("pad", [(0, 0)] * rank)
        reversal = fields.get("rhs_reversal", [0] * rank)
        return Window(
            tuple(
                WindowDimension(
                    size[i], stride[i], padding[i][0], padding[i][1], base[i], dilation[i], reversal[i] == 1
                )
                for i in range(rank)
            )
        )

    def _sizes(self, name: str) -> list[int]:
        """int ('x' int)*"""
        entries = self._entries(_SIZES, f"sizes such as 3x3 after '{name}='")
        return [size for (size,) in entries]

    def _paddings(self) -> list[tuple[int, int]]:
        """low '_' high ('x' low '_' high)*"""
        start = self.start
        entries = self._entries(_PADDING, "padding such as 0_1x2_2 after 'pad='")
        if any(len(entry) != 2 for entry in entries):
            self.fail("the padding of a window is low_high per dimension, without interior padding", start)
        return [(entry[0], entry[1]) for entry in entries]

    def padding(self, subject: str) -> tuple[PaddingDimension, ...]:
        """low '_' high ['_' interior] ('x' low '_' high ['_' interior])*"""
        return tuple(PaddingDimension(*entry) for entry in self._entries(_PADDING, "padding such as 0_0_0x3_3_1"))

    def _entries(self, pattern: re.Pattern[str], subject: str) -> list[list[int]]:
        """entry ('x' entry)*, entry ::= int ('_' int)*; integers of 64 bits."""
        start = self.start
        match = self.pattern(pattern, subject)
        entries = [list(map(int, entry.split("_"))) for entry in match[0].split("x")]
        if any(not -(1 << 63) <= number < 1 << 63 for entry in entries for number in entry):
            self.fail(f"expected {subject}, found a number that does not fit 64 bits", start)
        return entries

    def slice(self, subject: str) -> tuple[SliceDimension, ...]:
        """'{' ['[' start ':' limit [':' stride] ']' (',' …)*] '}'"""
        return self.braced(subject, self._range)

    def _range(self) -> SliceDimension:
        start = self.start
        self.expect("[", "before the range of a slice")
        bounds = [self.integer("the start of a slice")]
        while self.take(":"):
            bounds.append(self.integer("a bound of a slice"))
        if not 2 <= len(bounds) <= 3:
            self.fail(
                f"the range of a slice is [start:limit] or [start:limit:stride], found {len(bounds)} numbers", start
            )
        self.expect("]", "after the range of a slice")
        return SliceDimension(*bounds)

    def convolution_dimensions(self, subject: str) -> ConvolutionDimensionNumbers:
        """labels '_' labels '->' labels, e.g. b01f_01io->b01f"""
        start = self.start
        match = self.pattern(_DIMENSION_LABELS, "dimension labels such as b01f_01io->b01f")
        roles = (("bf", "input"), ("io", "kernel"), ("bf", "output"))
        sides = [self._labels(match[i + 1], letters, side, start) for i, (letters, side) in enumerate(roles)]
        (batch, feature, spatial), (kernel_in, kernel_out, kernel), (out_batch, out_feature, out_spatial) = sides
        if not len(spatial) == len(kernel) == len(out_spatial):
            self.fail(
                "input, kernel and output have the same number of spatial dimensions, "
                f"found {len(spatial)}, {len(kernel)} and {len(out_spatial)}",
                start,
            )
        return ConvolutionDimensionNumbers(
            batch,
            feature,
            spatial,
            kernel_in,
            kernel_out,
            kernel,
            out_batch,
            out_feature,
            out_spatial,
            *(len(match[group]) for group in (1, 2, 3)),
        )

    def _labels(self, labels: str, letters: str, side: str, start: int) -> tuple[int, int, tuple[int, ...]]:
        """The places of the two letters (0 where absent, as in XLA) and of the spatial digits of one side."""
        used = labels.replace("?", "")
        if len(set(used)) != len(used):
            self.fail(f"the {side} dimension labels '{labels}' name a dimension twice", start)
        digits = sorted(label for label in used if label.isdigit())
        if digits != [str(i) for i in range(len(digits))]:
            self.fail(f"the {side} dimension labels '{labels}' do not number their dimensions from 0", start)
        first, second = (max(labels.find(letter), 0) for letter in letters)
        return first, second, tuple(labels.index(digit) for digit in digits)
