"""Loads, stores and atomic operations at addresses, where a mask says so.

Source: Triton, its dialect (LoadOp, StoreOp, AtomicRMWOp, AtomicCASOp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.values import Array
from hloexec.ops.library_calls.mosaic.ir import Operation
from hloexec.ops.library_calls.mosaic.registry import Kernel, Scope
from hloexec.ops.library_calls.triton.machine import Machine
from hloexec.ops.library_calls.triton.memory import bits_of
from hloexec.ops.library_calls.triton.registry import TRITON

_RMW: dict[int, Callable[..., Any]] = {
    1: np.bitwise_and,
    2: np.bitwise_or,
    3: np.bitwise_xor,
    4: np.add,
    5: np.add,
    6: np.maximum,
    7: np.minimum,
    8: np.maximum,
    9: np.minimum,
    10: lambda before, value: value,
}
"""By `atomic_rmw_op` (and, or, xor, add, fadd, max, min, umax, umin, exch), what an element and a value become."""
_UNSIGNED = (8, 9)
IN_ANY_ORDER = (1, 2, 3, 4, 6, 7, 8, 9)
"""Those whose results do not depend on the order of instances."""


@TRITON.operation("tt.load", is_machine=True)
def bind_load(operation: Operation, scope: Scope) -> Kernel:
    """The elements at addresses; where a mask is false, those of the last operand, without which they are undefined."""
    element = operation.result_type.element_type

    def compute(machine: Machine, addresses: Array, mask: Array | None = None, other: Array | None = None) -> Array:
        return machine.read(addresses, mask, element, other)

    return compute


@TRITON.operation("tt.store", is_machine=True)
def bind_store(operation: Operation, scope: Scope) -> Kernel:
    """The second operand's elements become those at addresses, where a mask, if there is one, is true."""
    element = operation.operand_types[1].element_type

    def compute(machine: Machine, addresses: Array, values: Array, mask: Array | None = None) -> None:
        machine.write(addresses, mask, element, values)

    return compute


def _refuse_update(operation: Operation) -> str | None:
    number = operation.attributes.get("atomic_rmw_op")
    return None if number in _RMW else f"it has the number {number}, of which hloexec does not know the operation"


@TRITON.operation("tt.atomic_rmw", is_machine=True, refuses=_refuse_update)
def bind_update(operation: Operation, scope: Scope) -> Kernel:
    """The elements at addresses before `atomic_rmw_op` changes them by the second operand, one after the other.

    It is one of and, or, xor, add, fadd, max, min, umax, umin and exch.
    """
    number, value_type = operation.attributes["atomic_rmw_op"], operation.operand_types[1]
    function = _RMW[number]
    element = ELEMENT_TYPES[f"u{value_type.bits}"] if number in _UNSIGNED else value_type.element_type

    def compute(machine: Machine, addresses: Array, values: Array, mask: Array | None = None) -> Array:
        flat = np.ascontiguousarray(values).reshape(-1).view(element.storage)

        def change(array: Array, places: Array, lanes: Array) -> Array:
            return _apply(function, array, places, flat[lanes])

        return machine.update(addresses, mask, element, change).view(value_type.element_type.storage)

    return compute


@TRITON.operation("tt.atomic_cas", is_machine=True)
def bind_compare_and_swap(operation: Operation, scope: Scope) -> Kernel:
    """The elements at addresses, of which those whose bits are the second operand's become the third's."""
    element = operation.operand_types[1].element_type

    def compute(machine: Machine, addresses: Array, expected: Array, values: Array) -> Array:
        pairs = [np.ascontiguousarray(operand).reshape(-1) for operand in (expected, values)]

        def change(array: Array, places: Array, lanes: Array) -> Array:
            before = np.empty(places.shape, array.dtype)
            for number, (place, lane) in enumerate(zip(places, lanes, strict=True)):
                before[number] = array[place]
                if bits_of(before[number : number + 1])[0] == bits_of(pairs[0][lane : lane + 1])[0]:
                    array[place] = pairs[1][lane]
            return before

        return machine.update(addresses, None, element, change)

    return compute


def _apply(function: Callable[..., Any], array: Array, places: Array, values: Array) -> Array:
    """What was at the places, each of which is changed; those that occur several times, once for each in order."""
    if np.unique(places).size == places.size:
        before = array[places]
        array[places] = function(before, values)
        return before
    before = np.empty(places.shape, array.dtype)
    for number, place in enumerate(places):
        before[number] = array[place]
        array[place] = function(before[number], values[number])
    return before
