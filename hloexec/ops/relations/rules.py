"""What `relate` and `resize` rules are given, and the dimensions of a module as unknowns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import attrs

from hloexec.core.ir import ArrayShape, Shape, flat_shapes, leaf_shapes
from hloexec.core.structs import define, frozen
from hloexec.core.values import Dimensions

Axes: TypeAlias = Dimensions
"""The dimensions of an array, by their numbers in `Relations`."""

Place: TypeAlias = tuple[str, str]
"""The names of a computation and of one of its instructions."""

LANES = 128
"""Of a TPU: rows of the tiles in its layouts have so many elements, or a multiple."""


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
    members: tuple[int, ...] = ()
    """Of a collective whose groups stay, the devices of the first one."""
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
        self.relations.equations.append(self.constant_sum(terms))

    def constant_sum(self, terms: Mapping[int, int]) -> Equation:
        nonzero_terms = tuple((dimension, count) for dimension, count in terms.items() if count)
        constant = sum(self.size(dimension) * count for dimension, count in nonzero_terms)
        return Equation(nonzero_terms, constant, self.where)

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

    def sum_of(self, total: int, parts: Sequence[int]) -> None:
        """A dimension is the sum of others, and nothing else depends on it unless that is said elsewhere."""
        if len(parts) == 1:
            self.same([total], parts)
        else:
            self.relations.sums.append((total, tuple(parts), self.where))

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

    def sums_over_devices(self) -> None:
        """What is computed is a sum over the devices of a group; those of groups that stay are dimensions that stay."""
        group = self.group
        if group is None and len(self.members) > 1:
            group = self.relations.members.get(self.members)
            if group is None:
                (group,) = self.relations.new((len(self.members),))
                self.relations.members[self.members] = group
                self.keep([group], "it is a number of devices")
        if group is not None:
            self.sums_over([group])

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
            for leaf in value.leaves.values():
                self.keep(leaf, "it is exchanged with the host")
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
    starts: Mapping[int, int] = attrs.field(factory=dict)
    """By dimension of a slice that is what others were put together to, where it starts now."""

    def sizes(self, operand: int) -> tuple[Dimensions, Dimensions]:
        """The dimensions of an operand, before and after."""
        return _dimensions(self.operands[operand]), _dimensions(self.new_operands[operand])

    @property
    def result_sizes(self) -> tuple[Dimensions, Dimensions]:
        """The dimensions of the (first) result, before and after."""
        return _dimensions(self.result), _dimensions(self.new_result)


def _dimensions(shape: Shape) -> Dimensions:
    return next((leaf.array_shape.dimensions for leaf in flat_shapes(shape)), ())


RelateRule: TypeAlias = Callable[[Relating], None]
ResizeRule: TypeAlias = Callable[[Resizing], Any]
"""Gives the attributes for the new sizes; of a library call, the change with attributes and config for them."""


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


@frozen
class Equation:
    """A sum of dimensions times coefficients that is constant, whatever the sizes."""

    terms: tuple[tuple[int, int], ...]
    """(dimension, coefficient)"""
    constant: int
    where: Place
    whole: tuple[tuple[int, int], ...] = ()
    """(dimension, number): what it is divided by divides the number, too, as long as the equation holds."""
    least: tuple[tuple[int, int], ...] = ()
    """(dimension, size): it may not be smaller then."""
    otherwise: Equation | None = None
    """What holds in its place if it cannot."""


@frozen
class Product:
    """The product of some dimensions is that of others, up to factors that stay."""

    left: Axes
    right: Axes
    where: Place

    @property
    def sides(self) -> tuple[tuple[Axes, Axes], ...]:
        """Both sides, and the other way round."""
        return (self.left, self.right), (self.right, self.left)


@define(eq=False)
class UnionFind:
    """Numbers in classes, each of which has one of them as its root."""

    _parents: list[int] = attrs.field(factory=list)

    def extend(self, count: int) -> int:
        """Add numbers, each in a class of its own; the first of them."""
        first = len(self._parents)
        self._parents.extend(range(first, first + count))
        return first

    def root(self, number: int) -> int:
        parents = self._parents
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    def tie(self, first: int, second: int) -> None:
        """Make two classes one; its root is the smaller one."""
        ours, theirs = self.root(first), self.root(second)
        if ours != theirs:
            self._parents[max(ours, theirs)] = min(ours, theirs)

    def tie_results(self, uses: Sequence[tuple[object, Axes, Axes]]) -> None:
        """Tie what comes of the same operands in the same way; each use is a way, its operands and its results.

        Of two classes that become one, the uses of that with fewer are looked at again.
        """
        names: dict[int, int] = {}
        uses_by_name: dict[int, list[int]] = defaultdict(list)
        for number, (_, operands, _) in enumerate(uses):
            for operand in map(self.root, operands):
                uses_by_name[names.setdefault(operand, operand)].append(number)
        firsts: dict[object, Axes] = {}
        waiting = list(reversed(range(len(uses))))
        while waiting:
            way, operands, results = uses[waiting.pop()]
            key = way, tuple(names[self.root(operand)] for operand in operands)
            for pair in zip(firsts.setdefault(key, results), results, strict=True):
                ours, theirs = map(self.root, pair)
                self.tie(ours, theirs)
                if ours == theirs or self.root(ours) != self.root(theirs):
                    continue
                fewer, more = sorted(
                    (names.get(ours, ours), names.get(theirs, theirs)), key=lambda name: len(uses_by_name[name])
                )
                names[self.root(ours)] = more
                moved = uses_by_name.pop(fewer)
                uses_by_name[more] += moved
                waiting += moved


@define(eq=False)
class Units(UnionFind):
    """What numbers count. One constant may be used for several things, so it does not make them count the same."""

    uses: list[tuple[int, int]] = attrs.field(factory=list)
    """A constant, and what it counts where it is used."""
    _constants: set[int] = attrs.field(factory=set)

    def mark(self, number: int) -> None:
        """Say that it is a constant."""
        self._constants.add(self.root(number))

    def is_constant(self, number: int) -> bool:
        return self.root(number) in self._constants

    def tie(self, first: int, second: int) -> None:
        ours, theirs = self.is_constant(first), self.is_constant(second)
        if ours == theirs:
            super().tie(first, second)
            if ours:
                self.mark(first)
        else:
            self.uses.append((first, second) if ours else (second, first))


@frozen
class Position:
    """The numbers of a unit are positions along a dimension; along several, they are vectors of positions."""

    unit: int
    dimensions: Axes


Slice: TypeAlias = tuple[Relating, int, int, int]
"""What says so, the dimension, that of the slice, and where it starts."""
Joined: TypeAlias = tuple[Relating, int, Axes]
"""What says so, a dimension that is put together, and those of the parts."""


@define(eq=False)
class Relations:
    """All dimensions of a module, as numbers, and what is known of them."""

    sizes: list[int] = attrs.field(factory=list)
    equations: list[Equation] = attrs.field(factory=list)
    products: list[Product] = attrs.field(factory=list)
    least: list[tuple[int, int]] = attrs.field(factory=list)
    """(dimension, size): it may not be smaller."""
    whole: list[tuple[int, int]] = attrs.field(factory=list)
    """(dimension, number): what it is divided by divides the number, too."""
    kept: dict[int, tuple[str, Place]] = attrs.field(factory=dict)
    """Of dimensions that stay, why, and where that was said."""
    positions: list[Position] = attrs.field(factory=list)
    """What numbers count: of units whose numbers are positions along dimensions."""
    lengths: list[tuple[int, int, Place]] = attrs.field(factory=list)
    """A unit whose numbers say how many elements of a dimension there are, up to all, that, and what says so."""
    rooms: list[tuple[int, int, int]] = attrs.field(factory=list)
    """A unit whose numbers are starts, the dimension in which, and that of what starts there."""
    units: Units = attrs.field(factory=lambda: Units())
    """What the numbers of each leaf count, where that is the same as for another leaf."""
    counted: dict[Place, int] = attrs.field(factory=dict)
    """By instruction, the dimension along which its elements count."""
    summed: dict[Place, Axes] = attrs.field(factory=dict)
    """By instruction, the dimensions of its operands over which it adds up."""
    tiled: dict[int, int] = attrs.field(factory=dict)
    """By the dimension of the places of windows that lie side by side, that which they divide."""
    slices: list[Slice] = attrs.field(factory=list)
    apart: dict[int, int] = attrs.field(factory=dict)
    """Sizes that differ by numbers of elements that stay, with one number for those that do from one another."""
    joined: list[Joined] = attrs.field(factory=list)
    sums: list[tuple[int, Axes, Place]] = attrs.field(factory=list)
    """Dimensions that are the sum of others, with these."""
    starts: dict[Place, dict[int, Axes]] = attrs.field(factory=dict)
    """By slice and its dimension, those dimensions whose sum is where it starts."""
    strides: list[tuple[int, int]] = attrs.field(factory=list)
    """The unit of a product, and that of a factor."""
    shifts: list[tuple[int, int]] = attrs.field(factory=list)
    """The unit of a number that is shifted, and that of by how many bits it is."""
    wrapped: list[tuple[int, int]] = attrs.field(factory=list)
    """The unit of a remainder, and that of the dividend."""
    numbers: dict[int, int] = attrs.field(factory=dict)
    """By the unit of a constant that is one number everywhere, that."""
    derived: list[tuple[tuple[str, int], int, int]] = attrs.field(factory=list)
    """An opcode and a number, and the units of what it is applied to with that number and of what comes of it."""
    components: list[tuple[int, Dimensions]] = attrs.field(factory=list)
    """The unit of vectors, and of each of their components."""
    channels: dict[int, Axes] = attrs.field(factory=dict)
    device_counts: frozenset[int] = frozenset()
    """The number of devices, and those of groups of them, larger than 1: into so many parts arrays are divided."""
    members: dict[tuple[int, ...], int] = attrs.field(factory=dict)
    """By the devices of a group that stays, their number, as a dimension over which is summed."""
    windows: set[int] = attrs.field(factory=set)
    """Dimensions that are sizes of windows; no array has them."""
    to_one: set[int] = attrs.field(factory=set)
    """Dimensions that may become 1."""
    lanes: int | None = None
    """Where tiles of layouts have relations to other dimensions, the length of their rows."""
    aligned: UnionFind = attrs.field(factory=lambda: UnionFind())
    """Dimensions along which operations on elements put arrays side by side: there, elements are in the same order."""
    _same: UnionFind = attrs.field(factory=lambda: UnionFind())

    def device_roots(self) -> tuple[frozenset[int], frozenset[int]]:
        """The roots of axes of devices, and those of numbers of devices that stay."""
        axes, members = (frozenset(map(self.root, numbers)) for numbers in (self.to_one, self.members.values()))
        return axes, members

    def new(self, sizes: Sequence[int]) -> Axes:
        """Numbers for the dimensions of one more array."""
        first = len(self.sizes)
        self.sizes.extend(sizes)
        numbers = tuple(range(first, len(self.sizes)))
        self._same.extend(len(numbers))
        self.aligned.extend(len(numbers))
        return numbers

    def lanes_of_tiles(self) -> int:
        """The length of rows of tiles as a dimension, 128 on a TPU; longer rows are multiples of it."""
        if self.lanes is None:
            (self.lanes,) = self.new((LANES,))
        return self.lanes

    def add_product(self, left: Axes, right: Axes, where: Place) -> None:
        self.products.append(Product(left, right, where))

    def add_position(self, unit: int, dimensions: Axes) -> None:
        self.positions.append(Position(unit, dimensions))

    def split(self, whole: int, parts: Sequence[int], where: Place) -> None:
        """A dimension is the product of others, from major to minor."""
        factors = tuple(part for part in parts if self.sizes[part] != 1)
        if len(factors) == 1 and self.sizes[whole] == self.sizes[factors[0]]:
            self.tie(whole, factors[0])
        elif factors:
            self.products.append(Product((whole,), factors, where))

    def root(self, dimension: int) -> int:
        """The dimension that stands for all that are the same."""
        return self._same.root(dimension)

    def tie(self, first: int, second: int) -> None:
        self._same.tie(first, second)

    def tie_results(self, uses: Sequence[tuple[object, Axes, Axes]]) -> None:
        """Tie dimensions that come of the same ones in the same way."""
        self._same.tie_results(uses)


@frozen(slots=False)
class Value:
    """A shape, and the numbers of the dimensions of each of its leaves, and of what its elements count."""

    shape: Shape
    leaves: Mapping[Dimensions, Axes]
    units: Mapping[Dimensions, int]

    @classmethod
    def of(cls, shape: Shape, relations: Relations) -> Value:
        leaves = {index: relations.new(leaf.array_shape.dimensions) for index, leaf in leaf_shapes(shape)}
        first = relations.units.extend(len(leaves))
        return cls(shape, leaves, {index: first + number for number, index in enumerate(leaves)})

    @property
    def axes(self) -> Axes:
        """Those of the only array; of a tuple, of its first leaf."""
        return next(iter(self.leaves.values()), ())

    @property
    def array(self) -> ArrayShape:
        """The only array; of a tuple, its first leaf."""
        return flat_shapes(self.shape)[0].array_shape

    def part(self, *index: int) -> Value:
        """What lies at an index of a nested tuple."""
        value = self
        for number in index:
            value = value.parts[number]
        return value

    @property
    def unit(self) -> int:
        """What the elements of the only array count; of a tuple, of its first leaf."""
        return next(iter(self.units.values()))

    @cached_property
    def parts(self) -> tuple[Value, ...]:
        """The elements of a tuple; else the value itself."""
        elements = getattr(self.shape, "elements", None)
        if elements is None:
            return (self,)
        leaves: list[dict[Dimensions, Axes]] = [{} for _ in elements]
        units: list[dict[Dimensions, int]] = [{} for _ in elements]
        for (number, *index), axes in self.leaves.items():
            leaves[number][tuple(index)] = axes
            units[number][tuple(index)] = self.units[number, *index]
        return tuple(map(Value, elements, leaves, units))
