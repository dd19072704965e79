"""The convolution behind a cuDNN call, its gradients, and its data layouts.

A dimension without a role (`?` in dim_labels) holds 4 or 32 neighbouring features; the feature dimension counts such
vectors. Merging the two gives the ordinary convolution. A reordered filter is the same filter, permuted for the tensor
cores of one generation of GPUs. Source: XLA, cudnn_support_utils.h (CudnnInferTransposeForFilterReordering).

With x padded by p, stride s, window dilation d and k taps, y[o] reads x[o·s + t·d − p]. Hence the gradient of x is a
convolution of y's gradient, dilated by s, with the filter reversed, and the gradient of w one of x with y's
gradient, dilated by s: strides and dilations change places, and so do the roles of features and batch.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.core.ir import ArrayShape, ConvolutionDimensionNumbers, Instruction, Shape, Window
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.common import operand_shapes, require
from hloexec.ops.control.flow import CustomCallAttributes
from hloexec.ops.convolution.convolution import Convolution, ConvolutionAttributes
from hloexec.ops.library_calls.configs import CallResult, in_declared_form, result_shapes, with_scratch
from hloexec.ops.policies.backends import Flushing
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call
from hloexec.ops.relations import Relating, Resizing, Value, relate_convolution, resized_convolution


@frozen
class Side:
    """One side of a convolution: its labelled dimensions in an order of roles, and its dimension of vectors."""

    name: str
    labelled: Dimensions
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
    def merged_labels(self) -> Dimensions:
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

    def split_shape(self, merged: ArrayShape, sizes: Dimensions) -> ArrayShape:
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

    def _merged_sizes(self, sizes: Dimensions, vector: int) -> Dimensions:
        merged = list(sizes)
        merged[self.feature] *= merged[vector]
        del merged[vector]
        return tuple(merged)

    def split(self, array: Array, sizes: Dimensions) -> Array:
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


def dimension_numbers(inputs: Dimensions, kernel: Dimensions, outputs: Dimensions) -> ConvolutionDimensionNumbers:
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


def _int8x32_order(sizes: Dimensions, side: Side) -> Dimensions:
    """The dimensions of an int8x32 filter in the order O, I/32, H, W, 32."""
    vector = side.vector
    if len(sizes) != 5 or side.rank != 5 or vector is None or sizes[vector] != 32 or sizes[side.labelled[0]] % 32:
        raise UnsupportedError(
            "a reordered filter must have two spatial dimensions, output features in multiples of 32 and a dimension "
            f"of vectors of 32 input features, but has {list(sizes)}"
        )
    return (*side.labelled, vector)


def _filter_order(instruction: Instruction) -> Dimensions:
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
    def evaluate(*operands: Array, config: Dimensions, shape: Shape) -> CallResult:
        results = [_reordered_filter(operands[0].transpose(config)).transpose(np.argsort(config))]
        return with_scratch([*results, *map(_reordered_bias, operands[1:])], shape)


@frozen
class Geometry:
    """The forward convolution that a call's attributes describe."""

    attributes: ConvolutionAttributes
    """Its labels without dimensions of vectors."""
    input: Side
    kernel: Side
    output: Side

    def output_shape(self, inputs: ArrayShape, kernel: ArrayShape, declared: ArrayShape) -> ArrayShape:
        """The shape of y, of the element type and (where it has one) the size of vectors that are declared."""
        require(
            declared.rank == self.output.rank,
            f"dim_labels are for an output of rank {self.output.rank}, but it is declared as {declared}",
        )
        for shape in (inputs, kernel, declared):
            require(
                shape.element_type.is_floating or shape.element_type.is_integral,
                f"cuDNN's convolutions are of floats or integers, not of {shape}",
            )
        merged = Convolution.infer(
            self.input.merged_shape(inputs),
            self.kernel.merged_shape(kernel),
            attributes=self.attributes,
            shape=ArrayShape(declared.element_type),
        )
        assert isinstance(merged, ArrayShape)
        return self.output.split_shape(merged, declared.dimensions)

    def without_vectors(self, subject: str) -> Geometry:
        """The same geometry, or UnsupportedError where a dimension holds vectors of features."""
        for side in (self.input, self.kernel, self.output):
            if side.vector is not None:
                raise UnsupportedError(f"its {side.name} holds vectors of features, which {subject} cannot have")
        return self

    def forward(self, inputs: Array, kernel: Array, result: ElementType, numerics: NumericsPolicy) -> Array:
        """y, its vectors merged into the features, rounded once to `result`."""
        return _convolution(self.input.merge(inputs), self.kernel.merge(kernel), self.attributes, result, numerics)

    def input_gradient(self, gradient: Array, kernel: Array, inputs: ArrayShape, numerics: NumericsPolicy) -> Array:
        """That of x, of the shape `inputs`, from that of y."""
        w, groups = self.kernel.labelled, self.attributes.feature_group_count
        # A group's outputs become its inputs: [..., in, groups × out] → [..., out, groups × in].
        view = kernel.transpose(*w[2:], w[1], w[0])
        split = view.reshape(*view.shape[:-1], groups, view.shape[-1] // groups)
        swapped = np.swapaxes(split, -1, -3).reshape(*view.shape[:-2], -1, groups * view.shape[-2])
        attributes = self.input_gradient_attributes(gradient.shape, inputs.dimensions)
        return _convolution(gradient, swapped, attributes, inputs.element_type, numerics)

    def input_gradient_attributes(self, gradient: Dimensions, inputs: Dimensions) -> ConvolutionAttributes:
        """The convolution of the gradient of y with a filter [..., out, in] that gives the gradient of x."""
        x, y = self.input.labelled, self.output.labelled
        window = []
        for dimension, along_x, along_y in zip(self.attributes.window.dimensions, x[2:], y[2:], strict=True):
            reach = (dimension.size - 1) * dimension.window_dilation
            low = reach - dimension.padding_low
            spread = (gradient[along_y] - 1) * dimension.stride + 1
            wanted = (inputs[along_x] - 1) * dimension.base_dilation + 1
            window.append(
                attrs.evolve(
                    dimension,
                    stride=dimension.base_dilation,
                    padding_low=low,
                    padding_high=wanted + reach - spread - low,
                    base_dilation=dimension.stride,
                    window_reversal=not dimension.window_reversal,
                )
            )
        count = len(window)
        numbers = dimension_numbers(y, (count + 1, count, *range(count)), x)
        return attrs.evolve(self.attributes, window=Window(tuple(window)), dim_labels=numbers)

    def filter_gradient(self, inputs: Array, gradient: Array, result: ElementType, numerics: NumericsPolicy) -> Array:
        """That of w, from x and the gradient of y."""
        attributes = self.filter_gradient_attributes(inputs.shape, gradient.shape)
        value = _convolution(inputs, gradient, attributes, result, numerics)
        return np.asarray(np.flip(value, self.reversed_axes))

    def filter_gradient_attributes(self, inputs: Dimensions, gradient: Dimensions) -> ConvolutionAttributes:
        """The convolution of x with the gradient of y that gives the gradient of w, but for `reversed_axes`."""
        x, w, y = self.input.labelled, self.kernel.labelled, self.output.labelled
        window = []
        for dimension, along_x, along_y in zip(self.attributes.window.dimensions, x[2:], y[2:], strict=True):
            outputs = gradient[along_y]
            spread = (inputs[along_x] - 1) * dimension.base_dilation + 1
            reach = (outputs - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
            window.append(
                attrs.evolve(
                    dimension,
                    size=outputs,
                    stride=dimension.window_dilation,
                    padding_high=reach - spread - dimension.padding_low,
                    window_dilation=dimension.stride,
                    window_reversal=False,
                )
            )
        # The batch takes the place of features, and the filter that of the output.
        numbers = dimension_numbers(*((second, first, *spatial) for first, second, *spatial in (x, y, w)))
        return attrs.evolve(
            self.attributes,
            window=Window(tuple(window)),
            dim_labels=numbers,
            feature_group_count=1,
            batch_group_count=self.attributes.feature_group_count,
        )

    @property
    def reversed_axes(self) -> Dimensions:
        """The dimensions of w that the window goes through backwards."""
        dimensions = zip(self.kernel.labelled[2:], self.attributes.window.dimensions, strict=True)
        return tuple(place for place, dimension in dimensions if dimension.window_reversal)


def relate_sides(use: Relating, inputs: Value, kernel: Value, output: Value) -> None:
    """Input, filter and output, of which one is the call's result, are those of the forward convolution."""
    relate_convolution(attrs.evolve(use, operands=(inputs, kernel), result=output))
    labels = use.attributes.dim_labels
    for side, value in zip(sides(labels), (inputs, kernel, output), strict=True):
        if side.vector is not None:
            use.keep([value.axes[side.feature], value.axes[side.vector]], "it is part of a dimension of vectors")


def resized_sides(change: Resizing, sides_of: Callable[..., tuple[Shape, Shape, Shape]]) -> Resizing:
    """The call with the window and the groups for its new sizes; `sides_of` names the sides among the shapes."""
    *operands, result = sides_of(*change.operands, result=change.result)
    *new_operands, new_result = sides_of(*change.new_operands, result=change.new_result)
    forward = Resizing(change.attributes, tuple(operands), result, tuple(new_operands), new_result)
    return attrs.evolve(change, attributes=attrs.evolve(change.attributes, **resized_convolution(forward)))


def geometry(attributes: CustomCallAttributes) -> Geometry:
    """The convolution of a call; UnsupportedError or ShapeError where its attributes do not describe one."""
    labels = attributes.dim_labels
    if labels is None:
        raise UnsupportedError("it has no dim_labels, which a convolution needs")
    if attributes.batch_group_count != 1:
        raise UnsupportedError(f"it has batch_group_count={attributes.batch_group_count}, which cuDNN does not have")
    sides_of_call = sides(labels)
    for side in sides_of_call:
        side.check()
    plain = ConvolutionAttributes(
        window=attributes.window,
        dim_labels=dimension_numbers(*(side.merged_labels for side in sides_of_call)),
        feature_group_count=attributes.feature_group_count,
        operand_precision=attributes.operand_precision,
    )
    return Geometry(plain, *sides_of_call)


def _convolution(
    lhs: Array, rhs: Array, attributes: ConvolutionAttributes, result: ElementType, numerics: NumericsPolicy
) -> Array:
    shape = ArrayShape(result)

    def kernel(lhs: Array, rhs: Array) -> Array:
        return Convolution.evaluate(lhs, rhs, attributes=attributes, shape=shape, numerics=numerics)

    return np.asarray((Flushing(kernel) if numerics.flushes_denormals else kernel)(lhs, rhs))


def accumulation_type(inputs: Array) -> ElementType:
    """What cuDNN adds products up in: s32 for integers, f64 for f64, f32 for all narrower floats."""
    entry = element_type_of(inputs.dtype)
    return ELEMENT_TYPES["s32"] if entry.is_integral else element_type_of(entry.accumulate)
