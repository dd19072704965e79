"""Convolution, and the choice between its algorithms.

For any dimension labels and groups, the computation is done on views `[group, batch, spatial..., feature]` of the input
and the result and `[group, window..., feature in, feature out]` of the kernel; `algorithms` has some of them.

The choice depends on shapes, strides and element types alone. Most convolutions become products of matrices whose rows
are patches: the elements that a window covers, all taps side by side. Patches are copied for a block of outputs at a
time, so that they stay in the cache until they are multiplied; they are not copied if they are contiguous already (one
tap).
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, Kind, element_type_of
from hloexec.core.ir import (
    ArrayShape,
    ArrayShapes,
    ConvolutionDimensionNumbers,
    Instruction,
    Shape,
    Window,
    WindowDimension,
)
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.attributes import Grammar, attribute, operand_precision
from hloexec.ops.common import array_shape, flags, higher_precision, narrow, require, shape_of
from hloexec.ops.contraction.dot import (
    DOT_ALGORITHMS,
    algorithm_multiplier,
    compressed_shape,
    configuration,
    reason_against_compression,
    relates_compressed,
)
from hloexec.ops.contraction.matrix_product import (
    FloatMultiplier,
    default_multiplier,
    exactly,
    matrix_product,
    multiply_into,
    operand_split,
)
from hloexec.ops.contraction.plain_products import LEAST_SHARED
from hloexec.ops.convolution.algorithms import (
    ConvolutionViews,
    by_channel,
    kernel_gradient,
    kernel_gradient_by_channel,
    merges_into_rows,
    phases,
    store,
)
from hloexec.ops.convolution.batched import without_batches
from hloexec.ops.elementwise.selection import convert
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import ANY, opcode
from hloexec.ops.relations import Relating, Resizing, relate_convolution, resized_convolution
from hloexec.ops.relations.parts import output_size, require_window, visits
from hloexec.ops.resources import empty, for_each
from hloexec.ops.traits import ContractionSize, Probe, Rounding, Summation, Sums

_BLOCK_BYTES = 1 << 20
"""Patches of one block: they stay in a core's own cache until they are multiplied."""
_BLOCK_ROWS, _LARGE_BLOCK_ROWS = 192, 256
"""Rows that keep BLAS busy, even if their patches take more; more where it copies more of the kernel for each block."""
_COPIED_ELEMENTS = 1 << 16
"""Elements of the kernel that are more."""
_BLOCK_COLUMNS = 256
"""Columns that do, where there are too few rows for several blocks."""
_FEW_BLOCKS = 4
"""So many keep cores busy that have more to do than to call for it."""
_PHASE_PRODUCTS = 1 << 25
"""Products of a phase of a dilated input that all cores share evenly; smaller phases take a core each."""
_LARGE_KERNEL = 1 << 20
"""Kernels with this many elements are copied at negligible cost only if it is done for many outputs at once."""
_STORAGE_BLOCK_BYTES = 32 << 20
"""Patches of one block that are prepared for multiplication only afterwards."""


def convolve(work: ConvolutionViews) -> None:
    """Fill `work.result`."""
    if not work.result.size:
        return
    if not work.inputs.size or not work.kernel.size:
        work.result[...] = 0
        return
    if (batched := without_batches(work)) is not None:
        rest, result = batched
        convolve(rest)
        work.result[...] = result
        return
    # The largest first, so that no core is left with one that the others don't share.
    parts = sorted(phases(work), key=_products, reverse=True)
    if any(_products(part) >= _PHASE_PRODUCTS for part in parts):
        for part in parts:
            _convolve_undilated(part)
    else:
        for_each(_convolve_undilated, parts)


def _products(work: ConvolutionViews) -> int:
    """How many products make the result, of padding, too."""
    return work.result.size * work.kernel[0, ..., 0].size


def _convolve_undilated(work: ConvolutionViews) -> None:
    groups, batch = work.inputs.shape[:2]
    features, outputs = work.kernel.shape[-2:]
    taps, places = math.prod(work.window), math.prod(work.sizes)
    matrices = None if work.is_exact else _matrices(work)
    if matrices is not None:
        inputs, kernel, result = matrices
        usual = default_multiplier(inputs, kernel, work.result_type, work.f32_split)
        multiply_into(result, inputs, kernel, work.result_type, usual)
    elif work.is_exact:
        _by_patches_in_storage_type(work)
    elif groups > 1 and features * outputs <= 4 and taps <= places:
        by_channel(work)
    elif 2 * _pairs(work) < places * taps:
        _by_taps(work)
    elif work.result_type.is_integral:
        _by_patches_in_storage_type(work)
    elif taps <= places:
        _by_patches(work)
    elif groups > 1 and batch * outputs <= 4:
        kernel_gradient_by_channel(work)
    else:
        kernel_gradient(work)


def _matrices(work: ConvolutionViews) -> tuple[Array, Array, Array] | None:
    """Inputs, kernel and result as matrices, where each output is one input times a kernel that is large.

    BLAS copies the kernel into an order of its own once for all outputs then, not once for each block of them.
    """
    is_one_to_one = all(
        dimension.size == dimension.stride == 1 and dimension.padding_low == dimension.padding_high == 0
        for dimension in work.dimensions
    )
    if work.kernel.shape[0] > 1 or not is_one_to_one or work.kernel.size < _LARGE_KERNEL:
        return None
    inputs, result = work.inputs[0], work.result[0]
    order = sorted(range(inputs.ndim - 1), key=lambda dim: -abs(inputs.strides[dim]))
    views = [view.transpose(*order, -1) for view in (inputs, result)]
    if not all(map(merges_into_rows, views)):
        return None
    rows = math.prod(inputs.shape[:-1])
    lhs, target = (view.reshape(rows, view.shape[-1]) for view in views)
    return lhs, work.kernel.reshape(work.kernel.shape[-2:]), target


def _pairs(work: ConvolutionViews) -> int:
    """How many pairs of output and tap there are that read the input."""
    return math.prod(map(_pairs_along, work.inputs.shape[2:-1], work.sizes, work.dimensions))


@lru_cache(maxsize=1024)
def _pairs_along(extent: int, size: int, dimension: WindowDimension) -> int:
    return sum(len(range(size)[visit[0]]) for visit in visits(extent, size, dimension) if visit is not None)


def _by_patches(work: ConvolutionViews) -> None:
    """One matrix product per block of outputs, on all cores."""
    (groups, batch), (features, outputs) = work.inputs.shape[:2], work.kernel.shape[-2:]
    length, rank = math.prod(work.window) * features, len(work.sizes)
    places, taps = tuple(range(1, rank + 2)), tuple(range(rank + 2, 2 * rank + 2))
    has_rows = work.has_features_inside
    if has_rows:
        kernel, order = work.kernel, (0, *places, *taps, 2 * rank + 2)
    else:
        # Neighbours in memory stay neighbours, and patches are the columns of a matrix.
        kernel, order = np.moveaxis(work.kernel, -2, 1), (0, 2 * rank + 2, *taps, *places)
    weights = work.prepared(kernel.reshape(groups, length, outputs))
    prepare = work.preparation(work.inputs)
    every_tap = [range(size) for size in work.window]
    row_bytes = groups * length * work.accumulation_type.storage.itemsize

    def multiply(block: tuple[slice, range, slice]) -> None:
        images, lines, columns = block
        seen = work.seen(images, [lines, *map(range, work.sizes[1:])], every_tap, slice(None), prepare)
        target = work.result[:, images, lines.start : lines.stop, ..., columns]
        rows = math.prod(target.shape[1:-1])
        if has_rows:
            patches = seen.transpose(order).reshape(groups, rows, length)
        else:
            patches = seen.transpose(order).reshape(groups, length, rows).swapaxes(-1, -2)
        store(patches, weights[..., columns], target, work.result_type)

    least = _LARGE_BLOCK_ROWS if length * outputs >= _COPIED_ELEMENTS else _BLOCK_ROWS
    rows = batch * math.prod(work.sizes)
    most = -(-rows // _FEW_BLOCKS) if rows * length * outputs >= LEAST_SHARED // 2 else rows
    for_each(multiply, _blocks(work, max(least, min(_BLOCK_BYTES // row_bytes, most))))


def _blocks(work: ConvolutionViews, rows: int) -> list[tuple[slice, range, slice]]:
    """The images, lines (along the first spatial dimension) and output features of blocks of about `rows` outputs."""
    batch, lines = work.result.shape[1:3]
    outputs = work.result.shape[-1]
    per_line = math.prod(work.sizes[1:])
    line_step, image_step, column_step = min(lines, max(1, rows // per_line)), 1, outputs
    if line_step < lines:
        line_step = -(-lines // -(-lines // line_step))
    elif work.has_features_inside:
        blocks = -(-batch // max(1, rows // (per_line * lines)))
        # An even number, so that none is left to a core alone.
        image_step = -(-batch // max(1, blocks // 2 * 2))
    if image_step >= batch and line_step == lines:
        image_step, column_step = batch, max(_BLOCK_COLUMNS, -(-outputs // 2))
    return [
        (slice(b, b + image_step), range(lines)[y : y + line_step], slice(o, o + column_step))
        for b, y, o in product(range(0, batch, image_step), range(0, lines, line_step), range(0, outputs, column_step))
    ]


def _by_patches_in_storage_type(work: ConvolutionViews) -> None:
    """Patches in the input's own type, prepared for multiplication, whichever it is, block by block."""
    groups, (features, outputs) = work.kernel.shape[0], work.kernel.shape[-2:]
    length = math.prod(work.window) * features
    weights = work.kernel.reshape(groups, length, outputs)
    every_tap = [range(size) for size in work.window]
    for images, lines, _ in _blocks(work, max(1, _STORAGE_BLOCK_BYTES // (groups * length * work.inputs.itemsize))):
        seen = work.seen(images, [lines, *map(range, work.sizes[1:])], every_tap, slice(None), None)
        target = work.result[:, images, lines.start : lines.stop]
        patches = seen.reshape(groups, math.prod(target.shape[1:-1]), length)
        usual = default_multiplier(patches, weights, work.result_type, work.f32_split)
        multiplier = exactly(usual) if work.is_exact else usual
        target[...] = matrix_product(patches, weights, work.result_type, multiplier).reshape(target.shape)


def _by_taps(work: ConvolutionViews) -> None:
    """One matrix product per tap, for the outputs only that read the input at it, added up."""
    groups, outputs = work.kernel.shape[0], work.kernel.shape[-1]
    accumulation = work.accumulation_type
    total = np.zeros(work.result.shape, accumulation.storage)
    for position, places, read in work.taps():
        chosen = work.inputs[(slice(None), slice(None), *read)]
        rows = chosen.reshape(groups, -1, chosen.shape[-1])
        tap: tuple[Any, ...] = (slice(None), *position)
        weights = work.kernel[tap]
        multiplier = default_multiplier(rows, weights, accumulation, work.f32_split)
        product = matrix_product(rows, weights, accumulation, multiplier)
        total[(slice(None), slice(None), *places)] += product.reshape(*chosen.shape[:-1], outputs)
    work.result[...] = narrow(total, work.result_type)


_MOST_PAIRS = 1 << 24
"""Output positions times window taps in one dimension up to which padding is counted exactly."""


@frozen
class ConvolutionAttributes:
    """`convolution_kind` names the role of a convolution in training, which changes no value; `algorithm` is that of a
    dot (`ops.contraction.dot`)."""

    window: Window = attribute(default=Window())
    dim_labels: ConvolutionDimensionNumbers = attribute(Grammar.CONVOLUTION_DIMENSIONS)
    feature_group_count: int = attribute(default=1)
    batch_group_count: int = attribute(default=1)
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
    def summed(*, attributes: ConvolutionAttributes, operand_shapes: ArrayShapes) -> Summation:
        outputs = operand_shapes[1].dimensions[attributes.dim_labels.kernel_output_feature_dimension]
        return Summation(operand_shapes[1].element_count / max(1, outputs))

    @staticmethod
    def slices(*, attributes: ConvolutionAttributes, operand_shapes: ArrayShapes) -> tuple[int, int] | None:
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


def _result_sizes(lhs: Dimensions, rhs: Dimensions, attributes: ConvolutionAttributes) -> Dimensions:
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
