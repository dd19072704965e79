"""Values at the boundary: what a caller may pass in, and what it gets back.

Nothing is converted in silence: an array must have the parameter's element type and shape. Results never share memory
with arguments, constants or one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.devices.varying import Varying, of_position, of_positions
from hloexec.dtypes import ElementType, Kind, element_type_of
from hloexec.errors import InputError
from hloexec.ir import ArrayShape, BufferShape, Computation, Shape, TupleShape
from hloexec.ops.common import narrow
from hloexec.ops.movement.copying import lies_in_order, row_major
from hloexec.plan.steps import Plan
from hloexec.plan.trees import fits, map_shape, unflatten
from hloexec.values import TOKEN, Token, Value

__all__ = ["argument_leaves", "device_arguments", "device_results", "require_inputs", "value_leaves"]


def argument_leaves(computation: Computation, inputs: Sequence[Any]) -> list[Any]:
    """The leaves of the arguments, as read-only views; InputError names the parameter that an input does not fit.

    A parameter takes a NumPy array of its element type and shape (a dynamic dimension any size up to its bound), a
    tuple of such values where it is a tuple, a token or None where it is a token. A scalar also takes a Python number
    of its kind: bool for pred, int for integers, int or float for floats (rounded once to the type), any for complex.
    """
    return _argument_leaves(computation, inputs, {})


def device_arguments(computation: Computation, inputs: Sequence[Sequence[Any]], count: int) -> list[Any]:
    """The leaves of the arguments of `count` devices, split where devices are given different objects.

    `inputs` holds one sequence of values per device, or a single one for all of them.
    """
    if not isinstance(inputs, (tuple, list)):
        raise InputError(
            f"the inputs must be a list with a list of values per device, but {_describe(inputs)} was given"
        )
    if len(inputs) not in (1, count):
        raise InputError(
            f"there must be one list of inputs per device, {count}, or a single one for all, but {len(inputs)} were "
            "given"
        )
    known: dict[Any, list[Any]] = {}
    rows = []
    for device, values in enumerate(inputs):
        if not isinstance(values, (tuple, list)):
            raise InputError(
                f"the inputs of device {device} must be a list of values, but {_describe(values)} was given"
            )
        try:
            rows.append(_argument_leaves(computation, values, known))
        except InputError as error:
            raise InputError(f"device {device}: {error.message}" if count > 1 else error.message) from None
    return [of_positions(column) for column in zip(*rows, strict=True)] if len(rows) > 1 else rows[0]


def _argument_leaves(computation: Computation, inputs: Sequence[Any], known: dict[Any, list[Any]]) -> list[Any]:
    """`argument_leaves`; `known` are the leaves of values seen before, so that one object has one view."""
    parameters = computation.parameters
    require_inputs(computation, inputs)
    found: list[Any] = []
    for number, (parameter, value) in enumerate(zip(parameters, inputs, strict=True)):
        key = (number, _identity(value))
        if key not in known:
            known[key] = value_leaves(value, parameter.shape, f"parameter {number} ({parameter.name})")
        found += known[key]
    return found


def require_inputs(computation: Computation, inputs: Sequence[Any]) -> None:
    """InputError unless there are as many values as parameters."""
    parameters = computation.parameters
    if len(inputs) != len(parameters):
        listed = ", ".join(f"{parameter.name}: {parameter.shape}" for parameter in parameters[:20])
        more = ", …" if len(parameters) > 20 else ""
        raise InputError(
            f"computation {computation.name} takes {len(parameters)} inputs ({listed}{more}), but "
            f"{len(inputs)} were given"
        )


def _identity(value: Any) -> Any:
    """Equal for values made of the same objects."""
    return tuple(map(_identity, value)) if isinstance(value, (tuple, list)) else id(value)


def value_leaves(value: Any, shape: Shape, what: str) -> list[Any]:
    """The leaves of one value as read-only views; InputError, which calls it `what`, where it is not of `shape`."""
    found: list[Any] = []
    stack: list[tuple[Any, Shape, str]] = [(value, shape, what)]
    while stack:
        current, declared, where = stack.pop()
        if isinstance(declared, TupleShape):
            if not isinstance(current, (tuple, list)) or len(current) != len(declared.elements):
                raise InputError(
                    f"{where} must be a tuple of {len(declared.elements)} values, but {_describe(current)} was given"
                )
            for i in reversed(range(len(current))):
                stack.append((current[i], declared.elements[i], f"element {i} of {where}"))
        else:
            found.append(_leaf(current, declared, where))
    return found


def _leaf(value: Any, shape: ArrayShape | BufferShape, what: str) -> Any:
    array_shape = shape.element if isinstance(shape, BufferShape) else shape
    if not array_shape.is_array:
        if value is None or isinstance(value, Token):
            return TOKEN
        raise InputError(f"{what} must be a token (or None), but {_describe(value)} was given")
    array = _array(value, array_shape, what)
    if not fits(array, array_shape):
        raise InputError(f"{what} must be {_expected(array_shape)}, but {_describe(value)} was given")
    # A single element is contiguous whatever its stride, and NumPy's functions go by the stride.
    is_plain = array.flags.c_contiguous and min(array.strides, default=0) >= 0
    view = array.view() if is_plain or lies_in_order(array) else row_major(array)
    view.flags.writeable = False
    return view


def _array(value: Any, shape: ArrayShape, what: str) -> np.ndarray[Any, Any]:
    if type(value) in (np.ndarray, np.memmap) or isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, (bool, int, float, complex)) and shape.rank == 0:
        return _scalar(value, shape.element_type, what)
    raise InputError(f"{what} must be {_expected(shape)}, but {_describe(value)} was given")


def _expected(shape: ArrayShape) -> str:
    return f"{shape}, a NumPy array of type {shape.element_type.storage} and shape {list(shape.dimensions)}"


_PYTHON_TYPES: dict[Kind, tuple[type, ...]] = {
    Kind.PRED: (bool,),
    Kind.SIGNED: (int,),
    Kind.UNSIGNED: (int,),
    Kind.FLOAT: (int, float),
    Kind.COMPLEX: (int, float, complex),
}


def _scalar(value: bool | int | float | complex, element_type: ElementType, what: str) -> np.ndarray[Any, Any]:
    """A Python number as an array without dimensions."""
    kind = element_type.kind
    if type(value) not in _PYTHON_TYPES[kind]:
        names = " or ".join(entry.__name__ for entry in _PYTHON_TYPES[kind])
        raise InputError(f"{what} must be {element_type}[], for which a Python {names} may stand, but is {value!r}")
    if element_type.is_integral and isinstance(value, int):
        low = -(1 << (element_type.bits - 1)) if kind is Kind.SIGNED else 0
        high = low + (1 << element_type.bits) - 1
        if not low <= value <= high:
            raise InputError(f"{what} must be {element_type}[], from {low} to {high}, but is {value}")
        return np.asarray(value, element_type.compute).astype(element_type.storage)
    try:
        return _rounded(value, element_type)
    except OverflowError:
        raise InputError(f"{what} must be {element_type}[], but {value} is beyond the range of floats") from None


def _rounded(value: bool | int | float | complex, element_type: ElementType) -> np.ndarray[Any, Any]:
    if not element_type.is_floating:
        return np.asarray(value, element_type.storage)
    return narrow(np.asarray(float(value.real), np.float64), element_type)


def _describe(value: Any) -> str:
    """What was given, in words."""
    if type(value) is np.ndarray or isinstance(value, (np.memmap, np.generic)):
        try:
            name = element_type_of(value.dtype).name
        except KeyError:
            return f"an array of type {value.dtype} and shape {list(value.shape)}, which is no element type of HLO,"
        return f"{name}[{','.join(map(str, value.shape))}]"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)} values"
    if isinstance(value, (bool, int, float, complex, str)):
        return f"the Python {type(value).__name__} {value!r:.80}"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def device_results(plan: Plan, results: Sequence[Any], count: int, *, always_copy: bool) -> list[Value]:
    """The results of `count` devices as the caller gets them; devices that agree on a leaf get the same array.

    They are writeable, and none shares memory with anything else. Arguments and constants are read-only in a run, so a
    writeable array is the run's own: it is handed over as it is, if it shows a whole buffer; anything else is copied.
    """
    taken: set[int] = set()
    leaves: list[Any] = [
        Varying(value.classes, [_own(entry, taken, always_copy=always_copy) for entry in value.values])
        if type(value) is Varying
        else _own(value, taken, always_copy=always_copy)
        for value in results
    ]
    if count == 1 and len(leaves) == 1 and isinstance(plan.result_tree, int):
        return leaves
    numbers = iter(range(len(leaves)))
    tree = map_shape(plan.computation.result_shape, lambda _: next(numbers))
    return [unflatten(tree, [of_position(leaf, device) for leaf in leaves]) for device in range(count)]


def _own(value: Any, taken: set[int], *, always_copy: bool) -> Any:
    """A leaf that nobody else holds; `taken` is the set of buffers that other leaves hold."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    array = np.asarray(value)
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    is_own = (
        array.flags.writeable
        and isinstance(owner, np.ndarray)
        and owner.nbytes == array.nbytes
        and id(owner) not in taken
        and all(stride or size <= 1 for stride, size in zip(array.strides, array.shape, strict=True))
    )
    if always_copy or not is_own:
        return row_major(array)
    taken.add(id(owner))
    return array
