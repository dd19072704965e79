"""Operations of the dialect vector: broadcasts, slices, reshapes, reductions.

Source: MLIR, "vector" dialect; JAX, Pallas' lowering for TPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.library_calls.mosaic.bridging import as_array, as_value, flushing, hlo_kernel, with_sign
from hloexec.ops.library_calls.mosaic.ir import DYNAMIC, Operation
from hloexec.ops.library_calls.mosaic.registry import Kernel, Scope, operation
from hloexec.ops.reduction.reducers import KNOWN_REDUCERS, reduce_known


@operation("vector.broadcast", "vector.splat")
def bind_broadcast(operation: Operation, scope: Scope) -> Kernel:
    """A scalar in each element, or a vector along new leading dimensions, and where its own dimensions are 1."""
    source, result = operation.operand_types[0], operation.result_type
    storage = result.element_type.storage
    if source.is_scalar:
        return lambda value: np.full(result.dimensions, as_array(value, source), storage)
    return lambda value: np.ascontiguousarray(np.broadcast_to(value, result.dimensions))


@operation("vector.shape_cast", "tpu.reshape")
def bind_shape_cast(operation: Operation, scope: Scope) -> Kernel:
    """The elements in row-major order in another shape."""
    result = operation.result_type
    return lambda value: value.reshape(result.dimensions)


@operation("vector.transpose", "tpu.transpose")
def bind_transpose(operation: Operation, scope: Scope) -> Kernel:
    """out[i_p0, i_p1, …] = in[i_0, i_1, …]: dimension d of the result is dimension `permutation`[d] of the operand."""
    permutation = operation.attributes["permutation"]
    return lambda value: np.ascontiguousarray(value.transpose(permutation))


def _positions(operation: Operation, operands: tuple[Any, ...]) -> tuple[int, ...]:
    """`static_position`, with operands where it says that a position is known when the kernel runs only."""
    dynamic = iter(operands)
    return tuple(
        int(next(dynamic)) if position == DYNAMIC else position
        for position in operation.attributes.get("static_position", ())
    )


@operation("vector.extract")
def bind_extract(operation: Operation, scope: Scope) -> Kernel:
    """The element, or the vector of the minor dimensions, at a position of the major ones."""
    result = operation.result_type

    def compute(value: Array, *operands: Any) -> Any:
        return as_value(value[_positions(operation, operands)], result)

    return compute


@operation("vector.insert")
def bind_insert(operation: Operation, scope: Scope) -> Kernel:
    """The second operand with the first one, an element or a vector of minor dimensions, at a position."""
    source = operation.operand_types[0]

    def compute(value: Any, target: Array, *operands: Any) -> Array:
        result = target.copy()
        result[_positions(operation, operands)] = as_array(value, source)
        return result

    return compute


@operation("vector.extract_strided_slice")
def bind_slice(operation: Operation, scope: Scope) -> Kernel:
    """The elements at `offsets` + i * `strides`, `sizes` of them in each of the leading dimensions."""
    names = ("offsets", "sizes", "strides")
    parts = zip(*(operation.attributes[name] for name in names), strict=True)
    index = tuple(slice(offset, offset + (size - 1) * stride + 1, stride) for offset, size, stride in parts)
    return lambda value: np.ascontiguousarray(value[index])


@operation("vector.insert_strided_slice")
def bind_insert_slice(operation: Operation, scope: Scope) -> Kernel:
    """The second operand with the first one at `offsets` + i * `strides`, which count from the minor dimension back."""
    offsets, strides = operation.attributes["offsets"], operation.attributes["strides"]
    sizes = operation.operand_types[0].dimensions
    inner = zip(offsets[len(offsets) - len(sizes) :], sizes, strides, strict=True)
    index = (
        *offsets[: len(offsets) - len(sizes)],
        *(slice(offset, offset + (size - 1) * stride + 1, stride) for offset, size, stride in inner),
    )

    def compute(value: Array, target: Array) -> Array:
        result = target.copy()
        result[index] = value
        return result

    return compute


_REDUCERS = {
    "add": "add",
    "mul": "multiply",
    "minsi": "minimum",
    "maxsi": "maximum",
    "minui": "minimum",
    "maxui": "maximum",
    "minimumf": "minimum",
    "maximumf": "maximum",
    "and": "and",
    "or": "or",
    "xor": "xor",
}
"""Of kinds of reductions, the opcodes that combine two elements. minnumf and maxnumf, which skip NaN, are not there."""


@operation("vector.multi_reduction", "vector.reduction")
def bind_reduction(operation: Operation, scope: Scope) -> Kernel:
    """All elements along `reduction_dims` combined, and with the second operand once: `kind` says how.

    Floats narrower than f32 are summed up in f32 and rounded once, as in a reduce of HLO's.
    """
    kind = operation.word("kind")
    if kind not in _REDUCERS:
        raise UnsupportedError(f"its kernel reduces by {kind} in {operation.place}")
    source, result, is_unsigned = operation.operand_types[0], operation.result_type, kind.endswith("ui")
    dimensions = operation.attributes.get("reduction_dims", tuple(range(len(source.dimensions))))
    reducer, element = KNOWN_REDUCERS[_REDUCERS[kind]], with_sign(result, is_unsigned=is_unsigned)
    shape = ArrayShape(element, result.dimensions)
    combine = hlo_kernel(_REDUCERS[kind], [shape, shape], shape, scope.numerics)
    neutral = np.asarray(reducer.identity(element.accumulate)).astype(element.storage)

    def fold(value: Array) -> Array:
        return reduce_known(value, dimensions, neutral, reducer, element)

    reduce = flushing(fold, "reduce", [element], scope.numerics)

    def compute(value: Array, *initial: Any) -> Any:
        combined = np.asarray(reduce(value.view(element.storage)))
        if initial:
            combined = np.asarray(combine(as_array(initial[0], result).view(element.storage), combined))
        return as_value(combined.view(result.element_type.storage), result)

    return compute
