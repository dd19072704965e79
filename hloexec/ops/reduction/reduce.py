"""reduce, and what reducers are that it shares with reduce-window.

A reducer that is one common operation (`reducers.recognise`) is applied to whole arrays. Any other
is called, also on whole arrays, once per element of the reduced extent; what is proved of it may save that.

Reducers that only compare and choose, as argmin and argmax do: what they amount to, found out by trying them.

What such a reducer does depends on the order of its arguments alone. So a few values that stand for all numbers there
are, in every combination, tell all there is to know: trying them is a proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType, Kind
from hloexec.core.ir import ArrayShape, ArrayShapes, Instruction, Module, Shape, TupleShape, parts_of
from hloexec.core.process import remembered
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Arrays, Dimensions
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import (
    array_shape,
    in_type,
    narrow_unchecked,
    operand_shapes,
    require,
    same_dimensions,
    shape_of,
    widen,
)
from hloexec.ops.intervals import INFINITY, POSITIVE, UNKNOWN, Bounds, Demand, Demanded, Use
from hloexec.ops.policies.backends import added_stepwise, is_narrow_sum
from hloexec.ops.policies.exact.sums import can_reduce_exactly, reduce_exactly
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.reduction.reducers import (
    KNOWN_REDUCERS,
    chooses_by_order,
    recognise,
    recognise_components,
    reduce_known,
)
from hloexec.ops.registry import ANY, Callee, Callees, Programs, ProgramShape, opcode
from hloexec.ops.relations import Relating
from hloexec.ops.resources import in_blocks
from hloexec.ops.signatures import as_parameters, called, require_reducer, same_type
from hloexec.ops.traits import REDUCER, Additions, Probe, Rounding, Summation, Sums


def reducer_types(
    operands: Sequence[Shape], program: ProgramShape, subject: str
) -> tuple[list[ArrayShape], list[ElementType]]:
    """The arrays among the operands and the element types of the results, or ShapeError."""
    require(
        len(operands) % 2 == 0,
        f"{subject} must have as many initial values as arrays, but has {len(operands)} operands",
    )
    count = len(operands) // 2
    given = operand_shapes(operands, subject)
    arrays, inits = given[:count], given[count:]
    for array in arrays[1:]:
        same_dimensions(arrays[0], array, f"the arrays that {subject} takes")
    require_reducer(program, arrays, f"the computation of {subject}")
    parameters = [
        array_shape(parameter, f"a parameter of the computation of {subject}") for parameter in program.parameters
    ]
    for k, (init, parameter) in enumerate(zip(inits, parameters[:count], strict=True)):
        require(
            init.rank == 0 and same_type(init.element_type, parameter.element_type),
            f"initial value {k} of {subject} must be {parameter}, as parameter {k} of its computation is, "
            f"but is {init}",
        )
    for k, (array, parameter) in enumerate(zip(arrays, parameters[count:], strict=True)):
        require(
            same_type(array.element_type, parameter.element_type),
            f"array {k} of {subject} is {array}, but parameter {count + k} of its computation is {parameter}",
        )
    return arrays, element_types(program.result)


def result_shape(
    types: Sequence[ElementType], sizes: Dimensions, dynamic: tuple[bool, ...], program: ProgramShape
) -> Shape:
    shapes = tuple(shape_of(kind, sizes, dynamic) for kind in types)
    return TupleShape(shapes) if isinstance(program.result, TupleShape) else shapes[0]


def element_types(shape: Shape) -> list[ElementType]:
    """The element types of a result that is an array or a tuple of arrays."""
    leaves = parts_of(shape)
    return [array_shape(leaf, "a result").element_type for leaf in leaves]


def usual_operations(callee: Callee, types: Sequence[ElementType], *, is_exact: bool) -> tuple[str, ...] | None:
    """The names in KNOWN_REDUCERS of what a reducer does with each array, or None where it must be called."""
    names = recognise_components(callee.computation)
    if names is None or not all(name in KNOWN_REDUCERS for name in names):
        return None
    # NumPy's products of complex numbers are not rounded alike on all processors; the callee's own are.
    called = ("minimum", "maximum", "multiply") if is_exact else ("minimum", "maximum")
    return None if any(kind.is_complex and name in called for name, kind in zip(names, types, strict=True)) else names


def reduced(
    operands: Sequence[Array],
    shape: Shape,
    callee: Callee,
    by_operation: Callable[[Array, Array, str, ElementType], Array],
    by_calling: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]],
    *,
    is_exact: bool,
    is_stepwise: bool = False,
) -> Array | Arrays:
    """The results for arrays and their initial values, in the element types of `shape`.

    `by_operation(array, init_value, name, element_type)` reduces one array where the reducer does a usual operation
    with each; else, or where `is_stepwise`, `by_calling(arrays, init_values)` reduces all, given in the element types
    of its parameters.
    """
    count, types = len(operands) // 2, element_types(shape)
    names = None if is_stepwise else usual_operations(callee, types, is_exact=is_exact)
    if names is None:
        inputs = as_parameters([*operands[count:], *operands[:count]], callee.computation)
        results = tuple(map(in_type, by_calling(inputs[count:], inputs[:count]), types))
    else:
        results = tuple(map(by_operation, operands[:count], operands[count:], names, types))
    return results if isinstance(shape, TupleShape) else results[0]


def only_reducer(use: Use) -> str | None:
    """The opcode that the computation of a reduction of one operand amounts to."""
    return recognise(use.module.by_name[use.attributes.to_apply]) if len(use.shapes) == 2 else None


def reduced_additions(instruction: Instruction, module: Module, operands: int, terms: int) -> Additions | None:
    """What a reduction of one operand adds up, so many terms to its initial value; None where it is no sum."""
    is_sum = operands == 2 and recognise(module.by_name[instruction.attributes.to_apply]) == "add"
    return Additions(base=(1,), added=(0,), terms=terms) if is_sum else None


def reduced_demands(use: Use, demand: Demand) -> Demanded:
    kind = only_reducer(use)
    if kind in ("maximum", "minimum"):
        yield 0, Demand(demand.low, demand.high)
    elif kind == "add" and demand.low == 0:
        yield 0, POSITIVE


_BLOCK_ELEMENTS = 1 << 17


@frozen
class Choice:
    """What is known of a reducer that chooses by order."""

    is_associative: bool
    """Whether choosing among three does not depend on the grouping."""
    place: Callable[..., Any] | None = None
    """`np.argmin` or `np.argmax` where the reducer takes values with places, and chooses the least or the greatest
    value, or the first NaN, with its place; of equal values the lowest place, or the first one's."""
    takes_last: bool = False
    """Whether, of equal values, the last one is taken: the bits of zeros differ."""

    def chosen(self, rows: Sequence[Array]) -> tuple[Array, Array] | None:
        """Of rows of values and of places, what is chosen in each row; None where places do not rise along rows."""
        if self.place is None:
            return None
        values, places = rows
        count, length = values.shape
        is_one_row = not places.strides[0]
        if is_one_row and not _rise(places[:1]):
            return None
        if values.size <= _BLOCK_ELEMENTS:
            return self._of_rows(values, places) if is_one_row or _rise(places) else None
        taken, taken_places = np.empty(count, values.dtype), np.empty(count, places.dtype)
        unsorted: list[int] = []

        def search(start: int, stop: int) -> None:
            if unsorted or not (is_one_row or _rise(places[start:stop])):
                unsorted.append(start)
                return
            taken[start:stop], taken_places[start:stop] = self._of_rows(values[start:stop], places[start:stop])

        in_blocks(search, count, max(1, _BLOCK_ELEMENTS // length))
        return None if unsorted else (taken, taken_places)

    def decides(self, init_value: Array, chosen: Array) -> bool:
        """Whether what is chosen in each row is also chosen after an initial value, which it is beyond."""
        first, second = (chosen, init_value) if self.place is np.argmax else (init_value, chosen)
        return bool((widen(first) > widen(second)).all())

    def _of_rows(self, values: Array, places: Array) -> tuple[Array, Array]:
        """The same, of rows along which places do rise."""
        assert self.place is not None
        wide = widen(values)
        every = np.arange(len(values))
        chosen_places = self.place(wide, axis=1)
        taken = values[every, chosen_places]
        if self.takes_last and values.dtype.kind not in "iub" and not widen(taken).all():
            zeros = np.flatnonzero(widen(taken) == 0)
            backwards = np.argmax(wide[zeros, ::-1] == 0, axis=1)
            taken[zeros] = values[zeros, values.shape[1] - 1 - backwards]
        return taken, places[every, chosen_places]


def _rise(rows: Array) -> bool:
    return bool((rows[:, 1:] > rows[:, :-1]).all())


_NONE = Choice(False)


@remembered
def choice_of(callee: Callee) -> Choice:
    """What a reducer is as one that chooses by order; that is also a matter of the policy that it runs under."""
    computation = callee.computation
    count = len(computation.parameters) // 2
    if count > 2 or not chooses_by_order(computation):
        return _NONE
    types = [array_shape(shape, "a parameter").element_type for shape in computation.parameter_shapes[:count]]
    values = [_representatives(entry) for entry in types]
    is_associative = _is_associative(callee, values)
    if count < 2 or not is_associative or types[0].is_complex or types[1].storage.kind not in "iu":
        return Choice(is_associative)
    pair = _told_apart(values[0], types[0]), np.arange(3).astype(types[1].storage)
    grids = [grid.reshape(-1) for grid in np.meshgrid(*pair, *pair, indexing="ij")]
    actual_bits = _bits(called(callee, *grids))
    for place in (np.argmin, np.argmax):
        for takes_last in (False, True):
            for takes_first_place in (False, True):
                expected = _chosen_of_two(
                    grids, is_greatest=place is np.argmax, takes_last=takes_last, takes_first_place=takes_first_place
                )
                if actual_bits == _bits(expected):
                    return Choice(True, place, takes_last)
    return Choice(True)


def _is_associative(callee: Callee, values: Sequence[Array]) -> bool:
    """Three values take part in regrouping, so three different numbers, both zeros and NaN stand for all numbers."""
    count = len(values)
    grids = np.meshgrid(*list(values) * 3, indexing="ij")
    a, b, c = ([grid.reshape(-1) for grid in grids[k * count : (k + 1) * count]] for k in range(3))
    left = called(callee, *called(callee, *a, *b), *c)
    right = called(callee, *a, *called(callee, *b, *c))
    return _bits(left) == _bits(right)


def _told_apart(values: Array, element_type: ElementType) -> Array:
    """The values, the smallest denormal number, which may be flushed, and a second NaN of other bits, if there is
    one."""
    if not element_type.is_floating:
        return values
    bits = values.view(f"u{values.itemsize}")
    denormal, other = np.ones(1, bits.dtype).view(values.dtype), (bits[:1] ^ 1).view(values.dtype)
    return np.concatenate([values, denormal, other] if np.isnan(widen(other))[0] else [values, denormal])


def _chosen_of_two(
    pairs: Sequence[Array], *, is_greatest: bool, takes_last: bool, takes_first_place: bool
) -> tuple[Array, Array]:
    """The definition of what `Choice` says of a reducer with a `place`, for pairs of values and places."""
    value, place, other, other_place = pairs
    x, y = widen(value), widen(other)
    is_first = (x > y if is_greatest else x < y) | (x != x)
    is_tie = x == y
    return (
        np.where(is_first | (is_tie & (not takes_last)), value, other),
        np.where(is_first | (is_tie & (takes_first_place | (place < other_place))), place, other_place),
    )


def _bits(results: Sequence[Array]) -> list[bytes]:
    return [np.ascontiguousarray(result).tobytes() for result in results]


def _representatives(element_type: ElementType) -> Array:
    if element_type.kind is Kind.PRED:
        return np.array([False, True])
    if element_type.is_floating:
        return np.array([np.nan, -1, -0.0, 0.0, 1], np.float32).astype(element_type.storage)
    return np.array([0, 1, 2], element_type.compute).astype(element_type.storage)


_TREE_LENGTH = 16
"""Shorter extents take less time one step after the other than along a tree."""
_CHOOSING_LENGTH = 4
"""Shorter extents are not worth finding out whether a reducer chooses by order, unless there are many."""
_MANY_ELEMENTS = 1 << 12


@frozen
class ReduceAttributes:
    """Which dimensions vanish, and what combines two values."""

    dimensions: Dimensions = attribute()
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
    def integer_bounds(use: Use, *operands: Bounds) -> Bounds:
        """The largest of some elements is as large as the least of all at least."""
        kind, (operand, initial) = only_reducer(use), (operands[0], operands[-1])
        if len(operands) != 2 or kind not in ("maximum", "minimum") or use.shapes[0].element_count == 0:
            return UNKNOWN
        choose = max if kind == "maximum" else min
        return Bounds(choose(operand.low, initial.low), choose(operand.high, initial.high))

    @staticmethod
    def additions(instruction: Instruction, module: Module, operands: Sequence[ArrayShape]) -> Additions | None:
        terms = prod(operands[0].dimensions[dimension] for dimension in instruction.attributes.dimensions)
        return reduced_additions(instruction, module, len(operands), terms)

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
    def infer(*operands: Shape, attributes: ReduceAttributes, computations: Programs) -> Shape:
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
        computations: Callees,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | Arrays:
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
        *, attributes: ReduceAttributes, shape: Shape, operand_shapes: ArrayShapes, computations: Callees
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
    def slices(*, attributes: ReduceAttributes, operand_shapes: ArrayShapes) -> tuple[int, int] | None:
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
