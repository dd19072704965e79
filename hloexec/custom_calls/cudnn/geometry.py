"""The convolution behind a cuDNN call, and its gradients, as convolutions that the opcode's kernel evaluates.

With x padded by p, stride s, window dilation d and k taps, y[o] reads x[o·s + t·d − p]. Hence the gradient of x is a
convolution of y's gradient, dilated by s, with the filter reversed, and the gradient of w one of x with y's
gradient, dilated by s: strides and dilations change places, and so do the roles of features and batch.
"""

from __future__ import annotations

import attrs
import numpy as np

from hloexec.custom_calls.cudnn.layouts import Side, input_side, kernel_side, output_side, plain_labels
from hloexec.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.errors import UnsupportedError
from hloexec.ir import ArrayShape, ConvolutionDimensionNumbers, Window, WindowDimension
from hloexec.ops.common import require
from hloexec.ops.control.flow import CustomCallAttributes
from hloexec.ops.convolution.convolution import Convolution, ConvolutionAttributes
from hloexec.ops.policies.flushing import Flushing
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.values import Array

__all__ = ["Geometry", "geometry"]


@attrs.frozen
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
        vector = self.output.vector
        return self.output.split_shape(merged, 1 if vector is None else declared.dimensions[vector])

    def without_vectors(self, what: str) -> Geometry:
        """The same geometry, or UnsupportedError where a dimension holds vectors of features."""
        for side in (self.input, self.kernel, self.output):
            if side.vector is not None:
                raise UnsupportedError(f"its {side.name} holds vectors of features, which {what} cannot have")
        return self

    def forward(self, inputs: Array, kernel: Array, result: ElementType, numerics: NumericsPolicy) -> Array:
        """y, its vectors merged into the features, rounded once to `result`."""
        return _convolution(self.input.merge(inputs), self.kernel.merge(kernel), self.attributes, result, numerics)

    def input_gradient(self, gradient: Array, kernel: Array, inputs: ArrayShape, numerics: NumericsPolicy) -> Array:
        """That of x, of the shape `inputs`, from that of y."""
        labels = self.attributes.dim_labels
        count, groups = len(labels.input_spatial_dimensions), self.attributes.feature_group_count
        order = (
            *labels.kernel_spatial_dimensions,
            labels.kernel_input_feature_dimension,
            labels.kernel_output_feature_dimension,
        )
        # A group's outputs become its inputs: [..., in, groups × out] → [..., out, groups × in].
        view = kernel.transpose(order)
        split = view.reshape(*view.shape[:-1], groups, view.shape[-1] // groups)
        swapped = np.swapaxes(split, -1, -3).reshape(*view.shape[:-2], -1, groups * view.shape[-2])
        window = []
        for number, dimension in enumerate(self.attributes.window.dimensions):
            reach = (dimension.size - 1) * dimension.window_dilation
            low = reach - dimension.padding_low
            spread = (gradient.shape[labels.output_spatial_dimensions[number]] - 1) * dimension.stride + 1
            wanted = (inputs.dimensions[labels.input_spatial_dimensions[number]] - 1) * dimension.base_dilation + 1
            window.append(
                WindowDimension(
                    size=dimension.size,
                    stride=dimension.base_dilation,
                    padding_low=low,
                    padding_high=wanted + reach - spread - low,
                    base_dilation=dimension.stride,
                    window_dilation=dimension.window_dilation,
                    window_reversal=not dimension.window_reversal,
                )
            )
        numbers = ConvolutionDimensionNumbers(
            input_batch_dimension=labels.output_batch_dimension,
            input_feature_dimension=labels.output_feature_dimension,
            input_spatial_dimensions=labels.output_spatial_dimensions,
            kernel_input_feature_dimension=count,
            kernel_output_feature_dimension=count + 1,
            kernel_spatial_dimensions=tuple(range(count)),
            output_batch_dimension=labels.input_batch_dimension,
            output_feature_dimension=labels.input_feature_dimension,
            output_spatial_dimensions=labels.input_spatial_dimensions,
            input_rank=count + 2,
            kernel_rank=count + 2,
            output_rank=count + 2,
        )
        attributes = attrs.evolve(self.attributes, window=Window(tuple(window)), dim_labels=numbers)
        return _convolution(gradient, swapped, attributes, inputs.element_type, numerics)

    def filter_gradient(self, inputs: Array, gradient: Array, result: ElementType, numerics: NumericsPolicy) -> Array:
        """That of w, from x and the gradient of y."""
        labels, window = self.attributes.dim_labels, []
        for number, dimension in enumerate(self.attributes.window.dimensions):
            extent = inputs.shape[labels.input_spatial_dimensions[number]]
            outputs = gradient.shape[labels.output_spatial_dimensions[number]]
            spread = (extent - 1) * dimension.base_dilation + 1
            reach = (outputs - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
            window.append(
                WindowDimension(
                    size=outputs,
                    stride=dimension.window_dilation,
                    padding_low=dimension.padding_low,
                    padding_high=reach - spread - dimension.padding_low,
                    base_dilation=dimension.base_dilation,
                    window_dilation=dimension.stride,
                )
            )
        numbers = ConvolutionDimensionNumbers(
            input_batch_dimension=labels.input_feature_dimension,
            input_feature_dimension=labels.input_batch_dimension,
            input_spatial_dimensions=labels.input_spatial_dimensions,
            kernel_input_feature_dimension=labels.output_batch_dimension,
            kernel_output_feature_dimension=labels.output_feature_dimension,
            kernel_spatial_dimensions=labels.output_spatial_dimensions,
            output_batch_dimension=labels.kernel_input_feature_dimension,
            output_feature_dimension=labels.kernel_output_feature_dimension,
            output_spatial_dimensions=labels.kernel_spatial_dimensions,
            input_rank=labels.input_rank,
            kernel_rank=labels.output_rank,
            output_rank=labels.kernel_rank,
        )
        attributes = attrs.evolve(
            self.attributes,
            window=Window(tuple(window)),
            dim_labels=numbers,
            feature_group_count=1,
            batch_group_count=self.attributes.feature_group_count,
        )
        value = _convolution(inputs, gradient, attributes, result, numerics)
        reversed_dimensions = tuple(
            labels.kernel_spatial_dimensions[number]
            for number, dimension in enumerate(self.attributes.window.dimensions)
            if dimension.window_reversal
        )
        return np.asarray(np.flip(value, reversed_dimensions))


def geometry(attributes: CustomCallAttributes) -> Geometry:
    """The convolution of a call; UnsupportedError or ShapeError where its attributes do not describe one."""
    labels = attributes.dim_labels
    if labels is None:
        raise UnsupportedError("it has no dim_labels, without which it is no convolution")
    if attributes.batch_group_count != 1:
        raise UnsupportedError(f"it has batch_group_count={attributes.batch_group_count}, which cuDNN does not have")
    plain = ConvolutionAttributes(
        window=attributes.window,
        dim_labels=plain_labels(labels),
        feature_group_count=attributes.feature_group_count,
        operand_precision=attributes.operand_precision,
    )
    return Geometry(plain, input_side(labels), kernel_side(labels), output_side(labels))


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
