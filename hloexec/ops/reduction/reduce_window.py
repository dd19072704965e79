"""reduce-window, and its kernels.

The taps of a window are processed one after the other (`windows.visits`): for all positions of the window at once, a
tap is one slice of the operand and one of the result, and padding is never stored. An associative and commutative
operation is instead applied dimension by dimension, a block of the result at a time, on all cores.

Windows that slide along one dimension of an array, each reduced with an associative and commutative operation.

Two algorithms, chosen by sizes alone: tap by tap, in order; and windows composed of windows of 1, 2, 4, … taps, mostly
for cumulative windows, which contain all elements up to their position: rounding errors of their sums grow only with
the logarithm of the length. Nothing is ever subtracted: a sliding sum by subtraction loses small terms that were once
added to something larger.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import product
from math import prod
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.core.dtypes import DType, ElementType, element_type, element_type_of, part_type
from hloexec.core.ir import ArrayShape, Instruction, Module, Shape, Window, WindowDimension
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import from_parts, in_order, narrow, require, widen
from hloexec.ops.policies.exact.doubled import EXACT_UNITS, can_be_certain, doubtful, rounded_to_odd, units_of
from hloexec.ops.policies.exact.sums import add_pairs
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.reduction.reduce import (
    element_types,
    reduced,
    reduced_additions,
    reduced_demands,
    reducer_types,
    result_shape,
    usual_operations,
)
from hloexec.ops.reduction.reducers import KNOWN_REDUCERS, KnownReducer, accumulation_dtype, recognise, reduce_known
from hloexec.ops.registry import ANY, Callee, Callees, Programs, opcode
from hloexec.ops.relations import Relating, Resizing, relate_window, resized_windows
from hloexec.ops.relations.parts import output_size, part_of_windows, require_window, taps, visits
from hloexec.ops.resources import empty, for_each
from hloexec.ops.signatures import called
from hloexec.ops.traits import REDUCER, Additions, Probe, Rounding, Summation, Sums

Combination: TypeAlias = Callable[..., object]
"""`combination(x, y, out=out)` fills `out`, which may be `x`; NumPy's function where there is one."""


_LITTLE_BYTES = 1 << 12
"""In arrays of so few bytes, all taps together take less time than a call for each."""

_SHORT_LOOP, _DEEP, _MUCH_BYTES = 64, 8, 1 << 15
"""Loops of so few elements, for so many operations, of so much: to copy the array twice takes less."""


class _Form(enum.Enum):
    TRIVIAL = enum.auto()
    """The window is each element itself."""
    TAPS = enum.auto()
    DOUBLED = enum.auto()
    CUMULATIVE = enum.auto()
    CUMULATIVE_REVERSED = enum.auto()


@frozen
class Along:
    """The windows along one dimension."""

    axis: int
    extent: int
    places: int
    dimension: WindowDimension
    form: _Form

    @classmethod
    def of(cls, axis: int, extent: int, dimension: WindowDimension) -> Along:
        places = output_size(extent, dimension)
        return cls(axis, extent, places, dimension, _form(extent, places, dimension))

    @property
    def depth(self) -> int:
        """How many operations there are at most between an element and a window's result."""
        size = self.dimension.size
        return size if self.form is _Form.TAPS else 2 * size.bit_length()

    @property
    def may_be_cut(self) -> bool:
        """Whether some places can be had from some of the elements."""
        is_cumulative = self.form in (_Form.CUMULATIVE, _Form.CUMULATIVE_REVERSED)
        return not is_cumulative and self.dimension.base_dilation == 1

    def part(self, places: range) -> tuple[Along, slice]:
        """The windows at some places, and the elements that they see."""
        if len(places) == self.places:
            return self, slice(None)
        elements, dimension = part_of_windows(self.extent, places, self.dimension)
        return Along(self.axis, elements.stop - elements.start, len(places), dimension, self.form), elements

    def reduced(self, array: Array, combine: Combination, identity: Callable[[DType], Any]) -> Array:
        """The array with one element per place along the axis."""
        if self.form is _Form.TRIVIAL:
            return array
        if isinstance(combine, np.ufunc) and self._has_short_loops(array):
            rows = attrs.evolve(self, axis=0)
            reduced = rows.reduced(np.ascontiguousarray(np.moveaxis(array, self.axis, 0)), combine, identity)
            return np.moveaxis(reduced, 0, self.axis)
        if self.form in (_Form.CUMULATIVE, _Form.CUMULATIVE_REVERSED):
            return self._accumulated(array, combine)
        neutral = identity(array.dtype)
        if self.form is _Form.TAPS:
            return self._by_taps(array, combine, neutral)
        return self._doubled(self.laid_out(array, neutral), combine)

    def _has_short_loops(self, array: Array) -> bool:
        """Whether NumPy's innermost loops would go through a few elements each, of many."""
        is_last = 0 < self.axis == array.ndim - 1
        return is_last and self.extent <= _SHORT_LOOP and self.depth >= _DEEP and array.nbytes > _MUCH_BYTES

    def _by_taps(self, array: Array, combine: Combination, neutral: object) -> Array:
        if isinstance(combine, np.ufunc) and array.nbytes <= _LITTLE_BYTES:
            index = _elements_of_taps(self.extent, self.places, self.dimension)
            # NumPy adds whole rows one after the other, but not the numbers of a single row.
            if index is not None and prod(array.shape[self.axis + 1 :]) * self.places > 1:
                terms = array.take(index, self.axis)
                total: Array = combine.reduce(terms, axis=self.axis, dtype=array.dtype, initial=neutral)
                return total
        taps = [visit for visit in visits(self.extent, self.places, self.dimension) if visit is not None]
        everywhere = slice(0, self.places, 1)
        if len(taps) > 1 and taps[1][0] == everywhere:
            # Which of two comes first makes no difference.
            taps[:2] = taps[1::-1]
        if not taps or taps[0][0] != everywhere:
            total, left = self._filled(array, self.places, neutral), taps
        elif len(taps) > 1 and taps[1][0] == everywhere:
            first, second = (array[self._at(element)] for _, element in taps[:2])
            total, left = np.empty_like(first), taps[2:]
            combine(first, second, out=total)
        else:
            total, left = array[self._at(taps[0][1])].copy(), taps[1:]
        for place, element in left:
            part = total[self._at(place)]
            combine(part, array[self._at(element)], out=part)
        return total

    def laid_out(self, array: Array, neutral: object) -> Array:
        """What the windows see: the dilated operand cut to their reach, `neutral` where there is no element."""
        dimension = self.dimension
        reach = (self.places - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
        if dimension.padding_low == 0 and dimension.base_dilation == 1 and 0 <= reach <= self.extent:
            return array[self._at(slice(reach))]
        layout = self._filled(array, reach, neutral)
        everything = WindowDimension(1, padding_low=dimension.padding_low, base_dilation=dimension.base_dilation)
        (visit,) = visits(self.extent, reach, everything)
        if visit is not None:
            layout[self._at(visit[0])] = array[self._at(visit[1])]
        return layout

    def _doubled(self, layout: Array, combine: Combination) -> Array:
        """Windows put together from windows of 1, 2, 4, … taps: about 2·log2(size) operations an element."""
        size, dilation, stride = self.dimension.size, self.dimension.window_dilation, self.dimension.stride
        places = layout.shape[self.axis] - (size - 1) * dilation
        doubled, covered = layout, 0
        total: Array | None = None
        for bit in range(size.bit_length()):
            taps = 1 << bit
            if size & taps:
                part = doubled[self._at(slice(covered * dilation, covered * dilation + places, stride))]
                if total is None:
                    total = part.copy()
                else:
                    combine(total, part, out=total)
                covered += taps
            if 2 * taps <= size:
                early = doubled[self._at(slice(None, -taps * dilation))]
                wider = np.empty_like(early)
                combine(early, doubled[self._at(slice(taps * dilation, None))], out=wider)
                doubled = wider
        assert total is not None
        return total

    def _accumulated(self, array: Array, combine: Combination) -> Array:
        """Each element combined with all before it, or with all after it where the form is reversed."""
        result, other = np.empty_like(array), np.empty_like(array)
        covered = 1
        while covered < self.extent:
            first, last = self._at(slice(None, covered)), self._at(slice(-covered, None))
            early, late = self._at(slice(None, -covered)), self._at(slice(covered, None))
            kept, combined = (first, late) if self.form is _Form.CUMULATIVE else (last, early)
            result[kept] = array[kept]
            combine(array[early], array[late], out=result[combined])
            array, result, other = result, other, result
            covered *= 2
        return array

    def _filled(self, array: Array, length: int, value: object) -> Array:
        shape = (*array.shape[: self.axis], length, *array.shape[self.axis + 1 :])
        return np.full(shape, value, array.dtype)

    def _at(self, place: slice) -> tuple[slice, ...]:
        return (*(slice(None),) * self.axis, place)


@lru_cache(maxsize=256)
def _elements_of_taps(extent: int, places: int, dimension: WindowDimension) -> Array | None:
    """The numbers of the elements `[taps, places]` that windows see; None where there are none, or too many."""
    if dimension.base_dilation > 1 or not 0 < dimension.size * places <= _LITTLE_BYTES:
        return None
    taps = np.arange(dimension.size)[:, None] * dimension.window_dilation - dimension.padding_low
    index: Array = taps + np.arange(places) * dimension.stride
    return index if index.min() >= 0 and index.max() < extent else None


def _form(extent: int, places: int, dimension: WindowDimension) -> _Form:
    if dimension == WindowDimension(size=1):
        return _Form.TRIVIAL
    if extent > 0:
        if dimension == WindowDimension(extent, padding_low=extent - 1):
            return _Form.CUMULATIVE
        if dimension == WindowDimension(extent, padding_high=extent - 1):
            return _Form.CUMULATIVE_REVERSED
    seen = (places - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
    is_crowded = places > 0 and dimension.size * places > 2 * dimension.size.bit_length() * seen
    return _Form.DOUBLED if is_crowded else _Form.TAPS


BLOCK_BYTES = 256 << 10
"""A block of the operand or the result, whichever is larger."""
_LONG_LOOP = 64
"""Number of elements from which NumPy's innermost loop is long enough."""
_LONG_WINDOW = 8
"""Number of taps from which windows that share no element are worth an array of rows."""
_SUMMED_ALONE = 2000
"""Summing one window as pairs takes as long as about so many with all others."""
_PAIRS = KnownReducer(
    combine=lambda x, y: np.stack(add_pairs((x[0], x[1]), (y[0], y[1]))), ufunc=None, identity=lambda dtype: -0.0
)
"""Addition of arrays that hold the high and the low parts of pairs along their first axis."""


def reduce_windows_known(
    array: Array, init_value: Array, window: Window, reducer: KnownReducer, result_type: ElementType
) -> Array:
    """reduce-window of one array with an associative and commutative operation: one dimension at a time.

    Along each dimension the taps are combined one after the other, or in windows of 1, 2, 4, … taps.
    Long windows that share no element are reduced as the rows of an array with more dimensions: NumPy does that faster,
    but for extrema of many elements, which cores share better block by block.
    """
    dtype = accumulation_dtype(element_type_of(array.dtype), result_type)
    init = widen(init_value).astype(dtype)
    is_neutral = init.tobytes() == np.array(reducer.identity(dtype), dtype).tobytes()
    along = list(map(Along.of, range(array.ndim), array.shape, window.dimensions))
    is_shared = reducer.ufunc is not np.add and array.nbytes > BLOCK_BYTES
    if are_apart(array.shape, window) and not is_shared:
        block = widen(in_order(array)).astype(dtype, copy=False)
        for one in along:
            block = one.laid_out(block, reducer.identity(dtype))
        rows = block.reshape([part for one in along for part in (one.places, one.dimension.size)])
        return reduce_known(rows, range(1, rows.ndim, 2), init_value, reducer, result_type)

    sizes = tuple(one.places for one in along)
    result = empty(sizes, result_type.storage)

    def fill(places: tuple[range, ...]) -> None:
        parts = [one.part(place) for one, place in zip(along, places, strict=True)]
        block = widen(array[tuple(elements for _, elements in parts)]).astype(dtype, copy=False)
        combine = _combination(reducer, block)
        for one, _ in parts:
            block = one.reduced(block, combine, reducer.identity)
        if not is_neutral:
            block = np.asarray(reducer.combine(block, np.broadcast_to(init, block.shape)))
        result[tuple(slice(place.start, place.stop) for place in places)] = narrow(block, result_type)

    for_each(fill, _blocks(array, sizes, along, dtype.itemsize))
    return result


def are_apart(shape: Dimensions, window: Window) -> bool:
    """Whether the windows have no gaps, share no element, and are long enough to be worth an array of rows.

    No dimension is more than three times as long in these rows as in the array.
    """
    return max((one.size for one in window.dimensions), default=0) >= _LONG_WINDOW and all(
        one.stride == one.size <= extent
        and 0 <= min(one.padding_low, one.padding_high) <= max(one.padding_low, one.padding_high) < one.size
        and one.base_dilation == one.window_dilation == 1
        for extent, one in zip(shape, window.dimensions, strict=True)
    )


def _combination(reducer: KnownReducer, block: Array) -> Combination:
    """The operation as NumPy has it, where nothing in the block lets it differ; `combination(x, y, out)`."""
    ufunc = reducer.ufunc
    if ufunc is not None and (reducer.zero_wins is None or block.dtype.kind != "f" or not _has_negative_zero(block)):
        return ufunc
    return lambda x, y, out: np.copyto(out, reducer.combine(x, y))


def _has_negative_zero(block: Array) -> bool:
    integers = np.dtype(f"i{block.itemsize}")
    return bool(block.view(integers).min(initial=0) == np.iinfo(integers).min)


def _blocks(array: Array, sizes: Dimensions, along: Sequence[Along], itemsize: int) -> list[tuple[range, ...]]:
    """Ranges of the result's dimensions for blocks that stay in a core's own cache, as far as windows may be cut."""
    steps = list(sizes)
    remaining = itemsize * max(array.size, prod(sizes))
    for axis in sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])):
        if remaining > BLOCK_BYTES and along[axis].may_be_cut and sizes[axis] > 1:
            inner = prod(
                size
                for size, stride in zip(sizes, array.strides, strict=True)
                if abs(stride) < abs(array.strides[axis])
            )
            steps[axis] = min(sizes[axis], max(1, BLOCK_BYTES * sizes[axis] // remaining, _LONG_LOOP // max(1, inner)))
            remaining = remaining * steps[axis] // sizes[axis]
    cuts = [
        [range(size)[start : start + step] for start in range(0, size, step or 1)]
        for size, step in zip(sizes, steps, strict=True)
    ]
    return list(product(*cuts))


def reduce_windows_exactly(
    array: Array, init_value: Array, window: Window, reducer: KnownReducer, result_type: ElementType
) -> Array:
    """`reduce_windows_known` that does not depend on the machine: sums as pairs of f64, rounded once; products in f64.

    Everything else, and integers, is exact as it is.
    """
    if reducer.ufunc is np.multiply and result_type.is_floating:
        wide = reduce_windows_known(_in_f64(array), _in_f64(init_value), window, reducer, element_type("f64"))
        return narrow(wide, result_type)
    if reducer.ufunc is not np.add or not (result_type.is_floating or result_type.is_complex):
        return reduce_windows_known(array, init_value, window, reducer, result_type)
    if result_type.is_complex:
        real = _summed_windows(array.real, init_value.real, window, part_type(result_type))
        imag = _summed_windows(array.imag, init_value.imag, window, part_type(result_type))
        return narrow(from_parts(real, imag), result_type)
    is_quick = can_be_certain(result_type) and array.dtype.itemsize <= 4
    if is_quick and all(dimension.base_dilation == 1 for dimension in window.dimensions):
        return narrow(_summed_quickly(array, init_value, window, reducer, result_type), result_type)
    return narrow(_summed_windows(array, init_value, window, result_type), result_type)


def _summed_quickly(
    array: Array, init_value: Array, window: Window, reducer: KnownReducer, result_type: ElementType
) -> Array:
    """The sums of windows of f32 numbers, or of narrower ones, in plain f64; as pairs, what needs more digits.

    A sum of magnitudes m, of depth d, is off by less than d · 2⁻⁵³ · m, and m in f32 by less than a half, or infinite.
    """
    value = reduce_windows_known(_in_f64(array), _in_f64(init_value), window, reducer, element_type("f64"))
    magnitudes = np.abs(widen(array)), np.abs(widen(init_value))
    size = reduce_windows_known(magnitudes[0], magnitudes[1], window, reducer, element_type("f32"))
    depth = 1 + _depth(array.shape, window)
    # Twice the bound, for the margin, and twice that, for the size.
    again = doubtful(value, size.astype(np.float64) * (depth * 2.0**-51), result_type)
    again |= np.isnan(value)
    if again.any():
        units, unit = map(units_of, magnitudes)
        smallest = reduce_windows_known(units, unit, window, KNOWN_REDUCERS["minimum"], element_type("f32"))
        again &= ~(size < EXACT_UNITS * smallest.astype(np.float64))
    if np.count_nonzero(again) * _SUMMED_ALONE > value.size:
        return _summed_windows(array, init_value, window, result_type)
    for place in np.argwhere(again).tolist():
        one = [range(number, number + 1) for number in place]
        parts = list(map(part_of_windows, array.shape, one, window.dimensions))
        dimensions = tuple(dimension for _, dimension in parts)
        seen = array[tuple(elements for elements, _ in parts)]
        value[tuple(place)] = _summed_windows(seen, init_value, Window(dimensions), result_type).item()
    return value


def _depth(shape: Dimensions, window: Window) -> int:
    if are_apart(shape, window):
        return prod(one.size for one in window.dimensions)
    return sum(Along.of(0, extent, one).depth for extent, one in zip(shape, window.dimensions, strict=True))


def _in_f64(array: Array) -> Array:
    return np.asarray(widen(array).astype(np.float64))


def _summed_windows(array: Array, init_value: Array, window: Window, result_type: ElementType) -> Array:
    wide = _in_f64(array)
    pairs = np.stack([wide, np.zeros_like(wide)])
    for axis, dimension in enumerate(window.dimensions, 1):
        one = Along.of(axis, pairs.shape[axis], dimension)
        pairs = one.reduced(pairs, lambda x, y, out: np.copyto(out, _PAIRS.combine(x, y)), _PAIRS.identity)
    high, low = add_pairs((pairs[0], pairs[1]), (_in_f64(init_value), 0.0))
    return rounded_to_odd((high, low)) if can_be_certain(result_type) else np.asarray(high + low)


def reduce_windows_stepwise(
    arrays: Sequence[Array], init_values: Sequence[Array], window: Window, callee: Callee
) -> list[Array]:
    """reduce-window with any reducer: tap by tap in row-major order, in the declared types."""
    sizes = tuple(map(output_size, arrays[0].shape, window.dimensions))
    totals = [np.full(sizes, init_value, init_value.dtype) for init_value in init_values]
    for _, places, elements in taps(arrays[0].shape, sizes, window.dimensions):
        combined = called(callee, *(total[places] for total in totals), *(array[elements] for array in arrays))
        for total, value in zip(totals, combined, strict=True):
            total[places] = value
    return totals


_FEW_TAPS = 32


@frozen
class ReduceWindowAttributes:
    """The window, and what combines two values."""

    window: Window = attribute(default=Window())
    to_apply: str = attribute(Grammar.COMPUTATION)


@opcode(
    "reduce-window",
    operands=(2, ANY),
    attributes=ReduceWindowAttributes,
    rounding=Rounding.SUM,
    flushes_denormals=True,
    fast_in="hloexec.ops.reduction.fast.reduce",
)
class ReduceWindow:
    """out[o...] = init_value combined with all operand[...] under the window at o

    Along each dimension tap t of the window at place o lies at o·stride + t·window_dilation − padding_low of the
    operand dilated by base_dilation. Padding and the gaps between dilated elements are skipped. N operands and N
    initial values as for reduce. XLA: ReduceWindow.
    """

    sums = Sums.PREFIXES
    probe = Probe("T[2] reduce-window(a0, a1), window={size=1}, to_apply=c", ("T[2]", "T[]"), REDUCER)

    demands_for = reduced_demands

    @staticmethod
    def additions(instruction: Instruction, module: Module, operands: Sequence[ArrayShape]) -> Additions | None:
        terms = prod(dimension.size for dimension in instruction.attributes.window.dimensions)
        return reduced_additions(instruction, module, len(operands), terms)

    @staticmethod
    def unstated(*operands: Shape) -> None:
        require(len(operands) == 2, "XLA infers the shape of a reduce-window of one array only")

    @staticmethod
    def relate(use: Relating) -> None:
        arrays = [operand.axes for operand in use.operands[: len(use.operands) // 2]]
        use.same_leaf_units(len(arrays))
        use.same(*arrays)
        results = [*use.result.leaves.values()]
        use.same(*results)
        windows = use.attributes.window.dimensions
        for entry, operand, result in zip(windows, arrays[0], results[0], strict=True):
            relate_window(use, entry, operand, result)
        whole = [axis for axis, entry in zip(arrays[0], windows, strict=True) if 1 < entry.size == use.size(axis)]
        if whole:
            use.sums_over(whole)

    @staticmethod
    def resize(change: Resizing) -> object:
        window = resized_windows(change.attributes.window, change.sizes(0), change.result_sizes)
        return attrs.evolve(change.attributes, window=window)

    @staticmethod
    def infer(*operands: Shape, attributes: ReduceWindowAttributes, computations: Programs) -> Shape:
        arrays, results = reducer_types(operands, computations[0], "reduce-window")
        operand, window = arrays[0], attributes.window
        require(
            len(window.dimensions) == operand.rank,
            f"the window of reduce-window has {len(window.dimensions)} dimensions, but its operand is {operand}",
        )
        require_window(window, "reduce-window")
        sizes = tuple(map(output_size, operand.dimensions, window.dimensions))
        return result_shape(results, sizes, operand.dynamic_dimensions, computations[0])

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: ReduceWindowAttributes,
        shape: Shape,
        computations: Callees,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | tuple[Array, ...]:
        callee, window = computations[0], attributes.window
        reduce_windows = reduce_windows_exactly if numerics.is_exact else reduce_windows_known

        def by_operation(array: Array, init_value: Array, name: str, element_type: ElementType) -> Array:
            return reduce_windows(array, init_value, window, KNOWN_REDUCERS[name], element_type)

        by_calling = partial(reduce_windows_stepwise, window=window, callee=callee)
        # What rounds at random has the errors of the partial sums of few terms as XLA adds them, one after the other.
        is_stepwise = (
            numerics.rounding_seed is not None
            and prod(dimension.size for dimension in window.dimensions) <= _FEW_TAPS
            and recognise(callee.computation) == "add"
            and not any(entry.is_narrow for entry in element_types(callee.computation.root.shape))
        )
        return reduced(
            operands, shape, callee, by_operation, by_calling, is_exact=numerics.is_exact, is_stepwise=is_stepwise
        )

    @staticmethod
    def summed(*, attributes: ReduceWindowAttributes, shape: Shape, computations: Callees) -> Summation | None:
        names = usual_operations(computations[0], element_types(shape), is_exact=False) or ()
        terms = prod(dimension.size for dimension in attributes.window.dimensions)
        if not {"add", "multiply"} & set(names):
            return None
        # XLA makes prefix sums of sums of blocks of 16, each added up in the declared type: every term passes through
        # four partial sums per binary digit of their number, which are rounded apart from one another.
        steps = 6 * min(float(terms), 4 * math.log2(max(2, terms)))
        return Summation(terms, narrow_steps=steps, is_product="multiply" in names)
