"""Tridiagonal systems that may be singular, solved for inverse iteration (LAPACK: xLAGTF, xLAGTS)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.custom_calls.linalg.decompositions import matrix_shape
from hloexec.custom_calls.registry import custom_call
from hloexec.ir import Shape
from hloexec.ops.common import array_shape, require
from hloexec.values import Array

__all__: list[str] = []


@custom_call(
    "tridiagonal_solve_perturbed_ffi",
    "cu_tridiagonal_solve_perturbed",
    "hip_tridiagonal_solve_perturbed",
    "oneapi_tridiagonal_solve_perturbed",
)
class TridiagonalSolvePerturbed:
    """x of tridiagonal systems that may be singular: pivots too small to divide by are nudged away from zero.

    Diagonals dl (its first element unused), d and du (its last unused) [..., n], right-hand sides b [..., n, k]; for
    inverse iteration, where any large x along the null space will do. Source: LAPACK, xLAGTF and xLAGTS; JAX.
    """

    @staticmethod
    def infer(dl: Shape, d: Shape, du: Shape, b: Shape) -> Shape:
        right = matrix_shape(b, "b")
        for diagonal in (dl, d, du):
            array = array_shape(diagonal, "a diagonal")
            require(
                array.dimensions == right.dimensions[:-1] and array.element_type is right.element_type,
                f"a diagonal of a system with right-hand sides {right} cannot have shape {array}",
            )
        return right

    @staticmethod
    def evaluate(dl: Array, d: Array, du: Array, b: Array) -> Array:
        """Rows are eliminated over the whole batch, with pivoting scaled by the rows' sizes.

        Going back up, a pivot p with which x = rhs / p would overflow gets eps · max|U| added, of its own sign, doubled
        until it is large enough.
        """
        size, columns = b.shape[-2:]
        if b.size == 0:
            return np.zeros_like(b)
        with np.errstate(all="ignore"):
            x = np.array(b).reshape(-1, size, columns)
            lower, diagonal, upper = (part.reshape(-1, size) for part in (dl, d, du))
            _substitute(_eliminate(lower, diagonal, upper, x), x)
        return x.reshape(b.shape)


def _eliminate(lower: Array, diagonal: Array, upper: Array, x: Array) -> Array:
    """Make the system upper triangular with two diagonals above the main one, `[batch, n, 3]`; x follows."""
    count, size = diagonal.shape
    u = np.zeros((count, size, 3), diagonal.dtype)
    u[:, :, 0], u[:, :-1, 1] = diagonal, upper[:, :-1]
    scale = np.abs(u[:, 0, 0]) + np.abs(u[:, 0, 1])
    for row in range(size - 1):
        below = row + 1
        this, sub, beyond = u[:, row, 0].copy(), lower[:, below], u[:, below, 1].copy()
        next_scale = np.abs(sub) + np.abs(diagonal[:, below]) + np.abs(beyond)
        own_weight = np.where(this == 0, 0, np.abs(this) / scale)
        swaps = (sub != 0) & (np.abs(sub) / next_scale > own_weight)
        ratio = np.where(sub == 0, 0, np.where(swaps, this / sub, sub / this))
        first, second = u[:, row, 1].copy(), diagonal[:, below]
        u[:, row, 0] = np.where(swaps, sub, this)
        u[:, row, 1] = np.where(swaps, second, first)
        u[:, row, 2] = np.where(swaps, beyond, 0)
        u[:, below, 0] = np.where(swaps, first - ratio * second, second - ratio * first)
        u[:, below, 1] = np.where(swaps, -ratio * beyond, beyond)
        above, right = x[:, row].copy(), x[:, below].copy()
        x[:, row] = np.where(swaps[:, None], right, above)
        x[:, below] = np.where(
            swaps[:, None], above - ratio[:, None] * right, right - np.where(sub == 0, 0, ratio)[:, None] * above
        )
        scale = np.where(swaps, np.abs(u[:, below, 0]) + np.abs(u[:, below, 1]), next_scale)
    return u


def _substitute(u: Array, x: Array) -> None:
    """Solve the triangular system in place, from the last row up."""
    size = x.shape[1]
    nudge = np.abs(u).max((1, 2)) * np.finfo(u.real.dtype).eps
    for row in reversed(range(size)):
        rhs = x[:, row].copy()
        for offset in (1, 2):
            if row + offset < size:
                rhs -= u[:, row, offset, None] * x[:, row + offset]
        pivot, rhs = _safe_pivot(u[:, row, 0].copy(), rhs, nudge)
        x[:, row] = rhs * (1 / pivot)[:, None]


def _safe_pivot(pivot: Array, rhs: Array, nudge: Any) -> tuple[Array, Array]:
    """Pivots, moved where neither rhs / pivot nor 1 / pivot may overflow otherwise, and the right-hand sides."""
    tiny = np.finfo(pivot.real.dtype).tiny
    huge = 1 / tiny
    step = np.copysign(np.maximum(nudge, tiny), pivot.real)
    most = np.abs(rhs).max(-1, initial=0)
    open_ = np.abs(pivot) < 1
    while open_.any():
        magnitude = np.abs(pivot)
        is_tiny = magnitude < tiny
        overflows = np.where(is_tiny, (magnitude == 0) | (most * tiny > magnitude), most > magnitude * huge)
        rescaled = open_ & is_tiny & ~overflows
        pivot = np.where(rescaled, pivot * huge, pivot)
        rhs = np.where(rescaled[:, None], rhs * huge, rhs)
        moved = open_ & overflows
        pivot = np.where(moved, pivot + step, pivot)
        step = np.where(moved, step * 2, step)
        open_ = moved & (np.abs(pivot) < 1)
    return pivot.astype(rhs.dtype), rhs
