"""scatter of a single window: what `x.at[i].set(y)` and `x.at[i].add(y)` are, with nothing to sort or to group."""

from __future__ import annotations

import numpy as np

from hloexec.ops.indexing.dynamic_slice import writeable
from hloexec.structs import frozen
from hloexec.values import Array

__all__ = ["OneWindow"]


@frozen
class OneWindow:
    """The kernel of such a scatter."""

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
