"""Attributes in text: lists, words, aliasing, layouts of whole programs. Each method opens with the grammar it accepts.

Geometry, annotations and shardings have files of their own, built on this one; `instructions` holds the table from the
grammars that opcodes declare to the methods that read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from hloexec.core.ir import Alias, EntryLayout, Shape
from hloexec.language.text.lexer import END, NAME, NUMBER, STRING
from hloexec.language.text.shapes import ShapeParser
from hloexec.language.text.state import ParserState
from hloexec.ops.attributes import OperandAlias

_T = TypeVar("_T")

_CLOSING = {"{": "}", "(": ")", "[": "]"}
_INTEGERS = re.compile(r"\{[ ]*(-?[0-9]{1,18}(?:,[ ]*-?[0-9]{1,18})*)?[ ]*\}")


class AttributeParser:
    """Reads values of attributes from a lexer."""

    __slots__ = ("_lexer", "_shapes", "_state")

    def __init__(self, state: ParserState, shapes: ShapeParser) -> None:
        self._state = state
        self._lexer = state.lexer
        self._shapes = shapes

    def items(self, opening: str, closing: str, what: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        """opening [item (',' item)*] closing"""
        lexer = self._lexer
        lexer.expect(opening, f"before {what}")
        found: list[_T] = []
        if not lexer.at(closing):
            found.append(item())
            while lexer.take(","):
                found.append(item())
        lexer.expect(closing, f"after {what}")
        return tuple(found)

    def integers(self, what: str) -> tuple[int, ...]:
        """'{' [int (',' int)*] '}'"""
        lexer = self._lexer
        match = _INTEGERS.match(lexer.text, lexer.start)
        if match:
            lexer.move_to(match.end())
            return tuple(map(int, match[1].split(","))) if match[1] else ()
        return self.items("{", "}", what, lambda: lexer.integer(what))

    def single_integer(self, what: str) -> int:
        """'{' int '}'"""
        start = self._lexer.start
        values = self.integers(what)
        if len(values) != 1:
            self._lexer.fail(f"{what} takes exactly one integer, found {len(values)}", start)
        return values[0]

    def integer_lists(self, what: str) -> tuple[tuple[int, ...], ...]:
        """'{' [integers (',' integers)*] '}'"""
        return self.items("{", "}", what, lambda: self.integers(what))

    def integer_pairs(self, what: str) -> tuple[tuple[int, int], ...]:
        """'{' ['{' int ',' int '}' (',' …)*] '}'"""
        return self.items("{", "}", what, lambda: self._pair(what))

    def _pair(self, what: str) -> tuple[int, int]:
        start = self._lexer.start
        values = self.integers(what)
        if len(values) != 2:
            self._lexer.fail(f"{what} is a list of pairs, found {len(values)} integers", start)
        return values[0], values[1]

    def enumeration(self, what: str, choices: tuple[str, ...], *, any_case: bool = False) -> str:
        """A word out of `choices`, in any case where `any_case`; one of another XLA is kept, unless strict."""
        lexer = self._lexer
        start = lexer.start
        word = lexer.word(f"{what} ({', '.join(choices)})")
        found = next((each for each in choices if word == each or (any_case and word.lower() == each.lower())), None)
        if found is None:
            self._state.unknown(f"the word '{word}' of {what}", start, choices)
        return found or word

    def enumerations(self, what: str, choices: tuple[str, ...], *, any_case: bool = False) -> tuple[str, ...]:
        """'{' [word (',' word)*] '}'"""
        return self.items("{", "}", what, lambda: self.enumeration(what, choices, any_case=any_case))

    def booleans(self, what: str) -> tuple[bool, ...]:
        """'{' [bool (',' bool)*] '}' | bool"""
        if not self._lexer.at("{"):
            return (self._lexer.boolean(what),)
        return self.items("{", "}", what, lambda: self._lexer.boolean(what))

    # Aliasing and layouts of whole programs

    def operand_aliases(self, what: str) -> tuple[OperandAlias, ...]:
        """'{' [index ':' '(' int ',' index ')' (',' …)*] '}'"""
        return self.items("{", "}", what, lambda: self._operand_alias(what))

    def _operand_alias(self, what: str) -> OperandAlias:
        alias = OperandAlias(self._output_index(what), *self._numbered_index(what, "operand"))
        self._lexer.expect(")", f"after an operand in {what}")
        return alias

    def _output_index(self, what: str) -> tuple[int, ...]:
        """index ':'"""
        index = self.integers(what)
        self._lexer.expect(":", f"after an output index in {what}")
        return index

    def _numbered_index(self, what: str, place: str) -> tuple[int, tuple[int, ...]]:
        """'(' int ',' index: what part of an operand or a parameter; what closes it stays"""
        lexer = self._lexer
        lexer.expect("(", f"before the {place} in {what}")
        number = lexer.integer(f"the {place} number in {what}")
        lexer.expect(",", f"before an index in {what}")
        return number, self.integers(what)

    def input_output_alias(self, what: str) -> tuple[Alias, ...]:
        """'{' [index ':' '(' int ',' index [',' kind] ')' (',' …)*] '}', kind ::= may-alias | must-alias"""
        return self.items("{", "}", what, lambda: self._output_alias(what))

    def _output_alias(self, what: str) -> Alias:
        lexer = self._lexer
        output, (number, index) = self._output_index(what), self._numbered_index(what, "parameter")
        kind = self.enumeration("the kind of alias", ("may-alias", "must-alias")) if lexer.take(",") else "may-alias"
        lexer.expect(")", f"after the parameter in {what}")
        return Alias(output, number, index, kind)

    def buffer_donor(self, what: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """'{' ['(' int ',' index ')' (',' …)*] '}'"""
        return self.items("{", "}", what, lambda: self._donor(what))

    def _donor(self, what: str) -> tuple[int, tuple[int, ...]]:
        donor = self._numbered_index(what, "parameter")
        self._lexer.expect(")", f"after the parameter in {what}")
        return donor

    def entry_layout(self, what: str) -> EntryLayout:
        """'{' '(' [shape (',' shape)*] ')' '->' shape '}'"""
        lexer = self._lexer
        lexer.expect("{", f"before {what}")
        parameters = self.items("(", ")", "the shapes of the parameters", self._shapes.shape)
        lexer.expect("->", "before the shape of the result")
        result = self._shapes.shape()
        lexer.expect("}", f"after {what}")
        return EntryLayout(parameters, result)

    def shapes(self, what: str) -> tuple[Shape, ...]:
        """'{' [shape (',' shape)*] '}'"""
        return self.items("{", "}", what, self._shapes.shape)

    def unknown_value(self) -> str:
        """The verbatim text of a value whose grammar is not known: up to the next ',' or closing bracket outside
        brackets and strings, or to the end of the line where no bracket is open."""
        lexer = self._lexer
        start = end = lexer.start
        while lexer.kind != END and lexer.value not in (",", "}", ")", "]"):
            if end > start and "\n" in lexer.text[end : lexer.start]:
                break
            end = self._end_of_unknown()
        if end == start:
            lexer.fail(f"expected a value, found {lexer.describe()}")
        return lexer.text[start:end]

    def unknown_word(self) -> str:
        """The verbatim text of one token, or of one pair of brackets and what they hold."""
        lexer = self._lexer
        start = lexer.start
        if lexer.kind not in (NAME, NUMBER, STRING) and lexer.value not in _CLOSING:
            lexer.fail(f"expected a value, found {lexer.describe()}")
        return lexer.text[start : self._end_of_unknown()]

    def _end_of_unknown(self) -> int:
        """Move past one token, or one pair of brackets and what they hold; returns where they end."""
        lexer = self._lexer
        expected: list[str] = []
        while True:
            value, end = lexer.value, lexer.end
            if value in _CLOSING:
                expected.append(_CLOSING[value])
            elif expected and value == expected[-1]:
                expected.pop()
            elif lexer.kind == END or value in _CLOSING.values():
                lexer.fail(f"expected '{expected[-1]}', found {lexer.describe()}")
            elif value == "\0":
                lexer.fail(f"expected a value, found {lexer.describe()}")
            lexer.advance()
            if not expected:
                return end
