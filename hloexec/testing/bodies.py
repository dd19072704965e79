"""What random modules are written with: the instructions of a computation so far, and the values among which to choose.

Operands come about on demand: an instruction takes a value that is there, or a new parameter or constant of the shape
that it needs. So every choice gives a well-formed module, and one that shrinks keeps only what is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import TypeVar

import attrs
from hypothesis import strategies as st

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type
from hloexec.core.ir import ArrayShape, Literal
from hloexec.core.structs import define, frozen
from hloexec.language.element_types import accepted_element_types
from hloexec.language.text.shapes import literal_text
from hloexec.ops.registry import OPCODES
from hloexec.testing.arrays import arrays, shapes

Dimensions = tuple[int, ...]
_Choice = TypeVar("_Choice")
PRED, INDEX = element_type("pred"), element_type("s32")
_MOST_CONSTANT = 16
"""Elements of constants that are written out."""


@frozen
class Value:
    """A value that instructions can take."""

    name: str
    shape: ArrayShape

    @property
    def element_type(self) -> ElementType:
        return self.shape.element_type

    @property
    def dimensions(self) -> Dimensions:
        return self.shape.dimensions

    @property
    def rank(self) -> int:
        return self.shape.rank


@define(eq=False, repr=False)
class Program:
    """A module while it is written."""

    draw: st.DrawFn
    element_types: tuple[ElementType, ...]
    opcodes: Mapping[str, tuple[ElementType, ...]]
    """Those to choose among, each with the element types of its first operand."""
    steps: Mapping[str, Step]
    max_depth: int
    keeps_all: bool
    """Whether instructions stay of which no result is made."""
    max_rank: int
    min_size: int
    max_size: int
    max_elements: int
    computations: dict[str, str] = attrs.field(factory=dict)
    _combiners: dict[ElementType, str] = attrs.field(factory=dict)
    _count: int = 0

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        self._count += 1
        name = f"{stem}{self._count}"
        return self.fresh(stem) if name in ELEMENT_TYPES else name

    def combiner(self, kind: ElementType) -> str:
        """A computation that combines two numbers of a type into one, whatever their order."""
        if kind not in self._combiners:
            names = [name for name, kinds in _commutative().items() if kind in kinds]
            self._combiners[kind] = self.two_numbers(kind, kind, f"{self.draw(st.sampled_from(names))}(a, b)")
        return self._combiners[kind]

    def two_numbers(self, kind: ElementType, result: ElementType, call: str) -> str:
        """A computation that makes one number of two, `a` and `b`."""
        name = self.fresh("combine")
        lines = [f"a = {kind}[] parameter(0)", f"b = {kind}[] parameter(1)", f"ROOT c = {result}[] {call}"]
        return self.add(name, lines)

    def add(self, name: str, lines: Sequence[str]) -> str:
        """Add a computation of these instructions to the module, and return its name."""
        self.computations[name] = f"{name} {{\n  " + "\n  ".join(lines) + "\n}\n"
        return name

    def text(self, entry: str) -> str:
        """The module's text: the computations that the entry calls, directly or not."""
        reached = {entry}
        for name, text in reversed(self.computations.items()):
            if name in reached:
                reached |= {word for word in _NAME.findall(text) if word in self.computations}
        kept = [text for name, text in self.computations.items() if name in reached - {entry}]
        return "\n".join(["HloModule random\n", *kept, f"ENTRY {self.computations[entry]}"])


@cache
def _commutative() -> dict[str, tuple[ElementType, ...]]:
    """Elementwise opcodes whose two operands may change places and are of the type of the result."""
    return {
        name: accepted_element_types(entry) or ()
        for name, entry in OPCODES.items()
        if entry.is_elementwise and entry.traits.commutes and entry.attributes is None
    }


_NAME = re.compile(r"[a-z_]+\d+\w*")
"""What names look like here."""


@define(eq=False, repr=False)
class Body:
    """The instructions of one computation while it is written.

    Where `takes_parameters` is off, what is new is a constant: the parameters of branches and loops are fixed. Of an
    `is_scalar` body all values are scalars, and all instructions elementwise.
    """

    program: Program
    depth: int = 0
    takes_parameters: bool = True
    is_scalar: bool = False
    lines: dict[str, str] = attrs.field(factory=dict)
    """What stands behind each name."""
    values: list[Value] = attrs.field(factory=list)
    parameters: list[Value] = attrs.field(factory=list)

    @property
    def draw(self) -> st.DrawFn:
        return self.program.draw

    def integer(self, low: int, high: int) -> int:
        """An integer between two, both included."""
        return self.draw(st.integers(low, high))

    def flag(self) -> bool:
        """A truth value."""
        return self.draw(st.booleans())

    def one_of(self, choices: Sequence[_Choice]) -> _Choice:
        """One of several, the first of which are the simplest."""
        return self.draw(st.sampled_from(choices))

    def emit(self, shape: ArrayShape, call: str) -> Value:
        """Write an instruction whose result others may take."""
        value = Value(self.line("v", str(shape), call), shape)
        self.values.append(value)
        return value

    def line(self, stem: str, shape: str, call: str) -> str:
        """Write an instruction, and return its name."""
        name = self.program.fresh(stem)
        self.lines[name] = f"{shape} {call}"
        return name

    def choose(self, fits: Callable[[Value], bool], new: st.SearchStrategy[ArrayShape]) -> Value:
        """A new value of a shape drawn from `new`, the last of those that fit, or any of them.

        All is drawn whether it is used or not: examples get simpler only by what does not make them longer.
        """
        fitting = [value for value in self.values if fits(value)]
        shape, way = self.draw(new), self.integer(0, 4)
        if way == 0 or not fitting:
            return self.source(shape)
        return fitting[-1] if way < 3 else self.one_of(fitting)

    def operand(
        self, kinds: Sequence[ElementType], min_rank: int = 0, max_rank: int | None = None, most: int | None = None
    ) -> Value:
        """A value of one of some element types and ranks, of at most `most` elements."""
        highest = 0 if self.is_scalar else max(min_rank, self.program.max_rank) if max_rank is None else max_rank
        limit = self.program.max_elements if most is None else most
        new = shapes(
            kinds,
            min_rank=min_rank,
            max_rank=highest,
            min_size=self.program.min_size,
            max_size=self.program.max_size,
            max_elements=max(limit, self.program.min_size**min_rank),
        )

        def fits(value: Value) -> bool:
            within = min_rank <= value.rank <= highest and value.shape.element_count <= limit
            return value.element_type in kinds and within

        return self.choose(fits, new)

    def operand_of(self, kind: ElementType, dimensions: Sequence[int]) -> Value:
        """A value of one shape."""
        shape = ArrayShape(kind, tuple(dimensions))
        return self.choose(lambda value: value.shape == shape, st.just(shape))

    def source(self, shape: ArrayShape) -> Value:
        """A new parameter or constant."""
        is_small = shape.element_count <= _MOST_CONSTANT
        if self.takes_parameters and not (is_small and self.integer(0, 2) == 2):
            value = self.emit(shape, f"parameter({len(self.parameters)})")
            self.parameters.append(value)
            return value
        if is_small:
            return self.emit(shape, f"constant({literal_text(self._literal(shape))})")
        scalar = self.source(ArrayShape(shape.element_type))
        return self.emit(shape, f"broadcast({scalar.name}), dimensions={{}}")

    def _literal(self, shape: ArrayShape) -> Literal:
        # XLA refuses the text of the largest c64, which is a little larger than the number before it is rounded.
        most = 2.0**100 if shape.element_type.is_complex else None
        least = None if most is None else -most
        return Literal.from_array(self.draw(arrays(shape, min_value=least, max_value=most)), shape)

    def size(self, room: int) -> int:
        """The size of a new dimension, where the result may have `room` times as many elements as without it."""
        most = max(min(self.program.max_size, room), self.program.min_size)
        return self.integer(self.program.min_size, most)

    def room(self, dimensions: Sequence[int]) -> int:
        """How many times larger an array of these sizes may become."""
        return self.program.max_elements // max(prod(dimensions), 1)

    def scalar(self, kind: ElementType, text: str) -> str:
        """A constant of this text, by its name; it does not become an operand of others."""
        return self.line("c", f"{kind}[]", f"constant({text})")

    def fill(self, least: int, most: int) -> None:
        """Write so many steps, each of one or a few instructions."""
        self.draw(st.lists(_step(self), min_size=least, max_size=most))

    def usable(self) -> list[str]:
        """The opcodes that a step may write here."""
        program = self.program
        calls_others = self.depth >= program.max_depth
        return [
            name
            for name in program.opcodes
            if not (self.is_scalar and not OPCODES[name].is_elementwise)
            and not (calls_others and program.steps[name].nests)
        ]

    def nested(self, parameters: Sequence[ArrayShape] | None = None, *, is_scalar: bool = False) -> Body:
        """The body of a called computation, with these parameters or any."""
        body = Body(self.program, self.depth + 1, parameters is None, is_scalar)
        for number, shape in enumerate(parameters or ()):
            body.parameters.append(body.emit(shape, f"parameter({number})"))
        return body

    def finish(self, name: str, root: str) -> str:
        """Add the computation to the module, and return its name."""
        if not self.program.keeps_all:
            self._drop_unused(root)
        lines = [f"{'ROOT ' * (line == root)}{line} = {text}" for line, text in self.lines.items()]
        return self.program.add(name, lines)

    def _drop_unused(self, root: str) -> None:
        """Leave out what the root is not made of."""
        used = {root}
        for name, text in reversed(self.lines.items()):
            if name in used:
                used.update(_NAME.findall(text))
        if self.takes_parameters:
            self.parameters = [value for value in self.parameters if value.name in used]
        used.update(value.name for value in self.parameters)
        self.lines = {name: text for name, text in self.lines.items() if name in used}
        for number, value in enumerate(self.parameters):
            self.lines[value.name] = f"{value.shape} parameter({number})"

    def arguments(self, callee: Body) -> str:
        """Operands for a call."""
        return ", ".join(self.operand_of(p.element_type, p.dimensions).name for p in callee.parameters)

    def unread(self) -> list[Value]:
        """The values that no instruction takes."""
        read = {name for text in self.lines.values() for name in _NAME.findall(text)}
        return [value for value in self.values if value.name not in read]

    def result(self) -> Value:
        """The last value; a new one of any shape where there is none."""
        return self.values[-1] if self.values else self.operand(self.program.element_types)


@frozen
class Step:
    """Writes the instruction of an opcode, and what it needs."""

    write: Callable[[Body, tuple[ElementType, ...]], object]
    """From a body and the element types that the first operand may have."""
    nests: bool = False
    """Whether it writes computations of several instructions, which may call others again."""


@st.composite
def _step(draw: st.DrawFn, body: Body) -> None:
    usable = body.usable()
    if usable:
        name = draw(st.sampled_from(usable))
        body.program.steps[name].write(body, body.program.opcodes[name])
