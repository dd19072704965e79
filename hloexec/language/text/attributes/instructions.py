"""Attributes of instructions: `, name=value` after the operands.

One table maps the grammars that opcodes declare to the methods that parse them, another the names that any instruction
may have. Most values are simple (a number, a word, a flat list in braces), and most of them repeat: parsed values of
simple attributes are cached by their text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hloexec.core.structs import frozen
from hloexec.language.text.attributes.annotations import AnnotationParser
from hloexec.language.text.attributes.geometry import GeometryParser
from hloexec.language.text.attributes.shardings import ShardingParser
from hloexec.language.text.attributes.values import AttributeParser
from hloexec.language.text.lexer import NAME_PATTERN
from hloexec.language.text.literals import LiteralParser
from hloexec.language.text.shapes import ShapeParser
from hloexec.language.text.state import ParserState, Scope
from hloexec.ops.attributes import AttributeField, Grammar, attribute_fields
from hloexec.ops.registry import Entry

_ATTRIBUTE = re.compile(rf", ?({NAME_PATTERN})=")
_PLAIN_VALUE = re.compile(r"(?:[^,{}\"\n]++|\{[^{}\"\n]*+\})(?=[,\n])")

_LARGEST_F32 = float.fromhex("0x1.fffffep127")


@frozen
class _Reader:
    """How the value of an attribute is read."""

    field: str
    """The Python field that it goes into."""
    what: str
    """The attribute in words, for messages."""
    read: Callable[[str], Any]
    known: dict[str, Any] | None
    """What plain values mean, by their texts; None where a value's meaning is not in its text alone."""
    formerly: tuple[str, ...] = ()
    """The attribute's names in older text."""


class InstructionAttributeParser:
    """Reads the attributes of instructions."""

    def __init__(
        self,
        state: ParserState,
        shapes: ShapeParser,
        attributes: AttributeParser,
        annotations: AnnotationParser,
        literals: LiteralParser,
        called: Callable[[str], str],
    ) -> None:
        """`called` reads the name of a called computation, or the body that may be given in its place."""
        self._state = state
        self._lexer = state.lexer
        self._shapes = shapes
        self._attributes = attributes
        self._annotations = annotations
        self._shardings = ShardingParser(state.lexer, attributes, annotations, strict=state.strict)
        self._geometry = GeometryParser(state.lexer, attributes)
        self._literals = literals
        self._called = called
        self._grammars = self._grammar_readers()
        self._own: dict[type | None, dict[str, _Reader]] = {}
        self._common = self._common_readers()

    def read(
        self,
        scope: Scope,
        entry: Entry | None,
        fields: dict[str, object],
        position: int,
        *,
        also: Entry | None = None,
    ) -> tuple[dict[str, Any], tuple[tuple[str, str], ...], int]:
        """(',' name '=' value)* from `position` on

        Puts the attributes of the opcode's own into `fields` and returns those that any instruction may carry, those
        that are unknown, and where the last one ends. `also` is a second opcode whose attributes may stand here: the
        one that an asynchronous one wraps.
        """
        lexer = self._lexer
        text = lexer.text
        own = self._own_readers(entry)
        second = own if also is None else self._own_readers(also)
        common: dict[str, Any] = {}
        unknown: list[tuple[str, str]] = []
        seen: set[str] = set()
        while True:
            usual = _ATTRIBUTE.match(text, position)
            if usual is not None:
                name, name_start, position = usual[1], usual.start(1), usual.end()
            else:
                lexer.move_to(position)
                if not lexer.take(","):
                    return common, tuple(unknown), position
                name_start = lexer.start
                name = lexer.attribute_name("an attribute")
                position = lexer.start
            if name in seen:
                lexer.fail(f"the attribute '{name}' occurs twice", name_start)
            seen.add(name)
            if name == "metadata":
                common["metadata"], position = self._annotations.metadata_at(position, "the attribute 'metadata'")
                continue
            reader = own.get(name) or second.get(name)
            if reader is None and not self._state.strict:
                reader = next((known for known in own.values() if name in known.formerly), None)
            if reader is not None:
                if reader.field in fields:
                    lexer.fail(f"'{name}' says what another attribute has said already: {reader.what}", name_start)
                fields[reader.field], position = self._value(reader, position)
            elif name == "control-predecessors":
                lexer.move_to(position)
                common["control_predecessors"] = self._predecessors(scope)
                position = lexer.start
            elif name in self._common:
                reader = self._common[name]
                common[reader.field], position = self._value(reader, position)
            else:
                lexer.move_to(position)
                if entry is not None:  # all attributes of an unknown opcode are, which needs no saying
                    known = (*own, *second, *self._common, "metadata", "control-predecessors")
                    self._state.unknown(f"the attribute '{name}' of {entry.name}", name_start, known)
                unknown.append((name, self._attributes.unknown_value()))
                position = lexer.start

    def _value(self, reader: _Reader, position: int) -> tuple[Any, int]:
        """The value of an attribute that begins at `position`, and where it ends."""
        lexer = self._lexer
        plain = _PLAIN_VALUE.match(lexer.text, position) if reader.known is not None else None
        if plain is not None and reader.known is not None and plain[0] in reader.known:
            return reader.known[plain[0]], plain.end()
        lexer.move_to(position)
        value = reader.read(reader.what)
        if plain is not None and reader.known is not None and not lexer.text[plain.end() : lexer.start].strip():
            reader.known[plain[0]] = value
        return value, lexer.start

    def _own_readers(self, entry: Entry | None) -> dict[str, _Reader]:
        """How the attributes that an opcode declares are read."""
        cls = entry.attributes if entry is not None else None
        found = self._own.get(cls)
        if found is None:
            found = self._own[cls] = {}
            for name, declared in attribute_fields(cls).items():
                found[name] = self._own_reader(name, declared)
                for newer, words in declared.lately.items():
                    read = partial(self._translated, words=words)
                    found[newer] = _Reader(declared.field, f"the attribute '{newer}'", read, {})
        return found

    def _own_reader(self, name: str, declared: AttributeField) -> _Reader:
        grammar = declared.grammar
        read = self._grammars[grammar]
        if grammar in (Grammar.ENUM, Grammar.ENUM_LIST):
            read = partial(read, choices=declared.choices or (), any_case=declared.any_case)
        is_reference = grammar in (Grammar.COMPUTATION, Grammar.COMPUTATION_LIST)
        known: dict[str, Any] | None = None if is_reference else {}
        return _Reader(declared.field, f"the attribute '{name}'", read, known, declared.formerly)

    def _translated(self, what: str, words: Mapping[str, object]) -> object:
        """What a word of newer XLA stands for; one that is not known stands for itself."""
        word = self._attributes.enumeration(what, choices=tuple(words))
        return words.get(word, word)

    def _common_readers(self) -> dict[str, _Reader]:
        """The attributes that any instruction may carry, by name."""
        annotations = self._annotations
        readers: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
            ("backend_config", "backend_config", self._lexer.string_or_dictionary),
            ("sharding", "sharding", lambda what: self._shardings.sharding()),
            ("frontend_attributes", "frontend_attributes", annotations.frontend_attributes),
            ("statistics", "statistics", annotations.statistics),
            ("parameter_replication", "parameter_replication", self._parameter_replication),
            ("origin", "original_value", annotations.original_value),
        )
        return {name: _Reader(field, f"the attribute '{name}'", read, {}) for name, field, read in readers}

    def _grammar_readers(self) -> dict[Grammar, Callable[..., Any]]:
        """The method that reads each grammar."""
        lexer, attributes, shardings = self._lexer, self._attributes, self._shardings
        return {
            Grammar.BOOL: lexer.boolean,
            Grammar.INT: lexer.integer,
            Grammar.INT32: self._int32,
            Grammar.FLOAT: self._float32,
            Grammar.STRING: lexer.string,
            Grammar.ENUM: attributes.enumeration,
            Grammar.INT_LIST: attributes.integers,
            Grammar.INT_IN_LIST: attributes.single_integer,
            Grammar.INT_LIST_LIST: attributes.integer_lists,
            Grammar.INT_PAIRS: attributes.integer_pairs,
            Grammar.ENUM_LIST: attributes.enumerations,
            Grammar.COMPUTATION: self._called,
            Grammar.COMPUTATION_LIST: lambda what: attributes.items("{", "}", what, lambda: self._called(what)),
            Grammar.WINDOW: self._geometry.window,
            Grammar.CONVOLUTION_DIMENSIONS: self._geometry.convolution_dimensions,
            Grammar.PADDING: self._geometry.padding,
            Grammar.SLICE: self._geometry.slice,
            Grammar.SHAPE: lambda what: self._shapes.shape(),
            Grammar.SHAPE_LIST: attributes.shapes,
            Grammar.LITERAL: lambda what: self._literals.with_shape(),
            Grammar.ALIASING: attributes.operand_aliases,
            Grammar.REPLICA_GROUPS: lambda what: shardings.replica_groups(),
            Grammar.SHARDING: lambda what: shardings.sharding(),
            Grammar.DOMAIN: self._domain,
            Grammar.RESULT_ACCURACY: self._annotations.result_accuracy,
            Grammar.VERBATIM: lambda what: attributes.unknown_value(),
        }

    def _predecessors(self, scope: Scope) -> tuple[str, ...]:
        """'{' name (',' name)* '}'"""
        lexer = self._lexer

        def predecessor() -> str:
            position = lexer.start
            name = lexer.name("a control predecessor")
            if name not in scope.by_name:
                if self._state.strict or scope.makes_parameters:
                    lexer.fail(f"the control predecessor '{name}' is not defined before it is used", position)
                scope.pending.append((name, None, position))
            return name

        if lexer.following() == "}":
            lexer.fail("the list of control predecessors is empty")
        return self._attributes.items("{", "}", "control predecessors", predecessor)

    def _parameter_replication(self, what: str) -> tuple[bool, ...]:
        """'{' [bool (',' bool)*] '}'"""
        return self._attributes.items("{", "}", what, lambda: self._lexer.boolean(what))

    def _int32(self, what: str) -> int:
        """int, of 32 bits"""
        start = self._lexer.start
        value = self._lexer.integer(what)
        if not -(1 << 31) <= value < 1 << 31:
            self._lexer.fail(f"{what} does not fit 32 bits", start)
        return value

    def _float32(self, what: str) -> float:
        """number, in the range of f32"""
        start = self._lexer.start
        value = self._lexer.number(what)
        if abs(value) > _LARGEST_F32 and not math.isinf(value):
            self._lexer.fail(f"{what} is out of the range of f32", start)
        return value

    def _domain(self, what: str) -> tuple[Any, Any]:
        """'{' 'kind="sharding"' ',' 'entry=' sharding ',' 'exit=' sharding '}', in any order"""
        lexer = self._lexer
        start = lexer.start
        lexer.expect("{", "before a domain")
        fields: dict[str, Any] = {}
        while not lexer.at("}"):
            lexer.take(",")
            position = lexer.start
            name = lexer.attribute_name("a part of a domain")
            if name not in ("kind", "entry", "exit") or name in fields:
                lexer.fail(f"a domain has the parts kind, entry and exit, each once; found '{name}'", position)
            fields[name] = lexer.string("the kind of a domain") if name == "kind" else self._shardings.sharding()
        lexer.advance()
        if fields.keys() != {"kind", "entry", "exit"} or fields["kind"] != "sharding":
            lexer.fail('a domain has the parts kind="sharding", entry and exit', start)
        return fields["entry"], fields["exit"]
