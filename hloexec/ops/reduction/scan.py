"""scan: a fold along one dimension that keeps every step's result."""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape, Computation, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Arrays, Dimensions
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, require
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.reduction.reducers import UFUNCS, recognise_value
from hloexec.ops.registry import ANY, Callees, Programs, opcode
from hloexec.ops.relations import Relating
from hloexec.ops.resources import empty
from hloexec.ops.signatures import called, require_parameters, require_same_shape
from hloexec.ops.traits import Probe, Rounding, Sums


@frozen
class ScanAttributes:
    """`is_associative` lets a backend evaluate steps in another order."""

    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    num_carries: int = attribute()
    is_reverse: bool = attribute(default=False)
    is_associative: bool = attribute(default=False)
    to_apply: str = attribute(Grammar.COMPUTATION, formerly=("calls",))


@opcode("scan", operands=(1, ANY), attributes=ScanAttributes, rounding=Rounding.NONE)
class Scan:
    """(outputs..., carries...) = to_apply(slices..., carries...), step by step along a dimension.

    Operands are the inputs, then the carries' first values. Each step takes slices of the inputs, without the
    dimension, and the carries; its results are slices of the outputs, and the next carries. With `is_reverse` the last
    slice comes first. Steps run in this order even where `is_associative`.
    """

    sums = Sums.PREFIXES
    probe = Probe(
        "(T[3,2], T[2]) scan(a0, a1), dimensions={0}, num_carries=1, to_apply=c",
        ("T[3,2]", "T[2]"),
        "c { x = T[2] parameter(0) y = T[2] parameter(1) ROOT r = (T[2], T[2]) tuple(x, y) }",
    )

    @staticmethod
    def relate(use: Relating) -> None:
        dimension, count = use.attributes.dimension, len(use.operands) - use.attributes.num_carries
        (parameters, result), *_ = use.computations
        parts = use.result.parts
        steps = use.operands[0].axes[dimension]
        for operand, parameter in zip(use.operands[count:], parameters[count:], strict=True):
            use.same_values(operand, parameter)
        outputs = len(parts) - use.attributes.num_carries
        for number, (ours, theirs) in enumerate(zip(parts, result.parts, strict=True)):
            if number >= outputs:
                use.same_values(ours, theirs)
                use.same_values(ours, use.operands[count + number - outputs])
        stacks = [*zip(use.operands[:count], parameters[:count], strict=True)]
        stacks += zip(parts[:outputs], result.parts[:outputs], strict=True)
        for stack, part in stacks:
            use.same([steps], [stack.axes[dimension]])
            use.same([axis for number, axis in enumerate(stack.axes) if number != dimension], part.axes)

    @staticmethod
    def infer(*operands: Shape, attributes: ScanAttributes, computations: Programs) -> Shape:
        program, dimension, carries = computations[0], attributes.dimension, attributes.num_carries
        count = len(operands) - carries
        require(carries >= 0 and count > 0, f"scan has {len(operands)} operands, of which {carries} cannot be carries")
        inputs = [array_shape(operand, f"input {number} of scan") for number, operand in enumerate(operands[:count])]
        for number, array in enumerate(inputs):
            require(
                0 <= dimension < array.rank,
                f"dimension {dimension} of scan is out of range for input {number}, which has shape {array}",
            )
            require(
                array.dimensions[dimension] == inputs[0].dimensions[dimension],
                f"the inputs of scan must have the same size in dimension {dimension}, but have shapes "
                f"{inputs[0]} and {array}",
            )
        slices = [ArrayShape(array.element_type, _without(array.dimensions, dimension)) for array in inputs]
        require_parameters(program, [*slices, *operands[count:]], "to_apply of scan")
        results = parts_of(program.result)
        require(
            len(results) >= carries, f"to_apply of scan must return its {carries} carries, but returns {program.result}"
        )
        outputs = len(results) - carries
        for number, (result, carry) in enumerate(zip(results[outputs:], operands[count:], strict=True)):
            require_same_shape(result, carry, f"the new carry {number} of to_apply of scan")
        size = inputs[0].dimensions[dimension]
        stacked = [_stacked(result, dimension, size, number) for number, result in enumerate(results[:outputs])]
        whole = (*stacked, *results[outputs:])
        return TupleShape(whole) if isinstance(program.result, TupleShape) else whole[0]

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: ScanAttributes,
        shape: Shape,
        computations: Callees,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Any:
        step, dimension = computations[0], attributes.dimension
        fold = None if numerics.changes_results else _recognised_fold(step.computation, operands)
        if fold is not None:
            return _cumulative(fold, *operands, dimension=dimension, is_reverse=attributes.is_reverse)
        count = len(operands) - attributes.num_carries
        inputs = [np.moveaxis(operand, dimension, 0) for operand in operands[:count]]
        carries: Arrays = operands[count:]
        shapes = parts_of(shape)
        outputs = [_empty(element, dimension) for element in shapes[: len(shapes) - attributes.num_carries]]
        steps = range(len(inputs[0]))
        for number in reversed(steps) if attributes.is_reverse else steps:
            results = called(step, *(operand[number] for operand in inputs), *carries)
            for output, result in zip(outputs, results, strict=False):
                output[number] = result
            carries = results[len(outputs) :]
        whole = (*(np.moveaxis(output, 0, dimension) for output in outputs), *carries)
        return whole if isinstance(shape, TupleShape) else whole[0]


def _recognised_fold(computation: Computation, operands: Arrays) -> np.ufunc | None:
    """f where each step gives f(slice, carry) as its only output and as its only carry, if NumPy computes that f."""
    parameters, root = computation.parameters, computation.root
    if len(operands) != 2 or root.opcode != "tuple" or len(root.operands) != 2:
        return None
    results = {recognise_value(computation, result, *parameters) for result in computation.operands_of(root)}
    if len(results) != 1:
        return None
    element_type = array_shape(parameters[0].shape, "a parameter of to_apply of scan").element_type
    is_plain = not element_type.is_narrow and all(operand.dtype == element_type.storage for operand in operands)
    folds = UFUNCS if element_type.is_integral else {"add": np.add} if element_type.is_floating else {}
    return folds.get(results.pop() or "") if is_plain else None


_LONG_SLICE = 64
"""Number of elements worth a separate NumPy call, as measured."""


def _cumulative(
    fold: np.ufunc, operand: Array, carry: Array, *, dimension: int, is_reverse: bool
) -> tuple[Array, Array]:
    """The output and the last carry of a scan whose step is `fold`, one step after the other."""
    result = empty(operand.shape, operand.dtype)
    slices, outputs = np.moveaxis(operand, dimension, 0), np.moveaxis(result, dimension, 0)
    if is_reverse:
        slices, outputs = slices[::-1], outputs[::-1]
    if not len(slices):
        return result, carry
    if carry.size < _LONG_SLICE:
        outputs[...] = slices
        outputs[0] = fold(slices[0], carry)
        fold.accumulate(outputs, axis=0, out=outputs)
        return result, outputs[-1, ...]
    for operand_slice, output in zip(slices, outputs, strict=True):
        carry = fold(operand_slice, carry, out=output)
    return result, carry


def _without(dimensions: Dimensions, dimension: int) -> Dimensions:
    return (*dimensions[:dimension], *dimensions[dimension + 1 :])


def _stacked(result: Shape, dimension: int, size: int, number: int) -> ArrayShape:
    array = array_shape(result, f"result {number} of to_apply of scan")
    require(
        dimension <= array.rank,
        f"result {number} of to_apply of scan, {array}, cannot be stacked along dimension {dimension}",
    )
    return ArrayShape(array.element_type, (*array.dimensions[:dimension], size, *array.dimensions[dimension:]))


def _empty(shape: Shape, dimension: int) -> Array:
    """Room for an output, the scanned dimension first."""
    array = array_shape(shape, "an output of scan")
    order = (array.dimensions[dimension], *_without(array.dimensions, dimension))
    return np.empty(order, array.element_type.storage)
