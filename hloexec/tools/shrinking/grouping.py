"""Which dimensions shrink together, and the part of each size that stays.

Dimensions that are the same have one *root*. A root is a base, which shrinks, and an offset, which stays: of 2047 =
2048 - 1, the base is 2048. Equations between roots say what the offsets are, and bases in one equation shrink by one
factor, so they are a group. A root whose base is 0 stays as it is. What a group is divided by has to divide its *unit*,
the greatest common divisor of its bases and of the numbers that are divided along with them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from heapq import heapify, heappop, heappush
from math import gcd, log2, prod
from typing import TypeAlias

import attrs

from hloexec.core.structs import define, frozen
from hloexec.errors import InputError
from hloexec.ops.relations import Axes, Equation, Place, Product, Relations
from hloexec.ops.relations.rules import UnionFind
from hloexec.tools.shrinking.simplifying import (
    bound_roots,
    distinct_equations,
    distinct_products,
    divide_sums,
    merged_roots,
    refine_products,
    summed_roots,
    tie_splits,
)


def factorization(number: int) -> dict[int, int]:
    """The primes of a number, and how often each divides it."""
    exponents: dict[int, int] = {}
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            exponents[prime] = exponents.get(prime, 0) + 1
            number //= prime
        prime += 1
    if number > 1:
        exponents[number] = exponents.get(number, 0) + 1
    return exponents


def divisors(number: int) -> list[int]:
    """The divisors of a number, itself left out, the largest first."""
    products = [1]
    for prime, count in factorization(number).items():
        products = [divisor * prime**power for divisor in products for power in range(count + 1)]
    return sorted(products, reverse=True)[1:]


def halvings(count: int) -> list[int]:
    """A number divided by 2 again and again, or by its smallest prime, as long as 2 or more is left."""
    counts = []
    while (count := next(iter(divisors(count)), 1)) > 1:
        counts.append(count)
    return counts


FOLLOWS = "it follows from sizes that stay"
_UNEQUAL = "sizes that depend on it cannot shrink in proportion"


@define(eq=False)
class Offsets:
    """Working out which part of every root stays."""

    relations: Relations
    equations: list[Equation]
    products: list[Product]
    kept: dict[int, tuple[str, Place]] = attrs.field(factory=dict)
    """The roots that stay though they are larger than 1: why, and in which instruction that shows."""
    offsets: dict[int, int] = attrs.field(factory=dict)
    """By root, the part of its size that stays."""
    bound: Collection[int] = ()
    """Roots of which more is known than equations and products (`bound_roots`)."""
    divided: dict[int, tuple[int, ...]] = attrs.field(factory=dict)
    """Roots by which the elements along others are divided anew, and these."""

    def size(self, root: int) -> int:
        """The size of a root before it shrinks."""
        return self.relations.sizes[root]

    def base(self, root: int) -> int:
        """The part of the size of a root that may shrink; 0 where the root stays."""
        return self.size(root) - self.offsets[root]

    def fresh(self, roots: Iterable[int]) -> list[int]:
        """Those of some roots that could stay and do not yet."""
        return [root for root in roots if root not in self.kept and self.size(root) > 1]

    def keep(self, roots: Iterable[int], reason: str, where: Place) -> None:
        """Let roots stay."""
        self.kept.update(dict.fromkeys(self.fresh(roots), (reason, where)))

    def settle(self, roots: Sequence[int]) -> None:
        """Give every root an offset that satisfies all equations; roots stay where there is none.

        Roots that no equation or product ties to others are settled apart; of what cannot hold, the first comes first.
        """
        parts = self._parts(roots)
        waiting = [(failure, number) for number, part in enumerate(parts) if (failure := part.attempt())]
        heapify(waiting)
        while waiting:
            number = heappop(waiting)[1]
            parts[number].repair()
            if failure := parts[number].attempt():
                heappush(waiting, (failure, number))
        self.offsets = {root: offset for part in parts for root, offset in part.offsets.items()}
        left = sorted((number, product) for part in parts for number, product in part.products.items())
        self.products[:] = [product for _, product in left]

    def _parts(self, roots: Sequence[int]) -> list[_Part]:
        tied = UnionFind()
        tied.extend(len(self.relations.sizes))
        terms = [[root for root, _ in equation.terms] for equation in self.equations]
        factors = [[*product.left, *product.right] for product in self.products]
        for first, *others in filter(None, (*terms, *factors)):
            for other in others:
                tied.tie(first, other)
        parts: dict[int, _Part] = defaultdict(lambda: _Part(self))
        for root in roots:
            parts[tied.root(root)].roots.append(root)
        for number, (equation, members) in enumerate(zip(self.equations, terms, strict=True)):
            parts[tied.root(members[0])].equations[number] = equation
        for number, (product, members) in enumerate(zip(self.products, factors, strict=True)):
            parts[tied.root(members[0])].products[number] = product
        return list(parts.values())

    def keep_what_follows(self, roots: Sequence[int]) -> None:
        """Say of roots that stay because others do that they do, and in which instruction that shows."""
        places = {root: equation.where for equation in reversed(self.equations) for root, _ in equation.terms}
        for root in roots:
            if not self.base(root):
                self.keep([root], FOLLOWS, places.get(root, ("", "")))


_Failure: TypeAlias = tuple[int, tuple[int | bool, ...]]
"""In which round something cannot hold, and where in its order."""


@define(eq=False)
class _Part:
    """Roots that equations and products tie together, with these, by their numbers."""

    whole: Offsets
    roots: list[int] = attrs.field(factory=list)
    equations: dict[int, Equation] = attrs.field(factory=dict)
    products: dict[int, Product] = attrs.field(factory=dict)
    offsets: dict[int, int] = attrs.field(factory=dict)
    sources: dict[int, int] = attrs.field(factory=dict)
    """By root, the number of the equation that its offset is from."""
    repair: Callable[[], None] = attrs.field(init=False)
    """What to do about the last failure."""

    def attempt(self) -> _Failure | None:
        """Give every root an offset; where that fails, the first failure."""
        size, kept = self.whole.size, self.whole.kept
        self.offsets = {root: size(root) for root in self.roots if root in kept or size(root) <= 1}
        self.sources.clear()
        for number in self.equations:
            if not self._solve(number):
                return 0, (number,)
        return self._propagate() or self._fit_products()

    def _propagate(self) -> _Failure | None:
        users = defaultdict(list)
        for number, equation in self.equations.items():
            for root, _ in equation.terms:
                users[root].append(number)
        multiplied = {root for product in self.products.values() for root in (*product.left, *product.right)}
        order = sorted((*_roughness(self.whole.size(root)), root not in multiplied, root) for root in self.roots)
        for rank in order:
            waiting = [rank[-1]]
            self.offsets.setdefault(rank[-1], 0)
            while waiting:
                for number in users[waiting.pop()]:
                    before = len(self.offsets)
                    if not self._solve(number):
                        return 1, rank
                    if len(self.offsets) > before:
                        waiting.append(next(reversed(self.offsets)))
        return None

    def _solve(self, number: int) -> bool:
        """Find the one offset that an equation lacks; False where it cannot hold unless roots stay that do not yet."""
        equation = self.equations[number]
        roots = [root for root, _ in equation.terms]
        unknown = [(root, count) for root, count in equation.terms if root not in self.offsets]
        total = sum(count * self.offsets[root] for root, count in equation.terms if root in self.offsets)
        if len(unknown) > 1 or (not unknown and total == equation.constant):
            return True
        if unknown:
            ((root, count),) = unknown
            offset, rest = divmod(equation.constant - total, count)
            if not rest and offset <= self.whole.size(root):
                self.offsets[root] = offset
                self.sources[root] = number
                return True
        if not self.whole.fresh(roots):
            return True
        self.repair = self._replacing(roots, number) or partial(self.whole.keep, roots, _UNEQUAL, equation.where)
        return False

    def _replacing(self, roots: Sequence[int], number: int | None = None) -> Callable[[], None] | None:
        """What puts another equation in the place of one that offsets of roots are from, or of the one with a number:
        the nearest of those that may be another; None where there is none."""
        waiting = deque([] if number is None else [number])
        waiting.extend(self.sources[root] for root in roots if root in self.sources)
        seen = set(waiting)
        while waiting:
            number = waiting.popleft()
            equation = self.equations[number]
            if equation.otherwise is not None:
                return partial(self._replace, number, equation.otherwise)
            nearer = {self.sources[root]: None for root, _ in equation.terms if root in self.sources}
            waiting.extend(other for other in nearer if other not in seen)
            seen.update(nearer)
        return None

    def _replace(self, number: int, equation: Equation) -> None:
        self.equations[number] = self.whole.equations[number] = equation

    def _fit_products(self) -> _Failure | None:
        """A product of a size with an offset is linear in it, if all other sizes stay that it is multiplied with."""
        for number, product in self.products.items():
            for side, other in product.sides:
                for root in side:
                    if self.offsets[root] and self.whole.size(root) != self.offsets[root]:
                        self.repair = partial(self._make_linear, number, root, side, other)
                        return 2, (number,)
        return None

    def _make_linear(self, number: int, root: int, side: Axes, other: Axes) -> None:
        whole, product = self.whole, self.products.pop(number)
        is_equal = prod(map(whole.size, side)) == prod(map(whole.size, other))
        free = next((parts for parts in (other, side) if is_equal and self._are_free(parts)), None)
        if len(other) != 1 and free is not None:
            whole.divided.update(_divided_by(free, side if free is other else other))
            return
        partner = self._partner(root, side, other)
        if partner is None:
            self.products[number] = product
            replace = self._replacing([root])
            if replace is not None:
                replace()
                return
            whole.keep([root], "sizes do not shrink in proportion", product.where)
            return
        rests = [list(side), list(other)]
        for rest, changing in zip(rests, (root, partner), strict=True):
            rest.remove(changing)
            whole.keep(rest, "it is multiplied with a size that does not shrink in proportion", product.where)
        terms = ((partner, prod(map(whole.size, rests[1]))), (root, -prod(map(whole.size, rests[0]))))
        constant = sum(count * whole.size(axis) for axis, count in terms)
        equation = self.equations[len(whole.equations)] = Equation(terms, constant, product.where)
        whole.equations.append(equation)

    def _partner(self, root: int, side: Axes, other: Axes) -> int | None:
        """The size on the other side of a product that follows one with an offset, where both may change while all
        others stay; None where there is none, or those that would not stay without that are more than what could."""
        size = self.whole.size
        before, after = prod(map(size, side)) // max(1, size(root)), prod(map(size, other))
        for partner in sorted({*other}, key=size, reverse=True):
            rest = after // max(1, size(partner))
            follows = rest and not self.offsets[root] * before % rest and partner not in self.whole.kept
            staying = [*side, *other]
            staying.remove(root)
            staying.remove(partner)
            times = prod(size(axis) for axis in staying if self.offsets[axis] < size(axis))
            if follows and times <= max(size(root), _MOST_STAYING):
                return partner
        return None

    def _are_free(self, roots: Axes) -> bool:
        """Whether nothing is known of several roots but what they were multiplied with."""
        products, equations = self.products.values(), self.equations.values()
        return (
            len({*roots}) == len(roots) > 1
            and not any(root in self.whole.bound or root in self.whole.kept for root in roots)
            and not any(root in (*product.left, *product.right) for product in products for root in roots)
            and not any(root == axis for equation in equations for axis, _ in equation.terms for root in roots)
        )


def _divided_by(roots: Axes, wholes: Axes) -> dict[int, tuple[int, ...]]:
    """The factors of roots that divide the elements along others: one of these each, and the last one all that are
    left."""
    *first, last = roots
    parts = {root: wholes[number : number + 1] for number, root in enumerate(first)}
    return {**parts, last: wholes[len(first) :]}


_MOST_STAYING = 64
"""So large a product may stay for a smaller size to change."""


@cache
def _roughness(size: int) -> tuple[int, int]:
    """Sizes that frameworks choose, such as 2048, come before those that differ from them, such as 2047."""
    return max(factorization(size), default=1), -size


_LISTED = 4


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
    has_lanes: bool = False
    """Whether rows of tiles are as long, which a compiler chose."""

    def sizes(self, unit: int) -> dict[int, int]:
        """The new sizes of the roots for a new unit."""
        return {root: base // self.unit * unit + self.offsets[root] for root, base in self.bases.items()}

    def unit_for(self, root: int, before: int, after: int) -> int:
        """The unit with which a root's size becomes what is asked for; InputError where there is none."""
        unit, rest = divmod((after - self.offsets[root]) * self.unit, self.bases[root])
        if not rest and unit >= self.lowest and not (self.is_divided and self.unit % unit):
            return unit
        units = [number for number in range(self.lowest, self.unit + 1) if not (self.is_divided and self.unit % number)]
        sizes = sorted((self.sizes(number)[root] for number in units), key=lambda size: abs(log2(max(1, size) / after)))
        words = ", ".join(map(str, sizes[:_LISTED]))
        raise InputError(f"size {before} cannot become {after}, as other sizes depend on it; the nearest are {words}")


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
    summed: Mapping[int, tuple[int, ...]] = attrs.field(factory=dict)
    """The parts of roots that are the sum of others, and nothing else, the smallest first."""
    divided: Mapping[int, tuple[int, ...]] = attrs.field(factory=dict)
    """The factors of roots that divide the elements along others anew."""

    def with_ones(self) -> Groups:
        """The same where sizes may become 1."""
        return attrs.evolve(self, groups=[attrs.evolve(group, least=group.lowest) for group in self.groups])

    def numbers(self, root: int) -> tuple[int, ...]:
        """The groups on which the size of a root depends, each as often as it is a factor."""
        factors = self.divided.get(root, self.merged.get(root))
        if factors is not None:
            return tuple(number for factor in factors for number in self.numbers(factor))
        return (self.of_root[root],) if root in self.of_root else ()


def groups_of(relations: Relations, inputs: Collection[int] = ()) -> Groups:
    """Work out the groups of a module's dimensions; those of its inputs are no product of others."""
    refine_products(relations)
    tie_splits(relations)
    root = relations.root
    equations, products = distinct_equations(relations), distinct_products(relations)
    bound = bound_roots(relations, inputs)
    divide_sums(relations, equations, products, bound)
    summed = summed_roots(relations, equations, products, bound)
    merged = merged_roots(relations, equations, products, bound)
    roots = sorted({root(dimension) for dimension in range(len(relations.sizes))} - merged.keys() - summed.keys())
    working = Offsets(relations, equations, products, bound=bound)
    for dimension, (reason, where) in relations.kept.items():
        working.keep([root(dimension)], reason, where)
    working.settle(roots)
    working.keep_what_follows(roots)
    members = _members(working, [root for root in roots if root not in working.divided])
    _drop_indivisible(working, members, relations)
    return attrs.evolve(_assembled(working, members, relations, merged), summed=summed, divided=working.divided)


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
    members: dict[int, list[int]] = {}
    for root in parents:
        members.setdefault(find(root), []).append(root)
    return members


def _units(working: Offsets, members: Mapping[int, list[int]], relations: Relations) -> dict[int, int]:
    units = {first: gcd(*map(working.base, roots)) for first, roots in members.items()}
    first_of = {root: first for first, roots in members.items() for root in roots}
    wholes = [entry for equation in working.equations for entry in equation.whole]
    for dimension, number in (*relations.whole, *wholes):
        first = first_of.get(relations.root(dimension))
        if first is not None:
            units[first] = gcd(units[first], number)
    return units


def _drop_indivisible(working: Offsets, members: dict[int, list[int]], relations: Relations) -> None:
    """Groups with unit 1 stay."""
    uses = [(equation.where, [root for root, _ in equation.terms]) for equation in working.equations]
    uses += [(product.where, [*product.left, *product.right]) for product in working.products]
    firsts: dict[int, int] = {}
    for number, (_, used) in enumerate(uses):
        for root in used:
            firsts.setdefault(root, number)
    for first, unit in _units(working, members, relations).items():
        if unit <= 1:
            roots = members.pop(first)
            used_first = min((firsts[root] for root in roots if root in firsts), default=None)
            where = ("", "") if used_first is None else uses[used_first][0]
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
    leasts = [entry for equation in working.equations for entry in equation.least]
    for dimension, size in (*relations.least, *leasts):
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
                has_lanes=relations.lanes is not None and relations.root(relations.lanes) in roots,
            )
        )
    return Groups(groups, products, of_root, merged, working.kept)
