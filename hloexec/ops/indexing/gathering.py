"""The kernels of gather: one for each way in which windows lie in the operand, which sizes decide.

A kernel takes the operand and the indices. What it returns shares no memory with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.arena import empty
from hloexec.ops.common import strided
from hloexec.ops.indexing.index_vectors import IndexVectors, lie_within
from hloexec.ops.movement.copying import row_major
from hloexec.ops.movement.extents import part

_FEW = 4096
"""So few starts take less time to clamp than to look at."""
_MOST_COPIED = 4
"""A table that does not lie row by row is copied first if it has no more elements than these times what is taken."""


def gathering(
    vectors: IndexVectors, sizes: tuple[int, ...], window: tuple[int, ...], offsets: Mapping[int, int]
) -> Callable[[Array, Array], Array]:
    """The kernel for an operand and windows of these sizes.

    `offsets` says which dimension of the result each dimension of windows becomes, in order; the others are the batch
    dimensions.
    """
    moving = tuple(axis for axis in sorted({*vectors.dimensions, *vectors.numbers}) if window[axis] < sizes[axis])
    batch = vectors.batch
    kept = [window[axis] for axis in offsets]
    result = _Arrangement.of((*batch, *kept), range(len(batch), len(batch) + len(kept)), offsets)
    if not prod(batch) * prod(window):
        # Slices of size 0 of a collapsed dimension have no element to give: XLA leaves zeros.
        return lambda operand, indices: result(np.zeros(result.sizes, operand.dtype))
    if prod(batch) == 1 or not moving:
        components = tuple((axis, vectors.dimensions.index(axis), sizes[axis] - window[axis]) for axis in moving)
        return _OneWindow(window, components, batch, result)
    is_whole = all(axis in moving or window[axis] == size for axis, size in enumerate(sizes))
    windows = _Windows(vectors, sizes, window, moving, is_whole, result)
    first, last = moving[0], moving[-1] + 1
    if moving != tuple(range(first, last)) or any(window[axis] != 1 for axis in moving):
        return windows
    leading, trailing = window[:first], window[last:]
    ours = [axis for axis in offsets if axis < first], [axis for axis in offsets if axis >= first]
    begin = len(ours[0]) + len(batch)
    arrangement = _Arrangement.of(
        (*(window[axis] for axis in ours[0]), *batch, *(window[axis] for axis in ours[1])),
        (*range(len(ours[0])), *range(begin, begin + len(ours[1]))),
        offsets,
    )
    table = prod(leading), prod(sizes[first:last]), prod(trailing)
    return _Rows(windows, table, (table[0], *batch, table[2]), arrangement, _Positions.of(vectors, sizes, moving))


@frozen
class _Arrangement:
    """From an array in some order to the result of gather."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], window: Sequence[int], offsets: Mapping[int, int]) -> _Arrangement:
        """For an array of these sizes, some of whose dimensions are those of windows."""
        order = dict(zip(offsets.values(), window, strict=True))
        batch = iter([axis for axis in range(len(sizes)) if axis not in window])
        return cls(tuple(sizes), tuple(order[axis] if axis in order else next(batch) for axis in range(len(sizes))))

    def __call__(self, found: Array) -> Array:
        return found.reshape(self.sizes).transpose(self.order)


@frozen
class _OneWindow:
    """One window, which the result repeats for each index vector: there is one of these, or nowhere else to start."""

    window: tuple[int, ...]
    components: tuple[tuple[int, int, int], ...]
    """A dimension along which the window moves, the component that counts in it, and the highest start."""
    batch: tuple[int, ...]
    arrangement: _Arrangement

    def __call__(self, operand: Array, indices: Array) -> Array:
        where = [slice(0, size) for size in self.window]
        if self.components:
            starts = indices.reshape(-1).tolist()
            for axis, component, limit in self.components:
                start = min(max(starts[component], 0), limit)
                where[axis] = slice(start, start + self.window[axis])
        found = operand[tuple(where)]
        if prod(self.batch) != 1:
            found = np.broadcast_to(found, (*self.batch, *found.shape))
        return self.arrangement(row_major(found))


@frozen
class _Windows:
    """Windows of any kind: out[batch..., i...] = operand[starts[batch] + i...]."""

    vectors: IndexVectors
    sizes: tuple[int, ...]
    window: tuple[int, ...]
    moving: tuple[int, ...]
    """The dimensions in which windows differ."""
    is_whole: bool
    """Whether windows have the operand's size in all others."""
    arrangement: _Arrangement

    def __call__(self, operand: Array, indices: Array) -> Array:
        fixed, starts = self.fixed(operand), self.vectors.starts(indices)
        windows = strided(
            fixed,
            (*(fixed.shape[axis] - self.window[axis] + 1 for axis in self.moving), *self.window),
            (*(fixed.strides[axis] for axis in self.moving), *fixed.strides),
        )
        where = (np.broadcast_to(self.clamped(axis, starts[axis]), self.vectors.batch) for axis in self.moving)
        return self.arrangement(windows[tuple(where)])

    def fixed(self, operand: Array) -> Array:
        """The part of the operand that windows reach."""
        if self.is_whole:
            return operand
        return part(operand, (slice(None if axis in self.moving else size) for axis, size in enumerate(self.window)))

    def clamped(self, axis: int, start: Array) -> Array:
        limit = self.sizes[axis] - self.window[axis]
        if start.size > _FEW and lie_within(start, limit):
            return start
        found: Array = np.minimum(np.maximum(start, 0), limit)
        return found


@frozen
class _Rows:
    """Windows of one element in adjacent dimensions, and of the operand's size in the others: rows of a table."""

    windows: _Windows
    table: tuple[int, int, int]
    """The sizes of the dimensions before those, of them, and of those behind."""
    taken: tuple[int, ...]
    """The sizes of what is taken from the table."""
    arrangement: _Arrangement
    positions: _Positions

    def __call__(self, operand: Array, indices: Array) -> Array:
        operand = self.windows.fixed(operand)
        if not operand.flags.c_contiguous:
            if operand.size > _MOST_COPIED * prod(self.taken):
                return self.windows(operand, indices)
            operand = row_major(operand)
        found = empty(self.taken, operand.dtype)
        operand.reshape(self.table).take(self.positions(indices), axis=1, mode="clip", out=found)
        return self.arrangement(found)


@frozen
class _Positions:
    """From index vectors to the numbers of the rows of a table that has a dimension for each axis along which they
    move, the last one counting fastest."""

    vectors: IndexVectors
    components: tuple[tuple[int, int, int], ...]
    """A component of the vectors, the highest start in its dimension, and how many rows a step there is."""
    known: tuple[Array, ...]
    """What batching dimensions, whose starts are known, add to that."""

    @classmethod
    def of(cls, vectors: IndexVectors, sizes: tuple[int, ...], moving: Sequence[int]) -> _Positions:
        """For windows of one element along dimensions of these sizes that follow one another."""
        rows = {axis: prod(sizes[axis + 1 : moving[-1] + 1]) for axis in moving}
        known = (
            np.minimum(starts, sizes[axis] - 1) * rows[axis]
            for axis, starts in vectors.numbers.items()
            if axis in moving
        )
        components = (
            (number, sizes[axis] - 1, rows[axis]) for number, axis in enumerate(vectors.dimensions) if axis in moving
        )
        return cls(vectors, tuple(components), tuple(known))

    def __call__(self, indices: Array) -> Array:
        parts, starts = list(self.known), self.vectors.components(indices)
        for component, last, rows in self.components:
            start = starts[component]
            if len(self.components) + len(self.known) > 1:
                start = np.minimum(np.maximum(start, 0), last)
            # Along a single dimension, taking clamps.
            parts.append(start if rows == 1 else start * rows)
        position: Array = sum(parts[1:], parts[0])
        batch = self.vectors.batch
        return position if position.shape == batch else np.broadcast_to(position, batch)
