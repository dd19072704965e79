"""The asynchronous shorthand: `add-start`, `add-update`, `add-done` for any opcode.

The start is short for an `async-start` that calls a computation with that one instruction, which the text does not
spell out. An update or done repeats the opcode; an update may bring further operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from hloexec.core.ir import Instruction, Shape, TupleShape
from hloexec.language.text.state import ParserState, Scope
from hloexec.ops.attributes import attribute_fields
from hloexec.ops.registry import Entry, Role, find_opcode

if TYPE_CHECKING:
    from hloexec.language.text.operands import OperandParser

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
        found = "none" if ours is None else str(ours)
        wanted = "names none" if theirs is None else f"is on channel {theirs}"
        parser.fail(f"channel_id of {instruction.opcode} is {found}, but '{before.name}' {wanted}", position)


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
