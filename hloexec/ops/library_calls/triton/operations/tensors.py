"""Operations that make tensors, and that change their shapes; all have the instances as their leading dimension.

Source: Triton, its dialect (TritonOps.td).
"""

from __future__ import annotations

import math

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.library_calls.mosaic.ir import Operation
from hloexec.ops.library_calls.mosaic.registry import Kernel, Scope
from hloexec.ops.library_calls.triton.machine import Machine, over_elements
from hloexec.ops.library_calls.triton.registry import TRITON


@TRITON.operation("tt.get_program_id", is_machine=True)
def bind_program_id(operation: Operation, scope: Scope) -> Kernel:
    """The place of the program instance along the dimension `axis` of the grid."""
    axis = operation.attributes["axis"]
    return lambda machine: machine.program_ids(axis)


@TRITON.operation("tt.get_num_programs", is_machine=True)
def bind_program_count(operation: Operation, scope: Scope) -> Kernel:
    """The size of the grid along `axis`."""
    axis = operation.attributes["axis"]

    def compute(machine: Machine) -> Array:
        return np.full(machine.count, machine.bounds[axis], np.int32)

    return compute


@TRITON.operation("tt.make_range")
def bind_range(operation: Operation, scope: Scope) -> Kernel:
    """The numbers from `start` to `end` - 1."""
    start, end = operation.attributes["start"], operation.attributes["end"]
    numbers = np.broadcast_to(np.arange(start, end, dtype=np.int32), operation.result_type.dimensions)
    return lambda: numbers


@TRITON.operation("tt.splat")
def bind_splat(operation: Operation, scope: Scope) -> Kernel:
    """The operand, a scalar, in each element."""
    dimensions = operation.result_type.dimensions
    return lambda value: np.broadcast_to(over_elements(value, len(dimensions)), dimensions)


@TRITON.operation("tt.unsplat")
def bind_unsplat(operation: Operation, scope: Scope) -> Kernel:
    """The only element of a tensor."""
    return lambda value: value.reshape(-1)


@TRITON.operation("tt.broadcast")
def bind_broadcast(operation: Operation, scope: Scope) -> Kernel:
    """The operand, repeated along dimensions of size 1."""
    dimensions = operation.result_type.dimensions
    return lambda value: np.broadcast_to(value, dimensions)


@TRITON.operation("tt.expand_dims", "tt.reshape")
def bind_reshape(operation: Operation, scope: Scope) -> Kernel:
    """The elements in row-major order in another shape."""
    dimensions = operation.result_type.dimensions
    return lambda value: value.reshape(dimensions)


@TRITON.operation("tt.trans")
def bind_transpose(operation: Operation, scope: Scope) -> Kernel:
    """Dimension d of the result is dimension `order`[d] of the operand."""
    order = (0, *(dimension + 1 for dimension in operation.attributes["order"]))
    return lambda value: np.ascontiguousarray(value.transpose(order))


@TRITON.operation("tt.cat")
def bind_concatenate(operation: Operation, scope: Scope) -> Kernel:
    """The elements of the first operand, then those of the second one."""
    return lambda lhs, rhs: np.concatenate([lhs, rhs], 1)


@TRITON.operation("tt.join")
def bind_join(operation: Operation, scope: Scope) -> Kernel:
    """Pairs of the elements of two tensors, along a new minor dimension."""
    return lambda lhs, rhs: np.stack([lhs, rhs], -1)


@TRITON.operation("tt.split", is_machine=True)
def bind_split(operation: Operation, scope: Scope) -> Kernel:
    """The elements of pairs along the minor dimension, as two tensors."""
    return lambda machine, value: tuple(np.ascontiguousarray(value[..., number]) for number in range(2))


@TRITON.operation("tt.gather")
def bind_gather(operation: Operation, scope: Scope) -> Kernel:
    """out[i] = in[i with the indices' element along `axis`]."""
    axis = operation.attributes["axis"] + 1
    return lambda value, indices: np.take_along_axis(value, indices.astype(np.int64), axis)


@TRITON.operation("tt.histogram")
def bind_histogram(operation: Operation, scope: Scope) -> Kernel:
    """How many elements, of those that a mask has, are 0, 1, 2…; others are not counted."""
    count, size = operation.result_type.dimensions
    storage = operation.result_type.element_type.storage

    def compute(value: Array, *masks: Array) -> Array:
        is_counted = (value >= 0) & (value < size)
        for mask in masks:
            is_counted &= mask
        rows = np.broadcast_to(over_elements(np.arange(count), value.ndim), value.shape)
        places = rows[is_counted] * size + value[is_counted]
        return np.bincount(places, minlength=math.prod((count, size))).reshape(count, size).astype(storage)

    return compute
