"""Convolution.

A window's taps are visited one by one: which outputs a tap contributes to, and which inputs it reads for them, are
plain strided slices in every dimension. Padding and dilated zeros are thus never stored. Work is done on views `[group,
batch, spatial..., feature]` of the input and `[group, window..., feature in, feature out]` of the kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import ELEMENT_TYPES, ElementType, Kind, element_type_of
from hloexec.ir import ArrayShape, ConvolutionDimensionNumbers, Shape, Window, WindowDimension
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, narrow, require, same_type_ignoring_float_width, widen
from hloexec.ops.matrix_product import default_multiplier, exactly, matrix_product
from hloexec.ops.policy import NumericsPolicy
from hloexec.ops.registry import opcode
from hloexec.ops.windows import output_size, require_window, visits
from hloexec.values import Array

__all__ = ["ConvolutionAttributes"]

_NO_WINDOW = Window()
_PATCH_BYTES = 32 << 20
"""Scratch for the patches of one block of outputs."""
_FEATURES_FOR_TAPS = 512
"""From so many input features per group on, one matrix product per tap beats gathering patches."""


@attrs.frozen
class ConvolutionAttributes:
    """`convolution_kind` names what a convolution stands for in training; it changes no value."""

    window: Window = attribute(Grammar.WINDOW, default=_NO_WINDOW)
    dim_labels: ConvolutionDimensionNumbers = attribute(Grammar.CONVOLUTION_DIMENSIONS)
    feature_group_count: int = attribute(Grammar.INT, default=1)
    batch_group_count: int = attribute(Grammar.INT, default=1)
    convolution_kind: str = attribute(Grammar.ENUM, default="unset", choices=("unset", "fprop", "dgrad", "wgrad"))
    sparsity_config: str | None = attribute(Grammar.VERBATIM, default=None)
    operand_precision: tuple[str, ...] = attribute(
        Grammar.ENUM_LIST, default=(), choices=("default", "high", "highest", "packed_nibble")
    )


@opcode("convolution", operands=2, attributes=ConvolutionAttributes)
class Convolution:
    """out[b, x, o] = sum over t, i of lhs[b, x * stride + t * window_dilation - padding_low, i] * rhs[t, i, o]

    over taps t and input features i; lhs is dilated by base_dilation and zero outside. Reversed windows turn rhs. With
    feature groups, the outputs of group g see the inputs of group g only; with batch groups, the outputs of group g are
    those of batch group g. Narrow floats accumulate in f32 and round once; integers wrap; of pred, sums are
    disjunctions. Source: XLA, Conv.
    """

    @staticmethod
    def infer(lhs: Shape, rhs: Shape, *, attributes: ConvolutionAttributes, shape: Shape) -> Shape:
        return _infer(array_shape(lhs, "lhs of convolution"), array_shape(rhs, "rhs of convolution"), attributes, shape)

    @staticmethod
    def evaluate(
        lhs: Array, rhs: Array, *, attributes: ConvolutionAttributes, shape: ArrayShape, numerics: NumericsPolicy
    ) -> Array:
        if shape.element_type.kind is Kind.PRED:
            counted = [operand.astype(np.int32) for operand in (lhs, rhs)]
            whole = shape.with_element_type(ELEMENT_TYPES["s32"])
            sums = Convolution.evaluate(*counted, attributes=attributes, shape=whole, numerics=numerics)
            return np.asarray(sums != 0)
        is_default = all(precision == "default" for precision in attributes.operand_precision)
        bits = numerics.contraction_operand_mantissa_bits if is_default else None
        inputs, kernel = _grouped_input(lhs, attributes), _grouped_kernel(rhs, attributes)
        dimensions = attributes.window.dimensions
        sizes = tuple(map(output_size, inputs.shape[2:-1], dimensions))
        is_exact = numerics.is_exact and not shape.element_type.is_integral
        work = _Work(inputs, kernel, dimensions, sizes, shape.element_type, bits, is_exact)
        return _ungrouped(work.result(), attributes)


def _infer(lhs: ArrayShape, rhs: ArrayShape, attributes: ConvolutionAttributes, declared: Shape) -> ArrayShape:
    labels, window = attributes.dim_labels, attributes.window
    ranks = (labels.input_rank, labels.kernel_rank, labels.output_rank)
    require(
        ranks == (lhs.rank, rhs.rank, lhs.rank) and lhs.rank >= 2,
        f"dim_labels of convolution are for ranks {ranks}, but the operands have shapes {lhs} and {rhs}",
    )
    for side, roles in (
        ("input", (labels.input_batch_dimension, labels.input_feature_dimension, *labels.input_spatial_dimensions)),
        (
            "kernel",
            (
                labels.kernel_input_feature_dimension,
                labels.kernel_output_feature_dimension,
                *labels.kernel_spatial_dimensions,
            ),
        ),
        ("output", (labels.output_batch_dimension, labels.output_feature_dimension, *labels.output_spatial_dimensions)),
    ):
        require(
            sorted(roles) == list(range(lhs.rank)),
            f"dim_labels of convolution must give each of the {lhs.rank} dimensions of its {side} one role, but name "
            f"the dimensions {', '.join(map(str, roles))}",
        )
    spatial = len(labels.input_spatial_dimensions)
    require(
        len(window.dimensions) == spatial,
        f"the window of convolution has {len(window.dimensions)} dimensions, but dim_labels name {spatial}",
    )
    require_window(window, "convolution")
    for number, (dimension, position) in enumerate(
        zip(window.dimensions, labels.kernel_spatial_dimensions, strict=True)
    ):
        require(
            dimension.size == rhs.dimensions[position],
            f"dimension {number} of the window of convolution has size {dimension.size}, but the kernel's dimension "
            f"{position} has size {rhs.dimensions[position]}",
        )
    _require_groups(lhs, rhs, attributes)
    element_type = same_type_ignoring_float_width(lhs, rhs, "the operands of convolution")
    if isinstance(declared, ArrayShape):
        wanted = declared.element_type
        allowed = (
            wanted.is_complex
            or wanted is element_type
            or (wanted.is_floating and not element_type.is_complex)
            or (wanted.is_integral and element_type.is_integral)
        )
        require(allowed, f"a convolution of {lhs} with {rhs} cannot have elements of type {wanted}")
        element_type = wanted
    sizes, dynamic = [0] * lhs.rank, [False] * lhs.rank

    def is_dynamic(operand: ArrayShape, dimension: int) -> bool:
        return operand.is_dynamic and operand.dynamic_dimensions[dimension]

    batch, feature = labels.output_batch_dimension, labels.output_feature_dimension
    sizes[batch] = lhs.dimensions[labels.input_batch_dimension] // attributes.batch_group_count
    dynamic[batch] = is_dynamic(lhs, labels.input_batch_dimension)
    sizes[feature] = rhs.dimensions[labels.kernel_output_feature_dimension]
    dynamic[feature] = is_dynamic(rhs, labels.kernel_output_feature_dimension)
    for target, source, dimension in zip(
        labels.output_spatial_dimensions, labels.input_spatial_dimensions, window.dimensions, strict=True
    ):
        sizes[target] = output_size(lhs.dimensions[source], dimension)
        dynamic[target] = is_dynamic(lhs, source)
    return ArrayShape(element_type, tuple(sizes), dynamic_dimensions=tuple(dynamic) if any(dynamic) else ())


def _require_groups(lhs: ArrayShape, rhs: ArrayShape, attributes: ConvolutionAttributes) -> None:
    labels = attributes.dim_labels
    feature_groups, batch_groups = attributes.feature_group_count, attributes.batch_group_count
    require(
        feature_groups > 0 and batch_groups > 0,
        f"the group counts of convolution must be positive, but are {feature_groups} and {batch_groups}",
    )
    require(
        feature_groups == 1 or batch_groups == 1,
        f"convolution cannot have both feature groups ({feature_groups}) and batch groups ({batch_groups})",
    )
    batch = lhs.dimensions[labels.input_batch_dimension]
    features = lhs.dimensions[labels.input_feature_dimension]
    kernel_features = rhs.dimensions[labels.kernel_input_feature_dimension]
    outputs = rhs.dimensions[labels.kernel_output_feature_dimension]
    require(
        features == kernel_features * feature_groups,
        f"convolution has {features} input features, but its kernel takes {kernel_features} in each of "
        f"{feature_groups} groups",
    )
    require(
        outputs % (feature_groups * batch_groups) == 0,
        f"the {outputs} output features of convolution must be divisible by its {feature_groups * batch_groups} groups",
    )
    require(
        batch % batch_groups == 0,
        f"the batch of convolution, {batch}, must be divisible by its {batch_groups} batch groups",
    )


def _grouped_input(lhs: Array, attributes: ConvolutionAttributes) -> Array:
    """A view `[group, batch, spatial..., feature]` of the input."""
    labels = attributes.dim_labels
    batch, feature = labels.input_batch_dimension, labels.input_feature_dimension
    view = lhs.transpose(batch, *labels.input_spatial_dimensions, feature)
    if attributes.batch_group_count > 1:
        groups = attributes.batch_group_count
        return view.reshape(groups, view.shape[0] // groups, *view.shape[1:])
    groups = attributes.feature_group_count
    return np.moveaxis(view.reshape(*view.shape[:-1], groups, view.shape[-1] // groups), -2, 0)


def _grouped_kernel(rhs: Array, attributes: ConvolutionAttributes) -> Array:
    """A view `[group, window..., feature in, feature out]` of the kernel, reversed dimensions turned round."""
    labels = attributes.dim_labels
    view = rhs.transpose(
        *labels.kernel_spatial_dimensions, labels.kernel_input_feature_dimension, labels.kernel_output_feature_dimension
    )
    turned = tuple(slice(None, None, -1 if d.window_reversal else 1) for d in attributes.window.dimensions)
    view = view[turned]
    groups = attributes.feature_group_count * attributes.batch_group_count
    return np.moveaxis(view.reshape(*view.shape[:-1], groups, view.shape[-1] // groups), -2, 0)


def _ungrouped(result: Array, attributes: ConvolutionAttributes) -> Array:
    """`[group, batch, spatial..., feature]` in the order of the output's labels, groups and features as one."""
    labels = attributes.dim_labels
    merged = np.moveaxis(result, 0, -2)
    merged = merged.reshape(*merged.shape[:-2], merged.shape[-2] * merged.shape[-1])
    order = (labels.output_batch_dimension, *labels.output_spatial_dimensions, labels.output_feature_dimension)
    return merged.transpose(np.argsort(order))


@attrs.frozen
class _Work:
    """One convolution on grouped views."""

    inputs: Array
    kernel: Array
    dimensions: tuple[WindowDimension, ...]
    sizes: tuple[int, ...]
    """Of the output's spatial dimensions."""
    result_type: ElementType
    f32_mantissa_bits: int | None
    is_exact: bool = False
    """Whether each output is one sum, rounded once, whatever that costs."""

    def result(self) -> Array:
        """`[group, batch, spatial..., feature out]` in the result's storage type."""
        groups, batch = self.inputs.shape[:2]
        features, outputs = self.kernel.shape[-2:]
        shape = (groups, batch, *self.sizes, outputs)
        if 0 in shape or features == 0 or not self._pairs_of_taps():
            return np.zeros(shape, self.result_type.storage)
        if self.is_exact:
            return self._undilated()._by_patches(shape)
        if groups > 1 and features * outputs <= 4:
            return self._by_multiplying(shape)
        taps = math.prod(self.kernel.shape[1:-2])
        is_dilated = any(dimension.base_dilation > 1 for dimension in self.dimensions)
        is_sparse = 2 * self._pairs_of_taps() < math.prod(self.sizes) * taps
        if taps == 1 or features >= _FEATURES_FOR_TAPS or is_dilated or is_sparse:
            return self._by_taps(shape)
        return self._by_patches(shape)

    def _pairs_of_taps(self) -> int:
        """How many pairs of output and tap there are that read the input."""
        return math.prod(
            sum(len(range(size)[visit[0]]) for visit in visits(extent, size, dimension) if visit is not None)
            for extent, size, dimension in zip(self.inputs.shape[2:-1], self.sizes, self.dimensions, strict=True)
        )

    def taps(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """For each tap: its position, the outputs it contributes to, the inputs it reads for them."""
        per_dimension = [
            list(enumerate(visits(extent, size, dimension)))
            for extent, size, dimension in zip(self.inputs.shape[2:-1], self.sizes, self.dimensions, strict=True)
        ]
        for combination in itertools.product(*per_dimension):
            found = [visit for _, visit in combination if visit is not None]
            if len(found) == len(combination):
                position = tuple(number for number, _ in combination)
                yield position, tuple(visit[0] for visit in found), tuple(visit[1] for visit in found)

    def _by_taps(self, shape: tuple[int, ...]) -> Array:
        """One matrix product per tap, added up in the accumulation type."""
        groups = shape[0]
        accumulation = _accumulation_type(self.inputs, self.kernel, self.result_type)
        if self.inputs.shape[2:-1] == self.sizes == self._plain_sizes():
            rows = self.inputs.reshape(groups, -1, self.inputs.shape[-1])
            weights = self.kernel.reshape(groups, *self.kernel.shape[-2:])
            multiplier = default_multiplier(rows, weights, self.result_type, self.f32_mantissa_bits)
            return matrix_product(rows, weights, self.result_type, multiplier).reshape(shape)
        total = np.zeros(shape, accumulation.storage)
        for position, outputs, read in self.taps():
            chosen = self.inputs[(slice(None), slice(None), *read)]
            rows = chosen.reshape(groups, -1, chosen.shape[-1])
            tap: tuple[Any, ...] = (slice(None), *position)
            weights = self.kernel[tap]
            multiplier = default_multiplier(rows, weights, accumulation, self.f32_mantissa_bits)
            product = matrix_product(rows, weights, accumulation, multiplier)
            part: tuple[Any, ...] = (slice(None), slice(None), *outputs)
            total[part] += product.reshape(*chosen.shape[:-1], shape[-1])
        return narrow(total, self.result_type)

    def _plain_sizes(self) -> tuple[int, ...]:
        """The output's sizes, where the window has one tap and does not move: the convolution is a matrix product."""
        plain = WindowDimension(1)
        return self.sizes if all(attrs.evolve(d, window_reversal=False) == plain for d in self.dimensions) else (-1,)

    def _undilated(self) -> _Work:
        """The same convolution with the zeros of a dilated input stored."""
        dilations = [dimension.base_dilation for dimension in self.dimensions]
        if max(dilations, default=1) == 1:
            return self
        groups, batch, *extents, features = self.inputs.shape
        sizes = [(extent - 1) * dilation + 1 for extent, dilation in zip(extents, dilations, strict=True)]
        inputs = np.zeros((groups, batch, *sizes, features), self.inputs.dtype)
        inputs[(slice(None), slice(None), *(slice(None, None, dilation) for dilation in dilations))] = self.inputs
        dimensions = tuple(attrs.evolve(dimension, base_dilation=1) for dimension in self.dimensions)
        return attrs.evolve(self, inputs=inputs, dimensions=dimensions)

    def _by_patches(self, shape: tuple[int, ...]) -> Array:
        """All taps of a block of outputs side by side, and one matrix product."""
        groups, batch, first = shape[:3]
        taps = math.prod(self.kernel.shape[1:-2])
        features = self.kernel.shape[-2]
        weights = self.kernel.reshape(groups, taps * features, shape[-1])
        result = np.empty(shape, self.result_type.storage)
        row_bytes = math.prod(self.sizes[1:]) * groups * taps * features * self.inputs.itemsize
        rows = max(1, _PATCH_BYTES // row_bytes)
        images, lines = (max(1, rows // first), first) if rows >= first else (1, rows)
        for b, y in itertools.product(range(0, batch, images), range(0, first, lines)):
            block = attrs.evolve(self, inputs=self.inputs[:, b : b + images])
            patches = block._patches(range(y, min(y + lines, first)))
            lhs = patches.reshape(groups, math.prod(patches.shape[1 : 2 + len(self.sizes)]), taps * features)
            usual = default_multiplier(lhs, weights, self.result_type, self.f32_mantissa_bits)
            multiplier = exactly(usual) if self.is_exact else usual
            product = matrix_product(lhs, weights, self.result_type, multiplier)
            result[:, b : b + images, y : y + lines] = product.reshape(*patches.shape[: 2 + len(self.sizes)], shape[-1])
        return result

    def _patches(self, lines: range) -> Array:
        """`[group, batch, spatial..., tap..., feature]` for some lines of the first spatial dimension, as one copy."""
        padded, steps, spacings = self._padded(lines)
        group, image, *strides, feature = padded.strides
        shape = (*padded.shape[:2], len(lines), *self.sizes[1:], *self.kernel.shape[1:-2], padded.shape[-1])
        places = (stride * step for stride, step in zip(strides, steps, strict=True))
        taps = (stride * spacing for stride, spacing in zip(strides, spacings, strict=True))
        # NumPy makes strided views of its own types only.
        raw = padded if padded.dtype.isbuiltin == 1 else padded.view(f"u{padded.itemsize}")
        view = np.lib.stride_tricks.as_strided(raw, shape, (group, image, *places, *taps, feature), writeable=False)
        return view.view(padded.dtype)

    def _padded(self, lines: range) -> tuple[Array, list[int], list[int]]:
        """The part of the input that some lines of outputs read, zeros around it; strides; window dilations."""
        shape, target, source = [], [], []
        for number, (extent, dimension) in enumerate(zip(self.inputs.shape[2:-1], self.dimensions, strict=True)):
            outputs = lines if number == 0 else range(self.sizes[number])
            start = outputs.start * dimension.stride - dimension.padding_low
            length = (len(outputs) - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
            low, high = max(0, start), max(0, min(extent, start + length))
            shape.append(length)
            source.append(slice(low, max(low, high)))
            target.append(slice(low - start, max(low, high) - start))
        groups, batch, features = self.inputs.shape[0], self.inputs.shape[1], self.inputs.shape[-1]
        every = slice(None)
        padded = np.zeros((groups, batch, *shape, features), self.inputs.dtype)
        padded[(every, every, *target)] = self.inputs[(every, every, *source)]
        return padded, [d.stride for d in self.dimensions], [d.window_dilation for d in self.dimensions]

    def _by_multiplying(self, shape: tuple[int, ...]) -> Array:
        """Few features per group: elementwise products, added up tap by tap in the accumulation type."""
        accumulation = _accumulation_type(self.inputs, self.kernel, self.result_type)
        if accumulation.is_integral:
            inputs, kernel = (widen(operand).astype(accumulation.storage) for operand in (self.inputs, self.kernel))
        else:
            multiplier = default_multiplier(self.inputs, self.kernel, accumulation, self.f32_mantissa_bits)
            inputs, kernel = (multiplier.prepare(operand)[0] for operand in (self.inputs, self.kernel))
        # Groups go next to the features, so that the innermost loop is long.
        inputs, kernel = np.moveaxis(inputs, 0, -2), np.moveaxis(kernel, 0, -3)
        total = np.zeros((*shape[1:-1], shape[0], shape[-1]), accumulation.storage)
        with np.errstate(all="ignore"):
            for position, outputs, read in self.taps():
                for feature in range(inputs.shape[-1]):
                    chosen = inputs[(slice(None), *read, slice(None), feature, None)]
                    total[(slice(None), *outputs)] += chosen * kernel[position][:, feature]
        return narrow(np.moveaxis(total, -2, 0), self.result_type)


def _accumulation_type(lhs: Array, rhs: Array, result_type: ElementType) -> ElementType:
    """The element type in which products add up between taps."""
    if result_type.is_integral:
        return element_type_of(result_type.compute)
    types = (element_type_of(lhs.dtype), element_type_of(rhs.dtype), result_type)
    wide = [entry.accumulate for entry in types if entry.is_floating or entry.is_complex]
    return element_type_of(np.result_type(np.float32, *wide))
