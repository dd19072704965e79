"""Instructions: `[ROOT] name = shape opcode(operands), attributes`, and the bodies of computations."""

from __future__ import annotations

import re
from typing import Any

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import Instruction, Shape, flat_shapes
from hloexec.errors import ShapeError
from hloexec.language.text.attributes.instructions import InstructionAttributeParser
from hloexec.language.text.lexer import NAME, NAME_PATTERN, RESERVED
from hloexec.language.text.operands import check_channel, check_continued, continues, extend, wrap, wrapped_opcode
from hloexec.language.text.shapes import ARRAY_PATTERN
from hloexec.language.text.state import Scope
from hloexec.ops import FORMER
from hloexec.ops.attributes import attribute_fields
from hloexec.ops.registry import Entry, Role, find_opcode

_USUAL = re.compile(
    rf"(ROOT +)?(%?{NAME_PATTERN}) = ({ARRAY_PATTERN}) ([a-z][a-z0-9\-]*+)"
    rf"\((?:(%?{NAME_PATTERN}(?:, %?{NAME_PATTERN})*+)\))?"
)
"""ROOT, name, shape and opcode, and the operands where they are names alone."""

_MAXIMUM_NESTED_COMPUTATIONS = 100


class InstructionParser(InstructionAttributeParser):
    """Reads instructions into scopes."""

    __slots__ = ()

    def body(self, scope: Scope) -> None:
        """'{' instruction+ '}'"""
        self.expect("{", "before the instructions of a computation")
        start = self.start
        while True:
            self.instruction(scope)
            if self.at("}"):
                break
        self.advance()
        for name, shape, position in scope.pending:
            defined = scope.by_name.get(name)
            if defined is None:
                self.fail(f"'{name}' is not defined in the computation '{scope.name}'", position)
            self.check_operand_shape(shape, defined, position)
        if not scope.instructions:
            self.fail("a computation has at least one instruction", start)

    def instruction(self, scope: Scope) -> None:
        """instruction ::= ['ROOT'] name '=' right-hand side"""
        start = self.start
        usual = _USUAL.match(self.text, start)
        if usual is not None:
            root, name, shape_text, opcode, names = usual.groups()
            shape = self.known(shape_text)
            if shape is not None and name not in RESERVED:
                name = name.removeprefix("%")
                if root:
                    self._note_root(scope, name, start)
                self._from_operands(scope, name, start, shape, opcode, usual.start(4), names)
                return
        is_root = self.at_word("ROOT")
        if is_root:
            self.advance()
        name_start = self.start
        if self.kind != NAME:
            self.fail(f"expected an instruction, found {self.describe()}")
        name = self.name("the name of an instruction")
        self.expect("=", "after the name of an instruction")
        if is_root:
            self._note_root(scope, name, start)
        self.right_hand_side(scope, name, name_start)

    def _note_root(self, scope: Scope, name: str, start: int) -> None:
        if scope.root_name is not None:
            self.fail(f"a computation has one ROOT, and '{scope.root_name}' is it already", start)
        scope.root_name = name

    def right_hand_side(self, scope: Scope, name: str, start: int) -> None:
        """[shape] opcode operands (',' attribute)*"""
        shape = self.shape() if self.at_shape() else None
        opcode_start = self.start
        self._from_operands(scope, name, start, shape, self.word("an opcode"), opcode_start)

    def _from_operands(
        self,
        scope: Scope,
        name: str,
        start: int,
        shape: Shape | None,
        opcode: str,
        opcode_start: int,
        names: str | None = None,
    ) -> None:
        """The instruction from its operands on; `names` is their text where it is names alone."""
        if name in ELEMENT_TYPES:
            self.fail(f"'{name}' is an element type and cannot name an instruction", start)
        if name in scope.by_name:
            self.fail(f"the instruction '{name}' is defined twice in '{scope.name}'", start)
        entry = find_opcode(opcode)
        after_opcode = opcode_start + len(opcode)
        implied: dict[str, str] = {}
        if entry is None and opcode in FORMER and not self.strict:
            current, implied = FORMER[opcode]
            entry = find_opcode(current)
        if entry is None:
            self.move_to(after_opcode)
            wrapped = wrapped_opcode(opcode)
            if wrapped is not None:
                self._async_instruction(scope, name, opcode_start, shape, *wrapped)
                return
            self._unknown_instruction(scope, name, start, shape, opcode, opcode_start)
            return
        fields: dict[str, Any] = {**implied}
        operands: tuple[str, ...] = ()
        if entry.role is Role.PARAMETER or entry.role is Role.CONSTANT:
            fields, position = self.immediate(entry, shape, after_opcode, opcode_start)
        else:
            operands, position = self.operands_at(scope, entry, after_opcode, opcode_start, names)
        common = self.attributes(scope, entry, fields, position, start)
        attributes = self.make_attributes(entry, fields, opcode_start)
        replication = common.get("parameter_replication")
        if replication is not None and shape is not None and len(replication) != len(flat_shapes(shape)):
            self.fail(f"parameter_replication has {len(replication)} entries, which are not one per leaf", start)
        if shape is None:
            shape = self.inferred_shape(scope, entry, operands, attributes, opcode_start)
        common["attributes"] = attributes
        scope.add(Instruction(name=name, shape=shape, opcode=entry.name, operands=operands, **common))
        if continues(entry):
            extend(self, scope, scope.by_name[name])
        if self.strict:
            self._check_strictly(scope, entry, name, opcode_start)

    def _check_strictly(self, scope: Scope, entry: Entry, name: str, start: int) -> None:
        """What XLA's parser demands of an instruction beyond its grammar."""
        instruction = scope.by_name[name]
        if entry.well_formed is not None:
            shapes = [scope.by_name[operand].shape for operand in instruction.operands]
            try:
                entry.well_formed(*shapes, attributes=instruction.attributes, shape=instruction.shape)
            except ShapeError as error:
                self.fail(error.message, start)
        if continues(entry):
            check_continued(self, scope, instruction, None, start)
        check_channel(self, scope, instruction, start)

    def called(self, subject: str) -> str:
        """name | body"""
        start = self.start
        if not self.at("{"):
            name = self.name("the name of a computation")
            if name not in self.computations:
                if self.strict:
                    self.fail(f"the computation '{name}' is not defined before it is used", start)
                self.references.append((name, start))
            return name
        self._depth += 1
        if self._depth > _MAXIMUM_NESTED_COMPUTATIONS:
            self.fail(f"computations nest more than {_MAXIMUM_NESTED_COMPUTATIONS} deep")
        scope = Scope("_")
        self.body(scope)
        scope.name = self.computation_name("_")
        self.finish(scope, "main", start, self.start)
        self._depth -= 1
        return scope.name

    def _unknown_instruction(
        self, scope: Scope, name: str, start: int, shape: Shape | None, opcode: str, opcode_start: int
    ) -> None:
        """An opcode of a newer XLA: its operands are kept as names where they are names, else verbatim."""
        is_word = opcode.replace("-", "").replace("_", "").isalnum() and opcode == opcode.lower()
        if shape is None or not is_word or opcode in ELEMENT_TYPES or not self.at("("):
            self.fail(f"'{opcode}' is not an opcode", opcode_start)
        self.unknown(f"the opcode '{opcode}'", opcode_start, ("those of `hloexec ops`",))
        opening = self.start
        self.advance()
        operands: tuple[str, ...] = ()
        verbatim = None
        if self.at_names():
            self.move_to(opening)
            operands = self.operands(scope, None, opcode_start)
        else:
            self.move_to(opening)
            verbatim = self.unknown_word()[1:-1]
        common = self.attributes(scope, None, {}, self.start, start)
        common["unknown_operands"] = verbatim
        scope.add(Instruction(name=name, shape=shape, opcode=opcode, operands=operands, **common))

    def _async_instruction(
        self, scope: Scope, name: str, start: int, shape: Shape | None, outer: Entry, wrapped: Entry
    ) -> None:
        """`op-start`, `op-update` or `op-done`: the start implies a computation that holds `op` alone."""
        if shape is None:
            self.fail(f"the shape of {outer.name} must be given", start)
        operands = self.operands(scope, outer, start)
        fields: dict[str, Any] = {}
        is_start = outer.role is Role.ASYNC_START
        also = wrapped if is_start else None
        common = self.attributes(scope, outer, fields, self.start, start, also=also)
        if is_start:
            own, inner = (
                {field.field for field in attribute_fields(each.attributes).values()} for each in (outer, wrapped)
            )
            wrapped_fields = {key: value for key, value in fields.items() if key in inner}
            fields = {key: value for key, value in fields.items() if key in own - inner}
            fields["calls"] = wrap(self, scope, shape, wrapped, operands, wrapped_fields, common, start)
        attributes = self.make_attributes(outer, fields, start)
        common["attributes"] = attributes
        scope.add(Instruction(name=name, shape=shape, opcode=outer.name, operands=operands, **common))
        if not is_start:
            check_continued(self, scope, scope.by_name[name], wrapped, start)
            extend(self, scope, scope.by_name[name])
        if self.strict:
            self._check_strictly(scope, outer, name, start)
