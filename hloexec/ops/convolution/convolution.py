"""Convolution.

For any dimension labels and groups, the computation is done on views `[group, batch, spatial..., feature]` of the input
and the result and `[group, window..., feature in, feature out]` of the kernel; `forms` has the algorithms.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, Kind, element_type_of
from hloexec.core.ir import ArrayShape, ConvolutionDimensionNumbers, Instruction, Shape, Window, WindowDimension
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.arena import empty
from hloexec.ops.attributes import Grammar, attribute, operand_precision
from hloexec.ops.common import array_shape, flags, higher_precision, require, shape_of
from hloexec.ops.contraction.algorithms import DOT_ALGORITHMS, algorithm_multiplier
from hloexec.ops.contraction.compressed import (
    compressed_shape,
    configuration,
    reason_against_compression,
    relates_compressed,
)
from hloexec.ops.contraction.matrix_product import FloatMultiplier, operand_split
from hloexec.ops.convolution.forms import convolve
from hloexec.ops.convolution.views import ConvolutionViews
from hloexec.ops.elementwise.convert import convert
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.probes import Probe
from hloexec.ops.registry import ANY, opcode
from hloexec.ops.relations import Relating, Resizing, relate_convolution, resized_convolution
from hloexec.ops.rounding import Rounding, Summation, Sums
from hloexec.ops.traits import ContractionSize
from hloexec.ops.windows import output_size, require_window

_MOST_PAIRS = 1 << 24
"""Output positions times window taps in one dimension up to which padding is counted exactly."""


@frozen
class ConvolutionAttributes:
    """`convolution_kind` names the role of a convolution in training, which changes no value; `algorithm` is that of a
    dot (`ops.contraction.algorithms`)."""

    window: Window = attribute(Grammar.WINDOW, default=Window())
    dim_labels: ConvolutionDimensionNumbers = attribute(Grammar.CONVOLUTION_DIMENSIONS)
    feature_group_count: int = attribute(Grammar.INT, default=1)
    batch_group_count: int = attribute(Grammar.INT, default=1)
    convolution_kind: str = attribute(
        Grammar.ENUM, default="unset", choices=("unset", "fprop", "dgrad", "wgrad"), is_open=True
    )
    operand_precision: tuple[str, ...] = operand_precision()
    algorithm: str = attribute(Grammar.ENUM, default="unset", choices=DOT_ALGORITHMS, any_case=True)
    sparsity_config: str | None = configuration()
    block_scaling_config: str | None = configuration()


@opcode(
    "convolution", operands=(2, ANY), attributes=ConvolutionAttributes, rounding=Rounding.SUM, flushes_denormals=True
)
class Convolution:
    """out[b, x, o] = sum over t, i of lhs[b, x * stride + t * window_dilation - padding_low, i] * rhs[t, i, o]

    over taps t and input features i; lhs is dilated by base_dilation and zero outside. Reversed windows reverse rhs.
    With feature groups, the outputs of group g depend only on the inputs of group g; with batch groups, the outputs of
    group g are those of batch group g. Narrow floats accumulate in f32 and round once; integers wrap; of pred, sums are
    disjunctions. Source: XLA, Conv.
    """

    sums = Sums.PRODUCTS
    probe = Probe("T[2,4] convolution(a0, a1), dim_labels=bf_io->bf", ("T[2,3]", "T[3,4]"))

    @staticmethod
    def contraction(
        instruction: Instruction, lhs: ArrayShape, rhs: ArrayShape, result: ArrayShape
    ) -> ContractionSize | None:
        """Taps times input features per element of the result; padding is not multiplied."""
        numbers: ConvolutionDimensionNumbers = instruction.attributes.dim_labels
        window = instruction.attributes.window.dimensions
        ranks = (numbers.input_rank, numbers.kernel_rank, numbers.output_rank)
        if len(window) != len(numbers.kernel_spatial_dimensions) or (lhs.rank, rhs.rank, result.rank) != ranks:
            return None
        features = rhs.dimensions[numbers.kernel_input_feature_dimension]
        products = features * result.dimensions[numbers.output_batch_dimension]
        products *= result.dimensions[numbers.output_feature_dimension]
        spatial = zip(window, numbers.input_spatial_dimensions, numbers.output_spatial_dimensions, strict=True)
        for dimension, input_dimension, output_dimension in spatial:
            products *= _meeting_pairs(dimension, lhs.dimensions[input_dimension], result.dimensions[output_dimension])
        taps = math.prod(rhs.dimensions[dimension] for dimension in numbers.kernel_spatial_dimensions)
        return ContractionSize(features * taps, products)

    @staticmethod
    def relate(use: Relating) -> None:
        if not relates_compressed(use):
            relate_convolution(use)

    @staticmethod
    def resize(change: Resizing) -> object:
        return attrs.evolve(change.attributes, **resized_convolution(change))

    @staticmethod
    def infer(lhs: Shape, rhs: Shape, *further: Shape, attributes: ConvolutionAttributes, shape: Shape) -> Shape:
        sparse = compressed_shape(further, attributes, shape)
        if sparse is not None:
            return sparse
        return _infer(array_shape(lhs, "lhs of convolution"), array_shape(rhs, "rhs of convolution"), attributes, shape)

    supports = staticmethod(reason_against_compression)

    @staticmethod
    def evaluate(
        lhs: Array, rhs: Array, *, attributes: ConvolutionAttributes, shape: ArrayShape, numerics: NumericsPolicy
    ) -> Array:
        if shape.element_type.kind is Kind.PRED:
            counted = [operand.astype(np.int32) for operand in (lhs, rhs)]
            whole = shape.with_element_type(ELEMENT_TYPES["s32"])
            sums = Convolution.evaluate(*counted, attributes=attributes, shape=whole, numerics=numerics)
            return np.asarray(sums != 0)
        has_algorithm = attributes.algorithm != "unset" and not numerics.ignores_algorithms
        if has_algorithm and shape.element_type.is_floating:
            multiplier = algorithm_multiplier(attributes.algorithm)
            plain = attrs.evolve(attributes, algorithm="unset")
            return _in_passes(lhs, rhs, plain, shape, multiplier, numerics)
        is_default = all(precision == "default" for precision in attributes.operand_precision)
        split = operand_split(numerics) if is_default else None
        if split is not None and split.terms > 1:
            if all(operand.dtype == np.float32 for operand in (lhs, rhs)):
                multiplier = FloatMultiplier(np.dtype(np.float32), split)
                return _in_passes(lhs, rhs, attributes, shape, multiplier, numerics)
            split = None
        result = empty(_result_sizes(lhs.shape, rhs.shape, attributes), shape.element_type.storage)
        work = ConvolutionViews(
            inputs=_grouped_input(lhs, attributes),
            kernel=_grouped_kernel(rhs, attributes),
            result=_grouped_result(result, attributes),
            dimensions=attributes.window.dimensions or (WindowDimension(1),),
            result_type=shape.element_type,
            f32_split=split,
            is_exact=numerics.is_exact and not shape.element_type.is_integral,
        )
        convolve(work)
        return result

    @staticmethod
    def summed(*, attributes: ConvolutionAttributes, operand_shapes: tuple[ArrayShape, ...]) -> Summation:
        outputs = operand_shapes[1].dimensions[attributes.dim_labels.kernel_output_feature_dimension]
        return Summation(operand_shapes[1].element_count / max(1, outputs))

    @staticmethod
    def slices(*, attributes: ConvolutionAttributes, operand_shapes: tuple[ArrayShape, ...]) -> tuple[int, int] | None:
        """The batch."""
        labels = attributes.dim_labels
        if attributes.batch_group_count > 1:
            return None
        return labels.input_batch_dimension, labels.output_batch_dimension


def _in_passes(
    lhs: Array,
    rhs: Array,
    attributes: ConvolutionAttributes,
    shape: ArrayShape,
    multiplier: FloatMultiplier,
    numerics: NumericsPolicy,
) -> Array:
    """The sum of convolutions of parts of the operands, each accumulated in the multiplier's type."""
    ours, theirs = multiplier.prepare(lhs), multiplier.prepare(rhs)
    plain = numerics.changed(contraction_operand_mantissa_bits=None, contraction_passes=1)
    # Where sums are exact, those of the parts are rounded to f64.
    sums = ELEMENT_TYPES["f64"] if numerics.is_exact else element_type_of(multiplier.scratch_dtype)
    wide = shape.with_element_type(sums)
    total: Any = None
    for i, j in multiplier.pairs:
        product = Convolution.evaluate(ours[i], theirs[j], attributes=attributes, shape=wide, numerics=plain)
        total = product if total is None else total + product
    if multiplier.sum_type is not None:
        total = convert(total, multiplier.sum_type)
    return convert(total, shape.element_type)


def _infer(lhs: ArrayShape, rhs: ArrayShape, attributes: ConvolutionAttributes, declared: Shape) -> ArrayShape:
    labels, window = attributes.dim_labels, attributes.window
    ranks = (labels.input_rank, labels.kernel_rank, labels.output_rank)
    require(
        ranks == (lhs.rank, rhs.rank, lhs.rank) and lhs.rank >= 2,
        f"dim_labels of convolution are for ranks {ranks}, but the operands have shapes {lhs} and {rhs}",
    )
    features = labels.kernel_input_feature_dimension, labels.kernel_output_feature_dimension
    for side, roles in (
        ("input", (labels.input_batch_dimension, labels.input_feature_dimension, *labels.input_spatial_dimensions)),
        ("kernel", (*features, *labels.kernel_spatial_dimensions)),
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
    sides = zip(window.dimensions, labels.kernel_spatial_dimensions, strict=True)
    for number, (dimension, position) in enumerate(sides):
        require(
            dimension.size == rhs.dimensions[position],
            f"dimension {number} of the window of convolution has size {dimension.size}, but the kernel's dimension "
            f"{position} has size {rhs.dimensions[position]}",
        )
    _require_groups(lhs, rhs, attributes)
    element_type = higher_precision(lhs.element_type, rhs.element_type)
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
    sizes = _result_sizes(lhs.dimensions, rhs.dimensions, attributes)
    return shape_of(element_type, sizes, _dynamic_dimensions(lhs, rhs, labels))


def _dynamic_dimensions(lhs: ArrayShape, rhs: ArrayShape, labels: ConvolutionDimensionNumbers) -> tuple[bool, ...]:
    """Which dimensions of the result are dynamic."""
    dynamic, ours, theirs = [False] * lhs.rank, flags(lhs), flags(rhs)
    dynamic[labels.output_batch_dimension] = ours[labels.input_batch_dimension]
    dynamic[labels.output_feature_dimension] = theirs[labels.kernel_output_feature_dimension]
    spatial = (labels.output_spatial_dimensions, labels.input_spatial_dimensions, labels.kernel_spatial_dimensions)
    for target, source, kernel in zip(*spatial, strict=True):
        dynamic[target] = ours[source] or theirs[kernel]
    return tuple(dynamic)


def _result_sizes(lhs: tuple[int, ...], rhs: tuple[int, ...], attributes: ConvolutionAttributes) -> tuple[int, ...]:
    labels = attributes.dim_labels
    sizes = [0] * len(lhs)
    sizes[labels.output_batch_dimension] = lhs[labels.input_batch_dimension] // attributes.batch_group_count
    sizes[labels.output_feature_dimension] = rhs[labels.kernel_output_feature_dimension]
    for target, source, dimension in zip(
        labels.output_spatial_dimensions, labels.input_spatial_dimensions, attributes.window.dimensions, strict=True
    ):
        sizes[target] = output_size(lhs[source], dimension)
    return tuple(sizes)


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
    """A view `[group, batch, spatial..., feature]` of the input, with one spatial dimension at least."""
    labels = attributes.dim_labels
    batch, feature = labels.input_batch_dimension, labels.input_feature_dimension
    view = _with_space(lhs.transpose(batch, *labels.input_spatial_dimensions, feature), 1)
    if attributes.batch_group_count > 1:
        groups = attributes.batch_group_count
        return view.reshape(groups, view.shape[0] // groups, *view.shape[1:])
    return _grouped_features(view, attributes.feature_group_count)


def _grouped_kernel(rhs: Array, attributes: ConvolutionAttributes) -> Array:
    """A view `[group, window..., feature in, feature out]` of the kernel, reversed dimensions flipped."""
    labels = attributes.dim_labels
    view = rhs.transpose(
        *labels.kernel_spatial_dimensions, labels.kernel_input_feature_dimension, labels.kernel_output_feature_dimension
    )
    reversal = tuple(slice(None, None, -1 if d.window_reversal else 1) for d in attributes.window.dimensions)
    return _grouped_features(
        _with_space(view[reversal], 0), attributes.feature_group_count * attributes.batch_group_count
    )


def _grouped_result(result: Array, attributes: ConvolutionAttributes) -> Array:
    """A view `[group, batch, spatial..., feature]` of the result."""
    labels = attributes.dim_labels
    batch, feature = labels.output_batch_dimension, labels.output_feature_dimension
    view = _with_space(result.transpose(batch, *labels.output_spatial_dimensions, feature), 1)
    return _grouped_features(view, attributes.feature_group_count * attributes.batch_group_count)


def _with_space(view: Array, axis: int) -> Array:
    """The view with a spatial dimension of size 1 at `axis` where it has none."""
    return view if view.ndim > 2 else np.expand_dims(view, axis)


def _grouped_features(view: Array, groups: int) -> Array:
    """The last dimension split into groups, which go first."""
    split = view.reshape(*view.shape[:-1], groups, view.shape[-1] // groups)
    return split.transpose(-2, *range(view.ndim - 1), -1)


def _meeting_pairs(dimension: WindowDimension, input_size: int, output_size: int) -> int:
    """Pairs of an output position and a tap that meet an element of the input, in one dimension."""
    if dimension.size * output_size > _MOST_PAIRS:
        return dimension.size * output_size
    starts = np.arange(output_size)[:, None] * dimension.stride - dimension.padding_low
    positions = starts + np.arange(dimension.size) * dimension.window_dilation
    inside = (positions >= 0) & (positions <= (input_size - 1) * dimension.base_dilation)
    return int(np.count_nonzero(inside & (positions % dimension.base_dilation == 0)))
