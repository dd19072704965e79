"""Shape rules that several families share: comparing whole shapes, and signatures of called computations.

Shapes are compared as in XLA's verifier: layouts are ignored, and floating-point types of different width are
tolerated, because optimized modules mix them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, Kind
from hloexec.core.ir import ArrayShape, Computation, Shape, TupleShape, agree_in_arrays, parts_of
from hloexec.core.values import Array
from hloexec.errors import ShapeError
from hloexec.ops.common import array_shape, in_type, require
from hloexec.ops.registry import Callee, ProgramShape

TOKEN_SHAPE = ArrayShape(ELEMENT_TYPES["token"])
U32_SHAPE = ArrayShape(ELEMENT_TYPES["u32"])


def same_shape(first: Shape, second: Shape) -> bool:
    """Whether two shapes are equal but for layouts, the width of floats, and which dimensions are dynamic."""
    return agree_in_arrays(first, second, _same_array)


def _same_array(first: ArrayShape, second: ArrayShape) -> bool:
    return first.dimensions == second.dimensions and same_type(first.element_type, second.element_type)


def same_type(first: ElementType, second: ElementType) -> bool:
    """Whether two element types are equal but for the width of floats."""
    return first is second or (first.is_floating and second.is_floating)


def is_scalar_of(shape: Shape, kind: Kind) -> bool:
    """Whether a shape is that of a scalar of an element type of this kind."""
    return isinstance(shape, ArrayShape) and shape.rank == 0 and shape.element_type.kind is kind


def require_same_shape(actual: Shape, expected: Shape, subject: str) -> None:
    """Raise ShapeError unless the shapes agree; `subject` names the first, e.g. `operand 0 of while`."""
    if not same_shape(actual, expected):
        raise ShapeError(f"{subject} has shape {actual}, expected {expected}")


def require_tuple(shape: Shape, minimum: int, subject: str) -> tuple[Shape, ...]:
    """The elements of a tuple shape of at least `minimum` elements."""
    if not isinstance(shape, TupleShape) or len(shape.elements) < minimum:
        raise ShapeError(f"{subject} must be a tuple of at least {minimum} elements, but has shape {shape}")
    return shape.elements


def element_of_operand(opcode_name: str, index: int) -> Callable[[Shape], Shape]:
    """The shape rule of what gives an element of a started operation, a tuple of at least two."""
    return lambda operand: require_tuple(operand, 2, f"the operand of {opcode_name}")[index]


def require_token(shape: Shape, subject: str) -> None:
    """Raise ShapeError unless the shape is a token's."""
    require(isinstance(shape, ArrayShape) and shape.is_token, f"{subject} must be a token, but has shape {shape}")


def one_or_tuple(shapes: Sequence[Shape]) -> Shape:
    """The result of an operation on one operand or many: the shape itself, or a tuple of them."""
    return shapes[0] if len(shapes) == 1 else TupleShape(tuple(shapes))


def require_parameters(program: ProgramShape, operands: Sequence[Shape], subject: str) -> None:
    """Raise ShapeError unless a computation takes these operands; `subject` names it, e.g. `to_apply of call`."""
    require(
        len(program.parameters) == len(operands),
        f"{subject} takes {len(program.parameters)} parameters, but {len(operands)} operands are given",
    )
    for number, (parameter, operand) in enumerate(zip(program.parameters, operands, strict=True)):
        if not same_shape(parameter, operand):
            raise ShapeError(
                f"parameter {number} of {subject} has shape {parameter}, but the operand given has shape {operand}"
            )


def require_scalar_comparison(program: ProgramShape, operands: Sequence[ArrayShape], subject: str) -> None:
    """Raise ShapeError unless a computation takes two scalars of each operand's type, in pairs, and returns pred[]."""
    scalars = [ArrayShape(operand.element_type) for operand in operands for _ in range(2)]
    require_parameters(program, scalars, subject)
    require(is_scalar_of(program.result, Kind.PRED), f"{subject} must return pred[], but returns {program.result}")


def require_reducer(program: ProgramShape, operands: Sequence[ArrayShape], subject: str) -> None:
    """Raise ShapeError unless a computation combines two scalars of each operand's type, with one result for each.

    The parameters are first all left, then all right values; a single result may stand without a tuple. Sums may be
    kept in another type than the operands' (a wider one), as long as parameters and results agree.
    """
    parameters, count = program.parameters, len(operands)
    require(len(parameters) == 2 * count, f"{subject} must take {2 * count} parameters, but takes {len(parameters)}")
    scalars = all(isinstance(parameter, ArrayShape) and parameter.rank == 0 for parameter in parameters)
    if not scalars:
        raise ShapeError(f"{subject} must take scalars, but takes {', '.join(map(str, parameters))}")
    results = parts_of(program.result)
    if len(results) != count:
        raise ShapeError(f"{subject} must return {count} results, but returns {program.result}")
    for k, result in enumerate(results):
        require_same_shape(parameters[k], result, f"parameter {k} of {subject}")
        require_same_shape(parameters[count + k], result, f"parameter {count + k} of {subject}")


def as_parameters(arrays: Sequence[Array], computation: Computation) -> list[Array]:
    """The arrays in the element types of a computation's first parameters; floats may differ in width."""
    shapes = (array_shape(shape, "a parameter") for shape in computation.parameter_shapes)
    return [in_type(array, shape.element_type) for array, shape in zip(arrays, shapes, strict=False)]


def called(callee: Callee, *arguments: Array) -> tuple[Array, ...]:
    """What a called computation gives for arrays: one array for each part of its result."""
    result = callee(*arguments)
    return result if isinstance(result, tuple) else (result,)
