"""What is known of every value in a module before it runs: between which bounds its elements lie.

This is interval arithmetic over the IR, from the parameters forward. A constant knows its extremes, an iota its range,
a square or an exponential its sign; anything not in the tables below is unknown. Each call of a computation is looked
at with what is known of its arguments, so a scalar constant that is passed into a fusion stays known there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.dtypes import Kind
from hloexec.ir import ArrayShape, Computation, Instruction, Literal, Module, Shape, TupleShape, leaf_shapes
from hloexec.ops.reducers import recognise

__all__ = ["MOVEMENT", "UNKNOWN", "Fact", "Frame", "frame_of", "leaf_count", "leaf_offset", "opaque_facts"]

_DEEPEST_CALL = 60
INFINITY = math.inf


@attrs.frozen(cache_hash=True)
class Fact:
    """All elements of a leaf lie in [low, high] (or are NaN); `is_parameter`: they are moved out of parameters."""

    low: float = -INFINITY
    high: float = INFINITY
    is_parameter: bool = False

    @property
    def is_bounded(self) -> bool:
        return self.low > -INFINITY and self.high < INFINITY


UNKNOWN = Fact()
Facts: TypeAlias = tuple[Fact, ...]
"""One fact per leaf of a shape."""


@attrs.frozen(eq=False)
class Frame:
    """A computation with what is known of its values when it is called with certain arguments."""

    computation: Computation
    facts: dict[str, Facts]
    callees: dict[str, tuple[Frame, ...]]


MOVEMENT: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        "all-gather all-to-all bitcast broadcast collective-broadcast collective-permute convert copy dynamic-reshape "
        "dynamic-slice gather reduce-precision reshape reverse set-dimension-size slice transpose "
        "add-dependency domain opt-barrier".split(),
        (0,),
    ),
    "concatenate": (),
    "dynamic-update-slice": (0, 1),
    "pad": (0, 1),
    "select": (1, 2),
}
"""Opcodes whose result consists of elements of these operands (of all where none is named)."""


def leaf_count(shape: Shape) -> int:
    """How many leaves a shape has."""
    return sum(1 for _ in leaf_shapes(shape)) if isinstance(shape, TupleShape) else 1


def leaf_offset(shape: TupleShape, element: int) -> int:
    """How many leaves come before an element of a tuple."""
    return sum(map(leaf_count, shape.elements[:element]))


def opaque_facts(shape: Shape) -> Facts:
    """What is known of a value of which only the shape is known."""
    return tuple(map(_type_bounds, (leaf for _, leaf in leaf_shapes(shape))))


def frame_of(module: Module, computation: Computation, arguments: Sequence[Facts]) -> Frame:
    """Look at a computation called with these arguments, and at all that it calls."""
    return _Analysis(module).frame(computation, tuple(arguments), 0)


class _Analysis:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[tuple[str, tuple[Facts, ...]], Frame] = {}

    def frame(self, computation: Computation, arguments: tuple[Facts, ...], depth: int) -> Frame:
        key = (computation.name, arguments)
        if key not in self._known:
            self._known[key] = self._look(computation, arguments, depth)
        return self._known[key]

    def _look(self, computation: Computation, arguments: tuple[Facts, ...], depth: int) -> Frame:
        frame = Frame(computation, {}, {})
        for instruction in computation:
            operands = [frame.facts[name] for name in instruction.operands if name in frame.facts]
            if len(operands) < len(instruction.operands):
                found = opaque_facts(instruction.shape)
            elif instruction.opcode == "parameter":
                found = arguments[instruction.attributes.number]
            else:
                callees = () if depth >= _DEEPEST_CALL else self._callees(instruction, operands, depth)
                if callees:
                    frame.callees[instruction.name] = callees
                found = self._facts(computation, instruction, operands, callees)
            if len(found) != leaf_count(instruction.shape):
                found = opaque_facts(instruction.shape)
            frame.facts[instruction.name] = found
        return frame

    def _callees(self, instruction: Instruction, operands: list[Facts], depth: int) -> tuple[Frame, ...]:
        """The frames of the computations that an instruction of control flow calls."""
        attributes = instruction.attributes
        match instruction.opcode:
            case "call":
                calls = [(attributes.to_apply, tuple(operands))]
            case "fusion" | "async-start":
                calls = [(attributes.calls, tuple(operands))]
            case "conditional":
                calls = [(name, (operands[i + 1],)) for i, name in enumerate(attributes.branches)]
            case "while":
                carried = self._invariants(attributes.body, operands[0])
                calls = [(attributes.condition, (carried,)), (attributes.body, (carried,))]
            case _:
                return ()
        return tuple(self.frame(self._module.by_name[name], arguments, depth + 1) for name, arguments in calls)

    def _invariants(self, body_name: str, initial: Facts) -> Facts:
        """What is known of a loop's carried value in every iteration: only what the body hands through unchanged."""
        body = self._module.by_name[body_name]
        shape = body.parameters[0].shape
        if not isinstance(shape, TupleShape) or body.root.opcode != "tuple":
            return opaque_facts(shape)
        carried: list[Fact] = []
        for number, element in enumerate(body.operands_of(body.root)):
            offset = leaf_offset(shape, number)
            handed_on = (
                element.opcode == "get-tuple-element"
                and element.attributes.index == number
                and element.operands[0] == body.parameters[0].name
            )
            count = leaf_count(element.shape)
            carried += initial[offset : offset + count] if handed_on else opaque_facts(element.shape)
        return tuple(carried)

    def _facts(
        self, computation: Computation, instruction: Instruction, operands: list[Facts], callees: tuple[Frame, ...]
    ) -> Facts:
        opcode, shape = instruction.opcode, instruction.shape
        if opcode in ("call", "fusion") and callees:
            return callees[0].facts[callees[0].computation.root_name]
        if opcode == "tuple":
            return tuple(fact for operand in operands for fact in operand)
        if opcode == "get-tuple-element":
            tuple_shape = computation.by_name[instruction.operands[0]].shape
            if not isinstance(tuple_shape, TupleShape):
                return ()
            offset = leaf_offset(tuple_shape, instruction.attributes.index)
            return operands[0][offset : offset + leaf_count(shape)]
        if opcode == "reduce":
            return _reduce_facts(instruction, operands, self._module)
        if not isinstance(shape, ArrayShape):
            return opaque_facts(shape)
        if opcode in MOVEMENT:
            return (_moved(instruction, operands, computation),)
        rule = _RULES.get(opcode)
        if rule is None or any(len(operand) != 1 for operand in operands):
            return opaque_facts(shape)
        return (_within_type(rule(instruction, *(operand[0] for operand in operands)), shape),)


def _moved(instruction: Instruction, operands: list[Facts], computation: Computation) -> Fact:
    """The hull of the operands whose elements an instruction moves."""
    shape = instruction.shape
    assert isinstance(shape, ArrayShape)
    sources = [operands[i] for i in MOVEMENT[instruction.opcode] or range(len(operands)) if i < len(operands)]
    if not sources or any(len(source) != 1 for source in sources):
        return _type_bounds(shape)
    first = computation.by_name[instruction.operands[0]].shape
    if instruction.opcode == "bitcast" and isinstance(first, ArrayShape) and first.element_type != shape.element_type:
        return _type_bounds(shape)
    low = min(source[0].low for source in sources)
    high = max(source[0].high for source in sources)
    return _within_type(Fact(low, high, all(source[0].is_parameter for source in sources)), shape)


def _type_bounds(shape: Any) -> Fact:
    """What the element type alone says."""
    element_type = shape.element_type if isinstance(shape, ArrayShape) else None
    if element_type is None or not (element_type.is_integral or element_type.kind is Kind.PRED):
        return UNKNOWN
    if element_type.kind is Kind.PRED:
        return Fact(0, 1)
    bits = element_type.bits
    return Fact(0, 2**bits - 1) if element_type.kind is Kind.UNSIGNED else Fact(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _within_type(fact: Fact, shape: ArrayShape) -> Fact:
    """The fact, or what the type says where integers may have wrapped or nothing is known."""
    if math.isnan(fact.low) or math.isnan(fact.high):
        return _type_bounds(shape)
    if shape.element_type.is_integral:
        bounds = _type_bounds(shape)
        if fact.low < bounds.low or fact.high > bounds.high:
            return attrs.evolve(bounds, is_parameter=fact.is_parameter)
        return Fact(math.ceil(fact.low), math.floor(fact.high), fact.is_parameter)
    return fact


def _reduce_facts(instruction: Instruction, operands: list[Facts], module: Module) -> Facts:
    """A sum or product of what is never negative is never negative; an extremum lies where the operands do."""
    kind = recognise(module.by_name[instruction.attributes.to_apply])
    if len(operands) != 2 or kind is None or not isinstance(instruction.shape, ArrayShape):
        return opaque_facts(instruction.shape)
    (operand,), (initial,) = operands
    if kind in ("maximum", "minimum", "and", "or"):
        return (_within_type(Fact(min(operand.low, initial.low), max(operand.high, initial.high)), instruction.shape),)
    if kind in ("add", "multiply") and operand.low >= 0 and initial.low >= 0:
        return (_within_type(Fact(0, INFINITY), instruction.shape),)
    return opaque_facts(instruction.shape)


def _constant(instruction: Instruction) -> Fact:
    literal: Literal = instruction.attributes.literal
    array = literal.value
    if not isinstance(array, np.ndarray) or not array.size or array.dtype.kind == "c":
        return Fact(math.nan, math.nan)
    if array.dtype.isbuiltin != 1 or array.dtype == np.float16:
        array = array.astype(np.float32)
    return Fact(array.min().item() + 0, array.max().item() + 0)


def _iota(instruction: Instruction) -> Fact:
    shape = instruction.shape
    assert isinstance(shape, ArrayShape)
    size = shape.dimensions[instruction.attributes.iota_dimension] if shape.dimensions else 0
    return Fact(0, max(0, size - 1))


def _multiply(instruction: Instruction, x: Fact, y: Fact) -> Fact:
    corners = [0.0 if a == 0 or b == 0 else a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    is_square = instruction.operands[0] == instruction.operands[1]
    return Fact(max(0, min(corners)) if is_square else min(corners), max(corners))


def _divide(_: Instruction, x: Fact, y: Fact) -> Fact:
    if y.low > 0 and x.low >= 0:
        return Fact(0, x.high / y.low)
    return Fact(math.nan, math.nan)


def _power(_: Instruction, x: Fact, y: Fact) -> Fact:
    if x.low >= 0:
        return Fact(0, 1) if x.high <= 1 and y.low >= 0 else Fact(0, INFINITY)
    return Fact(0, INFINITY) if y.low == y.high and y.low % 2 == 0 else Fact(math.nan, math.nan)


def _absolute(_: Instruction, x: Fact) -> Fact:
    return Fact(0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high)), max(abs(x.low), abs(x.high)))


def _remainder(_: Instruction, x: Fact, y: Fact) -> Fact:
    if x.low >= 0 and y.low > 0:
        return Fact(0, min(x.high, y.high))
    return Fact(math.nan, math.nan)


def _always(low: float, high: float) -> Callable[..., Fact]:
    return lambda _instruction, *_operands: Fact(low, high)


_RULES: dict[str, Callable[..., Fact]] = {
    "constant": _constant,
    "iota": _iota,
    "add": lambda _, x, y: Fact(x.low + y.low, x.high + y.high),
    "subtract": lambda _, x, y: Fact(x.low - y.high, x.high - y.low),
    "multiply": _multiply,
    "divide": _divide,
    "maximum": lambda _, x, y: Fact(max(x.low, y.low), max(x.high, y.high)),
    "minimum": lambda _, x, y: Fact(min(x.low, y.low), min(x.high, y.high)),
    "clamp": lambda _, low, x, high: Fact(min(max(x.low, low.low), high.low), min(max(x.high, low.high), high.high)),
    "negate": lambda _, x: Fact(-x.high, -x.low),
    "abs": _absolute,
    "remainder": _remainder,
    "power": _power,
    "floor": lambda _, x: Fact(x.low - 1, x.high),
    "ceil": lambda _, x: Fact(x.low, x.high + 1),
    "compare": _always(0, 1),
    "is-finite": _always(0, 1),
    "logistic": _always(0, 1),
    "exponential": _always(0, INFINITY),
    "sqrt": _always(0, INFINITY),
    "rsqrt": _always(0, INFINITY),
    "tanh": _always(-1, 1),
    "erf": _always(-1, 1),
    "sine": _always(-1, 1),
    "cosine": _always(-1, 1),
    "sign": _always(-1, 1),
    "partition-id": _always(0, 1 << 20),
    "replica-id": _always(0, 1 << 20),
}
