"""Propagating a module's requirements on values back to its parameters.

The backward counterpart of `inputs.bounds`: every demand is propagated from the instruction that makes it,
through data movement, arithmetic and tuples, into and out of called computations, with the rules that are traits of
opcodes. If two uses contradict each other, the later one in the program wins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import attrs

from hloexec.core.dtypes import element_type
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, TupleShape, flat_shapes
from hloexec.engine.inputs.bounds import Scope, leaf_count, on_columns
from hloexec.ops.costs import contraction_of
from hloexec.ops.intervals import ANYTHING, WHOLE, Bounds, Demand, Demanded, Use
from hloexec.ops.registry import Role, forwarded_names, is_elementwise, role_of, traits_of
from hloexec.ops.traits import Index

_SIZE = ArrayShape(element_type("s32"))

Demands: TypeAlias = tuple[Demand, ...]
"""One demand per leaf of a shape."""


def parameter_demands(module: Module, frame: Scope) -> tuple[Demands, ...]:
    """The demands on the leaves of each parameter of a computation."""
    anything = (ANYTHING,) * leaf_count(frame.computation.result_shape)
    return _Tracing(module).parameters(frame, anything, is_condition=False)


class _Tracing:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[tuple[int, Demands, bool], tuple[Demands, ...]] = {}

    def parameters(self, frame: Scope, result: Demands, *, is_condition: bool) -> tuple[Demands, ...]:
        """The demands on a computation's parameters, given those on its result."""
        key = (id(frame), result, is_condition)
        if key not in self._known:
            demands = _Demanded(frame, is_condition)
            demands.add(frame.computation.root, 0, result)
            for instruction in reversed(frame.computation.instructions):
                self._trace(instruction, demands)
            self._known[key] = tuple(demands.of(parameter) for parameter in frame.computation.parameters)
        return self._known[key]

    def _trace(self, instruction: Instruction, demanded: _Demanded) -> None:
        """Hand the demands on an instruction's result, and those it makes itself, on to its operands."""
        computation = demanded.frame.computation
        if not instruction.operands or any(name not in computation.by_name for name in instruction.operands):
            return
        operands = computation.operands_of(instruction)
        demands = demanded.of(instruction)
        if instruction.name in demanded.frame.callees:
            self._trace_call(instruction, operands, demands, demanded)
        if not _hand_over(instruction, operands, demands, demanded):
            self._apply_rules(instruction, operands, demands, demanded)

    def _apply_rules(
        self, instruction: Instruction, operands: Sequence[Instruction], demands: Demands, demanded: _Demanded
    ) -> None:
        shapes = tuple(operand.shape for operand in operands if isinstance(operand.shape, ArrayShape))
        if len(shapes) != len(operands):
            return
        bounds = tuple(demanded.frame.bounds[operand.name][0] for operand in operands)
        use = Use(instruction, shapes, bounds, self._module, demanded.is_condition, tuple(operands))
        traits = traits_of(instruction)
        made: list[tuple[int, Demand]] = []
        if len(demands) == 1 and demands[0] != ANYTHING:
            made += _asked_of_operands(use, demands[0])
            made += _choice_demands(use, demands[0])
            if demands[0].is_whole:
                made += [(number, WHOLE) for number, shape in enumerate(shapes) if shape.dynamic_dimensions]
        if traits.demands is not None:
            made += _own_demands(use)
        made += _contraction_demands(use)
        made += _extent_demands(use, demanded.frame.computation)
        for number, demand in made:
            if number < len(operands):
                demanded.add(operands[number], 0, (demand,))

    def _trace_call(
        self, instruction: Instruction, operands: Sequence[Instruction], demands: Demands, demanded: _Demanded
    ) -> None:
        callees, is_condition = demanded.frame.callees[instruction.name], demanded.is_condition
        match role_of(instruction):
            case Role.WHILE:
                condition, body = callees
                demanded.add(operands[0], 0, self.parameters(condition, (ANYTHING,), is_condition=True)[0])
                demanded.add(operands[0], 0, self.parameters(body, demands, is_condition=is_condition)[0])
                demanded.add(operands[0], 0, demands)
                return
            case Role.CONDITIONAL:
                demanded.add(operands[0], 0, (Demand(0, len(callees) - 1, is_defined_beyond=True),))
                for branch, operand in zip(callees, operands[1:], strict=False):
                    demanded.add(operand, 0, self.parameters(branch, demands, is_condition=is_condition)[0])
                return
            case Role.ASYNC_START if isinstance(instruction.shape, TupleShape):
                offset = instruction.shape.leaf_offsets[1]
                demands = demands[offset : offset + leaf_count(callees[0].computation.result_shape)]
        wanted = self.parameters(callees[0], demands, is_condition=is_condition)
        for operand, demand in zip(operands, wanted, strict=False):
            demanded.add(operand, 0, demand)


class _Demanded:
    """The demands found so far on the values of one computation."""

    def __init__(self, frame: Scope, is_condition: bool) -> None:
        self.frame = frame
        self.is_condition = is_condition
        self._demands: dict[str, list[Demand]] = {}

    def of(self, instruction: Instruction) -> Demands:
        return tuple(self._demands.get(instruction.name) or (ANYTHING,) * leaf_count(instruction.shape))

    def add(self, instruction: Instruction, offset: int, demands: Demands) -> None:
        """Merge demands into those on the leaves from `offset` on."""
        leaf_demands = self._demands.setdefault(instruction.name, [ANYTHING] * leaf_count(instruction.shape))
        for i, demand in enumerate(demands[: len(leaf_demands) - offset], offset):
            merged = leaf_demands[i].merge(demand)
            if _meet_in_a_point(leaf_demands[i], demand) and _is_float(instruction.shape, i):
                merged = attrs.evolve(merged, low=leaf_demands[i].low, high=leaf_demands[i].high)
            leaf_demands[i] = merged


def _asked_of_operands(use: Use, demand: Demand) -> Demanded:
    """What a demand on the result asks of operands that are computed with or moved."""
    traits, plain = traits_of(use.instruction), demand.with_columns(None)
    is_in_place = is_elementwise(use.instruction)
    if (rule := traits.demands_for) is not None:
        asked = on_columns(use, demand, rule) if is_in_place else rule(use, plain)
        yield from ((number, _as_lenient(wanted, demand)) for number, wanted in asked)
    for number in traits.moved_operands(len(use.shapes)):
        if is_in_place:
            yield number, demand
        else:
            yield number, plain if traits.demand_on is None else traits.demand_on(use, number, demand)


def _own_demands(use: Use) -> Demanded:
    """What an instruction asks of its operands itself."""
    rule = traits_of(use.instruction).demands
    assert rule is not None
    if is_elementwise(use.instruction) and not any(_counts(bounds) for bounds in use.bounds):
        return on_columns(use, ANYTHING, lambda part, _: rule(part))
    return rule(use)


def _counts(bounds: Bounds) -> bool:
    """Whether the columns are the numbers 0, 1, 2, … of an iota."""
    return bounds.columns is not None and bounds.columns.ends == tuple((n, n) for n in range(bounds.columns.count))


def _extent_demands(use: Use, computation: Computation) -> Demanded:
    """Arrays of sizes that are known at run time, and that are combined element by element, are whole where their sizes
    may be unlike."""
    dynamic = [number for number, shape in enumerate(use.shapes) if shape.dynamic_dimensions]
    if not dynamic or len(use.shapes) < 2 or not is_elementwise(use.instruction):
        return []
    sources = [_sizes_of(computation, use.operands[number]) for number in dynamic]
    has_static = any(shape.rank and not shape.dynamic_dimensions for shape in use.shapes)
    is_like = not has_static and all(source == sources[0] for source in sources)
    return [] if is_like else [(number, WHOLE) for number in dynamic]


def _sizes_of(computation: Computation, instruction: Instruction) -> frozenset[str]:
    """The values that decide on the runtime sizes of a value: scalars that are given to it or to what it is made of as
    sizes, and what is of such sizes but not made of others."""
    names: set[str] = set()
    seen, waiting = {instruction.name}, [instruction]
    while waiting:
        one = waiting.pop()
        operands = computation.operands_of(one)
        dynamic = [
            operand
            for operand in operands
            if isinstance(operand.shape, ArrayShape) and operand.shape.dynamic_dimensions
        ]
        sized = is_elementwise(one) or traits_of(one).moves is not None
        scalars = [] if is_elementwise(one) else [operand.name for operand in operands if operand.shape == _SIZE]
        names.update(scalars if sized else ())
        if not scalars and not (sized and dynamic):
            names.add(one.name)
        fresh = [operand for operand in dynamic if sized and operand.name not in seen]
        seen.update(operand.name for operand in fresh)
        waiting += fresh
    return frozenset(names)


def _as_lenient(wanted: Demand, demand: Demand) -> Demand:
    """What a demand on a result asks of an operand: no more than it asks itself."""
    return attrs.evolve(wanted, is_defined_beyond=True) if demand.is_defined_beyond and wanted.has_bounds else wanted


def _choice_demands(use: Use, demand: Demand) -> Demanded:
    """What is as few unlike numbers as is asked of an elementwise result: what that is the negative of, or what a mask
    of 0 or 1 is added to, subtracted from or multiplied by, be that known or not."""
    if demand.choices is None or not is_elementwise(use.instruction):
        return
    traits = traits_of(use.instruction)
    combines = traits.commutes and not traits.cancels
    for number in range(len(use.bounds)):
        others = use.bounds[:number] + use.bounds[number + 1 :]
        if combines or all(other.low == other.high and abs(other.low) <= 1 for other in others):
            yield number, Demand(choices=demand.choices)


def _meet_in_a_point(one: Demand, other: Demand) -> bool:
    """Whether ranges of more than one number have one in common: a contradiction of floats, which are to be apart from
    the ends, as positive numbers and those below 0 are."""
    return max(one.low, other.low) == min(one.high, other.high) and one.low < one.high and other.low < other.high


def _is_float(shape: Shape, leaf: int) -> bool:
    leaf_shape = flat_shapes(shape)[leaf]
    return isinstance(leaf_shape, ArrayShape) and leaf_shape.element_type.is_inexact


def _distribute(demands: Demands, operands: Sequence[Instruction], demanded: _Demanded) -> None:
    """Hand demands on to operands whose leaves, one operand after the other, they begin with."""
    if sum(leaf_count(operand.shape) for operand in operands) > len(demands):
        return
    offset = 0
    for operand in operands:
        count = leaf_count(operand.shape)
        demanded.add(operand, 0, demands[offset : offset + count])
        offset += count


def _hand_over(
    instruction: Instruction, operands: Sequence[Instruction], demands: Demands, demanded: _Demanded
) -> bool:
    """Trace through an instruction that forwards its operands, or parts of them; False for anything else."""
    traits = traits_of(instruction)
    match role_of(instruction):
        case Role.GET_TUPLE_ELEMENT:
            demanded.add(operands[0], _leaf_at(operands[0].shape, (instruction.attributes.index,)), demands)
        case Role.PART:
            demanded.add(operands[0], _leaf_at(operands[0].shape, traits.part), demands)
        case Role.FORWARD:
            demanded.add(operands[0], 0, demands)
        case Role.CUSTOM_CALL if names := forwarded_names(demanded.frame.computation, instruction):
            _distribute(demands, [demanded.frame.computation.by_name[name] for name in names], demanded)
        case Role.COPY_START:
            demanded.add(operands[0], 0, demands[: leaf_count(operands[0].shape)])
        case Role.ASYNC_START:
            pass  # traced through the computation that it calls
        case _ if traits.begins and isinstance(instruction.shape, TupleShape):
            first, last = instruction.shape.leaf_offsets[1:3]
            _distribute(tuple(demand.with_columns(None) for demand in demands[first:last]), operands, demanded)
        case Role.TUPLE:
            _distribute(demands, operands, demanded)
        case _ if traits.is_leafwise:
            _distribute(tuple(demand.with_columns(None) for demand in demands), operands, demanded)
        case _:
            return False
    return True


def _leaf_at(shape: Shape, index: Index) -> int:
    """How many leaves of a shape come before those of its part at an index."""
    offset = 0
    for number in index:
        if not isinstance(shape, TupleShape) or number >= len(shape.elements):
            return leaf_count(shape) + offset
        offset += shape.leaf_offsets[number]
        shape = shape.elements[number]
    return offset


def _contraction_demands(use: Use) -> Demanded:
    """A sum of k products of numbers of size 1 grows to √k; values that come from parameters are scaled to
    compensate."""
    cost = contraction_of(use.instruction, use.shapes)
    if cost is None or cost.contracted_size < 2:
        return []
    both = use.bounds[0].is_parameter and use.bounds[1].is_parameter
    root = math.sqrt(cost.contracted_size)
    scaled = Demand(scale=1 / (math.sqrt(root) if both else root))
    return [(0, scaled), (1, scaled)]
