"""How programs of the reserve write products, so that each can have other numerics, and be found in the module again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import attrs

_FORMS = {"tf32": (10, 1), "tf32x3": (10, 2), "bf16": (7, 1), "bf16x3": (7, 2), "bf16x6": (7, 3)}
"""Bits of the significands of parts, and the number of parts."""


@attrs.define(eq=False)
class Written:
    """What the products of a program are, by their numbers in the order in which the program writes them.

    `how` has the policy of each; those that are not there are as the text says.
    """

    jax: Any
    how: Mapping[int, str] = attrs.field(factory=dict)
    fault: str = ""
    count: int = attrs.field(default=0, init=False)

    def wrong(self, fault: str) -> bool:
        """Whether to have this fault."""
        return self.fault == fault

    def product(self, form: str, lhs: Any, rhs: Any) -> Any:
        """An einsum whose result has the dimensions of both first, then the left one's and the right one's own."""
        (left, right), result = form.partition("->")[0].split(","), form.partition("->")[2]
        batch = [each for each in left if each in right and each in result]
        summed = [each for each in left if each in right and each not in result]
        numbers = [tuple(side.index(each) for each in each_of) for each_of in (summed, batch) for side in (left, right)]
        dimensions = ((numbers[0], numbers[1]), (numbers[2], numbers[3]))
        return self._summed(lambda a, b: self.jax.lax.dot_general(a, b, dimensions), lhs, rhs)

    def dot(self, lhs: Any, rhs: Any) -> Any:
        """[m, k] times [k, n]."""
        return self.product("mk,kn->mn", lhs, rhs)

    def convolution(self, lhs: Any, rhs: Any, strides: tuple[int, ...], padding: str, layout: Any) -> Any:
        """A convolution; `layout` as JAX's `dimension_numbers`."""

        def convolved(a: Any, b: Any) -> Any:
            return self.jax.lax.conv_general_dilated(a, b, strides, padding, dimension_numbers=layout)

        return self._summed(convolved, lhs, rhs)

    def _summed(self, product: Any, lhs: Any, rhs: Any) -> Any:
        policy = self.how.get(self.count)
        with self.jax.named_scope(f"site{self.count}_"):
            self.count += 1
            if policy is None:
                return product(lhs, rhs)
            bits, parts = _FORMS[policy]
            left, right = (self._parts(operand, bits, parts) for operand in (lhs, rhs))
            terms = [
                product(left[i], right[total - i])
                for total in reversed(range(parts))
                for i in reversed(range(total + 1))
            ]
            return reduce(lambda total, term: total + term, terms)

    def _parts(self, operand: Any, bits: int, count: int) -> list[Any]:
        """The high part of a value, that of what is left, and so on."""
        found = []
        for _ in range(count):
            found.append(self.jax.lax.reduce_precision(operand, 8, bits))
            operand = operand - found[-1]
        return found
