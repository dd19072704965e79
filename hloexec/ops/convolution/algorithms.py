"""The algorithms for convolution, on views of the operands.

Every algorithm works on views with one order of dimensions, and writes to a view of the result. Padding is stored for a
block at a time, dilation of the input never: a convolution on a dilated input is split into convolutions on the
original input, one per phase of the dilation, each with the taps that meet elements.

Convolution with few features per group, such as depthwise convolution: elementwise products, added up.

A block of the result stays in a core's private cache while all taps are added to it. Padding is skipped, not
multiplied. Arrays of one image are viewed as `[spatial..., group, feature]`, whatever their order in memory.

Convolution with a window larger than the result: the gradient of a kernel in training steps.

The window is an image, and most of the sum is over its positions. Blocks of positions are multiplied one after the
other and added, so that neither operand is ever copied as a whole. Shapes and strides alone determine which products
are added in which order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, reduce
from itertools import pairwise, product
from operator import iadd
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import WindowDimension
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.common import narrow, strided, widen
from hloexec.ops.contraction.matrix_product import FloatMultiplier, OperandSplit, default_multiplier, float_accumulation
from hloexec.ops.contraction.plain_products import LEAST_SHARED
from hloexec.ops.relations.parts import part_of_windows, taps
from hloexec.ops.resources import for_each, in_blocks, matmul


@frozen
class ConvolutionViews:
    """One convolution on views."""

    inputs: Array
    """`[group, batch, spatial..., feature in]`, with one spatial dimension at least."""
    kernel: Array
    """`[group, window..., feature in, feature out]`, reversed dimensions flipped."""
    result: Array
    """`[group, batch, spatial..., feature out]` in the result's storage type, to be filled."""
    dimensions: tuple[WindowDimension, ...]
    """Their `padding_high` and `window_reversal` count no more: `result` and `kernel` are as these make them."""
    result_type: ElementType
    f32_split: OperandSplit | None = None
    is_exact: bool = False
    """Whether each output is one sum, rounded once, whatever that costs."""

    @cached_property
    def accumulation_type(self) -> ElementType:
        """The element type in which products are added up."""
        if self.result_type.is_integral:
            return element_type_of(self.result_type.compute)
        types = (element_type_of(self.inputs.dtype), element_type_of(self.kernel.dtype), self.result_type)
        return element_type_of(float_accumulation(*types))

    def preparation(self, operand: Array) -> Callable[[Array], Array] | None:
        """What is done to an operand, elementwise, before it is multiplied in the accumulation type."""
        accumulation = self.accumulation_type.storage
        if self.result_type.is_integral:
            return None if operand.dtype == accumulation else lambda block: widen(block).astype(accumulation)
        multiplier = default_multiplier(self.inputs, self.kernel, self.accumulation_type, self.f32_split)
        assert isinstance(multiplier, FloatMultiplier)
        if multiplier.split is None and operand.dtype == accumulation:
            return None
        return lambda block: multiplier.prepare(block)[0]

    def prepared(self, operand: Array) -> Array:
        prepare = self.preparation(operand)
        return operand if prepare is None else prepare(operand)

    @property
    def sizes(self) -> Dimensions:
        """Of the result's spatial dimensions."""
        return tuple(self.result.shape[2:-1])

    @property
    def window(self) -> Dimensions:
        return tuple(self.kernel.shape[1:-2])

    @property
    def has_features_inside(self) -> bool:
        """Whether features of the input lie closer in memory than neighbours in space."""
        return self._lies_inside(-1)

    @property
    def has_groups_inside(self) -> bool:
        """Whether groups of the input lie closer in memory than neighbours in space."""
        return self._lies_inside(0)

    def _lies_inside(self, axis: int) -> bool:
        shape, strides = self.inputs.shape[2:-1], self.inputs.strides[2:-1]
        spatial = (abs(stride) for size, stride in zip(shape, strides, strict=True) if size > 1)
        stride = self.inputs.strides[axis]
        return abs(stride) <= min(spatial, default=abs(stride))

    def taps(self) -> Iterator[tuple[Dimensions, tuple[slice, ...], tuple[slice, ...]]]:
        """For each tap that meets elements: its position, the outputs it adds to, and the inputs it reads for them."""
        return taps(self.inputs.shape[2:-1], self.sizes, self.dimensions)

    def block(self, groups: slice, images: slice, lines: range) -> ConvolutionViews:
        """The convolution that fills part of the result; lines are those of the first spatial dimension.

        Of the input no more is left than is read for them. The base dilation is 1.
        """
        window = attrs.evolve(self.dimensions[0], size=self.window[0])
        elements, first = part_of_windows(self.inputs.shape[2], lines, window)
        return attrs.evolve(
            self,
            inputs=self.inputs[groups, images, elements],
            kernel=self.kernel[groups],
            result=self.result[groups, images, lines.start : lines.stop],
            dimensions=(first, *self.dimensions[1:]),
        )

    def seen(
        self,
        images: slice,
        places: Sequence[range],
        taps: Sequence[range],
        features: slice,
        prepare: Callable[[Array], Array] | None,
        *,
        keeps_order: bool = True,
    ) -> Array:
        """What windows see: a view `[group, image, place..., tap..., feature]` of the input, or of a block of it.

        The base dilation is 1. Where windows reach into the padding, or with `prepare`, which is applied elementwise
        and keeps zeros, the part of the input that they read is copied, zeros around it: where it `keeps_order`, with
        its dimensions in the order in which they lie in memory.
        """
        block = self.inputs[:, images, ..., features]
        shape, target, source = [], [], []
        for extent, dimension, place, tap in zip(block.shape[2:-1], self.dimensions, places, taps, strict=True):
            start = place.start * dimension.stride + tap.start * dimension.window_dilation - dimension.padding_low
            length = (len(place) - 1) * dimension.stride + (len(tap) - 1) * dimension.window_dilation + 1
            low = min(max(0, start), extent)
            high = max(low, min(extent, start + length))
            shape.append(length)
            source.append(slice(low, high))
            target.append(slice(low - start, high - start))
        every = slice(None)
        seen = block[(every, every, *source)]
        if prepare is not None:
            seen = prepare(seen)
        if any(place.stop - place.start < length for place, length in zip(target, shape, strict=True)):
            sizes = (*block.shape[:2], *shape, block.shape[-1])
            padded = _zeros_like(seen, sizes) if keeps_order else np.zeros(sizes, seen.dtype)
            padded[(every, every, *target)] = seen
            seen = padded
        return _windows(seen, places, taps, self.dimensions)


def _zeros_like(array: Array, sizes: Dimensions) -> Array:
    """Zeros of other sizes, the dimensions in memory in the order of the array's."""
    order, places = _memory_order(sizes, array.strides)
    return np.zeros([sizes[dimension] for dimension in order], array.dtype).transpose(places)


@lru_cache(maxsize=1024)
def _memory_order(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The dimensions from the outermost to the innermost, and the place of each among them.

    Those of size 1, which may lie anywhere, are the outermost: arrays are in row-major order then more often, of which
    NumPy makes views faster.
    """
    order = sorted(range(len(strides)), key=lambda dimension: (sizes[dimension] != 1, -abs(strides[dimension])))
    return order, sorted(range(len(strides)), key=order.__getitem__)


def _windows(
    padded: Array, places: Sequence[range], taps: Sequence[range], dimensions: Sequence[WindowDimension]
) -> Array:
    """Windows as a view `[group, image, place..., tap..., feature]` of what they see."""
    group, image, *strides, feature = padded.strides
    shape = (*padded.shape[:2], *map(len, places), *map(len, taps), padded.shape[-1])
    moves = (stride * dimension.stride for stride, dimension in zip(strides, dimensions, strict=True))
    shifts = (stride * dimension.window_dilation for stride, dimension in zip(strides, dimensions, strict=True))
    return strided(padded, shape, (group, image, *moves, *shifts, feature))


def store(lhs: Array, rhs: Array, target: Array, result_type: ElementType) -> None:
    """Fill `target[group, row..., column]` with `lhs[group, row, length]` times `rhs[group, length, column]`."""
    if merges_into_rows(target[0]) and target.dtype == lhs.dtype:
        matmul(lhs, rhs, target.reshape(*lhs.shape[:2], rhs.shape[-1]))
    else:
        target[...] = narrow(matmul(lhs, rhs), result_type).reshape(target.shape)


def merges_into_rows(view: Array) -> bool:
    """Whether all dimensions but the last become one without a copy."""
    counted = [(size, stride) for size, stride in zip(view.shape[:-1], view.strides[:-1], strict=True) if size > 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(counted))


def phases(work: ConvolutionViews) -> Iterator[ConvolutionViews]:
    """The convolutions on the undilated input that together fill the result; where no tap meets an element, zeros.

    Output x and tap t meet an element of the input dilated by d where x·stride + t·window_dilation − padding_low is a
    multiple of d: along each dimension, every so many outputs share every so many taps.
    """
    if all(dimension.base_dilation == 1 for dimension in work.dimensions):
        yield work
        return
    per_dimension = [
        list(_phases_along(dimension, size, taps))
        for dimension, size, taps in zip(work.dimensions, work.sizes, work.window, strict=True)
    ]
    every = slice(None)
    for combination in product(*per_dimension):
        places = tuple(place for place, _, _ in combination)
        taps: tuple[Any, ...] = tuple(tap for _, tap, _ in combination)
        part = work.result[(every, every, *places)]
        if not part.size:
            continue
        kernel = work.kernel[(every, *taps)]
        if math.prod(kernel.shape[1:-2]) == 0:
            part[...] = 0
            continue
        yield attrs.evolve(work, kernel=kernel, result=part, dimensions=tuple(found for _, _, found in combination))


def _phases_along(dimension: WindowDimension, size: int, taps: int) -> Iterator[tuple[slice, slice, WindowDimension]]:
    """The outputs of a phase, its taps, and the window that they are on the undilated input."""
    base = dimension.base_dilation
    period = base // math.gcd(dimension.stride, base)
    spacing = base // math.gcd(dimension.window_dilation, base)
    for phase in range(min(period, size)):
        offsets = (
            phase * dimension.stride + tap * dimension.window_dilation - dimension.padding_low for tap in range(taps)
        )
        first, offset = next(((tap, offset) for tap, offset in enumerate(offsets) if offset % base == 0), (taps, 0))
        met = len(range(first, taps, spacing))
        window = WindowDimension(
            max(1, met),
            stride=dimension.stride * period // base,
            padding_low=-(offset // base),
            window_dilation=dimension.window_dilation * spacing // base,
        )
        yield slice(phase, None, period), slice(first, None, spacing), window


_CHANNEL_BYTES = 128 << 10
"""The sums of a block; its inputs, and products on their way to the sums, take as much each."""
_LONG_LOOP = 512
"""Number of elements from which NumPy's innermost loop is long enough."""


def by_channel(work: ConvolutionViews) -> None:
    """Fill `work.result`, tap by tap in row-major order of the window; the base dilation is 1."""
    kernel = np.moveaxis(work.prepared(work.kernel), 0, -3)[..., None, :, :, :]
    if work.has_groups_inside and len(work.sizes) > 1 and kernel.shape[-3] < _LONG_LOOP:
        # Columns and groups are one loop where the kernel has columns, too.
        kernel = np.repeat(kernel, work.sizes[-1], axis=-4)
    prepare = work.preparation(work.inputs)

    def add(place: tuple[slice, slice, range]) -> None:
        block, groups = work.block(*place), place[0]
        inputs = block.inputs if prepare is None else prepare(block.inputs)
        _add_taps(attrs.evolve(block, inputs=inputs), kernel[..., groups, :, :])

    for_each(add, _blocks(work))


def _add_taps(work: ConvolutionViews, kernel: Array) -> None:
    """Fill the result for one image; the kernel is prepared, `[window..., column, group, feature in, feature out]`."""
    inputs, result = _image(work.inputs), _image(work.result)
    products = _scratch(work, result.shape[:-1])
    for feature_out in range(result.shape[-1]):
        total = _scratch(work, result.shape[:-1])
        total[...] = 0
        for position, places, read in work.taps():
            for feature_in in range(inputs.shape[-1]):
                chosen = inputs[read][..., feature_in]
                factor = kernel[position][: chosen.shape[-2], :, feature_in, feature_out]
                part = products[places]
                np.multiply(chosen, factor, out=part)
                total[places] += part
        result[..., feature_out] = narrow(total, work.result_type)


def kernel_gradient_by_channel(work: ConvolutionViews) -> None:
    """Fill `work.result` where the window is larger than it, an image; only groups and places are many.

    For each place of the result, products over a block of an image are added up; then the sums of the blocks are.
    """
    # The same sums, seen as those of a convolution whose kernel is to be found: images are its features.
    moved = attrs.evolve(
        work,
        inputs=work.inputs.swapaxes(1, -1),
        kernel=np.moveaxis(work.result, 1, -2),
        result=np.moveaxis(work.kernel, -2, 1),
        dimensions=tuple(
            WindowDimension(size, d.window_dilation, d.padding_low, window_dilation=d.stride)
            for size, d in zip(work.sizes, work.dimensions, strict=True)
        ),
    )
    blocks = _blocks(moved)
    images = len(range(0, work.kernel.shape[0], blocks[0][0].stop))
    prepares = work.preparation(work.inputs), work.preparation(work.kernel)
    # [block, place..., group, batch, feature out]
    sums = np.zeros((len(blocks) // images, *np.moveaxis(moved.kernel, 0, -3).shape), work.accumulation_type.storage)

    def add(number: int) -> None:
        block, groups = moved.block(*blocks[number]), blocks[number][0]
        inputs, factors = (
            _image(array if prepare is None else prepare(array))
            for array, prepare in zip((block.inputs, block.result), prepares, strict=True)
        )
        products = _scratch(block, factors.shape[:-1])
        for position, places, read in block.taps():
            part = products[places]
            for batch, feature in product(range(inputs.shape[-1]), range(factors.shape[-1])):
                np.multiply(inputs[read][..., batch], factors[places][..., feature], out=part)
                line = np.add.reduce(part, axis=0)
                total = np.add.reduce(line, axis=tuple(range(line.ndim - 1)))
                where: tuple[Any, ...] = (number // images, *position, groups, batch, feature)
                sums[where] = total

    for_each(add, range(len(blocks)))
    total = narrow(np.add.reduce(sums, axis=0), work.result_type)
    work.result[...] = np.moveaxis(total, (-3, -2), (0, 1))


def _image(array: Array) -> Array:
    """`[spatial..., group, feature]` of `[group, 1, spatial..., feature]`."""
    return np.moveaxis(array[:, 0], 0, -2)


def _scratch(work: ConvolutionViews, shape: Dimensions) -> Array:
    """An array `[spatial..., group]` of the accumulation type that lies in memory as the input does."""
    dtype = work.accumulation_type.storage
    if work.has_groups_inside:
        return np.empty(shape, dtype)
    return np.moveaxis(np.empty((shape[-1], *shape[:-1]), dtype), 0, -1)


def _blocks(work: ConvolutionViews) -> list[tuple[slice, slice, range]]:
    """Groups, one image, and lines (along the first spatial dimension) of blocks that lie together in memory."""
    groups, batch, lines = work.result.shape[:3]
    image_bytes = groups * math.prod(work.result.shape[2:-1]) * work.accumulation_type.storage.itemsize
    line_step, group_step = lines, groups
    if work.has_groups_inside:
        line_step = min(lines, max(1, _CHANNEL_BYTES * lines // image_bytes))
    else:
        group_step = min(groups, max(1, _CHANNEL_BYTES * groups // image_bytes))
    return [
        (slice(group, min(groups, group + group_step)), slice(image, image + 1), range(lines)[line : line + line_step])
        for image, line, group in product(range(batch), range(0, lines, line_step), range(0, groups, group_step))
    ]


_GRADIENT_BYTES = 512 << 10
"""What windows see of one block of the sum: it stays in a core's own cache."""
_BLOCK_TERMS = 512
"""Terms of one block that make adding cheap compared with multiplying, even if they take more."""
_PARTIAL_BYTES = 2 << 20
"""Results up to this size are added up from several partial sums, made at the same time."""
_PARTIAL_SUMS = 8
_SMALL_PRODUCTS = 1_000_000
"""Up to so many multiplications, OpenBLAS may round otherwise where an operand lies in another order."""
_PART_ROWS = 256
"""Number of rows of the parts into which larger results are divided."""


def kernel_gradient(work: ConvolutionViews) -> None:
    """Fill `work.result`; the base dilation is 1."""
    groups, batch = work.inputs.shape[:2]
    rows, outputs = batch * math.prod(work.sizes), work.kernel.shape[-1]
    itemsize = work.accumulation_type.storage.itemsize
    if groups * rows * outputs * itemsize <= _PARTIAL_BYTES:
        sums = _Sums(work, slice(None), tuple(map(range, work.sizes)))
        blocks = sums.blocks()
        step = -(-len(blocks) // _PARTIAL_SUMS)
        partial = [sums.of(())] * -(-len(blocks) // step)

        def add(start: int, stop: int) -> None:
            partial[start // step] = sums.of(blocks[start:stop])

        in_blocks(add, len(blocks), step)
        sums.store(reduce(iadd, partial))
        return
    step = max(1, min(batch, max(_PART_ROWS, batch // 4)))
    parts = [
        _Sums(work, slice(start, start + step), tuple(range(place, place + 1) for place in places))
        for start in range(0, batch, step)
        for places in product(*map(range, work.sizes))
    ]
    for_each(lambda part: part.store(part.of(part.blocks())), parts)


@frozen
class _Sums:
    """The sums for some of the batch at some places of the result."""

    work: ConvolutionViews
    images: slice
    places: tuple[range, ...]

    @cached_property
    def preparations(self) -> list[Callable[[Array], Array] | None]:
        """What is done to each operand, for all blocks."""
        return [self.work.preparation(operand) for operand in (self.work.inputs, self.work.kernel)]

    @cached_property
    def rows(self) -> int:
        batch = len(range(self.work.inputs.shape[1])[self.images])
        return batch * math.prod(map(len, self.places))

    def blocks(self) -> list[tuple[slice, range]]:
        """Features and lines (along the window's first dimension) of blocks of terms."""
        lines, features = self.work.window[0], self.work.kernel.shape[-2]
        per_line = math.prod(self.work.window[1:])
        term_bytes = self.work.inputs.shape[0] * self.rows * self.work.accumulation_type.storage.itemsize
        terms = max(_BLOCK_TERMS, _GRADIENT_BYTES // term_bytes)
        if per_line * lines * features * self.rows * self.work.kernel.shape[-1] >= LEAST_SHARED // 2:
            terms = min(terms, -(-per_line * lines * features // 2))
        if self._has_features_outside:
            line_step = min(lines, max(1, terms // per_line))
            feature_step = max(1, terms // (per_line * lines)) if line_step == lines else 1
        else:
            line_step, feature_step = min(lines, max(1, terms // (per_line * features))), features
        return [
            (slice(feature, feature + feature_step), range(lines)[line : line + line_step])
            for feature in range(0, features, feature_step)
            for line in range(0, lines, line_step)
        ]

    def of(self, blocks: list[tuple[slice, range]] | tuple[()]) -> Array:
        """`[group, place and image, feature out]`: the sum over some blocks of terms, one after the other."""
        groups, outputs = self.work.kernel.shape[0], self.work.kernel.shape[-1]
        total = np.zeros((groups, self.rows, outputs), self.work.accumulation_type.storage)
        product = np.empty_like(total)
        for number, block in enumerate(blocks):
            matmul(*self._operands(*block), product if number else total)
            if number:
                total += product
        return total

    def store(self, total: Array) -> None:
        target = self.work.result[:, self.images]
        target = target[(slice(None), slice(None), *(slice(place.start, place.stop) for place in self.places))]
        # From [group, place..., image, feature out]
        shape = (target.shape[0], *target.shape[2:-1], target.shape[1], target.shape[-1])
        target[...] = np.moveaxis(narrow(total, self.work.result_type).reshape(shape), -2, 1)

    @cached_property
    def _has_features_outside(self) -> bool:
        """Whether the kernel's window dimensions lie within its input features, as in batches of images."""
        kernel = self.work.kernel
        return abs(kernel.strides[-2]) >= max(map(abs, kernel.strides[1:-2]))

    def _operands(self, features: slice, lines: range) -> tuple[Array, Array]:
        """`[group, row, term]` and `[group, term, feature out]`, prepared for multiplication."""
        work = self.work
        rank = len(work.sizes)
        taps = (lines, *map(range, work.window[1:]))
        kernel = work.kernel[:, lines.start : lines.stop, ..., features, :]
        is_large = self.rows * math.prod(kernel.shape[1:]) > _SMALL_PRODUCTS
        seen = work.seen(self.images, self.places, taps, features, self.preparations[0], keeps_order=is_large)
        rows = (*range(2, rank + 2), 1)
        terms: Dimensions = tuple(range(rank + 2, 2 * rank + 3))
        if self._has_features_outside:
            terms = (terms[-1], *terms[:-1])
            kernel = kernel.transpose(0, -2, *range(1, rank + 1), -1)
        length = math.prod(kernel.shape[1:-1])
        if work.inputs.shape[1] > 1 and abs(seen.strides[1]) <= abs(work.inputs.strides[-2]):
            lhs = seen.transpose(0, *terms, *rows).reshape(seen.shape[0], length, self.rows).swapaxes(-1, -2)
        else:
            lhs = seen.transpose(0, *rows, *terms).reshape(seen.shape[0], self.rows, length)
        rhs, prepare = kernel.reshape(kernel.shape[0], length, kernel.shape[-1]), self.preparations[1]
        return lhs, rhs if prepare is None else prepare(rhs)
