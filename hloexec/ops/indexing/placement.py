"""Where scatter's windows go: all of them become rows.

The operand is transposed so that the dimensions in which windows have different starts come first and are merged, and
each window is divided into pieces within one row each.
"""

from __future__ import annotations

from math import prod

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.indexing.index_vectors import IndexVectors, lie_within
from hloexec.ops.movement.copying import row_major


@frozen
class Keys:
    """Where pieces go."""

    keys: Array
    """The row of each piece."""
    fitting: Array | None
    """The numbers of the windows that fit, where some do not."""


@frozen
class Placement:
    """Where updates go: the operand as a table of rows, each window as one piece per row that it touches."""

    vectors: IndexVectors
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
    offsets: Array
    """The rows of a window, counted from its first."""

    @classmethod
    def of(
        cls, vectors: IndexVectors, sizes: tuple[int, ...], window: tuple[int, ...], update_axes: tuple[int, ...]
    ) -> Placement:
        """The placement of windows in an operand of `sizes`; `update_axes` are the updates' dimensions, batch first."""
        starting = (*vectors.dimensions, *vectors.numbers)
        moving = tuple(sorted(axis for axis in starting if window[axis] < sizes[axis]))
        offsets: Array = np.zeros(1, np.int64)
        for axis in moving:
            offsets = np.add.outer(offsets * sizes[axis], np.arange(window[axis])).reshape(-1)
        resting = tuple(axis for axis in range(len(sizes)) if axis not in moving)
        return cls(vectors, sizes, window, moving, resting, update_axes, offsets)

    def keys(self, indices: Array) -> Keys | None:
        """Where the pieces of updates go, or None where no window fits."""
        batch = self.vectors.batch
        if not prod(batch) or not prod(self.window):
            return None
        starts = self.vectors.starts(indices)
        fitting = self._fitting(starts)
        if fitting is not None and not fitting.size:
            return None
        first: Array = np.zeros((), np.int64)
        for number, axis in enumerate(self.moving):
            first = first * self.sizes[axis] + starts[axis] if number else starts[axis]
        first = (first if first.shape == batch else np.broadcast_to(first, batch)).reshape(-1)
        first = first if fitting is None else first[fitting]
        return Keys(first if len(self.offsets) == 1 else np.add.outer(first, self.offsets).reshape(-1), fitting)

    def _fitting(self, starts: dict[int, Array]) -> Array | None:
        """The numbers of the windows that lie within the operand; None where all do."""
        limits = {axis: self.sizes[axis] - self.window[axis] for axis in self.vectors.dimensions}
        outside = [axis for axis, limit in limits.items() if not lie_within(starts[axis], limit)]
        if not outside:
            return None
        fits = np.ones(self.vectors.batch, np.bool_)
        for axis in outside:
            fits &= (starts[axis] >= 0) & (starts[axis] <= limits[axis])
        return np.flatnonzero(fits)

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

    def pieces(self, updates: Array, keys: Keys) -> Array:
        """Updates as `[keys, resting dimensions...]`."""
        windows = updates.transpose(self.update_axes).reshape(-1, *self.window)
        if keys.fitting is not None:
            windows = windows[keys.fitting]
        windows = windows.transpose(0, *(axis + 1 for axis in (*self.moving, *self.resting)))
        return windows.reshape(len(keys.keys), *windows.shape[1 + len(self.moving) :])

    def restored(self, table: Array) -> Array:
        """A table as an array of the operand's shape."""
        axes = (*self.moving, *self.resting)
        return table.reshape([self.sizes[axis] for axis in axes]).transpose(np.argsort(axes))
