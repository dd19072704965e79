"""Kernels of HLO's opcodes for operations of MLIR, whose element types, rounding and policies they share.

Values of a kernel are arrays, or Python's numbers where MLIR has integer scalars: both ways here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, Kind, element_type_of
from hloexec.core.ir import ArrayShape, Instruction
from hloexec.core.values import Array
from hloexec.ops.library_calls.mosaic.ir import MlirType, Operation
from hloexec.ops.library_calls.mosaic.registry import Kernel
from hloexec.ops.policies.backends import Flushing, flushes
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
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
    return flushing(kernel, opcode, [shape.element_type for shape in (*operands, result)], numerics)


def flushing(
    kernel: Callable[..., Array], opcode: str, types: Sequence[ElementType], numerics: NumericsPolicy
) -> Callable[..., Array]:
    """A kernel that does what an opcode does on these element types, with denormals flushed as a policy has it."""
    entry = find_opcode(opcode)
    assert entry is not None
    return Flushing(kernel) if numerics.flushes_denormals and flushes(entry.traits, frozenset(types)) else kernel


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
    if not is_unsigned and not any(item.is_scalar for item in (*types, result)):
        return kernel

    def compute(*operands: Any) -> Any:
        arrays = [
            as_array(operand, value_type).view(source.storage)
            for operand, value_type, source in zip(operands, types, sources, strict=True)
        ]
        return as_value(np.asarray(kernel(*arrays)).view(storage), result)

    return compute


def bitcast_rows(value: Array, target: ElementType) -> Array:
    """The bits of packed rows as another element type: `[…, r, c]` becomes `[…, r * bits / target bits, c]`."""
    source = element_type_of(value.dtype)
    if source.bits == target.bits:
        return bits_as(value, target)
    *leading, rows, columns = value.shape
    if source.bits < target.bits:
        count = target.bits // source.bits
        parts = value.reshape(*leading, rows // count, count, columns)
        return bits_as(np.ascontiguousarray(np.moveaxis(parts, -2, -1)), target)
    parts = np.moveaxis(bits_as(value, target), -1, -2)
    return np.ascontiguousarray(parts).reshape(*leading, -1, columns)


def bits_as(value: Array, target: ElementType) -> Array:
    """HLO's bitcast-convert: a last dimension holds the parts of an element where widths differ."""
    source = element_type_of(value.dtype)
    if source.bits == target.bits:
        sizes = value.shape
    else:
        sizes = (*value.shape, source.bits // target.bits) if source.bits > target.bits else value.shape[:-1]
    kernel = hlo_kernel("bitcast-convert", [ArrayShape(source, value.shape)], ArrayShape(target, sizes), REFERENCE)
    return np.asarray(kernel(np.ascontiguousarray(value)))
