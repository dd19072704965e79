"""Operations of the dialect tpu that move the elements of vectors, or choose among them.

Packed vectors are those of the instruction set: along the second minor dimension, k narrow rows are one row of words,
the first in the lowest bits. Layouts of registers change no value: relayouts and assumptions give their operands.
Source: JAX, tpu dialect (its operations' documentation) and Pallas' primitives for TPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.common import widen
from hloexec.ops.elementwise.selection import convert
from hloexec.ops.library_calls.mosaic.bridging import bitcast_rows, bits_as, flushing
from hloexec.ops.library_calls.mosaic.ir import Operation, Text, parse_type
from hloexec.ops.library_calls.mosaic.registry import Kernel, Scope, operation


@operation(
    "tpu.assume_multiple",
    "tpu.assume_layout",
    "tpu.relayout",
    "tpu.erase_memref_layout",
    "tpu.mask_cast",
    "builtin.unrealized_conversion_cast",
    "memref.cast",
)
def bind_forward(operation: Operation, scope: Scope) -> Kernel:
    """The operand: what is promised of it, or how registers or memory hold it, changes no value."""
    return lambda value: value


@operation("tpu.concatenate")
def bind_concatenate(operation: Operation, scope: Scope) -> Kernel:
    """The operands one behind the other along `dimension`."""
    dimension = operation.attributes["dimension"]
    return lambda *values: np.concatenate(values, dimension)


@operation("tpu.repeat")
def bind_repeat(operation: Operation, scope: Scope) -> Kernel:
    """The operand `times` times, one copy behind the other, along `dimension`."""
    dimension, times = operation.attributes["dimension"], operation.attributes["times"]
    return lambda value: np.concatenate([value] * times, dimension)


@operation("tpu.iota")
def bind_iota(operation: Operation, scope: Scope) -> Kernel:
    """0, 1, 2… along `dimensions`, as if these were one dimension, the last of them the fastest."""
    result = operation.result_type
    number = np.zeros(result.dimensions, np.int64)
    for dimension in operation.attributes["dimensions"]:
        size = result.dimensions[dimension]
        place = np.arange(size).reshape([size if axis == dimension else 1 for axis in range(number.ndim)])
        number = number * size + place
    iota = convert(number, result.element_type)
    return lambda: iota


@operation("tpu.dynamic_rotate", "tpu.rotate")
def bind_rotate(operation: Operation, scope: Scope) -> Kernel:
    """out[(i + amount) mod n] = in[i] along `dimension`; along `stride_dimension`, element j by `stride` * j more."""
    dimension = operation.attributes["dimension"]
    stride, along = operation.attributes.get("stride"), operation.attributes.get("stride_dimension")
    size = operation.result_type.dimensions[dimension]

    def compute(value: Array, *amounts: Any) -> Array:
        amount = int(amounts[0]) if amounts else operation.attributes["amount"]
        if stride is None or along is None:
            return np.roll(value, amount, dimension)
        places = np.indices(value.shape, sparse=True)
        source = (places[dimension] - amount - stride * places[along]) % size
        return np.take_along_axis(value, np.broadcast_to(source, value.shape), dimension)

    return compute


@operation("tpu.dynamic_gather")
def bind_dynamic_gather(operation: Operation, scope: Scope) -> Kernel:
    """out[i] = in[i with `dimensions`, as if they were one, at indices[i] modulo their size]."""
    dimensions = operation.attributes.get("dimensions", (operation.attributes.get("dimension"),))

    def compute(value: Array, indices: Array) -> Array:
        others = [axis for axis in range(value.ndim) if axis not in dimensions]
        merged = value.transpose((*others, *dimensions)).reshape(*(value.shape[axis] for axis in others), -1)
        places = np.indices(indices.shape, sparse=True)
        chosen = indices.astype(np.int64) % merged.shape[-1]
        return np.asarray(merged[(*(places[axis] for axis in others), chosen)])

    return compute


@operation("tpu.gather")
def bind_gather(operation: Operation, scope: Scope) -> Kernel:
    """The elements at `indices` along `dimension`."""
    indices, dimension = np.array(operation.attributes["indices"], np.intp), operation.attributes["dimension"]
    return lambda value: np.take(value, indices, dimension)


@operation("tpu.bitcast")
def bind_bitcast(operation: Operation, scope: Scope) -> Kernel:
    """The bits as another element type; where its width differs, rows of the second minor dimension are packed."""
    target = operation.result_type.element_type
    return lambda value: bitcast_rows(value, target)


_INDEX_REDUCTIONS = {"arg_max": np.argmax, "arg_min": np.argmin}


@operation("tpu.reduce_index")
def bind_reduce_index(operation: Operation, scope: Scope) -> Kernel:
    """The index of the greatest, or the least, element along `axis`: of the first of several, or of the first NaN."""
    axis, kind, result = operation.attributes["axis"], operation.word("kind"), operation.result_type
    if kind not in _INDEX_REDUCTIONS:
        raise UnsupportedError(f"its kernel has {operation.place} of kind {kind}")
    return lambda value: _INDEX_REDUCTIONS[kind](widen(value), axis).astype(result.element_type.storage)


@operation("tpu.all_reduce")
def bind_all_reduce(operation: Operation, scope: Scope) -> Kernel:
    """The sum, greatest, least or index along `dim`, in every element along it."""
    kind, axis = operation.word("kind"), operation.attributes["dim"]
    result = operation.result_type
    if kind in ("sum", "max", "min"):
        from hloexec.ops.reduction.reducers import KNOWN_REDUCERS, reduce_known

        reducer = KNOWN_REDUCERS[{"sum": "add", "max": "maximum", "min": "minimum"}[kind]]
        element = result.element_type
        neutral = np.asarray(reducer.identity(element.accumulate)).astype(element.storage)
        reduce: Any = lambda value: reduce_known(value, (axis,), neutral, reducer, element)  # noqa: E731
        reduce = flushing(reduce, "reduce", [element], scope.numerics)
    elif kind in _INDEX_REDUCTIONS:
        reduce = lambda value: _INDEX_REDUCTIONS[kind](widen(value), axis)  # noqa: E731
    else:
        raise UnsupportedError(f"its kernel has {operation.place} of kind {kind}")

    def compute(value: Array) -> Array:
        reduced = np.expand_dims(reduce(value), axis).astype(result.element_type.storage)
        return np.ascontiguousarray(np.broadcast_to(reduced, result.dimensions))

    return compute


def _named_type(operation: Operation, attribute: str) -> ElementType:
    value = operation.attributes[attribute]
    return parse_type(value.text if isinstance(value, Text) else str(value)).element_type


@operation("tpu.pack_elementwise")
def bind_pack_elementwise(operation: Operation, scope: Scope) -> Kernel:
    """Each word of the result holds one element of each source in `target_type`, that of the first in its lowest bits.

    Floats are rounded to nearest, integers keep their lowest bits.
    """
    target, result = _named_type(operation, "target_type"), operation.result_type
    word = ELEMENT_TYPES[f"u{result.bits}"]

    def compute(*values: Array) -> Array:
        packed = np.zeros(result.dimensions, word.storage)
        for place, value in enumerate(values):
            bits = bits_as(convert(value, target), ELEMENT_TYPES[f"u{target.bits}"]).astype(word.storage)
            packed |= bits << word.storage.type(place * target.bits)
        return packed.view(result.element_type.storage)

    return compute


@operation("tpu.unpack_elementwise")
def bind_unpack_elementwise(operation: Operation, scope: Scope) -> Kernel:
    """The element of `source_type` in the bits from `index` * its width on of each word, in the result's type."""
    source, result = _named_type(operation, "source_type"), operation.result_type
    shift, mask = operation.attributes["index"] * source.bits, (1 << source.bits) - 1
    word = ELEMENT_TYPES[f"u{operation.operand_types[0].bits}"].storage

    def compute(value: Array) -> Array:
        bits = (value.view(word) >> word.type(shift)) & word.type(mask)
        part = bits.astype(ELEMENT_TYPES[f"u{source.bits}"].storage)
        return convert(bits_as(part, source), result.element_type)

    return compute


@operation("tpu.create_mask")
def bind_create_mask(operation: Operation, scope: Scope) -> Kernel:
    """True where `low` <= i < `high` in all dimensions."""
    dimensions = operation.result_type.dimensions

    def compute(*bounds: Any) -> Array:
        mask = np.ones(dimensions, np.bool_)
        places = np.indices(dimensions, sparse=True)
        for place, low, high in zip(places, bounds[: len(dimensions)], bounds[len(dimensions) :], strict=True):
            mask &= (place >= low) & (place < high)
        return mask

    return compute
