"""Loads and stores, and views of memory: dialects memref and vector, and Mosaic's own.

Elements of a load that lie beyond a view are undefined, and those of a store are dropped; both are noticed.
Source: MLIR, "memref" and "vector" dialects; JAX, tpu dialect.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.library_calls.mosaic.bridging import as_array, as_value, hlo_kernel
from hloexec.ops.library_calls.mosaic.ir import DYNAMIC, MlirType, Operation
from hloexec.ops.library_calls.mosaic.machine import Machine
from hloexec.ops.library_calls.mosaic.memory import Ref, allocate
from hloexec.ops.library_calls.mosaic.registry import Kernel, Scope, operation


@operation("memref.load", is_machine=True)
def bind_scalar_load(operation: Operation, scope: Scope) -> Kernel:
    """The element at the indices."""
    result = operation.result_type

    def compute(machine: Machine, ref: Ref, *indices: int) -> Any:
        window = machine.window(ref, indices, (1,) * len(indices), (1,) * len(indices))
        if window.kept is not None:
            return as_value(np.asarray(machine.undefined(result.element_type)), result)
        return as_value(machine.load(ref, window.index).reshape(()), result)

    return compute


@operation("memref.store", is_machine=True)
def bind_scalar_store(operation: Operation, scope: Scope) -> Kernel:
    """The first operand becomes the element at the indices."""
    value_type = operation.operand_types[0]

    def compute(machine: Machine, value: Any, ref: Ref, *indices: int) -> None:
        window = machine.window(ref, indices, (1,) * len(indices), (1,) * len(indices))
        if window.kept is None:
            machine.store(ref, window.index, as_array(value, value_type))

    return compute


def _aligned(sizes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The sizes of an access of fewer dimensions than the view has: 1 in the leading ones."""
    return (1,) * (rank - len(sizes)) + sizes


def _refuse_sublanes(operation: Operation) -> str | None:
    """A mask of sublanes is of registers, which kernels have after Mosaic's layout passes only."""
    if not all(operation.attributes.get("sublane_mask", ())):
        return "it masks sublanes of registers, as kernels do after Mosaic's layout passes"
    return None


@operation("vector.load", "tpu.vector_load", "tpu.load", "tpu.strided_load", is_machine=True, refuses=_refuse_sublanes)
def bind_load(operation: Operation, scope: Scope) -> Kernel:
    """The elements at indices + i * `strides`; where a mask is false, zero."""
    result = operation.result_type
    rank = len(operation.operand_types[0].dimensions)
    sizes = _aligned(result.dimensions, rank)
    strides = operation.attributes.get("strides") or (1,) * rank
    fill = np.zeros((), result.element_type.storage)

    def compute(machine: Machine, ref: Ref, *others: Any) -> Array:
        window = machine.window(ref, others[:rank], sizes, strides)
        values = machine.load(ref, window.index)
        if window.kept is not None:
            inside, values = values, np.full(sizes, machine.undefined(result.element_type))
            values[window.kept] = inside
        values = values.reshape(result.dimensions)
        return values if len(others) == rank else np.where(others[rank], values, fill)

    return compute


@operation(
    "vector.store", "tpu.vector_store", "tpu.store", "tpu.strided_store", is_machine=True, refuses=_refuse_sublanes
)
def bind_store(operation: Operation, scope: Scope) -> Kernel:
    """The first operand becomes, or with `add` is added to, the elements at indices + i * `strides`, where a mask, if
    there is one, is true."""
    value_type, ref_type = operation.operand_types[:2]
    rank = len(ref_type.dimensions)
    sizes = _aligned(value_type.dimensions, rank)
    strides = operation.attributes.get("strides") or (1,) * rank
    adds = bool(operation.attributes.get("add"))
    shape = ArrayShape(value_type.element_type, sizes)
    add = hlo_kernel("add", [shape, shape], shape, scope.numerics) if adds else None

    def compute(machine: Machine, values: Array, ref: Ref, *others: Any) -> None:
        window = machine.window(ref, others[:rank], sizes, strides)
        values, kept = values.reshape(sizes), window.kept or (...,)
        mask = None if len(others) == rank else np.asarray(others[rank]).reshape(sizes)[kept]
        if add is not None:
            before = np.zeros(sizes, values.dtype)
            before[kept] = machine.load(ref, window.index)
            values = np.asarray(add(before, values))
        machine.store(ref, window.index, values[kept], mask)

    return compute


@operation("tpu.memref_slice", is_machine=True)
def bind_slice(operation: Operation, scope: Scope) -> Kernel:
    """The part of a view that begins at the indices; the sizes that the type leaves open are the last operands."""
    rank, sizes = len(operation.operand_types[0].dimensions), operation.result_type.dimensions

    def compute(machine: Machine, ref: Ref, *others: int) -> Ref:
        dynamic = iter(others[rank:])
        lengths = [int(next(dynamic)) if size == DYNAMIC else size for size in sizes]
        for start, size, extent in zip(others[:rank], lengths, ref.array.shape, strict=True):
            if not 0 <= start <= start + size <= extent:
                raise machine.fault(
                    f"takes {lengths} elements at {list(others[:rank])}, which do not all lie within the "
                    f"{list(ref.array.shape)} of {ref.name}"
                )
        return ref.view(tuple(slice(start, start + size) for start, size in zip(others[:rank], lengths, strict=True)))

    return compute


@operation("tpu.memref_squeeze", "tpu.memref_reshape", "memref.collapse_shape", "memref.expand_shape")
def bind_reshape(operation: Operation, scope: Scope) -> Kernel:
    """The same elements in row-major order in another shape."""
    dimensions = operation.result_type.dimensions
    if operation.name != "tpu.memref_squeeze":
        return lambda ref: ref.reshaped(dimensions)

    def squeeze(ref: Ref) -> Ref:
        kept, wanted = [], list(dimensions)
        for place, size in enumerate(ref.array.shape):
            left = len(ref.array.shape) - place
            is_kept = bool(wanted) and (size != 1 or (wanted[0] == 1 and left <= len(wanted)) or wanted[0] == size)
            kept.append(slice(None) if is_kept else 0)
            wanted = wanted[1:] if is_kept else wanted
        return ref.view(tuple(kept))

    return squeeze


@operation("tpu.memref_bitcast")
def bind_bitcast(operation: Operation, scope: Scope) -> Kernel:
    """The same bits as another element type; where its width differs, rows of the second minor dimension are packed."""
    target = operation.result_type.element_type
    return lambda ref: ref.bitcast(target)


@operation("tpu.reinterpret_cast")
def bind_reinterpret(operation: Operation, scope: Scope) -> Kernel:
    """The same memory with another layout, and the same shape."""
    source, result = operation.operand_types[0], operation.result_type
    if (source.dimensions, source.element) != (result.dimensions, result.element) or len(operation.operands) > 1:
        raise UnsupportedError(f"its kernel sees {source.text} as {result.text} in {operation.place}")
    return lambda ref: ref


@operation("memref.alloca", "memref.alloc", "tpu.sem_alloc", is_machine=True)
def bind_allocation(operation: Operation, scope: Scope) -> Kernel:
    """Memory that nothing has written; semaphores are zero."""
    value_type = operation.result_type

    def compute(machine: Machine, *sizes: int) -> Ref:
        ref = allocated(machine, value_type, sizes, f"what {operation.place} allocates")
        machine.share(operation, ref)
        return ref

    return compute


def allocated(machine: Machine, value_type: MlirType, sizes: tuple[int, ...], name: str) -> Ref:
    """A buffer of a type, whose open sizes are given, in order."""
    dynamic = iter(sizes)
    lengths = [int(next(dynamic)) if size == DYNAMIC else size for size in value_type.dimensions]
    ref = allocate(value_type, lengths, name)
    if value_type.is_semaphore:
        machine.semaphores.append(ref)
    return ref


@operation("memref.dim", is_machine=True)
def bind_dimension(operation: Operation, scope: Scope) -> Kernel:
    """The size of a dimension of a view."""
    return lambda machine, ref, dimension: ref.array.shape[dimension]
