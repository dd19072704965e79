"""Products of dimensions, such as those of a reshape, and what they say of one another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import attrs

from hloexec.ops.relations import Axes, Equation, Place, Product, Relations
from hloexec.ops.relations.parts import matching_groups


def refine_products(relations: Relations) -> None:
    """Where dimensions are factors of others, products of these may be products of the factors one by one.

    [24, 20, 28] that became [480, 28], and that [24, 560], has the same 24: the elements are in the same order. That
    is known of one array and those that are computed from it element by element, not of others of the same size.
    """
    splits = _splits(relations)
    found: list[Product] = []
    for product in [*relations.products, *_alternatives(splits, relations)]:
        if min(len(product.left), len(product.right)) > 1:
            found += _refined(product, splits, relations)
        else:
            found.append(product)
    relations.products[:] = found


def _splits(relations: Relations) -> dict[int, list[tuple[Axes, Place]]]:
    """The factors of dimensions, in each way in which they are known, the most factors first."""
    found: dict[int, list[tuple[Axes, Place]]] = defaultdict(list)
    for product in relations.products:
        for whole, parts in ((product.left, product.right), (product.right, product.left)):
            if (
                len(whole) == 1
                and len(parts) > 1
                and relations.sizes[whole[0]] == prod(relations.sizes[part] for part in parts)
            ):
                found[relations.aligned.root(whole[0])].append((parts, product.where))
    for ways in found.values():
        ways.sort(key=lambda way: -len(way[0]))
    return found


def _alternatives(splits: Mapping[int, list[tuple[Axes, Place]]], relations: Relations) -> Iterator[Product]:
    """What the factors of a dimension that is split in several ways have to do with one another."""
    for (finest, _), *others in splits.values():
        for parts, where in others:
            if [relations.sizes[part] for part in parts] != [relations.sizes[part] for part in finest]:
                yield Product(finest, parts, where)


def _refined(
    product: Product, splits: Mapping[int, list[tuple[Axes, Place]]], relations: Relations
) -> Iterator[Product]:
    def expanded(axes: Sequence[int]) -> list[int]:
        ways = [splits[root][0][0] if (root := relations.aligned.root(axis)) in splits else None for axis in axes]
        return [
            each for axis, way in zip(axes, ways, strict=True) for each in ([axis] if way is None else expanded(way))
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
    is_changed = True
    while is_changed:
        is_changed = False
        seen: dict[object, tuple[int, ...]] = {}
        for product in relations.products:
            sides = tuple(map(relations.root, product.left)), tuple(map(relations.root, product.right))
            for whole, parts in (sides, sides[::-1]):
                if len(parts) < 2:
                    continue
                key = whole, tuple(relations.sizes[part] for part in parts)
                for ours, theirs in zip(seen.setdefault(key, parts), parts, strict=True):
                    if relations.root(ours) != relations.root(theirs):
                        relations.tie(ours, theirs)
                        is_changed = True


def distinct_equations(relations: Relations) -> list[Equation]:
    """The equations between roots, each once, with one term for each root; those that always hold are left out."""
    found: dict[object, Equation] = {}
    for equation in relations.equations:
        terms: dict[int, int] = {}
        for dimension, count in equation.terms:
            root = relations.root(dimension)
            terms[root] = terms.get(root, 0) + count
        items = tuple(sorted((root, count) for root, count in terms.items() if count))
        if items:
            found.setdefault((items, equation.constant), attrs.evolve(equation, terms=items))
    return list(found.values())


def distinct_products(relations: Relations) -> list[Product]:
    """The products of roots, each once, without the factors that are on both sides."""
    found: dict[object, Product] = {}
    for product in relations.products:
        left, right = list(map(relations.root, product.left)), list(map(relations.root, product.right))
        for root in list(left):
            if root in right:
                left.remove(root)
                right.remove(root)
        if left or right:
            first, second = sorted((tuple(sorted(left)), tuple(sorted(right))))
            found.setdefault((first, second), Product(first, second, product.where))
    return list(found.values())


def merged_roots(
    relations: Relations, equations: list[Equation], products: list[Product], inputs: set[int]
) -> dict[int, tuple[int, ...]]:
    """Roots that are the product of others, of which nothing else is known; their products are taken out.

    The size of such a root follows, so that its factors may shrink by any factors.
    """
    bound = inputs | {root for equation in equations for root, _ in equation.terms}
    bound |= {relations.root(dimension) for dimension in relations.kept}
    bound |= {relations.root(dimension) for dimension, _ in relations.whole}
    bound |= {relations.root(dimension) for dimension, size in relations.least if size > 1}
    found: dict[int, tuple[int, ...]] = {}
    is_changed = True
    while is_changed:
        is_changed = False
        counts = Counter(root for product in products for root in (*product.left, *product.right))
        for product in list(products):
            for whole, factors in ((product.left, product.right), (product.right, product.left)):
                if len(whole) != 1 or counts[whole[0]] != 1 or whole[0] in bound or not factors:
                    continue
                if relations.sizes[whole[0]] % prod(relations.sizes[factor] for factor in factors) == 0:
                    found[whole[0]] = factors
                    products.remove(product)
                    is_changed = True
                    break
            if is_changed:
                break
    return found
