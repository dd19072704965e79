"""Bounds of values: those that users give for parameters, and those known before a module runs.

This is interval arithmetic over the IR, forward from the parameters, with the rules that are traits of opcodes; a
result without a rule is bounded by its element type. Each call of a computation is analysed with the bounds of its
arguments, so a scalar constant that is passed to a fusion stays known there.

Rules of elementwise operations, applied to each column of their operands by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.core.arguments import parameter_numbers, wrong
from hloexec.core.dtypes import ElementType, Kind, largest_number, part_type
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, TupleShape, flat_shapes
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.inputs.distributions import random_array
from hloexec.errors import InputError
from hloexec.ops.attributes import computation_names
from hloexec.ops.intervals import ANYTHING, UNBOUNDED, UNKNOWN, Bounds, Columns, Demand, Demanded, Use
from hloexec.ops.registry import Role, is_elementwise, role_of, traits_of


@frozen
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    what: str
    """What errors call it."""

    def random_array(self, element_type: ElementType, dimensions: tuple[int, ...], key: tuple[int, int]) -> Array:
        """Elements sampled uniformly from the range; InputError if the type has none in it."""
        if element_type.kind is Kind.PRED:
            raise InputError(f"{self.what} is for numbers, but the parameter holds preds")
        if element_type.is_integral:
            return random_array(element_type, dimensions, Demand(*self.integers(element_type)), "uniform", key)
        low, high = self.floats(element_type)
        factor = 1 if math.isfinite(high - low) else 2
        array = random_array(element_type, dimensions, Demand(low / factor, high / factor), "uniform", key)
        parts = array.reshape(-1).view(part_type(element_type).storage)
        parts *= parts.dtype.type(factor)
        # A number that lies next to an end may have been rounded to beyond it.
        np.clip(parts, parts.dtype.type(low), parts.dtype.type(high), out=parts)
        return array

    def integers(self, element_type: ElementType) -> tuple[int, int]:
        """The least and the largest number of the type within the range; InputError where it has none."""
        lowest, highest = element_type.integer_range
        low, high = math.ceil(self.low), math.floor(self.high)
        if low > high:
            raise InputError(f"{self.what} holds no number of type {element_type.name}")
        self._require(lowest <= low and high <= highest, element_type)
        return low, high

    def floats(self, element_type: ElementType) -> tuple[float, float]:
        """The least and the largest number of the type within the range; InputError where it has none."""
        kind = part_type(element_type)
        largest = largest_number(kind)
        self._require(-largest <= self.low and self.high <= largest, element_type)
        low, high = float(self.low), float(self.high)
        # Large integers may have been rounded.
        low = math.nextafter(low, math.inf) if low < self.low else low
        high = math.nextafter(high, -math.inf) if high > self.high else high
        numbers = _numbers_near(kind, (low, high))
        numbers = numbers[(numbers >= low) & (numbers <= high)]
        if not numbers.size:
            raise InputError(f"{self.what} holds no number of type {element_type.name}")
        return float(numbers.min()), float(numbers.max())

    def _require(self, holds: bool, element_type: ElementType) -> None:
        if not holds:
            raise InputError(f"{self.what} reaches beyond the numbers of type {element_type.name}")


def _numbers_near(kind: ElementType, ends: tuple[float, float]) -> Array:
    """Numbers of a floating type, those next to `ends` among them: all of a narrow type."""
    with np.errstate(all="ignore"):
        if kind.bits <= 16:
            return np.arange(1 << kind.bits).astype(f"u{-(-kind.bits // 8)}").view(kind.storage).astype(np.float64)
        near = np.array(ends, kind.storage)
        return np.concatenate([near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf)], dtype=np.float64)


def ranges_of(computation: Computation, ranges: object) -> dict[int, Range]:
    """The ranges by parameter; `ranges` maps parameters' numbers or names to pairs of numbers."""
    if not isinstance(ranges, Mapping):
        raise wrong("ranges", "a mapping from parameters to pairs of numbers", ranges)
    ranges_by_number: dict[int, Range] = {}
    for number, pair in zip(parameter_numbers(computation, ranges), ranges.values(), strict=True):
        if number in ranges_by_number:
            raise InputError(f"parameter {number} is given two ranges")
        ranges_by_number[number] = _range(f"the range of parameter {number}", pair)
    return ranges_by_number


def _range(subject: str, pair: object) -> Range:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(map(_is_number, pair)):
        raise wrong(subject, "a pair of finite numbers", pair)
    low, high = pair
    if low > high:
        raise InputError(f"{subject} must not end below its start, but is {low} to {high}")
    return Range(low, high, f"{subject}, {low} to {high},")


def _is_number(value: object) -> bool:
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    return math.isfinite(value)


def layout_of(use: Use, demand: Demand = ANYTHING) -> Columns | None:
    """The columns that a demand on an elementwise result tells apart, or else the bounds of an operand."""
    candidates = (demand.columns, *(bounds.columns for bounds in use.bounds))
    return next((columns for columns in candidates if columns is not None), None)


def by_column(use: Use, demand: Demand = ANYTHING) -> Iterator[Use]:
    """The use as each column of the operands has it."""
    layout = layout_of(use, demand)
    for number in range(0 if layout is None else layout.count):
        yield attrs.evolve(use, bounds=tuple(_column(bounds, layout, number) for bounds in use.bounds))


def _column(bounds: Bounds, layout: Columns | None, number: int) -> Bounds:
    own = bounds.columns
    if own is None or layout is None or (own.stride, own.count) != (layout.stride, layout.count):
        return attrs.evolve(bounds, columns=None)
    low, high = own.ends[number]
    return Bounds(low, high, bounds.is_parameter)


def on_columns(use: Use, demand: Demand, rule: Callable[[Use, Demand], Demanded]) -> Demanded:
    """What a rule asks of the operands of an elementwise operation, of each column by itself."""
    layout = layout_of(use, demand)
    if layout is None:
        yield from rule(use, demand)
        return
    ends = demand.ends_in(layout)
    asked_by_column: list[dict[int, Demand]] = []
    for part, (low, high) in zip(by_column(use, demand), ends, strict=True):
        asked: dict[int, Demand] = {}
        for number, wanted in rule(part, attrs.evolve(demand, low=low, high=high, columns=None)):
            asked[number] = asked[number].merge(wanted) if number in asked else wanted
        asked_by_column.append(asked)
    for number in sorted({number for asked in asked_by_column for number in asked}):
        all_asked = [asked.get(number, ANYTHING) for asked in asked_by_column]
        first = next(asked[number] for asked in asked_by_column if number in asked)
        choices = (
            None
            if any(column_demand.choices is None for column_demand in all_asked)
            else max(column_demand.choices or 0 for column_demand in all_asked)
        )
        pairs = tuple((column_demand.low, column_demand.high) for column_demand in all_asked)
        yield number, attrs.evolve(first, choices=choices).with_columns(Columns(layout.stride, pairs))


_DEEPEST_CALL = 60

LeafBounds: TypeAlias = tuple[Bounds, ...]
"""One per leaf of a shape."""


@frozen(eq=False)
class Scope:
    """A computation with what is known of its values when it is called with certain arguments."""

    computation: Computation
    bounds: dict[str, LeafBounds]
    callees: dict[str, tuple[Scope, ...]]


def leaf_count(shape: Shape) -> int:
    """How many leaves a shape has."""
    return shape.leaf_offsets[-1] if isinstance(shape, TupleShape) else 1


def opaque_bounds(shape: Shape) -> LeafBounds:
    """What is known of a value of which only the shape is known."""
    return tuple(map(_type_bounds, flat_shapes(shape)))


def frame_of(module: Module, computation: Computation, arguments: Sequence[LeafBounds]) -> Scope:
    """Look at a computation called with these arguments, and at all that it calls."""
    return _Analysis(module).frame(computation, tuple(arguments), 0)


def _elsewhere(leaf_bounds: LeafBounds) -> LeafBounds:
    """The bounds in another computation, where names mean something else."""
    if all(bounds.sign_of is None for bounds in leaf_bounds):
        return leaf_bounds
    return tuple(attrs.evolve(bounds, sign_of=None) for bounds in leaf_bounds)


class _Analysis:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[tuple[str, tuple[LeafBounds, ...]], Scope] = {}

    def frame(self, computation: Computation, arguments: tuple[LeafBounds, ...], depth: int) -> Scope:
        arguments = tuple(map(_elsewhere, arguments))
        key = (computation.name, arguments)
        if key not in self._known:
            self._known[key] = self._look(computation, arguments, depth)
        return self._known[key]

    def _look(self, computation: Computation, arguments: tuple[LeafBounds, ...], depth: int) -> Scope:
        frame = Scope(computation, {}, {})
        for instruction in computation:
            operands = [frame.bounds[name] for name in instruction.operands if name in frame.bounds]
            if len(operands) < len(instruction.operands):
                leaf_bounds = opaque_bounds(instruction.shape)
            elif role_of(instruction) is Role.PARAMETER:
                leaf_bounds = arguments[instruction.attributes.number]
            else:
                callees = () if depth >= _DEEPEST_CALL else self._callees(instruction, operands, depth)
                if callees:
                    frame.callees[instruction.name] = callees
                leaf_bounds = self._bounds(computation, instruction, operands, callees)
            if len(leaf_bounds) != leaf_count(instruction.shape):
                leaf_bounds = opaque_bounds(instruction.shape)
            frame.bounds[instruction.name] = leaf_bounds
        return frame

    def _callees(self, instruction: Instruction, operands: list[LeafBounds], depth: int) -> tuple[Scope, ...]:
        """The frames of the computations that an instruction of control flow calls."""
        attributes = instruction.attributes
        names = tuple(computation_names(attributes))
        match role_of(instruction):
            case Role.CALL | Role.ASYNC_START:
                # What is started may be given further operands later.
                late = self._module.by_name[names[0]].parameters[len(operands) :]
                calls = [(names[0], (*operands, *(opaque_bounds(parameter.shape) for parameter in late)))]
            case Role.CONDITIONAL:
                calls = [(name, (operands[number],)) for number, name in enumerate(names, 1)]
            case Role.WHILE:
                carried = self._invariants(attributes.body, operands[0])
                calls = [(attributes.condition, (carried,)), (attributes.body, (carried,))]
            case _:
                return ()
        return tuple(self.frame(self._module.by_name[name], arguments, depth + 1) for name, arguments in calls)

    def _invariants(self, body_name: str, initial: LeafBounds) -> LeafBounds:
        """What is known of a loop's carried value in every iteration: only what the body hands through unchanged."""
        body = self._module.by_name[body_name]
        shape = body.parameters[0].shape
        if not isinstance(shape, TupleShape) or role_of(body.root) is not Role.TUPLE:
            return opaque_bounds(shape)
        carried: list[Bounds] = []
        for number, element in enumerate(body.operands_of(body.root)):
            offset = shape.leaf_offsets[number]
            handed_on = (
                role_of(element) is Role.GET_TUPLE_ELEMENT
                and element.attributes.index == number
                and element.operands[0] == body.parameters[0].name
            )
            count = leaf_count(element.shape)
            carried += initial[offset : offset + count] if handed_on else opaque_bounds(element.shape)
        return tuple(carried)

    def _bounds(
        self, computation: Computation, instruction: Instruction, operands: list[LeafBounds], callees: tuple[Scope, ...]
    ) -> LeafBounds:
        role, shape = role_of(instruction), instruction.shape
        if role is Role.CALL and callees:
            return _elsewhere(callees[0].bounds[callees[0].computation.root_name])
        if role is Role.TUPLE:
            return tuple(bounds for operand in operands for bounds in operand)
        if role is Role.GET_TUPLE_ELEMENT:
            tuple_shape = computation.by_name[instruction.operands[0]].shape
            if not isinstance(tuple_shape, TupleShape):
                return ()
            offset = tuple_shape.leaf_offsets[instruction.attributes.index]
            return operands[0][offset : offset + leaf_count(shape)]
        shapes = tuple(operand.shape for operand in computation.operands_of(instruction))
        arrays = tuple(operand for operand in shapes if isinstance(operand, ArrayShape))
        if not isinstance(shape, ArrayShape) or not shape.is_array or len(arrays) < len(shapes):
            return opaque_bounds(shape)
        use = Use(instruction, arrays, tuple(bounds for (bounds,) in operands), self._module)
        return (_within_type(_with_columns(use, _result_bounds(use)), shape),)


def _result_bounds(use: Use) -> Bounds:
    """By the rule of the operation, or where it moves elements, the hull of their bounds."""
    traits = traits_of(use.instruction)
    if traits.bounds is not None:
        return traits.bounds(use, *use.bounds)
    moved = traits.moved_operands(len(use.shapes))
    if not moved or any(use.shapes[number].element_type != use.shape.element_type for number in moved):
        return UNKNOWN
    low = min(use.bounds[number].low for number in moved)
    high = max(use.bounds[number].high for number in moved)
    if traits.fills or any(operand.dynamic_dimensions for operand in use.shapes):
        low, high = min(low, 0), max(high, 0)
    return Bounds(low, high, all(use.bounds[number].is_parameter for number in moved))


def _with_columns(use: Use, found: Bounds) -> Bounds:
    """The bounds of a result with those of its columns, where those of operands are known."""
    rule, columns = traits_of(use.instruction).columns, None
    if rule is not None:
        columns = rule(use)
    elif all(bounds.columns is None for bounds in use.bounds):
        return found
    elif is_elementwise(use.instruction):
        parts = [_result_bounds(part) for part in by_column(use)]
        columns = (
            Columns(layout.stride, tuple((column_bounds.low, column_bounds.high) for column_bounds in parts))
            if (layout := layout_of(use))
            else None
        )
    return found if columns is None else attrs.evolve(found, columns=columns)


def _type_bounds(shape: object) -> Bounds:
    """What the element type alone says."""
    if not isinstance(shape, ArrayShape):
        return UNBOUNDED
    if shape.element_type.is_integral:
        return Bounds(*shape.element_type.integer_range)
    return Bounds(0, 1) if shape.element_type.kind is Kind.PRED else UNBOUNDED


def _within_type(bounds: Bounds, shape: ArrayShape) -> Bounds:
    """The bounds, or those of the type where integers may have wrapped or nothing is known.

    What is beyond the largest number of a type becomes infinite or, without infinities, that number, or NaN. Bounds
    that are integers are exact, of any size.
    """
    limits = _type_bounds(shape)
    if any(bound != bound for bound in (bounds.low, bounds.high)):
        return limits
    if shape.element_type.is_floating:
        largest = largest_number(shape.element_type)
        beyond = math.inf if shape.element_type.has_inf else largest
        low, high = (
            bound if -largest <= bound <= largest else beyond if bound > 0 else -beyond
            for bound in (bounds.low, bounds.high)
        )
        return Bounds(low, high, bounds.is_parameter, bounds.columns, bounds.sign_of)
    if shape.element_type.has_inf:
        return bounds
    if bounds.low < limits.low or bounds.high > limits.high:
        return attrs.evolve(limits, is_parameter=bounds.is_parameter)
    columns = bounds.columns
    if columns is not None and not all(limits.low <= low <= high <= limits.high for low, high in columns.ends):
        columns = None
    return Bounds(math.ceil(bounds.low), math.floor(bounds.high), bounds.is_parameter, columns)
