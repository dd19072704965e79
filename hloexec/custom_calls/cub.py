"""CUB's device-wide sorts and prefix sums, into which XLA:GPU turns sorts and scans of simple form."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import attrs
import numpy as np

from hloexec.custom_calls.backend_config import checked_json
from hloexec.custom_calls.ffi import checked_attributes
from hloexec.custom_calls.linalg.matrix_routines import parts_of, shapes_of, zeros_of
from hloexec.custom_calls.registry import custom_call
from hloexec.dtypes import ELEMENT_TYPES, ElementType
from hloexec.errors import UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.values import Array

__all__: list[str] = []

_FLOATS = ("bf16", "f16", "f32", "f64")
_INTEGERS = ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")
_SUM = (1, "SUM")


@attrs.frozen
class _SortOptions:
    descending: bool = False
    batch_size: int | None = None


@custom_call(
    "__cub$DeviceRadixSort",
    "__cub$DeviceRadixSortUnassignedScratchSize",
    "xla.gpu.ext.cub_sort_keys",
    "xla.gpu.ext.cub_sort_pairs",
    "xla.gpu.ext.cub_sort_unassigned_scratch_size",
    is_reproducible=True,
)
class RadixSort:
    """(keys, scratch), or (keys, values, scratch): the last dimension sorted by the keys, equal keys in their order.

    Keys are integers or bf16, f16, f32, f64; values of any type and the keys' dimensions. Floats go by their bits:
    −NaN, −∞, …, −0 and +0, which are equal, …, ∞, NaN. `descending` turns the order of the keys around, not that of
    equal ones. Source: CUB, cub::DeviceRadixSort, cub::DeviceSegmentedRadixSort; XLA, sort_rewriter.
    """

    @staticmethod
    def supports(instruction: Instruction) -> None:
        _sort_options(instruction.backend_config)

    @staticmethod
    def infer(keys: Shape, *values: Shape, backend_config: str | None, shape: Shape) -> Shape:
        array = array_shape(keys, "the keys of a radix sort")
        require(
            array.element_type.name in (*_FLOATS, *_INTEGERS) and array.rank > 0,
            f"the keys of a radix sort must be integers of at least 8 bits or {', '.join(_FLOATS)}, but are {array}",
        )
        require(len(values) <= 1, f"a radix sort takes keys and perhaps values, but has {1 + len(values)} operands")
        parts = [array, *(array_shape(value, "the values of a radix sort") for value in values)]
        for part in parts:
            require(part.dimensions == array.dimensions, f"keys {array} cannot sort values {part}")
        batch_size = _sort_options(backend_config).batch_size
        require(
            batch_size in (None, prod(array.dimensions[:-1])),
            f"the backend_config of the radix sort has batch_size {batch_size}, but its keys are {array}",
        )
        return TupleShape(
            (*(ArrayShape(part.element_type, part.dimensions) for part in parts), _scratch(shape, len(parts)))
        )

    @staticmethod
    def evaluate(keys: Array, *values: Array, backend_config: str | None, shape: TupleShape) -> tuple[Array, ...]:
        RadixSort.infer(*shapes_of([keys, *values]), backend_config=backend_config, shape=shape)
        order = _order_keys(keys)
        if _sort_options(backend_config).descending:
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


@attrs.frozen
class _ScanOptions:
    kind: int | str
    row_length: int = 0
    vector_length: int = 0
    column_length: int = 0
    is_reverse: bool = False


@custom_call("xla.gpu.ext.cub_scan", "xla.gpu.ext.cub_scan_unassigned_scratch_size")
class PrefixSum:
    """(sums, scratch): sums[i] = operand[0] + … + operand[i] (is_reverse: operand[i] + … + operand[n − 1]) along a row.

    In memory the operand is [column_length, row_length, vector_length]; rows are summed. Any integer or floating-point
    type; in f32 for narrower floats, rounded once. Source: CUB, cub::DeviceScan::InclusiveSum; XLA, scan_rewriter.
    """

    @staticmethod
    def supports(instruction: Instruction) -> None:
        _scan_options(instruction.backend_config)

    @staticmethod
    def infer(operand: Shape, *, backend_config: str | None, shape: Shape) -> Shape:
        array, options = array_shape(operand, "the operand of a prefix sum"), _scan_options(backend_config)
        lengths = (options.column_length, options.row_length, options.vector_length)
        require(
            array.element_type.name in (*_FLOATS, *_INTEGERS),
            f"a prefix sum is of integers or {', '.join(_FLOATS)}, but is given {array}",
        )
        require(
            prod(lengths) == array.element_count,
            f"the backend_config of the prefix sum says {lengths[0]} × {lengths[1]} × {lengths[2]} elements, but the "
            f"operand is {array}",
        )
        return TupleShape((ArrayShape(array.element_type, array.dimensions), _scratch(shape, 1)))

    @staticmethod
    def evaluate(
        operand: Array, *, backend_config: str | None, shape: TupleShape, operand_shapes: tuple[Shape, ...]
    ) -> tuple[Array, ...]:
        PrefixSum.infer(*shapes_of([operand]), backend_config=backend_config, shape=shape)
        options = _scan_options(backend_config)
        declared = array_shape(operand_shapes[0], "the operand of a prefix sum")
        minor_to_major = declared.layout.minor_to_major if declared.layout else ()
        major_to_minor = minor_to_major[::-1] or tuple(range(declared.rank))
        in_memory = operand.transpose(major_to_minor)
        rows = in_memory.reshape(options.column_length, options.row_length, options.vector_length)
        step = -1 if options.is_reverse else 1
        sums = _sums(rows[:, ::step], declared.element_type)[:, ::step]
        return sums.reshape(in_memory.shape).transpose(np.argsort(major_to_minor)), zeros_of(shape.elements[-1])


def _sums(rows: Array, element_type: ElementType) -> Array:
    with np.errstate(all="ignore"):
        if element_type.is_floating:
            return narrow(np.cumsum(widen(rows), axis=1), element_type)
        return np.cumsum(rows, axis=1, dtype=rows.dtype)


def _sort_options(backend_config: str | None) -> _SortOptions:
    """XLA's SortOptions as JSON, or the typed call's attributes."""
    if _is_json(backend_config):
        return _SortOptions(**checked_json(backend_config, {"descending": _is_flag}))
    found = checked_attributes(backend_config, {"descending": _is_flag, "batch_size": _is_count})
    return _SortOptions(**found)  # type: ignore[arg-type]


def _scan_options(backend_config: str | None) -> _ScanOptions:
    """XLA's CubScanOptions as JSON, or the typed call's attributes."""
    lengths: dict[str, Callable[[Any], bool]] = dict.fromkeys(
        ("vector_length", "row_length", "column_length"), _is_count
    )
    permitted = {**lengths, "kind": _SUM.__contains__, "is_reverse": _is_flag}
    if not _is_json(backend_config):
        return _ScanOptions(**checked_attributes(backend_config, permitted))  # type: ignore[arg-type]
    found = checked_json(backend_config, permitted)
    if "kind" not in found:
        raise UnsupportedError("its backend_config lacks the kind of scan")
    return _ScanOptions(**found | {name: int(found.get(name, 0)) for name in lengths})


def _is_json(backend_config: str | None) -> bool:
    return "=" not in (backend_config or "=")


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    """A whole number, which protocol buffers write as a string where it has 64 bits."""
    return (type(value) is int and value >= 0) or (isinstance(value, str) and value.isdecimal())


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
    return ArrayShape(scratch.element_type, scratch.dimensions)
