"""Shared by operations that call a reducer: the shapes it accepts, and the operation that it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Shape, TupleShape, parts_of
from hloexec.core.values import Array
from hloexec.ops.common import array_shape, in_type, require, same_dimensions, shape_of
from hloexec.ops.intervals import POSITIVE, Demand, Demanded, Use
from hloexec.ops.reduction.known_reducers import KNOWN_REDUCERS
from hloexec.ops.reduction.reducers import recognise, recognise_components
from hloexec.ops.registry import Callee, ProgramShape
from hloexec.ops.signatures import as_parameters, require_reducer, same_type


def reducer_types(
    operands: Sequence[Shape], program: ProgramShape, what: str
) -> tuple[list[ArrayShape], list[ElementType]]:
    """The arrays among the operands and the element types of the results, or ShapeError."""
    require(
        len(operands) % 2 == 0, f"{what} must have as many initial values as arrays, but has {len(operands)} operands"
    )
    count = len(operands) // 2
    given = [array_shape(operand, f"operand {k} of {what}") for k, operand in enumerate(operands)]
    arrays, inits = given[:count], given[count:]
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
    return arrays, element_types(program.result)


def result_shape(
    types: Sequence[ElementType], sizes: tuple[int, ...], dynamic: tuple[bool, ...], program: ProgramShape
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
) -> Array | tuple[Array, ...]:
    """The results for arrays and their initial values, in the element types of `shape`.

    `by_operation(array, init_value, name, element_type)` reduces one array where the reducer does a usual operation
    with each; else `by_calling(arrays, init_values)` reduces all, given in the element types of its parameters.
    """
    count, types = len(operands) // 2, element_types(shape)
    names = usual_operations(callee, types, is_exact=is_exact)
    if names is None:
        inputs = as_parameters([*operands[count:], *operands[:count]], callee.computation)
        results = tuple(map(in_type, by_calling(inputs[count:], inputs[:count]), types))
    else:
        results = tuple(map(by_operation, operands[:count], operands[count:], names, types))
    return results if isinstance(shape, TupleShape) else results[0]


def only_reducer(use: Use) -> str | None:
    """The opcode that the computation of a reduction of one operand amounts to."""
    return recognise(use.module.by_name[use.attributes.to_apply]) if len(use.shapes) == 2 else None


def reduced_demands(use: Use, demand: Demand) -> Demanded:
    kind = only_reducer(use)
    if kind in ("maximum", "minimum"):
        yield 0, Demand(demand.low, demand.high)
    elif kind == "add" and demand.low == 0:
        yield 0, POSITIVE
