"""CUB's device-wide sorts and prefix sums, to which XLA:GPU rewrites simple sorts and scans."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.core.wording import natural_number
from hloexec.errors import UnsupportedError
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.library_calls.backend_config import checked_json
from hloexec.ops.library_calls.ffi import checked_attributes
from hloexec.ops.library_calls.shapes import shapes_of, zeros_of
from hloexec.ops.registry import custom_call

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
    found = checked_json(instruction.backend_config, permitted)
    if "kind" not in found:
        raise UnsupportedError("its backend_config lacks the kind of scan")
    return _ScanOptions(**found | {name: int(found.get(name, 0)) for name in lengths})


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
        return TupleShape(
            (*(ArrayShape(part.element_type, part.dimensions) for part in parts), _scratch(shape, len(parts)))
        )

    @staticmethod
    def evaluate(keys: Array, *values: Array, config: _SortOptions, shape: TupleShape) -> tuple[Array, ...]:
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
        return TupleShape((ArrayShape(array.element_type, array.dimensions), _scratch(shape, 1)))

    @staticmethod
    def evaluate(
        operand: Array, *, config: _ScanOptions, shape: TupleShape, operand_shapes: tuple[Shape, ...]
    ) -> tuple[Array, ...]:
        PrefixSum.infer(*shapes_of([operand]), config=config, shape=shape)
        declared = array_shape(operand_shapes[0], "the operand of a prefix sum")
        minor_to_major = declared.layout.minor_to_major if declared.layout else ()
        major_to_minor = minor_to_major[::-1] or tuple(range(declared.rank))
        in_memory = operand.transpose(major_to_minor)
        rows = in_memory.reshape(config.column_length, config.row_length, config.vector_length)
        step = -1 if config.is_reverse else 1
        wide = widen(rows[:, ::step])
        with np.errstate(all="ignore"):
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
    return ArrayShape(scratch.element_type, scratch.dimensions)
