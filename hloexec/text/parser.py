"""HLO text to IR: a recursive-descent parser.

`parse` reads whatever XLA's own parser reads. Where a dump comes from a newer XLA, what is merely unknown (opcodes,
attributes, header fields) is kept verbatim and warned about once; `strict=True` rejects it, as the XLA of today does. The
usual forms of an instruction's head and operands are matched as a whole; anything else is read token by token, and that
is also where errors get their place.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from hloexec.errors import HloWarning, ShapeError
from hloexec.ir import (
    Computation,
    FileLocation,
    Instruction,
    Module,
    Shape,
    Span,
    StackFrame,
    StackFrames,
    TupleShape,
)
from hloexec.ops.attributes import AttributeField, Grammar, attribute_fields, computation_names
from hloexec.ops.registry import Opcode, ProgramShape, Role, find_opcode
from hloexec.text.attributes import AttributeParser
from hloexec.text.lexer import END, NAME, NUMBER, Lexer
from hloexec.text.literals import LiteralParser
from hloexec.text.shapes import ShapeParser
from hloexec.text.shardings import ShardingParser

__all__ = ["parse"]

_SPACE = r"[ \t\n\r]*+"
_ARRAY = r"[a-z][a-z0-9]*\[[0-9,]*+\](?:\{[^{}\"/]*+\})?"
_NAME = r"[A-Za-z_][A-Za-z0-9_.\-]*+"
_HEAD = re.compile(rf"(ROOT +)?%?({_NAME}) = ({_ARRAY}) ([a-z][a-z0-9\-]*+)(?=\()")
_OPERAND = re.compile(rf"{_SPACE}(?:({_ARRAY}) )?%?({_NAME}){_SPACE}([,)])")

_ASYNC_SUFFIXES = {"-start": "async-start", "-update": "async-update", "-done": "async-done"}
_MAXIMUM_NESTED_COMPUTATIONS = 100


def parse(text: str, *, filename: str = "<string>", strict: bool = False) -> Module:
    """Read a module from HLO text.

    The text may be a whole module, computations without the `HloModule` line, or a single instruction, whose operands
    then become parameters. `filename` only serves messages. Raises ParseError; warns HloWarning about what is unknown.
    """
    return _Parser(text, filename, strict=strict).run()


@attrs.define
class _Scope:
    """The instructions of the computation that is being read."""

    name: str
    instructions: list[Instruction] = attrs.field(factory=list)
    by_name: dict[str, Instruction] = attrs.field(factory=dict)
    root_name: str | None = None
    pending: list[tuple[str, Shape | None, int]] = attrs.field(factory=list)
    """Operands that are not defined yet: name, declared shape, position."""
    makes_parameters: bool = False
    """Whether an unknown operand becomes a parameter (single-instruction texts)."""


class _Parser:
    def __init__(self, text: str, filename: str, *, strict: bool) -> None:
        self._lexer = Lexer(text, filename)
        self._strict = strict
        self._shapes = ShapeParser(self._lexer)
        self._attributes = AttributeParser(self._lexer, self._shapes, strict=strict)
        self._shardings = ShardingParser(self._lexer, self._attributes, strict=strict)
        self._literals = LiteralParser(self._lexer, self._shapes)
        self._computations: dict[str, Computation] = {}
        self._references: list[tuple[str, int]] = []
        self._used_names: set[str] = set()
        self._depth = 0
        self._warned: set[str] = set()
        self._readers = self._grammar_readers()

    # Modules

    def run(self) -> Module:
        """text ::= module | computations | instruction"""
        lexer = self._lexer
        if lexer.kind == END:
            lexer.fail("expected a module, found an empty text")
        if lexer.at_word("HloModule"):
            lexer.advance()
            start = lexer.start
            name = lexer.name("the name of the module")
            header = self._header()
            header["stack_frames"] = self._stack_frames()
        elif lexer.at_word("ENTRY") or lexer.following() == "{":
            start, name, header = lexer.start, "", {}
        else:
            return self._single_instruction()
        entry_name = self._all_computations()
        module = Module(
            name=name or f"module_{entry_name}",
            computations=tuple(self._computations.values()),
            entry_name=entry_name,
            source=lexer.text,
            filename=lexer.filename,
            **header,
        )
        self._check_header(module, start)
        return module

    def _header(self) -> dict[str, Any]:
        """(',' name '=' value)*"""
        lexer = self._lexer
        attributes = self._attributes
        readers: dict[str, Callable[[str], Any]] = {
            "is_scheduled": lexer.boolean,
            "replica_count": lexer.integer,
            "num_partitions": lexer.integer,
            "input_output_alias": attributes.input_output_alias,
            "buffer_donor": attributes.buffer_donor,
            "alias_passthrough_params": lexer.boolean,
            "entry_computation_layout": attributes.entry_layout,
            "frontend_attributes": attributes.frontend_attributes,
            "allow_spmd_sharding_propagation_to_parameters": attributes.booleans,
            "allow_spmd_sharding_propagation_to_output": attributes.booleans,
            "origin_recovery_table": attributes.recovery_table,
        }
        fields: dict[str, Any] = {}
        unknown: list[tuple[str, str]] = []
        while lexer.take(","):
            start = lexer.start
            name = lexer.attribute_name("a module attribute")
            if name in fields or any(name == other for other, _ in unknown):
                lexer.fail(f"the module attribute '{name}' occurs twice", start)
            if name in readers:
                fields[name] = readers[name](f"the module attribute '{name}'")
            else:
                self._unknown(f"the module attribute '{name}'", start, readers)
                unknown.append((name, attributes.unknown_value()))
        fields["unknown_attributes"] = tuple(unknown)
        return fields

    def _check_header(self, module: Module, start: int) -> None:
        """What XLA's parser says of the header once the computations are known."""
        lexer = self._lexer
        for alias in module.input_output_alias:
            if _subshape(module.entry.result_shape, alias.output_index) is None:
                lexer.fail(
                    f"input_output_alias names the output {set(alias.output_index) or '{}'}, which is not there", start
                )

    def _stack_frames(self) -> StackFrames | None:
        """['FileNames' (int string)* 'FunctionNames' (int string)* 'FileLocations' (int location)*
        'StackFrames' (int frame)*]"""
        lexer = self._lexer
        if not lexer.at_word("FileNames"):
            return None
        lexer.advance()
        file_names = self._numbered(lambda: lexer.string("a file name"))
        self._section("FunctionNames")
        function_names = self._numbered(lambda: lexer.string("a function name"))
        self._section("FileLocations")
        locations = self._numbered(lambda: self._record(FileLocation))
        self._section("StackFrames")
        frames = self._numbered(lambda: self._record(StackFrame))
        return StackFrames(file_names, function_names, locations, frames)

    def _section(self, word: str) -> None:
        lexer = self._lexer
        if not lexer.at_word(word):
            lexer.fail(f"expected '{word}', found {lexer.describe()}")
        lexer.advance()

    def _numbered(self, read: Callable[[], Any]) -> tuple[Any, ...]:
        found = []
        while self._lexer.kind == NUMBER:
            self._lexer.integer("a row number")
            found.append(read())
        return tuple(found)

    def _record(self, cls: type) -> Any:
        """'{' ([','] field '=' int)* '}' with every field of an attrs class of integers"""
        lexer = self._lexer
        names = [field.name for field in attrs.fields(cls)]
        lexer.expect("{", "before a row of a table")
        start = lexer.start
        fields: dict[str, int] = {}
        while not lexer.at("}"):
            lexer.take(",")
            position = lexer.start
            name = lexer.attribute_name("a field of the row")
            if name not in names or name in fields:
                lexer.fail(f"a row has the fields {', '.join(names)}, each once; found '{name}'", position)
            fields[name] = lexer.integer(f"the field '{name}'")
        for name in names:
            if name not in fields:
                lexer.fail(f"the row lacks the field '{name}'", start)
        lexer.advance()
        return cls(**fields)

    def _single_instruction(self) -> Module:
        """instruction, with or without 'name ='; operands that are not defined become parameters"""
        lexer = self._lexer
        scope = _Scope("_", makes_parameters=True)
        if self._shapes.at_shape():
            self._right_hand_side(scope, "_", lexer.start)
        else:
            self._instruction(scope)
        if lexer.kind != END:
            lexer.fail(f"expected the end of the text after a single instruction, found {lexer.describe()}")
        self._finish(scope, "main", lexer.start, lexer.start)
        entry = self._computations.pop("_")
        computations = (entry, *self._computations.values())
        self._check_references({computation.name for computation in computations})
        return Module(
            name="_",
            computations=computations,
            entry_name="_",
            is_scheduled=True,
            source=lexer.text,
            filename=lexer.filename,
        )

    # Computations

    def _all_computations(self) -> str:
        """computation+; the entry is the one marked ENTRY, else the last"""
        lexer = self._lexer
        entry_name = None
        last = ""
        while lexer.kind != END or not last:
            start = lexer.start
            is_entry = lexer.at_word("ENTRY")
            if is_entry:
                lexer.advance()
            last = self._computation()
            if is_entry:
                if entry_name is not None:
                    lexer.fail(f"a module has one ENTRY, and '{entry_name}' is it already", start)
                entry_name = last
        self._check_references(self._computations)
        return entry_name or last

    def _check_references(self, known: Iterable[str]) -> None:
        for name, position in self._references:
            if name not in known:
                self._lexer.fail(f"the computation '{name}' does not exist", position)

    def _computation(self) -> str:
        """['ENTRY'] name ['(' [name shape (',' name shape)*] ')' '->' shape] body [',' 'execution_thread=' string]"""
        lexer = self._lexer
        start = lexer.start
        name = lexer.name("the name of a computation")
        if name in self._computations:
            lexer.fail(f"the computation '{name}' is defined twice", start)
        declared: Shape | None = None
        declared_at = lexer.start
        if lexer.at("("):
            self._attributes.items("(", ")", "the parameters of a computation", self._parameter_declaration)
            lexer.expect("->", "before the result shape of a computation")
            declared_at = lexer.start
            declared = self._shapes.shape()
        scope = _Scope(name)
        self._body(scope)
        thread = "main"
        while lexer.take(","):
            position = lexer.start
            attribute = lexer.attribute_name("an attribute of the computation")
            if attribute != "execution_thread":
                lexer.fail(f"a computation has the attribute execution_thread, found '{attribute}'", position)
            thread = lexer.string("the execution thread")
        computation = self._finish(scope, thread, start, lexer.start)
        if declared is not None and not declared.compatible(computation.result_shape):
            lexer.fail(
                f"the computation '{name}' is declared to give {declared}, but its root "
                f"'{computation.root_name}' gives {computation.result_shape}",
                declared_at,
            )
        return name

    def _parameter_declaration(self) -> None:
        """name [':'] shape"""
        self._lexer.name("the name of a parameter")
        self._lexer.take(":")
        self._shapes.shape()

    def _body(self, scope: _Scope) -> None:
        """'{' instruction+ '}'"""
        lexer = self._lexer
        lexer.expect("{", "before the instructions of a computation")
        start = lexer.start
        while True:
            self._instruction(scope)
            if lexer.at("}"):
                break
        lexer.advance()
        for name, shape, position in scope.pending:
            defined = scope.by_name.get(name)
            if defined is None:
                lexer.fail(f"'{name}' is not defined in the computation '{scope.name}'", position)
            self._check_operand_shape(shape, defined, position)
        if not scope.instructions:
            lexer.fail("a computation has at least one instruction", start)

    def _finish(self, scope: _Scope, thread: str, start: int, end: int) -> Computation:
        """Add the computation that a scope has become."""
        computation = Computation(
            name=scope.name,
            instructions=tuple(scope.instructions),
            root_name=scope.root_name or scope.instructions[-1].name,
            execution_thread=thread,
            span=Span(start, end),
        )
        self._computations[scope.name] = computation
        return computation

    def _fresh(self, name: str, taken: Iterable[str]) -> str:
        """`name`, or `name.1`, `name.2`, … if it is taken."""
        number = 0
        candidate = name
        while candidate in taken:
            number += 1
            candidate = f"{name}.{number}"
        return candidate

    # Instructions

    def _instruction(self, scope: _Scope) -> None:
        """instruction ::= ['ROOT'] name '=' right-hand side"""
        lexer = self._lexer
        start = lexer.start
        match = _HEAD.match(lexer.text, start)
        shape = self._shapes.known(match[3]) if match else None
        if match and shape is not None:
            is_root, name = match[1] is not None, match[2]
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
        self._right_hand_side(scope, name, name_start)

    def _note_root(self, scope: _Scope, name: str, is_root: bool, start: int) -> None:
        if is_root:
            if scope.root_name is not None:
                self._lexer.fail(f"a computation has one ROOT, and '{scope.root_name}' is it already", start)
            scope.root_name = name

    def _right_hand_side(self, scope: _Scope, name: str, start: int) -> None:
        """[shape] opcode operands (',' attribute)*"""
        lexer = self._lexer
        shape = self._shapes.shape() if self._shapes.at_shape() else None
        opcode_start = lexer.start
        self._rest(scope, name, start, shape, lexer.word("an opcode"), opcode_start)

    def _rest(self, scope: _Scope, name: str, start: int, shape: Shape | None, opcode: str, opcode_start: int) -> None:
        """The instruction from its operands on."""
        lexer = self._lexer
        if name in scope.by_name:
            lexer.fail(f"the instruction '{name}' is defined twice in '{scope.name}'", start)
        entry = find_opcode(opcode)
        if entry is None:
            wrapped = self._wrapped_opcode(opcode)
            if wrapped is not None:
                self._async_instruction(scope, name, start, shape, *wrapped)
                return
            self._unknown_instruction(scope, name, start, shape, opcode, opcode_start)
            return
        fields: dict[str, Any] = {}
        operands: tuple[str, ...] = ()
        if entry.role is Role.PARAMETER or entry.role is Role.CONSTANT:
            fields = self._immediate(entry, shape, opcode_start)
        else:
            operands = self._operands(scope, entry, opcode_start)
        common, unknown = self._instruction_attributes(scope, entry, fields, opcode_start)
        attributes = self._make_attributes(entry, fields, operands, scope, opcode_start)
        if shape is None:
            shape = self._inferred_shape(scope, entry, operands, attributes, opcode_start)
        instruction = Instruction(
            name=name,
            shape=shape,
            opcode=opcode,
            operands=operands,
            attributes=attributes,
            unknown_attributes=unknown,
            span=Span(start, lexer.start),
            **common,
        )
        self._add(scope, instruction)

    def _add(self, scope: _Scope, instruction: Instruction) -> None:
        scope.instructions.append(instruction)
        scope.by_name[instruction.name] = instruction
        self._used_names.add(instruction.name)

    def _immediate(self, entry: Opcode, shape: Shape | None, start: int) -> dict[str, Any]:
        """'(' int ')' of a parameter, '(' literal ')' of a constant"""
        lexer = self._lexer
        if shape is None:
            lexer.fail(f"the shape of a {entry.name} cannot be inferred; it must be given", start)
        lexer.expect("(", f"after '{entry.name}'")
        if entry.role is Role.PARAMETER:
            position = lexer.start
            number = lexer.integer("the number of a parameter")
            if number < 0:
                lexer.fail("the number of a parameter is not negative", position)
            fields: dict[str, Any] = {"number": number}
        else:
            fields = {"literal": self._literals.of_shape(shape)}
        lexer.expect(")", f"after the value of a {entry.name}")
        return fields

    def _operands(self, scope: _Scope, entry: Opcode | None, start: int) -> tuple[str, ...]:
        """'(' [operand (',' operand)*] ')', operand ::= [shape] name | [shape] opcode operands

        Nested instructions are on a stack of our own, so they nest as deep as they like.
        """
        lexer = self._lexer
        if not lexer.at("("):
            lexer.fail(f"expected '(' before operands, found {lexer.describe()}")
        text, position = lexer.text, lexer.end
        operands: list[str] = []
        open_instructions: list[tuple[Opcode, Shape | None, int, list[str]]] = []
        by_name = scope.by_name
        at_start = True
        while True:
            match = _OPERAND.match(text, position)
            if match:
                shape_text, name, terminator = match.groups()
                shape: Shape | None = None if shape_text is None else self._shapes.known(shape_text)
                if shape_text is None or shape is not None:
                    defined = by_name.get(name)
                    if defined is None or (shape is not None and shape is not defined.shape):
                        self._operand_seen(scope, name, shape, match.start(2))
                    operands.append(name)
                    position = match.end()
                    at_start = False
                    if terminator == ",":
                        continue
                    lexer.move_to(position)
                    closed = True
                else:
                    closed = False
                    lexer.move_to(position)
            else:
                closed = False
                lexer.move_to(position)
            if not closed:
                if at_start and lexer.at(")"):
                    lexer.advance()
                else:
                    nested = self._slow_operand(scope, operands)
                    if nested is not None:
                        open_instructions.append((*nested, operands))
                        operands, position, at_start = [], lexer.end, True
                        continue
                    if lexer.at(","):
                        position, at_start = lexer.end, False
                        continue
                    lexer.expect(")", "after operands")
            # A list of operands is complete: the outermost one, or that of a nested instruction.
            while open_instructions:
                nested_entry, nested_shape, nested_start, outer = open_instructions.pop()
                name = self._add_nested(scope, nested_entry, nested_shape, nested_start, tuple(operands))
                outer.append(name)
                operands = outer
                if lexer.at(","):
                    position, at_start = lexer.end, False
                    break
                lexer.expect(")", "after operands")
            else:
                if entry is not None:
                    self._check_operand_count(entry, len(operands), start)
                return tuple(operands)

    def _slow_operand(self, scope: _Scope, operands: list[str]) -> tuple[Opcode, Shape | None, int] | None:
        """An operand read token by token. Gives the head of a nested instruction, its '(' being the current token."""
        lexer = self._lexer
        start = lexer.start
        shape = self._shapes.shape() if self._shapes.at_shape() else None
        if lexer.kind != NAME:
            if shape is not None and scope.makes_parameters:
                operands.append(self._new_parameter(scope, f"_{len(scope.instructions)}", shape, start))
                return None
            lexer.fail(f"expected an operand, found {lexer.describe()}")
        if lexer.text.startswith("(", lexer.end) and lexer.value[0] != "%":
            entry = find_opcode(lexer.value)
            if entry is None:
                lexer.fail(f"expected an operand, found '{lexer.value}(', which is no opcode")
            opcode_start = lexer.start
            lexer.advance()
            if entry.role is not Role.PARAMETER and entry.role is not Role.CONSTANT:
                return entry, shape, opcode_start
            fields = self._immediate(entry, shape, opcode_start)
            assert shape is not None and entry.attributes is not None
            operands.append(self._anonymous(scope, entry, shape, start, (), entry.attributes(**fields)))
            return None
        position = lexer.start
        name = lexer.name("an operand")
        operands.append(name)
        self._operand_seen(scope, name, shape, position)
        return None

    def _operand_seen(self, scope: _Scope, name: str, shape: Shape | None, position: int) -> None:
        """Check an operand against its definition, now or when the computation is complete."""
        defined = scope.by_name.get(name)
        if defined is not None:
            self._check_operand_shape(shape, defined, position)
        elif scope.makes_parameters:
            if shape is None:
                self._lexer.fail(f"'{name}' needs a shape: it becomes a parameter of the single instruction", position)
            self._new_parameter(scope, name, shape, position)
        elif self._strict:
            self._lexer.fail(f"'{name}' is not defined before it is used", position)
        else:
            scope.pending.append((name, shape, position))

    def _check_operand_shape(self, shape: Shape | None, defined: Instruction, position: int) -> None:
        if shape is not None and shape is not defined.shape and not shape.compatible(defined.shape):
            self._lexer.fail(f"the operand is declared {shape}, but '{defined.name}' gives {defined.shape}", position)

    def _check_operand_count(self, entry: Opcode, count: int, start: int) -> None:
        low, high = entry.minimum_operands, entry.maximum_operands
        if count < low or (high is not None and count > high):
            wanted = str(low) if low == high else f"at least {low}" if high is None else f"{low} to {high}"
            self._lexer.fail(f"{entry.name} takes {wanted} operand{'s' * (wanted != '1')}, found {count}", start)

    def _new_parameter(self, scope: _Scope, name: str, shape: Shape, position: int) -> str:
        """A parameter for an operand of a single instruction."""
        entry = find_opcode("parameter")
        assert entry is not None and entry.attributes is not None
        number = sum(instruction.opcode == "parameter" for instruction in scope.instructions)
        self._add(
            scope,
            Instruction(
                name=name,
                shape=shape,
                opcode=entry.name,
                attributes=entry.attributes(number=number),
                span=Span(position, position),
            ),
        )
        return name

    def _add_nested(
        self, scope: _Scope, entry: Opcode, shape: Shape | None, start: int, operands: tuple[str, ...]
    ) -> str:
        """Add an instruction that stood as an operand; it has a name of our making and no attributes."""
        self._check_operand_count(entry, len(operands), start)
        attributes = self._make_attributes(entry, {}, operands, scope, start)
        if shape is None:
            shape = self._inferred_shape(scope, entry, operands, attributes, start)
        return self._anonymous(scope, entry, shape, start, operands, attributes)

    def _anonymous(
        self, scope: _Scope, entry: Opcode, shape: Shape, start: int, operands: tuple[str, ...], attributes: Any
    ) -> str:
        name = self._fresh(f"{entry.name}.anon", self._used_names)
        span = Span(start, self._lexer.start)
        self._add(
            scope,
            Instruction(name=name, shape=shape, opcode=entry.name, operands=operands, attributes=attributes, span=span),
        )
        return name

    def _make_attributes(
        self, entry: Opcode, fields: dict[str, Any], operands: tuple[str, ...], scope: _Scope, start: int
    ) -> Any:
        """The attributes object of an instruction, once all that is required is there."""
        if entry.attributes is None:
            return None
        for declared in attribute_fields(entry.attributes).values():
            if declared.is_required and declared.field not in fields:
                self._lexer.fail(f"{entry.name} needs the attribute '{declared.name}', which is missing", start)
        return entry.attributes(**fields)

    def _inferred_shape(
        self, scope: _Scope, entry: Opcode, operands: tuple[str, ...], attributes: Any, start: int
    ) -> Shape:
        """The shape that an instruction without one has by the rule of its opcode."""
        lexer = self._lexer
        if entry.infer is None or "shape" in entry.infer_needs:
            lexer.fail(f"the shape of a {entry.name} cannot be inferred; it must be given", start)
        shapes: list[Shape] = []
        for name in operands:
            if name not in scope.by_name:
                lexer.fail(f"the shape of this {entry.name} depends on '{name}', which is not defined yet", start)
            shapes.append(scope.by_name[name].shape)
        keywords: dict[str, Any] = {}
        if "attributes" in entry.infer_needs:
            keywords["attributes"] = attributes
        if "computations" in entry.infer_needs:
            keywords["computations"] = tuple(
                ProgramShape(self._computations[name].parameter_shapes, self._computations[name].result_shape)
                for name in computation_names(attributes)
                if name in self._computations
            )
        try:
            return entry.infer(*shapes, **keywords)
        except ShapeError as error:
            lexer.fail(f"the shape of this {entry.name} cannot be inferred: {error.message}", start)

    # Attributes

    def _instruction_attributes(
        self, scope: _Scope, entry: Opcode | None, fields: dict[str, Any], start: int, *, also: Opcode | None = None
    ) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
        """(',' name '=' value)*

        Puts the attributes of the opcode's own into `fields` and returns those that any instruction may carry, and those
        that are unknown. `also` is a second opcode whose attributes may stand here (wrapped in an asynchronous one).
        """
        lexer = self._lexer
        own = attribute_fields(entry.attributes) if entry is not None else {}
        second = attribute_fields(also.attributes) if also is not None else {}
        common: dict[str, Any] = {}
        unknown: list[tuple[str, str]] = []
        seen: set[str] = set()
        while lexer.take(","):
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
            elif name in _COMMON:
                field, reader = _COMMON[name]
                common[field] = getattr(self, reader)(f"the attribute '{name}'")
            else:
                if entry is not None:  # all attributes of an unknown opcode are, which needs no saying
                    self._unknown(f"the attribute '{name}' of {entry.name}", position, (*own, *second, *_COMMON))
                unknown.append((name, self._attributes.unknown_value()))
        return common, tuple(unknown)

    def _predecessors(self, scope: _Scope) -> tuple[str, ...]:
        """'{' name (',' name)* '}'"""
        lexer = self._lexer

        def predecessor() -> str:
            position = lexer.start
            name = lexer.name("a control predecessor")
            if name not in scope.by_name:
                if self._strict:
                    lexer.fail(f"the control predecessor '{name}' is not defined before it is used", position)
                scope.pending.append((name, None, position))
            return name

        return self._attributes.items("{", "}", "control predecessors", predecessor)

    def _frontend_attributes(self, what: str) -> tuple[tuple[str, str], ...]:
        return self._attributes.frontend_attributes(what)

    def _backend_config(self, what: str) -> str:
        return self._lexer.string_or_dictionary(what)

    def _metadata(self, what: str) -> Any:
        return self._attributes.metadata(what)

    def _sharding(self, what: str) -> Any:
        return self._shardings.sharding()

    def _statistics(self, what: str) -> Any:
        return self._attributes.statistics(what)

    def _origin(self, what: str) -> Any:
        return self._attributes.original_value(what)

    def _parameter_replication(self, what: str) -> tuple[bool, ...]:
        return self._attributes.items("{", "}", what, lambda: self._lexer.boolean(what))

    def _grammar_readers(self) -> dict[Grammar, Callable[[str, AttributeField], Any]]:
        """The method that reads each grammar."""
        lexer, attributes, shardings = self._lexer, self._attributes, self._shardings
        plain: dict[Grammar, Callable[[str], Any]] = {
            Grammar.BOOL: lexer.boolean,
            Grammar.INT: lexer.integer,
            Grammar.FLOAT: lexer.number,
            Grammar.STRING: lexer.string,
            Grammar.INT_LIST: attributes.integers,
            Grammar.INT_IN_LIST: attributes.single_integer,
            Grammar.INT_LIST_LIST: attributes.integer_lists,
            Grammar.INT_PAIRS: attributes.integer_pairs,
            Grammar.COMPUTATION: self._called,
            Grammar.COMPUTATION_LIST: lambda what: attributes.items("{", "}", what, lambda: self._called(what)),
            Grammar.WINDOW: attributes.window,
            Grammar.CONVOLUTION_DIMENSIONS: attributes.convolution_dimensions,
            Grammar.PADDING: attributes.padding,
            Grammar.SLICE: attributes.slice,
            Grammar.SHAPE: lambda what: self._shapes.shape(),
            Grammar.SHAPE_LIST: attributes.shapes,
            Grammar.LITERAL: lambda what: self._literals.with_shape(),
            Grammar.ALIASING: attributes.operand_aliases,
            Grammar.REPLICA_GROUPS: lambda what: shardings.replica_groups(),
            Grammar.SHARDING: lambda what: shardings.sharding(),
            Grammar.DOMAIN: self._domain,
            Grammar.RESULT_ACCURACY: attributes.result_accuracy,
        }
        readers = {grammar: _without_declaration(reader) for grammar, reader in plain.items()}
        readers[Grammar.ENUM] = lambda what, declared: attributes.enumeration(what, declared.choices)
        readers[Grammar.ENUM_LIST] = lambda what, declared: attributes.enumerations(what, declared.choices)
        return readers

    def _called(self, what: str) -> str:
        """name | body"""
        lexer = self._lexer
        start = lexer.start
        if not lexer.at("{"):
            name = lexer.name("the name of a computation")
            if name not in self._computations:
                if self._strict:
                    lexer.fail(f"the computation '{name}' is not defined before it is used", start)
                self._references.append((name, start))
            return name
        self._depth += 1
        if self._depth > _MAXIMUM_NESTED_COMPUTATIONS:
            lexer.fail(f"computations nest more than {_MAXIMUM_NESTED_COMPUTATIONS} deep")
        scope = _Scope("_")
        self._body(scope)
        scope.name = self._fresh("_", self._computations)
        self._finish(scope, "main", start, lexer.start)
        self._depth -= 1
        return scope.name

    def _domain(self, what: str) -> tuple[Any, Any]:
        """'{' 'kind="sharding"' ',' 'entry=' sharding ',' 'exit=' sharding '}', in any order"""
        lexer = self._lexer
        lexer.expect("{", "before a domain")
        start = lexer.start
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

    # What is unknown, and asynchronous spellings

    def _unknown(self, what: str, position: int, known: Iterable[str]) -> None:
        """Reject what is unknown where strict, else warn about it once."""
        if self._strict:
            self._lexer.fail(f"{what} is not known here; known are {', '.join(sorted(known))}", position)
        if what not in self._warned:
            self._warned.add(what)
            place = self._lexer.error("", position)
            message = f"{place.filename}:{place.line}:{place.column}: {what} is not known; it is kept as it stands"
            warnings.warn(message, HloWarning, stacklevel=4)

    def _unknown_instruction(
        self, scope: _Scope, name: str, start: int, shape: Shape | None, opcode: str, opcode_start: int
    ) -> None:
        """An opcode of a newer XLA: its operands are kept as names where they are names, else verbatim."""
        lexer = self._lexer
        if shape is None:
            lexer.fail(f"'{opcode}' is no opcode", opcode_start)
        self._unknown(f"the opcode '{opcode}'", opcode_start, ("those of `hloexec ops`",))
        if not lexer.at("("):
            lexer.fail(f"expected '(' before operands, found {lexer.describe()}")
        opening = lexer.start
        lexer.advance()
        operands: tuple[str, ...] = ()
        verbatim = None
        if _is_name_list(lexer):
            lexer.move_to(opening)
            operands = self._operands(scope, None, opcode_start)
        else:
            lexer.move_to(opening)
            verbatim = self._attributes.unknown_value()[1:-1]
        common, unknown = self._instruction_attributes(scope, None, {}, opcode_start)
        self._add(
            scope,
            Instruction(
                name=name,
                shape=shape,
                opcode=opcode,
                operands=operands,
                unknown_operands=verbatim,
                unknown_attributes=unknown,
                span=Span(start, lexer.start),
                **common,
            ),
        )

    def _wrapped_opcode(self, opcode: str) -> tuple[Opcode, Opcode] | None:
        """The asynchronous opcode and the wrapped one that a spelling such as `add-start` stands for."""
        for suffix, asynchronous in _ASYNC_SUFFIXES.items():
            if opcode.endswith(suffix):
                outer, wrapped = find_opcode(asynchronous), find_opcode(opcode.removesuffix(suffix))
                if outer is not None and wrapped is not None:
                    return outer, wrapped
        return None

    def _async_instruction(
        self, scope: _Scope, name: str, start: int, shape: Shape | None, outer: Opcode, wrapped: Opcode
    ) -> None:
        """`op-start`, `op-update` or `op-done`: the start implies a computation that holds `op` alone."""
        lexer = self._lexer
        if shape is None:
            lexer.fail(f"the shape of {outer.name} must be given", start)
        operands = self._operands(scope, outer, start)
        fields: dict[str, Any] = {}
        is_start = outer.name == "async-start"
        common, unknown = self._instruction_attributes(scope, outer, fields, start, also=wrapped if is_start else None)
        if is_start:
            own = {field.field for field in attribute_fields(outer.attributes).values()}
            inner = {field.field for field in attribute_fields(wrapped.attributes).values()}
            wrapped_fields = {key: value for key, value in fields.items() if key in inner}
            fields = {key: value for key, value in fields.items() if key in own}
            fields["calls"] = self._wrap(scope, shape, wrapped, operands, wrapped_fields, common, start)
        assert outer.attributes is not None
        self._add(
            scope,
            Instruction(
                name=name,
                shape=shape,
                opcode=outer.name,
                operands=operands,
                attributes=self._make_attributes(outer, fields, operands, scope, start),
                unknown_attributes=unknown,
                span=Span(start, lexer.start),
                **common,
            ),
        )

    def _wrap(
        self,
        scope: _Scope,
        shape: Shape,
        wrapped: Opcode,
        operands: tuple[str, ...],
        fields: dict[str, Any],
        common: dict[str, Any],
        start: int,
    ) -> str:
        """The computation that an asynchronous spelling implies; returns its name."""
        lexer = self._lexer
        if (
            not isinstance(shape, TupleShape)
            or len(shape.elements) < 2
            or not isinstance(shape.elements[0], TupleShape)
        ):
            lexer.fail("the shape of an asynchronous start is ((operands), result, …)", start)
        declared = shape.elements[0].elements
        if len(declared) != len(operands):
            lexer.fail(f"the shape of the start holds {len(declared)} operands, found {len(operands)}", start)
        inner = _Scope(self._fresh("async_wrapped", self._computations))
        for number, operand in enumerate(operands):
            defined = scope.by_name.get(operand)
            parameter_name = self._fresh("async_param", inner.by_name)
            self._new_parameter(inner, parameter_name, defined.shape if defined else declared[number], start)
        names = tuple(inner.by_name)
        shared = ("metadata", "backend_config", "frontend_attributes", "statistics", "original_value")
        self._add(
            inner,
            Instruction(
                name="async_op",
                shape=shape.elements[1],
                opcode=wrapped.name,
                operands=names,
                attributes=self._make_attributes(wrapped, fields, names, inner, start),
                span=Span(start, lexer.start),
                **{key: value for key, value in common.items() if key in shared},
            ),
        )
        return self._finish(inner, "main", start, lexer.start).name


# The attributes that any instruction may carry: name in the text → field of Instruction, method of the parser.
_COMMON = {
    "metadata": ("metadata", "_metadata"),
    "backend_config": ("backend_config", "_backend_config"),
    "sharding": ("sharding", "_sharding"),
    "frontend_attributes": ("frontend_attributes", "_frontend_attributes"),
    "statistics": ("statistics", "_statistics"),
    "parameter_replication": ("parameter_replication", "_parameter_replication"),
    "origin": ("original_value", "_origin"),
    "control-predecessors": ("control_predecessors", "_predecessors"),
}


def _without_declaration(reader: Callable[[str], Any]) -> Callable[[str, AttributeField], Any]:
    """A reader that needs no more than the words for its messages."""
    return lambda what, declared: reader(what)


def _subshape(shape: Shape, index: tuple[int, ...]) -> Shape | None:
    """The shape at an index path, or None."""
    for i in index:
        if not isinstance(shape, TupleShape) or not 0 <= i < len(shape.elements):
            return None
        shape = shape.elements[i]
    return shape


def _is_name_list(lexer: Lexer) -> bool:
    """Whether what follows an opening parenthesis is a list of plain operands."""
    position = lexer.start
    if lexer.at(")"):
        return True
    while match := _OPERAND.match(lexer.text, position):
        if match[3] == ")":
            return True
        position = match.end()
    return False
