"""The gradient of max and min pooling: each source element is added at the position of its window's extremum.

Windows are processed a block at a time. First, tap by tap, the tap at the extremum of each window is found; then, tap
by tap again, the source elements that belong to a tap are added to the elements that it reads, and for all others a
zero that changes nothing.
"""

from __future__ import annotations

from math import copysign, prod

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import Window, WindowDimension
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.arena import empty
from hloexec.ops.common import narrow, widen
from hloexec.ops.threads import for_each
from hloexec.ops.windows import part_of_windows, taps

_BLOCK_BYTES = 256 << 10
"""The source elements of a block; what their windows see, and what is held of it, takes several times as much."""


@frozen
class Preference:
    """What a window keeps of two numbers."""

    keeps: np.ufunc
    """Whether the one held stays, given it and a candidate."""
    extremum: np.ufunc
    """The one that stays, NaNs aside, of which it keeps none."""


PREFERENCES = {
    "GE": Preference(np.greater_equal, np.fmax),
    "GT": Preference(np.greater, np.fmax),
    "LE": Preference(np.less_equal, np.fmin),
    "LT": Preference(np.less, np.fmin),
}
"""By the direction in which what is held is compared with a candidate."""


def add_at_extrema(
    operand: Array, source: Array, init_value: Array, window: Window, preference: Preference, element_type: ElementType
) -> Array:
    """select-and-scatter of floats that adds; each step is rounded to `element_type`, sources in row-major order."""
    result = empty(operand.shape, element_type.storage)
    result[...] = narrow(widen(init_value), element_type)
    if not source.size:
        return result
    initial = float(init_value)
    pooling = _Pooling(
        operand, source, result, window.dimensions, preference, element_type, initial == 0 and copysign(1, initial) < 0
    )
    # Windows that move along one dimension only touch disjoint parts of the operand along the others.
    is_separate = operand.ndim > 1 and window.dimensions[0] == WindowDimension(1)
    step = 1 if is_separate else len(source)
    with np.errstate(all="ignore"):
        for_each(lambda row: pooling.part(0, range(row, row + step)).add(), range(0, len(source), step))
    return result


@frozen
class _Pooling:
    """Windows over an operand, as many as there are source elements; all three arrays may be views."""

    operand: Array
    source: Array
    result: Array
    dimensions: tuple[WindowDimension, ...]
    preference: Preference
    element_type: ElementType
    has_negative_zeros: bool
    """Whether the result may hold −0, as it may where it starts as that: −0 + −0 is −0, and −0 + 0 is not."""

    def part(self, axis: int, places: range) -> _Pooling:
        """The windows at some places along a dimension."""
        elements, dimension = part_of_windows(self.operand.shape[axis], places, self.dimensions[axis])
        before = (slice(None),) * axis
        return attrs.evolve(
            self,
            operand=self.operand[(*before, elements)],
            source=self.source[(*before, slice(places.start, places.stop))],
            result=self.result[(*before, elements)],
            dimensions=(*self.dimensions[:axis], dimension, *self.dimensions[axis + 1 :]),
        )

    def add(self) -> None:
        """Add the source to the result, block by block of lines along the first dimension that windows move along."""
        moving = (axis for axis, dimension in enumerate(self.dimensions) if dimension != WindowDimension(1))
        axis = next(moving, 0)
        lines = self.source.shape[axis]
        line_bytes = prod(self.source.shape) // lines * self.element_type.compute.itemsize
        step = max(1, _BLOCK_BYTES // line_bytes)
        for line in range(0, lines, step):
            self.part(axis, range(lines)[line : line + step])._add_block()

    def _add_block(self) -> None:
        found = taps(self.operand.shape, self.source.shape, self.dimensions)
        visited = [(places, read) for _, places, read in found]
        selected = self._selected(visited)
        source, total = np.ascontiguousarray(widen(self.source)), widen(self.result)
        integers = np.dtype(f"i{source.itemsize}")
        bits = source.view(integers)
        # A later window reads an element at an earlier tap.
        for number, (places, read) in reversed(list(enumerate(visited))):
            part = total[read]
            is_chosen = np.equal(selected[places], number).view(np.int8)
            mask = np.negative(is_chosen, out=is_chosen).astype(integers)
            added = np.bitwise_and(bits[places], mask)
            if self.has_negative_zeros:
                np.bitwise_or(added, ~mask & np.iinfo(integers).min, out=added)
            np.add(part, added.view(source.dtype), out=part)
            if total.dtype != self.element_type.storage:
                part[...] = widen(narrow(part, self.element_type))
        if total is not self.result:
            self.result[...] = narrow(total, self.element_type)

    def _selected(self, visited: list[tuple[tuple[slice, ...], tuple[slice, ...]]]) -> Array:
        """The number of each window's tap at its extremum; of no tap where a window has padding only."""
        operand, shape = widen(self.operand), self.source.shape
        number_type = np.min_scalar_type(len(visited))
        selected = np.full(shape, len(visited), number_type)
        for number, (places, _) in reversed(list(enumerate(visited))):
            selected[places] = number
        has_nan = operand.size > 0 and bool(np.isnan(operand.max()))
        # Nothing is kept against a NaN.
        held = np.full(shape, np.nan, operand.dtype)
        leaves = np.empty(shape, np.bool_)
        for number, (places, read) in enumerate(visited):
            candidate, current, leave, chosen = operand[read], held[places], leaves[places], selected[places]
            self.preference.keeps(current, candidate, out=leave)
            np.logical_not(leave, out=leave)
            # Numbers of taps only grow, so that the largest is the last.
            np.maximum(chosen, leave * number_type.type(number), out=chosen)
            if has_nan:
                np.copyto(current, candidate, where=leave)
            else:
                self.preference.extremum(current, candidate, out=current)
        return selected
