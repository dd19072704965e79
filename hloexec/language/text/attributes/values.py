"""Attributes in text: lists, words, aliasing, layouts of whole programs. Each method opens with the grammar it accepts.

Geometry, annotations and shardings have files of their own, built on this one; `instructions` holds the table from the
grammars that opcodes declare to the methods that read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from hloexec.core.ir import Alias, EntryLayout, Shape
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

    def items(self, opening: str, closing: str, what: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        """opening [item (',' item)*] closing"""
        self.expect(opening, f"before {what}")
        found: list[_T] = []
        if not self.at(closing):
            found.append(item())
            while self.take(","):
                found.append(item())
        self.expect(closing, f"after {what}")
        return tuple(found)

    def braced(self, what: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        """'{' [item (',' item)*] '}'"""
        return self.items("{", "}", what, item)

    def integers(self, what: str) -> Ints:
        """'{' [int (',' int)*] '}'"""
        match = _INTEGERS.match(self.text, self.start)
        if match:
            self.move_to(match.end())
            return tuple(map(int, match[1].split(","))) if match[1] else ()
        return self.braced(what, lambda: self.integer(what))

    def single_integer(self, what: str) -> int:
        """'{' int '}'"""
        start = self.start
        values = self.integers(what)
        if len(values) != 1:
            self.fail(f"{what} takes exactly one integer, found {len(values)}", start)
        return values[0]

    def integer_lists(self, what: str) -> tuple[Ints, ...]:
        """'{' [integers (',' integers)*] '}'"""
        return self.braced(what, lambda: self.integers(what))

    def integer_pairs(self, what: str) -> tuple[tuple[int, int], ...]:
        """'{' ['{' int ',' int '}' (',' …)*] '}'"""
        return self.braced(what, lambda: self._pair(what))

    def _pair(self, what: str) -> tuple[int, int]:
        start = self.start
        values = self.integers(what)
        if len(values) != 2:
            self.fail(f"{what} is a list of pairs, found {len(values)} integers", start)
        return values[0], values[1]

    def enumeration(self, what: str, choices: tuple[str, ...], *, any_case: bool = False) -> str:
        """A word out of `choices`, in any case where `any_case`; one of another XLA is kept, unless strict."""
        start = self.start
        word = self.word(f"{what} ({', '.join(choices)})")
        found = next((each for each in choices if word == each or (any_case and word.lower() == each.lower())), None)
        if found is None:
            self.unknown(f"the word '{word}' of {what}", start, choices)
        return found or word

    def enumerations(self, what: str, choices: tuple[str, ...], *, any_case: bool = False) -> tuple[str, ...]:
        """'{' [word (',' word)*] '}'"""
        return self.braced(what, lambda: self.enumeration(what, choices, any_case=any_case))

    def booleans(self, what: str) -> tuple[bool, ...]:
        """'{' [bool (',' bool)*] '}' | bool"""
        if not self.at("{"):
            return (self.boolean(what),)
        return self.flags(what)

    def flags(self, what: str) -> tuple[bool, ...]:
        """'{' [bool (',' bool)*] '}'"""
        return self.braced(what, lambda: self.boolean(what))

    # Aliasing and layouts of whole programs

    def operand_aliases(self, what: str) -> tuple[OperandAlias, ...]:
        """'{' [index ':' '(' int ',' index ')' (',' …)*] '}'"""
        return self.braced(what, lambda: self._operand_alias(what))

    def _operand_alias(self, what: str) -> OperandAlias:
        alias = OperandAlias(self._output_index(what), *self._numbered_index(what, "operand"))
        self.expect(")", f"after an operand in {what}")
        return alias

    def _output_index(self, what: str) -> Ints:
        """index ':'"""
        index = self.integers(what)
        self.expect(":", f"after an output index in {what}")
        return index

    def _numbered_index(self, what: str, place: str) -> tuple[int, Ints]:
        """'(' int ',' index: what part of an operand or a parameter; what closes it stays"""
        self.expect("(", f"before the {place} in {what}")
        number = self.integer(f"the {place} number in {what}")
        self.expect(",", f"before an index in {what}")
        return number, self.integers(what)

    def input_output_alias(self, what: str) -> tuple[Alias, ...]:
        """'{' [index ':' '(' int ',' index [',' kind] ')' (',' …)*] '}', kind ::= may-alias | must-alias"""
        return self.braced(what, lambda: self._output_alias(what))

    def _output_alias(self, what: str) -> Alias:
        output, (number, index) = self._output_index(what), self._numbered_index(what, "parameter")
        kind = self.enumeration("the kind of alias", ("may-alias", "must-alias")) if self.take(",") else "may-alias"
        self.expect(")", f"after the parameter in {what}")
        return Alias(output, number, index, kind)

    def buffer_donor(self, what: str) -> tuple[tuple[int, Ints], ...]:
        """'{' ['(' int ',' index ')' (',' …)*] '}'"""
        return self.braced(what, lambda: self._donor(what))

    def _donor(self, what: str) -> tuple[int, Ints]:
        donor = self._numbered_index(what, "parameter")
        self.expect(")", f"after the parameter in {what}")
        return donor

    def entry_layout(self, what: str) -> EntryLayout:
        """'{' '(' [shape (',' shape)*] ')' '->' shape '}'"""
        self.expect("{", f"before {what}")
        parameters = self.items("(", ")", "the shapes of the parameters", self.shape)
        self.expect("->", "before the shape of the result")
        result = self.shape()
        self.expect("}", f"after {what}")
        return EntryLayout(parameters, result)

    def shapes(self, what: str) -> tuple[Shape, ...]:
        """'{' [shape (',' shape)*] '}'"""
        return self.braced(what, self.shape)

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
