"""Top-k search, exact or approximate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hloexec.core.ir import Instruction, Shape, TupleShape
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import array_shape
from hloexec.ops.library_calls.backend_config import json_object
from hloexec.ops.library_calls.ffi import ffi_attributes
from hloexec.ops.library_calls.shapes import CallResult, result_shapes
from hloexec.ops.registry import Callee, custom_call
from hloexec.ops.relations import Relating
from hloexec.ops.sorting.sort import TopK as Largest
from hloexec.ops.sorting.sort import TopKAttributes, first_indices, relate_chosen

_APPROXIMATE = {
    "aggregate_to_topk",
    "is_fallback",
    "log2_reduction",
    "recall_target",
    "reduction_dim",
    "reduction_input_size_override",
    "to_apply_type",
    "top_k",
}
"""What configs of approximate searches say. Only `reduction_dim` bears on an exact answer: the result has the size."""


def _comparators(instruction: Instruction) -> int:
    attributes = instruction.attributes
    return len(attributes.called_computations) + (attributes.to_apply is not None)


def _reason_against_comparators(instruction: Instruction) -> str | None:
    return None if _comparators(instruction) == 1 else "it must call one comparator"


@custom_call("TopK", "__gpu$TopK", is_reproducible=True)
class TopK:
    """(values, indices) of the k elements of the last dimension that come first by the called comparator, in its order;
    of the k largest, as topk has them, where none is called.

    operand [..., n] gives [..., k], k from the declared result, and indices of the declared integer type; among equal
    elements the lower index comes first. The comparator takes two elements, or two elements and their indices. Source:
    XLA, topk_rewriter.
    """

    @staticmethod
    def relate(use: Relating) -> None:
        relate_chosen(use, use.size(use.result.axes[-1]))

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        shape = instruction.shape
        is_pair = isinstance(shape, TupleShape) and len(shape.elements) == 2
        if _comparators(instruction) > 1:
            return "it must call one comparator"
        return None if is_pair else f"its result is {shape}"

    @staticmethod
    def order(operand: Array, *, shape: TupleShape, computations: tuple[Callee, ...]) -> tuple[int, Array]:
        declared, index = (array_shape(part, "a result of TopK") for part in shape.elements)
        if not operand.ndim or operand.shape[-1] < declared.dimensions[-1]:
            raise EvaluationError(f"TopK cannot find {declared} in an array of dimensions {list(operand.shape)}")
        count = declared.dimensions[-1]
        if not computations:
            return Largest.order(operand, attributes=TopKAttributes(k=count))
        comparator = computations[0]
        rows = [np.ascontiguousarray(operand)]
        if len(comparator.computation.parameters) > 2:
            numbers = np.arange(operand.shape[-1], dtype=index.element_type.storage)
            rows.append(np.ascontiguousarray(np.broadcast_to(numbers, operand.shape)))
        return operand.ndim - 1, _order(comparator, rows, count)

    @staticmethod
    def evaluate(operand: Array, *, shape: TupleShape, computations: tuple[Callee, ...]) -> tuple[Array, Array]:
        index = array_shape(shape.elements[1], "a result of TopK")
        _, order = TopK.order(operand, shape=shape, computations=computations)
        return np.take_along_axis(operand, order, -1), order.astype(index.element_type.storage)


def _reduction_dimension(instruction: Instruction) -> int:
    """`reduction_dim` of the config of an approximate search, a dictionary of MLIR's or (PartialReduce) JSON."""
    config: Mapping[str, Any]
    text = (instruction.backend_config or "").lstrip()
    config = json_object(text) if text.startswith('{"') else ffi_attributes(text)
    for name in config:
        if name not in _APPROXIMATE:
            raise UnsupportedError(f"its backend_config has the attribute {name}, which hloexec does not know")
    dimension = config.get("reduction_dim")
    if type(dimension) is not int:
        raise UnsupportedError(f"reduction_dim of its backend_config must be a whole number, but is {dimension!r}")
    if config.get("to_apply_type", "comparator") != "comparator":
        raise UnsupportedError(f"its to_apply_type is {config['to_apply_type']!r}, which hloexec does not support")
    return dimension


@custom_call("ApproxTopK", "PartialReduce", config=_reduction_dimension, is_reproducible=True)
class ApproxTopK:
    """The elements of `reduction_dim` that come first by the called comparator, in its order, of all operands together.

    Operands: arrays, then an initial value for each; results: the arrays' elements, as many as the declared size. XLA
    may miss some of the first elements (recall_target), and may leave more than top_k of them for a later sort
    (aggregate_to_topk false, and PartialReduce): any answer that holds the first ones will do, and here it is the exact
    one. Source: XLA, approx_topk; Chern et al., "TPU-KNN" (2022).
    """

    supports = staticmethod(_reason_against_comparators)

    @staticmethod
    def evaluate(*operands: Array, config: int, shape: Shape, computations: tuple[Callee, ...]) -> CallResult:
        arrays, dimension = operands[: len(operands) // 2], config
        declared = result_shapes(shape, "a search")
        if not arrays or len(operands) % 2 or len(arrays) != len(declared) or not 0 <= dimension < arrays[0].ndim:
            raise EvaluationError(
                f"a search along dimension {dimension} needs as many arrays as initial values and results, but has "
                f"{len(operands)} operands and gives {shape}"
            )
        count = declared[0].dimensions[dimension] if dimension < declared[0].rank else 0
        if any(array.shape != arrays[0].shape for array in arrays) or count > arrays[0].shape[dimension]:
            raise EvaluationError(f"a search cannot find {shape} in arrays of dimensions {list(arrays[0].shape)}")
        rows = [np.ascontiguousarray(np.moveaxis(array, dimension, -1)) for array in arrays]
        order = _order(computations[0], rows, count)
        found = tuple(np.moveaxis(np.take_along_axis(row, order, -1), -1, dimension) for row in rows)
        return found if isinstance(shape, TupleShape) else found[0]


def _order(comparator: Callee, rows: Sequence[Array], count: int) -> Array:
    if len(comparator.computation.parameters) != 2 * len(rows):
        raise EvaluationError(
            f"the comparator {comparator.computation.name} of a search must take two elements of each of {len(rows)} "
            f"arrays, but takes {len(comparator.computation.parameters)}"
        )
    if rows[0].size == 0:
        return np.zeros((*rows[0].shape[:-1], count), np.int64)
    return first_indices(comparator, rows, count)
