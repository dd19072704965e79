"""Instructions: `[ROOT] name = shape opcode(operands), attributes`, and the bodies they stand in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from hloexec.dtypes import ELEMENT_TYPES
from hloexec.ir import Instruction, Shape, leaf_shapes
from hloexec.ops.attributes import AttributeField, Grammar, attribute_fields
from hloexec.ops.registry import Opcode, Role, find_opcode
from hloexec.text.annotations import AnnotationParser
from hloexec.text.asynchronous import check_wrapped, wrap, wrapped_opcode
from hloexec.text.attributes import AttributeParser
from hloexec.text.geometry import GeometryParser
from hloexec.text.lexer import NAME, RESERVED
from hloexec.text.literals import LiteralParser
from hloexec.text.operands import ARRAY_PATTERN, NAME_PATTERN, OperandParser, is_name_list
from hloexec.text.shapes import ShapeParser
from hloexec.text.shardings import ShardingParser
from hloexec.text.state import ParserState, Scope

__all__ = ["InstructionParser"]

_HEAD = re.compile(rf"(ROOT +)?(%?{NAME_PATTERN}) = ({ARRAY_PATTERN}) ([a-z][a-z0-9\-]*+)(?=\()")

_LARGEST_F32 = float.fromhex("0x1.fffffep127")
_MAXIMUM_NESTED_COMPUTATIONS = 100


class InstructionParser:
    """Reads instructions into scopes."""

    def __init__(
        self, state: ParserState, shapes: ShapeParser, attributes: AttributeParser, annotations: AnnotationParser
    ) -> None:
        self._state = state
        self._lexer = state.lexer
        self._shapes = shapes
        self._attributes = attributes
        self._geometry = GeometryParser(state.lexer, attributes)
        self._annotations = annotations
        self._shardings = ShardingParser(state.lexer, attributes, self._annotations, strict=state.strict)
        self._literals = LiteralParser(state.lexer, shapes, strict=state.strict)
        self._operands = OperandParser(state, shapes, self._literals)
        self._depth = 0
        self._readers = self._grammar_readers()
        self._common = self._common_readers()

    def body(self, scope: Scope) -> None:
        """'{' instruction+ '}'"""
        lexer = self._lexer
        lexer.expect("{", "before the instructions of a computation")
        start = lexer.start
        while True:
            self.instruction(scope)
            if lexer.at("}"):
                break
        lexer.advance()
        for name, shape, position in scope.pending:
            defined = scope.by_name.get(name)
            if defined is None:
                lexer.fail(f"'{name}' is not defined in the computation '{scope.name}'", position)
            self._state.check_operand_shape(shape, defined, position)
        if not scope.instructions:
            lexer.fail("a computation has at least one instruction", start)

    def instruction(self, scope: Scope) -> None:
        """instruction ::= ['ROOT'] name '=' right-hand side"""
        lexer = self._lexer
        start = lexer.start
        match = _HEAD.match(lexer.text, start)
        shape = self._shapes.known(match[3]) if match else None
        if match and shape is not None and match[2] not in RESERVED:
            is_root, name = match[1] is not None, match[2].removeprefix("%")
            lexer.move_to(match.end())
            self._note_root(scope, name, is_root, start)
            self._rest(scope, name, start, shape, match[4], match.start(4))
            return
        is_root = lexer.at_word("ROOT")
        if is_root:
            lexer.advance()
        name_start = lexer.start
        if lexer.kind != NAME:
            lexer.fail(f"expected an instruction, found {lexer.describe()}")
        name = lexer.name("the name of an instruction")
        lexer.expect("=", "after the name of an instruction")
        self._note_root(scope, name, is_root, start)
        self.right_hand_side(scope, name, name_start)

    def _note_root(self, scope: Scope, name: str, is_root: bool, start: int) -> None:
        if is_root:
            if scope.root_name is not None:
                self._lexer.fail(f"a computation has one ROOT, and '{scope.root_name}' is it already", start)
            scope.root_name = name

    def right_hand_side(self, scope: Scope, name: str, start: int) -> None:
        """[shape] opcode operands (',' attribute)*"""
        lexer = self._lexer
        shape = self._shapes.shape() if self._shapes.at_shape() else None
        opcode_start = lexer.start
        self._rest(scope, name, start, shape, lexer.word("an opcode"), opcode_start)

    def _rest(self, scope: Scope, name: str, start: int, shape: Shape | None, opcode: str, opcode_start: int) -> None:
        """The instruction from its operands on."""
        lexer = self._lexer
        if name in ELEMENT_TYPES:
            lexer.fail(f"'{name}' is an element type and cannot name an instruction", start)
        if name in scope.by_name:
            lexer.fail(f"the instruction '{name}' is defined twice in '{scope.name}'", start)
        entry = find_opcode(opcode)
        if entry is None:
            wrapped = wrapped_opcode(opcode)
            if wrapped is not None:
                self._async_instruction(scope, name, opcode_start, shape, *wrapped)
                return
            self._unknown_instruction(scope, name, start, shape, opcode, opcode_start)
            return
        fields: dict[str, Any] = {}
        operands: tuple[str, ...] = ()
        if entry.role is Role.PARAMETER or entry.role is Role.CONSTANT:
            fields = self._operands.immediate(entry, shape, opcode_start)
        else:
            operands = self._operands.operands(scope, entry, opcode_start)
        common, unknown = self._instruction_attributes(scope, entry, fields, opcode_start)
        attributes = self._operands.make_attributes(entry, fields, operands, scope, opcode_start)
        replication = common.get("parameter_replication")
        if replication is not None and shape is not None and len(replication) != sum(1 for _ in leaf_shapes(shape)):
            lexer.fail(f"parameter_replication has {len(replication)} entries, which are not one per leaf", start)
        if shape is None:
            shape = self._operands.inferred_shape(scope, entry, operands, attributes, opcode_start)
        instruction = Instruction(
            name=name,
            shape=shape,
            opcode=opcode,
            operands=operands,
            attributes=attributes,
            unknown_attributes=unknown,
            span=self._state.span(start),
            **common,
        )
        scope.add(instruction)

    def _instruction_attributes(
        self, scope: Scope, entry: Opcode | None, fields: dict[str, Any], start: int, *, also: Opcode | None = None
    ) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
        """(',' name '=' value)*

        Puts the attributes of the opcode's own into `fields` and returns those that any instruction may carry, and
        those that are unknown. `also` is a second opcode whose attributes may stand here: the one that an asynchronous
        one wraps.
        """
        lexer = self._lexer
        own = attribute_fields(entry.attributes) if entry is not None else {}
        second = attribute_fields(also.attributes) if also is not None else {}
        common: dict[str, Any] = {}
        unknown: list[tuple[str, str]] = []
        seen: set[str] = set()
        while lexer.at(","):
            usual = lexer.next_attribute()
            if usual is not None:
                name, position = usual
            else:
                lexer.advance()
                position = lexer.start
                name = lexer.attribute_name("an attribute")
            if name in seen:
                lexer.fail(f"the attribute '{name}' occurs twice", position)
            seen.add(name)
            declared = own.get(name) or second.get(name)
            if declared is not None:
                fields[declared.field] = self._readers[declared.grammar](f"the attribute '{name}'", declared)
            elif name == "control-predecessors":
                common["control_predecessors"] = self._predecessors(scope)
            elif name in self._common:
                field, reader = self._common[name]
                common[field] = reader(f"the attribute '{name}'")
            else:
                if entry is not None:  # all attributes of an unknown opcode are, which needs no saying
                    self._state.unknown(
                        f"the attribute '{name}' of {entry.name}",
                        position,
                        (*own, *second, *self._common, "control-predecessors"),
                    )
                unknown.append((name, self._attributes.unknown_value()))
        return common, tuple(unknown)

    def _predecessors(self, scope: Scope) -> tuple[str, ...]:
        """'{' name (',' name)* '}'"""
        lexer = self._lexer

        def predecessor() -> str:
            position = lexer.start
            name = lexer.name("a control predecessor")
            if name not in scope.by_name:
                if self._state.strict:
                    lexer.fail(f"the control predecessor '{name}' is not defined before it is used", position)
                scope.pending.append((name, None, position))
            return name

        if lexer.following() == "}":
            lexer.fail("the list of control predecessors is empty")
        return self._attributes.items("{", "}", "control predecessors", predecessor)

    def _parameter_replication(self, what: str) -> tuple[bool, ...]:
        return self._attributes.items("{", "}", what, lambda: self._lexer.boolean(what))

    def _common_readers(self) -> dict[str, tuple[str, Callable[[str], Any]]]:
        """The attributes that any instruction may carry: the field of Instruction, and what reads it."""
        annotations = self._annotations
        return {
            "metadata": ("metadata", annotations.metadata),
            "backend_config": ("backend_config", self._lexer.string_or_dictionary),
            "sharding": ("sharding", lambda what: self._shardings.sharding()),
            "frontend_attributes": ("frontend_attributes", annotations.frontend_attributes),
            "statistics": ("statistics", annotations.statistics),
            "parameter_replication": ("parameter_replication", self._parameter_replication),
            "origin": ("original_value", annotations.original_value),
        }

    def _grammar_readers(self) -> dict[Grammar, Callable[[str, AttributeField], Any]]:
        """The method that reads each grammar."""
        lexer, attributes, shardings = self._lexer, self._attributes, self._shardings
        plain: dict[Grammar, Callable[[str], Any]] = {
            Grammar.BOOL: lexer.boolean,
            Grammar.INT: lexer.integer,
            Grammar.INT32: self._int32,
            Grammar.FLOAT: self._float32,
            Grammar.STRING: lexer.string,
            Grammar.INT_LIST: attributes.integers,
            Grammar.INT_IN_LIST: attributes.single_integer,
            Grammar.INT_LIST_LIST: attributes.integer_lists,
            Grammar.INT_PAIRS: attributes.integer_pairs,
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
        readers = {grammar: _without_declaration(reader) for grammar, reader in plain.items()}
        readers[Grammar.ENUM] = lambda what, declared: attributes.enumeration(what, declared.choices)
        readers[Grammar.ENUM_LIST] = lambda what, declared: attributes.enumerations(what, declared.choices)
        return readers

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

    def _called(self, what: str) -> str:
        """name | body"""
        lexer = self._lexer
        start = lexer.start
        if not lexer.at("{"):
            name = lexer.name("the name of a computation")
            if name not in self._state.computations:
                if self._state.strict:
                    lexer.fail(f"the computation '{name}' is not defined before it is used", start)
                self._state.references.append((name, start))
            return name
        self._depth += 1
        if self._depth > _MAXIMUM_NESTED_COMPUTATIONS:
            lexer.fail(f"computations nest more than {_MAXIMUM_NESTED_COMPUTATIONS} deep")
        scope = Scope("_")
        self.body(scope)
        scope.name = self._state.computation_name("_")
        self._state.finish(scope, "main", start, lexer.start)
        self._depth -= 1
        return scope.name

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

    def _unknown_instruction(
        self, scope: Scope, name: str, start: int, shape: Shape | None, opcode: str, opcode_start: int
    ) -> None:
        """An opcode of a newer XLA: its operands are kept as names where they are names, else verbatim."""
        lexer = self._lexer
        if shape is None or not opcode.replace("-", "").replace("_", "").isalnum() or opcode != opcode.lower():
            lexer.fail(f"'{opcode}' is no opcode", opcode_start)
        self._state.unknown(f"the opcode '{opcode}'", opcode_start, ("those of `hloexec ops`",))
        if not lexer.at("("):
            lexer.fail(f"expected '(' before operands, found {lexer.describe()}")
        opening = lexer.start
        lexer.advance()
        operands: tuple[str, ...] = ()
        verbatim = None
        if is_name_list(lexer):
            lexer.move_to(opening)
            operands = self._operands.operands(scope, None, opcode_start)
        else:
            lexer.move_to(opening)
            verbatim = self._attributes.unknown_value()[1:-1]
        common, unknown = self._instruction_attributes(scope, None, {}, opcode_start)
        scope.add(
            Instruction(
                name=name,
                shape=shape,
                opcode=opcode,
                operands=operands,
                unknown_operands=verbatim,
                unknown_attributes=unknown,
                span=self._state.span(start),
                **common,
            ),
        )

    def _async_instruction(
        self, scope: Scope, name: str, start: int, shape: Shape | None, outer: Opcode, wrapped: Opcode
    ) -> None:
        """`op-start`, `op-update` or `op-done`: the start implies a computation that holds `op` alone."""
        lexer = self._lexer
        if shape is None:
            lexer.fail(f"the shape of {outer.name} must be given", start)
        operands = self._operands.operands(scope, outer, start)
        fields: dict[str, Any] = {}
        is_start = outer.name == "async-start"
        common, unknown = self._instruction_attributes(scope, outer, fields, start, also=wrapped if is_start else None)
        if is_start:
            own = {field.field for field in attribute_fields(outer.attributes).values()}
            inner = {field.field for field in attribute_fields(wrapped.attributes).values()}
            wrapped_fields = {key: value for key, value in fields.items() if key in inner}
            fields = {key: value for key, value in fields.items() if key in own}
            fields["calls"] = wrap(
                self._operands, self._state, scope, shape, wrapped, operands, wrapped_fields, common, start
            )
        else:
            check_wrapped(self._state, scope, operands[0], wrapped, start)
        scope.add(
            Instruction(
                name=name,
                shape=shape,
                opcode=outer.name,
                operands=operands,
                attributes=self._operands.make_attributes(outer, fields, operands, scope, start),
                unknown_attributes=unknown,
                span=self._state.span(start),
                **common,
            ),
        )


def _without_declaration(reader: Callable[[str], Any]) -> Callable[[str, AttributeField], Any]:
    """A reader that needs no more than the words for its messages."""
    return lambda what, declared: reader(what)
