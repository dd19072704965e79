"""Attributes that any instruction may have: metadata, statistics, origins, frontend attributes, accuracy."""

from __future__ import annotations

import re
from typing import Any

from hloexec.core.ir import Metadata, OriginalValue, ResultAccuracy, Statistics
from hloexec.language.text.attributes.values import AttributeParser
from hloexec.language.text.lexer import STRING
from hloexec.language.text.state import ParserState

_PROFILE_TYPES = range(4)
INT32 = range(-(1 << 31), 1 << 31)
_METADATA_STRINGS = ("op_type", "op_name", "source_file", "deduplicated_name", "scheduling_name", "metadata_payload")
_METADATA_INTEGERS = ("source_line", "source_end_line", "source_column", "source_end_column", "stack_frame_id")

_MOST_KNOWN = 4096
"""How many metadata are kept by their texts, as most of what repeats does so often."""

_PLAIN_METADATA = re.compile(
    r"\{"
    r'(?:op_type="([^"\\]*+)" ?)?+(?:op_name="([^"\\]*+)" ?)?+(?:source_file="([^"\\]*+)" ?)?+'
    r"(?:source_line=([0-9]{1,9}+) ?)?+(?:source_end_line=([0-9]{1,9}+) ?)?+"
    r"(?:source_column=([0-9]{1,9}+) ?)?+(?:source_end_column=([0-9]{1,9}+) ?)?+(?:stack_frame_id=([0-9]{1,9}+) ?)?+"
    r'(?:deduplicated_name="([^"\\]*+)" ?)?+(?:scheduling_name="([^"\\]*+)" ?)?+'
    r"\}"
)
"""Metadata without escapes, its fields in the order in which XLA prints them."""


class AnnotationParser:
    """Reads annotations from a lexer."""

    __slots__ = ("_attributes", "_known_metadata", "_known_strings", "_lexer", "_state")

    def __init__(self, state: ParserState, attributes: AttributeParser) -> None:
        self._state = state
        self._lexer = state.lexer
        self._attributes = attributes
        self._known_strings: dict[str, str] = {}
        self._known_metadata: dict[str, Metadata] = {}

    def frontend_attributes(self, what: str) -> tuple[tuple[str, str], ...]:
        """'{' [name '=' (string | dictionary) (',' …)*] '}'"""
        pairs = self._attributes.items("{", "}", what, lambda: self._frontend_attribute(what))
        return tuple(sorted(dict(pairs).items()))

    def _frontend_attribute(self, what: str) -> tuple[str, str]:
        name = self._lexer.attribute_name(f"a part of {what}")
        return name, self._lexer.string_or_dictionary(f"the value of '{name}'")

    def statistics(self, what: str) -> Statistics:
        """'{' '}' | '{' 'visualizing_index=' int (',' name '=' number)* '}'"""
        lexer = self._lexer
        lexer.expect("{", "before statistics")
        if lexer.take("}"):
            return Statistics()
        lexer.attribute_name("the visualizing index")
        index = lexer.integer("the visualizing index")
        values: list[tuple[str, float]] = []
        while lexer.take(","):
            name = lexer.attribute_name("a statistic")
            values.append((name, lexer.number(f"the statistic '{name}'")))
        lexer.expect("}", "after statistics")
        return Statistics(index, tuple(values))

    def result_accuracy(self, what: str) -> ResultAccuracy:
        """'{' 'mode=' word '}' | '{' 'tolerance={' [(atol | rtol | ulps) '=' number (',' …)*] '}' '}'"""
        lexer = self._lexer
        lexer.expect("{", "before a result accuracy")
        start = lexer.start
        name = lexer.attribute_name("a result accuracy (mode or tolerance)")
        if name == "mode":
            mode = self._attributes.enumeration("the mode of a result accuracy", ("default", "highest"), any_case=True)
            found = ResultAccuracy(mode=mode)
        elif name == "tolerance":
            pairs = dict(self._attributes.items("{", "}", "a tolerance", self._tolerance))
            found = ResultAccuracy(ulps=pairs.get("ulps"), rtol=pairs.get("rtol"), atol=pairs.get("atol"))
        else:
            lexer.fail(f"a result accuracy is a mode or a tolerance, found '{name}'", start)
        lexer.expect("}", "after a result accuracy")
        return found

    def _tolerance(self) -> tuple[str, float]:
        start = self._lexer.start
        name = self._lexer.attribute_name("a tolerance")
        if name not in ("atol", "rtol", "ulps"):
            self._lexer.fail(f"a tolerance is atol, rtol or ulps, found '{name}'", start)
        return name, self._lexer.number(f"the tolerance '{name}'")

    def original_value(self, what: str) -> OriginalValue:
        """'{' … '}', kept verbatim: '[synthetic_call]', or a tree of '{"name" [index]}' in parentheses, behind which
        XLA since jaxlib 0.12 writes the calls that led there, ',' '[' string ']'
        """
        lexer = self._lexer
        start = lexer.start
        lexer.expect("{", f"before {what}")
        if lexer.take("["):
            if lexer.name("'synthetic_call'") != "synthetic_call":
                lexer.fail("expected 'synthetic_call' between brackets", start)
            lexer.expect("]", "after 'synthetic_call'")
        depth = 0
        while not lexer.at("}"):
            if lexer.take("("):
                depth += 1
            elif depth and lexer.take(")"):
                depth -= 1
            elif depth and lexer.take(","):
                continue
            elif lexer.at("{"):
                self._original_array(what)
            elif lexer.take(","):
                lexer.expect("[", f"before the calls of {what}")
                lexer.string("the calls that led to an original instruction")
                lexer.expect("]", f"after the calls of {what}")
                break
            else:
                lexer.fail(f"expected the origin of a leaf, or '}}' after {what}, found {lexer.describe()}")
        end = lexer.end
        lexer.expect("}", f"after {what}")
        return OriginalValue(lexer.text[start:end])

    def _original_array(self, what: str) -> None:
        """'{' [string [index]] '}'"""
        lexer = self._lexer
        lexer.expect("{", f"before a leaf of {what}")
        if lexer.kind == STRING:
            lexer.string("the name of an original instruction")
            if lexer.at("{"):
                self._attributes.integers("the index of an original value")
        lexer.expect("}", f"after a leaf of {what}")

    def recovery_table(self, what: str) -> str:
        """'{' (leaf ':' leaf [',' string])* '}', kept verbatim"""
        lexer = self._lexer
        start = lexer.start
        lexer.expect("{", f"before {what}")
        while not lexer.at("}"):
            self._original_array(what)
            lexer.expect(":", f"between the values of {what}")
            self._original_array(what)
            if lexer.take(","):
                lexer.string("a recovery module")
        end = lexer.end
        lexer.advance()
        return lexer.text[start:end]

    def metadata(self, what: str = "metadata") -> Metadata:
        """'{' ([','] field)* '}'"""
        lexer = self._lexer
        found, end = self.metadata_at(lexer.start, what)
        lexer.move_to(end)
        return found

    def metadata_at(self, position: int, what: str) -> tuple[Metadata, int]:
        """Metadata that begins at `position`, and where it ends; nearly all of it is plain and read as a whole."""
        lexer = self._lexer
        end = lexer.text.find("}", position) + 1
        known = self._known_metadata.get(lexer.text[position:end])
        if known is not None:
            return known, end
        plain = _PLAIN_METADATA.match(lexer.text, position)
        if plain is None:
            lexer.move_to(position)
            lexer.expect("{", f"before {what}")
            return self._metadata_by_parts(), lexer.start
        op_type, op_name, source_file, *integers, deduplicated_name, scheduling_name = plain.groups()
        line, end_line, column, end_column, frame = [None if text is None else int(text) for text in integers]
        found = Metadata(
            op_type,
            None if op_name is None else self._known_strings.setdefault(op_name, op_name),
            None if source_file is None else self._known_strings.setdefault(source_file, source_file),
            line,
            end_line,
            column,
            end_column,
            frame,
            None,
            deduplicated_name,
            scheduling_name,
        )
        if len(self._known_metadata) < _MOST_KNOWN:
            self._known_metadata[plain[0]] = found
        return found, plain.end()

    def _metadata_by_parts(self) -> Metadata:
        """What follows the opening brace of metadata."""
        lexer = self._lexer
        fields: dict[str, Any] = {}
        unknown: list[tuple[str, str]] = []
        while not lexer.at("}"):
            lexer.take(",")
            start = lexer.start
            name = lexer.attribute_name("a field of metadata")
            if name in fields:
                lexer.fail(f"the metadata field '{name}' occurs twice", start)
            if name in _METADATA_STRINGS:
                fields[name] = lexer.string(f"the metadata field '{name}'")
            elif name in _METADATA_INTEGERS:
                position = lexer.start
                fields[name] = lexer.integer(f"the metadata field '{name}'")
                if fields[name] not in INT32:
                    lexer.fail(f"the metadata field '{name}' does not fit 32 bits", position)
            elif name == "profile_type":
                position = lexer.start
                fields[name] = self._attributes.integers("profile types")
                if not all(value in _PROFILE_TYPES for value in fields[name]):
                    self._state.unknown(
                        f"one of the profile types {list(fields[name])}", position, map(str, _PROFILE_TYPES)
                    )
            else:
                known = (*_METADATA_STRINGS, *_METADATA_INTEGERS, "profile_type")
                self._state.unknown(f"the metadata field '{name}'", start, known)
                unknown.append((name, self._attributes.unknown_word()))
        lexer.advance()
        return Metadata(**fields, unknown=tuple(unknown))

    def metadata_list(self, what: str) -> tuple[Metadata, ...]:
        """metadata | '{' [metadata (',' metadata)*] '}'"""
        lexer = self._lexer
        if lexer.at("{") and lexer.following() == "{":
            return self._attributes.items("{", "}", what, self.metadata)
        return (self.metadata(what),)
