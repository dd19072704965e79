"""The dimensions of a module as unknowns, with all that is known of them, and what its numbers count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from hloexec.core.ir import ArrayShape, Shape, flat_shapes, leaf_shapes
from hloexec.core.structs import define, frozen
from hloexec.ops.relations.rules import Axes, Place


@frozen
class Equation:
    """A sum of dimensions times coefficients that is constant, whatever the sizes."""

    terms: tuple[tuple[int, int], ...]
    """(dimension, coefficient)"""
    constant: int
    where: Place


@frozen
class Product:
    """The product of some dimensions is that of others, up to factors that stay."""

    left: Axes
    right: Axes
    where: Place


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
    components: list[tuple[int, tuple[int, ...]]] = attrs.field(factory=list)
    """The unit of vectors, and of each of their components."""
    channels: dict[int, Axes] = attrs.field(factory=dict)
    to_one: set[int] = attrs.field(factory=set)
    """Dimensions that may become 1."""
    aligned: UnionFind = attrs.field(factory=lambda: UnionFind())
    """Dimensions along which operations on elements put arrays side by side: there, elements are in the same order."""
    _same: UnionFind = attrs.field(factory=lambda: UnionFind())

    def new(self, sizes: Sequence[int]) -> Axes:
        """Numbers for the dimensions of one more array."""
        first = len(self.sizes)
        self.sizes.extend(sizes)
        numbers = tuple(range(first, len(self.sizes)))
        self._same.extend(len(numbers))
        self.aligned.extend(len(numbers))
        return numbers

    def add_equation(self, terms: tuple[tuple[int, int], ...], constant: int, where: Place) -> None:
        self.equations.append(Equation(terms, constant, where))

    def add_product(self, left: Axes, right: Axes, where: Place) -> None:
        self.products.append(Product(left, right, where))

    def add_position(self, unit: int, dimensions: Axes) -> None:
        self.positions.append(Position(unit, dimensions))

    def split(self, whole: int, parts: Sequence[int], where: Place) -> None:
        """A dimension is the product of others, from major to minor."""
        found = tuple(part for part in parts if self.sizes[part] != 1)
        if len(found) == 1 and self.sizes[whole] == self.sizes[found[0]]:
            self.tie(whole, found[0])
        elif found:
            self.products.append(Product((whole,), found, where))

    def root(self, dimension: int) -> int:
        """The dimension that stands for all that are the same."""
        return self._same.root(dimension)

    def tie(self, first: int, second: int) -> None:
        self._same.tie(first, second)


@frozen
class Value:
    """A shape, and the numbers of the dimensions of each of its leaves, and of what its elements count."""

    shape: Shape
    leaves: Mapping[tuple[int, ...], Axes]
    units: Mapping[tuple[int, ...], int]

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
