"""Products of small matrices and vectors, by NumPy's `dot`.

`dot` calls the same routines of BLAS as `matmul`, with the same arguments, but takes a third of the time to get there.
That the bits are the same is checked for each kind of product before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np

from hloexec.core.dtypes import DType
from hloexec.core.values import Array
from hloexec.ops.blas import hold_blas, matmul

_MOST_PRODUCTS = 1 << 15
"""Number of multiplications that take longer than calling for them."""

Product = Callable[..., Array]


def small_product(general: Product, lhs: tuple[int, ...], rhs: tuple[int, ...], dtype: DType) -> Product | None:
    """What the kernel `general` does, for small operands of these sizes: `[m, k]` or `[k]` and `[k, n]` or `[k]`,
    multiplied along their neighbouring dimensions. None for others."""
    rows, terms, columns = (lhs[:-1] or (1,))[0], rhs[0], (rhs[1:] or (1,))[0]
    if rows * terms * columns > _MOST_PRODUCTS or min(*lhs, *rhs) < 2 or not _agrees(lhs, rhs, dtype):
        return None
    may_be_transpose = len(lhs) == len(rhs) == 2 and rows == columns

    def multiplied(lhs: Array, rhs: Array, out: Array | None = None) -> Array:
        ours, theirs = lhs.flags, rhs.flags
        is_plain = ours.c_contiguous and theirs.c_contiguous
        if out is not None or not (is_plain or (ours.forc and theirs.forc)):
            return general(lhs, rhs, out)
        if may_be_transpose and not is_plain and np.may_share_memory(lhs, rhs):
            # BLAS has another routine for those.
            return general(lhs, rhs)
        hold_blas()
        return np.asarray(lhs.dot(rhs))

    return multiplied


@cache
def _agrees(lhs: tuple[int, ...], rhs: tuple[int, ...], dtype: DType) -> bool:
    """Whether `dot` gives the bits of `matmul`, in whatever order the operands lie."""
    hold_blas()
    rows, columns = lhs[:-1] or (1,), rhs[1:] or (1,)
    first = np.sin(np.arange(1, 1 + rows[0] * rhs[0], dtype=dtype)).reshape(lhs)
    second = np.sin(np.arange(2, 2 + columns[0] * rhs[0], dtype=dtype) * 3).reshape(rhs)
    for one, other in product(_layouts(first), _layouts(second)):
        matrices = one if one.ndim > 1 else one.reshape(1, -1), other if other.ndim > 1 else other.reshape(-1, 1)
        expected = matmul(*matrices)
        if np.asarray(one.dot(other)).tobytes() != expected.tobytes():
            return False
    return True


def _layouts(array: Array) -> list[Array]:
    return [array, np.asfortranarray(array)] if array.ndim > 1 else [array]
