"""The convolution behind a cuDNN call, and its gradients, as convolutions that the opcode's kernel evaluates.

With x padded by p, stride s, window dilation d and k taps, y[o] reads x[o·s + t·d − p]. Hence the gradient of x is a
convolution of y's gradient, dilated by s, with the filter reversed, and the gradient of w one of x with y's
gradient, dilated by s: strides and dilations change places, and so do the roles of features and batch.
"""

from __future__ import annotations

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Window
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.common import require
from hloexec.ops.control.flow import CustomCallAttributes
from hloexec.ops.convolution.convolution import Convolution, ConvolutionAttributes
from hloexec.ops.library_calls.cudnn.layouts import Side, dimension_numbers, sides
from hloexec.ops.policies.flushing import Flushing
from hloexec.ops.policies.policy import NumericsPolicy


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
        x, w, y = self.input.labelled, self.kernel.labelled, self.output.labelled
        groups = self.attributes.feature_group_count
        # A group's outputs become its inputs: [..., in, groups × out] → [..., out, groups × in].
        view = kernel.transpose(*w[2:], w[1], w[0])
        split = view.reshape(*view.shape[:-1], groups, view.shape[-1] // groups)
        swapped = np.swapaxes(split, -1, -3).reshape(*view.shape[:-2], -1, groups * view.shape[-2])
        window = []
        for dimension, along_x, along_y in zip(self.attributes.window.dimensions, x[2:], y[2:], strict=True):
            reach = (dimension.size - 1) * dimension.window_dilation
            low = reach - dimension.padding_low
            spread = (gradient.shape[along_y] - 1) * dimension.stride + 1
            wanted = (inputs.dimensions[along_x] - 1) * dimension.base_dilation + 1
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
        attributes = attrs.evolve(self.attributes, window=Window(tuple(window)), dim_labels=numbers)
        return _convolution(gradient, swapped, attributes, inputs.element_type, numerics)

    def filter_gradient(self, inputs: Array, gradient: Array, result: ElementType, numerics: NumericsPolicy) -> Array:
        """That of w, from x and the gradient of y."""
        x, w, y = self.input.labelled, self.kernel.labelled, self.output.labelled
        window = []
        for dimension, along_x, along_y in zip(self.attributes.window.dimensions, x[2:], y[2:], strict=True):
            outputs = gradient.shape[along_y]
            spread = (inputs.shape[along_x] - 1) * dimension.base_dilation + 1
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
        attributes = attrs.evolve(
            self.attributes,
            window=Window(tuple(window)),
            dim_labels=numbers,
            feature_group_count=1,
            batch_group_count=self.attributes.feature_group_count,
        )
        value = _convolution(inputs, gradient, attributes, result, numerics)
        dimensions = zip(w[2:], self.attributes.window.dimensions, strict=True)
        return np.asarray(np.flip(value, tuple(place for place, dimension in dimensions if dimension.window_reversal)))


def geometry(attributes: CustomCallAttributes) -> Geometry:
    """The convolution of a call; UnsupportedError or ShapeError where its attributes do not describe one."""
    labels = attributes.dim_labels
    if labels is None:
        raise UnsupportedError("it has no dim_labels, which a convolution needs")
    if attributes.batch_group_count != 1:
        raise UnsupportedError(f"it has batch_group_count={attributes.batch_group_count}, which cuDNN does not have")
    found = sides(labels)
    for side in found:
        side.check()
    plain = ConvolutionAttributes(
        window=attributes.window,
        dim_labels=dimension_numbers(*(side.merged_labels for side in found)),
        feature_group_count=attributes.feature_group_count,
        operand_precision=attributes.operand_precision,
    )
    return Geometry(plain, *found)


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
