"""Kernels of scatter for one operand, of shapes that are known before the run."""

from __future__ import annotations

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.indexing.combining import combine
from hloexec.ops.indexing.dynamic_slice import writeable
from hloexec.ops.indexing.placement import Placement
from hloexec.ops.movement.copying import row_major
from hloexec.ops.registry import Callee


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
class ManyWindows:
    """Combines windows with what is there, one after the other."""

    placement: Placement
    combiner: Callee

    def __call__(self, operand: Array, indices: Array, updates: Array, out: Array | None = None) -> Array:
        placement = self.placement
        keys = placement.keys(indices)
        if keys is None:
            return operand
        if placement.has_leading_rows:
            result = out if out is not None and out.flags.c_contiguous else row_major(operand)
            table = placement.rows(result)
        else:
            table = placement.table(operand)
            result = placement.restored(table)
        pieces = placement.pieces(updates, keys)
        combine([placement.target(table)], keys.keys, [pieces], self.combiner, is_exact=False)
        return result
