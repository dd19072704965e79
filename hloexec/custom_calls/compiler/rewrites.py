"""Calls that XLA's own passes insert: halves of 64-bit numbers, dynamic shapes, and sliced transfers."""

from __future__ import annotations

from functools import partial

import numpy as np

from hloexec.custom_calls.registry import custom_call
from hloexec.dtypes import ELEMENT_TYPES
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, require
from hloexec.values import Array

_HALF_TYPES = ("s32", "u32")
_WHOLE_TYPES = ("s64", "u64")
_WORD_BITS = np.uint64(32)


def _of_type(shape: Shape, names: tuple[str, ...], what: str) -> ArrayShape:
    array = array_shape(shape, what)
    require(
        array.element_type.name in names,
        f"{what} must be {' or '.join(names)}, but has shape {array}; how a TPU splits floating-point numbers is not "
        f"public",
    )
    return array


def _require_integers(names: tuple[str, ...], instruction: Instruction) -> None:
    shape = instruction.shape
    if not isinstance(shape, ArrayShape) or shape.element_type.name not in names:
        raise UnsupportedError(f"its result is {shape}; how a TPU splits other numbers than integers is not public")


@custom_call("X64SplitLow", "X64SplitHigh", config=partial(_require_integers, _HALF_TYPES), is_reproducible=True)
class X64Split:
    """The lower or the higher 32 bits of 64-bit integers for processors without such integers.

    Source: XLA, X64 rewriting.
    """

    @staticmethod
    def infer(operand: Shape, *, shape: Shape) -> Shape:
        array = _of_type(operand, _WHOLE_TYPES, "the operand of a split")
        result = _of_type(shape, _HALF_TYPES, "the result of a split")
        return ArrayShape(result.element_type, array.dimensions, dynamic_dimensions=array.dynamic_dimensions)

    @staticmethod
    def evaluate(operand: Array, *, shape: ArrayShape, attributes: object) -> Array:
        words = operand.view(np.uint64)
        if getattr(attributes, "custom_call_target", "") == "X64SplitHigh":
            words = words >> _WORD_BITS
        return words.astype(np.uint32).view(shape.element_type.storage)


@custom_call("X64Combine", config=partial(_require_integers, _WHOLE_TYPES), is_reproducible=True)
class X64Combine:
    """The 64-bit integer of its lower and its higher 32 bits, in this order.

    Source: XLA, X64 rewriting.
    """

    @staticmethod
    def infer(low: Shape, high: Shape, *, shape: Shape) -> Shape:
        halves = [_of_type(half, _HALF_TYPES, "a half") for half in (low, high)]
        result = _of_type(shape, _WHOLE_TYPES, "the result of a combination")
        require(
            halves[0].dimensions == halves[1].dimensions,
            f"halves must have the same dimensions, but have shapes {halves[0]} and {halves[1]}",
        )
        return ArrayShape(result.element_type, halves[0].dimensions, dynamic_dimensions=halves[0].dynamic_dimensions)

    @staticmethod
    def evaluate(low: Array, high: Array, *, shape: ArrayShape) -> Array:
        words = low.view(np.uint32).astype(np.uint64) | high.view(np.uint32).astype(np.uint64) << _WORD_BITS
        return words.view(shape.element_type.storage)


@custom_call("PadToStatic", is_reproducible=True)
class PadToStatic:
    """(the array at its bound's size, the extent of each dimension …): elements beyond the extents are zero.

    Source: XLA, dynamic padder.
    """

    @staticmethod
    def infer(operand: Shape) -> Shape:
        array = array_shape(operand, "the operand of PadToStatic")
        extent = ArrayShape(ELEMENT_TYPES["s32"])
        return TupleShape((ArrayShape(array.element_type, array.dimensions), *(extent,) * array.rank))

    @staticmethod
    def evaluate(operand: Array, *, shape: TupleShape) -> tuple[Array, ...]:
        padded = array_shape(shape.elements[0], "the result of PadToStatic")
        result = np.zeros(padded.dimensions, operand.dtype)
        result[tuple(map(slice, operand.shape))] = operand
        return result, *(np.asarray(extent, np.int32) for extent in operand.shape)


@custom_call("SliceToDynamic", is_reproducible=True)
class SliceToDynamic:
    """The array cut to the extents that the other operands, one s32 per dimension, give.

    Source: XLA, dynamic padder.
    """

    @staticmethod
    def infer(operand: Shape, *extents: Shape, shape: Shape) -> Shape:
        array = array_shape(operand, "the operand of SliceToDynamic")
        result = array_shape(shape, "the result of SliceToDynamic")
        require(
            len(extents) == array.rank,
            f"SliceToDynamic of {array} must be given {array.rank} extents, but is given {len(extents)}",
        )
        for extent in extents:
            scalar = array_shape(extent, "an extent of SliceToDynamic")
            require(
                scalar.rank == 0 and scalar.element_type.name == "s32",
                f"an extent of SliceToDynamic must be s32[], but is {scalar}",
            )
        is_dynamic = result.dynamic_dimensions if result.rank == array.rank else ()
        return ArrayShape(array.element_type, array.dimensions, dynamic_dimensions=is_dynamic)

    @staticmethod
    def evaluate(operand: Array, *extents: Array) -> Array:
        sizes = [int(extent) for extent in extents]
        if any(not 0 <= size <= bound for size, bound in zip(sizes, operand.shape, strict=True)):
            raise EvaluationError(f"SliceToDynamic is given extents {sizes} of an array of {list(operand.shape)}")
        return operand[tuple(map(slice, sizes))]


@custom_call("ConcatBitcast", is_reproducible=True)
class ConcatBitcast:
    """The operands, which are neighbouring slices of one array in one dimension, as that array.

    TPU compilers fetch large arrays in slices. Source: XLA, memory space assignment.
    """

    @staticmethod
    def infer(*operands: Shape, shape: Shape) -> Shape:
        result = array_shape(shape, "the result of ConcatBitcast")
        parts = [array_shape(operand, f"operand {number} of ConcatBitcast") for number, operand in enumerate(operands)]
        _dimension([part.dimensions for part in parts], result)
        for part in parts:
            require(
                part.element_type is result.element_type,
                f"ConcatBitcast must keep the element type, but makes {result} of {part}",
            )
        return ArrayShape(result.element_type, result.dimensions)

    @staticmethod
    def evaluate(*operands: Array, shape: ArrayShape) -> Array:
        return np.concatenate(operands, _dimension([operand.shape for operand in operands], shape))


def _dimension(parts: list[tuple[int, ...]], result: ArrayShape) -> int:
    for dimension, size in enumerate(result.dimensions):
        others = (*result.dimensions[:dimension], *result.dimensions[dimension + 1 :])
        if all(len(part) == result.rank for part in parts) and (
            sum(part[dimension] for part in parts) == size
            and all((*part[:dimension], *part[dimension + 1 :]) == others for part in parts)
        ):
            return dimension
    raise ShapeError(f"slices of dimensions {[list(part) for part in parts]} do not make up {result} in one dimension")
