"""What instructions need of their operands: the range the elements must lie in, and how large they may be.

An index of a gather must be in bounds, what is under a square root must not be negative, the elements of a matrix
should be the smaller the longer the sums are. Two tables say so: `OWN`, the demands that an instruction makes itself,
and `BACKWARD`, what a demand on its result asks of its operands. `hloexec.inputs.tracing` follows them to the
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs

from hloexec.costs import contraction_of
from hloexec.inputs.facts import Fact
from hloexec.ir import ArrayShape, Instruction, Module
from hloexec.ops.reducers import recognise

__all__ = ["ANYTHING", "BACKWARD", "OWN", "Demand", "Use"]

INFINITY = math.inf
_MOST_TRIPS = 8
_LARGEST_DIVISOR = 99


@attrs.frozen(cache_hash=True)
class Demand:
    """Elements should lie in [low, high]; where nothing bounds them, floats should have the given standard deviation.

    `is_offset` marks what is added to something so that the sum is positive; where it is a scalar, it is the epsilon of
    a normalization or an optimizer.
    """

    low: float = -INFINITY
    high: float = INFINITY
    scale: float = 1.0
    is_offset: bool = False

    def merge(self, other: Demand) -> Demand:
        """Both demands; the bounds of this one alone where they contradict each other."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low > high:
            low, high = self.low, self.high
        return Demand(low, high, min(self.scale, other.scale), self.is_offset or other.is_offset)


ANYTHING = Demand()
POSITIVE = Demand(low=0)


@attrs.frozen
class Use:
    """An instruction as the rules see it: operands that are arrays, and what is known of them."""

    instruction: Instruction
    shapes: tuple[ArrayShape, ...]
    facts: tuple[Fact, ...]
    is_condition: bool
    module: Module

    @property
    def shape(self) -> Any:
        return self.instruction.shape

    @property
    def attributes(self) -> Any:
        return self.instruction.attributes


Made: TypeAlias = Iterable[tuple[int, Demand]]


# The demands that instructions make themselves, whatever happens to their results.


def _gather(use: Use) -> Made:
    attributes = use.attributes
    room = [use.shapes[0].dimensions[d] - attributes.slice_sizes[d] for d in attributes.start_index_map]
    yield 1, _index_within(room)


def _scatter(use: Use) -> Made:
    attributes = use.attributes
    count = len(use.shapes) // 2
    operand, updates = use.shapes[0], use.shapes[count + 1]
    skipped = {*attributes.inserted_window_dims, *attributes.input_batching_dims}
    window_dimensions = (d for d in range(operand.rank) if d not in skipped)
    sizes = {d: updates.dimensions[u] for d, u in zip(window_dimensions, attributes.update_window_dims, strict=False)}
    yield (
        count,
        _index_within([operand.dimensions[d] - sizes.get(d, 1) for d in attributes.scatter_dims_to_operand_dims]),
    )


def _dynamic_slice(use: Use) -> Made:
    yield from _starts(use, 1, use.attributes.dynamic_slice_sizes)


def _dynamic_update_slice(use: Use) -> Made:
    yield from _starts(use, 2, use.shapes[1].dimensions)


def _starts(use: Use, first: int, sizes: Sequence[int]) -> Made:
    room = [size - taken for size, taken in zip(use.shapes[0].dimensions, sizes, strict=False)]
    if len(use.shapes) == first + 1 and use.shapes[first].rank == 1:
        yield first, _index_within(room)
    else:
        yield from ((first + i, Demand(0, max(0, free))) for i, free in enumerate(room))


def _index_within(room: Sequence[int]) -> Demand:
    """Bounds of the elements of index vectors: the tightest of the dimensions in which there is a choice at all."""
    return Demand(0, min((free for free in room if free > 0), default=0))


def _divisor(use: Use) -> Made:
    yield 1, (Demand(1, _LARGEST_DIVISOR) if use.shapes[1].element_type.is_integral else POSITIVE)


def _power_base(use: Use) -> Made:
    exponent = use.facts[1]
    if not (exponent.low == exponent.high and float(exponent.low).is_integer()):
        yield 0, POSITIVE


def _shift(use: Use) -> Made:
    yield 1, Demand(0, use.shapes[0].element_type.bits - 1)


def _compared(use: Use) -> Made:
    """Integers compared with an iota lie in its range; what decides over a loop keeps it short."""
    if not use.shapes[0].element_type.is_integral:
        return
    for number, other in ((0, use.facts[1]), (1, use.facts[0])):
        if not use.is_condition:
            if other.low < other.high < 2**30 and other.low > -(2**30):
                yield number, Demand(other.low, other.high)
        elif other.low == other.high:
            counts_up = (use.attributes.direction in ("GT", "GE")) == (number == 1)
            few = -_MOST_TRIPS if counts_up else _MOST_TRIPS
            yield number, Demand(min(other.low, other.low + few), max(other.low, other.low + few))
        else:
            yield number, Demand(0, _MOST_TRIPS)


def _contracted(use: Use) -> Made:
    """A sum of k products of numbers of size 1 grows to √k; whatever comes from parameters makes up for it."""
    cost = contraction_of(use.instruction, use.shapes)
    if cost is None or cost.contracted_size < 2:
        return
    both = use.facts[0].is_parameter and use.facts[1].is_parameter
    root = math.sqrt(cost.contracted_size)
    scale = 1 / (math.sqrt(root) if both else root)
    yield from ((0, Demand(scale=scale)), (1, Demand(scale=scale)))


def _dimension_size(use: Use) -> Made:
    yield 1, Demand(0, use.shapes[0].dimensions[use.attributes.dimension])


def _must(number: int, demand: Demand) -> Callable[[Use], Made]:
    return lambda _: [(number, demand)]


OWN: dict[str, Callable[[Use], Made]] = {
    "gather": _gather,
    "scatter": _scatter,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "set-dimension-size": _dimension_size,
    "divide": _divisor,
    "remainder": _divisor,
    "power": _power_base,
    "sqrt": _must(0, POSITIVE),
    "rsqrt": _must(0, POSITIVE),
    "log": _must(0, POSITIVE),
    "log-plus-one": _must(0, Demand(low=-1)),
    "acos": _must(0, Demand(-1, 1)),
    "asin": _must(0, Demand(-1, 1)),
    "atanh": _must(0, Demand(-1, 1)),
    "acosh": _must(0, Demand(low=1)),
    "batch-norm-inference": _must(4, POSITIVE),
    "batch-norm-grad": _must(3, POSITIVE),
    "shift-left": _shift,
    "shift-right-logical": _shift,
    "shift-right-arithmetic": _shift,
    "compare": _compared,
    "dot": _contracted,
    "ragged-dot": _contracted,
    "convolution": _contracted,
    "custom-call": _contracted,
}


# What a demand on the result of an instruction asks of its operands.


def _same(use: Use, demand: Demand) -> Made:
    yield from ((i, Demand(demand.low, demand.high)) for i in range(len(use.shapes)))


def _add(use: Use, demand: Demand) -> Made:
    """x + y in [low, high]: where y is unknown, both must be as positive (or negative) as the sum."""
    for number, other in ((0, use.facts[1]), (1, use.facts[0])):
        if other.is_bounded:
            bounds = Demand(demand.low - other.low, demand.high - other.high)
        else:
            bounds = Demand(demand.low - max(other.low, 0), INFINITY) if demand.low == 0 else ANYTHING
        yield number, attrs.evolve(bounds, is_offset=demand.low == 0 and not other.is_bounded)


def _subtract(use: Use, demand: Demand) -> Made:
    x, y = use.facts
    if y.is_bounded:
        yield 0, Demand(demand.low + y.high, demand.high + y.low)
    if x.is_bounded:
        yield 1, Demand(x.high - demand.high, x.low - demand.low)


def _multiply(use: Use, demand: Demand) -> Made:
    if use.instruction.operands[0] == use.instruction.operands[1]:
        return
    for number, other in ((0, use.facts[1]), (1, use.facts[0])):
        if other.low == other.high and 0 < other.low < INFINITY:
            yield number, _scaled(demand, 1 / other.low)
        elif other.low >= 0 and 0 < other.high < INFINITY and demand.high < INFINITY and demand.low <= 0:
            yield number, Demand(0, demand.high / other.high)
        elif demand.low == 0:
            yield number, Demand(high=0) if other.high <= 0 else POSITIVE


def _divide(use: Use, demand: Demand) -> Made:
    x, y = use.facts
    if y.low == y.high and 0 < y.low < INFINITY:
        yield 0, _scaled(demand, y.low)
    elif demand.low == 0:
        yield 0, POSITIVE
        if x.low >= 0:
            yield 1, POSITIVE


def _scaled(demand: Demand, factor: float) -> Demand:
    return Demand(demand.low * factor, demand.high * factor)


def _numerator_only_positive(use: Use, demand: Demand) -> Made:
    if demand.low >= 0:
        yield 0, POSITIVE


def _reduced(use: Use, demand: Demand) -> Made:
    kind = recognise(use.module.by_name[use.attributes.to_apply])
    if len(use.shapes) == 2 and kind in ("maximum", "minimum"):
        yield 0, Demand(demand.low, demand.high)
    elif len(use.shapes) == 2 and kind == "add" and demand.low == 0:
        yield 0, POSITIVE


def _squared(use: Use, demand: Demand) -> Made:
    if demand.high >= 0 and demand.high < INFINITY:
        yield 0, Demand(0, demand.high * demand.high)


BACKWARD: dict[str, Callable[[Use, Demand], Made]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "remainder": _numerator_only_positive,
    "maximum": _same,
    "minimum": _same,
    "clamp": lambda _, demand: [(1, Demand(demand.low, demand.high))],
    "negate": lambda _, demand: [(0, Demand(-demand.high, -demand.low))],
    "floor": _same,
    "ceil": _same,
    "round-nearest-afz": _same,
    "round-nearest-even": _same,
    "reduce": _reduced,
    "reduce-window": _reduced,
    "sqrt": _squared,
    "cbrt": lambda _, demand: [(0, POSITIVE)] if demand.low == 0 else [],
    "power": lambda use, demand: [(0, Demand(0, 1)), (1, POSITIVE)] if demand.high == 1 else [],
    "scatter": lambda use, demand: [(0, demand), (len(use.shapes) - 1, demand)],
}
