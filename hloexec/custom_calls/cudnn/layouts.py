"""cuDNN's orders of data: vectorized features (NCHW_VECT_C) and the reordered filters of int8x32 convolutions.

A dimension without a role (`?` in dim_labels) holds 4 or 32 neighbouring features; the feature dimension counts such
vectors. Merging the two gives the ordinary convolution. A reordered filter is that filter, shuffled for the tensor
cores of one generation of GPUs. Source: XLA, cudnn_support_utils.h (CudnnInferTransposeForFilterReordering).
"""

from __future__ import annotations

import attrs
import numpy as np

from hloexec.custom_calls.backend_config import refused_by
from hloexec.custom_calls.registry import custom_call
from hloexec.custom_calls.shapes import result_shapes
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, ConvolutionDimensionNumbers, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, require
from hloexec.ops.control.flow import CustomCallAttributes
from hloexec.values import Array

__all__ = ["Side", "input_side", "kernel_side", "output_side", "plain_labels", "unreordered_bias", "unreordered_filter"]


@attrs.frozen
class Side:
    """One side of a convolution: its labelled dimensions in an order of roles, and its dimension of vectors."""

    name: str
    feature: int
    """The dimension that the vectors are part of; of a kernel, its input features."""
    labelled: tuple[int, ...]
    rank: int

    @property
    def vector(self) -> int | None:
        """The dimension without a role, None where all have one."""
        unlabelled = sorted(set(range(self.rank)) - set(self.labelled))
        return unlabelled[0] if unlabelled else None

    def check(self) -> None:
        require(
            len(set(self.labelled)) == len(self.labelled)
            and all(0 <= dim < self.rank for dim in self.labelled)
            and self.rank - len(self.labelled) <= 1,
            f"dim_labels must give the {self.rank} dimensions of the {self.name} one role each, all but at most one",
        )

    def merged_shape(self, shape: ArrayShape) -> ArrayShape:
        """The shape with the vectors' dimension merged into the features'."""
        require(shape.rank == self.rank, f"dim_labels are for an {self.name} of rank {self.rank}, but it is {shape}")
        if self.vector is None:
            return shape
        sizes = list(shape.dimensions)
        sizes[self.feature] *= sizes[self.vector]
        del sizes[self.vector]
        return ArrayShape(shape.element_type, tuple(sizes))

    def split_shape(self, merged: ArrayShape, size: int) -> ArrayShape:
        """The inverse of `merged_shape`, for vectors of `size` features."""
        if self.vector is None:
            return merged
        feature = self.feature - (self.vector < self.feature)
        require(
            size > 0 and merged.dimensions[feature] % size == 0,
            f"the {merged.dimensions[feature]} features of the {self.name} are no multiple of vectors of {size}",
        )
        sizes = list(merged.dimensions)
        sizes[feature] //= size
        sizes.insert(self.vector, size)
        return ArrayShape(merged.element_type, tuple(sizes))

    def merge(self, array: Array) -> Array:
        if self.vector is None:
            return array
        after = self.feature + (self.feature < self.vector)
        sizes = self.merged_shape_of(array.shape)
        return np.moveaxis(array, self.vector, after).reshape(sizes)

    def merged_shape_of(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        assert self.vector is not None
        merged = list(sizes)
        merged[self.feature] *= merged[self.vector]
        del merged[self.vector]
        return tuple(merged)

    def split(self, array: Array, size: int) -> Array:
        if self.vector is None:
            return array
        feature = self.feature - (self.vector < self.feature)
        sizes = (*array.shape[:feature], array.shape[feature] // size, size, *array.shape[feature + 1 :])
        return np.moveaxis(array.reshape(sizes), feature + 1, self.vector)


def input_side(labels: ConvolutionDimensionNumbers) -> Side:
    labelled = (labels.input_batch_dimension, labels.input_feature_dimension, *labels.input_spatial_dimensions)
    return Side("input", labels.input_feature_dimension, labelled, labels.input_rank)


def kernel_side(labels: ConvolutionDimensionNumbers) -> Side:
    labelled = (
        labels.kernel_output_feature_dimension,
        labels.kernel_input_feature_dimension,
        *labels.kernel_spatial_dimensions,
    )
    return Side("filter", labels.kernel_input_feature_dimension, labelled, labels.kernel_rank)


def output_side(labels: ConvolutionDimensionNumbers) -> Side:
    labelled = (labels.output_batch_dimension, labels.output_feature_dimension, *labels.output_spatial_dimensions)
    return Side("output", labels.output_feature_dimension, labelled, labels.output_rank)


def plain_labels(labels: ConvolutionDimensionNumbers) -> ConvolutionDimensionNumbers:
    """The labels once the dimensions of vectors are merged into the features'; ShapeError where roles clash."""
    numbers = {}
    for prefix, side in (
        ("input", input_side(labels)),
        ("kernel", kernel_side(labels)),
        ("output", output_side(labels)),
    ):
        side.check()
        for field in attrs.fields(ConvolutionDimensionNumbers):
            if not field.name.startswith(prefix) or side.vector is None:
                continue
            value = getattr(labels, field.name)
            if field.name.endswith("rank"):
                numbers[field.name] = value - 1
            elif isinstance(value, tuple):
                numbers[field.name] = tuple(dim - (dim > side.vector) for dim in value)
            else:
                numbers[field.name] = value - (value > side.vector)
    return attrs.evolve(labels, **numbers)


def _reordered_filter(oihw32: Array) -> Array:
    """`[O, I/32, H, W, 32]` shuffled: of O/8, 4, 2 and I/32, 8, 4 the parts go to I/32, H, W, O/8, 2, 8, 4, 4."""
    outputs, inputs, height, width, _ = oihw32.shape
    parts = oihw32.reshape(outputs // 8, 4, 2, inputs, height, width, 8, 4)
    return parts.transpose(3, 4, 5, 0, 2, 6, 1, 7).reshape(oihw32.shape)


def unreordered_filter(array: Array, labels: ConvolutionDimensionNumbers) -> Array:
    """What `_reordered_filter` was given, in the same order of dimensions; UnsupportedError for no int8x32 filter."""
    order = _int8x32_order(array.shape, labels)
    outputs, inputs, height, width, _ = (array.shape[dim] for dim in order)
    parts = array.transpose(order).reshape(inputs, height, width, outputs // 8, 2, 8, 4, 4)
    plain = parts.transpose(3, 6, 4, 0, 1, 2, 5, 7).reshape(outputs, inputs, height, width, 32)
    return plain.transpose(np.argsort(order))


def _reordered_bias(bias: Array) -> Array:
    """Of every 32 numbers, 4 × 2 × 4 of them: the first two parts change places."""
    return bias.reshape(-1, 4, 2, 4).transpose(0, 2, 1, 3).reshape(bias.shape)


def unreordered_bias(bias: Array) -> Array:
    """The inverse of `_reordered_bias`."""
    if bias.ndim != 1 or bias.shape[0] % 32:
        raise UnsupportedError(f"a reordered bias must hold a multiple of 32 numbers, but has {list(bias.shape)}")
    return bias.reshape(-1, 2, 4, 4).transpose(0, 2, 1, 3).reshape(bias.shape)


def _int8x32_order(sizes: tuple[int, ...], labels: ConvolutionDimensionNumbers) -> tuple[int, ...]:
    """The dimensions of an int8x32 filter in the order O, I/32, H, W, 32."""
    side = kernel_side(labels)
    side.check()
    vector = side.vector
    if len(sizes) != 5 or side.rank != 5 or vector is None or sizes[vector] != 32 or sizes[side.labelled[0]] % 32:
        raise UnsupportedError(
            "a reordered filter must have two spatial dimensions, output features in multiples of 32 and a dimension "
            f"of vectors of 32 input features, but has {list(sizes)}"
        )
    return (*side.labelled, vector)


def _labels(attributes: CustomCallAttributes) -> ConvolutionDimensionNumbers:
    if attributes.dim_labels is None:
        raise UnsupportedError("it has no dim_labels")
    return attributes.dim_labels


def _check(instruction: Instruction) -> None:
    filter_shape = result_shapes(instruction.shape, "convReorderFilter")[0]
    _int8x32_order(filter_shape.dimensions, _labels(instruction.attributes))


@custom_call("__cudnn$convReorderFilter", "__cudnn$convReorderFilterAndBias", is_reproducible=True)
class ReorderFilter:
    """The filter s8[O, I/32, H, W, 32], in the order of dimensions that dim_labels give, shuffled for int8x32 kernels.

    With O as O/8 × 4 × 2 and 32 as 8 × 4, the parts are laid out as I/32, H, W, O/8, 2, 8, 4, 4. `…AndBias` takes and
    returns the bias f32[O], too: O as O/32 × 4 × 2 × 4, the middle two exchanged. Source: XLA, cudnn_support_utils.h;
    cuDNN, cudnnReorderFilterAndBias.
    """

    @staticmethod
    def infer(*operands: Shape, attributes: CustomCallAttributes, shape: Shape) -> Shape:
        arrays = [array_shape(operand, "an operand of convReorderFilter") for operand in operands]
        leaves = result_shapes(shape, "convReorderFilter")
        if len(arrays) not in (1, 2) or len(leaves) < len(arrays):
            raise ShapeError(
                f"convReorderFilter takes a filter and perhaps a bias, and returns as many, but takes {len(arrays)} "
                f"operands and returns {shape}"
            )
        results = (*arrays, *leaves[len(arrays) :])
        return TupleShape(results) if isinstance(shape, TupleShape) else results[0]

    supports = refused_by(_check)

    @staticmethod
    def evaluate(*operands: Array, attributes: CustomCallAttributes, shape: Shape) -> Array | tuple[Array, ...]:
        order = _int8x32_order(operands[0].shape, _labels(attributes))
        results = [_reordered_filter(operands[0].transpose(order)).transpose(np.argsort(order))]
        results += [_reordered_bias(bias) for bias in operands[1:]]
        return tuple(results) if isinstance(shape, TupleShape) else results[0]
