"""Dots of operands in parts: blocks with scales (scaled-dot), and groups of several sizes (ragged-dot), for mixtures of
experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import ElementType, element_type, element_type_of
from hloexec.core.ir import ArrayShape, ArrayShapes, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.attributes import attribute, operand_precision
from hloexec.ops.common import array_shape, flags, higher_precision, narrow, require, shape_of, widen
from hloexec.ops.contraction.dot import (
    ContractionAttributes,
    Dot,
    DotAttributes,
    contract,
    contraction_shape,
    free_dimensions,
    relate_contraction,
)
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import opcode
from hloexec.ops.relations import GroupSizes, Relating, Requirement
from hloexec.ops.traits import Probe, Sums


@opcode("scaled-dot", operands=4, attributes=DotAttributes, flushes_denormals=True)
class ScaledDot:
    """dot(lhs · lhs_scale, rhs · rhs_scale), each scale's element covering a block of its operand.

    Along every dimension the size of a scale divides that of its operand, and the quotient is the length of a block.
    The scaled operands are f32, exactly so for the 4- and 8-bit types with power-of-two scales. XLA: ScaledDot.
    """

    probe = Probe(
        "f32[2,2] scaled-dot(a0, a1, a2, a3), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ("T[2,4]", "T[4,2]", "f8e8m0fnu[2,2]", "f8e8m0fnu[2,2]"),
    )

    @staticmethod
    def unstated(lhs: Shape, rhs: Shape, lhs_scale: Shape, rhs_scale: Shape, *, attributes: DotAttributes) -> Shape:
        """XLA's parser takes the third operand for the right one."""
        first, third = array_shape(lhs, "lhs of scaled-dot"), array_shape(lhs_scale, "the scale of lhs of scaled-dot")
        return contraction_shape(first, third, attributes, higher_precision(first.element_type, third.element_type))

    @staticmethod
    def relate(use: Relating) -> None:
        lhs, rhs, *scales = (operand.axes for operand in use.operands)
        relate_contraction(use, use.attributes, lhs, rhs, use.result.axes)
        for operand, scale in zip((lhs, rhs), scales, strict=True):
            for whole, blocks in zip(operand, scale, strict=True):
                use.multiple(whole, blocks)

    @staticmethod
    def infer(
        lhs: Shape, rhs: Shape, lhs_scale: Shape, rhs_scale: Shape, *, attributes: DotAttributes, shape: Shape
    ) -> Shape:
        result = array_shape(shape, "the result of scaled-dot")
        operands = array_shape(lhs, "lhs of scaled-dot"), array_shape(rhs, "rhs of scaled-dot")
        for name, operand, scale in zip(("lhs", "rhs"), operands, (lhs_scale, rhs_scale), strict=True):
            block = array_shape(scale, f"the scale of {name} of scaled-dot")
            require(
                operand.element_type.is_floating and block.element_type.is_floating,
                f"scaled-dot takes floating-point operands and scales, but {name} is {operand}, its scale {block}",
            )
            require(
                block.rank == operand.rank
                and all(
                    size == length or (length > 0 and size % length == 0)
                    for size, length in zip(operand.dimensions, block.dimensions, strict=True)
                ),
                f"the dimensions of the scale {block} must divide those of {name}, which is {operand}",
            )
        return contraction_shape(*operands, attributes, result.element_type)

    @staticmethod
    def evaluate(
        lhs: Array,
        rhs: Array,
        lhs_scale: Array,
        rhs_scale: Array,
        *,
        attributes: DotAttributes,
        shape: ArrayShape,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array:
        dtype = np.float64 if numerics.is_exact else np.float32
        operands = _scaled(lhs, lhs_scale, dtype), _scaled(rhs, rhs_scale, dtype)
        return contract(*operands, attributes, shape.element_type, numerics=numerics)


def _scaled(operand: Array, scale: Array, dtype: type[np.floating[Any]]) -> Array:
    """The operand times its scale, each element of which covers a block, in f32 or (exactly) in f64."""
    wide = widen(scale)
    for dimension, (size, length) in enumerate(zip(operand.shape, scale.shape, strict=True)):
        if length not in (1, size):
            wide = np.repeat(wide, size // length, dimension)
    return np.multiply(widen(operand), wide, dtype=dtype)


@frozen
class RaggedDotAttributes(ContractionAttributes):
    """A dot's dimensions, and which of them the group sizes divide."""

    lhs_ragged_dims: Dimensions = attribute(default=())
    rhs_group_dims: Dimensions = attribute(default=())
    operand_precision: tuple[str, ...] = operand_precision()


@opcode("ragged-dot", operands=3, attributes=RaggedDotAttributes, flushes_denormals=True, clamps=True)
class RaggedDot:
    """A dot whose ragged dimension of lhs consists of groups, `group_sizes[g]` long, one after the other.

    Which dimension that is decides what the groups do. A free dimension: group g is multiplied with rhs[g], g counting
    along the group dimension; what follows the last group gives zeros. A contracting dimension: the result has a new
    first dimension, and its entry g sums over group g only. A batch dimension: the groups change nothing. Group sizes
    may differ along the batch dimensions and those before the ragged one among its kind, and then have them as leading
    dimensions. XLA: RaggedDot.
    """

    sums = Sums.PRODUCTS
    probe = Probe(
        "T[2,2] ragged-dot(a0, a1, a2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        ("T[2,3]", "T[1,3,2]", "s32[1]"),
    )

    contraction = Dot.contraction

    @staticmethod
    def requires(*, attributes: RaggedDotAttributes, operand_shapes: ArrayShapes) -> Iterator[Requirement]:
        yield GroupSizes(2, operand_shapes[0].dimensions[attributes.lhs_ragged_dims[0]])

    @staticmethod
    def relate(use: Relating) -> None:
        _relate(use)

    @staticmethod
    def infer(lhs: Shape, rhs: Shape, group_sizes: Shape, *, attributes: RaggedDotAttributes, shape: Shape) -> Shape:
        result = array_shape(shape, "the result of ragged-dot")
        operands = array_shape(lhs, "lhs of ragged-dot"), array_shape(rhs, "rhs of ragged-dot")
        groups = array_shape(group_sizes, "the group sizes of ragged-dot")
        return _ragged_shape(*operands, groups, attributes, result.element_type)

    @staticmethod
    def evaluate(
        lhs: Array,
        rhs: Array,
        group_sizes: Array,
        *,
        attributes: RaggedDotAttributes,
        shape: ArrayShape,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array:
        (ragged,), result_type = attributes.lhs_ragged_dims, shape.element_type
        dot = partial(contract, attributes=_dot_of_one_group(attributes), numerics=numerics)
        if ragged in attributes.lhs_batch_dims:
            return dot(lhs, rhs, result_type=result_type)
        sizes = _result_sizes(lhs, rhs, group_sizes, attributes)
        if ragged in attributes.lhs_contracting_dims:
            # Where group sizes differ along contracting dimensions, a group is a sum over those.
            wide = element_type_of(result_type.accumulate)
            if numerics.is_exact and wide.is_floating:
                wide = element_type("f64")
            total = np.zeros(sizes, wide.storage)
            for group, lhs_index, rhs_index, result_index in _groups(lhs, rhs, group_sizes, attributes):
                total[(group, *result_index)] += dot(lhs[lhs_index], rhs[rhs_index], result_type=wide)
            return narrow(total, result_type)
        result = np.zeros(sizes, result_type.storage)
        for _, lhs_index, rhs_index, result_index in _groups(lhs, rhs, group_sizes, attributes):
            result[result_index] = dot(lhs[lhs_index], rhs[rhs_index], result_type=result_type)
        return result


def _ragged_shape(
    lhs: ArrayShape, rhs: ArrayShape, group_sizes: ArrayShape, attributes: RaggedDotAttributes, result: ElementType
) -> ArrayShape:
    require(len(attributes.lhs_ragged_dims) == 1, "ragged-dot must have exactly one ragged dimension of lhs")
    (ragged,) = attributes.lhs_ragged_dims
    require(0 <= ragged < lhs.rank, f"the ragged dimension {ragged} must lie in [0, {lhs.rank}), lhs being {lhs}")
    require(group_sizes.rank > 0, f"group sizes must have at least one dimension, but are {group_sizes}")
    count = group_sizes.dimensions[-1]
    leading = [lhs.dimensions[dim] for dim in _dimensions_before_ragged(lhs.rank, attributes)]
    require(
        group_sizes.rank == 1 or list(group_sizes.dimensions[:-1]) == leading,
        f"group sizes must have shape [{count}] or {[*leading, count]}, but are {group_sizes}",
    )
    is_free = ragged not in attributes.lhs_batch_dims + attributes.lhs_contracting_dims
    require(
        len(attributes.rhs_group_dims) == is_free,
        f"rhs must have {'one group dimension' if is_free else 'no group dimension'} where the ragged dimension of lhs "
        f"is {'free' if is_free else 'batch or contracting'}, but has {list(attributes.rhs_group_dims)}",
    )
    if is_free:
        (group,) = attributes.rhs_group_dims
        require(
            0 <= group < rhs.rank and group not in attributes.rhs_batch_dims + attributes.rhs_contracting_dims,
            f"the group dimension {group} must be a free dimension of rhs, which is {rhs}",
        )
        require(
            rhs.dimensions[group] == count,
            f"the group dimension {group} of rhs must have size {count}, as there are group sizes, but rhs is {rhs}",
        )
        sizes, dynamic = rhs.dimensions, flags(rhs)
        rhs = shape_of(rhs.element_type, sizes[:group] + sizes[group + 1 :], dynamic[:group] + dynamic[group + 1 :])
    dot = contraction_shape(lhs, rhs, _dot_of_one_group(attributes), result)
    if ragged not in attributes.lhs_contracting_dims:
        return dot
    return shape_of(result, (count, *dot.dimensions), (False, *flags(dot)))


def _relate(use: Relating) -> None:
    """As a dot, of which rhs has no group dimension; the group dimension is as long as there are group sizes."""
    attributes: RaggedDotAttributes = use.attributes
    lhs, rhs, groups = (operand.axes for operand in use.operands)
    (ragged,) = attributes.lhs_ragged_dims
    count, result = groups[-1:], use.result.axes
    if len(groups) > 1:
        use.same(groups[:-1], [lhs[dim] for dim in _dimensions_before_ragged(len(lhs), attributes)])
    use.same([rhs[dim] for dim in attributes.rhs_group_dims], count if attributes.rhs_group_dims else ())
    kept = tuple(axis for dim, axis in enumerate(rhs) if dim not in attributes.rhs_group_dims)
    if ragged in attributes.lhs_contracting_dims:
        use.same(count, result[:1])
        result = result[1:]
    relate_contraction(use, _dot_of_one_group(attributes), lhs, kept, result)


def _dimensions_before_ragged(rank: int, attributes: RaggedDotAttributes) -> list[int]:
    """The dimensions of lhs along which group sizes may differ: batch, then those of its kind before the ragged one."""
    (ragged,) = attributes.lhs_ragged_dims
    batch, contracting = list(attributes.lhs_batch_dims), list(attributes.lhs_contracting_dims)
    if ragged in batch:
        return batch[: batch.index(ragged)]
    kind = contracting if ragged in contracting else free_dimensions(rank, batch, contracting)
    return batch + kind[: kind.index(ragged)]


def _dot_of_one_group(attributes: RaggedDotAttributes) -> DotAttributes:
    """The attributes of one group's dot, in which rhs has lost its group dimension, if it has one."""

    def moved(dims: Dimensions) -> Dimensions:
        return tuple(dim - sum(dim > group for group in attributes.rhs_group_dims) for dim in dims)

    return DotAttributes(
        lhs_batch_dims=attributes.lhs_batch_dims,
        lhs_contracting_dims=attributes.lhs_contracting_dims,
        rhs_batch_dims=moved(attributes.rhs_batch_dims),
        rhs_contracting_dims=moved(attributes.rhs_contracting_dims),
        operand_precision=attributes.operand_precision,
    )


def _result_sizes(lhs: Array, rhs: Array, group_sizes: Array, attributes: RaggedDotAttributes) -> list[int]:
    """The sizes of the result of a ragged dimension that is no batch dimension."""
    batch, contracting = attributes.lhs_batch_dims, attributes.lhs_contracting_dims
    rhs_gone = (*attributes.rhs_contracting_dims, *attributes.rhs_group_dims)
    sizes = [lhs.shape[dim] for dim in (*batch, *free_dimensions(lhs.ndim, batch, contracting))]
    sizes += [rhs.shape[dim] for dim in free_dimensions(rhs.ndim, attributes.rhs_batch_dims, rhs_gone)]
    return sizes if attributes.rhs_group_dims else [group_sizes.shape[-1], *sizes]


_Index: TypeAlias = tuple[int | slice, ...]


def _groups(
    lhs: Array, rhs: Array, group_sizes: Array, attributes: RaggedDotAttributes
) -> Iterator[tuple[int, _Index, _Index, _Index]]:
    """Each group's number and its part of lhs, of rhs, and of the result (without the group dimension of that).

    Where group sizes differ along leading dimensions, each position along those is a group of its own, whose dimensions
    keep size 1.
    """
    (ragged,) = attributes.lhs_ragged_dims
    batch, contracting = attributes.lhs_batch_dims, attributes.lhs_contracting_dims
    leading = _dimensions_before_ragged(lhs.ndim, attributes) if group_sizes.ndim > 1 else []
    result_dims = [*batch, *free_dimensions(lhs.ndim, batch, contracting)]
    rhs_partner = dict(
        zip(batch + contracting, attributes.rhs_batch_dims + attributes.rhs_contracting_dims, strict=True)
    )
    extent = lhs.shape[ragged]
    for position in np.ndindex(*group_sizes.shape[:-1]):
        ends = np.clip(np.cumsum(group_sizes[position].astype(np.int64)), 0, extent)
        starts = np.concatenate([[0], ends[:-1]])
        for group, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            part = dict(zip(leading, (slice(i, i + 1) for i in position), strict=True)) | {ragged: slice(start, end)}
            rhs_part: dict[int, int | slice] = {rhs_partner[dim]: at for dim, at in part.items() if dim in rhs_partner}
            rhs_part |= dict.fromkeys(attributes.rhs_group_dims, group)
            yield (
                group,
                tuple(part.get(dim, slice(None)) for dim in range(lhs.ndim)),
                tuple(rhs_part.get(dim, slice(None)) for dim in range(rhs.ndim)),
                tuple(part.get(dim, slice(None)) for dim in result_dims),
            )
