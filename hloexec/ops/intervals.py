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

from hloexec.core.ir import ArrayShape, Instruction, Module
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
    shapes: tuple[ArrayShape, ...]
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
