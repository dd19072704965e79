"""select-and-scatter: the gradient of a windowed selection such as max and min pooling.

Windows are processed a block at a time. First, tap by tap, the tap at the extremum of each window is found; then, tap
by tap again, the source elements that belong to a tap are added to the elements that it reads, and for all others a
zero that changes nothing.
"""

from __future__ import annotations

from math import copysign, prod

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Computation, Shape, Window, WindowDimension
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.elementwise.selection import CompareAttributes
from hloexec.ops.indexing.scatter import combining
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.reduction.reducers import recognise
from hloexec.ops.registry import Callee, Callees, Programs, opcode
from hloexec.ops.relations import Relating, Resizing, relate_window, resized_windows
from hloexec.ops.relations.parts import output_size, part_of_windows, require_window, taps
from hloexec.ops.resources import empty, for_each
from hloexec.ops.signatures import require_reducer, require_scalar_comparison, same_type
from hloexec.ops.traits import REDUCER, SELECT, Probe, Rounding, Summation, Sums

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
        block_taps = taps(self.operand.shape, self.source.shape, self.dimensions)
        visited = [(places, read) for _, places, read in block_taps]
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


@frozen
class SelectAndScatterAttributes:
    window: Window = attribute(default=Window())
    select: str = attribute(Grammar.COMPUTATION)
    scatter: str = attribute(Grammar.COMPUTATION)


@opcode(
    "select-and-scatter", operands=3, attributes=SelectAndScatterAttributes, rounding=Rounding.SUM, only_compared=(0,)
)
class SelectAndScatter:
    """Scatters each source element to the place in its window of the operand that `select` prefers.

    In row-major order of the window, an element replaces the one held so far where not select(held, element); padding
    is ignored. The result starts as init_value, and in row-major order of the source becomes scatter(result, source)
    at the places found, each step rounded to the result's type; under `exact` a sum is rounded once. Source: XLA,
    SelectAndScatter.
    """

    layout_of = (0,)
    sums = Sums.SCATTERED
    probe = Probe(
        "T[2] select-and-scatter(a0, a1, a2), window={size=1}, select=s, scatter=c",
        ("T[2]", "T[2]", "T[]"),
        f"{SELECT}\n{REDUCER}",
    )

    @staticmethod
    def relate(use: Relating) -> None:
        operand, source = (value.axes for value in use.operands[:2])
        use.same(operand, use.result.axes)
        for entry, whole, windows in zip(use.attributes.window.dimensions, operand, source, strict=True):
            relate_window(use, entry, whole, windows)

    @staticmethod
    def resize(change: Resizing) -> object:
        window = resized_windows(change.attributes.window, change.sizes(0), change.sizes(1))
        return attrs.evolve(change.attributes, window=window)

    @staticmethod
    def infer(
        operand: Shape,
        source: Shape,
        init_value: Shape,
        *,
        attributes: SelectAndScatterAttributes,
        computations: Programs,
    ) -> Shape:
        array = array_shape(operand, "the operand of select-and-scatter")
        updates = array_shape(source, "the source of select-and-scatter")
        initial = array_shape(init_value, "init_value of select-and-scatter")
        dimensions = attributes.window.dimensions
        require(
            len(dimensions) == array.rank,
            f"the window of select-and-scatter has {len(dimensions)} dimensions, its operand has shape {array}",
        )
        require_window(attributes.window, "select-and-scatter")
        expected = tuple(map(output_size, array.dimensions, dimensions))
        require(
            updates.dimensions == expected,
            f"the source of select-and-scatter must have shape {list(expected)}, but is {updates}",
        )
        require(
            initial.rank == 0 and same_type(initial.element_type, updates.element_type),
            f"init_value of select-and-scatter must be a scalar of type {updates.element_type}, but is {initial}",
        )
        require(
            same_type(array.element_type, updates.element_type),
            f"operand and source of select-and-scatter must have one element type, but are {array} and {updates}",
        )
        select, scatter = computations
        require_scalar_comparison(select, (array,), "select of select-and-scatter")
        require_reducer(scatter, (updates,), "scatter of select-and-scatter")
        return ArrayShape(array.element_type, array.dimensions, dynamic_dimensions=array.dynamic_dimensions)

    @staticmethod
    def evaluate(
        operand: Array,
        source: Array,
        init_value: Array,
        *,
        attributes: SelectAndScatterAttributes,
        shape: ArrayShape,
        computations: Callees,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array:
        select, scatter = computations
        element_type = shape.element_type
        is_sum = recognise(scatter.computation) == "add" and (element_type.is_floating or element_type.is_complex)
        preference = _preference(select.computation)
        is_dilated = any(dimension.base_dilation > 1 for dimension in attributes.window.dimensions)
        if is_sum and preference is not None and element_type.is_floating and not (numerics.is_exact or is_dilated):
            return add_at_extrema(operand, source, init_value, attributes.window, preference, element_type)
        targets = _selected(operand, source.shape, attributes.window, select).reshape(-1)
        hits = np.flatnonzero(targets >= 0)
        result = narrow(widen(np.full(operand.size, init_value)), shape.element_type)
        combining(scatter, is_exact=numerics.is_exact)([result], targets[hits], [source.reshape(-1)[hits]])
        return result.reshape(operand.shape)

    @staticmethod
    def summed(*, attributes: SelectAndScatterAttributes, computations: Callees) -> Summation | None:
        """As many terms as windows overlap at a place, at most."""
        name = recognise(computations[1].computation)
        terms = prod(-(-entry.size // entry.stride) for entry in attributes.window.dimensions)
        is_product = name == "multiply"
        return Summation(terms, is_stepwise=True, is_product=is_product) if is_product or name == "add" else None


def _preference(computation: Computation) -> Preference | None:
    """Which of two numbers `select` keeps, where it is the usual comparison of the one held with the candidate."""
    root = computation.root
    if root.opcode != "compare" or computation.operands_of(root) != computation.parameters:
        return None
    attributes = root.attributes
    is_usual = isinstance(attributes, CompareAttributes) and attributes.type != "TOTALORDER"
    return PREFERENCES.get(attributes.direction) if is_usual else None


def _selected(operand: Array, windows: Dimensions, window: Window, select: Callee) -> Array:
    """For each window the row-major index of the element it selects; -1 for a window with nothing but padding."""
    held = np.empty(windows, operand.dtype)
    index = np.full(windows, -1, np.int64)
    positions = np.arange(operand.size).reshape(operand.shape)
    for _, outputs, read in taps(operand.shape, windows, window.dimensions):
        candidate, current = operand[read], held[outputs]
        is_first = index[outputs] < 0
        # A window that holds nothing yet compares the candidate with itself, and takes it whatever the answer.
        keeps = np.asarray(select(np.where(is_first, candidate, current), candidate)).reshape(candidate.shape)
        takes = is_first | ~keeps
        np.copyto(current, candidate, where=takes)
        np.copyto(index[outputs], positions[read], where=takes)
    return index
