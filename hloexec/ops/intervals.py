"""Interval arithmetic: the bounds of elements, and the bounds that instructions need.

`Bounds` are propagated forward: what is known of a result, given bounds of the operands. A `Demand` is propagated
backward: what an instruction needs of its operands so that its result is useful, such as an index within bounds or a
positive number under a root. Entries of opcodes refer to the rules here (`ops.traits`); rules that need
attributes are defined with the opcodes.

Parts of an array may be bounded each by itself: `Columns`. Rules of opcodes that move elements say which columns of an
operand become which columns of the result (`ops.movement.columns`).

A bounds rule returns `UNKNOWN` if it cannot tell, and need not know the element type: if integers may have wrapped, its
result is discarded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs

from hloexec.core.ir import ArrayShapes, Instruction, Module
from hloexec.core.structs import frozen

INFINITY = math.inf

Ends: TypeAlias = tuple[float, float]
"""The lowest and the highest number of a column."""

MOST_COLUMNS = 16
"""Arrays with more positions along a dimension are not told apart by position."""


@frozen(cache_hash=True)
class Columns:
    """The ends of each column, such as the components of index vectors, and how far they lie from each other.

    The element at place f in row-major order is in column `f // stride % count`. A reshape leaves that as it is.
    """

    stride: int
    ends: tuple[Ends, ...]

    @property
    def count(self) -> int:
        return len(self.ends)

    @property
    def width(self) -> int:
        """The elements of one row of columns; 0 for those of an array without elements."""
        return self.stride * self.count

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether an array of these sizes consists of whole rows of columns."""
        return self.width > 0 and math.prod(sizes) % self.width == 0

    def axis(self, sizes: Sequence[int]) -> int | None:
        """The dimension of an array of these sizes that tells the columns apart; None where it takes several."""
        for axis, size in enumerate(sizes):
            stride = stride_of(sizes, axis)
            if self.width and stride and self.stride % stride == 0 and stride * size % self.width == 0:
                return axis
        return None

    def moved(self, sizes: Sequence[int], to_sizes: Sequence[int], to_axis: int) -> Columns | None:
        """The same columns in an array of other sizes, where the dimension that tells them apart is `to_axis`."""
        axis = self.axis(sizes)
        if axis is None or sizes[axis] != to_sizes[to_axis]:
            return None
        return Columns(self.stride // stride_of(sizes, axis) * stride_of(to_sizes, to_axis), self.ends)

    def along(self, sizes: Sequence[int], axis: int) -> tuple[Ends, ...]:
        """The ends at each position of the dimension that tells the columns apart."""
        stride = stride_of(sizes, axis)
        return tuple(self.ends[place * stride // self.stride % self.count] for place in range(sizes[axis]))


def stride_of(sizes: Sequence[int], axis: int) -> int:
    """How many elements of a row-major array lie between neighbours along a dimension."""
    return math.prod(sizes[axis + 1 :])


def tightest(ends: Sequence[Ends]) -> Ends:
    """What lies within the ends of every column in which there is a choice; of the first where nothing does."""
    free = [pair for pair in ends if pair[0] < pair[1]] or ends
    low, high = max(pair[0] for pair in free), min(pair[1] for pair in free)
    return (low, high) if low <= high else free[0]


@frozen(cache_hash=True)
class Bounds:
    """All elements of an array lie in [low, high], or are NaN."""

    low: float = -INFINITY
    high: float = INFINITY
    is_parameter: bool = False
    """Whether the elements are moved out of parameters."""
    columns: Columns | None = None
    """What is known of each column of its own."""
    sign_of: str | None = None
    """An instruction of the same computation whose elements have no other sign than these, which may be 0, too."""

    @property
    def is_bounded(self) -> bool:
        return self.low > -INFINITY and self.high < INFINITY


UNBOUNDED = Bounds()
UNKNOWN = Bounds(math.nan, math.nan)
"""Whatever the element type allows."""


@frozen(cache_hash=True)
class Demand:
    """Elements should lie in [low, high]; where nothing bounds them, floats should have the given standard deviation.

    `is_offset` marks what is added to something so that the sum is positive; where it is a scalar, it is the epsilon of
    a normalization or an optimizer. Integers with `is_ascending` start at `low` along the last dimension and never
    decrease, as the starts of rows do. Beyond bounds with `is_defined_beyond`, the operation is defined, too, if
    rarely of use: it clamps an index, or leaves out what it should select. `choices` is what integers that nothing
    bounds should be at most, from 0 on: a mask, or the numbers of segments. `columns` says what is asked of each column
    of its own; `low` and `high` are then the bounds that suit all of them. With `is_whole`, dimensions of a size that
    is known at run time should be as large as they can be.
    """

    low: float = -INFINITY
    high: float = INFINITY
    scale: float = 1.0
    is_offset: bool = False
    is_ascending: bool = False
    is_defined_beyond: bool = False
    choices: int | None = None
    columns: Columns | None = None
    is_whole: bool = False

    @property
    def has_bounds(self) -> bool:
        return self.low > -INFINITY or self.high < INFINITY

    def merge(self, other: Demand) -> Demand:
        """Both demands; the bounds of this one alone where they contradict each other."""
        low, high = _both((self.low, self.high), (other.low, other.high))
        beyond = [demand.is_defined_beyond for demand in (self, other) if demand.has_bounds]
        choices = [demand.choices for demand in (self, other) if demand.choices is not None]
        merged = Demand(
            low,
            high,
            min(self.scale, other.scale),
            self.is_offset or other.is_offset,
            self.is_ascending or other.is_ascending,
            bool(beyond) and all(beyond),
            max(choices, default=None),
            is_whole=self.is_whole or other.is_whole,
        )
        layout = self.columns or other.columns
        if layout is None:
            return merged
        pairs = zip(self.ends_in(layout), other.ends_in(layout), strict=True)
        return merged.with_columns(Columns(layout.stride, tuple(_both(*pair) for pair in pairs)))

    def ends_in(self, layout: Columns) -> tuple[Ends, ...]:
        """What is asked of the columns of a layout; what suits all where this demand tells other columns apart."""
        own = self.columns
        if own is not None and (own.stride, own.count) == (layout.stride, layout.count):
            return own.ends
        return ((self.low, self.high),) * layout.count

    def with_columns(self, columns: Columns | None) -> Demand:
        """This demand, but with the bounds of these columns; with bounds that suit all for None."""
        if columns is None:
            return attrs.evolve(self, columns=None) if self.columns is not None else self
        low, high = tightest(columns.ends)
        kept = columns if len(set(columns.ends)) > 1 else None
        return attrs.evolve(self, low=low, high=high, columns=kept)

    def column(self, number: int) -> Demand:
        """What is asked of one column."""
        assert self.columns is not None
        low, high = self.columns.ends[number]
        return attrs.evolve(self, low=low, high=high, columns=None)

    def times(self, factor: float) -> Demand:
        """The demand on values that become these elements after division by a factor other than 0."""
        ends = self.low * factor, self.high * factor
        return Demand(min(ends), max(ends))


def _both(ours: Ends, theirs: Ends) -> Ends:
    """What lies between both pairs of ends; our ends where nothing does."""
    low, high = max(ours[0], theirs[0]), min(ours[1], theirs[1])
    return (low, high) if low <= high else ours


ANYTHING = Demand()
POSITIVE = Demand(low=0)
WHOLE = Demand(is_whole=True)
MASK = Demand(choices=1)
"""What keeps or drops something, if it is an integer."""


@frozen
class Use:
    """An instruction as rules see it: operands that are arrays, and the bounds of their elements."""

    instruction: Instruction
    shapes: ArrayShapes
    bounds: tuple[Bounds, ...]
    module: Module
    is_condition: bool = False
    """Whether the instruction decides how often a loop runs."""
    operands: tuple[Instruction, ...] = ()
    """Known where demands are asked for."""

    @property
    def shape(self) -> Any:
        return self.instruction.shape

    @property
    def attributes(self) -> Any:
        return self.instruction.attributes


Demanded: TypeAlias = Iterable[tuple[int, Demand]]
"""Demands, each with the number of the operand."""
BoundsRule: TypeAlias = Callable[..., Bounds]
"""From a `Use` and the bounds of each operand, those of the result."""
DemandRule: TypeAlias = Callable[[Use], Demanded]
"""What an instruction demands of its operands, whatever happens to its result."""
BackwardRule: TypeAlias = Callable[[Use, Demand], Demanded]
"""What a demand on the result asks of the operands."""
MovedRule: TypeAlias = Callable[[Use, int, Demand], Demand]
"""What a demand on moved elements asks of the operand of that number, whose elements they are."""
ColumnsRule: TypeAlias = Callable[[Use], Columns | None]
"""From the bounds of the operands and their columns, the columns of the result."""


def always(low: float, high: float) -> BoundsRule:
    """The rule of results that lie in [low, high], whatever the operands are."""
    return lambda use, *operands: Bounds(low, high)


def demand(number: int, low: float = -INFINITY, high: float = INFINITY) -> DemandRule:
    """The rule of instructions of which one operand must lie in [low, high]."""
    made = Demand(low, high)
    return lambda use: [(number, made)]


_MOST_TRIPS = 8
_LARGEST_DIVISOR = 99
_SMALLEST_PENALTY = 1000
_MOST_CHOICES = 8
_SEGMENTS = 3
"""The highest number of integers that are compared with one another: many are equal."""
_ABOVE_ZERO = {("GT", 0), ("LE", 0), ("GE", 1), ("LT", 1)}
"""Comparisons that tell 0 from 1."""
_MIRRORED = {"GT": "LT", "LT": "GT", "GE": "LE", "LE": "GE"}


def rising(function: Callable[..., float]) -> BoundsRule:
    """The rule of functions that do not fall where any operand rises."""

    def bounds(use: Use, *operands: Bounds) -> Bounds:
        lows, highs = zip(*((operand.low, operand.high) for operand in operands), strict=True)
        return Bounds(function(*lows), function(*highs))

    return bounds


def add_demands(use: Use, demand: Demand) -> Demanded:
    """x + y in [low, high]: where y is unknown, both must be as positive as the sum; where it is positive, x as large.

    An integer of which nothing but the type is known is unknown, too: no x would do for each of its values.
    """
    for number, other in ((0, use.bounds[1]), (1, use.bounds[0])):
        own = use.bounds[number]
        wanted = Demand(demand.low - other.low, demand.high - other.high)
        is_known = other.is_bounded and wanted.low <= own.high and wanted.high >= own.low
        if not is_known:
            follows = demand.low == 0 or (demand.low > -INFINITY and other.low >= 0)
            wanted = Demand(demand.low - max(other.low, 0), INFINITY) if follows else ANYTHING
        yield number, attrs.evolve(wanted, is_offset=demand.low == 0 and not is_known)


def subtract_demands(use: Use, demand: Demand) -> Demanded:
    x, y = use.bounds
    if y.is_bounded:
        yield 0, Demand(demand.low + y.high, demand.high + y.low)
    if x.is_bounded:
        yield 1, Demand(x.high - demand.high, x.low - demand.low)


def _signs(use: Use) -> list[str]:
    """The instructions that decide the signs of the operands."""
    return [bounds.sign_of or name for name, bounds in zip(use.instruction.operands, use.bounds, strict=True)]


def multiply_bounds(use: Use, x: Bounds, y: Bounds) -> Bounds:
    corners = [0.0 if a == 0 or b == 0 else a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    first, second = _signs(use)
    low = max(0, min(corners)) if first == second else min(corners)
    return Bounds(low, max(corners), sign_of=second if x.low >= 0 else first if y.low >= 0 else None)


def multiply_demands(use: Use, demand: Demand) -> Demanded:
    first, second = _signs(use)
    if first == second:
        return
    for number, other in ((0, use.bounds[1]), (1, use.bounds[0])):
        if other.low == other.high and 0 < abs(other.low) < INFINITY:
            yield number, demand.times(1 / other.low)
        elif other.low >= 0 and 0 < other.high < INFINITY and demand.high < INFINITY and demand.low <= 0:
            yield number, Demand(0, demand.high / other.high)
        elif demand.low == 0:
            yield number, Demand(high=0) if other.high <= 0 else POSITIVE


def divide_demands(use: Use, demand: Demand) -> Demanded:
    x, y = use.bounds
    if y.low == y.high and 0 < y.low < INFINITY:
        yield 0, demand.times(y.low)
    elif demand.low == 0:
        yield 0, POSITIVE
        if x.low >= 0:
            yield 1, POSITIVE


def divisor_demands(use: Use) -> Demanded:
    is_integral = use.shapes[1].element_type.is_integral
    yield 1, (Demand(1, _LARGEST_DIVISOR, is_defined_beyond=True) if is_integral else POSITIVE)


def power_bounds(use: Use, x: Bounds, y: Bounds) -> Bounds:
    if x.low >= 0:
        return Bounds(0, 1) if x.high <= 1 and y.low >= 0 else Bounds(0, INFINITY)
    return Bounds(0, INFINITY) if y.low == y.high and y.low % 2 == 0 else UNKNOWN


def power_base_demands(use: Use) -> Demanded:
    exponent = use.bounds[1]
    if not (exponent.low == exponent.high and float(exponent.low).is_integer()):
        yield 0, POSITIVE


def power_demands(use: Use, demand: Demand) -> Demanded:
    """x ** y in [low, high]: y lies between their logarithms to a known base x. It is at most 1 with x in [0, 1] and y
    positive, or with x above 1 where y is negative."""
    base, exponent = use.bounds
    if not (base.low == base.high and 0 < base.low < INFINITY and base.low != 1):
        if demand.high == 1:
            yield from [(0, Demand(low=1))] if exponent.high < 0 else [(0, Demand(0, 1)), (1, POSITIVE)]
        return
    for _, wanted in exponential_demands(use, demand):
        yield 1, wanted.times(1 / math.log(base.low))


def exponential_demands(use: Use, demand: Demand, logarithm: Callable[[float], float] = math.log) -> Demanded:
    """bˣ in [low, high]: x lies between their logarithms to the base b."""
    if demand.high > 0:
        low, high = (
            -INFINITY if end <= 0 else INFINITY if end == INFINITY else logarithm(end)
            for end in (demand.low, demand.high)
        )
        yield 0, Demand(low, high)


def same_demands(use: Use, demand: Demand) -> Demanded:
    yield from ((i, Demand(demand.low, demand.high)) for i in range(len(use.shapes)))


def nearest_bounds(use: Use, x: Bounds) -> Bounds:
    return Bounds(x.low - 0.5, x.high + 0.5)


def subtract_mask_demands(use: Use) -> Demanded:
    """1 less an integer, and as floats that less 1, drops what a mask keeps."""
    x, y = use.bounds
    if x.low == x.high == 1:
        yield 1, MASK
    elif y.low == y.high == 1 and use.shape.element_type.is_floating:
        yield 0, MASK


def multiply_mask_demands(use: Use) -> Demanded:
    """Integers, as floats, are a mask that are multiplied by a large constant, or by as many unlike numbers: not by
    what a broadcast repeats, such as the frequencies that positions are multiplied by, or scales."""
    if not use.shape.element_type.is_floating or len(set(use.instruction.operands)) == 1:
        return
    for number, other in ((0, use.bounds[1]), (1, use.bounds[0])):
        is_penalty = other.low == other.high and abs(other.low) >= _SMALLEST_PENALTY
        repeats = any(operand.opcode == "broadcast" for operand in use.operands[1 - number : 2 - number])
        if is_penalty or not (other.is_bounded or repeats):
            yield number, MASK


def _choices(use: Use, number: int, other: Bounds) -> int | None:
    """How many unlike numbers an operand should have, less one, that is compared with another; None if any."""
    direction = use.attributes.direction
    is_equality, is_integral = direction in ("EQ", "NE"), use.shapes[0].element_type.is_integral
    if other.low != other.high:
        return _SEGMENTS if is_equality and is_integral else None
    if is_equality:
        is_choice = float(other.low).is_integer() and 0 <= other.low <= _MOST_CHOICES
        return max(1, int(other.low)) if is_choice else None
    if not is_integral:
        return 1 if other.low == 0.5 else None
    return 1 if (_MIRRORED[direction] if number else direction, other.low) in _ABOVE_ZERO else None


def compared_bounds(use: Use, x: Bounds, y: Bounds) -> Bounds:
    """Whether each element of x is in a relation to that of y that their bounds decide."""
    direction = use.attributes.direction
    if direction in ("LE", "GT"):
        x, y = y, x
        direction = _MIRRORED[direction]
    if direction in ("LT", "GE"):
        is_true, is_false = (
            (x.high < y.low, x.low >= y.high) if direction == "LT" else (x.low >= y.high, x.high < y.low)
        )
    else:
        is_apart, is_one = x.high < y.low or x.low > y.high, x.low == x.high == y.low == y.high
        is_true, is_false = (is_one, is_apart) if direction == "EQ" else (is_apart, is_one)
    return Bounds(1, 1) if is_true else Bounds(0, 0) if is_false else Bounds(0, 1)


def compare_demands(use: Use) -> Demanded:
    """Integers compared with an iota lie in its range; what decides over a loop keeps it short. Other integers that are
    compared with small constants, or for equality with any, are as few unlike ones as the comparison tells apart."""
    element_type = use.shapes[0].element_type
    if not element_type.is_integral and not element_type.is_floating:
        return
    for number, other in ((0, use.bounds[1]), (1, use.bounds[0])):
        if not use.is_condition:
            is_range = element_type.is_integral and (other.low, other.high) != element_type.integer_range
            if is_range and other.low < other.high < 2**30 and other.low > -(2**30):
                yield number, Demand(other.low, other.high, is_defined_beyond=True)
            elif (choices := _choices(use, number, other)) is not None:
                yield number, Demand(choices=choices)
        elif not element_type.is_integral:
            continue
        elif other.low == other.high:
            counts_up = (use.attributes.direction in ("GT", "GE")) == (number == 1)
            few = -_MOST_TRIPS if counts_up else _MOST_TRIPS
            yield number, Demand(min(other.low, other.low + few), max(other.low, other.low + few))
        else:
            yield number, Demand(0, _MOST_TRIPS)
