"""State that the parts of the parser share: the computations read so far, and the current one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import attrs

from hloexec.core.ir import Computation, Instruction, Literal, Metadata, Shape, Span
from hloexec.core.structs import define
from hloexec.errors import warn
from hloexec.language.text.lexer import NAME_PATTERN
from hloexec.language.text.literals import LiteralParser
from hloexec.ops.registry import find_opcode

_DEFINED = re.compile(rf"({NAME_PATTERN})\s*+=")
"""What may be the name of an instruction, and words that are those of attributes."""


@define
class Scope:
    """The instructions of the computation that is being read."""

    name: str
    instructions: list[Instruction] = attrs.field(factory=list)
    by_name: dict[str, Instruction] = attrs.field(factory=dict)
    root_name: str | None = None
    pending: list[tuple[str, Shape | None, int]] = attrs.field(factory=list)
    """Operands that are not defined yet: name, declared shape, position."""
    elements: dict[tuple[str, int], str] = attrs.field(factory=dict)
    """The get-tuple-elements that operands like `name#index` stand for, by name and index."""
    makes_parameters: bool = False
    """Whether an unknown operand becomes a parameter (single-instruction texts)."""
    _parameters: tuple[int, int] = (0, 0)
    """How many of the instructions have been looked at for parameters, and how many of them were some."""

    def add(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)
        self.by_name[instruction.name] = instruction

    def add_parameter(self, name: str, shape: Shape, position: int) -> None:
        """Add a parameter that the text does not spell out."""
        entry = find_opcode("parameter")
        assert entry is not None and entry.attributes is not None
        counted, number = self._parameters
        number += sum(instruction.opcode == entry.name for instruction in self.instructions[counted:])
        self._parameters = len(self.instructions), number
        attributes = entry.attributes(number=number)
        span = Span(position, position)
        self.add(Instruction(name=name, shape=shape, opcode=entry.name, attributes=attributes, span=span))


class ParserState(LiteralParser):
    """Keeps the module under construction."""

    __slots__ = (
        "_anonymous_counts",
        "_common",
        "_depth",
        "_known_metadata",
        "_known_numbers",
        "_known_scalars",
        "_known_strings",
        "_names",
        "_numbers",
        "_own",
        "computations",
        "implied",
        "references",
        "reserved",
        "warned",
    )

    def __init__(self, text: str, filename: str = "<string>", *, strict: bool = False) -> None:
        super().__init__(text, filename, strict=strict)
        self.computations: dict[str, Computation] = {}
        self.references: list[tuple[str, int]] = []
        """Computations that were called before they were defined, with the positions."""
        self.reserved: set[str] = set()
        """Names of computations that are still being read."""
        self.implied: set[str] = set()
        """Names of computations that asynchronous starts imply."""
        self._anonymous_counts: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        """The numbers last tried for the names of computations."""
        self._names: set[str] | None = None
        """All that the text defines, once it matters."""
        self.warned: set[str] = set()
        """What has been warned about."""
        self._own: dict[type | None, dict[str, Any]] = {}
        """How attributes are read, by the classes that declare them."""
        self._common: dict[str, Any] = {}
        """How those are read that any instruction may carry."""
        self._known_strings: dict[str, str] = {}
        self._known_metadata: dict[str, Metadata] = {}
        self._known_numbers: dict[str, int] = {}
        self._known_scalars: dict[tuple[Shape, str], Literal] = {}
        self._depth = 0
        """How many bodies of computations are open in one another."""

    def finish(self, scope: Scope, thread: str, start: int, end: int) -> Computation:
        """Add the computation that a scope has become."""
        computation = Computation(
            name=scope.name,
            instructions=tuple(scope.instructions),
            root_name=scope.root_name or scope.instructions[-1].name,
            execution_thread=thread,
            span=Span(start, end),
        )
        self.computations[scope.name] = computation
        return computation

    def span(self, start: int, end: int) -> Span:
        """From `start` to `end`, without the space before it."""
        text = self.text
        while end > start and text[end - 1].isspace():
            end -= 1
        return Span(start, end)

    def computation_name(self, name: str) -> str:
        """`name`, or `name.1`, `name.2`, … if there is such a computation."""
        number = self._numbers.get(name, 0)
        candidate = f"{name}.{number}" if number else name
        while candidate in self.computations or candidate in self.reserved:
            number += 1
            candidate = f"{name}.{number}"
        self._numbers[name] = number
        return candidate

    def instruction_name(self, opcode: str, scope: Scope) -> str:
        """A name for an instruction that has none, new in the module and in `scope`."""
        while True:
            number = self._anonymous_counts.get(opcode, 0)
            self._anonymous_counts[opcode] = number + 1
            name = f"{opcode}.anon.{number}" if number else f"{opcode}.anon"
            if name not in scope.by_name:
                return name

    def element_name(self, name: str, index: int, scope: Scope) -> str:
        """`name_index`, as XLA calls the element; or `name_index.1`, `name_index.2`, … if the text has that name."""
        if self._names is None:
            self._names = set(_DEFINED.findall(self.text))
        number, candidate = 0, f"{name}_{index}"
        while candidate in self._names or candidate in scope.by_name:
            number += 1
            candidate = f"{name}_{index}.{number}"
        return candidate

    def check_operand_shape(self, shape: Shape | None, defined: Instruction, position: int) -> None:
        """The shape written before an operand agrees with that of its definition."""
        if shape is not None and shape is not defined.shape and not shape.compatible(defined.shape):
            self.fail(f"the operand is declared {shape}, but '{defined.name}' gives {defined.shape}", position)

    def unknown(self, subject: str, position: int, names: Iterable[str]) -> None:
        """Reject what is unknown where strict, else warn about it once."""
        if self.strict:
            self.fail(f"{subject} is not known here; known are {', '.join(sorted({*names}))}", position)
        if subject not in self.warned:
            self.warned.add(subject)
            place = self.error(f"{subject} is not known; it is kept verbatim", position)
            message = f"{place.filename}:{place.line}:{place.column}: {place.message}"
            warn(message)
