"""Calls that XLA's own passes insert: halves of 64-bit numbers, dynamic shapes, and sliced transfers."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, require
from hloexec.ops.registry import custom_call

_HALF_TYPES = {"s32": ("s64", "u64"), "u32": ("s64", "u64"), "f32": ("f64", "c64"), "f64": ("c128",)}
"""Of halves, the types of what they may be halves of; and the other way round."""
_WHOLE_TYPES = {"s64": ("s32", "u32"), "u64": ("s32", "u32"), "f64": ("f32",), "c64": ("f32",), "c128": ("f64",)}
_SPLITS = ("X64SplitLow", "X128SplitLow", "X64SplitHigh", "X128SplitHigh")
_WORD_BITS = np.uint64(32)


def _of_type(shape: Shape, names: Collection[str], what: str) -> ArrayShape:
    array = array_shape(shape, what)
    require(array.element_type.name in names, f"{what} must be {' or '.join(names)}, but has shape {array}")
    return array


def _require_known(names: Collection[str], instruction: Instruction) -> None:
    shape = instruction.shape
    if not isinstance(shape, ArrayShape) or shape.element_type.name not in names:
        raise UnsupportedError(f"its result is {shape}, but must be {' or '.join(names)}")


@custom_call(*_SPLITS, config=partial(_require_known, _HALF_TYPES), is_reproducible=True)
class X64Split:
    """Halves of numbers of 64 and 128 bits, for processors without such numbers.

    Of integers, the lower or the higher 32 bits; of f64, the nearest f32 (low) or the f32 nearest to what that leaves,
    0 where it is not finite (high); of complex numbers, the real (low) or the imaginary parts (high).
    Source: XLA, X64 rewriting; for floats, XLA, SplitF64ToF32, and modules optimized for TPUs.
    """

    @staticmethod
    def infer(operand: Shape, *, shape: Shape) -> Shape:
        result = _of_type(shape, _HALF_TYPES, "the result of a split")
        array = _of_type(operand, _HALF_TYPES[result.element_type.name], "the operand of a split")
        return ArrayShape(result.element_type, array.dimensions, dynamic_dimensions=array.dynamic_dimensions)

    @staticmethod
    def evaluate(operand: Array, *, shape: ArrayShape, attributes: object) -> Array:
        is_high = getattr(attributes, "custom_call_target", "") in _SPLITS[2:]
        if operand.dtype.kind == "c":
            return np.ascontiguousarray(operand.imag if is_high else operand.real)
        if operand.dtype.kind == "f":
            nearest = operand.astype(np.float32)
            return np.where(np.isfinite(nearest), operand - nearest, 0).astype(np.float32) if is_high else nearest
        words = operand.view(np.uint64)
        if is_high:
            words = words >> _WORD_BITS
        return words.astype(np.uint32).view(shape.element_type.storage)


@custom_call("X64Combine", "X128Combine", config=partial(_require_known, _WHOLE_TYPES), is_reproducible=True)
class X64Combine:
    """The 64-bit integer of its lower and its higher 32 bits, in this order; the f64 that is the sum of two f32; the
    complex number of its real and its imaginary part.

    Source: XLA, X64 rewriting; for floats, modules optimized for TPUs.
    """

    @staticmethod
    def infer(low: Shape, high: Shape, *, shape: Shape) -> Shape:
        result = _of_type(shape, _WHOLE_TYPES, "the result of a combination")
        halves = [_of_type(half, _WHOLE_TYPES[result.element_type.name], "a half") for half in (low, high)]
        require(
            halves[0].dimensions == halves[1].dimensions,
            f"halves must have the same dimensions, but have shapes {halves[0]} and {halves[1]}",
        )
        return ArrayShape(result.element_type, halves[0].dimensions, dynamic_dimensions=halves[0].dynamic_dimensions)

    @staticmethod
    def evaluate(low: Array, high: Array, *, shape: ArrayShape) -> Array:
        storage = shape.element_type.storage
        if storage.kind == "c":
            return np.ascontiguousarray(np.stack([low, high], -1)).view(storage)[..., 0]
        if storage.kind == "f":
            return low.astype(storage) + high
        words = low.view(np.uint32).astype(np.uint64) | high.view(np.uint32).astype(np.uint64) << _WORD_BITS
        return words.view(storage)


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
