"""Kernels of scatter that have nothing to sort or to group: what `x.at[i].set(y)` and `x.at[i].add(y)` are, and
`jax.vmap` of the first."""

from __future__ import annotations

import numpy as np

from hloexec.ops.indexing.dynamic_slice import writeable
from hloexec.ops.indexing.placement import Placement
from hloexec.ops.movement.copying import as_integers, row_major
from hloexec.structs import frozen
from hloexec.values import Array

__all__ = ["OneWindow", "RowWriter"]


@frozen
class OneWindow:
    """Writes or adds a single window."""

    window: tuple[int, ...]
    """Its sizes by operand dimension."""
    moving: tuple[tuple[int, int], ...]
    """For each component of the index vector, the operand dimension and the highest index at which it may begin."""
    combine: np.ufunc | None
    """What is done with elements that are there and elements of the update; None where the latter replace them."""

    def __call__(self, operand: Array, indices: Array, updates: Array, out: Array | None = None) -> Array:
        where = [slice(0, size) for size in self.window]
        for (axis, last), start in zip(self.moving, indices.reshape(-1).tolist(), strict=True):
            if not 0 <= start <= last:
                return operand
            where[axis] = slice(start, start + self.window[axis])
        result = writeable(operand) if out is None else out
        target, update = result[tuple(where)], updates.reshape(self.window)
        if self.combine is None:
            target[...] = update
        else:
            self.combine(target, update, target)
        return result


@frozen
class RowWriter:
    """Writes windows into an operand whose rows lie in order."""

    placement: Placement

    def __call__(self, operand: Array, indices: Array, updates: Array, out: Array | None = None) -> Array:
        placement = self.placement
        keys = placement.keys(indices)
        if keys is None:
            return operand
        result = out if out is not None and out.flags.c_contiguous else row_major(operand)
        target = placement.target(placement.rows(result))
        # NumPy assigns in order, so the last of several pieces for a row stays.
        as_integers(target)[keys.keys] = as_integers(placement.pieces(updates, keys))
        return result
