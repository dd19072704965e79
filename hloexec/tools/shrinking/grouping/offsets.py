"""Which part of the size of each root stays: 1 of 2049 = 2048 + 1, if 2048 can shrink and all equations still hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import prod

import attrs

from hloexec.core.structs import define
from hloexec.ops.relations import Equation, Place, Product, Relations
from hloexec.tools.shrinking.primes import factorization

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

    def size(self, root: int) -> int:
        """The size of a root before it shrinks."""
        return self.relations.sizes[root]

    def base(self, root: int) -> int:
        """The part of the size of a root that may shrink; 0 where the root stays."""
        return self.size(root) - self.offsets[root]

    def keep(self, roots: Iterable[int], reason: str, where: Place) -> bool:
        """Let roots stay; whether any of them did not before."""
        fresh = [root for root in roots if root not in self.kept and self.size(root) > 1]
        self.kept.update(dict.fromkeys(fresh, (reason, where)))
        return bool(fresh)

    def settle(self, roots: Sequence[int]) -> None:
        """Give every root an offset that satisfies all equations; roots stay where there is none."""
        while True:
            self.offsets = {root: self.size(root) for root in roots if root in self.kept or self.size(root) <= 1}
            if self._propagate(roots) and self._fit_products():
                return

    def keep_what_follows(self, roots: Sequence[int]) -> None:
        """Say of roots that stay because others do that they do, and in which instruction that shows."""
        places = {root: equation.where for equation in reversed(self.equations) for root, _ in equation.terms}
        for root in roots:
            if not self.base(root):
                self.keep([root], "it follows from sizes that stay", places.get(root, ("", "")))

    def _propagate(self, roots: Sequence[int]) -> bool:
        users = defaultdict(list)
        for equation in self.equations:
            for root, _ in equation.terms:
                users[root].append(equation)
        multiplied = {root for product in self.products for root in (*product.left, *product.right)}
        order = sorted(roots, key=lambda root: (*_roughness(self.size(root)), root not in multiplied, root))
        if not all(map(self._solve, self.equations)):
            return False
        for root in order:
            waiting = [root]
            if root not in self.offsets:
                self.offsets[root] = 0
            while waiting:
                for equation in users[waiting.pop()]:
                    before = len(self.offsets)
                    if not self._solve(equation):
                        return False
                    if len(self.offsets) > before:
                        waiting.append(next(reversed(self.offsets)))
        return True

    def _solve(self, equation: Equation) -> bool:
        """Find the one offset that an equation lacks; False where it cannot hold unless roots stay that did not."""
        unknown = [(root, count) for root, count in equation.terms if root not in self.offsets]
        known = sum(count * self.offsets[root] for root, count in equation.terms if root in self.offsets)
        if not unknown:
            roots = [root for root, _ in equation.terms]
            return known == equation.constant or not self.keep(roots, _UNEQUAL, equation.where)
        if len(unknown) > 1:
            return True
        ((root, count),) = unknown
        offset, rest = divmod(equation.constant - known, count)
        if rest or offset > self.size(root):
            return not self.keep([root for root, _ in equation.terms], _UNEQUAL, equation.where)
        self.offsets[root] = offset
        return True

    def _fit_products(self) -> bool:
        """A product of a size with an offset is linear in it, if all other sizes stay that it is multiplied with."""
        for product in list(self.products):
            for side, other in ((product.left, product.right), (product.right, product.left)):
                for root in side:
                    if not self.offsets[root] or not self.base(root):
                        continue
                    self.products.remove(product)
                    if len(other) == 1:
                        rest = list(side)
                        rest.remove(root)
                        self.keep(
                            rest, "it is multiplied with a size that does not shrink in proportion", product.where
                        )
                        terms = ((other[0], 1), (root, -prod(map(self.size, rest))))
                        constant = sum(count * self.size(each) for each, count in terms)
                        self.equations.append(Equation(terms, constant, product.where))
                    else:
                        self.keep((*side, *other), "sizes do not shrink in proportion", product.where)
                    return False
        return True


def _roughness(size: int) -> tuple[int, int]:
    """Sizes that frameworks choose, such as 2048, come before those that differ from them, such as 2047."""
    return max(factorization(size), default=1), -size
