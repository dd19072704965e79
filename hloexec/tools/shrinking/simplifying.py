"""Equations and products between dimensions, in as plain a form as they have.

Products of several dimensions are taken apart where their factors are known; what is nothing but the product or the sum
of others follows these, so that they may shrink by any factors.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import prod
from typing import Any

import attrs

from hloexec.ops.relations import Axes, Equation, Place, Product, Relations
from hloexec.ops.relations.reshapes import matching_groups

_Splits = Mapping[int, list[tuple[Axes, Place]]]


def refine_products(relations: Relations) -> None:
    """Where dimensions are factors of others, products of these may be products of the factors one by one.

    [24, 20, 28] that became [480, 28], and that [24, 560], has the same 24: the elements are in the same order. That
    is known of one array and those that are computed from it element by element, not of others of the same size.
    """
    splits = _splits(relations)
    products: list[Product] = []
    for product in [*relations.products, *_alternatives(splits, relations)]:
        if min(len(product.left), len(product.right)) > 1:
            products += _refined(product, splits, relations)
        else:
            products.append(product)
    relations.products[:] = products


def _splits(relations: Relations) -> dict[int, list[tuple[Axes, Place]]]:
    """The factors of dimensions, in each way in which they are known, the most factors first."""
    splits: dict[int, list[tuple[Axes, Place]]] = defaultdict(list)
    for product in relations.products:
        for whole, parts in product.sides:
            if (
                len(whole) == 1
                and len(parts) > 1
                and relations.sizes[whole[0]] == prod(relations.sizes[part] for part in parts)
            ):
                splits[relations.aligned.root(whole[0])].append((parts, product.where))
    for ways in splits.values():
        ways.sort(key=lambda way: -len(way[0]))
    return splits


def _alternatives(splits: _Splits, relations: Relations) -> Iterator[Product]:
    """What the factors of a dimension that is split in several ways have to do with one another."""
    for (finest, _), *others in splits.values():
        for parts, where in others:
            if [relations.sizes[part] for part in parts] != [relations.sizes[part] for part in finest]:
                yield Product(finest, parts, where)


def _refined(product: Product, splits: _Splits, relations: Relations) -> Iterator[Product]:
    def expanded(axes: Sequence[int]) -> list[int]:
        ways = [splits[root][0][0] if (root := relations.aligned.root(axis)) in splits else None for axis in axes]
        return [
            factor
            for axis, way in zip(axes, ways, strict=True)
            for factor in ([axis] if way is None else expanded(way))
        ]

    left, right = expanded(product.left), expanded(product.right)
    sizes = [[relations.sizes[axis] for axis in side] for side in (left, right)]
    groups = matching_groups(*sizes) if prod(sizes[0]) == prod(sizes[1]) else []
    if len(groups) < 2:
        yield product
        return
    for first, second in groups:
        ours, theirs = tuple(left[number] for number in first), tuple(right[number] for number in second)
        if len(ours) == len(theirs) == 1:
            relations.tie(ours[0], theirs[0])
        else:
            yield Product(ours, theirs, product.where)


def tie_splits(relations: Relations) -> None:
    """Where one dimension is split twice, in the same way, the parts are the same, as far as anyone can tell."""
    relations.tie_results(
        [
            (tuple(relations.sizes[part] for part in parts), whole, parts)
            for product in relations.products
            for whole, parts in product.sides
            if len(parts) > 1
        ]
    )


def distinct_equations(relations: Relations) -> list[Equation]:
    """The equations between roots, each once, with one term for each root; those that always hold are left out."""
    equations: dict[object, Equation] = {}
    for equation in relations.equations:
        plain = _between_roots(equation, relations)
        if plain.terms:
            key = plain.terms, plain.constant
            before = equations.setdefault(key, plain)
            if before is not plain:
                both = dict.fromkeys((*before.whole, *plain.whole))
                equations[key] = attrs.evolve(before, whole=tuple(both), otherwise=before.otherwise and plain.otherwise)
    return list(equations.values())


def _between_roots(equation: Equation, relations: Relations) -> Equation:
    terms: dict[int, int] = {}
    for dimension, count in equation.terms:
        root = relations.root(dimension)
        terms[root] = terms.get(root, 0) + count
    items = tuple(sorted((root, count) for root, count in terms.items() if count))
    second = equation.otherwise and _between_roots(equation.otherwise, relations)
    return attrs.evolve(equation, terms=items, otherwise=second)


def distinct_products(relations: Relations) -> list[Product]:
    """The products of roots, each once, without the factors that are on both sides."""
    products: dict[object, Product] = {}
    for product in relations.products:
        left, right = list(map(relations.root, product.left)), list(map(relations.root, product.right))
        for root in list(left):
            if root in right:
                left.remove(root)
                right.remove(root)
        if left or right:
            first, second = sorted((tuple(sorted(left)), tuple(sorted(right))))
            products.setdefault((first, second), Product(first, second, product.where))
    return list(products.values())


def bound_roots(relations: Relations, inputs: Iterable[int]) -> set[int]:
    """The roots of inputs, and of what is a multiple of a number or no smaller than one."""
    axes = [*inputs, *(axis for axis, _ in relations.whole), *(axis for axis, size in relations.least if size > 1)]
    return set(map(relations.root, axes))


def merged_roots(
    relations: Relations, equations: list[Equation], products: list[Product], bound: set[int]
) -> dict[int, tuple[int, ...]]:
    """Roots that are the product of others, of which nothing else is known; their products are taken out.

    The size of such a root follows, so that its factors may shrink by any factors.
    """
    bound = bound | {root for equation in equations for root, _ in equation.terms}
    bound |= {relations.root(dimension) for dimension in relations.kept}
    counts = Counter(root for product in products for root in (*product.left, *product.right))

    def merged(product: Product) -> tuple[int, tuple[int, ...]] | None:
        for whole, factors in product.sides:
            if len(whole) != 1 or counts[whole[0]] != 1 or whole[0] in bound or not factors:
                continue
            if relations.sizes[whole[0]] % prod(relations.sizes[factor] for factor in factors) == 0:
                return whole[0], factors
        return None

    uses: dict[int, set[int]] = defaultdict(set)
    for number, product in enumerate(products):
        for root in (*product.left, *product.right):
            uses[root].add(number)
    waiting, left = list(range(len(products))), dict(enumerate(products))
    factors_by_root: dict[int, tuple[int, ...]] = {}
    while waiting:
        number = heappop(waiting)
        split = merged(left[number]) if number in left else None
        if split is None:
            continue
        factors_by_root.update([split])
        product = left.pop(number)
        for root in (*product.left, *product.right):
            counts[root] -= 1
            uses[root].discard(number)
            for other in uses[root] if counts[root] == 1 else ():
                heappush(waiting, other)
    products[:] = left.values()
    return factors_by_root


def divide_sums(relations: Relations, equations: list[Equation], products: list[Product], bound: set[int]) -> None:
    """Where devices share a sum of which nothing else is known, each has its share of every part: theirs is the sum of
    these, and what a part becomes is a multiple of the number of devices."""
    uses = Counter(root for product in products for root in {*product.left, *product.right})
    uses.update(root for equation in equations for root, _ in equation.terms)
    uses.update(relations.root(total) for total, _, _ in relations.sums)
    for total, parts, where in list(relations.sums):
        whole = relations.root(total)
        ties = list(_shares(relations, equations, products, whole))
        times = {relations.sizes[whole] // relations.sizes[share] for _, share, _ in ties}
        others = uses[whole] - 1 - len(ties) or any(uses[share] > 1 for _, share, _ in ties)
        if others or len(times) != 1 or any(relations.sizes[part] % max(times) for part in parts):
            continue
        shares = relations.new([relations.sizes[part] // max(times) for part in parts])
        for part, share in zip(parts, shares, strict=True):
            products.append(Product((relations.root(part),), tuple(sorted((share, *ties[0][2]))), where))
        for tie, share, _ in ties:
            said: list[Any] = products if isinstance(tie, Product) else equations
            said.remove(tie)
            relations.sums.append((share, shares, where))
            bound.discard(share)


def _shares(
    relations: Relations, equations: Sequence[Equation], products: Sequence[Product], whole: int
) -> Iterator[tuple[Equation | Product, int, tuple[int, ...]]]:
    """What says that devices have equal shares of a dimension: that, a share, and the number of devices, if it is a
    dimension."""
    devices = frozenset().union(*relations.device_roots())
    for product in products:
        for left, right in product.sides:
            shares = [root for root in right if root not in devices]
            if left == (whole,) and len(shares) == 1:
                yield product, shares[0], tuple(root for root in right if root in devices)
    for equation in equations:
        terms = dict(equation.terms)
        count = terms.pop(whole, 0)
        if len(terms) == 1 and not equation.constant and abs(count) == 1:
            ((share, times),) = terms.items()
            if (
                times == -count * relations.sizes[whole] // relations.sizes[share]
                and abs(times) in relations.device_counts
            ):
                yield equation, share, ()


def summed_roots(
    relations: Relations, equations: list[Equation], products: Sequence[Product], bound: set[int]
) -> dict[int, tuple[int, ...]]:
    """Roots that are the sum of others, of which nothing else is known, the smallest first; what else is a sum becomes
    an equation.

    The size of such a root follows, so that its parts may shrink by any factors.
    """
    bound = bound | {root for equation in equations for root, _ in equation.terms}
    bound |= {root for product in products for root in (*product.left, *product.right)}
    bound |= {relations.root(dimension) for dimension in relations.kept}
    sums = [(relations.root(total), tuple(map(relations.root, parts)), where) for total, parts, where in relations.sums]
    ways = {total: {parts for root, parts, _ in sums if root == total} for total, _, _ in sums}
    bound |= {total for total, parts in ways.items() if len(parts) > 1 or total in next(iter(parts))}
    while unfree := [entry for entry in sums if entry[0] in bound]:
        sums = [entry for entry in sums if entry[0] not in bound]
        for total, parts, where in unfree:
            bound.update(parts)
            terms = Counter({total: 1})
            terms.subtract(parts)
            items = tuple(sorted((root, count) for root, count in terms.items() if count))
            equations.append(Equation(items, sum(relations.sizes[root] * count for root, count in items), where))
    by_size = sorted(sums, key=lambda entry: relations.sizes[entry[0]])
    return {total: parts for total, parts, _ in by_size}
