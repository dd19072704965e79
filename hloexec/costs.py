"""What contractions cost: how long the sums are, how many operations they take, how many bytes they touch.

Contractions are dot, ragged-dot, convolution, and the library calls that stand for a matrix product. Everything is read
off shapes and attributes, nothing is run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.ir import ArrayShape, ConvolutionDimensionNumbers, Instruction, Shape, WindowDimension, leaf_shapes

__all__ = ["Contraction", "contraction_of", "trip_count_of"]

_MATRIX_PRODUCT_TARGETS = ("__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8")
_MOST_PAIRS = 1 << 24
"""Output positions times window taps in one dimension up to which padding is counted exactly."""


@attrs.frozen
class Contraction:
    """One contraction, run once.

    `contracted_size` is the number of products that each element of the result sums up; `flops` counts a multiplication
    and an addition per product, without those of a convolution that fall into padding; `byte_count` adds up operands
    and result, as hloexec holds them.
    """

    kind: str
    contracted_size: int
    flops: int
    byte_count: int


def contraction_of(instruction: Instruction, operand_shapes: Sequence[Shape]) -> Contraction | None:
    """What an instruction costs as a contraction; None where it is not one, or does not say enough."""
    if len(operand_shapes) < 2:
        return None
    result = next((leaf for _, leaf in leaf_shapes(instruction.shape)), None)
    lhs, rhs = operand_shapes[:2]
    if not (isinstance(result, ArrayShape) and isinstance(lhs, ArrayShape) and isinstance(rhs, ArrayShape)):
        return None
    attributes = instruction.attributes
    size: int | None = None
    products: int | None = None
    kind = instruction.opcode
    if kind in ("dot", "ragged-dot"):
        size = _product(lhs, attributes.lhs_contracting_dims)
    elif kind == "convolution":
        size, products = _convolution(lhs, rhs, result, attributes)
    elif kind == "custom-call" and attributes.custom_call_target in _MATRIX_PRODUCT_TARGETS:
        kind = attributes.custom_call_target
        size = _product(lhs, _gemm_contracting_dimensions(instruction.backend_config))
    if size is None:
        return None
    count = products if products is not None else size * result.element_count
    return Contraction(kind, size, 2 * count, lhs.byte_size + rhs.byte_size + result.byte_size)


def trip_count_of(instruction: Instruction) -> int | None:
    """How often a while loop runs, where its backend_config says so (`known_trip_count`)."""
    count = _nested(instruction.backend_config, "known_trip_count", "n")
    try:
        return max(0, int(count))
    except (TypeError, ValueError):
        return None


def _product(shape: ArrayShape, dimensions: Sequence[int] | None) -> int | None:
    if dimensions is None or not all(0 <= dimension < shape.rank for dimension in dimensions):
        return None
    return math.prod(shape.dimensions[dimension] for dimension in dimensions)


def _gemm_contracting_dimensions(backend_config: str | None) -> list[int] | None:
    found = _nested(backend_config, "gemm_backend_config", "dot_dimension_numbers", "lhs_contracting_dimensions")
    if found is None:
        found = _nested(backend_config, "dot_dimension_numbers", "lhs_contracting_dimensions")
    try:
        return [int(dimension) for dimension in found]
    except (TypeError, ValueError):
        return None


def _nested(text: str | None, *keys: str) -> Any:
    """What a JSON text holds under nested keys, or None."""
    if text is None or f'"{keys[0]}"' not in text:
        return None
    try:
        current = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for key in keys:
        if not isinstance(current, dict):
            return None
        current = current.get(key)
    return current


def _convolution(
    lhs: ArrayShape, rhs: ArrayShape, result: ArrayShape, attributes: Any
) -> tuple[int | None, int | None]:
    """Taps times input features per output element, and the products of all of them that do not meet padding."""
    numbers: ConvolutionDimensionNumbers = attributes.dim_labels
    window: tuple[WindowDimension, ...] = attributes.window.dimensions
    spatial = numbers.kernel_spatial_dimensions
    size = _product(rhs, (numbers.kernel_input_feature_dimension, *spatial))
    ranks = (numbers.input_rank, numbers.kernel_rank, numbers.output_rank)
    if size is None or len(window) != len(spatial) or (lhs.rank, rhs.rank, result.rank) != ranks:
        return None, None
    products = rhs.dimensions[numbers.kernel_input_feature_dimension]
    products *= result.dimensions[numbers.output_batch_dimension]
    products *= result.dimensions[numbers.output_feature_dimension]
    for dimension, input_dimension, output_dimension in zip(
        window, numbers.input_spatial_dimensions, numbers.output_spatial_dimensions, strict=True
    ):
        products *= _meeting_pairs(dimension, lhs.dimensions[input_dimension], result.dimensions[output_dimension])
    return size, products


def _meeting_pairs(dimension: WindowDimension, input_size: int, output_size: int) -> int:
    """Pairs of an output position and a tap that meet an element of the input, in one dimension."""
    if dimension.size * output_size > _MOST_PAIRS:
        return dimension.size * output_size
    starts = np.arange(output_size)[:, None] * dimension.stride - dimension.padding_low
    positions = starts + np.arange(dimension.size) * dimension.window_dilation
    inside = (positions >= 0) & (positions <= (input_size - 1) * dimension.base_dilation)
    return int(np.count_nonzero(inside & (positions % dimension.base_dilation == 0)))
