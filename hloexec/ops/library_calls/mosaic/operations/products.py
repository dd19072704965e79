"""Matrix products: a dot of HLO's, and an addition of the accumulator.

Source: JAX, tpu dialect (MatmulOp, DotDimensionNumbersAttr); MLIR, "vector" dialect (contract).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.contraction.dot import free_dimensions
from hloexec.ops.library_calls.mosaic.bridging import hlo_kernel
from hloexec.ops.library_calls.mosaic.ir import Operation, Text
from hloexec.ops.library_calls.mosaic.registry import Kernel, Scope, operation

_PRECISIONS = {"": "default", "bf16": "default", "fp32": "highest"}


@frozen
class _Numbers:
    """The dimension numbers of a product."""

    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    output: tuple[tuple[int, int], ...] = ()
    """Of the result's dimensions, whose they are, lhs (0) or rhs (1), and which; none means those of a dot."""


@operation("tpu.matmul")
def bind_matmul(operation: Operation, scope: Scope) -> Kernel:
    """acc + lhs · rhs: a dot in the accumulator's type, whose operands have the default precision or the highest one.

    Products of floats narrower than f32 are exact and add up in f32; integers wrap. The accumulator is added last.
    """
    precision = _PRECISIONS.get(operation.word("precision"))
    if precision is None:
        raise UnsupportedError(f"its kernel multiplies with precision {operation.word('precision')}")
    return _product(operation, scope, _numbers(operation), precision)


@operation("vector.contract")
def bind_contract(operation: Operation, scope: Scope) -> Kernel:
    """The same, of dimensions that `indexing_maps` name, as kernels of 2023 and 2024 have it."""
    maps = [_dimensions(item) for item in operation.attributes["indexing_maps"]]
    if len(maps) != 3 or operation.word("kind", "add") != "add" or len(operation.operands) != 3:
        raise UnsupportedError(f"its kernel has {operation.place} with masks, or of another kind than add")
    left, right, output = maps
    both = [number for number in left if number in right]
    batch, contracting = ([number for number in both if (number in output) is kept] for kept in (True, False))
    numbers = _Numbers(
        tuple(map(left.index, contracting)),
        tuple(map(right.index, contracting)),
        tuple(map(left.index, batch)),
        tuple(map(right.index, batch)),
        tuple((0, left.index(number)) if number in left else (1, right.index(number)) for number in output),
    )
    return _product(operation, scope, numbers, "default")


def _dimensions(value: object) -> tuple[int, ...]:
    """`affine_map<(d0, d1, d2) -> (d0, d2)>` as the numbers 0 and 2."""
    names = value.text.partition("->")[2] if isinstance(value, Text) else ""
    if not re.fullmatch(r"\s*\((d\d+(, )?)*\)>\s*", names):
        raise UnsupportedError(f"its kernel has an indexing map {value}, which hloexec cannot read")
    return tuple(map(int, re.findall(r"\d+", names)))


def _product(operation: Operation, scope: Scope, numbers: _Numbers, precision: str) -> Kernel:
    """A dot and the addition of the third operand."""
    lhs, rhs, result = *operation.operand_types[:2], operation.result_type
    attributes = {
        "lhs_contracting_dims": numbers.lhs_contracting,
        "rhs_contracting_dims": numbers.rhs_contracting,
        "lhs_batch_dims": numbers.lhs_batch,
        "rhs_batch_dims": numbers.rhs_batch,
        "operand_precision": (precision, precision),
    }
    order = _order(numbers, len(lhs.dimensions), len(rhs.dimensions))
    sizes = [0] * len(order)
    for place, dimension in enumerate(order):
        sizes[dimension] = result.dimensions[place]
    product = ArrayShape(result.element_type, tuple(sizes))
    dot = hlo_kernel("dot", [lhs.shape, rhs.shape], product, scope.numerics, **attributes)
    add = hlo_kernel("add", [result.shape, result.shape], result.shape, scope.numerics)

    def compute(left: Array, right: Array, accumulator: Array) -> Array:
        return np.asarray(add(accumulator, np.ascontiguousarray(dot(left, right).transpose(order))))

    return compute


def _numbers(operation: Operation) -> _Numbers:
    """`#tpu.dot_dimension_numbers<lhs contracting, rhs contracting, …>`; without, those that the transposes say."""
    value = operation.attributes.get("dimension_numbers")
    if not isinstance(value, Text):
        contracting = (0 if operation.attributes.get("transpose_lhs") else 1,)
        return _Numbers(contracting, (1 if operation.attributes.get("transpose_rhs") else 0,))
    lists: list[Any] = [tuple(map(int, re.findall(r"\d+", part))) for part in re.findall(r"\[([^]]*)\]", value.text)]
    if len(lists) != 7:
        raise UnsupportedError(f"its kernel has dimension numbers {value.text}, which hloexec cannot read")
    output = lists[4]
    return _Numbers(lists[0], lists[1], lists[5], lists[6], tuple(zip(output[::2], output[1::2], strict=True)))


def _order(numbers: _Numbers, lhs_rank: int, rhs_rank: int) -> list[int]:
    """For each dimension of the result, which of those of a dot it is: batch, then lhs's free ones, then rhs's."""
    natural = [(0, dimension) for dimension in numbers.lhs_batch]
    natural += [(0, dimension) for dimension in free_dimensions(lhs_rank, numbers.lhs_batch, numbers.lhs_contracting)]
    natural += [(1, dimension) for dimension in free_dimensions(rhs_rank, numbers.rhs_batch, numbers.rhs_contracting)]
    if not numbers.output:
        return [*range(len(natural))]
    of_batch = dict(zip(numbers.rhs_batch, numbers.lhs_batch, strict=True))
    output = [
        (0, of_batch[dimension]) if side and dimension in of_batch else (side, dimension)
        for side, dimension in numbers.output
    ]
    if sorted(output) != sorted(natural):
        raise UnsupportedError(f"its kernel has a product of which output dimensions {numbers.output} are asked for")
    return [natural.index(dimension) for dimension in output]
