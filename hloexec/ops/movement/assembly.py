"""Assembling new arrays: concatenate, pad, iota, and shuffle.

Strides over one operand cannot express these, except for a pad that only crops, so their results are new arrays. Sizes
come from the arrays themselves, not from declared shapes, so that bounded-dynamic operands (arrays of their runtime
extents) work like any others. Source of the rules: XLA, "Operation semantics".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, ArrayShapes, Literal, PaddingDimension, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import EvaluationError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import (
    array_shape,
    filled,
    flags,
    in_type,
    narrow,
    operand_shapes,
    require,
    require_distinct_dimensions,
    same_type_ignoring_float_width,
    shape_of,
    widen,
)
from hloexec.ops.intervals import Bounds, Use
from hloexec.ops.movement.columns import concatenate_demand, joined_columns, pad_demand, padded_columns
from hloexec.ops.movement.dynamic_shapes import cut_to_common_extents
from hloexec.ops.registry import opcode
from hloexec.ops.relations import (
    Relating,
    Resizing,
    pointwise,
    relate_concatenation,
    relate_part,
    relate_slice,
    resized_start,
)
from hloexec.ops.resources import empty
from hloexec.ops.traits import ALL_OPERANDS, Probe


@frozen
class ConcatenateAttributes:
    """The dimension along which the operands follow one another."""

    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")


@opcode(
    "concatenate",
    operands=(1, None),
    attributes=ConcatenateAttributes,
    any_order=True,
    moves=ALL_OPERANDS,
    fast_in="hloexec.ops.movement.fast.movement",
)
class Concatenate:
    """The operands one after the other along `dimension`   (XLA: Concatenate)"""

    probe = Probe("T[4] concatenate(a0, a1), dimensions={0}", ("T[2]", "T[2]"))
    columns = staticmethod(joined_columns)
    demand_on = staticmethod(concatenate_demand)

    @staticmethod
    def relate(use: Relating) -> None:
        axis = use.attributes.dimension
        if len(use.operands) > 1 and all(use.size(operand.axes[axis]) == 1 for operand in use.operands):
            use.components()
        relate_concatenation(use, axis)

    @staticmethod
    def infer(*operands: Shape, attributes: ConcatenateAttributes) -> ArrayShape:
        sources = operand_shapes(operands, "concatenate")
        first, dimension = sources[0], attributes.dimension
        require(0 <= dimension < first.rank, f"concatenate's dimension {dimension} is not one of its operand {first}")
        element_type = first.element_type
        for i, source in enumerate(sources[1:], start=1):
            subject = f"operands 0 and {i} of concatenate"
            element_type = same_type_ignoring_float_width(first.with_element_type(element_type), source, subject)
            others = slice(dimension), slice(dimension + 1, None)
            require(
                source.rank == first.rank and all(source.dimensions[k] == first.dimensions[k] for k in others),
                f"{subject} may differ in dimension {dimension} only, but are {first} and {source}",
            )
        sizes = list(first.dimensions)
        sizes[dimension] = sum(source.dimensions[dimension] for source in sources)
        dynamic = tuple(map(any, zip(*map(flags, sources), strict=True)))
        return shape_of(element_type, tuple(sizes), dynamic)

    @staticmethod
    def evaluate(
        *operands: Array, attributes: ConcatenateAttributes, shape: ArrayShape, operand_shapes: ArrayShapes
    ) -> Array:
        axis = attributes.dimension
        operands = tuple(cut_to_common_extents(operands, operand_shapes, apart=axis))
        sizes = list(operands[0].shape)
        sizes[axis] = sum(operand.shape[axis] for operand in operands)
        result = empty(sizes, shape.element_type.storage)
        return np.concatenate([in_type(operand, shape.element_type) for operand in operands], axis, out=result)


@frozen
class PadAttributes:
    """Low, high and interior padding per dimension."""

    padding: tuple[PaddingDimension, ...] = attribute(Grammar.PADDING)


@frozen
class Padding:
    """The kernel of pad for an operand and a value of one type."""

    sizes: Dimensions
    """Of the result."""
    kept: tuple[Any, ...]
    """What of the operand is not cropped, as an index."""
    places: tuple[Any, ...]
    """Where in the result that goes, as an index."""
    is_crop: bool
    """Whether it is all of the result."""

    @classmethod
    def of(cls, sizes: Dimensions, padding: Sequence[PaddingDimension]) -> Padding:
        """For an operand of these sizes."""
        padded = tuple(max(0, size) for size in map(_padded_size, sizes, padding))
        placed = list(map(placement, sizes, padded, padding))
        kept = tuple(source for source, _ in placed)
        is_crop = all(
            len(range(size)[source]) == whole for size, source, whole in zip(sizes, kept, padded, strict=True)
        )
        # The ellipsis keeps NumPy from turning an array of rank 0 into a scalar.
        return cls(padded, (*kept, ...), (*(target for _, target in placed), ...), is_crop)

    def __call__(self, operand: Array, padding_value: Array) -> Array:
        source: Array = operand[self.kept]
        if self.is_crop:
            return source
        result = filled(self.sizes, padding_value)
        result[self.places] = source
        return result


@opcode(
    "pad",
    operands=2,
    attributes=PadAttributes,
    any_order=True,
    moves=(0, 1),
    fast_in="hloexec.ops.movement.fast.movement",
)
class Pad:
    """out[low + i * (interior + 1)...] = operand[i...], and the padding value elsewhere   (XLA: Pad)

    Negative low and high padding crops, after interior padding was inserted.
    """

    probe = Probe("T[4] pad(a0, a1), padding=1_1", ("T[2]", "T[]"))
    columns = staticmethod(padded_columns)
    demand_on = staticmethod(pad_demand)

    @staticmethod
    def relate(use: Relating) -> None:
        for operand, result, entry in zip(use.operands[0].axes, use.result.axes, use.attributes.padding, strict=True):
            low, high = entry.edge_padding_low, entry.edge_padding_high
            if low >= 0 and high >= 0 and not entry.interior_padding:
                relate_slice(use, result, operand, low)
            elif low <= 0 and high <= 0 and not entry.interior_padding:
                relate_part(use, operand, result, -low)
            else:
                use.equation({result: 1, operand: -1 - entry.interior_padding})

    @staticmethod
    def resize(change: Resizing) -> object:
        (before, after), (old_result, new_result) = change.sizes(0), change.result_sizes
        padding = []
        sizes = zip(before, after, old_result, new_result, change.attributes.padding, strict=True)
        for axis, (old, new, old_whole, new_whole, entry) in enumerate(sizes):
            low, high = entry.edge_padding_low, entry.edge_padding_high
            if low >= 0 and high >= 0 and not entry.interior_padding:
                start = change.starts.get(axis)
                low = resized_start(old_whole, low, old, new_whole, new) if start is None else start
                high = new_whole - new - low
            elif low <= 0 and high <= 0 and not entry.interior_padding:
                low = -resized_start(old, -low, old_whole, new, new_whole)
                high = new_whole - new - low
            padding.append(PaddingDimension(low, high, entry.interior_padding))
        return attrs.evolve(change.attributes, padding=tuple(padding))

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
        element_type = shape.element_type
        kernel = Padding.of(operand.shape, attributes.padding)
        return kernel(in_type(operand, element_type), in_type(padding_value, element_type))


def _padded_size(size: int, entry: PaddingDimension) -> int:
    return size + entry.edge_padding_low + entry.edge_padding_high + max(size - 1, 0) * entry.interior_padding


def placement(size: int, padded: int, entry: PaddingDimension) -> tuple[slice, slice]:
    """Which elements of an operand dimension survive cropping, and where they go in the result."""
    low, step = entry.edge_padding_low, entry.interior_padding + 1
    first = max(0, -(low // step))
    last = min(size - 1, (padded - 1 - low) // step)
    if last < first:
        return slice(0, 0), slice(0, 0)
    return slice(first, last + 1), slice(low + first * step, low + last * step + 1, step)


@frozen
class IotaAttributes:
    """The dimension along which the numbers grow."""

    iota_dimension: int = attribute()


@opcode("iota", operands=0, attributes=IotaAttributes, any_order=True, fast_in="hloexec.ops.movement.fast.movement")
class Iota:
    """out[i...] = i[iota_dimension], converted to the declared element type   (XLA: Iota)"""

    states_shape = True
    probe = Probe("T[2] iota(), iota_dimension=0")

    @staticmethod
    def relate(use: Relating) -> None:
        use.counts(use.result.axes[use.attributes.iota_dimension])

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
    def bounds(use: Use) -> Bounds:
        sizes = use.shape.dimensions
        return Bounds(0, max(0, sizes[use.attributes.iota_dimension] - 1) if sizes else 0)

    @staticmethod
    def evaluate(*, attributes: IotaAttributes, shape: ArrayShape) -> Array:
        axis = attributes.iota_dimension
        numbers = numbers_between(0, shape.dimensions[axis], shape.element_type)
        trailing = (None,) * (shape.rank - 1 - axis)
        return np.broadcast_to(numbers[(slice(None), *trailing)], shape.dimensions)


def numbers_between(start: int, stop: int, element_type: ElementType) -> Array:
    """start, start + 1, …, stop - 1 in an element type; integers wrap, floats round."""
    if element_type.storage.kind in "iu" and stop <= np.iinfo(element_type.storage).max:
        return np.arange(start, stop, dtype=element_type.storage)
    if element_type.is_integral:
        return narrow(np.arange(start, stop, dtype=np.int64), element_type)
    if element_type.is_complex:
        return np.arange(start, stop).astype(element_type.storage)
    return narrow(np.arange(start, stop, dtype=np.float64), element_type)


@frozen
class ShuffleAttributes:
    """`mode=rotate, shifts={1}`, a shift for each of `dimensions`; `mode=permute, indices=s32[4]{0} {3, 1, 0, 2}`."""

    dimensions: Dimensions = attribute()
    mode: str = attribute(Grammar.ENUM, choices=("rotate", "permute"))
    shifts: Dimensions | None = attribute(default=None)
    indices: Literal | None = attribute(Grammar.LITERAL, default=None)


@opcode("shuffle", operands=1, attributes=ShuffleAttributes, any_order=True, moves=(0,), repeats=True)
class Shuffle:
    """Rotates or permutes elements along `dimensions`; the result has the operand's shape.

    rotate: out[..., i, ...] = operand[..., (i + shift) mod size, ...] for each dimension and its shift.
    permute: each element of the result comes from the coordinates that `indices` holds for it, one for each of
    `dimensions`, in an innermost dimension that one may go without; sizes of 1 among the others stand for every size.
    The element's coordinates in other dimensions are its own. Source: XLA, ShuffleExpander.
    """

    layout_of = (0,)
    probe = Probe("T[3] shuffle(a0), dimensions={0}, mode=rotate, shifts={1}", ("T[3]",))

    @staticmethod
    def relate(use: Relating) -> None:
        if use.attributes.mode == "rotate":
            pointwise(use)
        else:
            use.keep_all("its elements are permuted by a constant")

    @staticmethod
    def infer(operand: Shape, *, attributes: ShuffleAttributes) -> ArrayShape:
        source = array_shape(operand, "the operand of shuffle")
        require(bool(attributes.dimensions), "shuffle needs at least one dimension")
        require_distinct_dimensions(attributes.dimensions, source.rank, "shuffle's dimensions")
        if attributes.mode == "rotate":
            require(attributes.indices is None, "a shuffle that rotates has no indices")
            count = len(attributes.shifts or ())
            wanted = len(attributes.dimensions)
            require(
                count == wanted, f"a shuffle that rotates {wanted} dimensions needs as many shifts, but has {count}"
            )
        else:
            require(attributes.shifts is None, "a shuffle that permutes has no shifts")
            _require_indices(source, attributes)
        return shape_of(source.element_type, source.dimensions, flags(source))

    @staticmethod
    def evaluate(operand: Array, *, attributes: ShuffleAttributes) -> Array:
        if attributes.shifts is not None:
            return np.roll(operand, [-shift for shift in attributes.shifts], attributes.dimensions)
        assert attributes.indices is not None
        if not isinstance(attributes.indices.value, np.ndarray):
            raise EvaluationError("the text of the module leaves out the indices of a shuffle")
        return _permuted(operand, attributes.dimensions, widen(attributes.indices.value))


def _require_indices(source: ArrayShape, attributes: ShuffleAttributes) -> None:
    count = len(attributes.dimensions)
    require(attributes.indices is not None, "a shuffle that permutes needs indices")
    assert attributes.indices is not None
    indices = array_shape(attributes.indices.shape, "indices of shuffle")
    sizes = indices.dimensions
    if count == 1 and indices.rank == source.rank:
        sizes = (*sizes, 1)
    *places, coordinates = sizes or (0,)
    fits = len(places) == source.rank and all(
        ours in (1, theirs) for ours, theirs in zip(places, source.dimensions, strict=True)
    )
    require(
        indices.element_type.is_integral and fits and coordinates == count,
        f"indices of a shuffle of {source} along {count} dimensions must be integers, {count} for each element, but "
        f"have shape {indices}",
    )


def _permuted(operand: Array, dimensions: Sequence[int], indices: Array) -> Array:
    if indices.ndim == operand.ndim:
        indices = indices[..., np.newaxis]
    places: list[Array] = list(np.ogrid[tuple(slice(size) for size in operand.shape)])
    for number, dimension in enumerate(dimensions):
        chosen = places[dimension] = indices[..., number].astype(np.int64)
        size = operand.shape[dimension]
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < size:
            raise EvaluationError(f"indices of a shuffle reach beyond dimension {dimension} of size {size}")
    return np.ascontiguousarray(operand[tuple(places)]).reshape(operand.shape)
