"""Shared by the families of operations: widening and narrowing of element types, and common shape rules.

Arrays are stored in storage types and computed in compute types (see `hloexec.core.dtypes`). `widen` is exact; `narrow`
rounds, once, whatever type the value comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import or_
from typing import Any, TypeGuard

import numpy as np

from hloexec.core.dtypes import DType, ElementType, Kind, element_type_of
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.values import Array
from hloexec.core.wording import braced
from hloexec.errors import ShapeError


def require(condition: bool, message: str) -> None:
    """Raise ShapeError with `message` unless `condition` holds."""
    if not condition:
        raise ShapeError(message)


def array_shape(shape: Shape, what: str) -> ArrayShape:
    """`shape` where it is an array's, else ShapeError; `what` names the operand, e.g. `operand 0 of add`."""
    if isinstance(shape, ArrayShape) and shape.is_array:
        return shape
    raise ShapeError(f"{what} must be an array, but has shape {shape}")


def flags(shape: ArrayShape) -> tuple[bool, ...]:
    """One flag per dimension: whether it is dynamic."""
    return shape.dynamic_dimensions or (False,) * shape.rank


def shape_of(
    element_type: ElementType, dimensions: tuple[int, ...], dynamic_dimensions: tuple[bool, ...] = ()
) -> ArrayShape:
    """A shape without layout; flags that are all false are left out, as the IR wants it."""
    dynamic = dynamic_dimensions if any(dynamic_dimensions) else ()
    return ArrayShape(element_type, dimensions, dynamic_dimensions=dynamic)


def same_dimensions(first: ArrayShape, second: ArrayShape, what: str) -> ArrayShape:
    """The one shape of two operands that must have the same dimensions.

    A dimension is dynamic in the result where it is dynamic in either; a size that is unbounded on one side is that of
    the other. The element type is the first operand's. `what` names the operands, e.g. `the operands of add`.
    """
    if first.dimensions == second.dimensions and not (first.dynamic_dimensions or second.dynamic_dimensions):
        return ArrayShape(first.element_type, first.dimensions)
    compatible = first.rank == second.rank and all(
        ours == theirs or -1 in (ours, theirs) for ours, theirs in zip(first.dimensions, second.dimensions, strict=True)
    )
    require(compatible, f"{what} must have the same dimensions, but have shapes {first} and {second}")
    sizes = tuple(map(max, first.dimensions, second.dimensions))
    return shape_of(first.element_type, sizes, tuple(map(or_, flags(first), flags(second))))


def same_type_ignoring_float_width(first: ArrayShape, second: ArrayShape, what: str) -> ElementType:
    """The element type of two operands that must agree in it, widths of floats aside.

    Optimized modules mix float precisions, and XLA tolerates it; the one of `higher_precision` is returned then, and
    the declared shape has the last word.
    """
    ours, theirs = first.element_type, second.element_type
    if ours is theirs:
        return ours
    require(
        ours.is_floating and theirs.is_floating,
        f"{what} must have the same element type, but have shapes {first} and {second}",
    )
    return higher_precision(ours, theirs)


def higher_precision(first: ElementType, second: ElementType) -> ElementType:
    """The one of greater range, else of greater precision, else the wider, else the signed one.

    XLA: HigherPrecisionType.
    """
    return max(first, second, key=_precision)


def _precision(element_type: ElementType) -> tuple[bool, int, int, int, bool]:
    kind = element_type.kind
    exponent_bits = element_type.exponent_bits if element_type.is_floating else -1
    return kind is Kind.COMPLEX, exponent_bits, element_type.mantissa_bits, element_type.bits, kind is Kind.SIGNED


def require_distinct_dimensions(dimensions: tuple[int, ...], rank: int, what: str) -> None:
    """Raise ShapeError unless `dimensions` are different dimensions of an array of rank `rank`."""
    for dimension in dimensions:
        require(0 <= dimension < rank, f"{what} names dimension {dimension}, but the dimensions are 0 to {rank - 1}")
    require(len(set(dimensions)) == len(dimensions), f"{what} {braced(dimensions)} repeats a dimension")


def strided(array: Array, dimensions: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of an array's memory, from its first element on, that must not be written to."""
    if array.flags.c_contiguous and min(strides, default=0) >= 0:
        # NumPy's own function takes five times as long.
        view: Array = np.ndarray(dimensions, array.dtype, array, 0, strides)
        view.setflags(write=False)
        return view
    # NumPy makes such views by the name of a type, which types that it lacks do not survive.
    own = array.dtype.isbuiltin == 1
    raw = array if own else array.view(f"u{array.itemsize}")
    view = np.lib.stride_tricks.as_strided(raw, dimensions, strides, writeable=False)
    return view if own else view.view(array.dtype)


def widen(array: Array) -> Array:
    """The array in its element type's compute type, exactly; the array itself where storage and compute type agree."""
    entry = element_type_of(array.dtype)
    if entry.storage == entry.compute:
        return array
    if entry.is_floating and entry.name != "bf16":
        # Faster than NumPy's and ml_dtypes' conversions, those of bf16 aside.
        patterns = array.view(f"u{entry.storage.itemsize}")
        return np.asarray(values_of_patterns(entry).take(patterns, mode="clip"))
    return array.astype(entry.compute)


def is_inexact(value: object) -> TypeGuard[Array]:
    """Whether a leaf is an array of floats or complex numbers."""
    return isinstance(value, np.ndarray) and element_type_of(value.dtype).is_inexact


def wide(array: Array) -> Array:
    """The elements in a type that holds them exactly and subtracts well: f64, c128; integers and preds by `widen`."""
    entry = element_type_of(array.dtype)
    if entry.is_complex:
        return array.astype(np.complex128, copy=False)
    if not entry.is_floating:
        return widen(array)
    return (convertible(array) if entry.is_narrow else array).astype(np.float64, copy=False)


def convertible(array: Array) -> Array:
    """The array, or its elements in their compute type: whichever NumPy converts to f64 faster."""
    # bf16 needs no other type in between.
    return array if element_type_of(array.dtype).name == "bf16" else widen(array)


def narrow(array: Array, element_type: ElementType) -> Array:
    """The array in the storage type of `element_type`: floats rounded once (nearest, ties to even), integers wrapped.

    The array holds numbers of the same kind, in any NumPy type at least as wide as the compute type: floats may come as
    f64, sums of integers as int64. Overflowing floats become what the type has for it, as in XLA: inf, else NaN, else
    (f4e2m1fn) the largest number; that type turns NaN into −0.
    """
    if array.dtype == element_type.storage:
        return array
    with np.errstate(all="ignore"):
        return narrow_unchecked(array, element_type)


def in_type(array: Array, element_type: ElementType) -> Array:
    """The array in an element type that differs from its own, if it does, in the width of a float only."""
    return array if array.dtype == element_type.storage else narrow(widen(array), element_type)


def rounds_directly(dtype: DType, element_type: ElementType) -> bool:
    """Whether NumPy converts from a type to another as `narrow` does, so that it may write to an array that is there.

    That is so for integers, and for f32 to floats of 16 bits.
    """
    return dtype == element_type.compute and (not element_type.is_floating or element_type.bits == 16)


def narrow_into(array: Array, out: Array) -> None:
    """Fill an array with numbers of a type that it `rounds_directly` from."""
    converted_into(array, out)


def converted_into(array: Array, out: Array) -> None:
    """Fill an array with another of its shape, as NumPy converts one type to the other; what is repeated once."""
    if array.dtype != out.dtype and array.size > 1 and 0 in array.strides:
        # In plain integers, which NumPy repeats faster than types that are not its own.
        word = f"V{out.itemsize}" if out.itemsize > 8 else f"u{out.itemsize}"
        array, out = _without_repeats(array).astype(out.dtype).view(word), out.view(word)
    np.copyto(out, array, casting="unsafe")


def _without_repeats(array: Array) -> Array:
    """The first element along each dimension that repeats one."""
    return array[tuple([slice(1) if stride == 0 else slice(None) for stride in array.strides])]


def narrow_unchecked(array: Array, element_type: ElementType) -> Array:
    """`narrow` to another type, for callers that have NumPy's warnings off."""
    if element_type.is_floating:
        return _narrow_float(array, element_type)
    if element_type.is_integral and array.dtype != element_type.compute:
        array = array.astype(element_type.compute)
    return array.astype(element_type.storage, copy=False)


def _narrow_float(array: Array, element_type: ElementType) -> Array:
    storage = element_type.storage
    if element_type.bits >= 32 or storage == np.float16:
        return array.astype(storage)
    if array.dtype == np.float64:
        array = round_to_odd(array)
    if element_type.bits == 16:
        return array.astype(storage)
    # Eight bits are decided by the upper half of the f32 and whether the lower half is zero: rounded to odd, that half
    # (a bf16, eight significant bits) still has more than two bits beyond what the narrow type keeps.
    bits = array.astype(np.float32, copy=False).view(np.uint32)
    upper = (bits >> 16).astype(np.uint16)
    upper |= (bits & 0xFFFF) != 0
    return np.asarray(_bytes_of_bfloat16(element_type).take(upper, mode="clip")).view(storage)


def round_to_odd(array: Array) -> Array:
    """f64 → f32 such that rounding the result again to a type narrower than f32 equals rounding once.

    An inexact result takes the neighbour whose last bit is 1, which keeps the information on which side of a tie the
    value lies. Source: Boldo and Melquiond, "When double rounding is odd" (2005).
    """
    with np.errstate(all="ignore"):
        nearest = array.astype(np.float32)
    error = nearest.astype(np.float64)
    even = (nearest.view(np.int32) & 1) == 0
    wrong = np.flatnonzero((error != array) & even & ~np.isnan(nearest))
    if wrong.size:
        result = nearest.reshape(-1)
        exact = array.reshape(-1)[wrong]
        # One step in the bit pattern of a sign-magnitude number: up where the magnitude was rounded down.
        step = np.where(np.abs(error.reshape(-1)[wrong]) < np.abs(exact), 1, -1).astype(np.int32)
        result.view(np.int32)[wrong] += step
        nearest = result.reshape(array.shape)
    return nearest


@cache
def values_of_patterns(element_type: ElementType) -> Array:
    """The f32 value of each bit pattern of an 8- or 16-bit storage type."""
    itemsize = element_type.storage.itemsize
    with np.errstate(all="ignore"):
        table = np.arange(1 << 8 * itemsize, dtype=f"u{itemsize}").view(element_type.storage).astype(np.float32)
    table.setflags(write=False)
    return table


@cache
def _bytes_of_bfloat16(element_type: ElementType) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The pattern in an 8-bit storage type of each of the 65536 bf16 values, given by their patterns."""
    values = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    table = values.astype(element_type.storage).view(np.uint8)
    if not element_type.has_nan:
        table[np.isnan(values)] = 1 << (element_type.bits - 1)
    if element_type.mantissa_bits == 0:
        # ml_dtypes rounds every f32 above 2⁻¹²⁷ up to 2⁻¹²⁶ (XLA does, too); below 1.5·2⁻¹²⁷ the former is the nearer.
        table[0x41:0x60] = 0
    table.setflags(write=False)
    return table


Kinds = frozenset[Kind]

_WORDS = {
    Kind.PRED: "pred",
    Kind.SIGNED: "signed integers",
    Kind.UNSIGNED: "unsigned integers",
    Kind.FLOAT: "floating-point numbers",
    Kind.COMPLEX: "complex numbers",
}


def operands_shape(name: str, operands: tuple[Shape, ...], kinds: Kinds) -> ArrayShape:
    """The common shape of the operands of opcode `name`: same dimensions, and the same element type (of `kinds`).

    Floats may differ in width, as optimized modules have them; the result is then of the widest.
    """
    result = array_shape(operands[0], f"operand 0 of {name}")
    if result.element_type.kind not in kinds:
        expected = ", ".join(words for kind, words in _WORDS.items() if kind in kinds)
        raise ShapeError(f"operand 0 of {name} must be of {expected}, but has shape {result}")
    for index, operand in enumerate(operands[1:], 1):
        other = array_shape(operand, f"operand {index} of {name}")
        common = same_type_ignoring_float_width(result, other, f"the operands of {name}")
        result = same_dimensions(result, other, f"the operands of {name}").with_element_type(common)
    if result.layout is None:
        return result
    return ArrayShape(result.element_type, result.dimensions, dynamic_dimensions=result.dynamic_dimensions)


def elementwise_rule(
    name: str, kinds: Kinds, result: Callable[[ElementType], ElementType] | None
) -> Callable[..., ArrayShape]:
    """The shape rule of opcode `name`: the common shape of the operands, with the element type that `result` gives."""

    def infer(*shapes: Shape) -> ArrayShape:
        common = operands_shape(name, shapes, kinds)
        return common if result is None else common.with_element_type(result(common.element_type))

    return infer
