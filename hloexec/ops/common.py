"""Shared by the families of operations: element types, complex parts, copies in row-major order, common shape rules.

Arrays are stored in storage types and computed in compute types (see `hloexec.core.dtypes`). `widen` is exact; `narrow`
rounds, once, whatever type the value comes from.

NumPy copies along the result's last dimension. If the source is stored in the opposite order, each of its cache lines
is read once per element, and has left the cache before its next element is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import accumulate
from math import gcd, prod
from operator import mul, or_
from typing import Any, TypeGuard

import numpy as np

from hloexec.core.dtypes import DType, ElementType, Kind, element_type_of
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.values import Array, Dimensions
from hloexec.core.wording import braced
from hloexec.errors import ShapeError
from hloexec.ops.resources import empty, in_blocks


def require(condition: bool, message: str) -> None:
    """Raise ShapeError with `message` unless `condition` holds."""
    if not condition:
        raise ShapeError(message)


def array_shape(shape: Shape, subject: str) -> ArrayShape:
    """`shape` where it is an array's, else ShapeError; `subject` names the operand, e.g. `operand 0 of add`."""
    if isinstance(shape, ArrayShape) and shape.is_array:
        return shape
    raise ShapeError(f"{subject} must be an array, but has shape {shape}")


def operand_shapes(operands: Sequence[Shape], subject: str, counts: Collection[int] = ()) -> list[ArrayShape]:
    """The arrays among operands; ShapeError where there are not as many as one of `counts`, if there are any."""
    if counts and len(operands) not in counts:
        raise ShapeError(f"{subject} must have {' or '.join(map(str, counts))} operands, but has {len(operands)}")
    return [array_shape(operand, f"operand {number} of {subject}") for number, operand in enumerate(operands)]


def flags(shape: ArrayShape) -> tuple[bool, ...]:
    """One flag per dimension: whether it is dynamic."""
    return shape.dynamic_dimensions or (False,) * shape.rank


def shape_of(
    element_type: ElementType, dimensions: Dimensions, dynamic_dimensions: tuple[bool, ...] = ()
) -> ArrayShape:
    """A shape without layout; flags that are all false are left out, as the IR wants it."""
    dynamic = dynamic_dimensions if any(dynamic_dimensions) else ()
    return ArrayShape(element_type, dimensions, dynamic_dimensions=dynamic)


def same_dimensions(first: ArrayShape, second: ArrayShape, subject: str) -> ArrayShape:
    """The one shape of two operands that must have the same dimensions.

    A dimension is dynamic in the result where it is dynamic in either; a size that is unbounded on one side is that of
    the other. The element type is the first operand's. `subject` names the operands, e.g. `the operands of add`.
    """
    if first.dimensions == second.dimensions and not (first.dynamic_dimensions or second.dynamic_dimensions):
        return first.plain
    compatible = first.rank == second.rank and all(
        ours == theirs or -1 in (ours, theirs) for ours, theirs in zip(first.dimensions, second.dimensions, strict=True)
    )
    require(compatible, f"{subject} must have the same dimensions, but have shapes {first} and {second}")
    sizes = tuple(map(max, first.dimensions, second.dimensions))
    return shape_of(first.element_type, sizes, tuple(map(or_, flags(first), flags(second))))


def same_type_ignoring_float_width(first: ArrayShape, second: ArrayShape, subject: str) -> ElementType:
    """The element type of two operands that must agree in it, widths of floats aside.

    Optimized modules mix float precisions, and XLA tolerates it; the one of `higher_precision` is returned then, and
    the declared shape has the last word.
    """
    ours, theirs = first.element_type, second.element_type
    if ours is theirs:
        return ours
    require(
        ours.is_floating and theirs.is_floating,
        f"{subject} must have the same element type, but have shapes {first} and {second}",
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


def require_distinct_dimensions(dimensions: Dimensions, rank: int, subject: str) -> None:
    """Raise ShapeError unless `dimensions` are different dimensions of an array of rank `rank`."""
    for dimension in dimensions:
        require(0 <= dimension < rank, f"{subject} names dimension {dimension}, but the dimensions are 0 to {rank - 1}")
    require(len(set(dimensions)) == len(dimensions), f"{subject} {braced(dimensions)} repeats a dimension")


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
        first = array[tuple([slice(1) if stride == 0 else slice(None) for stride in array.strides])]
        array, out = first.astype(out.dtype).view(word), out.view(word)
    np.copyto(out, array, casting="unsafe")


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


def from_parts(real: Array, imag: Array) -> Array:
    """real + i imag, of f32 or f64 parts."""
    result = empty(np.broadcast_shapes(real.shape, imag.shape), np.complex128 if real.itemsize == 8 else np.complex64)
    result.real = real
    result.imag = imag
    return result


def with_infinities(quotient: Array, lhs: Array, rhs: Array) -> Array:
    """A quotient of c128 numbers with infinities recovered from NaN, in place (C99, G.5.1)."""
    doubtful = np.isnan(quotient.real) | np.isnan(quotient.imag)
    if not doubtful.any():
        return quotient
    # Either may be one number, for all.
    lhs, rhs = (np.broadcast_to(operand, quotient.shape)[doubtful] for operand in (lhs, rhs))
    a, b, c, d = lhs.real, lhs.imag, rhs.real, rhs.imag
    lhs_infinite, rhs_infinite = np.isinf(a) | np.isinf(b), np.isinf(c) | np.isinf(d)
    lhs_finite, rhs_finite = np.isfinite(a) & np.isfinite(b), np.isfinite(c) & np.isfinite(d)
    zero = (c == 0) & (d == 0)
    infinity = np.copysign(np.inf, c)
    over_zero = from_parts(infinity * a, infinity * b)
    repaired = quotient[doubtful]
    both_nan = np.isnan(repaired.real) & np.isnan(repaired.imag)
    for where, left, right, scale in (
        (both_nan & lhs_infinite & rhs_finite, _unit_box(a, b), (c, d), np.inf),
        (both_nan & lhs_finite & rhs_infinite, (a, b), _unit_box(c, d), 0.0),
    ):
        (p, q), (r, s) = left, right
        repaired = np.where(where, from_parts(scale * (p * r + q * s), scale * (q * r - p * s)), repaired)
    quotient[doubtful] = np.where(zero, over_zero, repaired)
    return quotient


def _unit_box(real: Array, imag: Array) -> tuple[Array, Array]:
    """An infinite number as the corner or side of the unit box in its direction."""
    return (
        np.copysign(np.where(np.isinf(real), 1.0, 0.0), real),
        np.copysign(np.where(np.isinf(imag), 1.0, 0.0), imag),
    )


_LITTLE_BYTES = 1 << 12
"""Arrays of so few bytes take less time to copy than to look at."""
_SMALLEST_COLUMN = 256
"""Shorter ones are not worth a call each."""
_LINE = 64
"""Bytes of a cache line."""
_CACHE_WAYS, _CACHE_SPAN = 16, 1 << 16
"""The associativity of a second-level cache, and the distance in bytes of addresses in the same set."""
_TRANSLATED_PAGES, _PAGE = 2048, 4096
"""How many pages a processor's TLB holds, and the bytes of one."""
_FEW_SETS_STRIDE, _FEW_SETS_LINES = 1024, 32
"""Strides that are multiples of this one meet four sets of a first-level cache, which hold so many lines."""
_THREAD_ELEMENTS = 1 << 18
"""Number of elements worth another thread."""
_FILLED_ELEMENTS = 1 << 20
"""Number of equal elements worth another thread."""
_ZEROED_BYTES = 1 << 26
"""Larger blocks of zeros are left to the operating system, which allocates zero pages lazily: many may never be
read."""


def row_major(array: Array) -> Array:
    """A new array in row-major order with the same elements."""
    if array.nbytes <= _LITTLE_BYTES:
        return array.copy()
    if array.size and not any(array.strides):
        return filled(array.shape, array[(0,) * array.ndim])
    result = empty(array.shape, array.dtype)
    copy_into(result, array)
    return result


def copy_into(result: Array, array: Array) -> None:
    """Fill an array in row-major order with the elements of another of its shape and type."""
    merged = _merged(array)
    source = as_integers(merged)
    target = as_integers(result).reshape(merged.shape)
    if not _is_turned(merged):
        np.copyto(target, source)
        return
    row = merged.shape[-1]
    # As many elements of a row as fill a cache line: then as many lines of the source are read side by side, each to
    # its end.
    step = max(4, min(16, _LINE // merged.itemsize))

    def copy(start: int, stop: int) -> None:
        for first in range(start, stop, step):
            columns = slice(first, min(first + step, stop))
            target[..., columns] = source[..., columns]

    in_blocks(copy, row, max(step, _THREAD_ELEMENTS * row // merged.size // step * step))


def as_integers(array: Array) -> Array:
    """The bits of the elements, as far as there are such integers: NumPy moves them faster than types not its own."""
    return array.view(f"u{array.itemsize}") if array.itemsize <= 8 else array


def lies_in_order(array: Array) -> bool:
    """Whether the dimensions lie in memory from major to minor, forwards; steps of 0 may stand anywhere.

    Values that come from outside are made to: NumPy's functions round otherwise on memory that they go through
    backwards.
    """
    last = None
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0 or (size > 1 and stride and last is not None and stride >= last):
            return False
        if size > 1 and stride:
            last = stride
    return True


def in_order(array: Array, order: Sequence[int] | None = None) -> Array:
    """The array, if its elements lie in memory in this order of dimensions (None: as they stand) without gaps; a copy
    in which they do otherwise.

    What depends on the order of memory, as sums and products do, takes operands through here, so that it depends on
    the order that is asked for and not on how an operand came to be.
    """
    if order is None and array.flags.c_contiguous and 1 not in array.shape:
        return array
    transposed = array if order is None else array.transpose(order)
    if not transposed.flags.c_contiguous:
        transposed = row_major(transposed)
    elif 1 not in array.shape:
        return array
    else:
        # The strides of dimensions of one element may be anything, and some forms of kernels go by strides.
        transposed = transposed.reshape(-1).reshape(transposed.shape)
    return transposed if order is None else transposed.transpose([order.index(axis) for axis in range(array.ndim)])


def filled(sizes: Dimensions, value: Array) -> Array:
    """A new array that holds a scalar everywhere."""
    value = np.asarray(value)
    nbytes = prod(sizes) * value.itemsize
    if nbytes > _ZEROED_BYTES and not any(value.tobytes()):
        return np.zeros(sizes, value.dtype)
    result = empty(sizes, value.dtype)
    if nbytes <= _LITTLE_BYTES:
        result.fill(value)
        return result
    flat = result.reshape(-1)
    in_blocks(lambda start, stop: flat[start:stop].fill(value), flat.size, _FILLED_ELEMENTS)
    return result


def reshaped(array: Array, sizes: Dimensions) -> Array:
    """The elements in row-major order in other dimensions: a view where strides allow one."""
    if not array.flags.c_contiguous and array.size:
        merged = _merged(array)
        # A result dimension that reaches across two that do not follow one another in memory needs a copy.
        if _is_turned(merged) and not set(accumulate(merged.shape, mul)) <= set(accumulate(sizes, mul)):
            array = row_major(array)
    return array.reshape(sizes)


def _is_turned(merged: Array) -> bool:
    """Whether NumPy, copying row by row, would find nothing in the cache that it read for the row before."""
    row = merged.shape[-1] if merged.ndim > 1 else 0
    if merged.itemsize > 8 or row < 2 or merged.size // row < _SMALLEST_COLUMN:
        return False
    stride = abs(merged.strides[-1])
    if all(abs(other) >= stride or other == 0 for other in merged.strides[:-1]):
        return False
    held = _CACHE_WAYS * (_CACHE_SPAN // max(_LINE, gcd(stride, _CACHE_SPAN)))
    meets_few_sets = row > _FEW_SETS_LINES and stride % _FEW_SETS_STRIDE == 0
    return meets_few_sets or row > held or (stride >= _PAGE and row > _TRANSLATED_PAGES)


def _merged(array: Array) -> Array:
    """A view in as few dimensions as strides allow, none of size 1."""
    sizes: list[int] = []
    last_stride = 0
    for size, stride in zip(array.shape, array.strides, strict=True):
        if size == 1:
            continue
        if sizes and stride * size == last_stride:
            sizes[-1] *= size
        else:
            sizes.append(size)
        last_stride = stride
    return array.reshape(sizes) if array.size else array


def stable_order(keys: list[Array], count: int | None = None) -> Array:
    """The indices along the last axis that sort by the keys, the first key being the most significant.

    With `count`, only that many indices, of the first elements in the order. The list is emptied, so that a key can be
    freed as soon as it is not needed.
    """
    order = stable_argsort(keys.pop(), None if keys else count)
    while keys:
        order = np.take_along_axis(order, stable_argsort(np.take_along_axis(keys.pop(), order, -1)), -1)
    return order[..., :count]


_LEAST_BY_DIGITS = 1 << 8
_INDEX_BLOCK = 1 << 15


def stable_argsort(key: Array, count: int | None = None) -> Array:
    """The indices along the last axis that sort integers, the first `count` of them.

    Where there is room, key and index are sorted as one number: vectorised, and stable since no two are equal.
    """
    length = key.shape[-1]
    if count is not None and 0 < count < length // 8:
        return _first_of_few(key, count)
    index_bits = max(length - 1, 1).bit_length()
    low, high = (int(key.min()), int(key.max())) if key.size else (0, 0)
    if (high - low).bit_length() + index_bits > 64:
        return np.argsort(key, axis=-1, kind="stable")[..., :count]
    if length >= _LEAST_BY_DIGITS and 0 <= high - low < 1 << 16:
        # NumPy sorts two bytes digit by digit.
        digits = (key - np.array(low, key.dtype)).astype(np.uint16)
        return np.argsort(digits, axis=-1, kind="stable")[..., :count]
    # Differences of 64-bit numbers wrap, and wrap back when seen as unsigned.
    offset = np.array(low, key.dtype).astype(np.int64 if key.dtype.kind == "i" else np.uint64)
    packed = key.astype(offset.dtype)
    del key
    packed -= offset
    packed = packed.view(np.uint64)
    packed <<= np.uint64(index_bits)
    for start in range(0, length, _INDEX_BLOCK):
        stop = min(start + _INDEX_BLOCK, length)
        packed[..., start:stop] |= np.arange(start, stop, dtype=np.uint64)
    packed.sort(axis=-1)
    first = packed[..., :count]
    first &= np.uint64((1 << index_bits) - 1)
    return first.view(np.int64)


def _first_of_few(key: Array, count: int) -> Array:
    """`stable_argsort` of far fewer elements than there are: only those that are no larger than the last are sorted."""
    length = key.shape[-1]
    rows = key.reshape(-1, length)
    last = np.partition(rows, count - 1, axis=-1)[:, count - 1 : count]
    places = np.flatnonzero(rows <= last)
    order = stable_order([places // length, rows.reshape(-1)[places]])
    places = places[order]
    # Of equal elements there may be more than there is room for.
    first = np.searchsorted(places // length, np.arange(len(rows)))
    chosen: Array = places[first[:, None] + np.arange(count)] % length
    return chosen.reshape(*key.shape[:-1], count)
