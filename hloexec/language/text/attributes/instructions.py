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
from typing import Any, ClassVar

from hloexec.core.structs import frozen
from hloexec.language.text.lexer import NAME_PATTERN
from hloexec.language.text.operands import OperandParser
from hloexec.language.text.state import Scope
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
    read: Callable[..., Any]
    """From the parser and `what`."""
    known: dict[str, Any] | None
    """What plain values mean, by their texts; None where a value's meaning is not in its text alone."""
    formerly: tuple[str, ...] = ()
    """The attribute's names in older text."""


class InstructionAttributeParser(OperandParser):
    """Reads the attributes of instructions."""

    __slots__ = ()

    called: ClassVar[Callable[..., str]]
    """Reads the name of a called computation, or the body that may be given in its place."""

    def attributes(
        self,
        scope: Scope,
        entry: Entry | None,
        fields: dict[str, object],
        position: int,
        start: int,
        *,
        also: Entry | None = None,
    ) -> dict[str, Any]:
        """(',' name '=' value)* from `position` on

        Puts the attributes of the opcode's own into `fields` and returns those that any instruction may carry, those
        that are unknown, and the span of the instruction, which begins at `start`. `also` is a second opcode whose
        attributes may stand here: the one that an asynchronous one wraps.
        """
        text = self.text
        own = self._own_readers(entry)
        second = own if also is None else self._own_readers(also)
        shared = self._common or self._common_readers()
        common: dict[str, Any] = {}
        unknown: list[tuple[str, str]] = []
        seen: set[str] = set()
        while True:
            usual = _ATTRIBUTE.match(text, position)
            if usual is not None:
                name, name_start, position = usual[1], usual.start(1), usual.end()
            else:
                self.move_to(position)
                if not self.take(","):
                    common |= {"unknown_attributes": tuple(unknown), "span": self.span(start, position)}
                    return common
                name_start = self.start
                name = self.attribute_name("an attribute")
                position = self.start
            if name in seen:
                self.fail(f"the attribute '{name}' occurs twice", name_start)
            seen.add(name)
            if name == "metadata":
                common["metadata"], position = self.metadata_at(position, "the attribute 'metadata'")
                continue
            reader = own.get(name) or second.get(name)
            if reader is None and not self.strict:
                reader = next((known for known in own.values() if name in known.formerly), None)
            if reader is not None:
                if reader.field in fields:
                    self.fail(f"'{name}' says what another attribute has said already: {reader.what}", name_start)
                fields[reader.field], position = self._value(reader, position)
            elif name == "control-predecessors":
                self.move_to(position)
                common["control_predecessors"] = self._predecessors(scope)
                position = self.start
            elif name in shared:
                reader = shared[name]
                common[reader.field], position = self._value(reader, position)
            else:
                self.move_to(position)
                if entry is not None:  # all attributes of an unknown opcode are, which needs no saying
                    known = (*own, *second, *shared, "metadata", "control-predecessors")
                    self.unknown(f"the attribute '{name}' of {entry.name}", name_start, known)
                unknown.append((name, self.unknown_value()))
                position = self.start

    def _value(self, reader: _Reader, position: int) -> tuple[Any, int]:
        """The value of an attribute that begins at `position`, and where it ends."""
        plain = _PLAIN_VALUE.match(self.text, position) if reader.known is not None else None
        if plain is not None and reader.known is not None and plain[0] in reader.known:
            return reader.known[plain[0]], plain.end()
        self.move_to(position)
        value = reader.read(self, reader.what)
        if plain is not None and reader.known is not None and not self.text[plain.end() : self.start].strip():
            reader.known[plain[0]] = value
        return value, self.start

    def _own_readers(self, entry: Entry | None) -> dict[str, _Reader]:
        """How the attributes that an opcode declares are read."""
        cls = entry.attributes if entry is not None else None
        readers = self._own.get(cls)
        if readers is None:
            readers = self._own[cls] = {}
            for name, declared in attribute_fields(cls).items():
                readers[name] = self._own_reader(name, declared)
                for newer, words in declared.lately.items():
                    read = partial(InstructionAttributeParser._translated, words=words)
                    readers[newer] = _Reader(declared.field, f"the attribute '{newer}'", read, {})
        return readers

    def _own_reader(self, name: str, declared: AttributeField) -> _Reader:
        grammar = declared.grammar
        read = _GRAMMARS[grammar]
        if grammar in (Grammar.ENUM, Grammar.ENUM_LIST):
            read = partial(read, choices=declared.choices or (), any_case=declared.any_case)
        is_reference = grammar in (Grammar.COMPUTATION, Grammar.COMPUTATION_LIST)
        cache: dict[str, Any] | None = None if is_reference else {}
        return _Reader(declared.field, f"the attribute '{name}'", read, cache, declared.formerly)

    def _translated(self, subject: str, words: Mapping[str, object]) -> object:
        """What a word of newer XLA stands for; one that is not known stands for itself."""
        word = self.enumeration(subject, choices=tuple(words))
        return words.get(word, word)

    def _common_readers(self) -> dict[str, _Reader]:
        """The attributes that any instruction may carry, by name."""
        self._common = {name: _Reader(field, f"the attribute '{name}'", read, {}) for name, field, read in _COMMON}
        return self._common

    def _predecessors(self, scope: Scope) -> tuple[str, ...]:
        """'{' name (',' name)* '}'"""

        def predecessor() -> str:
            position = self.start
            name = self.name("a control predecessor")
            if name not in scope.by_name:
                if self.strict or scope.makes_parameters:
                    self.fail(f"the control predecessor '{name}' is not defined before it is used", position)
                scope.pending.append((name, None, position))
            return name

        if self.following() == "}":
            self.fail("the list of control predecessors is empty")
        return self.braced("control predecessors", predecessor)

    def _int32(self, subject: str) -> int:
        """int, of 32 bits"""
        start = self.start
        value = self.integer(subject)
        if not -(1 << 31) <= value < 1 << 31:
            self.fail(f"{subject} does not fit 32 bits", start)
        return value

    def _float32(self, subject: str) -> float:
        """number, in the range of f32"""
        start = self.start
        value = self.number(subject)
        if abs(value) > _LARGEST_F32 and not math.isinf(value):
            self.fail(f"{subject} is out of the range of f32", start)
        return value

    def _domain(self, subject: str) -> tuple[Any, Any]:
        """'{' 'kind="sharding"' ',' 'entry=' sharding ',' 'exit=' sharding '}', in any order"""
        start = self.start
        self.expect("{", "before a domain")
        fields: dict[str, Any] = {}
        while not self.at("}"):
            self.take(",")
            position = self.start
            name = self.attribute_name("a part of a domain")
            if name not in ("kind", "entry", "exit") or name in fields:
                self.fail(f"a domain has the parts kind, entry and exit, each once; found '{name}'", position)
            fields[name] = self.string("the kind of a domain") if name == "kind" else self.sharding()
        self.advance()
        if fields.keys() != {"kind", "entry", "exit"} or fields["kind"] != "sharding":
            self.fail('a domain has the parts kind="sharding", entry and exit', start)
        return fields["entry"], fields["exit"]


_GRAMMARS: dict[Grammar, Callable[..., Any]] = {
    Grammar.BOOL: InstructionAttributeParser.boolean,
    Grammar.INT: InstructionAttributeParser.integer,
    Grammar.INT32: InstructionAttributeParser._int32,
    Grammar.FLOAT: InstructionAttributeParser._float32,
    Grammar.STRING: InstructionAttributeParser.string,
    Grammar.ENUM: InstructionAttributeParser.enumeration,
    Grammar.INT_LIST: InstructionAttributeParser.integers,
    Grammar.INT_IN_LIST: InstructionAttributeParser.single_integer,
    Grammar.INT_LIST_LIST: InstructionAttributeParser.integer_lists,
    Grammar.INT_PAIRS: InstructionAttributeParser.integer_pairs,
    Grammar.ENUM_LIST: InstructionAttributeParser.enumerations,
    Grammar.COMPUTATION: lambda self, what: self.called(what),
    Grammar.COMPUTATION_LIST: lambda self, what: self.braced(what, lambda: self.called(what)),
    Grammar.WINDOW: InstructionAttributeParser.window,
    Grammar.CONVOLUTION_DIMENSIONS: InstructionAttributeParser.convolution_dimensions,
    Grammar.PADDING: InstructionAttributeParser.padding,
    Grammar.SLICE: InstructionAttributeParser.slice,
    Grammar.SHAPE: lambda self, what: self.shape(),
    Grammar.SHAPE_LIST: InstructionAttributeParser.shapes,
    Grammar.LITERAL: lambda self, what: self.with_shape(),
    Grammar.ALIASING: InstructionAttributeParser.operand_aliases,
    Grammar.REPLICA_GROUPS: lambda self, what: self.replica_groups(),
    Grammar.SHARDING: lambda self, what: self.sharding(),
    Grammar.DOMAIN: InstructionAttributeParser._domain,
    Grammar.RESULT_ACCURACY: InstructionAttributeParser.result_accuracy,
    Grammar.VERBATIM: lambda self, what: self.unknown_value(),
}
"""The method that reads each grammar."""

_COMMON: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("backend_config", "backend_config", InstructionAttributeParser.string_or_dictionary),
    ("sharding", "sharding", lambda self, what: self.sharding()),
    ("frontend_attributes", "frontend_attributes", InstructionAttributeParser.frontend_attributes),
    ("statistics", "statistics", InstructionAttributeParser.statistics),
    ("parameter_replication", "parameter_replication", InstructionAttributeParser.flags),
    ("origin", "original_value", InstructionAttributeParser.original_value),
)
"""The attributes that any instruction may carry: their names, their fields, and what reads them."""
