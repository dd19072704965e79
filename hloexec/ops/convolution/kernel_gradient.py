"""Convolution with a window larger than the result: the gradient of a kernel in training steps.

The window is an image, and most of the sum is over its positions. Blocks of positions are multiplied one after the
other and added, so that neither operand is ever copied as a whole. Shapes and strides alone determine which products
are added in which order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, reduce
from itertools import product
from operator import iadd

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.blas import matmul
from hloexec.ops.common import narrow
from hloexec.ops.contraction.product_blocks import LEAST_SHARED
from hloexec.ops.convolution.views import ConvolutionViews
from hloexec.ops.threads import for_each, in_blocks

_BLOCK_BYTES = 512 << 10
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
        terms = max(_BLOCK_TERMS, _BLOCK_BYTES // term_bytes)
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
        terms: tuple[int, ...] = tuple(range(rank + 2, 2 * rank + 3))
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
