"""Groups of dimensions that shrink together, each of them by one factor.

Dimensions that are the same have one *root*. A root is a base, which shrinks, and an offset, which stays: of 2047 =
2048 - 1, the base is 2048. Equations between roots say what the offsets are, and bases in one equation shrink by one
factor, so they are a group. A root whose base is 0 stays as it is. What a group is divided by has to divide its *unit*,
the greatest common divisor of its bases and of the numbers that are divided along with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import gcd

from hloexec.core.structs import frozen
from hloexec.ops.relations import Place, Relations
from hloexec.tools.shrinking.grouping.offsets import Offsets
from hloexec.tools.shrinking.grouping.products import (
    distinct_equations,
    distinct_products,
    merged_roots,
    refine_products,
    tie_splits,
)


@frozen
class Group:
    """Roots with the bases that shrink by one factor."""

    number: int
    bases: Mapping[int, int]
    """By root."""
    offsets: Mapping[int, int]
    unit: int
    least: int
    """The unit does not become smaller of itself: sizes stay larger than 1."""
    lowest: int
    """The unit may not become smaller."""
    is_divided: bool
    """Whether it is part of a product, so that the factor has to divide the unit; else the new unit may be any."""

    def sizes(self, unit: int) -> dict[int, int]:
        """The new sizes of the roots for a new unit."""
        return {root: base // self.unit * unit + self.offsets[root] for root, base in self.bases.items()}


@frozen(eq=False)
class Groups:
    """All groups of a module, and the products that tie their factors."""

    groups: Sequence[Group]
    products: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
    """Numbers of groups, whose factors have the same product on both sides."""
    of_root: Mapping[int, int]
    """The number of a root's group; none where the root stays, or follows from others."""
    merged: Mapping[int, tuple[int, ...]]
    """The factors of roots that are products of others and of a number, and nothing else."""
    kept: Mapping[int, tuple[str, Place]]
    """Why roots stay that would be larger than 1."""

    def numbers(self, root: int) -> tuple[int, ...]:
        """The groups on which the size of a root depends, each as often as it is a factor."""
        if root in self.merged:
            return tuple(number for factor in self.merged[root] for number in self.numbers(factor))
        return (self.of_root[root],) if root in self.of_root else ()


def groups_of(relations: Relations, inputs: Collection[int] = ()) -> Groups:
    """Work out the groups of a module's dimensions; those of its inputs are no product of others."""
    refine_products(relations)
    tie_splits(relations)
    root = relations.root
    equations, products = distinct_equations(relations), distinct_products(relations)
    merged = merged_roots(relations, equations, products, {root(dimension) for dimension in inputs})
    roots = sorted({root(dimension) for dimension in range(len(relations.sizes))} - merged.keys())
    working = Offsets(relations, equations, products)
    for dimension, (reason, where) in relations.kept.items():
        working.keep([root(dimension)], reason, where)
    working.settle(roots)
    working.keep_what_follows(roots)
    members = _members(working, roots)
    _drop_indivisible(working, members, relations)
    return _assembled(working, members, relations, merged)


def _members(working: Offsets, roots: Sequence[int]) -> dict[int, list[int]]:
    """The roots of each group, by one of them."""
    parents = {root: root for root in roots if working.base(root)}

    def find(root: int) -> int:
        while parents[root] != root:
            parents[root] = root = parents[parents[root]]
        return root

    for equation in working.equations:
        changing = [root for root, _ in equation.terms if root in parents]
        for root in changing[1:]:
            first, second = sorted((find(changing[0]), find(root)))
            parents[second] = first
    found: dict[int, list[int]] = {}
    for root in parents:
        found.setdefault(find(root), []).append(root)
    return found


def _units(working: Offsets, members: Mapping[int, list[int]], relations: Relations) -> dict[int, int]:
    units = {first: gcd(*map(working.base, roots)) for first, roots in members.items()}
    first_of = {root: first for first, roots in members.items() for root in roots}
    for dimension, number in relations.whole:
        first = first_of.get(relations.root(dimension))
        if first is not None:
            units[first] = gcd(units[first], number)
    return units


def _drop_indivisible(working: Offsets, members: dict[int, list[int]], relations: Relations) -> None:
    """Groups with unit 1 stay."""
    for first, unit in _units(working, members, relations).items():
        if unit <= 1:
            roots = members.pop(first)
            places = [e.where for e in working.equations if any(root in roots for root, _ in e.terms)]
            places += [p.where for p in working.products if any(root in roots for root in (*p.left, *p.right))]
            where = places[0] if places else ("", "")
            working.keep(roots, "sizes that shrink in proportion with it have no common divisor", where)


def _assembled(
    working: Offsets, members: Mapping[int, list[int]], relations: Relations, merged: Mapping[int, tuple[int, ...]]
) -> Groups:
    numbers = {first: number for number, first in enumerate(members)}
    of_root = {root: numbers[first] for first, roots in members.items() for root in roots}
    products = []
    for product in working.products:
        sides = [[of_root[root] for root in side if root in of_root] for side in (product.left, product.right)]
        if sides[0] or sides[1]:
            products.append((tuple(sides[0]), tuple(sides[1])))
    divided = {number for product in products for side in product for number in side}
    units = _units(working, members, relations)
    bounds = defaultdict(list)
    for dimension, size in relations.least:
        bounds[relations.root(dimension)].append(size)
    to_one = {relations.root(dimension) for dimension in relations.to_one}
    groups = []
    for first, roots in members.items():
        unit, least, lowest = units[first], 1, 1
        for root in roots:
            base, offset = working.base(root), working.offsets[root]
            needed = max([1, *bounds[root]])
            usual = max(needed, 1 if root in to_one else min(2, working.size(root)))
            least, lowest = (
                max(before, -(-(size - offset) * unit // base)) for before, size in ((least, usual), (lowest, needed))
            )
        groups.append(
            Group(
                number=numbers[first],
                bases={root: working.base(root) for root in roots},
                offsets={root: working.offsets[root] for root in roots},
                unit=unit,
                least=min(least, unit),
                lowest=min(lowest, unit),
                is_divided=numbers[first] in divided,
            )
        )
    return Groups(groups, products, of_root, merged, working.kept)
