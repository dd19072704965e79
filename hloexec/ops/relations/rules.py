"""What `relate` and `resize` rules are given, and the rules that many opcodes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from hloexec.core.ir import Shape, flat_shapes, leaf_shapes
from hloexec.core.structs import frozen

if TYPE_CHECKING:
    from hloexec.ops.relations.unknowns import Relations, Value

Axes: TypeAlias = tuple[int, ...]
"""The dimensions of an array, by their numbers in `Relations`."""

Place: TypeAlias = tuple[str, str]
"""The names of a computation and of one of its instructions."""


@frozen
class Relating:
    """One instruction, for a `relate` rule, which says here how its dimensions depend on one another."""

    relations: Relations
    where: Place
    attributes: Any
    operands: tuple[Value, ...]
    result: Value
    config: Any = None
    """Of a library call, what the entry reads of its attributes and its backend_config."""
    computations: tuple[tuple[tuple[Value, ...], Value], ...] = ()
    """The parameters and the result of each computation that it calls."""
    group: int | None = None
    """Of a collective, the number of devices in a group, as a dimension; None where it stays."""
    starts: Mapping[int, int] = attrs.field(factory=dict)
    """By operand, the dimension of axes of devices along which its elements count, each its own multiple."""

    def size(self, dimension: int) -> int:
        return self.relations.sizes[dimension]

    def same(self, first: Sequence[int], *others: Sequence[int]) -> None:
        """Arrays have the same dimensions."""
        for other in others:
            if len(first) != len(other):
                self.keep((*first, *other), "its arrays differ in rank")
                continue
            for ours, theirs in zip(first, other, strict=True):
                if self.size(ours) == self.size(theirs):
                    self.relations.tie(ours, theirs)
                else:
                    self.keep((ours, theirs), "sizes that should agree differ")

    def same_values(self, first: Value, second: Value) -> None:
        """Two values have the same leaves, of the same dimensions."""
        for ours, theirs in zip(first.leaves.values(), second.leaves.values(), strict=False):
            self.same(ours, theirs)
        for unit, other in zip(first.units.values(), second.units.values(), strict=False):
            self.relations.units.tie(unit, other)

    def equation(self, terms: Mapping[int, int]) -> None:
        """The sum of dimensions times coefficients stays what it is."""
        found = tuple((dimension, count) for dimension, count in terms.items() if count)
        constant = sum(self.size(dimension) * count for dimension, count in found)
        self.relations.add_equation(found, constant, self.where)

    def multiple(self, larger: int, smaller: int) -> None:
        """The quotient of two dimensions stays what it is."""
        whole, part = self.size(larger), self.size(smaller)
        if whole == part:
            self.relations.tie(larger, smaller)
        elif part > 0 and whole % part == 0:
            self.equation({larger: 1, smaller: -(whole // part)})
        else:
            self.keep((larger, smaller), "one of its sizes should divide another")

    def shared(self, larger: int, smaller: int, devices: int | None) -> None:
        """A dimension is divided among devices, whose number may be a dimension; each has a part."""
        if devices is not None and self.size(larger) == self.size(devices) * self.size(smaller):
            self.relations.split(larger, (devices, smaller), self.where)
        else:
            self.multiple(larger, smaller)

    def product(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Two groups of dimensions have the same product, up to a factor that stays."""
        ours = tuple(dimension for dimension in left if self.size(dimension) != 1)
        theirs = tuple(dimension for dimension in right if self.size(dimension) != 1)
        if len(ours) == len(theirs) == 1 and self.size(ours[0]) == self.size(theirs[0]):
            self.relations.tie(ours[0], theirs[0])
        elif ours or theirs:
            self.relations.add_product(ours, theirs, self.where)

    def at_least(self, dimension: int, size: int) -> None:
        self.relations.least.append((dimension, size))

    def whole(self, dimension: int, *numbers: int) -> None:
        """What the dimension is divided by divides these numbers, too."""
        self.relations.whole.extend((dimension, abs(number)) for number in numbers if number)

    def keep(self, dimensions: Sequence[int], reason: str) -> None:
        """These dimensions stay as they are; the reason is a clause."""
        for dimension in dimensions:
            self.relations.kept.setdefault(dimension, (reason, self.where))

    def keep_all(self, reason: str) -> None:
        """All dimensions of the instruction stay as they are."""
        for value in (*self.operands, self.result):
            for axes in value.leaves.values():
                self.keep(axes, reason)

    def positions(self, operand: int, dimensions: Axes) -> None:
        """The elements of an operand are positions along a dimension; several: it holds vectors of positions."""
        self.relations.add_position(self.operands[operand].unit, dimensions)

    def starts_of(self, operand: int, whole: int, window: int) -> None:
        """The elements of an operand are positions along a dimension at which windows start."""
        self.positions(operand, (whole,))
        self.relations.rooms.append((self.operands[operand].unit, whole, window))

    def counts(self, dimension: int) -> None:
        """The elements of the result are positions along a dimension."""
        self.relations.add_position(self.result.unit, (dimension,))
        self.relations.counted[self.where] = dimension

    def result_positions(self, leaf: int, dimension: int) -> None:
        """The elements of a leaf of the result are positions along a dimension."""
        self.relations.add_position(self.result.units[(leaf,)], (dimension,))

    def sums_over(self, dimensions: Sequence[int]) -> None:
        """What is computed is a sum over dimensions of the operands."""
        self.relations.summed[self.where] = tuple(dimensions)

    def multiplies(self) -> None:
        """The result is the product of the operands."""
        self.relations.strides += [(self.result.unit, operand.unit) for operand in self.operands]

    def divides(self) -> None:
        """The first operand is the product of the result and of the second, and of what is left."""
        dividend, divisor = self.operands
        self.relations.strides.append((dividend.unit, divisor.unit))

    def wraps(self) -> None:
        """The result is the first operand modulo the second, or without some of its bits, or its negative."""
        dividend, *others = self.operands
        if not others:
            self.same_units((dividend, self.result))
            return
        self.relations.wrapped.append((self.result.unit, dividend.unit))
        for operand in self.operands:
            if self.relations.units.is_constant(operand.unit):
                self.relations.units.tie(operand.unit, self.result.unit)
        self.divides()

    def components(self) -> None:
        """The result holds vectors, whose components are the operands."""
        self.relations.components.append((self.result.unit, tuple(operand.unit for operand in self.operands)))

    def same_units(self, values: Sequence[Value]) -> None:
        """Integers among the arrays of these values count the same."""
        units = [
            value.units[index]
            for value in values
            for index, leaf in leaf_shapes(value.shape)
            if leaf.array_shape.element_type.is_integral
        ]
        first = next((unit for unit in units if not self.relations.units.is_constant(unit)), None)
        for unit in units:
            if first is not None and unit != first:
                self.relations.units.tie(first, unit)

    def same_leaf_units(self, count: int) -> None:
        """The elements of leaf k of the result count what those of operand k do, of so many, and its initial value."""
        units = [*self.result.units.values()]
        for number, operand in enumerate(self.operands):
            if number < 2 * count and number % count < len(units):
                self.relations.units.tie(units[number % count], operand.unit)

    def channel(self, number: int | None, value: Value) -> None:
        """What is sent and received over a channel has the same dimensions."""
        axes = value.axes
        if number is None or len(value.leaves) != 1:
            for each in value.leaves.values():
                self.keep(each, "it is exchanged with the host")
            return
        self.same(self.relations.channels.setdefault(number, axes), axes)


@frozen
class Resizing:
    """One instruction whose dimensions have changed, for a `resize` rule, which fits its attributes to them."""

    attributes: Any
    operands: tuple[Shape, ...]
    result: Shape
    new_operands: tuple[Shape, ...]
    new_result: Shape
    backend_config: str | None = None

    def sizes(self, operand: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dimensions of an operand, before and after."""
        return _dimensions(self.operands[operand]), _dimensions(self.new_operands[operand])

    @property
    def result_sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dimensions of the (first) result, before and after."""
        return _dimensions(self.result), _dimensions(self.new_result)


def _dimensions(shape: Shape) -> tuple[int, ...]:
    return next((leaf.array_shape.dimensions for leaf in flat_shapes(shape)), ())


RelateRule: TypeAlias = Callable[[Relating], None]
ResizeRule: TypeAlias = Callable[[Resizing], Any]
"""Gives the attributes for the new sizes."""


def pointwise(use: Relating) -> None:
    """Operands and results have the same dimensions, scalars among the operands aside."""
    values = [axes for value in (*use.operands, use.result) for axes in value.leaves.values()]
    rank = max(map(len, values), default=0)
    arrays = [axes for axes in values if len(axes) == rank]
    for axes in arrays[1:]:
        use.same(arrays[0], axes)
        for ours, theirs in zip(arrays[0], axes, strict=True):
            use.relations.aligned.tie(ours, theirs)


def leafwise(use: Relating) -> None:
    """Leaf k of the result has the dimensions of operand k."""
    operands = [axes for value in use.operands for axes in value.leaves.values()]
    for ours, theirs in zip(use.result.leaves.values(), operands, strict=False):
        use.same(ours, theirs)
