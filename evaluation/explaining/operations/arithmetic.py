"""How programs compute, so that each operation can have other numerics, and be found in the module.

Written plainly, an operation is the one of JAX's, within a scope that has its number. Written as a truth, narrow numbers
are carried in f32: with what they were before they were rounded, which is what later operations read that keep excess
precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import attrs
import numpy as np

from evaluation.explaining.operations.functions import EXACT, FAST, FUNCTIONS

_f32 = np.float32
_FORMS = {"tf32": (10, 1), "tf32x3": (10, 2), "bf16": (7, 1), "bf16x3": (7, 2), "bf16x6": (7, 3)}
"""Bits of the significands of parts, and the number of parts."""
NARROW_OPERATIONS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "max": "maximum", "tanh": "tanh",
    "exp": "exponential", "rsqrt": "rsqrt", "neg": "negate",
}  # fmt: skip
"""Elementwise operations on bf16 and f16, by JAX's names: HLO's."""


@attrs.frozen(eq=False)
class Narrow:
    """A narrow number as a truth carries it, in f32: as it is, and as it was before it was rounded."""

    value: Any
    unrounded: Any
    type: str


@attrs.define(eq=False)
class Arithmetic:
    """The operations of a program, by their numbers in the order in which it writes them.

    `how` has the policies of single ones by their numbers, and of all of a kind by its name; `is_truth` is whether they
    are written out; `is_exact` whether products, sums and functions are computed in f64; `is_otherwise` whether sums are
    taken in the other direction, and functions rounded correctly, where the policy leaves that open.
    """

    jax: Any
    is_truth: bool = False
    how: Mapping[int | str, str] = attrs.field(factory=dict)
    fault: str = ""
    is_exact: bool = False
    is_otherwise: bool = False
    sites: list[tuple[str, str]] = attrs.field(factory=list, init=False)
    """For each number what it is (`product`, `function`, `sum`, `elementwise`) and HLO's opcode."""

    def wrong(self, fault: str) -> bool:
        """Whether to have this fault."""
        return self.fault == fault

    # Products

    def product(self, form: str, lhs: Any, rhs: Any) -> Any:
        """An einsum whose result has the dimensions of both first, then the left one's and the right one's own."""
        (left, right), result = form.partition("->")[0].split(","), form.partition("->")[2]
        batch = [each for each in left if each in right and each in result]
        summed = [each for each in left if each in right and each not in result]
        numbers = [tuple(side.index(each) for each in each_of) for each_of in (summed, batch) for side in (left, right)]
        dimensions = ((numbers[0], numbers[1]), (numbers[2], numbers[3]))
        return self._multiplied(
            lambda a, b: self.jax.lax.dot_general(self._turned(a, numbers[0]), self._turned(b, numbers[1]), dimensions),
            lambda a, b: np.einsum(form, a, b),
            lhs,
            rhs,
        )

    def dot(self, lhs: Any, rhs: Any) -> Any:
        """[m, k] times [k, n]."""
        return self.product("mk,kn->mn", lhs, rhs)

    def convolution(self, lhs: Any, rhs: Any, padding: Any, layout: Any, dilation: Sequence[int] | None = None) -> Any:
        """A convolution of stride 1; `layout` as JAX's `dimension_numbers`."""

        def convolved(a: Any, b: Any) -> Any:
            a, b = self._turned(a, (layout[0].index("C"),)), self._turned(b, (layout[1].index("I"),))
            return self.jax.lax.conv_general_dilated(
                a, b, (1,) * (a.ndim - 2), padding, rhs_dilation=dilation, dimension_numbers=layout
            )

        return self._multiplied(convolved, None, lhs, rhs)

    def _multiplied(self, product: Callable[..., Any], exactly: Any, lhs: Any, rhs: Any) -> Any:
        is_narrow = isinstance(lhs, Narrow) or lhs.dtype != np.float32
        opcode = "dot" if exactly is not None else "convolution"
        policy = self._next("sum" if is_narrow else "product", opcode)
        with self._scope:
            if is_narrow:
                return self._narrow_product(policy, product, lhs, rhs)
            if self.is_exact:
                return self._by_numpy(exactly, self.jax.eval_shape(product, lhs, rhs).shape, lhs, rhs)
            if policy is None:
                return product(lhs, rhs)
            bits, count = _FORMS[policy]
            left, right = (self._parts(operand, bits, count) for operand in (lhs, rhs))
            terms = [
                product(left[i], right[total - i])
                for total in reversed(range(count))
                for i in reversed(range(total + 1))
            ]
            return reduce(lambda total, term: total + term, terms[::-1] if self.is_otherwise else terms)

    def _turned(self, operand: Any, axes: Sequence[int]) -> Any:
        """In the other direction, for a sum that is to be: behind a barrier, for XLA would not turn it."""
        if not self.is_otherwise or not axes:
            return operand
        return self.jax.lax.optimization_barrier(self.jax.numpy.flip(operand, axes))

    def _parts(self, operand: Any, bits: int, count: int) -> list[Any]:
        """The high part of a value, that of what is left, and so on."""
        found = []
        for _ in range(count):
            found.append(self.jax.lax.reduce_precision(operand, 8, bits))
            operand = operand - found[-1]
        return found

    def _narrow_product(self, policy: str | None, product: Callable[..., Any], lhs: Any, rhs: Any) -> Any:
        """[m, k] times [k, n] in a narrow type: added up in f32, or rounded after each of the k."""
        if not self.is_truth:
            return product(lhs, rhs)
        lhs, rhs = self._taken(lhs), self._taken(rhs)
        if policy is None:
            return self._rounded(product(lhs.value, rhs.value), lhs.type)
        total = self.jax.numpy.zeros((lhs.value.shape[0], rhs.value.shape[1]), np.float32)
        for k in range(lhs.value.shape[1]):
            step = total + lhs.value[:, k, None] * rhs.value[None, k, :]
            total = self._rounded(step, lhs.type).value
        return Narrow(total, total, lhs.type)

    # Functions of f32

    def function(self, name: str, *operands: Any) -> Any:
        """One of `FUNCTIONS`."""
        operands = tuple(self.jax.numpy.broadcast_arrays(*operands))
        policy = self._next("function", FUNCTIONS[name])
        with self._scope:
            if policy is not None:
                return self._by_numpy(FAST[name], operands[0].shape, *operands, wide=False)
            if self.is_exact or self.is_otherwise:
                return self._by_numpy(EXACT[name], operands[0].shape, *operands)
            if not self.is_truth:
                return getattr(self.jax.lax, name)(*operands)
            # XLA:CPU would make another formula of it: a product with a reciprocal of a quotient by a broadcast number,
            # or the exponential of a sum of a product of exponentials.
            kept = self.jax.lax.optimization_barrier
            return kept(getattr(self.jax.lax, name)(*kept(operands)))

    def divide(self, dividend: Any, divisor: Any) -> Any:
        """A quotient."""
        return self.function("div", dividend, divisor)

    def logistic(self, operand: Any) -> Any:
        """Of f32, of an exponential and a quotient, as JAX lowers it."""
        return self.divide(_f32(1), self.function("exp", -operand) + _f32(1))

    def total(self, operand: Any, axis: int) -> Any:
        """A sum of f32, in f32 under every policy but `exact`."""
        if not self.is_exact:
            return self._turned(operand, (axis,)).sum(axis)
        shape = self.jax.eval_shape(lambda x: x.sum(axis), operand).shape
        return self._by_numpy(lambda x: x.sum(axis), shape, operand)

    def softmax(self, scores: Any, axis: int = -1) -> Any:
        """Of f32, of an exponential and a quotient."""
        powers = self.function("exp", scores - scores.max(axis, keepdims=True))
        return self.divide(powers, self.jax.numpy.expand_dims(self.total(powers, axis), axis))

    # Narrow types

    def narrow(self, name: str, *operands: Any) -> Any:
        """One of `NARROW_OPERATIONS` on arrays of a narrow type."""
        policy = self._next("elementwise", NARROW_OPERATIONS[name])
        lax = self.jax.lax
        with self._scope:
            if not self.is_truth:
                return getattr(lax, name)(*self.jax.numpy.broadcast_arrays(*operands))
            taken = [self._taken(operand) for operand in operands]
            read = self.jax.numpy.broadcast_arrays(
                *(each.value if policy is None else each.unrounded for each in taken)
            )
            return self._rounded(getattr(lax, name)(*read), taken[0].type)

    def narrow_logistic(self, operand: Any) -> Any:
        """Of bf16, as JAX lowers it."""
        one = np.ones((), "bfloat16")
        power = self.narrow("exp", self.narrow("neg", operand))
        return self.narrow("div", one, self.narrow("add", power, one))

    def widened(self, operand: Any) -> Any:
        """Converted to f32."""
        policy = self._next("elementwise", "convert")
        with self._scope:
            if not self.is_truth:
                return operand.astype(np.float32)
            taken = self._taken(operand)
            return taken.value if policy is None else taken.unrounded

    def narrowed(self, operand: Any, element_type: str = "bfloat16") -> Any:
        """Converted from f32: that rounds under every policy."""
        if not self.is_truth:
            return operand.astype(element_type)
        value = self._rounded(operand, element_type).value
        return Narrow(value, value, element_type)

    def sum(self, operand: Any, *axes: int) -> Any:
        """The sum of narrow numbers in their type."""
        policy = self._next("sum", "reduce")
        lax = self.jax.lax
        with self._scope:
            if not self.is_truth:
                return lax.reduce(operand, np.zeros((), operand.dtype), lax.add, axes)
            taken = self._taken(operand)
            if policy is None:
                value = self._rounded(self._turned(taken.value, axes).sum(axes), taken.type).value
            else:
                # XLA:CPU rounds at each step by itself.
                narrow = taken.value.astype(taken.type)
                value = lax.reduce(narrow, np.zeros((), narrow.dtype), lax.add, axes).astype(np.float32)
            return Narrow(value, value, taken.type)

    def moved(self, how: Callable[[Any], Any], operand: Any) -> Any:
        """A narrow array moved around: broadcast, sliced, transposed. What it was before it was rounded is lost."""
        if not self.is_truth:
            return how(operand)
        taken = self._taken(operand)
        value = how(taken.value)
        return Narrow(value, value, taken.type)

    def left(self, result: Any) -> Any:
        """A result of the program as the module returns it."""
        return result.value.astype(result.type) if isinstance(result, Narrow) else result

    def _taken(self, operand: Any) -> Narrow:
        if isinstance(operand, Narrow):
            return operand
        value = operand.astype(np.float32)
        return Narrow(value, value, operand.dtype.name)

    def _rounded(self, value: Any, element_type: str) -> Narrow:
        if element_type == "bfloat16":
            return Narrow(self.jax.lax.reduce_precision(value, 8, 7), value, element_type)
        return Narrow(value.astype(element_type).astype(np.float32), value, element_type)

    # Numbers of operations

    def _next(self, kind: str, opcode: str) -> str | None:
        self.sites.append((kind, opcode))
        return self.how.get(len(self.sites) - 1, self.how.get(kind))

    @property
    def _scope(self) -> Any:
        return self.jax.named_scope(f"site{len(self.sites) - 1}_")

    def _by_numpy(self, function: Callable[..., Any], shape: Any, *operands: Any, wide: bool = True) -> Any:
        """Computed in f64 and rounded once; or, if not `wide`, as the function says."""
        kind = np.float64 if wide else np.float32

        def computed(*arrays: Any) -> Any:
            return np.asarray(function(*(np.asarray(each).astype(kind) for each in arrays))).astype(np.float32)

        result = self.jax.ShapeDtypeStruct(shape, np.float32)
        return self.jax.pure_callback(computed, result, *operands)
