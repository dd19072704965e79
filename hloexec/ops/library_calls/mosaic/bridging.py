"""Kernels of HLO's opcodes for operations of MLIR, whose element types, rounding and policies they share.

Values of a kernel are arrays, or Python's numbers where MLIR has integer scalars: both ways here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, Kind
from hloexec.core.ir import ArrayShape, Instruction
from hloexec.core.values import Array
from hloexec.ops.library_calls.mosaic.ir import MlirType, Operation
from hloexec.ops.library_calls.mosaic.operations import Kernel
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import Site, find_opcode


def hlo_kernel(
    opcode: str, operands: Sequence[ArrayShape], result: ArrayShape, numerics: NumericsPolicy, **attributes: Any
) -> Callable[..., Array]:
    """The kernel of an opcode for arrays of these shapes, with the bits that an instruction has."""
    entry = find_opcode(opcode)
    assert entry is not None
    names = tuple(f"operand.{number}" for number in range(len(operands)))
    said = None if entry.attributes is None else entry.attributes(**attributes)
    instruction = Instruction(name=opcode, shape=result, opcode=opcode, operands=names, attributes=said)
    site = Site(entry, instruction, tuple(operands), None, numerics)
    kernel = site.kernel()
    assert kernel is not None
    return kernel


def with_sign(value_type: MlirType, *, is_unsigned: bool) -> ElementType:
    """The element type of a value, as integers without a sign where an operation says that they have none."""
    entry = value_type.element_type
    return ELEMENT_TYPES[f"u{entry.bits}"] if is_unsigned and entry.kind is Kind.SIGNED else entry


def as_array(value: Any, value_type: MlirType) -> Array:
    """A value as an array: of no dimensions where it is a Python number."""
    return value if isinstance(value, np.ndarray) else np.asarray(value).astype(value_type.element_type.storage)


def as_value(array: Any, value_type: MlirType) -> Any:
    """A result as kernels have it: integer scalars as Python's numbers, all else as arrays of its element type."""
    if value_type.is_scalar and value_type.is_integer:
        return array.item()
    return np.asarray(array)


def elementwise_kernel(
    opcode: str,
    operation: Operation,
    numerics: NumericsPolicy,
    *,
    is_unsigned: bool = False,
    **attributes: Any,
) -> Kernel:
    """An opcode on the operands of an operation, which are unsigned integers where it says so."""
    types, result = operation.operand_types, operation.result_type
    sources = [with_sign(value_type, is_unsigned=is_unsigned) for value_type in types]
    target = with_sign(result, is_unsigned=is_unsigned)
    shapes = [ArrayShape(source, value_type.dimensions) for source, value_type in zip(sources, types, strict=True)]
    kernel = hlo_kernel(opcode, shapes, ArrayShape(target, result.dimensions), numerics, **attributes)
    storage = result.element_type.storage
    if not is_unsigned and not any(one_type.is_scalar for one_type in (*types, result)):
        return kernel

    def compute(*operands: Any) -> Any:
        arrays = [
            as_array(operand, value_type).view(source.storage)
            for operand, value_type, source in zip(operands, types, sources, strict=True)
        ]
        return as_value(np.asarray(kernel(*arrays)).view(storage), result)

    return compute


def converted(array: Array, source: ElementType, target: ElementType, numerics: NumericsPolicy) -> Array:
    """Numbers in another element type, as HLO's convert has them."""
    shapes = (ArrayShape(source, array.shape), ArrayShape(target, array.shape))
    return np.asarray(hlo_kernel("convert", shapes[:1], shapes[1], numerics)(array.view(source.storage)))
