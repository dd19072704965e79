"""reduce.

A reducer that is one common operation (`reducers.recognise`) is applied to whole arrays by `known_reducers`. Any other
is called, also on whole arrays, once per element of the reduced extent; what `choices` proves of it may save that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import narrow_unchecked, require, widen
from hloexec.ops.intervals import INFINITY, UNKNOWN, Bounds, Use
from hloexec.ops.policies.exact.sums import can_reduce_exactly, reduce_exactly
from hloexec.ops.policies.narrow_sums import added_stepwise, is_narrow_sum
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.probes import REDUCER, Probe
from hloexec.ops.reduction.callees import (
    element_types,
    only_reducer,
    reduced,
    reduced_demands,
    reducer_types,
    result_shape,
    usual_operations,
)
from hloexec.ops.reduction.choices import choice_of
from hloexec.ops.reduction.known_reducers import KNOWN_REDUCERS, reduce_known
from hloexec.ops.registry import ANY, Callee, ProgramShape, opcode
from hloexec.ops.relations import Relating
from hloexec.ops.rounding import Rounding, Summation, Sums
from hloexec.ops.signatures import called

_TREE_LENGTH = 16
"""Shorter extents take less time one step after the other than along a tree."""
_CHOOSING_LENGTH = 4
"""Shorter extents are not worth finding out whether a reducer chooses by order, unless there are many."""
_MANY_ELEMENTS = 1 << 12


@frozen
class ReduceAttributes:
    """Which dimensions vanish, and what combines two values."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST)
    to_apply: str = attribute(Grammar.COMPUTATION)


@opcode(
    "reduce",
    operands=(2, ANY),
    attributes=ReduceAttributes,
    rounding=Rounding.SUM,
    flushes_denormals=True,
    fast_in="hloexec.ops.reduction.fast.reduce",
)
class Reduce:
    """out[kept...] = init_value combined with all operand[...] along `dimensions`

    N operands of the same dimensions, then N initial values; the computation takes N accumulated values and N elements.
    Narrow floats are added, multiplied, and compared in f32, and rounded once; any other reducer works step by step in
    the declared types, row-major over the reduced dimensions. XLA: Reduce.
    """

    sums = Sums.FOLDED
    probe = Probe("T[] reduce(a0, a1), dimensions={0}, to_apply=c", ("T[2]", "T[]"), REDUCER)

    @staticmethod
    def bounds(use: Use, *operands: Bounds) -> Bounds:
        """A sum or product of what is never negative is not; an extremum lies where the elements do."""
        kind = only_reducer(use)
        if kind is None:
            return UNKNOWN
        operand, initial = operands
        if kind in ("maximum", "minimum", "and", "or"):
            return Bounds(min(operand.low, initial.low), max(operand.high, initial.high))
        is_positive = kind in ("add", "multiply") and operand.low >= 0 and initial.low >= 0
        return Bounds(0, INFINITY) if is_positive else UNKNOWN

    demands_for = reduced_demands

    @staticmethod
    def relate(use: Relating) -> None:
        count = len(use.operands) // 2
        arrays = [operand.axes for operand in use.operands[:count]]
        use.same(*arrays)
        use.same_leaf_units(count)
        use.sums_over([arrays[0][number] for number in use.attributes.dimensions])
        kept = [axis for number, axis in enumerate(arrays[0]) if number not in use.attributes.dimensions]
        use.same(kept, *use.result.leaves.values())

    @staticmethod
    def infer(*operands: Shape, attributes: ReduceAttributes, computations: Sequence[ProgramShape]) -> Shape:
        arrays, results = reducer_types(operands, computations[0], "reduce")
        operand = arrays[0]
        dimensions = attributes.dimensions
        require(
            all(0 <= dimension < operand.rank for dimension in dimensions),
            f"the dimensions that reduce takes must lie in [0, {operand.rank}), its operand being {operand}, "
            f"but are {list(dimensions)}",
        )
        require(
            len(set(dimensions)) == len(dimensions),
            f"reduce must not name a dimension twice, but its dimensions are {list(dimensions)}",
        )
        kept = [dimension for dimension in range(operand.rank) if dimension not in dimensions]
        sizes = tuple(operand.dimensions[dimension] for dimension in kept)
        dynamic = tuple(operand.dynamic_dimensions[dimension] for dimension in kept if operand.is_dynamic)
        return result_shape(results, sizes, dynamic, computations[0])

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: ReduceAttributes,
        shape: Shape,
        computations: Sequence[Callee],
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | tuple[Array, ...]:
        callee, dimensions = computations[0], attributes.dimensions

        def by_operation(array: Array, init_value: Array, name: str, element_type: ElementType) -> Array:
            if numerics.is_exact and can_reduce_exactly(name, element_type):
                return reduce_exactly(name, array, dimensions, init_value, element_type)
            if numerics.narrows_sums and name == "add" and is_narrow_sum(element_type):
                total = added_stepwise(widen(array), dimensions, element_type, init_value)
                return narrow_unchecked(total, element_type)
            return reduce_known(array, dimensions, init_value, KNOWN_REDUCERS[name], element_type)

        by_calling = partial(_reduce_by_calling, dimensions=dimensions, callee=callee)
        return reduced(operands, shape, callee, by_operation, by_calling, is_exact=numerics.is_exact)

    @staticmethod
    def summed(
        *,
        attributes: ReduceAttributes,
        shape: Shape,
        operand_shapes: tuple[ArrayShape, ...],
        computations: Sequence[Callee],
    ) -> Summation | None:
        names = usual_operations(computations[0], element_types(shape), is_exact=False) or ()
        terms = prod(operand_shapes[0].dimensions[dimension] for dimension in attributes.dimensions)
        if "multiply" in names:
            return Summation(terms, is_product=True)
        if "add" not in names:
            return None
        along = (*(attributes.dimensions if name == "add" else () for name in names), *(() for _ in names))
        # XLA:CPU rounds each partial sum to the reducer's type, along dimensions of more than 32 terms block by block.
        sizes = [operand_shapes[0].dimensions[dimension] for dimension in attributes.dimensions]
        return Summation(terms, along, narrow_steps=prod(min(size, 6.4 * math.log2(max(2, size))) for size in sizes))

    @staticmethod
    def slices(*, attributes: ReduceAttributes, operand_shapes: tuple[ArrayShape, ...]) -> tuple[int, int] | None:
        """The largest of the dimensions that stay, where there is one operand."""
        operand = operand_shapes[0]
        kept = [dimension for dimension in range(operand.rank) if dimension not in attributes.dimensions]
        if len(operand_shapes) != 2 or not kept:
            return None
        largest = max(kept, key=lambda dimension: operand.dimensions[dimension])
        return largest, kept.index(largest)


def is_long(count: int, length: int) -> bool:
    """Whether to find out what a reducer chooses is worth it, for so many results of so many elements each."""
    return length >= _CHOOSING_LENGTH or count * length >= _MANY_ELEMENTS


def _reduce_by_calling(
    arrays: Sequence[Array], init_values: Sequence[Array], dimensions: Sequence[int], callee: Callee
) -> list[Array]:
    """Reduce with any reducer: along a tree where it is known to be associative, else one step after the other."""
    kept = [dimension for dimension in range(arrays[0].ndim) if dimension not in dimensions]
    sizes = [arrays[0].shape[dimension] for dimension in kept]
    length = prod(arrays[0].shape[dimension] for dimension in dimensions)
    # One row per kept element, its elements in row-major order of the reduced dimensions.
    rows = [array.transpose(*kept, *sorted(dimensions)).reshape(prod(sizes), length) for array in arrays]
    choice = choice_of(callee) if prod(sizes) and length and is_long(prod(sizes), length) else None
    chosen = None if choice is None else choice.chosen(rows)
    if chosen is not None and choice is not None and choice.decides(init_values[0], chosen[0]):
        return [total.reshape(sizes) for total in chosen]
    totals: Sequence[Array] = [np.broadcast_to(value, (prod(sizes),)) for value in init_values]
    if prod(sizes) == 0:
        pass
    elif chosen is not None:
        totals = called(callee, *totals, *chosen)
    elif choice is not None and choice.is_associative and length >= _TREE_LENGTH:
        totals = called(callee, *totals, *(row[:, 0] for row in _reduce_tree(rows, callee)))
    else:
        for place in range(length):
            totals = called(callee, *totals, *(row[:, place] for row in rows))
    return [total.reshape(sizes) for total in totals]


def _reduce_tree(rows: list[Array], callee: Callee) -> list[Array]:
    """Combine neighbours until one is left in each row; the order of the elements is kept."""
    while (length := rows[0].shape[1]) > 1:
        even = length // 2 * 2
        paired = called(callee, *(row[:, 0:even:2] for row in rows), *(row[:, 1:even:2] for row in rows))
        rows = [np.concatenate([pair, row[:, even:]], axis=1) for pair, row in zip(paired, rows, strict=True)]
    return rows
