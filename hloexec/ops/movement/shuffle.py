"""Shuffle: elements change places along some of the dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.ir import ArrayShape, Literal, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, flags, require, require_distinct_dimensions, shape_of, widen
from hloexec.ops.probes import Probe
from hloexec.ops.registry import opcode
from hloexec.ops.relations import Relating, pointwise


@frozen
class ShuffleAttributes:
    """`mode=rotate, shifts={1}`, a shift for each of `dimensions`; `mode=permute, indices=s32[4]{0} {3, 1, 0, 2}`."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST)
    mode: str = attribute(Grammar.ENUM, choices=("rotate", "permute"))
    shifts: tuple[int, ...] | None = attribute(Grammar.INT_LIST, default=None)
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
            given = len(attributes.shifts or ())
            wanted = len(attributes.dimensions)
            require(
                given == wanted, f"a shuffle that rotates {wanted} dimensions needs as many shifts, but has {given}"
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
        found = places[dimension] = indices[..., number].astype(np.int64)
        size = operand.shape[dimension]
        if found.size and not 0 <= found.min() <= found.max() < size:
            raise EvaluationError(f"indices of a shuffle reach beyond dimension {dimension} of size {size}")
    return np.ascontiguousarray(operand[tuple(places)]).reshape(operand.shape)
