"""cuDNN's data layouts: vectorized features (NCHW_VECT_C) and the reordered filters of int8x32 convolutions.

A dimension without a role (`?` in dim_labels) holds 4 or 32 neighbouring features; the feature dimension counts such
vectors. Merging the two gives the ordinary convolution. A reordered filter is the same filter, permuted for the tensor
cores of one generation of GPUs. Source: XLA, cudnn_support_utils.h (CudnnInferTransposeForFilterReordering).
"""

from __future__ import annotations

import numpy as np

from hloexec.core.ir import ArrayShape, ConvolutionDimensionNumbers, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.common import require
from hloexec.ops.library_calls.shapes import CallResult, in_declared_form, operand_shapes, result_shapes, with_scratch
from hloexec.ops.registry import custom_call


@frozen
class Side:
    """One side of a convolution: its labelled dimensions in an order of roles, and its dimension of vectors."""

    name: str
    labelled: tuple[int, ...]
    """Batch, features and spatial dimensions; of a kernel, output features, input features and spatial dimensions."""
    rank: int

    @property
    def feature(self) -> int:
        """The dimension that the vectors are part of; of a kernel, its input features."""
        return self.labelled[1]

    @property
    def vector(self) -> int | None:
        """The dimension without a role, None where all have one."""
        return min(set(range(self.rank)) - set(self.labelled), default=None)

    @property
    def merged_labels(self) -> tuple[int, ...]:
        """The labelled dimensions once that of the vectors is merged into the features'."""
        return tuple(dim - (self.vector is not None and dim > self.vector) for dim in self.labelled)

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
        return ArrayShape(shape.element_type, self._merged_sizes(shape.dimensions, self.vector))

    def split_shape(self, merged: ArrayShape, sizes: tuple[int, ...]) -> ArrayShape:
        """The inverse of `merged_shape`, with the vectors of dimensions `sizes`."""
        if self.vector is None:
            return merged
        feature, size = self.feature - (self.vector < self.feature), sizes[self.vector]
        require(
            size > 0 and merged.dimensions[feature] % size == 0,
            f"the {self.name} has {merged.dimensions[feature]} features, not a multiple of the vector size {size}",
        )
        split = list(merged.dimensions)
        split[feature] //= size
        split.insert(self.vector, size)
        return ArrayShape(merged.element_type, tuple(split))

    def merge(self, array: Array) -> Array:
        if self.vector is None:
            return array
        after = self.feature + (self.feature < self.vector)
        return np.moveaxis(array, self.vector, after).reshape(self._merged_sizes(array.shape, self.vector))

    def _merged_sizes(self, sizes: tuple[int, ...], vector: int) -> tuple[int, ...]:
        merged = list(sizes)
        merged[self.feature] *= merged[vector]
        del merged[vector]
        return tuple(merged)

    def split(self, array: Array, sizes: tuple[int, ...]) -> Array:
        """The inverse of `merge`, with the vectors of dimensions `sizes`."""
        if self.vector is None:
            return array
        feature, size = self.feature - (self.vector < self.feature), sizes[self.vector]
        parts = (*array.shape[:feature], array.shape[feature] // size, size, *array.shape[feature + 1 :])
        return np.moveaxis(array.reshape(parts), feature + 1, self.vector)


def sides(labels: ConvolutionDimensionNumbers) -> tuple[Side, Side, Side]:
    """Input, filter and output."""
    inputs = (labels.input_batch_dimension, labels.input_feature_dimension, *labels.input_spatial_dimensions)
    features = (labels.kernel_output_feature_dimension, labels.kernel_input_feature_dimension)
    outputs = (labels.output_batch_dimension, labels.output_feature_dimension, *labels.output_spatial_dimensions)
    return (
        Side("input", inputs, labels.input_rank),
        Side("filter", (*features, *labels.kernel_spatial_dimensions), labels.kernel_rank),
        Side("output", outputs, labels.output_rank),
    )


def dimension_numbers(
    inputs: tuple[int, ...], kernel: tuple[int, ...], outputs: tuple[int, ...]
) -> ConvolutionDimensionNumbers:
    """The labels of a convolution without vectors whose sides have these labelled dimensions (`Side`)."""
    return ConvolutionDimensionNumbers(
        input_batch_dimension=inputs[0],
        input_feature_dimension=inputs[1],
        input_spatial_dimensions=inputs[2:],
        kernel_output_feature_dimension=kernel[0],
        kernel_input_feature_dimension=kernel[1],
        kernel_spatial_dimensions=kernel[2:],
        output_batch_dimension=outputs[0],
        output_feature_dimension=outputs[1],
        output_spatial_dimensions=outputs[2:],
        input_rank=len(inputs),
        kernel_rank=len(kernel),
        output_rank=len(outputs),
    )


def _reordered_filter(oihw32: Array) -> Array:
    """`[O, I/32, H, W, 32]` shuffled: of O/8, 4, 2 and I/32, 8, 4 the parts go to I/32, H, W, O/8, 2, 8, 4, 4."""
    outputs, inputs, height, width, _ = oihw32.shape
    parts = oihw32.reshape(outputs // 8, 4, 2, inputs, height, width, 8, 4)
    return parts.transpose(3, 4, 5, 0, 2, 6, 1, 7).reshape(oihw32.shape)


def unreordered_filter(array: Array, side: Side) -> Array:
    """What `_reordered_filter` was given, in the same order of dimensions; UnsupportedError for no int8x32 filter."""
    order = _int8x32_order(array.shape, side)
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


def _int8x32_order(sizes: tuple[int, ...], side: Side) -> tuple[int, ...]:
    """The dimensions of an int8x32 filter in the order O, I/32, H, W, 32."""
    vector = side.vector
    if len(sizes) != 5 or side.rank != 5 or vector is None or sizes[vector] != 32 or sizes[side.labelled[0]] % 32:
        raise UnsupportedError(
            "a reordered filter must have two spatial dimensions, output features in multiples of 32 and a dimension "
            f"of vectors of 32 input features, but has {list(sizes)}"
        )
    return (*side.labelled, vector)


def _filter_order(instruction: Instruction) -> tuple[int, ...]:
    if instruction.attributes.dim_labels is None:
        raise UnsupportedError("it has no dim_labels")
    side = sides(instruction.attributes.dim_labels)[1]
    side.check()
    return _int8x32_order(result_shapes(instruction.shape, "convReorderFilter")[0].dimensions, side)


@custom_call(
    "__cudnn$convReorderFilter", "__cudnn$convReorderFilterAndBias", config=_filter_order, is_reproducible=True
)
class ReorderFilter:
    """The filter s8[O, I/32, H, W, 32], in the order of dimensions that dim_labels give, shuffled for int8x32 kernels.

    With O as O/8 × 4 × 2 and 32 as 8 × 4, the parts are laid out as I/32, H, W, O/8, 2, 8, 4, 4. `…AndBias` takes and
    returns the bias f32[O], too: O as O/32 × 4 × 2 × 4, the middle two exchanged. Source: XLA, cudnn_support_utils.h;
    cuDNN, cudnnReorderFilterAndBias.
    """

    @staticmethod
    def infer(*operands: Shape, shape: Shape) -> Shape:
        arrays = operand_shapes(operands, "convReorderFilter", (1, 2))
        if len(result_shapes(shape, "convReorderFilter")) != len(arrays):
            raise ShapeError(
                f"convReorderFilter returns as many arrays as it takes, {len(arrays)}, but returns {shape}"
            )
        return in_declared_form(arrays, shape)

    @staticmethod
    def evaluate(*operands: Array, config: tuple[int, ...], shape: Shape) -> CallResult:
        results = [_reordered_filter(operands[0].transpose(config)).transpose(np.argsort(config))]
        return with_scratch([*results, *map(_reordered_bias, operands[1:])], shape)
