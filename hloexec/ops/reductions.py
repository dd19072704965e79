"""Reductions: reduce, reduce-window and map.

A reducer that is one usual operation (`reducers.recognise`) is applied to whole arrays by `known_reducers`. Every other
one is called: on whole arrays too, but one element of the reduced extent, or one tap of the window, after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import ElementType, Kind
from hloexec.ir import ArrayShape, Computation, Shape, TupleShape, Window
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, narrow, require, same_dimensions, widen
from hloexec.ops.copying import in_order
from hloexec.ops.exact.sums import can_reduce_exactly, reduce_exactly
from hloexec.ops.intervals import INFINITY, POSITIVE, UNKNOWN, Bounds, Demand, Demanded, Use
from hloexec.ops.known_reducers import KNOWN_REDUCERS, reduce_axis, reduce_known
from hloexec.ops.policy import REFERENCE, NumericsPolicy
from hloexec.ops.probes import REDUCER, Probe
from hloexec.ops.reducers import chooses_by_order, recognise, recognise_components
from hloexec.ops.registry import ANY, Callee, ProgramShape, opcode
from hloexec.ops.rounding import Rounding, Summation
from hloexec.ops.rows import RowForm, RowFunction, prefix_length, prefixes
from hloexec.ops.signatures import require_reducer, same_type
from hloexec.ops.window_reductions import reduce_windows_exactly, reduce_windows_known, reduce_windows_stepwise
from hloexec.ops.windows import output_size, require_window
from hloexec.values import Array

__all__ = ["MapAttributes", "ReduceAttributes", "ReduceWindowAttributes"]

_TREE_LENGTH = 16
"""Shorter extents are not worth finding out whether a reducer is associative."""


@attrs.frozen
class ReduceAttributes:
    """Which dimensions vanish, and what combines two values."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST)
    to_apply: str = attribute(Grammar.COMPUTATION)


@attrs.frozen
class ReduceWindowAttributes:
    """The window, and what combines two values."""

    window: Window = attribute(Grammar.WINDOW, default=Window())
    to_apply: str = attribute(Grammar.COMPUTATION)


@attrs.frozen
class MapAttributes:
    """All dimensions in order (the text may leave them out), and the computation."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    to_apply: str = attribute(Grammar.COMPUTATION)


@opcode("reduce", operands=(2, ANY), attributes=ReduceAttributes, rounding=Rounding.SUM)
class Reduce:
    """out[kept...] = init_value combined with all operand[...] along `dimensions`

    N operands of the same dimensions, then N initial values; the computation takes N accumulated values and N elements.
    Narrow floats are added, multiplied, and compared in f32, and rounded once; any other reducer works step by step in
    the declared types, row-major over the reduced dimensions. XLA: Reduce.
    """

    probe = Probe("T[] reduce(a0, a1), dimensions={0}, to_apply=c", ("T[2]", "T[]"), REDUCER)

    @staticmethod
    def bounds(use: Use, *operands: Bounds) -> Bounds:
        """A sum or product of what is never negative is not; an extremum lies where the elements do."""
        kind = _only_reducer(use)
        if kind is None:
            return UNKNOWN
        operand, initial = operands
        if kind in ("maximum", "minimum", "and", "or"):
            return Bounds(min(operand.low, initial.low), max(operand.high, initial.high))
        is_positive = kind in ("add", "multiply") and operand.low >= 0 and initial.low >= 0
        return Bounds(0, INFINITY) if is_positive else UNKNOWN

    @staticmethod
    def demands_for(use: Use, demand: Demand) -> Demanded:
        return _reduced_demands(use, demand)

    @staticmethod
    def infer(
        *operands: Shape, attributes: ReduceAttributes, shape: Shape, computations: Sequence[ProgramShape]
    ) -> Shape:
        arrays, results = _check_reducer(operands, computations[0], "reduce")
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
        return _result_shape(results, sizes, dynamic, computations[0])

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: ReduceAttributes,
        shape: Shape,
        computations: Sequence[Callee],
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | tuple[Array, ...]:
        arrays, init_values = _halves(operands)
        callee, dimensions = computations[0], attributes.dimensions
        types = _element_types(shape)
        names = _usual_operations(callee, types, is_exact=numerics.is_exact)
        if names is None:
            return _packed(_reduce_by_calling(arrays, init_values, dimensions, callee, types), shape)
        results = [
            reduce_exactly(name, array, dimensions, init_value, element_type)
            if numerics.is_exact and can_reduce_exactly(name, element_type)
            else reduce_known(array, dimensions, init_value, KNOWN_REDUCERS[name], element_type)
            for array, init_value, name, element_type in zip(arrays, init_values, names, types, strict=True)
        ]
        return _packed(results, shape)

    @staticmethod
    def bind(
        *,
        attributes: ReduceAttributes,
        shape: ArrayShape,
        operand_shapes: tuple[ArrayShape, ...],
        computations: Sequence[Callee],
    ) -> Callable[[Array, Array], Array] | None:
        element_type, dimensions = shape.element_type, attributes.dimensions
        names = _usual_operations(computations[0], [element_type], is_exact=False)
        if names is None or len(operand_shapes) != 2:
            return None
        reducer = KNOWN_REDUCERS[names[0]]
        return lambda array, init_value: reduce_known(array, dimensions, init_value, reducer, element_type)

    @staticmethod
    def by_rows(
        *,
        attributes: ReduceAttributes,
        shape: Shape,
        operand_shapes: tuple[ArrayShape, ...],
        computations: Sequence[Callee],
    ) -> RowForm | None:
        """Reductions of one operand that lies in row-major order, by a usual operation: the order of sums is that of
        the kernel, as how the elements of one row are grouped depends on their number alone."""
        names, dimensions = recognise_components(computations[0].computation), attributes.dimensions
        if len(operand_shapes) != 2 or not isinstance(shape, ArrayShape) or names is None or not dimensions:
            return None
        operand, element_type = operand_shapes[0], shape.element_type
        if names[0] not in KNOWN_REDUCERS or element_type.is_complex:
            return None
        if not operand.element_type is operand_shapes[1].element_type is element_type:
            return None
        first, reducer = min(dimensions), KNOWN_REDUCERS[names[0]]
        is_at_end = sorted(dimensions) == list(range(first, operand.rank))

        def bind(count: int) -> RowFunction:
            before = prefix_length(operand.dimensions, count) - 1
            places = tuple(dimension - before for dimension in dimensions)

            def reduced(block: Array, init_value: Array) -> Array:
                return reduce_known(in_order(block), places, init_value, reducer, element_type)

            if not is_at_end or element_type.is_narrow:
                return reduced
            length, kept = prod(operand.dimensions[first:]), operand.dimensions[before + 1 : first]

            def reduced_neighbours(block: Array, init_value: Array) -> Array:
                # What `reduce_known` does where it finds nothing to convert or to order.
                if block.dtype != init_value.dtype or not block.flags.c_contiguous:
                    return reduced(block, init_value)
                total: Array = reducer.combine(init_value, reduce_axis(block.reshape(-1, length), 1, reducer))
                return total.reshape((block.shape[0], *kept))

            return reduced_neighbours

        return RowForm(prefixes(operand.dimensions[:first]), bind, is_reduction=True)

    @staticmethod
    def summed(
        *,
        attributes: ReduceAttributes,
        shape: Shape,
        operand_shapes: tuple[ArrayShape, ...],
        computations: Sequence[Callee],
    ) -> Summation | None:
        names = _usual_operations(computations[0], _element_types(shape), is_exact=False) or ()
        terms = prod(operand_shapes[0].dimensions[dimension] for dimension in attributes.dimensions)
        if "multiply" in names:
            return Summation(terms, is_product=True)
        if "add" not in names:
            return None
        along = (*(attributes.dimensions if name == "add" else () for name in names), *(() for _ in names))
        # XLA:CPU rounds each partial sum to the reducer's type, along dimensions of more than 32 terms block by block.
        sizes = [operand_shapes[0].dimensions[dimension] for dimension in attributes.dimensions]
        return Summation(terms, along, narrow_steps=prod(min(size, 6.4 * math.log2(max(2, size))) for size in sizes))


@opcode("reduce-window", operands=(2, ANY), attributes=ReduceWindowAttributes, rounding=Rounding.SUM)
class ReduceWindow:
    """out[o...] = init_value combined with all operand[...] under the window that stands at o

    Along each dimension tap t of the window at place o lies at o·stride + t·window_dilation − padding_low of the
    operand dilated by base_dilation. What lies in padding or between dilated elements is skipped. N operands and N
    initial values as for reduce. XLA: ReduceWindow.
    """

    probe = Probe("T[2] reduce-window(a0, a1), window={size=1}, to_apply=c", ("T[2]", "T[]"), REDUCER)

    @staticmethod
    def demands_for(use: Use, demand: Demand) -> Demanded:
        return _reduced_demands(use, demand)

    @staticmethod
    def infer(
        *operands: Shape, attributes: ReduceWindowAttributes, shape: Shape, computations: Sequence[ProgramShape]
    ) -> Shape:
        arrays, results = _check_reducer(operands, computations[0], "reduce-window")
        operand, window = arrays[0], attributes.window
        require(
            len(window.dimensions) == operand.rank,
            f"the window of reduce-window has {len(window.dimensions)} dimensions, but its operand is {operand}",
        )
        require_window(window, "reduce-window")
        sizes = tuple(map(output_size, operand.dimensions, window.dimensions))
        return _result_shape(results, sizes, operand.dynamic_dimensions, computations[0])

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: ReduceWindowAttributes,
        shape: Shape,
        computations: Sequence[Callee],
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | tuple[Array, ...]:
        arrays, init_values = _halves(operands)
        callee, window = computations[0], attributes.window
        types = _element_types(shape)
        names = _usual_operations(callee, types, is_exact=numerics.is_exact)
        if names is None:
            inputs = _as_parameters([*init_values, *arrays], callee.computation)
            stepwise = reduce_windows_stepwise(inputs[len(arrays) :], inputs[: len(arrays)], window, callee)
            return _packed(map(_converted, stepwise, types), shape)
        reduce_windows = reduce_windows_exactly if numerics.is_exact else reduce_windows_known
        results = [
            reduce_windows(array, init_value, window, KNOWN_REDUCERS[name], element_type)
            for array, init_value, name, element_type in zip(arrays, init_values, names, types, strict=True)
        ]
        return _packed(results, shape)

    @staticmethod
    def summed(
        *, attributes: ReduceWindowAttributes, shape: Shape, computations: Sequence[Callee], **_: object
    ) -> Summation | None:
        names = _usual_operations(computations[0], _element_types(shape), is_exact=False) or ()
        terms = prod(dimension.size for dimension in attributes.window.dimensions)
        if not {"add", "multiply"} & set(names):
            return None
        # XLA makes prefix sums of sums of blocks of 16, each added up in the declared type: every term passes through
        # four partial sums per binary digit of their number, which are rounded apart from one another.
        steps = 6 * min(float(terms), 4 * math.log2(max(2, terms)))
        return Summation(terms, narrow_steps=steps, is_product="multiply" in names)


@opcode("map", operands=(0, ANY), attributes=MapAttributes, rounding=Rounding.NONE)
class Map:
    """out[i...] = computation(operand 0[i...], operand 1[i...], …)   (XLA: Map)"""

    probe = Probe("T[2] map(a0, a1), dimensions={0}, to_apply=c", ("T[2]", "T[2]"), REDUCER)

    @staticmethod
    def infer(*operands: Shape, attributes: MapAttributes, computations: Sequence[ProgramShape]) -> Shape:
        require(len(operands) > 0, "map must have at least one operand")
        arrays = [array_shape(operand, f"operand {number} of map") for number, operand in enumerate(operands)]
        (program,) = computations
        require(
            len(program.parameters) == len(arrays),
            f"the computation of map takes {len(program.parameters)} parameters, but map has {len(arrays)} operands",
        )
        result = arrays[0]
        for number, (array, parameter) in enumerate(zip(arrays, program.parameters, strict=True)):
            result = same_dimensions(result, array, "the operands of map")
            scalar = array_shape(parameter, f"parameter {number} of the computation of map")
            require(
                scalar.rank == 0 and same_type(scalar.element_type, array.element_type),
                f"parameter {number} of the computation of map must be {array.element_type}[], but is {scalar}",
            )
        require(
            attributes.dimensions in ((), tuple(range(result.rank))),
            f"map must name all {result.rank} dimensions in order, but names {list(attributes.dimensions)}",
        )
        value = array_shape(program.result, "the result of the computation of map")
        require(value.rank == 0, f"the computation of map must return a scalar, but returns {value}")
        return result.with_element_type(value.element_type)

    @staticmethod
    def evaluate(*operands: Array, shape: ArrayShape, computations: Sequence[Callee]) -> Array:
        (callee,) = computations
        if operands[0].size == 0:
            return np.empty(operands[0].shape, shape.element_type.storage)
        return _converted(callee(*_as_parameters(operands, callee.computation)), shape.element_type)


def _check_reducer(
    operands: Sequence[Shape], program: ProgramShape, what: str
) -> tuple[list[ArrayShape], list[ElementType]]:
    """The arrays among the operands and the element types of the results, or ShapeError."""
    require(
        len(operands) % 2 == 0, f"{what} must have as many initial values as arrays, but has {len(operands)} operands"
    )
    count = len(operands) // 2
    arrays = [array_shape(operand, f"operand {k} of {what}") for k, operand in enumerate(operands[:count])]
    inits = [array_shape(init, f"operand {count + k} of {what}") for k, init in enumerate(operands[count:])]
    for array in arrays[1:]:
        same_dimensions(arrays[0], array, f"the arrays that {what} takes")
    require_reducer(program, arrays, f"the computation of {what}")
    parameters = [
        array_shape(parameter, f"a parameter of the computation of {what}") for parameter in program.parameters
    ]
    for k, (init, parameter) in enumerate(zip(inits, parameters[:count], strict=True)):
        require(
            init.rank == 0 and same_type(init.element_type, parameter.element_type),
            f"initial value {k} of {what} must be {parameter}, as parameter {k} of its computation is, but is {init}",
        )
    for k, (array, parameter) in enumerate(zip(arrays, parameters[count:], strict=True)):
        require(
            same_type(array.element_type, parameter.element_type),
            f"array {k} of {what} is {array}, but parameter {count + k} of its computation is {parameter}",
        )
    outcomes = program.result.elements if isinstance(program.result, TupleShape) else (program.result,)
    return arrays, [array_shape(outcome, f"a result of the computation of {what}").element_type for outcome in outcomes]


def _result_shape(
    types: Sequence[ElementType], sizes: tuple[int, ...], dynamic: tuple[bool, ...], program: ProgramShape
) -> Shape:
    shapes = tuple(ArrayShape(kind, sizes, dynamic_dimensions=dynamic if any(dynamic) else ()) for kind in types)
    return TupleShape(shapes) if isinstance(program.result, TupleShape) else shapes[0]


def _halves(operands: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
    count = len(operands) // 2
    return operands[:count], operands[count:]


def _element_types(shape: Shape) -> list[ElementType]:
    """The element types of a result that is an array or a tuple of arrays."""
    leaves = shape.elements if isinstance(shape, TupleShape) else (shape,)
    return [array_shape(leaf, "a result").element_type for leaf in leaves]


def _usual_operations(callee: Callee, types: Sequence[ElementType], *, is_exact: bool) -> tuple[str, ...] | None:
    """The names in KNOWN_REDUCERS of what a reducer does with each array, or None where it must be called."""
    names = recognise_components(callee.computation)
    if names is None or not all(name in KNOWN_REDUCERS for name in names):
        return None
    # NumPy's products of complex numbers are not rounded alike on all processors; the callee's own are.
    called = ("minimum", "maximum", "multiply") if is_exact else ("minimum", "maximum")
    return None if any(kind.is_complex and name in called for name, kind in zip(names, types, strict=True)) else names


def _packed(results: Any, shape: Shape) -> Array | tuple[Array, ...]:
    values: tuple[Array, ...] = tuple(results)
    return values if isinstance(shape, TupleShape) else values[0]


def _as_parameters(arrays: Sequence[Array], computation: Computation) -> list[Array]:
    """The arrays in the element types of a computation's first parameters; floats may differ in width."""
    shapes = (array_shape(shape, "a parameter") for shape in computation.parameter_shapes)
    return [_converted(array, shape.element_type) for array, shape in zip(arrays, shapes, strict=False)]


def _converted(array: Array, element_type: ElementType) -> Array:
    """An array of the same kind of element type in another width."""
    return array if array.dtype == element_type.storage else narrow(widen(array), element_type)


def _reduce_by_calling(
    arrays: Sequence[Array],
    init_values: Sequence[Array],
    dimensions: Sequence[int],
    callee: Callee,
    types: Sequence[ElementType],
) -> list[Array]:
    """Reduce with any reducer: along a tree where it is known to be associative, else one step after the other."""
    kept = [dimension for dimension in range(arrays[0].ndim) if dimension not in dimensions]
    sizes = [arrays[0].shape[dimension] for dimension in kept]
    length = prod(arrays[0].shape[dimension] for dimension in dimensions)
    count = len(arrays)
    converted = _as_parameters([*init_values, *arrays], callee.computation)
    totals = [np.broadcast_to(value, (prod(sizes),)) for value in converted[:count]]
    # One row per kept element, its elements in row-major order of the reduced dimensions.
    rows = [array.transpose(*kept, *sorted(dimensions)).reshape(prod(sizes), length) for array in converted[count:]]
    if prod(sizes) == 0:
        pass
    elif length >= _TREE_LENGTH and _is_associative_choice(callee):
        totals = _call(callee, totals, [row[:, 0] for row in _reduce_tree(rows, callee)])
    else:
        for place in range(length):
            totals = _call(callee, totals, [row[:, place] for row in rows])
    return [_converted(total, kind).reshape(sizes) for total, kind in zip(totals, types, strict=True)]


def _call(callee: Callee, left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    result = callee(*left, *right)
    return list(result) if isinstance(result, tuple) else [result]


def _reduce_tree(rows: list[Array], callee: Callee) -> list[Array]:
    """Combine neighbours until one is left in each row; the order of the elements is kept."""
    while (length := rows[0].shape[1]) > 1:
        even = length // 2 * 2
        paired = _call(callee, [row[:, 0:even:2] for row in rows], [row[:, 1:even:2] for row in rows])
        rows = [np.concatenate([pair, row[:, even:]], axis=1) for pair, row in zip(paired, rows, strict=True)]
    return rows


def _is_associative_choice(callee: Callee) -> bool:
    """Whether a reducer only compares and chooses, and choosing among three does not depend on the grouping.

    What such a reducer does depends on the order of its arguments alone. Three values take part in regrouping, so three
    different numbers, both zeros and NaN stand for all numbers there are, and trying all triples is a proof.
    """
    computation = callee.computation
    count = len(computation.parameters) // 2
    if count > 2 or not chooses_by_order(computation):
        return False
    shapes = [array_shape(shape, "a parameter") for shape in computation.parameter_shapes[:count]]
    values = [_representatives(shape.element_type) for shape in shapes]
    grids = np.meshgrid(*values * 3, indexing="ij")
    a, b, c = ([grid.reshape(-1) for grid in grids[k * count : (k + 1) * count]] for k in range(3))
    left = _call(callee, _call(callee, a, b), c)
    right = _call(callee, a, _call(callee, b, c))
    return all(mine.tobytes() == its.tobytes() for mine, its in zip(left, right, strict=True))


def _representatives(element_type: ElementType) -> Array:
    if element_type.kind is Kind.PRED:
        return np.array([False, True])
    if element_type.is_floating:
        return np.array([np.nan, -1, -0.0, 0.0, 1], np.float32).astype(element_type.storage)
    return np.array([0, 1, 2], element_type.compute).astype(element_type.storage)


def _only_reducer(use: Use) -> str | None:
    """The opcode that the computation of a reduction of one operand amounts to."""
    return recognise(use.module.by_name[use.attributes.to_apply]) if len(use.shapes) == 2 else None


def _reduced_demands(use: Use, demand: Demand) -> Demanded:
    kind = _only_reducer(use)
    if kind in ("maximum", "minimum"):
        yield 0, Demand(demand.low, demand.high)
    elif kind == "add" and demand.low == 0:
        yield 0, POSITIVE
