"""How the dimensions of an instruction's operands and result depend on one another: the vocabulary of `relate` rules.

A module can be made smaller if every dimension that follows from others follows from them still. The rules of the
opcodes say so in five ways: dimensions are the same; a sum of multiples of dimensions is constant; the product of some
is the product of others; a dimension has at least a certain size, or divides certain numbers evenly; a dimension has to
stay as it is, for a reason. `resize` rules then fit attributes to the new sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd, prod
from typing import Any, TypeAlias

import attrs

from hloexec.ir import ArrayShape, BufferShape, Shape, leaf_shapes

__all__ = [
    "Axes",
    "Equation",
    "Place",
    "Position",
    "Product",
    "RelateRule",
    "Relating",
    "Relations",
    "ResizeRule",
    "Resizing",
    "UnionFind",
    "Units",
    "Value",
    "keeps_all",
    "leafwise",
    "matching_groups",
    "pointwise",
    "relate_bytes",
    "relate_part",
    "relate_reshape",
    "relate_sum",
    "relate_window_of",
    "resized_start",
]

Axes: TypeAlias = tuple[int, ...]
"""The dimensions of an array, by their numbers in `Relations`."""

Place: TypeAlias = tuple[str, str]
"""The names of a computation and of one of its instructions."""


@attrs.frozen
class Equation:
    """A sum of dimensions times coefficients that is constant, whatever the sizes."""

    terms: tuple[tuple[int, int], ...]
    """(dimension, coefficient)"""
    constant: int
    where: Place


@attrs.frozen
class Product:
    """The product of some dimensions is that of others, up to factors that stay."""

    left: Axes
    right: Axes
    where: Place


@attrs.define(eq=False)
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


@attrs.define(eq=False)
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


@attrs.frozen
class Position:
    """The numbers of a unit are positions along a dimension; along several, they are vectors of positions."""

    unit: int
    dimensions: Axes


@attrs.define(eq=False)
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
    units: Units = attrs.field(factory=lambda: Units())
    """What the numbers of each leaf count, where that is the same as for another leaf."""
    counted: dict[Place, int] = attrs.field(factory=dict)
    """By instruction, the dimension along which its elements count."""
    summed: dict[Place, Axes] = attrs.field(factory=dict)
    """By instruction, the dimensions of its operands over which it adds up."""
    strides: list[tuple[int, int]] = attrs.field(factory=list)
    """The unit of a product, and that of a factor."""
    components: list[tuple[int, tuple[int, ...]]] = attrs.field(factory=list)
    """The unit of vectors, and of each of their components."""
    channels: dict[int, Axes] = attrs.field(factory=dict)
    _same: UnionFind = attrs.field(factory=lambda: UnionFind())

    def new(self, sizes: Sequence[int]) -> Axes:
        """Numbers for the dimensions of one more array."""
        first = len(self.sizes)
        self.sizes.extend(sizes)
        numbers = tuple(range(first, len(self.sizes)))
        self._same.extend(len(numbers))
        return numbers

    def root(self, dimension: int) -> int:
        """The dimension that stands for all that are the same."""
        return self._same.root(dimension)

    def tie(self, first: int, second: int) -> None:
        self._same.tie(first, second)


@attrs.frozen
class Value:
    """A shape, and the numbers of the dimensions of each of its leaves, and of what its elements count."""

    shape: Shape
    leaves: Mapping[tuple[int, ...], Axes]
    units: Mapping[tuple[int, ...], int]

    @classmethod
    def of(cls, shape: Shape, relations: Relations) -> Value:
        leaves = {index: relations.new(_array(leaf).dimensions) for index, leaf in leaf_shapes(shape)}
        first = relations.units.extend(len(leaves))
        return cls(shape, leaves, {index: first + number for number, index in enumerate(leaves)})

    @property
    def axes(self) -> Axes:
        """Those of the only array; of a tuple, of its first leaf."""
        return next(iter(self.leaves.values()), ())

    @property
    def array(self) -> ArrayShape:
        """The only array; of a tuple, its first leaf."""
        return _array(next(leaf for _, leaf in leaf_shapes(self.shape)))

    def part(self, *index: int) -> Value:
        """What lies at an index of a nested tuple."""
        shape: Any = self.shape
        for number in index:
            shape = shape.elements[number]
        depth = len(index)
        leaves = {path[depth:]: axes for path, axes in self.leaves.items() if path[:depth] == index}
        return Value(shape, leaves, {path: self.units[(*index, *path)] for path in leaves})

    @property
    def unit(self) -> int:
        """What the elements of the only array count; of a tuple, of its first leaf."""
        return next(iter(self.units.values()))

    @property
    def parts(self) -> tuple[Value, ...]:
        """The elements of a tuple; else the value itself."""
        elements = getattr(self.shape, "elements", None)
        return (self,) if elements is None else tuple(self.part(number) for number in range(len(elements)))


def _array(leaf: ArrayShape | BufferShape) -> ArrayShape:
    return leaf.element if isinstance(leaf, BufferShape) else leaf


@attrs.frozen
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

    def size(self, dimension: int) -> int:
        return self.relations.sizes[dimension]

    def same(self, first: Sequence[int], second: Sequence[int]) -> None:
        """Two arrays have the same dimensions."""
        if len(first) != len(second):
            self.keep((*first, *second), "its arrays differ in rank")
            return
        for ours, theirs in zip(first, second, strict=True):
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
        self.relations.equations.append(Equation(found, constant, self.where))

    def multiple(self, larger: int, smaller: int) -> None:
        """The quotient of two dimensions stays what it is."""
        whole, part = self.size(larger), self.size(smaller)
        if whole == part:
            self.relations.tie(larger, smaller)
        elif part > 0 and whole % part == 0:
            self.equation({larger: 1, smaller: -(whole // part)})
        else:
            self.keep((larger, smaller), "one of its sizes should divide another")

    def product(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Two groups of dimensions have the same product, up to a factor that stays."""
        ours = tuple(dimension for dimension in left if self.size(dimension) != 1)
        theirs = tuple(dimension for dimension in right if self.size(dimension) != 1)
        if len(ours) == len(theirs) == 1 and self.size(ours[0]) == self.size(theirs[0]):
            self.relations.tie(ours[0], theirs[0])
        elif ours or theirs:
            self.relations.products.append(Product(ours, theirs, self.where))

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
        self.relations.positions.append(Position(self.operands[operand].unit, dimensions))

    def counts(self, dimension: int) -> None:
        """The elements of the result are positions along a dimension."""
        self.relations.positions.append(Position(self.result.unit, (dimension,)))
        self.relations.counted[self.where] = dimension

    def result_positions(self, leaf: int, dimension: int) -> None:
        """The elements of a leaf of the result are positions along a dimension."""
        self.relations.positions.append(Position(self.result.units[(leaf,)], (dimension,)))

    def sums_over(self, dimensions: Sequence[int]) -> None:
        """What is computed is a sum over dimensions of the operands."""
        self.relations.summed[self.where] = tuple(dimensions)

    def multiplies(self) -> None:
        """The result is the product of the operands."""
        self.relations.strides += [(self.result.unit, operand.unit) for operand in self.operands]

    def components(self) -> None:
        """The result holds vectors, whose components are the operands."""
        self.relations.components.append((self.result.unit, tuple(operand.unit for operand in self.operands)))

    def same_units(self, values: Sequence[Value]) -> None:
        """Integers among the arrays of these values count the same."""
        units = [
            value.units[index]
            for value in values
            for index, leaf in leaf_shapes(value.shape)
            if _array(leaf).element_type.is_integral
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


@attrs.frozen
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
    return next((_array(leaf).dimensions for _, leaf in leaf_shapes(shape)), ())


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


def leafwise(use: Relating) -> None:
    """Leaf k of the result has the dimensions of operand k."""
    operands = [axes for value in use.operands for axes in value.leaves.values()]
    for ours, theirs in zip(use.result.leaves.values(), operands, strict=False):
        use.same(ours, theirs)


def keeps_all(use: Relating) -> None:
    """Nothing is known of how the dimensions depend on one another."""
    use.keep_all("how its dimensions depend on one another is not known")


def matching_groups(left: Sequence[int], right: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Positions of two lists of sizes, of equal products, in the smallest runs of which the products are equal.

    Sizes 1 are left out. With a size 0 in the lists, there is one run.
    """
    ours = [position for position, size in enumerate(left) if size != 1]
    theirs = [position for position, size in enumerate(right) if size != 1]
    if 0 in left or 0 in right:
        return [(ours, theirs)]
    groups: list[tuple[list[int], list[int]]] = []
    while ours or theirs:
        group: tuple[list[int], list[int]] = ([], [])
        while True:
            products = prod(left[p] for p in group[0]), prod(right[p] for p in group[1])
            if products[0] == products[1] and group[0]:
                break
            if (products[0] <= products[1] and ours) or not theirs:
                if not ours:
                    break
                group[0].append(ours.pop(0))
            else:
                group[1].append(theirs.pop(0))
        groups.append(group)
    return groups


def relate_reshape(use: Relating, left: Axes | Sequence[int], right: Sequence[int], kept: str | None = None) -> None:
    """Two arrays hold the same elements in the same order; the reason `kept` is why dimensions may not be merged."""
    ours, theirs = [use.size(axis) for axis in left], [use.size(axis) for axis in right]
    if prod(ours) != prod(theirs):
        use.keep((*left, *right), "only a part of what it is a dimension of is used")
        return
    for first, second in matching_groups(ours, theirs):
        group = [left[number] for number in first], [right[number] for number in second]
        if kept is None or len(first) == len(second) == 1:
            use.product(*group)
        else:
            use.keep((*group[0], *group[1]), kept)


def relate_bytes(use: Relating, left: Sequence[int], right: Sequence[int]) -> None:
    """Two arrays hold the same bytes as elements of different widths, in dimensions from major to minor."""
    widths = use.operands[0].array.element_type.bits, use.result.array.element_type.bits
    counts = prod(map(use.size, left)), prod(map(use.size, right))
    if counts[0] * widths[0] == counts[1] * widths[1]:
        use.product(left, right)
    else:
        use.keep((*left, *right), "only a part of what it is a dimension of is used")


_MOST_SHARES = 16
"""A part that is so many times smaller than the whole, or less, is a share of it."""
_MOST_WINDOWS = 64


def _kind_of_part(whole: int, start: int, size: int) -> str:
    """How a part of a dimension grows with the whole.

    A share starts and ends at fixed fractions of it; where a dimension is trimmed, fixed numbers of elements are left
    out at its ends; a piece has a fixed size. Else it is unclear, and nothing may change.
    """
    if size == whole:
        return "whole"
    common = gcd(whole, start, size)
    if common > 1 and whole <= _MOST_SHARES * common and size > 1:
        return "share"
    if 4 * (whole - size) <= whole and whole > _MOST_SHARES:
        return "trim"
    return "piece" if size <= 1 or 4 * size <= whole else "unclear"


def relate_part(use: Relating, whole: int, part: int, start: int) -> None:
    """A dimension is part of another, from `start` on."""
    full, size = use.size(whole), use.size(part)
    kind = _kind_of_part(full, start, size)
    if kind == "whole":
        use.same([whole], [part])
    elif kind == "share":
        use.equation({whole: size // gcd(full, size), part: -(full // gcd(full, size))})
        use.whole(whole, start)
    elif kind == "trim":
        use.equation({whole: 1, part: -1})
        use.at_least(part, 1)
    elif kind == "piece":
        use.keep([part], "it is a piece of fixed size of a larger dimension")
        use.at_least(whole, size if start + size == full else start + size)
    else:
        use.keep([whole, part], f"what part of it {start}:{start + size} is, of {full}, is unclear")


def resized_start(whole: int, start: int, size: int, new_whole: int, new_size: int) -> int:
    """Where a part of a dimension begins when both have changed."""
    if whole == new_whole:
        return start
    kind = _kind_of_part(whole, start, size)
    if kind == "share":
        return start * new_whole // whole
    return new_whole - new_size if kind == "piece" and start + size == whole else start


def relate_window_of(use: Relating, whole: int, window: int) -> None:
    """A window of one size lies somewhere in the other: all of it, one of a few dozen equal parts, or of fixed size."""
    full, size = use.size(whole), use.size(window)
    if full == size:
        use.same([whole], [window])
    elif size > 1 and full % size == 0 and full <= _MOST_WINDOWS * size:
        use.multiple(whole, window)
    else:
        use.keep([window], "it is a window of fixed size in a larger dimension")
        use.at_least(whole, size)


def relate_sum(use: Relating, total: int, parts: Sequence[int]) -> None:
    """A dimension is the sum of others: of shares of it, or of one and a few short pieces of fixed size."""
    whole, sizes = use.size(total), [use.size(part) for part in parts]
    common = gcd(*(size for size in sizes if size != 1), whole)
    if len(parts) > 1 and (common <= 1 or whole > _MOST_WINDOWS * common):
        use.keep([part for part in parts if 8 * use.size(part) <= whole], "it is a short piece of a larger dimension")
    terms: dict[int, int] = {total: 1}
    for part in parts:
        root = use.relations.root(part)
        terms[root] = terms.get(root, 0) - 1
    use.equation(terms)
