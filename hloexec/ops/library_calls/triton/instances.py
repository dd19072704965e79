"""A kernel for several program instances at once: all types get a leading dimension, along which the instances lie.

Scalars become arrays of one dimension, and tensors have one more; pointers are addresses, integers of 64 bits, as
`memory` has them. Elementwise operations need no more than that, and give the same bits for any number of instances.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import attrs

from hloexec.ops.library_calls.mosaic.ir import Elements, Kernel, MlirType, Operation, Region

_POINTER = re.compile(r"!tt\.ptr<([^,<>]+)(?:, \d+)?>")
_WORD = "i64"
_Retype = Callable[[MlirType], MlirType]


def pointee(value_type: MlirType) -> MlirType | None:
    """The type of what a pointer, or a tensor of pointers, points to, as a scalar; None of others."""
    match = _POINTER.search(value_type.text)
    return None if match is None else MlirType(match[1], "scalar", match[1])


@lru_cache(maxsize=64)
def for_instances(kernel: Kernel, count: int) -> Kernel:
    """The kernel with a leading dimension of this size."""

    def retype(value_type: MlirType) -> MlirType:
        is_pointer = pointee(value_type) is not None
        if not is_pointer and value_type.kind not in ("scalar", "tensor"):
            return value_type
        element = _WORD if is_pointer else value_type.element
        return MlirType(value_type.text, "tensor", element, (count, *value_type.dimensions))

    functions = {name: _retype_operation(item, retype) for name, item in kernel.functions.items()}
    main = next(functions[name] for name, item in kernel.functions.items() if item is kernel.main)
    return Kernel(kernel.name, main, functions, kernel.value_count)


@lru_cache(maxsize=256)
def for_elements(region: Region, count: int) -> Region:
    """A region of scalars, by which a reduction combines two elements, for so many pairs of them at once."""
    return _retype_region(region, lambda value_type: attrs.evolve(value_type, dimensions=(count,)))


def _retype_region(region: Region, retype: _Retype) -> Region:
    return Region(
        region.arguments,
        tuple(map(retype, region.argument_types)),
        tuple(_retype_operation(item, retype) for item in region.operations),
    )


def _retype_operation(operation: Operation, retype: _Retype) -> Operation:
    return attrs.evolve(
        operation,
        operand_types=tuple(map(retype, operation.operand_types)),
        result_types=tuple(map(retype, operation.result_types)),
        attributes=_retype_constant(operation, retype),
        regions=tuple(_retype_region(item, retype) for item in operation.regions),
    )


def _retype_constant(operation: Operation, retype: _Retype) -> Mapping[str, Any]:
    """The attributes, in which a constant has as many elements as its type; one stands for all if they are equal."""
    if operation.name != "arith.constant":
        return operation.attributes
    value, value_type = operation.attributes["value"], retype(operation.result_type)
    elements = value.elements if isinstance(value, Elements) else (value,)
    if len(elements) > 1:
        elements *= math.prod(value_type.dimensions) // len(elements)
    return {"value": Elements(value_type, elements)}
