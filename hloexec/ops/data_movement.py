"""Moving whole arrays: broadcast, reshape, transpose, slice, concatenate, pad, reverse, iota, copy.

Every element of the result is an element of an operand, or a constant. Where strides can express the movement the
result is a view of the operand. Sizes come from the arrays themselves, not from declared shapes, so that a
bounded-dynamic operand (an array of its runtime extents) moves like any other. Source of the rules: XLA, "Operation
semantics".
"""

from __future__ import annotations

import attrs
import numpy as np

from hloexec.dtypes import ElementType
from hloexec.ir import ArrayShape, PaddingDimension, Shape, SliceDimension
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, narrow, require, same_type_ignoring_float_width, widen
from hloexec.ops.copying import filled, reshaped
from hloexec.ops.extents import flags, part, reshaped_extents, reshaped_flags, shape_of, with_zeros
from hloexec.ops.registry import opcode
from hloexec.values import Array

__all__ = [
    "BroadcastAttributes",
    "ConcatenateAttributes",
    "IotaAttributes",
    "PadAttributes",
    "ReshapeAttributes",
    "ReverseAttributes",
    "SliceAttributes",
    "TransposeAttributes",
    "in_type",
    "require_distinct_dimensions",
]


def in_type(array: Array, element_type: ElementType) -> Array:
    """The array in an element type that differs from its own, if it does, in the width of a float only."""
    return array if array.dtype == element_type.storage else narrow(widen(array), element_type)


def require_distinct_dimensions(dimensions: tuple[int, ...], rank: int, what: str) -> None:
    """Raise ShapeError unless `dimensions` are different dimensions of an array of rank `rank`."""
    for dimension in dimensions:
        require(0 <= dimension < rank, f"{what} names dimension {dimension}, but the dimensions are 0 to {rank - 1}")
    require(len(set(dimensions)) == len(dimensions), f"{what} {_braced(dimensions)} repeats a dimension")


@attrs.frozen
class BroadcastAttributes:
    """Operand dimension i becomes result dimension `dimensions[i]`; a scalar's may be left out."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST, default=(), always_printed=True)


@opcode("broadcast", operands=1, attributes=BroadcastAttributes, may_be_view=True)
class Broadcast:
    """out[i...] = operand[i[dimensions[0]], i[dimensions[1]], ...]   (XLA: Broadcast, the in-dimensions form)

    The result's dimensions that `dimensions` does not name are new, and of any size. `dimensions` need not be sorted:
    the operand is transposed by it then, as in XLA's evaluator.
    """

    @staticmethod
    def infer(operand: Shape, *, attributes: BroadcastAttributes, shape: Shape) -> ArrayShape:
        source = array_shape(operand, "the operand of broadcast")
        result = array_shape(shape, "the result of broadcast")
        dimensions = attributes.dimensions
        require(
            len(dimensions) == source.rank,
            f"broadcast's dimensions {_braced(dimensions)} must name one result dimension for each of the "
            f"{source.rank} dimensions of its operand {source}",
        )
        require_distinct_dimensions(dimensions, result.rank, "broadcast's dimensions")
        for axis, dimension in enumerate(dimensions):
            require(
                source.dimensions[axis] == result.dimensions[dimension],
                f"broadcast maps operand dimension {axis} to result dimension {dimension}, so they must be of one "
                f"size, but the operand is {source} and the result {result}",
            )
            require(
                flags(source)[axis] == flags(result)[dimension],
                f"broadcast maps operand dimension {axis} to result dimension {dimension}, so both must be dynamic or "
                f"neither, but the operand is {source} and the result {result}",
            )
        return shape_of(source.element_type, result.dimensions, flags(result))

    @staticmethod
    def evaluate(operand: Array, *, attributes: BroadcastAttributes, shape: ArrayShape) -> Array:
        dimensions = attributes.dimensions
        if not dimensions:
            return np.broadcast_to(operand, shape.dimensions)
        sizes = list(shape.dimensions)
        for axis, dimension in enumerate(dimensions):
            sizes[dimension] = operand.shape[axis]
        aligned = operand.transpose(sorted(range(operand.ndim), key=dimensions.__getitem__))
        fill = tuple(slice(None) if dimension in dimensions else None for dimension in range(len(sizes)))
        return np.broadcast_to(aligned[fill], sizes)


@attrs.frozen
class ReshapeAttributes:
    """`inferred_dimension` says which result dimension is dynamic where a dynamic operand dimension is split."""

    inferred_dimension: int | None = attribute(Grammar.INT, default=None)


@opcode("reshape", operands=1, attributes=ReshapeAttributes, may_be_view=True)
class Reshape:
    """The same elements in the same row-major order, in other dimensions   (XLA: Reshape)"""

    @staticmethod
    def infer(operand: Shape, *, attributes: ReshapeAttributes, shape: Shape) -> ArrayShape:
        source = array_shape(operand, "the operand of reshape")
        result = array_shape(shape, "the result of reshape")
        require(
            source.element_count == result.element_count,
            f"reshape must keep the number of elements, but the operand {source} has {source.element_count} and the "
            f"result {result} has {result.element_count}",
        )
        inferred = attributes.inferred_dimension
        require(
            inferred is None or 0 <= inferred < result.rank,
            f"reshape's inferred_dimension {inferred} is not a dimension of its result {result}",
        )
        return shape_of(source.element_type, result.dimensions, reshaped_flags(source, result))

    @staticmethod
    def evaluate(operand: Array, *, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Array:
        if shape.dynamic_dimensions or operand_shapes[0].dynamic_dimensions:
            return reshaped(operand, reshaped_extents(operand.shape, operand_shapes[0], shape))
        return reshaped(operand, shape.dimensions)


@attrs.frozen
class TransposeAttributes:
    """Result dimension i is operand dimension `dimensions[i]`."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST)


@opcode("transpose", operands=1, attributes=TransposeAttributes, may_be_view=True)
class Transpose:
    """out[i[dimensions[0]], i[dimensions[1]], ...] = operand[i...]   (XLA: Transpose)"""

    @staticmethod
    def infer(operand: Shape, *, attributes: TransposeAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of transpose")
        dimensions = attributes.dimensions
        require(
            sorted(dimensions) == list(range(source.rank)),
            f"transpose's dimensions {_braced(dimensions)} must be a permutation of the dimensions of its operand "
            f"{source}",
        )
        dynamic = flags(source)
        return shape_of(
            source.element_type,
            tuple(source.dimensions[dimension] for dimension in dimensions),
            tuple(dynamic[dimension] for dimension in dimensions),
        )

    @staticmethod
    def evaluate(operand: Array, *, attributes: TransposeAttributes) -> Array:
        return operand.transpose(attributes.dimensions)


@attrs.frozen
class SliceAttributes:
    """One range `[start:limit:stride]` per dimension."""

    slice: tuple[SliceDimension, ...] = attribute(Grammar.SLICE)


@opcode("slice", operands=1, attributes=SliceAttributes, may_be_view=True)
class Slice:
    """out[i...] = operand[start + i * stride...]   (XLA: Slice)

    Of a dynamic dimension the result keeps what lies within the runtime extent; a slice of one element is static, and
    zero where that element lies beyond it.
    """

    @staticmethod
    def infer(operand: Shape, *, attributes: SliceAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of slice")
        require(
            len(attributes.slice) == source.rank,
            f"slice must give one range per dimension of its operand {source}, but gives {len(attributes.slice)}",
        )
        for dimension, entry in enumerate(attributes.slice):
            where = f"slice's range [{entry.start}:{entry.limit}:{entry.stride}] of dimension {dimension}"
            require(entry.stride > 0, f"{where} must have a positive stride")
            require(
                0 <= entry.start <= entry.limit <= source.dimensions[dimension],
                f"{where} must satisfy 0 <= start <= limit <= {source.dimensions[dimension]}, the size in {source}",
            )
        sizes = tuple(len(range(entry.start, entry.limit, entry.stride)) for entry in attributes.slice)
        dynamic = tuple(flag and size != 1 for flag, size in zip(flags(source), sizes, strict=True))
        return shape_of(source.element_type, sizes, dynamic)

    @staticmethod
    def evaluate(operand: Array, *, attributes: SliceAttributes, shape: ArrayShape) -> Array:
        result = part(operand, (slice(entry.start, entry.limit, entry.stride) for entry in attributes.slice))
        return result if result.shape == shape.dimensions else with_zeros(result, shape)


@attrs.frozen
class ConcatenateAttributes:
    """The dimension along which the operands follow one another."""

    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")


@opcode("concatenate", operands=(1, None), attributes=ConcatenateAttributes)
class Concatenate:
    """The operands one after the other along `dimension`   (XLA: Concatenate)"""

    @staticmethod
    def infer(*operands: Shape, attributes: ConcatenateAttributes) -> ArrayShape:
        sources = [array_shape(operand, f"operand {i} of concatenate") for i, operand in enumerate(operands)]
        first, dimension = sources[0], attributes.dimension
        require(0 <= dimension < first.rank, f"concatenate's dimension {dimension} is not one of its operand {first}")
        element_type = first.element_type
        for i, source in enumerate(sources[1:], start=1):
            what = f"operands 0 and {i} of concatenate"
            element_type = same_type_ignoring_float_width(first.with_element_type(element_type), source, what)
            require(
                source.rank == first.rank
                and all(
                    mine == its
                    for k, (mine, its) in enumerate(zip(first.dimensions, source.dimensions, strict=True))
                    if k != dimension
                ),
                f"{what} may differ in dimension {dimension} only, but are {first} and {source}",
            )
        sizes = list(first.dimensions)
        sizes[dimension] = sum(source.dimensions[dimension] for source in sources)
        dynamic = tuple(map(any, zip(*map(flags, sources), strict=True)))
        return shape_of(element_type, tuple(sizes), dynamic)

    @staticmethod
    def evaluate(*operands: Array, attributes: ConcatenateAttributes, shape: ArrayShape) -> Array:
        axis = attributes.dimension
        sizes = list(operands[0].shape)
        sizes[axis] = sum(operand.shape[axis] for operand in operands)
        result = np.empty(sizes, shape.element_type.storage)
        window = [slice(None)] * len(sizes)
        start = 0
        for operand in operands:
            window[axis] = slice(start, start + operand.shape[axis])
            result[tuple(window)] = in_type(operand, shape.element_type)
            start += operand.shape[axis]
        return result


@attrs.frozen
class PadAttributes:
    """Low, high and interior padding per dimension."""

    padding: tuple[PaddingDimension, ...] = attribute(Grammar.PADDING)


@opcode("pad", operands=2, attributes=PadAttributes)
class Pad:
    """out[low + i * (interior + 1)...] = operand[i...], and the padding value elsewhere   (XLA: Pad)

    Negative low and high padding crops, after interior padding was inserted.
    """

    @staticmethod
    def infer(operand: Shape, padding_value: Shape, *, attributes: PadAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of pad")
        value = array_shape(padding_value, "the padding value of pad")
        require(value.rank == 0, f"the padding value of pad must be a scalar, but is {value}")
        element_type = same_type_ignoring_float_width(source, value, "the operand and the padding value of pad")
        require(
            len(attributes.padding) == source.rank,
            f"pad must give the padding of each dimension of its operand {source}, but gives {len(attributes.padding)}",
        )
        sizes = []
        for dimension, (size, entry) in enumerate(zip(source.dimensions, attributes.padding, strict=True)):
            require(
                entry.interior_padding >= 0,
                f"pad's interior padding of dimension {dimension} must not be negative, but is "
                f"{entry.interior_padding}",
            )
            padded = _padded_size(size, entry)
            require(padded >= 0, f"pad gives dimension {dimension} of its operand {source} the negative size {padded}")
            sizes.append(padded)
        return shape_of(element_type, tuple(sizes), flags(source))

    @staticmethod
    def evaluate(operand: Array, padding_value: Array, *, attributes: PadAttributes, shape: ArrayShape) -> Array:
        operand = in_type(operand, shape.element_type)
        sizes = tuple(
            max(0, _padded_size(size, entry)) for size, entry in zip(operand.shape, attributes.padding, strict=True)
        )
        placed = [
            _placement(size, padded, entry)
            for size, padded, entry in zip(operand.shape, sizes, attributes.padding, strict=True)
        ]
        source = part(operand, (kept for kept, _ in placed))
        if source.shape == sizes:
            return source
        result = filled(sizes, in_type(padding_value, shape.element_type))
        result[tuple(target for _, target in placed)] = source
        return result


def _padded_size(size: int, entry: PaddingDimension) -> int:
    return size + entry.edge_padding_low + entry.edge_padding_high + max(size - 1, 0) * entry.interior_padding


def _placement(size: int, padded: int, entry: PaddingDimension) -> tuple[slice, slice]:
    """Which elements of an operand dimension survive cropping, and where they go in the result."""
    low, step = entry.edge_padding_low, entry.interior_padding + 1
    first = max(0, -(low // step))
    last = min(size - 1, (padded - 1 - low) // step)
    if last < first:
        return slice(0, 0), slice(0, 0)
    return slice(first, last + 1), slice(low + first * step, low + last * step + 1, step)


@attrs.frozen
class ReverseAttributes:
    """The dimensions that are turned around."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST)


@opcode("reverse", operands=1, attributes=ReverseAttributes, may_be_view=True)
class Reverse:
    """out[..., i, ...] = operand[..., size - 1 - i, ...] for each of `dimensions`   (XLA: Rev)"""

    @staticmethod
    def infer(operand: Shape, *, attributes: ReverseAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of reverse")
        require_distinct_dimensions(attributes.dimensions, source.rank, "reverse's dimensions")
        return shape_of(source.element_type, source.dimensions, flags(source))

    @staticmethod
    def evaluate(operand: Array, *, attributes: ReverseAttributes) -> Array:
        turned = set(attributes.dimensions)
        return part(operand, (slice(None, None, -1 if axis in turned else None) for axis in range(operand.ndim)))


@attrs.frozen
class IotaAttributes:
    """The dimension along which the numbers grow."""

    iota_dimension: int = attribute(Grammar.INT)


@opcode("iota", operands=0, attributes=IotaAttributes)
class Iota:
    """out[i...] = i[iota_dimension], converted to the declared element type   (XLA: Iota)"""

    @staticmethod
    def infer(*, attributes: IotaAttributes, shape: Shape) -> ArrayShape:
        result = array_shape(shape, "the result of iota")
        element_type = result.element_type
        require(
            element_type.is_integral or element_type.is_floating or element_type.is_complex,
            f"iota must have an integer, floating-point or complex element type, but is {result}",
        )
        require(
            0 <= attributes.iota_dimension < result.rank,
            f"iota_dimension {attributes.iota_dimension} is not a dimension of the result {result}",
        )
        return shape_of(element_type, result.dimensions, flags(result))

    @staticmethod
    def evaluate(*, attributes: IotaAttributes, shape: ArrayShape) -> Array:
        axis = attributes.iota_dimension
        numbers = _numbers(shape.dimensions[axis], shape.element_type)
        trailing = (None,) * (shape.rank - 1 - axis)
        return np.broadcast_to(numbers[(slice(None), *trailing)], shape.dimensions)


def _numbers(size: int, element_type: ElementType) -> Array:
    """0, 1, …, size - 1 in an element type; integers wrap, floats round."""
    if element_type.is_integral:
        return narrow(np.arange(size, dtype=np.int64), element_type)
    if element_type.is_complex:
        return np.arange(size).astype(element_type.storage)
    return narrow(np.arange(size, dtype=np.float64), element_type)


@opcode("copy", operands=1, may_be_view=True)
class Copy:
    """out = operand, perhaps in another layout, which is no part of a value   (XLA: Copy)"""

    @staticmethod
    def infer(operand: Shape) -> Shape:
        return operand

    @staticmethod
    def evaluate(operand: Array) -> Array:
        return operand


def _braced(dimensions: tuple[int, ...]) -> str:
    return f"{{{','.join(map(str, dimensions))}}}"
