"""Sorts, prefix sums and searches for the largest.

Top-k search, exact or approximate.

CUB's device-wide sorts and prefix sums, to which XLA:GPU rewrites simple sorts and scans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Arrays
from hloexec.core.wording import natural_number
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.library_calls.configs import (
    CallResult,
    checked_attributes,
    checked_json,
    ffi_attributes,
    json_object,
    result_shapes,
    shapes_of,
    zeros_of,
)
from hloexec.ops.registry import Callee, Callees, custom_call
from hloexec.ops.relations import Relating
from hloexec.ops.sorting import TopK as Largest
from hloexec.ops.sorting import TopKAttributes, first_indices, relate_chosen

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
    def order(operand: Array, *, shape: TupleShape, computations: Callees) -> tuple[int, Array]:
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
    def evaluate(operand: Array, *, shape: TupleShape, computations: Callees) -> tuple[Array, Array]:
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

    supports = staticmethod(lambda call: None if _comparators(call) == 1 else "it must call one comparator")

    @staticmethod
    def evaluate(*operands: Array, config: int, shape: Shape, computations: Callees) -> CallResult:
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
        results = tuple(np.moveaxis(np.take_along_axis(row, order, -1), -1, dimension) for row in rows)
        return results if isinstance(shape, TupleShape) else results[0]


def _order(comparator: Callee, rows: Sequence[Array], count: int) -> Array:
    if len(comparator.computation.parameters) != 2 * len(rows):
        raise EvaluationError(
            f"the comparator {comparator.computation.name} of a search must take two elements of each of {len(rows)} "
            f"arrays, but takes {len(comparator.computation.parameters)}"
        )
    if rows[0].size == 0:
        return np.zeros((*rows[0].shape[:-1], count), np.int64)
    return first_indices(comparator, rows, count)


_FLOATS = ("bf16", "f16", "f32", "f64")
_INTEGERS = ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")


@frozen
class _SortOptions:
    descending: bool = False
    batch_size: int | None = None


@frozen
class _ScanOptions:
    kind: int | str
    row_length: int = 0
    vector_length: int = 0
    column_length: int = 0
    is_reverse: bool = False


def _sort_options(instruction: Instruction) -> _SortOptions:
    """XLA's SortOptions as JSON, or the typed call's attributes."""
    if _is_json(instruction.backend_config):
        return _SortOptions(**checked_json(instruction.backend_config, {"descending": _is_flag}))
    permitted = {"descending": _is_flag, "batch_size": _is_count}
    return _SortOptions(**checked_attributes(instruction.backend_config, permitted))


def _scan_options(instruction: Instruction) -> _ScanOptions:
    """XLA's CubScanOptions as JSON, or the typed call's attributes."""
    lengths: dict[str, Callable[[Any], bool]] = dict.fromkeys(
        ("vector_length", "row_length", "column_length"), _is_count
    )
    permitted = {**lengths, "kind": (1, "SUM").__contains__, "is_reverse": _is_flag}
    if not _is_json(instruction.backend_config):
        return _ScanOptions(**checked_attributes(instruction.backend_config, permitted))
    options = checked_json(instruction.backend_config, permitted)
    if "kind" not in options:
        raise UnsupportedError("its backend_config lacks the kind of scan")
    return _ScanOptions(**options | {name: int(options.get(name, 0)) for name in lengths})


def _is_json(backend_config: str | None) -> bool:
    return "=" not in (backend_config or "=")


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    """A whole number, which protocol buffers write as a string where it has 64 bits."""
    return (type(value) is int and value >= 0) or (isinstance(value, str) and natural_number(value) is not None)


@custom_call(
    "__cub$DeviceRadixSort",
    "__cub$DeviceRadixSortUnassignedScratchSize",
    "xla.gpu.ext.cub_sort_keys",
    "xla.gpu.ext.cub_sort_pairs",
    "xla.gpu.ext.cub_sort_unassigned_scratch_size",
    config=_sort_options,
    is_reproducible=True,
)
class RadixSort:
    """(keys, scratch), or (keys, values, scratch): the last dimension sorted by the keys, equal keys in their order.

    Keys are integers or bf16, f16, f32, f64; values of any type and the keys' dimensions. Floats go by their bits:
    −NaN, −∞, …, −0 and +0, which are equal, …, ∞, NaN. `descending` turns the order of the keys around, not that of
    equal ones. Source: CUB, cub::DeviceRadixSort, cub::DeviceSegmentedRadixSort; XLA, sort_rewriter.
    """

    @staticmethod
    def infer(keys: Shape, *values: Shape, config: _SortOptions, shape: Shape) -> Shape:
        array = array_shape(keys, "the keys of a radix sort")
        require(
            array.element_type.name in (*_FLOATS, *_INTEGERS) and array.rank > 0,
            f"the keys of a radix sort must be integers of at least 8 bits or {', '.join(_FLOATS)}, but are {array}",
        )
        require(len(values) <= 1, f"a radix sort takes keys and perhaps values, but has {1 + len(values)} operands")
        parts = [array, *(array_shape(value, "the values of a radix sort") for value in values)]
        for part in parts:
            require(part.dimensions == array.dimensions, f"keys {array} cannot sort values {part}")
        require(
            config.batch_size in (None, prod(array.dimensions[:-1])),
            f"the backend_config of the radix sort has batch_size {config.batch_size}, but its keys are {array}",
        )
        return TupleShape((*(part.plain for part in parts), _scratch(shape, len(parts))))

    @staticmethod
    def evaluate(keys: Array, *values: Array, config: _SortOptions, shape: TupleShape) -> Arrays:
        RadixSort.infer(*shapes_of([keys, *values]), config=config, shape=shape)
        order = _order_keys(keys)
        if config.descending:
            order = ~order
        places = np.argsort(order, axis=-1, kind="stable")
        return (*(np.take_along_axis(part, places, -1) for part in (keys, *values)), zeros_of(shape.elements[-1]))


def _order_keys(keys: Array) -> Array:
    """Integers that are ordered as CUB orders the keys."""
    if keys.dtype.kind in "iu":
        return keys
    bits = keys.view(f"i{keys.dtype.itemsize}")
    limits = np.iinfo(bits.dtype)
    bits = np.where(bits == limits.min, bits.dtype.type(0), bits)
    return np.where(bits < 0, bits ^ bits.dtype.type(limits.max), bits)


@custom_call("xla.gpu.ext.cub_scan", "xla.gpu.ext.cub_scan_unassigned_scratch_size", config=_scan_options)
class PrefixSum:
    """(sums, scratch): sums[i] = operand[0] + … + operand[i] (is_reverse: operand[i] + … + operand[n − 1]) along a row.

    In memory the operand is [column_length, row_length, vector_length]; rows are summed. Any integer or floating-point
    type; in f32 for narrower floats, rounded once. Source: CUB, cub::DeviceScan::InclusiveSum; XLA, scan_rewriter.
    """

    @staticmethod
    def infer(operand: Shape, *, config: _ScanOptions, shape: Shape) -> Shape:
        array = array_shape(operand, "the operand of a prefix sum")
        lengths = (config.column_length, config.row_length, config.vector_length)
        require(
            array.element_type.name in (*_FLOATS, *_INTEGERS),
            f"a prefix sum is of integers or {', '.join(_FLOATS)}, but is given {array}",
        )
        require(
            prod(lengths) == array.element_count,
            f"the backend_config of the prefix sum says {lengths[0]} × {lengths[1]} × {lengths[2]} elements, but the "
            f"operand is {array}",
        )
        return TupleShape((array.plain, _scratch(shape, 1)))

    @staticmethod
    def evaluate(
        operand: Array, *, config: _ScanOptions, shape: TupleShape, operand_shapes: tuple[Shape, ...]
    ) -> Arrays:
        PrefixSum.infer(*shapes_of([operand]), config=config, shape=shape)
        declared = array_shape(operand_shapes[0], "the operand of a prefix sum")
        minor_to_major = declared.layout.minor_to_major if declared.layout else ()
        major_to_minor = minor_to_major[::-1] or tuple(range(declared.rank))
        in_memory = operand.transpose(major_to_minor)
        rows = in_memory.reshape(config.column_length, config.row_length, config.vector_length)
        step = -1 if config.is_reverse else 1
        wide = widen(rows[:, ::step])
        sums = narrow(np.cumsum(wide, axis=1, dtype=wide.dtype), declared.element_type)[:, ::step]
        return sums.reshape(in_memory.shape).transpose(np.argsort(major_to_minor)), zeros_of(shape.elements[-1])


def _scratch(shape: Shape, results: int) -> ArrayShape:
    parts = parts_of(shape)
    require(
        len(parts) == results + 1,
        f"there must be {results + 1} results, the last of them scratch memory, but {shape} is declared",
    )
    scratch = array_shape(parts[-1], "scratch memory")
    require(
        scratch.element_type is ELEMENT_TYPES["u8"] and scratch.rank == 1,
        f"scratch memory must be a vector of u8, but is {scratch}",
    )
    return scratch.plain
