"""Where scatter's windows go: all of them become rows.

The operand is transposed so that the dimensions in which windows have different starts come first and are merged, and
each window is divided into pieces within one row each.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from hloexec.ops.movement.copying import row_major
from hloexec.structs import frozen
from hloexec.values import Array

__all__ = ["Placement", "placed"]


@frozen
class Placement:
    """Where updates go: the operand as a table of rows, each window as one piece per row that it touches."""

    sizes: tuple[int, ...]
    """Of the operand."""
    window: tuple[int, ...]
    """Window sizes by operand dimension."""
    moving: tuple[int, ...]
    """The operand dimensions in which windows start at different places: together they number the rows."""
    resting: tuple[int, ...]
    """The other operand dimensions: those of a row."""
    update_axes: tuple[int, ...]
    """The updates' dimensions, batch dimensions first."""
    fitting: Array | None
    """The numbers of the windows that fit, where some do not."""
    keys: Array
    """The row of each piece."""

    @property
    def has_leading_rows(self) -> bool:
        """Whether a row-major operand is a table of rows as it lies."""
        return self.moving == tuple(range(len(self.moving)))

    def table(self, operand: Array) -> Array:
        """A copy of the operand as `[rows, resting dimensions...]`."""
        return self.rows(row_major(operand.transpose(*self.moving, *self.resting)))

    def rows(self, transposed: Array) -> Array:
        """`[moving dimensions..., resting dimensions...]` as `[rows, resting dimensions...]`; a view if row-major."""
        return transposed.reshape(prod(transposed.shape[: len(self.moving)]), *transposed.shape[len(self.moving) :])

    def target(self, table: Array) -> Array:
        """The part of a table that windows reach."""
        return table[(slice(None), *(slice(self.window[axis]) for axis in self.resting))]

    def pieces(self, updates: Array) -> Array:
        """Updates as `[keys, resting dimensions...]`."""
        windows = updates.transpose(self.update_axes).reshape(-1, *self.window)
        if self.fitting is not None:
            windows = windows[self.fitting]
        windows = windows.transpose(0, *(axis + 1 for axis in (*self.moving, *self.resting)))
        return windows.reshape(len(self.keys), *windows.shape[1 + len(self.moving) :])

    def restored(self, table: Array) -> Array:
        """A table as an array of the operand's shape."""
        axes = (*self.moving, *self.resting)
        return table.reshape([self.sizes[axis] for axis in axes]).transpose(np.argsort(axes))


def _fitting(limits: list[tuple[Array, int]], batch: tuple[int, ...]) -> Array | None:
    """The numbers of the windows that start between 0 and the limit in each dimension; None where all do."""
    outside = [(start, limit) for start, limit in limits if start.min() < 0 or start.max() > limit]
    if not outside:
        return None
    fits = np.ones(batch, np.bool_)
    for start, limit in outside:
        fits &= (start >= 0) & (start <= limit)
    return np.flatnonzero(fits)


def placed(
    starts: Mapping[int, Array],
    batch: tuple[int, ...],
    window: tuple[int, ...],
    sizes: tuple[int, ...],
    update_axes: tuple[int, ...],
) -> Placement | None:
    """The placement of windows in an operand of `sizes`, or None where none fits.

    `starts` are where they start in operand dimensions, as arrays that broadcast to `batch`; in others they start at 0.
    `update_axes` are the updates' dimensions, batch dimensions first.
    """
    if not prod(batch) or not prod(window):
        return None
    fitting = _fitting([(start, sizes[axis] - window[axis]) for axis, start in starts.items()], batch)
    if fitting is not None and not fitting.size:
        return None
    moving = tuple(sorted(axis for axis in starts if window[axis] < sizes[axis]))
    first: Array = np.zeros((), np.int64)
    offset: Array = np.zeros(1, np.int64)
    for number, axis in enumerate(moving):
        first = first * sizes[axis] + starts[axis] if number else starts[axis]
        offset = np.add.outer(offset * sizes[axis], np.arange(window[axis])).reshape(-1)
    first = np.broadcast_to(first, batch).reshape(-1)
    first = first if fitting is None else first[fitting]
    keys = first if len(offset) == 1 else np.add.outer(first, offset).reshape(-1)
    return Placement(
        sizes=sizes,
        window=window,
        moving=moving,
        resting=tuple(axis for axis in range(len(sizes)) if axis not in moving),
        update_axes=update_axes,
        fitting=fitting,
        keys=keys,
    )
