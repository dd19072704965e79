"""Attributes that any instruction may have: metadata, statistics, origins, frontend attributes, accuracy."""

from __future__ import annotations

import re
from typing import Any

from hloexec.core.ir import Metadata, OriginalValue, ResultAccuracy, Statistics
from hloexec.core.values import Pairs
from hloexec.language.text.attributes.geometry import GeometryParser
from hloexec.language.text.lexer import STRING

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


class AnnotationParser(GeometryParser):
    """Reads annotations."""

    __slots__ = ()

    def frontend_attributes(self, what: str) -> Pairs:
        """'{' [name '=' (string | dictionary) (',' …)*] '}'"""
        pairs = self.braced(what, lambda: self._frontend_attribute(what))
        return tuple(sorted(dict(pairs).items()))

    def _frontend_attribute(self, what: str) -> tuple[str, str]:
        name = self.attribute_name(f"a part of {what}")
        return name, self.string_or_dictionary(f"the value of '{name}'")

    def statistics(self, what: str) -> Statistics:
        """'{' '}' | '{' 'visualizing_index=' int (',' name '=' number)* '}'"""
        self.expect("{", "before statistics")
        if self.take("}"):
            return Statistics()
        self.attribute_name("the visualizing index")
        index = self.integer("the visualizing index")
        values: list[tuple[str, float]] = []
        while self.take(","):
            name = self.attribute_name("a statistic")
            values.append((name, self.number(f"the statistic '{name}'")))
        self.expect("}", "after statistics")
        return Statistics(index, tuple(values))

    def result_accuracy(self, what: str) -> ResultAccuracy:
        """'{' 'mode=' word '}' | '{' 'tolerance={' [(atol | rtol | ulps) '=' number (',' …)*] '}' '}'"""
        self.expect("{", "before a result accuracy")
        start = self.start
        name = self.attribute_name("a result accuracy (mode or tolerance)")
        if name == "mode":
            mode = self.enumeration("the mode of a result accuracy", ("default", "highest"), any_case=True)
            found = ResultAccuracy(mode=mode)
        elif name == "tolerance":
            pairs = dict(self.braced("a tolerance", self._tolerance))
            found = ResultAccuracy(ulps=pairs.get("ulps"), rtol=pairs.get("rtol"), atol=pairs.get("atol"))
        else:
            self.fail(f"a result accuracy is a mode or a tolerance, found '{name}'", start)
        self.expect("}", "after a result accuracy")
        return found

    def _tolerance(self) -> tuple[str, float]:
        start = self.start
        name = self.attribute_name("a tolerance")
        if name not in ("atol", "rtol", "ulps"):
            self.fail(f"a tolerance is atol, rtol or ulps, found '{name}'", start)
        return name, self.number(f"the tolerance '{name}'")

    def original_value(self, what: str) -> OriginalValue:
        """'{' … '}', kept verbatim: '[synthetic_call]', or a tree of '{"name" [index]}' in parentheses, behind which
        XLA since jaxlib 0.12 writes the calls that led there, ',' '[' string ']'
        """
        start = self.start
        self.expect("{", f"before {what}")
        if self.take("["):
            if self.name("'synthetic_call'") != "synthetic_call":
                self.fail("expected 'synthetic_call' between brackets", start)
            self.expect("]", "after 'synthetic_call'")
        depth = 0
        while not self.at("}"):
            if self.take("("):
                depth += 1
            elif depth and self.take(")"):
                depth -= 1
            elif depth and self.take(","):
                continue
            elif self.at("{"):
                self._original_array(what)
            elif self.take(","):
                self.expect("[", f"before the calls of {what}")
                self.string("the calls that led to an original instruction")
                self.expect("]", f"after the calls of {what}")
                break
            else:
                self.fail(f"expected the origin of a leaf, or '}}' after {what}, found {self.describe()}")
        end = self.end
        self.expect("}", f"after {what}")
        return OriginalValue(self.text[start:end])

    def _original_array(self, what: str) -> None:
        """'{' [string [index]] '}'"""
        self.expect("{", f"before a leaf of {what}")
        if self.kind == STRING:
            self.string("the name of an original instruction")
            if self.at("{"):
                self.integers("the index of an original value")
        self.expect("}", f"after a leaf of {what}")

    def recovery_table(self, what: str) -> str:
        """'{' (leaf ':' leaf [',' string])* '}', kept verbatim"""
        start = self.start
        self.expect("{", f"before {what}")
        while not self.at("}"):
            self._original_array(what)
            self.expect(":", f"between the values of {what}")
            self._original_array(what)
            if self.take(","):
                self.string("a recovery module")
        end = self.end
        self.advance()
        return self.text[start:end]

    def metadata(self, what: str = "metadata") -> Metadata:
        """'{' ([','] field)* '}'"""
        found, end = self.metadata_at(self.start, what)
        self.move_to(end)
        return found

    def metadata_at(self, position: int, what: str) -> tuple[Metadata, int]:
        """Metadata that begins at `position`, and where it ends; nearly all of it is plain and read as a whole."""
        end = self.text.find("}", position) + 1
        known = self._known_metadata.get(self.text[position:end])
        if known is not None:
            return known, end
        plain = _PLAIN_METADATA.match(self.text, position)
        if plain is None:
            self.move_to(position)
            self.expect("{", f"before {what}")
            return self._metadata_by_parts(), self.start
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
        fields: dict[str, Any] = {}
        unknown: list[tuple[str, str]] = []
        while not self.at("}"):
            self.take(",")
            start = self.start
            name = self.attribute_name("a field of metadata")
            if name in fields:
                self.fail(f"the metadata field '{name}' occurs twice", start)
            if name in _METADATA_STRINGS:
                fields[name] = self.string(f"the metadata field '{name}'")
            elif name in _METADATA_INTEGERS:
                position = self.start
                fields[name] = self.integer(f"the metadata field '{name}'")
                if fields[name] not in INT32:
                    self.fail(f"the metadata field '{name}' does not fit 32 bits", position)
            elif name == "profile_type":
                position = self.start
                fields[name] = self.integers("profile types")
                if not all(value in _PROFILE_TYPES for value in fields[name]):
                    self.unknown(f"one of the profile types {list(fields[name])}", position, map(str, _PROFILE_TYPES))
            else:
                known = (*_METADATA_STRINGS, *_METADATA_INTEGERS, "profile_type")
                self.unknown(f"the metadata field '{name}'", start, known)
                unknown.append((name, self.unknown_word()))
        self.advance()
        return Metadata(**fields, unknown=tuple(unknown))

    def metadata_list(self, what: str) -> tuple[Metadata, ...]:
        """metadata | '{' [metadata (',' metadata)*] '}'"""
        if self.at("{") and self.following() == "{":
            return self.braced(what, self.metadata)
        return (self.metadata(what),)
