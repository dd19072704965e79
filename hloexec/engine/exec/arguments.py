"""Converting values at the API boundary: what callers may pass, and what they receive.

Nothing is rounded silently: an array, be it of NumPy, JAX or PyTorch, must have the parameter's element type and shape.
Integers may be of another type, as NumPy's of 64 bits are, if the parameter's holds all of them. Results never share
memory with arguments, constants or one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from hloexec.core.arguments import described, parameter_numbers, wrong
from hloexec.core.arrays import as_value, exact_integers, is_branch, is_foreign, may_become, tree_leaves
from hloexec.core.dtypes import ElementType, Kind, element_type_of
from hloexec.core.ir import ArrayShape, BufferShape, Computation, Instruction, Shape, TupleShape, map_shape
from hloexec.core.ir.shape import elements_of
from hloexec.core.tree import leaves, of_sequence, walk
from hloexec.core.values import TOKEN, Array, Token, Value
from hloexec.core.wording import listing
from hloexec.engine.devices.varying import Varying, of_position, of_positions
from hloexec.engine.plan.kernels import fits, unflatten
from hloexec.engine.plan.steps import Plan
from hloexec.errors import InputError
from hloexec.ops.common import lies_in_order, narrow, row_major
from hloexec.ops.resources import is_own, owner_of


def argument_leaves(computation: Computation, inputs: Sequence[object]) -> list[Any]:
    """The leaves of the arguments, as read-only views; InputError names the parameter that an input does not fit.

    A parameter takes an array of its element type and shape (a dynamic dimension any size up to its bound), of NumPy or
    another library (what has `__array__` or `__dlpack__`), integers of another type if its own holds all of them, a
    tuple of such values where it is a tuple, a token or None where it is a token. A scalar also takes a Python number
    of its kind: bool for pred, int for integers, int or float for floats (rounded once to the type), any for complex.
    """
    return _argument_leaves(computation, inputs, {})


def device_arguments(
    computation: Computation, inputs: object, count: int, own: Sequence[int] | None = None
) -> list[Any]:
    """The leaves of the arguments of `count` devices, split where devices are given different objects; of those of
    this process alone where it has only some of its `own`, whose inputs may be all that is given.

    `inputs` are in any of the forms of `values.Inputs`; one device's serve all.
    """
    per_device = _rows(computation, inputs)
    devices = range(count) if own is None else own
    if len(per_device) not in (1, count, len(devices)):
        raise InputError(
            f"there must be one list of inputs per device, {count}, or a single one for all, but "
            f"{len(per_device)} were given"
        )
    if not devices:
        return []
    if len(per_device) == count and len(devices) < count:
        per_device = [per_device[device] for device in devices]
    if count == 1:
        (values,) = per_device
        plain = _plain_leaves(computation.parameters, values)
        if plain is not None:
            return plain
    leaves_by_identity: dict[Any, list[Any]] = {}
    rows = []
    for device, values in zip(devices, per_device, strict=False):
        try:
            rows.append(_argument_leaves(computation, values, leaves_by_identity))
        except InputError as error:
            raise InputError(f"device {device}: {error.message}" if count > 1 else error.message) from None
    return [of_positions(column) for column in zip(*rows, strict=True)] if len(rows) > 1 else rows[0]


def inputs_by_device(computation: Computation, inputs: object) -> list[list[Value]]:
    """Inputs in any of the forms of `values.Inputs` as lists of one value per parameter: one for each device,
    or a single one for all. They hold tuples in place of lists, and NumPy's arrays in place of other libraries'.

    A list of lists holds values where all parameters are tuples and it fits them, else the inputs of devices.
    """
    converted: dict[int, Array] = {}
    exact: dict[tuple[int, ElementType], Array] = {}

    def read(number: int, value: object) -> Value:
        array: Value = as_value(value, f"input {number}", converted)
        if number >= len(computation.parameters):
            return array
        parameter = computation.parameters[number]
        if not isinstance(parameter.shape, ArrayShape) or not _is_of_other_integers(array, parameter.shape):
            return array
        element_type = parameter.shape.element_type
        key = id(array), element_type
        if key not in exact:
            exact[key] = exact_integers(np.asarray(array), element_type, _named(number, parameter))
        return exact[key]

    return [[read(number, value) for number, value in enumerate(row)] for row in _rows(computation, inputs)]


def _is_of_other_integers(value: object, shape: ArrayShape) -> bool:
    """Whether they are integers of the right sizes, but another type."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype == shape.element_type.storage:
        return False
    try:
        return may_become(element_type_of(value.dtype), shape.element_type) and shape.has_room_for(value.shape)
    except KeyError:
        return False


def _named(number: int, parameter: Instruction) -> str:
    return f"parameter {number} ({parameter.name})"


def _rows(computation: Computation, inputs: object) -> list[Sequence[Any]]:
    """`inputs_by_device`, with values as they were given."""
    if not isinstance(inputs, (tuple, list, Mapping)):
        if not isinstance(inputs, Token) and is_branch(inputs):
            return [_row(computation, (inputs,))]
        expected = "a list with a value per parameter, a mapping from parameters' names to values, or a list of these"
        raise wrong("inputs", expected, inputs)
    if isinstance(inputs, Mapping) or not _are_by_device(computation, inputs) or _is_one_tree(computation, inputs):
        return [_row(computation, inputs)]
    return [_row(computation, entry) for entry in inputs]


def _row(computation: Computation, argument: Sequence[Any] | Mapping[Any, Any]) -> Sequence[Any]:
    """One device's inputs as a value per parameter; as they were given where they are none."""
    if not _takes_trees(computation):
        return _in_order(computation, argument) if isinstance(argument, Mapping) else argument
    if isinstance(argument, Mapping):
        tree_values = None if _is_keyed(computation, argument) else _values_of_tree(computation, argument)
        return _in_order(computation, argument) if tree_values is None else tree_values
    items = [item for item in argument if type(item) is not np.ndarray and is_branch(item)]
    if not items:
        return argument
    # A list of numbers in place of an array is no tree.
    held = [leaf for item in items for _, leaf in tree_leaves(item)]
    is_array = len(argument) == len(computation.parameters) and all(type(leaf) in (bool, int, float) for leaf in held)
    if is_array and len(held) != len(items):
        return argument
    return _values_of_tree(computation, argument) or argument


def _values_of_tree(computation: Computation, argument: Sequence[Any] | Mapping[Any, Any]) -> list[Any] | None:
    from hloexec.language.literals.trees import values_of_tree  # most runs are given arrays

    return values_of_tree(computation, argument)


def _takes_trees(computation: Computation) -> bool:
    """Whether no parameter is a tuple, whose value is a container itself."""
    return not any(isinstance(shape, TupleShape) for shape in computation.parameter_shapes)


def _is_keyed(computation: Computation, argument: Mapping[Any, Any]) -> bool:
    """Whether a key is the name or number of a parameter."""
    names = {parameter.name for parameter in computation.parameters}
    texts = (key.removeprefix("%") if isinstance(key, str) else key for key in argument)
    return not argument or any(not isinstance(key, str) or key in names or key.isdecimal() for key in texts)


def _is_one_tree(computation: Computation, inputs: Sequence[Any]) -> bool:
    """Whether a list of containers is one device's inputs, rather than those of a device each: it holds more than lists
    of arrays, of which each would be a device's, and some do not hold a value for each parameter."""
    if len(inputs) == 1 or not _takes_trees(computation):
        return False
    if not any(isinstance(entry, Mapping) or any(map(is_branch, entry)) for entry in inputs):
        return False
    count = len(computation.parameters)
    sizes = [
        count if isinstance(entry, Mapping) and _is_keyed(computation, entry) else len(tree_leaves(entry))
        for entry in inputs
    ]
    return any(size != count for size in sizes) and (sum(sizes) == count or min(sizes) < count < sum(sizes))


def collected(computation: Computation, inputs: tuple[Any, ...]) -> Any:
    """What `run` was given, as `inputs_by_device` takes it: values one by one, or all of them in one object."""
    shapes = computation.parameter_shapes
    if len(inputs) != 1 or not isinstance(inputs[0], (tuple, list, Mapping)):
        if not shapes or not isinstance(shapes[0], TupleShape):
            return [inputs]
        require_inputs(computation, inputs)
        return dict(enumerate(inputs))
    (argument,) = inputs
    if isinstance(argument, Mapping) or len(shapes) != 1:
        are_trees = not isinstance(argument, Mapping) and len(argument) > 1 and _takes_trees(computation)
        return [argument] if are_trees and all(map(is_branch, argument)) else argument
    is_tuple = isinstance(shapes[0], TupleShape)
    is_value = len(argument) != 1 or (is_tuple and not isinstance(argument[0], (tuple, list, Mapping)))
    return [inputs] if is_value or _is_nested_as(argument, shapes[0]) else argument


def _are_by_device(computation: Computation, inputs: Sequence[Any]) -> bool:
    """Whether a list holds lists of values rather than values."""
    if not inputs or not all(isinstance(entry, (tuple, list, Mapping)) for entry in inputs):
        return False
    shapes = computation.parameter_shapes
    if not all(isinstance(shape, TupleShape) for shape in shapes) or not shapes:
        return True
    if len(inputs) == len(shapes) and all(map(_is_nested_as, inputs, shapes)):
        return False
    rows = [entry for entry in inputs if not isinstance(entry, Mapping)]
    return all(len(row) == len(shapes) and all(isinstance(value, (tuple, list)) for value in row) for row in rows)


def _is_nested_as(value: Any, shape: Shape) -> bool:
    """Whether a value has tuples where a shape has some."""

    def parts(node: tuple[Any, Shape]) -> list[tuple[Any, Shape]] | None:
        current, elements = of_sequence(node[0]), elements_of(node[1])
        is_alike = current is not None and elements is not None and len(current) == len(elements)
        return list(zip(current, elements, strict=True)) if is_alike else None  # type: ignore[arg-type]

    pairs = leaves((value, shape), parts)
    return all(of_sequence(leaf) is elements_of(leaf_shape) is None for _, (leaf, leaf_shape) in pairs)


def _in_order(computation: Computation, inputs: Mapping[Any, Any]) -> list[Any]:
    """The values of a mapping from parameters' names or numbers, in the order of the parameters."""
    by_number = values_by_number(computation, inputs)
    missing = [parameter.name for number, parameter in enumerate(computation.parameters) if number not in by_number]
    if missing:
        raise InputError(f"inputs give no value for {listing(missing, 20)} of {computation.name}")
    return [by_number[number] for number in range(len(by_number))]


def values_by_number(computation: Computation, inputs: Mapping[Any, Any]) -> dict[int, Any]:
    """What a mapping from parameters' names or numbers holds, by number."""
    by_number: dict[int, Any] = {}
    for number, value in zip(parameter_numbers(computation, inputs), inputs.values(), strict=True):
        if number in by_number:
            raise InputError(f"inputs give parameter {number} ({computation.parameters[number].name}) twice")
        by_number[number] = value
    return by_number


def _plain_leaves(parameters: Sequence[Instruction], inputs: Sequence[object]) -> list[Any] | None:
    """What `_argument_leaves` gives for arrays as parameters mostly take them; None where one is anything else."""
    if len(inputs) != len(parameters):
        return None
    views = []
    for parameter, value in zip(parameters, inputs, strict=True):
        shape = parameter.shape
        if type(value) is not np.ndarray or type(shape) is not ArrayShape or shape.dynamic_dimensions:
            return None
        if value.shape != shape.dimensions or value.dtype != shape.element_type.storage:
            return None
        if not value.flags.c_contiguous or min(value.strides, default=0) < 0 or not shape.is_array:
            return None
        view = value.view()
        view.flags.writeable = False
        views.append(view)
    return views


def _argument_leaves(
    computation: Computation, inputs: Sequence[object], leaves_by_identity: dict[Any, list[Any]]
) -> list[Any]:
    """`argument_leaves`; `leaves_by_identity` are the leaves of values seen before, so that one object has one view."""
    parameters = computation.parameters
    require_inputs(computation, inputs)
    leaves: list[Any] = []
    for number, (parameter, value) in enumerate(zip(parameters, inputs, strict=True)):
        key = (number, _identity(value))
        if key not in leaves_by_identity:
            leaves_by_identity[key] = value_leaves(value, parameter.shape, _named(number, parameter))
        leaves += leaves_by_identity[key]
    return leaves


def require_inputs(computation: Computation, inputs: Sequence[object]) -> None:
    """InputError unless there are as many values as parameters."""
    parameters = computation.parameters
    if len(inputs) != len(parameters):
        listed = listing((f"{parameter.name}: {parameter.shape}" for parameter in parameters), 20)
        raise InputError(
            f"computation {computation.name} takes {len(parameters)} inputs ({listed}), but {len(inputs)} were given"
        )


def _identity(value: object) -> tuple[int, ...]:
    """Equal for values made of the same objects: their ids, and for a tuple its length below zero in front of them."""
    return tuple(id(node) if parts is None else -1 - len(parts) for _, node, parts in walk(value, of_sequence))


def value_leaves(value: object, shape: Shape, subject: str) -> list[Any]:
    """The leaves of one value as read-only views; InputError, which calls it `subject`, where it is not of `shape`."""

    def parts(node: tuple[Any, Shape, str]) -> list[tuple[Any, Shape, str]] | None:
        current, declared, where = node
        if not isinstance(declared, TupleShape):
            return None
        count = len(declared.elements)
        if not isinstance(current, (tuple, list)) or len(current) != count:
            raise InputError(f"{where} must be a tuple of {count} values, but {described(current)} was given")
        names = (f"element {number} of {where}" for number in range(count))
        return list(zip(current, declared.elements, names, strict=True))

    return [_leaf(*node) for _, node in leaves((value, shape, subject), parts)]


def _leaf(value: object, shape: ArrayShape | BufferShape, subject: str) -> Any:
    array_shape = shape.array_shape
    if not array_shape.is_array:
        if value is None or isinstance(value, Token):
            return TOKEN
        raise InputError(f"{subject} must be a token (or None), but {described(value)} was given")
    array = _array(value, array_shape, subject)
    if _is_of_other_integers(array, array_shape):
        array = exact_integers(array, array_shape.element_type, subject)
    if not fits(array, array_shape):
        advice = _conversion(array, array_shape)
        raise InputError(f"{subject} must be {_expected(array_shape)}, but {described(array)} was given{advice}")
    # A single element is contiguous whatever its stride, but NumPy's functions look at the stride.
    is_plain = array.flags.c_contiguous and min(array.strides, default=0) >= 0
    view = array.view() if is_plain or lies_in_order(array) else row_major(array)
    view.flags.writeable = False
    return view


def _array(value: object, shape: ArrayShape, subject: str) -> Array:
    if is_foreign(value):
        return cast(Array, as_value(value, subject))
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if isinstance(value, (bool, int, float, complex)) and shape.rank == 0:
        return _scalar(value, shape.element_type, subject)
    advice = ""
    if isinstance(value, (tuple, list)):
        advice = f"; numpy.array(…, {shape.element_type.storage.name!r}) makes an array of it"
    raise InputError(f"{subject} must be {_expected(shape)}, but {described(value)} was given{advice}")


def _conversion(array: Array, shape: ArrayShape) -> str:
    """What makes floats of the right type of an array of the right shape."""
    storage = shape.element_type.storage
    if not shape.element_type.is_floating or not shape.has_room_for(array.shape) or array.dtype == storage:
        return ""
    try:
        element_type = element_type_of(array.dtype)
    except KeyError:
        return ""
    if not element_type.is_floating and not element_type.is_integral:
        return ""
    home = "numpy" if storage.isbuiltin == 1 else "ml_dtypes"
    return f"; array.astype({home}.{storage.name}) rounds it to {shape.element_type}"


def _expected(shape: ArrayShape) -> str:
    return f"{shape}, a NumPy array of type {shape.element_type.storage} and shape {list(shape.dimensions)}"


_PYTHON_TYPES: dict[Kind, tuple[type, ...]] = {
    Kind.PRED: (bool,),
    Kind.SIGNED: (int,),
    Kind.UNSIGNED: (int,),
    Kind.FLOAT: (int, float),
    Kind.COMPLEX: (int, float, complex),
}


def _scalar(value: bool | int | float | complex, element_type: ElementType, subject: str) -> Array:
    """A Python number as an array without dimensions."""
    kind = element_type.kind
    if type(value) not in _PYTHON_TYPES[kind]:
        names = " or ".join(entry.__name__ for entry in _PYTHON_TYPES[kind])
        raise InputError(f"{subject} must be {element_type}[] or a Python {names}, but is {value!r}")
    if element_type.is_integral and isinstance(value, int):
        low, high = element_type.integer_range
        if not low <= value <= high:
            raise InputError(f"{subject} must be {element_type}[], from {low} to {high}, but is {value}")
        return np.asarray(value, element_type.compute).astype(element_type.storage)
    try:
        return _rounded(value, element_type)
    except OverflowError:
        raise InputError(f"{subject} must be {element_type}[], but {value} is beyond the range of floats") from None


def _rounded(value: bool | int | float | complex, element_type: ElementType) -> Array:
    if not element_type.is_floating:
        return np.asarray(value, element_type.storage)
    return narrow(np.asarray(float(value.real), np.float64), element_type)


def device_results(plan: Plan, results: Sequence[object], count: int, *, always_copy: bool) -> list[Value]:
    """The results of `count` devices as the caller gets them; devices that agree on a leaf get the same array.

    They are writeable, and none shares memory with anything else. Arguments and constants are read-only in a run, so a
    writeable array belongs to the run: it is returned as it is if it is a whole buffer; anything else is copied.
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


def _own(value: object, taken: set[int], *, always_copy: bool) -> Any:
    """A leaf without other references; `taken` is the set of buffers that other leaves hold."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    array = np.asarray(value)
    owner = array if array.base is None else owner_of(array)
    is_whole = (
        array.flags.writeable
        and (owner.base is None or is_own(owner))
        and owner.nbytes == array.nbytes
        and id(owner) not in taken
        and all(stride or size <= 1 for stride, size in zip(array.strides, array.shape, strict=True))
    )
    if always_copy or not is_whole:
        return row_major(array)
    taken.add(id(owner))
    return array
