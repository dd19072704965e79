"""Attributes that any instruction may have, and those that Shardy keeps in frontend attributes.

Shardy's attributes, as its round trip through HLO keeps them in frontend attributes. `xla.sdy.meshes` names the meshes
of a module; `xla.sdy.in_shardings`, `xla.sdy.out_shardings` and `xla.sdy.sharding` say which of a mesh's axes divide
the dimensions of arrays; `xla.sdy.manual_axes` which axes a manual region is about. Source: Shardy, sdy dialect (mesh,
sharding, sharding_per_value, manual_axes) and its printed form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hloexec.core.ir import (
    AxisRef,
    DimensionSharding,
    Mesh,
    Metadata,
    Module,
    NamedSharding,
    OriginalValue,
    ResultAccuracy,
    Statistics,
)
from hloexec.core.values import Pairs
from hloexec.language.text.attributes.values import GeometryParser
from hloexec.language.text.lexer import BAD, NAME, PUNCTUATION, STRING, Lexer

_Item = TypeVar("_Item")


def meshes_of(module: Module) -> dict[str, Mesh]:
    """The meshes that a module's attributes define, by name; raises ParseError."""
    text = dict(module.frontend_attributes or ()).get("xla.sdy.meshes")
    return {} if text is None else parse_meshes(text)


def parse_meshes(text: str) -> dict[str, Mesh]:
    """meshes ::= '{' [name '=' '#sdy.mesh' '<' mesh '>' (',' …)*] '}'; raises ParseError."""
    reader = _Reader(text, "<xla.sdy.meshes>")
    meshes_by_name = dict(reader.items("{", "}", reader.named_mesh))
    reader.end_of("the attribute")
    return meshes_by_name


def parse_shardings(text: str, meshes: Mapping[str, Mesh]) -> tuple[NamedSharding, ...]:
    """shardings ::= '#sdy.sharding_per_value' '<' '[' [sharding (',' sharding)*] ']' '>' | '#sdy.sharding' sharding

    `meshes` are those that a sharding may refer to by name. Raises ParseError.
    """
    reader = _Reader(text, "<sdy sharding>", meshes)
    shardings: tuple[NamedSharding, ...]
    if reader.attribute("sharding_per_value", "sharding") == "sharding":
        shardings = (reader.sharding(),)
    else:
        reader.expect_mark("<")
        shardings = reader.items("[", "]", reader.sharding)
        reader.expect_mark(">")
    reader.end_of("the attribute")
    return shardings


def parse_manual_axes(text: str) -> tuple[str, ...]:
    """axes ::= '#sdy' '<' 'manual_axes' '{' [string (',' string)*] '}' '>'; raises ParseError."""
    reader = _Reader(text, "<xla.sdy.manual_axes>")
    reader.attribute("")
    reader.expect_mark("<")
    reader.expect_word("manual_axes")
    axes = reader.items("{", "}", reader.axis_name)
    reader.expect_mark(">")
    reader.end_of("the attribute")
    return axes


class _Reader(Lexer):
    """The rules that make up the attributes."""

    def __init__(self, text: str, subject: str, meshes: Mapping[str, Mesh] | None = None) -> None:
        super().__init__(text, subject)
        self._meshes = meshes or {}

    def at_mark(self, mark: str) -> bool:
        # Angle brackets and at signs are no tokens of HLO.
        return self.value == mark and self.kind in (PUNCTUATION, BAD)

    def take_mark(self, mark: str) -> bool:
        if self.at_mark(mark):
            self.advance()
            return True
        return False

    def expect_mark(self, mark: str) -> None:
        if not self.take_mark(mark):
            self.fail(f"expected '{mark}', found {self.describe()}")

    def expect_word(self, word: str) -> None:
        if not self.at_word(word):
            self.fail(f"expected '{word}', found {self.describe()}")
        self.advance()

    def items(self, opening: str, closing: str, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """opening [item (',' item)*] closing"""
        self.expect_mark(opening)
        items: list[_Item] = []
        while not self.at_mark(closing):
            items.append(item())
            if not self.take_mark(","):
                break
        self.expect_mark(closing)
        return tuple(items)

    def attribute(self, *kinds: str) -> str:
        """'#sdy' ['.' kind]"""
        self.expect_mark("#")
        names = {f"sdy.{kind}" if kind else "sdy": kind for kind in kinds}
        if self.kind != NAME or self.value not in names:
            wanted = " or ".join(f"'#{name}'" for name in names)
            self.fail(f"expected {wanted}, found {self.describe()}")
        kind = names[self.value]
        self.advance()
        return kind

    def named_mesh(self) -> tuple[str, Mesh]:
        """name '=' '#sdy.mesh' '<' mesh '>'"""
        name = self._name("the name of a mesh")
        self.expect_mark("=")
        self.attribute("mesh")
        return name, self.mesh()

    def mesh(self) -> Mesh:
        """'<' '[' [string '=' int (',' …)*] ']' [',' 'device_ids' '=' '[' int (',' int)* ']'] '>'"""
        self.expect_mark("<")
        axes = self.items("[", "]", self._sized_axis)
        device_ids: tuple[int, ...] | None = None
        if self.take_mark(","):
            start = self.start
            self.expect_word("device_ids")
            self.expect_mark("=")
            device_ids = self.items("[", "]", lambda: self.integer("a device"))
            if not axes and len(device_ids) == 1:
                self.expect_mark(">")
                return Mesh(maximal_device=device_ids[0])
            count = math.prod(size for _, size in axes)
            if len(device_ids) != count or sorted(device_ids) != list(range(count)):
                self.fail(f"the mesh has {count} devices, and its device order must name each of them once", start)
        self.expect_mark(">")
        return Mesh(axes, device_ids)

    def _sized_axis(self) -> tuple[str, int]:
        name = self.axis_name()
        self.expect_mark("=")
        start = self.start
        size = self.integer("the size of a mesh axis")
        if size < 1:
            self.fail("the size of a mesh axis must be at least 1", start)
        return name, size

    def sharding(self) -> NamedSharding:
        """'<' mesh-or-ref ',' '[' dimensions ']' (',' ('replicated' | 'unreduced') '=' '{' axes '}')* '>'"""
        self.expect_mark("<")
        if self.take_mark("@"):
            start = self.start
            name = self._name("the name of a mesh")
            if name not in self._meshes:
                self.fail(f"the module has no mesh '{name}'", start)
            mesh = self._meshes[name]
        else:
            self.expect_word("mesh")
            mesh = self.mesh()
        self.expect_mark(",")
        fields: dict[str, Any] = {}
        dimensions = self.items("[", "]", self._dimension)
        while self.take_mark(","):
            if self.kind != NAME or self.value not in ("replicated", "unreduced"):
                self.fail(f"expected 'replicated' or 'unreduced', found {self.describe()}")
            part = self.word("a part of a sharding")
            self.expect_mark("=")
            fields[part] = self.items("{", "}", self._axis)
        self.expect_mark(">")
        return NamedSharding(mesh, dimensions=dimensions, **fields)

    def _dimension(self) -> DimensionSharding:
        """'{' [axis (',' axis)*] [[','] '?'] '}' ['p' int]; the priority concerns propagation only."""
        axes: list[AxisRef] = []
        is_closed = True

        def part() -> None:
            nonlocal is_closed
            if not is_closed:
                self.fail("'?' is the last of a dimension's axes")
            if self.take_mark("?"):
                is_closed = False
            else:
                axes.append(self._axis())

        self.items("{", "}", part)
        if self.kind == NAME and self.value[0] == "p" and self.value[1:].isdecimal():
            self.advance()
        return DimensionSharding(tuple(axes), is_closed)

    def _axis(self) -> AxisRef:
        """string [':' '(' int ')' int]"""
        name = self.axis_name()
        if not self.take_mark(":"):
            return AxisRef(name)
        self.expect_mark("(")
        above = self.integer("the size above a sub-axis")
        self.expect_mark(")")
        return AxisRef(name, (above, self.integer("the size of a sub-axis")))

    def axis_name(self) -> str:
        return self.string("the name of a mesh axis")

    def _name(self, subject: str) -> str:
        return self.string(subject) if self.kind == STRING else self.word(subject)


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

    def frontend_attributes(self, subject: str) -> Pairs:
        """'{' [name '=' (string | dictionary) (',' …)*] '}'"""
        pairs = self.braced(subject, lambda: self._frontend_attribute(subject))
        return tuple(sorted(dict(pairs).items()))

    def _frontend_attribute(self, subject: str) -> tuple[str, str]:
        name = self.attribute_name(f"a part of {subject}")
        return name, self.string_or_dictionary(f"the value of '{name}'")

    def statistics(self, subject: str) -> Statistics:
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

    def result_accuracy(self, subject: str) -> ResultAccuracy:
        """'{' 'mode=' word '}' | '{' 'tolerance={' [(atol | rtol | ulps) '=' number (',' …)*] '}' '}'"""
        self.expect("{", "before a result accuracy")
        start = self.start
        name = self.attribute_name("a result accuracy (mode or tolerance)")
        if name == "mode":
            mode = self.enumeration("the mode of a result accuracy", ("default", "highest"), any_case=True)
            accuracy = ResultAccuracy(mode=mode)
        elif name == "tolerance":
            pairs = dict(self.braced("a tolerance", self._tolerance))
            accuracy = ResultAccuracy(ulps=pairs.get("ulps"), rtol=pairs.get("rtol"), atol=pairs.get("atol"))
        else:
            self.fail(f"a result accuracy is a mode or a tolerance, found '{name}'", start)
        self.expect("}", "after a result accuracy")
        return accuracy

    def _tolerance(self) -> tuple[str, float]:
        start = self.start
        name = self.attribute_name("a tolerance")
        if name not in ("atol", "rtol", "ulps"):
            self.fail(f"a tolerance is atol, rtol or ulps, found '{name}'", start)
        return name, self.number(f"the tolerance '{name}'")

    def original_value(self, subject: str) -> OriginalValue:
        """'{' … '}', kept verbatim: '[synthetic_call]', or a tree of '{"name" [index]}' in parentheses, behind which
        XLA since jaxlib 0.12 writes the calls that led there, ',' '[' string ']'
        """
        start = self.start
        self.expect("{", f"before {subject}")
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
                self._original_array(subject)
            elif self.take(","):
                self.expect("[", f"before the calls of {subject}")
                self.string("the calls that led to an original instruction")
                self.expect("]", f"after the calls of {subject}")
                break
            else:
                self.fail(f"expected the origin of a leaf, or '}}' after {subject}, found {self.describe()}")
        end = self.end
        self.expect("}", f"after {subject}")
        return OriginalValue(self.text[start:end])

    def _original_array(self, subject: str) -> None:
        """'{' [string [index]] '}'"""
        self.expect("{", f"before a leaf of {subject}")
        if self.kind == STRING:
            self.string("the name of an original instruction")
            if self.at("{"):
                self.integers("the index of an original value")
        self.expect("}", f"after a leaf of {subject}")

    def recovery_table(self, subject: str) -> str:
        """'{' (leaf ':' leaf [',' string])* '}', kept verbatim"""
        start = self.start
        self.expect("{", f"before {subject}")
        while not self.at("}"):
            self._original_array(subject)
            self.expect(":", f"between the values of {subject}")
            self._original_array(subject)
            if self.take(","):
                self.string("a recovery module")
        end = self.end
        self.advance()
        return self.text[start:end]

    def metadata(self, subject: str = "metadata") -> Metadata:
        """'{' ([','] field)* '}'"""
        found, end = self.metadata_at(self.start, subject)
        self.move_to(end)
        return found

    def metadata_at(self, position: int, subject: str) -> tuple[Metadata, int]:
        """Metadata that begins at `position`, and where it ends; nearly all of it is plain and read as a whole."""
        end = self.text.find("}", position) + 1
        known = self._known_metadata.get(self.text[position:end])
        if known is not None:
            return known, end
        plain = _PLAIN_METADATA.match(self.text, position)
        if plain is None:
            self.move_to(position)
            self.expect("{", f"before {subject}")
            return self._metadata_by_parts(), self.start
        op_type, op_name, source_file, *integers, deduplicated_name, scheduling_name = plain.groups()
        line, end_line, column, end_column, frame = [None if text is None else int(text) for text in integers]
        metadata = Metadata(
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
            self._known_metadata[plain[0]] = metadata
        return metadata, plain.end()

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
                field_names = (*_METADATA_STRINGS, *_METADATA_INTEGERS, "profile_type")
                self.unknown(f"the metadata field '{name}'", start, field_names)
                unknown.append((name, self.unknown_word()))
        self.advance()
        return Metadata(**fields, unknown=tuple(unknown))

    def metadata_list(self, subject: str) -> tuple[Metadata, ...]:
        """metadata | '{' [metadata (',' metadata)*] '}'"""
        if self.at("{") and self.following() == "{":
            return self.braced(subject, self.metadata)
        return (self.metadata(subject),)
