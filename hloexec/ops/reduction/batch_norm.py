"""Batch normalization: every feature is normalized to mean 0 and variance 1 over all other dimensions.

Under `exact` every result is rounded once.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, flags, narrow, require, same_type_ignoring_float_width, shape_of, widen
from hloexec.ops.intervals import demand
from hloexec.ops.policies.exact.doubled import Pair
from hloexec.ops.policies.exact.sums import gradients, mean_and_variance, normalized, pair
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import opcode
from hloexec.ops.relations import Relating
from hloexec.ops.traits import Probe


@frozen
class BatchNormAttributes:
    epsilon: float = attribute(Grammar.FLOAT)
    feature_index: int = attribute()


def relate_features(use: Relating) -> None:
    """All arrays of the operand's rank have its dimensions, and all vectors that of its features."""
    operand = use.operands[0].axes
    feature = operand[use.attributes.feature_index]
    for value in (*use.operands[1:], use.result):
        for axes in value.leaves.values():
            use.same(axes, operand if len(axes) == len(operand) and len(axes) != 1 else [feature])


@opcode("batch-norm-training", operands=3, attributes=BatchNormAttributes)
class BatchNormTraining:
    """(scale · (operand - mean) / sqrt(variance + epsilon) + offset, mean, variance)

    Mean and (biased) variance are per feature. Narrow floats compute in f32 and round each result once. Source: XLA,
    BatchNormTraining.
    """

    layout_of = (0,)
    probe = Probe(
        "(T[2,3], T[3], T[3]) batch-norm-training(a0, a1, a2), epsilon=0, feature_index=1", ("T[2,3]", "T[3]", "T[3]")
    )
    relate = staticmethod(relate_features)

    @staticmethod
    def infer(operand: Shape, scale: Shape, offset: Shape, *, attributes: BatchNormAttributes) -> Shape:
        array = _require_features(operand, {"scale": scale, "offset": offset}, attributes, "batch-norm-training")
        return _three_results(array, attributes)

    @staticmethod
    def evaluate(
        operand: Array,
        scale: Array,
        offset: Array,
        *,
        attributes: BatchNormAttributes,
        numerics: NumericsPolicy = REFERENCE,
    ) -> tuple[Array, Array, Array]:
        element_type = element_type_of(operand.dtype)
        if numerics.is_exact:
            pairs = mean_and_variance(_rows(operand, attributes))
            mean, variance = (narrow((high + low)[:, 0], element_type) for high, low in pairs)
            return _normalized_exactly(operand, *pairs, scale, offset, attributes), mean, variance
        x, axes = widen(operand), _other_axes(operand, attributes)
        mean = x.mean(axes, keepdims=True)
        variance = np.square(x - mean).mean(axes, keepdims=True)
        result = _normalized(x, mean, variance, scale, offset, attributes)
        mean, variance = (narrow(value.reshape(-1), element_type) for value in (mean, variance))
        return narrow(result, element_type), mean, variance


@opcode("batch-norm-inference", operands=5, attributes=BatchNormAttributes, demands=demand(4, low=0))
class BatchNormInference:
    """scale · (operand - mean) / sqrt(variance + epsilon) + offset   (XLA: BatchNormInference)"""

    layout_of = (0,)
    probe = Probe(
        "T[2,3] batch-norm-inference(a0, a1, a2, a3, a4), epsilon=0, feature_index=1",
        ("T[2,3]", "T[3]", "T[3]", "T[3]", "T[3]"),
    )
    relate = staticmethod(relate_features)

    @staticmethod
    def infer(
        operand: Shape, scale: Shape, offset: Shape, mean: Shape, variance: Shape, *, attributes: BatchNormAttributes
    ) -> Shape:
        others = {"scale": scale, "offset": offset, "mean": mean, "variance": variance}
        return _require_features(operand, others, attributes, "batch-norm-inference")

    @staticmethod
    def evaluate(
        operand: Array,
        scale: Array,
        offset: Array,
        mean: Array,
        variance: Array,
        *,
        attributes: BatchNormAttributes,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array:
        if numerics.is_exact:
            moments = pair(_column(mean)), pair(_column(variance))
            return _normalized_exactly(operand, *moments, scale, offset, attributes)
        mean, variance = (_along_features(value, operand, attributes) for value in (mean, variance))
        result = _normalized(widen(operand), mean, variance, scale, offset, attributes)
        return narrow(result, element_type_of(operand.dtype))


@opcode("batch-norm-grad", operands=5, attributes=BatchNormAttributes, demands=demand(3, low=0))
class BatchNormGrad:
    """Gradients of batch-norm-training by operand, scale and offset, for the gradient g of its result.

    With x̂ = (operand - mean) / sqrt(variance + epsilon) and means over all but the feature dimension:
    grad_offset = sum(g), grad_scale = sum(g · x̂), and
    grad_operand = scale / sqrt(variance + epsilon) · (g - mean(g) - x̂ · mean(g · x̂)). Source: XLA, BatchNormGrad.
    """

    layout_of = (0,)
    probe = Probe(
        "(T[2,3], T[3], T[3]) batch-norm-grad(a0, a1, a2, a3, a4), epsilon=0, feature_index=1",
        ("T[2,3]", "T[3]", "T[3]", "T[3]", "T[2,3]"),
    )
    relate = staticmethod(relate_features)

    @staticmethod
    def infer(
        operand: Shape,
        scale: Shape,
        mean: Shape,
        variance: Shape,
        grad_output: Shape,
        *,
        attributes: BatchNormAttributes,
    ) -> Shape:
        others = {"scale": scale, "mean": mean, "variance": variance}
        array = _require_features(operand, others, attributes, "batch-norm-grad")
        gradient = array_shape(grad_output, "grad_output of batch-norm-grad")
        same_type_ignoring_float_width(array, gradient, "operand and grad_output of batch-norm-grad")
        require(
            gradient.dimensions == array.dimensions,
            f"grad_output of batch-norm-grad must have the operand's shape {array}, but has shape {gradient}",
        )
        return _three_results(array, attributes)

    @staticmethod
    def evaluate(
        operand: Array,
        scale: Array,
        mean: Array,
        variance: Array,
        grad_output: Array,
        *,
        attributes: BatchNormAttributes,
        numerics: NumericsPolicy = REFERENCE,
    ) -> tuple[Array, Array, Array]:
        element_type = element_type_of(operand.dtype)
        if numerics.is_exact:
            x, g = (_rows(array, attributes) for array in (operand, grad_output))
            scale, mean, variance = (_column(vector) for vector in (scale, mean, variance))
            grad_operand, *others = gradients(x, g, scale, mean, variance, _epsilon_value(attributes))
            grad_scale, grad_offset = (narrow(value[:, 0], element_type) for value in others)
            return _from_rows(grad_operand, operand, attributes), grad_scale, grad_offset
        x, g, axes = widen(operand), widen(grad_output), _other_axes(operand, attributes)
        scale, mean, variance = (_along_features(value, operand, attributes) for value in (scale, mean, variance))
        deviation = np.sqrt(variance + _epsilon(attributes, x))
        normal = (x - mean) / deviation
        grad_offset = g.sum(axes, keepdims=True)
        grad_scale = (g * normal).sum(axes, keepdims=True)
        count = x.dtype.type(max(1, x.size // max(1, x.shape[attributes.feature_index])))
        grad_operand = scale / deviation * (g - grad_offset / count - normal * (grad_scale / count))
        grad_scale, grad_offset = (narrow(value.reshape(-1), element_type) for value in (grad_scale, grad_offset))
        return narrow(grad_operand, element_type), grad_scale, grad_offset


def _require_features(
    operand: Shape, others: dict[str, Shape], attributes: BatchNormAttributes, opcode_name: str
) -> ArrayShape:
    """The operand's shape, once all others are vectors of its features."""
    array = array_shape(operand, f"the operand of {opcode_name}")
    require(
        0 <= attributes.feature_index < array.rank,
        f"feature_index {attributes.feature_index} of {opcode_name} is out of range for an operand of shape {array}",
    )
    require(array.element_type.is_floating, f"the operand of {opcode_name} must be floating-point, but is {array}")
    features = array.dimensions[attributes.feature_index]
    for name, shape in others.items():
        vector = array_shape(shape, f"{name} of {opcode_name}")
        same_type_ignoring_float_width(array, vector, f"the operand and {name} of {opcode_name}")
        require(
            vector.dimensions == (features,),
            f"{name} of {opcode_name} must have one element for each of {features} features, but has shape {vector}",
        )
    return ArrayShape(array.element_type, array.dimensions, dynamic_dimensions=array.dynamic_dimensions)


def _three_results(array: ArrayShape, attributes: BatchNormAttributes) -> TupleShape:
    """The operand's shape, and twice one element for each of its features."""
    index = attributes.feature_index
    features = shape_of(array.element_type, (array.dimensions[index],), flags(array)[index : index + 1])
    return TupleShape((array, features, features))


def _other_axes(operand: Array, attributes: BatchNormAttributes) -> Dimensions:
    return tuple(axis for axis in range(operand.ndim) if axis != attributes.feature_index)


def _along_features(vector: Array, operand: Array, attributes: BatchNormAttributes) -> Array:
    """One number per feature, widened, in the shape that broadcasts against the operand."""
    shape = [1] * operand.ndim
    shape[attributes.feature_index] = -1
    return widen(vector).reshape(shape)


def _normalized(
    x: Array, mean: Array, variance: Array, scale: Array, offset: Array, attributes: BatchNormAttributes
) -> Array:
    scale, offset = (_along_features(value, x, attributes) for value in (scale, offset))
    result: Array = scale * (x - mean) / np.sqrt(variance + _epsilon(attributes, x)) + offset
    return result


def _normalized_exactly(
    operand: Array, mean: Pair, variance: Pair, scale: Array, offset: Array, attributes: BatchNormAttributes
) -> Array:
    result = normalized(
        _rows(operand, attributes), mean, variance, _epsilon_value(attributes), _column(scale), _column(offset)
    )
    return _from_rows(result, operand, attributes)


def _rows(operand: Array, attributes: BatchNormAttributes) -> Array:
    """f64 `[features, elements]`."""
    features = np.moveaxis(widen(operand), attributes.feature_index, 0)
    return features.reshape(len(features), prod(features.shape[1:])).astype(np.float64)


def _from_rows(rows: Array, operand: Array, attributes: BatchNormAttributes) -> Array:
    """`[features, elements]` rounded and in the order of the operand."""
    rounded = narrow(rows, element_type_of(operand.dtype))
    others = [operand.shape[axis] for axis in _other_axes(operand, attributes)]
    return np.moveaxis(rounded.reshape(len(rows), *others), 0, attributes.feature_index)


def _column(vector: Array) -> Array:
    return widen(vector).astype(np.float64)[:, None]


def _epsilon_value(attributes: BatchNormAttributes) -> float:
    return float(np.float32(attributes.epsilon))


def _epsilon(attributes: BatchNormAttributes, x: Array) -> Any:
    """XLA keeps epsilon in f32, whatever the operand's type."""
    return x.dtype.type(_epsilon_value(attributes))
