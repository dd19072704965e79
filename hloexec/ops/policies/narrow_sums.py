"""Sums of narrow floats whose partial sums are rounded at each step: the `narrow-sums` policy.

Under `reference`, sums of types narrower than f32 are accumulated in f32 and rounded once. Hardware and compilers also
accumulate them in the type itself, in an order of their choice. Here reductions take XLA:CPU's: up to 32 terms along a
dimension are added one after the other. More are padded with zeros at both ends, as for a `SAME` convolution, to blocks
of 32; the sums of the blocks are then added likewise (XLA: TreeReductionRewriter; the bits are those of XLA:CPU of
jaxlib 0.10). The products of a contraction are added one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.values import Array
from hloexec.ops.common import narrow_unchecked, widen

_STEPS = 32
"""Number of terms that are added one after the other."""


def is_narrow_sum(entry: ElementType) -> bool:
    """Whether a type of sums is one that is usually accumulated in a wider one."""
    return entry.is_floating and entry.is_narrow


def added_stepwise(
    terms: Array, dimensions: Sequence[int], entry: ElementType, init_value: Array | None = None
) -> Array:
    """Floats, widened, added along dimensions in steps that are each rounded to a narrow type; widened, too."""
    sums = np.moveaxis(terms, dimensions, range(len(dimensions)))
    rank = len(dimensions)
    while max(sums.shape[:rank], default=1) > _STEPS:
        blocks = sums
        for axis in range(rank):
            blocks = _in_blocks(blocks, 2 * axis)
        # [count, steps, count, steps, …]: the counts stay.
        blocks = np.moveaxis(blocks, range(1, 2 * rank, 2), range(rank))
        sums = _added_in_order(blocks.reshape(-1, *blocks.shape[rank:]), entry)
    flat = sums.reshape(-1, *sums.shape[rank:])
    return _added_in_order(flat, entry, None if init_value is None else widen(init_value))


def _in_blocks(array: Array, axis: int) -> Array:
    """A dimension as two: blocks, and up to `_STEPS` terms in each; zeros fill the first and the last."""
    size = array.shape[axis]
    steps = min(_STEPS, size)
    count = -(-size // steps)
    missing = count * steps - size
    padding = [(0, 0)] * array.ndim
    padding[axis] = (missing // 2, missing - missing // 2)
    padded = np.pad(array, padding, constant_values=-0.0)
    return padded.reshape(*array.shape[:axis], count, steps, *array.shape[axis + 1 :])


def _added_in_order(terms: Array, entry: ElementType, start: Array | None = None) -> Array:
    """The sum over the first dimension."""
    total = np.full(terms.shape[1:], -0.0, terms.dtype) if start is None else np.broadcast_to(start, terms.shape[1:])
    for term in terms:
        total = widen(narrow_unchecked(total + term, entry))
    return np.asarray(total)


def products_added_stepwise(lhs: Array, rhs: Array, entry: ElementType) -> Array:
    """`[batch..., m, k]` times `[batch..., k, n]`, each sum rounded to a narrow type as it grows; widened."""
    total = np.zeros((*lhs.shape[:-1], rhs.shape[-1]), np.result_type(lhs, rhs))
    for k in range(lhs.shape[-1]):
        total += lhs[..., :, k, None] * rhs[..., None, k, :]
        total = widen(narrow_unchecked(total, entry))
    return total
