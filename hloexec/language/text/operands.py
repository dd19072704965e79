"""Operands: names, with or without shapes, elements of tuples, nested instructions; asynchronous ones.

Shapes of results that a text leaves out: what XLA's shape inference gives them beyond what the rules of entries say.
The rules say nothing of layouts, which a declared shape states; where it is left out, later bitcasts depend on them.

The asynchronous shorthand: `add-start`, `add-update`, `add-done` for any opcode. The start is short for an
`async-start` that calls a computation with that one instruction, which the text does not spell out. An update or done
repeats the opcode; an update may bring further operands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, reduce
from typing import Any, NamedTuple

import attrs

from hloexec.core.dtypes import ELEMENT_TYPES, Kind
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, flat_shapes
from hloexec.core.values import Pairs
from hloexec.errors import ShapeError
from hloexec.language.text.attributes.shardings import ShardingParser
from hloexec.language.text.lexer import NAME, NAME_PATTERN, SHAPE
from hloexec.language.text.shapes import ARRAY_PATTERN, MAXIMUM_SIZE
from hloexec.language.text.state import ParserState, Scope
from hloexec.ops.attributes import attribute_fields, computation_names, unknown_words
from hloexec.ops.common import higher_precision
from hloexec.ops.registry import Entry, ProgramShape, Role, find_opcode, role_of

_WHOLE_BYTES = 8


def shape_as_operand(instruction: Instruction) -> Shape:
    """The shape that inference sees: XLA's constants keep neither dynamic dimensions nor `E(…)` of their layouts."""
    shape = instruction.shape
    if role_of(instruction) is not Role.CONSTANT or not isinstance(shape, ArrayShape):
        return shape
    layout = shape.layout and attrs.evolve(shape.layout, element_size_in_bits=0)
    return ArrayShape(shape.element_type, shape.dimensions, layout)


def implicitly_broadcast(shapes: Sequence[Shape]) -> list[Shape]:
    """The two operands of an elementwise operation, a scalar or a dimension of size 1 in the size of the other one."""
    first, second = shapes
    if not isinstance(first, ArrayShape) or not isinstance(second, ArrayShape):
        return list(shapes)
    if 0 in (first.rank, second.rank) and first.rank != second.rank:
        whole = max(first, second, key=lambda shape: shape.rank)
        sizes, dynamic = whole.dimensions, whole.dynamic_dimensions
        return [ArrayShape(shape.element_type, sizes, dynamic_dimensions=dynamic) for shape in (first, second)]
    is_degenerate = first.rank == second.rank and any(
        ours != theirs and 1 in (ours, theirs) for ours, theirs in zip(first.dimensions, second.dimensions, strict=True)
    )
    if not is_degenerate:
        return list(shapes)
    return [_enlarged(first, second), _enlarged(second, first)]


def _enlarged(shape: ArrayShape, other: ArrayShape) -> ArrayShape:
    """The shape with the other's dimensions in the place of those of size 1."""
    static = (False,) * shape.rank
    ours, theirs = (
        list(zip(operand.dimensions, operand.dynamic_dimensions or static, strict=True)) for operand in (shape, other)
    )
    chosen = [there if here[0] == 1 != there[0] else here for here, there in zip(ours, theirs, strict=True)]
    dynamic = tuple(flag for _, flag in chosen)
    return ArrayShape(
        shape.element_type, tuple(size for size, _ in chosen), dynamic_dimensions=dynamic if any(dynamic) else ()
    )


def with_operand_layout(entry: Entry, attributes: object, operands: Sequence[Shape], result: Shape) -> Shape:
    """The inferred result, or its first element, with the layout of the operand from which XLA's inference takes it."""
    if isinstance(result, TupleShape):
        if not result.elements or not entry.traits.layout_of:
            return result
        first, *others = result.elements
        return TupleShape((with_operand_layout(entry, attributes, operands, first), *others))
    numbers = entry.traits.layout_of or ((0,) if entry.is_elementwise else ())
    sources = [operands[number] for number in numbers]
    arrays = [source for source in sources if isinstance(source, ArrayShape)]
    if not arrays or not isinstance(result, ArrayShape):
        return result
    source = next((array for array in arrays if array.rank > 0), arrays[-1])
    if source.rank != result.rank:
        return result
    layout = source.layout
    if entry.memory_order is not None:
        layout = source.stated_layout
        order = tuple(reversed(layout.minor_to_major))
        order = entry.memory_order(order, attributes=attributes, shape=result, operand_shapes=(source,))
        layout = attrs.evolve(layout, minor_to_major=tuple(reversed(order)))
    size = _element_size(entry, arrays[-1], result)
    if layout is None and not size:
        return result
    layout = attrs.evolve(layout or source.stated_layout, dim_level_types=(), element_size_in_bits=size)
    return result if layout == result.stated_layout else attrs.evolve(result, layout=layout)


def _element_size(entry: Entry, source: ArrayShape, result: ArrayShape) -> int:
    """What `E(…)` says of the result: operations on two operands and changes of the type count the bits anew."""
    is_packed = result.element_type.bits < _WHOLE_BYTES and result.element_type.kind is not Kind.PRED
    if source.element_type is not result.element_type:
        return result.element_type.bits if is_packed else 0
    is_kept = is_packed or not entry.is_elementwise or entry.operands != 2
    return source.layout.element_size_in_bits if is_kept and source.layout is not None else 0


_ASYNC_SUFFIXES = {"-start": "async-start", "-update": "async-update", "-done": "async-done"}


def wrapped_opcode(opcode: str) -> tuple[Entry, Entry] | None:
    """The asynchronous opcode and the wrapped one of a shorthand such as `add-start`."""
    for suffix, asynchronous in _ASYNC_SUFFIXES.items():
        if opcode.endswith(suffix):
            outer, wrapped = find_opcode(asynchronous), find_opcode(opcode.removesuffix(suffix))
            if outer is not None and wrapped is not None:
                return outer, wrapped
    return None


def continues(entry: Entry) -> bool:
    """Whether an opcode goes on with what an async-start has begun."""
    if entry.role is not Role.PART:
        return False
    from hloexec.ops.control.asynchronous import AsyncDoneAttributes

    return entry.attributes is not None and issubclass(entry.attributes, AsyncDoneAttributes)


def check_continued(
    parser: ParserState, scope: Scope, instruction: Instruction, wrapped: Entry | None, position: int
) -> None:
    """An update or done goes on from anything but a done and, where it names the wrapped opcode, from a start of that.

    Where strict, what the update or done says of thread and computation is what a start of this computation does; else
    that is the verifier's business.
    """
    from hloexec.ops.control.asynchronous import AsyncDoneAttributes, is_over, start_of

    if parser.strict and is_over(instruction, scope.by_name):
        parser.fail(f"{instruction.opcode} goes on from what an async-start or async-update gives", position)
    begun = start_of(instruction, scope.by_name)
    if begun is None:
        return
    if wrapped is not None and begun.attributes.calls in parser.computations:
        actual = parser.computations[begun.attributes.calls].root.opcode
        if actual != wrapped.name:
            parser.fail(f"'{begun.name}' started {actual}, not {wrapped.name}", position)
    for name in attribute_fields(AsyncDoneAttributes) if parser.strict else ():
        ours, theirs = getattr(instruction.attributes, name), getattr(begun.attributes, name)
        if ours not in (None, theirs):
            parser.fail(f"{name} is {ours}, but that of its start '{begun.name}' is {theirs}", position)


def check_channel(parser: ParserState, scope: Scope, instruction: Instruction, position: int) -> None:
    """A send-done or recv-done names the channel of its operand, where that is an instruction with channels."""
    from hloexec.ops.control.asynchronous import TransferAttributes

    if not instruction.opcode.endswith("-done") or not isinstance(instruction.attributes, TransferAttributes):
        return
    before = scope.by_name[instruction.operands[0]]
    ours, theirs = instruction.attributes.channel_id, getattr(before.attributes, "channel_id", instruction)
    if theirs not in (ours, instruction):
        channel = "none" if ours is None else str(ours)
        wanted = "names none" if theirs is None else f"is on channel {theirs}"
        parser.fail(f"channel_id of {instruction.opcode} is {channel}, but '{before.name}' {wanted}", position)


def wrap(
    parser: OperandParser,
    scope: Scope,
    shape: Shape | None,
    wrapped: Entry,
    operands: tuple[str, ...],
    fields: dict[str, Any],
    common: dict[str, Any],
    start: int,
) -> str:
    """The computation that an asynchronous spelling implies; returns its name."""
    if not isinstance(shape, TupleShape) or len(shape.elements) < 2 or not isinstance(shape.elements[0], TupleShape):
        parser.fail("the shape of an asynchronous start is ((operands), result, …)", start)
    if len(operands) >= wrapped.minimum_operands:
        # Those that are missing may come later.
        parser.check_operand_count(wrapped, len(operands), start)
    declared = shape.elements[0].elements
    if len(declared) != len(operands) and not all(operand in scope.by_name for operand in operands):
        parser.fail(f"the shape of the start holds {len(declared)} operands, found {len(operands)}", start)
    inner = Scope(parser.computation_name("async_wrapped"))
    for operand in operands:
        _add_parameter(inner, scope.by_name.get(operand), declared, start)
    names = tuple(inner.by_name)
    shared = ("metadata", "backend_config", "frontend_attributes", "statistics", "original_value")
    inner.add(
        Instruction(
            name=wrapped.name,
            shape=shape.elements[1],
            opcode=wrapped.name,
            operands=names,
            attributes=parser.make_attributes(wrapped, fields, start),
            span=parser.span(start, parser.start),
            **{key: value for key, value in common.items() if key in shared},
        ),
    )
    name = parser.finish(inner, "main", start, parser.start).name
    parser.implied.add(name)
    return name


def _add_parameter(inner: Scope, defined: Instruction | None, declared: Sequence[Shape], position: int) -> None:
    """The next parameter, of the shape of the operand or, where that is not defined yet, of the declared one."""
    number = len(inner.instructions)
    name = f"async_param.{number}" if number else "async_param"
    inner.add_parameter(name, defined.shape if defined else declared[number], position)


def extend(parser: ParserState, scope: Scope, update: Instruction) -> None:
    """Give the computation that a start implies the parameters for which an update brings operands, and its result."""
    from hloexec.ops.control.asynchronous import start_of

    begun = start_of(update, scope.by_name) if len(update.operands) > 1 else None
    shape = update.shape
    if begun is None or begun.attributes.calls not in parser.implied or not isinstance(shape, TupleShape):
        return
    implied = parser.computations[begun.attributes.calls]
    inner = Scope(implied.name, list(implied.parameters), {entry.name: entry for entry in implied.parameters})
    position = update.span.start if update.span else 0
    declared = shape.elements[0].elements if isinstance(shape.elements[0], TupleShape) else ()
    for operand in update.operands[1:]:
        defined = scope.by_name.get(operand)
        if defined is None and len(inner.instructions) >= len(declared):
            parser.fail(f"the shape of the update holds {len(declared)} operands, but not '{operand}'", position)
        _add_parameter(inner, defined, declared, position)
    result = shape.elements[1] if len(shape.elements) > 1 else implied.root.shape
    inner.add(attrs.evolve(implied.root, operands=tuple(inner.by_name), shape=result))
    parser.computations[implied.name] = attrs.evolve(
        implied, instructions=tuple(inner.instructions), root_name=implied.root.name
    )


_SPACE = r"[ \t\n\r]*+"
_OPERAND = re.compile(rf"{_SPACE}(?:({ARRAY_PATTERN}) )?%?({NAME_PATTERN}){_SPACE}([,)])")
_PLAIN_IMMEDIATE = re.compile(r"\(([a-z0-9.+\-]{1,32}+)\)")


class _Head(NamedTuple):
    """An instruction in the place of an operand, up to its own operands."""

    entry: Entry
    wrapped: Entry | None
    """What an asynchronous one wraps, where its opcode says so."""
    shape: Shape | None
    start: int


class OperandParser(ShardingParser):
    """Reads what stands between the parentheses of an instruction."""

    __slots__ = ()

    def operands_at(
        self, scope: Scope, entry: Entry, position: int, start: int, names: str | None
    ) -> tuple[tuple[str, ...], int]:
        """The operands from `position` on, and where they end; `names` is `%a, %b` where they are names alone."""
        if names is not None:
            by_name = scope.by_name
            try:
                found = tuple([by_name[name].name for name in names.replace("%", "").split(", ")])
            except KeyError:
                pass  # one is not defined yet
            else:
                self.check_operand_count(entry, len(found), start)
                return found, position + len(names) + len("()")
        self.move_to(position)
        return self.operands(scope, entry, start), self.start

    def operands(self, scope: Scope, entry: Entry | None, start: int) -> tuple[str, ...]:
        """'(' [operand] (',' [operand])* ')', operand ::= [shape] name ('#' int)* | [shape] opcode operands

        A comma too many separates nothing, as in XLA.
        Nested instructions are on a stack of our own, so they nest as deep as they like.
        """
        self.require("(", "before operands")
        text, position = self.text, self.end
        operands: list[str] = []
        open_instructions: list[tuple[_Head, list[str]]] = []
        by_name = scope.by_name
        while True:
            match = _OPERAND.match(text, position)
            if match:
                shape_text, name, terminator = match.groups()
                shape: Shape | None = None if shape_text is None else self.known(shape_text)
                if shape_text is None or shape is not None:
                    defined = by_name.get(name)
                    if defined is None or (shape is not None and shape is not defined.shape):
                        self._operand_seen(scope, name, shape, match.start(2))
                    operands.append(name)
                    position = match.end()
                    if terminator == ",":
                        continue
                    self.move_to(position)
                    closed = True
                else:
                    closed = False
                    self.move_to(position)
            else:
                closed = False
                self.move_to(position)
            if not closed:
                if not (self.at(",") or self.at(")")):
                    nested = self._slow_operand(scope, operands)
                    if nested is not None:
                        open_instructions.append((nested, operands))
                        operands, position = [], self.end
                        continue
                if self.at(","):
                    position = self.end
                    continue
                self.expect(")", "after operands")
            # A list of operands is complete: the outermost one, or that of a nested instruction.
            while open_instructions:
                head, outer = open_instructions.pop()
                name = self._add_nested(scope, head, tuple(operands))
                outer.append(name)
                operands = outer
                if self.at(","):
                    position = self.end
                    break
                self.expect(")", "after operands")
            else:
                self.check_operand_count(entry, len(operands), start)
                return tuple(operands)

    def _slow_operand(self, scope: Scope, operands: list[str]) -> _Head | None:
        """An operand read token by token. Gives the head of a nested instruction, its '(' being the current token."""
        start = self.start
        shape = self.shape() if self.at_shape() else None
        if self.kind != NAME:
            if shape is not None and scope.makes_parameters:
                name = f"_{len(scope.instructions)}"
                scope.add_parameter(name, shape, start)
                operands.append(name)
                return None
            self.fail(f"expected an operand, found {self.describe()}")
        if self.value[0] != "%" and self.following() == "(":
            entry, wrapped = find_opcode(self.value), None
            if entry is None:
                entry, wrapped = wrapped_opcode(self.value) or (None, None)
            if entry is None:
                self.fail(f"expected an operand, found '{self.value}(', which is not an opcode")
            opcode_start = self.start
            self.advance()
            if entry.role is not Role.PARAMETER and entry.role is not Role.CONSTANT:
                return _Head(entry, wrapped, shape, opcode_start)
            fields, end = self.immediate(entry, shape, self.start, opcode_start)
            self.move_to(end)
            assert shape is not None and entry.attributes is not None
            operands.append(self._anonymous(scope, entry, shape, start, (), entry.attributes(**fields)))
            return None
        position = self.start
        name = self.name("an operand")
        while self.take("#"):
            name = self._tuple_element(scope, name, self.integer("the index of an element"), position)
        operands.append(name)
        self._operand_seen(scope, name, shape, position)
        return None

    def _tuple_element(self, scope: Scope, name: str, index: int, position: int) -> str:
        """The get-tuple-element that `name#index` stands for, for all operands of the computation that say so."""
        known = scope.elements.get((name, index))
        if known is not None:
            return known
        if name not in scope.by_name:
            self.fail(f"'{name}' is not defined before an element of it is used", position)
        entry = find_opcode("get-tuple-element")
        assert entry is not None and entry.attributes is not None
        attributes = entry.attributes(index=index)
        shape = self.inferred_shape(scope, entry, (name,), attributes, position)
        element = self.element_name(name, index, scope)
        self._add(scope, entry, element, shape, position, (name,), attributes)
        scope.elements[name, index] = element
        return element

    def _operand_seen(self, scope: Scope, name: str, shape: Shape | None, position: int) -> None:
        """Check an operand against its definition, now or when the computation is complete."""
        defined = scope.by_name.get(name)
        if defined is not None:
            self.check_operand_shape(shape, defined, position)
        elif scope.makes_parameters:
            if shape is None:
                self.fail(f"'{name}' needs a shape: it becomes a parameter of the single instruction", position)
            if name in ELEMENT_TYPES:
                self.fail(f"'{name}' is an element type and cannot name an instruction", position)
            scope.add_parameter(name, shape, position)
        elif self.strict:
            self.fail(f"'{name}' is not defined before it is used", position)
        else:
            scope.pending.append((name, shape, position))

    def check_operand_count(self, entry: Entry | None, count: int, start: int) -> None:
        """ParseError unless an opcode takes so many operands."""
        if entry is None:
            return
        low, high = entry.minimum_operands, entry.maximum_operands
        if count < low or (high is not None and count > high):
            wanted = str(low) if low == high else f"at least {low}" if high is None else f"{low} to {high}"
            self.fail(f"{entry.name} takes {wanted} operand{'s' * (wanted != '1')}, found {count}", start)

    def immediate(self, entry: Entry, shape: Shape | None, position: int, start: int) -> tuple[dict[str, Any], int]:
        """'(' int ')' of a parameter, '(' literal ')' of a constant, from `position` on; the field, and where it ends.

        Plain numbers and scalars repeat; they are remembered by their texts.
        """
        if shape is None:
            self.fail(f"the shape of a {entry.name} cannot be inferred; it must be given", start)
        is_parameter = entry.role is Role.PARAMETER
        plain = _PLAIN_IMMEDIATE.match(self.text, position)
        if plain is not None:
            cached = self._known_numbers.get(plain[1]) if is_parameter else self._known_scalars.get((shape, plain[1]))
            if cached is not None:
                return {"number" if is_parameter else "literal": cached}, plain.end()
        self.move_to(position)
        self.expect("(", f"after '{entry.name}'")
        if is_parameter:
            position = self.start
            number = self.integer("the number of a parameter")
            if number < 0:
                self.fail("the number of a parameter is not negative", position)
            fields: dict[str, Any] = {"number": number}
            if plain is not None:
                self._known_numbers[plain[1]] = number
        else:
            literal = self.of_shape(shape)
            fields = {"literal": literal}
            if plain is not None:
                self._known_scalars[shape, plain[1]] = literal
        self.expect(")", f"after the value of a {entry.name}")
        return fields, self.start

    def _add_nested(self, scope: Scope, head: _Head, operands: tuple[str, ...]) -> str:
        """Add an instruction that stood as an operand; it has a name of our making and no attributes."""
        entry, wrapped, shape, start = head
        self.check_operand_count(entry, len(operands), start)
        fields: dict[str, Any] = {}
        if wrapped is not None and entry.role is Role.ASYNC_START:
            fields["calls"] = wrap(self, scope, shape, wrapped, operands, {}, {}, start)
        attributes = self.make_attributes(entry, fields, start)
        if shape is None:
            shape = self.inferred_shape(scope, entry, operands, attributes, start)
        name = self._anonymous(scope, entry, shape, start, operands, attributes)
        if continues(entry):
            check_continued(self, scope, scope.by_name[name], wrapped, start)
            extend(self, scope, scope.by_name[name])
        return name

    def _anonymous(
        self, scope: Scope, entry: Entry, shape: Shape, start: int, operands: tuple[str, ...], attributes: object
    ) -> str:
        name = self.instruction_name(entry.name, scope)
        self._add(scope, entry, name, shape, start, operands, attributes)
        return name

    def _add(
        self,
        scope: Scope,
        entry: Entry,
        name: str,
        shape: Shape,
        start: int,
        operands: tuple[str, ...],
        attributes: object,
    ) -> None:
        """Add an instruction that an operand stands for, which ends before the current token."""
        span = self.span(start, self.start)
        scope.add(
            Instruction(name=name, shape=shape, opcode=entry.name, operands=operands, attributes=attributes, span=span),
        )

    def make_attributes(self, entry: Entry, fields: dict[str, object], start: int) -> Any:
        """The attributes object of an instruction, once all that is required is there."""
        if entry.attributes is None:
            return None
        for name, field in _required(entry.attributes):
            if field not in fields:
                self.fail(f"{entry.name} needs the attribute '{name}', which is missing", start)
        return entry.attributes(**fields)

    def inferred_shape(
        self, scope: Scope, entry: Entry, operands: tuple[str, ...], attributes: object, start: int
    ) -> Shape:
        """The shape that an instruction without one has by the rule of its opcode."""
        if entry.infer is None or entry.states_shape:
            self.fail(f"the shape of a {entry.name} cannot be inferred; it must be given", start)
        for field, word in unknown_words(attributes):
            self.fail(f"the shape of this {entry.name} must be given, as its {field.name} '{word}' is not known", start)
        shapes: list[Shape] = []
        for name in operands:
            if name not in scope.by_name:
                self.fail(f"the shape of this {entry.name} depends on '{name}', which is not defined yet", start)
            shapes.append(shape_as_operand(scope.by_name[name]))
        try:
            if entry.unstated is not None:
                unstated = entry.unstated(*shapes, attributes=attributes)
                if unstated is not None:
                    return unstated
            if entry.is_elementwise and len(shapes) == 2:
                shapes = implicitly_broadcast(shapes)
            # Rules ask the declared shape for nothing but the element type, which is the operands'.
            types = [shape.element_type for shape in shapes[:2] if isinstance(shape, ArrayShape)]
            shape = ArrayShape(reduce(higher_precision, types)) if types else TupleShape()
            called = tuple(self._called(entry, attributes, start)) if "computations" in entry.infer.needs else ()
            inferred = entry.infer(*shapes, attributes=attributes, shape=shape, computations=called)
            inferred = with_operand_layout(entry, attributes, shapes, inferred)
            arrays = (leaf for leaf in flat_shapes(inferred) if isinstance(leaf, ArrayShape))
            if any(size > MAXIMUM_SIZE for leaf in arrays for size in leaf.dimensions):
                raise ShapeError("a dimension is larger than 2^63 - 1")
            return inferred
        except ShapeError as error:
            self.fail(f"the shape of this {entry.name} cannot be inferred: {error.message}", start)

    def _called(self, entry: Entry, attributes: object, start: int) -> Iterator[ProgramShape]:
        """The signatures of the computations that an instruction without a shape calls."""
        for name in computation_names(attributes):
            called = self.computations.get(name)
            if called is None:
                message = f"the shape of this {entry.name} depends on computation '{name}', which is not defined yet"
                self.fail(message, start)
            yield ProgramShape(called.parameter_shapes, called.result_shape)

    def at_names(self) -> bool:
        """Whether what follows an opening parenthesis is a list of plain operands; moves as far as it is."""
        if self.at(")"):
            return True
        while True:
            if self.kind == SHAPE:
                self.advance()
            if self.kind != NAME:
                return False
            self.advance()
            while self.take("#"):
                self.advance()
            if not self.at(","):
                return self.at(")")
            self.advance()


@cache
def _required(cls: type) -> Pairs:
    """The attributes that the text must give: their names there, and their fields."""
    return tuple((name, declared.field) for name, declared in attribute_fields(cls).items() if declared.is_required)
