"""All dimensions of a module, and everything that its instructions say of how these depend on one another.

Every leaf of every value has dimensions of its own; rules of opcodes and library calls, and what control flow passes
on, tie them together. A dimension that a constant has the elements of stays, unless they are the same along it.

Library calls without a relation of their own: their shape rule is asked which sizes may change.

Dimensions of one size are taken for the same. They may change where the rule accepts other sizes for all of them, and
gives the result that the call then declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, call_of, calls_of
from hloexec.analysis.trip_counts import constant_number, loop_step
from hloexec.core.dtypes import Kind
from hloexec.core.ir import (
    ArrayShape,
    Computation,
    FirstElement,
    Instruction,
    Literal,
    Module,
    Shape,
    change_arrays,
    flat_shapes,
    leaf_shapes,
)
from hloexec.core.ir.literal import map_literal
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import HloError
from hloexec.ops.attributes import computation_names
from hloexec.ops.control.asynchronous import start_of
from hloexec.ops.registry import Entry, Role, find_custom_call, find_opcode, forwarded_names, role_of, traits_of
from hloexec.ops.relations import Relating, Relations, Value, relate_slices
from hloexec.tools.shrinking.devices.axes import DeviceAxes, device_counts, device_group, device_starts, relate_devices
from hloexec.tools.shrinking.grouping import divisors


def fixed_axes(literal: Literal, devices: int) -> Iterator[tuple[int, str]]:
    """The dimensions of a constant array that must stay, and why."""
    shape = literal.shape
    if not isinstance(shape, ArrayShape) or isinstance(literal.held, FirstElement):
        return
    if literal.value is None:
        for axis, size in enumerate(shape.dimensions):
            if shape.element_type.is_integral and size == devices > 1:
                yield axis, "it is one of an unknown table with a row for each device"
        return
    assert isinstance(literal.value, np.ndarray)
    is_mask = padding_of(literal.value) is not None
    for axis in range(shape.rank):
        is_last = is_mask and axis == shape.rank - 1
        if not (is_last or _is_repeated(literal.value, axis) or is_counting(literal.value, axis)):
            yield axis, "a constant lists its elements"


def padding_of(array: Array) -> tuple[int, int] | None:
    """Of a mask that is true but for the last elements of so many rows, again and again: the numbers of both."""
    if array.dtype != np.bool_ or array.ndim != 2 or not array.size or array.all():
        return None
    for count in (*reversed(divisors(len(array))), len(array)):
        groups = array.reshape(-1, count * array.shape[1])
        if (groups == groups[0]).all():
            padding = int((~groups[0]).sum())
            return (count, padding) if 4 * padding <= groups.shape[1] and groups[0, :-padding].all() else None
    return None


def is_counting(array: Array, axis: int) -> bool:
    """Whether the elements of an array of integers are 0, 1, … along a dimension."""
    if array.dtype.kind not in "iu" or array.shape[axis] < 2:
        return False
    numbers = np.arange(array.shape[axis]).reshape((-1,) + (1,) * (array.ndim - 1 - axis))
    return bool((array == numbers).all())


def _is_repeated(array: Array, axis: int) -> bool:
    if array.shape[axis] < 2 or not array.size:
        return True
    bits = array.view(f"u{array.dtype.itemsize}") if array.dtype.itemsize in (1, 2, 4, 8) else array
    first = bits.take([0], axis)
    return bool((bits == first).all())


def resized_literal(literal: Literal, shape: Shape) -> Literal:
    """The first elements of a constant along every dimension; the padding of a mask stays."""
    parts = iter(flat_shapes(shape))
    return map_literal(literal, lambda leaf: _resized(leaf, next(parts)))


def _resized(literal: Literal, shape: Shape) -> Literal:
    if isinstance(literal.held, FirstElement) and isinstance(shape, ArrayShape):
        return Literal(shape, FirstElement(literal.held.element, shape))
    if literal.array is None or not isinstance(shape, ArrayShape):
        return Literal(shape, None)
    if (mask := padding_of(literal.array)) is not None:
        count, padding = mask
        length = count * shape.dimensions[1]
        return Literal.from_array(np.resize(np.arange(length) < length - padding, shape.dimensions), shape)
    return Literal.from_array(_first(literal.array, shape.dimensions), shape)


def _first(array: Array, sizes: Sequence[int]) -> Array:
    if array.shape == tuple(sizes):
        return array
    return np.ascontiguousarray(array[tuple(map(slice, sizes))])


_SMALLEST = 2
_MOST_TRIED = 16


def relate_library_call(use: Relating, instruction: Instruction) -> None:
    """Relate the dimensions of a call by its entry's rule, or by what its shape rule accepts."""
    target = instruction.attributes.custom_call_target
    called = find_custom_call(target)
    try:
        config = None if called is None or called.config is None else called.config(instruction)
    except HloError:
        use.keep_all(f"the library call {target} is one that hloexec cannot run")
        return
    if called is not None and called.invokes is not None and called.reason_against(instruction) is None:
        invoked = computation_names(instruction.attributes).index(called.invokes(instruction))
        _relate_program(use, use.computations[invoked])
        return
    if called is not None and called.relate is not None:
        called.relate(attrs.evolve(use, config=config))
        return
    reason = f"how the dimensions of the library call {target} depend on one another is not known"
    if called is None or called.infer is None or traits_of(instruction).crosses_devices:
        use.keep_all(reason)
        return
    _relate_equal_sizes(use, instruction, called, reason)


def _relate_equal_sizes(use: Relating, instruction: Instruction, called: Entry, reason: str) -> None:
    by_size: dict[int, list[int]] = {}
    for value in (*use.operands, use.result):
        for axes in value.leaves.values():
            for axis in axes:
                by_size.setdefault(use.size(axis), []).append(axis)
    operands = [operand.shape for operand in use.operands]
    for size, alike in by_size.items():
        smaller = [other for other in divisors(size)[:_MOST_TRIED] if other >= _SMALLEST]
        if smaller and all(_accepts(instruction, called, operands, size, other) for other in smaller):
            use.same(alike[1:], alike[:1] * (len(alike) - 1))
        else:
            use.keep(alike, reason)


def _accepts(instruction: Instruction, called: Entry, operands: Sequence[Shape], size: int, other: int) -> bool:
    """Whether the call may have dimensions of another size for those of one."""
    changed = attrs.evolve(instruction, shape=_with_size(instruction.shape, size, other))
    try:
        result_shape = called.result_shape(changed, [_with_size(operand, size, other) for operand in operands])
    except HloError:
        return False
    return result_shape is not None and result_shape.compatible(changed.shape)


def _with_size(shape: Shape, size: int, other: int) -> Shape:
    def changed(leaf: ArrayShape) -> ArrayShape:
        return attrs.evolve(
            leaf, dimensions=tuple(other if dimension == size else dimension for dimension in leaf.dimensions)
        )

    return change_arrays(shape, changed)


@frozen(eq=False)
class Dimensions:
    """The relations of a module's dimensions, and the numbered dimensions of every value."""

    relations: Relations
    values: Mapping[str, Mapping[str, Value]]
    """By the names of computation and instruction."""

    def of_inputs(self, module: Module) -> list[int]:
        """The dimensions of the parameters of the entry computation."""
        values = self.values[module.entry_name]
        parameter_values = [values[parameter.name] for parameter in module.entry.parameters]
        return [axis for value in parameter_values for axes in value.leaves.values() for axis in axes]


def dimensions_of(module: Module, devices: int, axes: DeviceAxes | None = None) -> Dimensions:
    """Number the dimensions of a module for so many devices, and relate them; with `axes`, devices get fewer."""
    relations = Relations(device_counts=device_counts(module, devices))
    values = {
        computation.name: {
            instruction.name: Value.of(instruction.shape, relations) for instruction in computation.instructions
        }
        for computation in module
    }
    dimensions = Dimensions(relations, values)
    for computation in module:
        for instruction in computation.instructions:
            _relate(module, computation, instruction, dimensions, devices, axes)
    relate_slices(relations)
    if axes is not None:
        relate_devices(module, relations, values, axes)
    return dimensions


def _relate(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    dimensions: Dimensions,
    devices: int,
    axes: DeviceAxes | None,
) -> None:
    entry = find_opcode(instruction.opcode)
    values = dimensions.values[computation.name]
    use = Relating(
        relations=dimensions.relations,
        where=(computation.name, instruction.name),
        attributes=instruction.attributes,
        operands=tuple(values[name] for name in instruction.operands if name in values),
        result=values[instruction.name],
        computations=tuple(_signature(module, name, dimensions) for name in computation_names(instruction.attributes)),
    )
    if axes is not None:
        use = attrs.evolve(
            use,
            group=device_group(instruction, dimensions.relations, use.where, axes),
            starts=device_starts(computation, instruction, dimensions.relations, axes),
        )
    elif (groups := getattr(instruction.attributes, "replica_groups", None)) is not None:
        use = attrs.evolve(use, members=next(iter(groups.expand()), tuple(range(devices))))
    _keep_dynamic(use, instruction)
    if entry is None:
        use.keep_all(f"hloexec does not know the opcode {instruction.opcode}")
    elif entry.relate is not None:
        entry.relate(use)
        _relate_units(use, instruction)
        _relate_counts(computation, instruction, use)
        if instruction.opcode == "or":
            _leave_rotation(computation, instruction, use.relations, values)
    elif entry.role is Role.CUSTOM_CALL:
        _relate_call(computation, instruction, use, values)
    elif entry.role is Role.CONSTANT:
        _relate_constant(use, devices, axes)
    else:
        start = start_of(instruction, computation.by_name) if len(use.operands) > 1 else None
        if entry.role is Role.PART and start is not None:
            _relate_late_operands(use, _signature(module, calls_of(start)[0].computation, dimensions))
        else:
            _FLOWS.get(entry.role, _keep_all)(use, instruction)
        if entry.role is Role.WHILE:
            _relate_counters(module, computation, instruction, use)


def _relate_units(use: Relating, instruction: Instruction) -> None:
    """Numbers that are moved, added, compared or converted count what they counted."""
    if not use.result.leaves:
        return  # an empty tuple has none
    traits = traits_of(instruction)
    moved, numbers = traits.moved_operands(len(use.operands)), use.relations.numbers
    if len(moved) == 1 and use.relations.units.is_constant(constant := use.operands[moved[0]].unit):
        use.relations.units.mark(use.result.unit)
        use.relations.units.tie(constant, use.result.unit)
        if constant in numbers:
            numbers[use.result.unit] = numbers[constant]
        return
    is_vector = bool(use.relations.components) and use.relations.components[-1][0] == use.result.unit
    is_integral = use.result.array.element_type.is_integral
    if traits.is_product and is_integral:
        use.multiplies()
    elif traits.is_quotient and is_integral:
        use.divides()
    elif traits.keeps_unit and is_integral:
        use.wraps()
    elif traits.is_shift:
        use.relations.shifts.append((use.operands[0].unit, use.operands[1].unit))
    elif traits.converts:
        _relate_converted(use)
    elif traits.same_unit:
        use.same_units((*use.operands, use.result))
    elif moved and not is_vector:
        use.same_units((*(use.operands[number] for number in moved), use.result))
    if len(use.operands) == 2 and not (traits.same_unit or moved):
        _relate_derived(use, instruction)


def _relate_derived(use: Relating, instruction: Instruction) -> None:
    """What is computed of numbers with one that is the same everywhere."""
    number = use.relations.numbers.get(use.operands[1].unit)
    if number is not None:
        key = instruction.opcode, number
        use.relations.derived.append((key, use.operands[0].unit, use.result.unit))


def _relate_converted(use: Relating) -> None:
    """Counts may be floats for a while."""
    values = use.operands[0], use.result
    if Kind.PRED not in {value.array.element_type.kind for value in values}:
        use.relations.units.tie(values[0].unit, values[1].unit)


def _relate_counts(computation: Computation, instruction: Instruction, use: Relating) -> None:
    """A sum of zeros and ones over a dimension is a position along it: a length, or how many elements a group has."""
    over = [axis for axis in use.relations.summed.get(use.where, ()) if use.size(axis) > 1]
    if len(over) == 1 and use.result.leaves and use.result.array.element_type.kind is not Kind.PRED:
        operands = computation.operands_of(instruction)
        summed = operands[-1] if len(operands) > 2 else operands[0]
        if _is_zero_or_one(computation, summed):
            use.relations.add_position(use.result.unit, (over[0],))
            use.relations.lengths.append((use.result.unit, over[0], use.where))


def _leave_rotation(
    computation: Computation, instruction: Instruction, relations: Relations, values: Mapping[str, Value]
) -> None:
    """Numbers whose bits are shifted one way and the other, and put together, are random: no size says how far."""
    first, second = computation.operands_of(instruction)
    is_shift = all(traits_of(shift).is_shift for shift in (first, second))
    if is_shift and first.opcode != second.opcode and first.operands[0] == second.operands[0]:
        rotated = {tuple(values[name].unit for name in shift.operands) for shift in (first, second)}
        relations.shifts[:] = [shift for shift in relations.shifts if shift not in rotated]


_MOST_MOVES = 20


def _is_zero_or_one(computation: Computation, instruction: Instruction) -> bool:
    """Whether an array of numbers is made of preds, or of integers that are 0 or 1, by moving and choosing."""
    for _ in range(_MOST_MOVES):
        operands = computation.operands_of(instruction)
        if role_of(instruction) is Role.CONSTANT:
            held = instruction.attributes.literal.held
            return isinstance(held, np.ndarray) and held.dtype.kind in "iu" and bool(((held == 0) | (held == 1)).all())
        if not isinstance(instruction.shape, ArrayShape) or not operands:
            return False
        shape = operands[0].shape
        if traits_of(instruction).converts and isinstance(shape, ArrayShape) and shape.element_type.kind is Kind.PRED:
            return True
        moved = traits_of(instruction).moved_operands(len(operands))
        if not moved:
            return False
        if len(moved) > 1:
            return all(_is_zero_or_one(computation, operands[number]) for number in moved)
        instruction = operands[moved[0]]
    return False


def _signature(module: Module, name: str, dimensions: Dimensions) -> tuple[tuple[Value, ...], Value]:
    computation = module.by_name[name]
    values = dimensions.values[name]
    return tuple(values[parameter.name] for parameter in computation.parameters), values[computation.root_name]


def _keep_dynamic(use: Relating, instruction: Instruction) -> None:
    """Sizes that are known at run time only stay."""
    for index, leaf in leaf_shapes(instruction.shape):
        if isinstance(leaf, ArrayShape) and leaf.is_dynamic:
            use.keep(use.result.leaves[index], "it is an array of dynamic size")


def _keep_all(use: Relating, instruction: Instruction) -> None:
    use.keep_all(f"how the dimensions of {instruction.opcode} depend on one another is not known")


def _nothing(use: Relating, instruction: Instruction) -> None:
    """Tokens and numbers of devices have no dimensions; a parameter has those that callers give it."""


def _relate_tuple(use: Relating, instruction: Instruction) -> None:
    for operand, part in zip(use.operands, use.result.parts, strict=True):
        use.same_values(operand, part)


def _relate_element(use: Relating, instruction: Instruction) -> None:
    use.same_values(use.operands[0].part(instruction.attributes.index), use.result)


def _relate_forward(use: Relating, instruction: Instruction) -> None:
    use.same_values(use.operands[0], use.result)


def _relate_called(use: Relating, instruction: Instruction) -> None:
    _relate_program(use, use.computations[0])


def _relate_program(use: Relating, program: tuple[tuple[Value, ...], Value]) -> None:
    """The parameters of what is called are the operands, and its result is the result."""
    parameters, result = program
    for operand, parameter in zip(use.operands, parameters, strict=True):
        use.same_values(operand, parameter)
    use.same_values(result, use.result)


def _relate_loop(use: Relating, instruction: Instruction) -> None:
    (state,) = use.operands
    for parameters, result in use.computations:
        use.same_values(state, parameters[0])
        if result.shape.compatible(state.shape):
            use.same_values(state, result)
    use.same_values(state, use.result)


def _relate_counters(module: Module, computation: Computation, loop: Instruction, use: Relating) -> None:
    """Counters that begin with the same constant and grow by the same constant count the same."""
    initial, body = computation.by_name[loop.operands[0]], module.by_name[call_of(loop, CallKind.BODY)]
    if role_of(initial) is not Role.TUPLE or role_of(body.root) is not Role.TUPLE:
        return
    seen: dict[object, int] = {}
    for number, first in enumerate(initial.operands):
        begin, step = constant_number(computation, computation.by_name[first]), loop_step(module, body, number)
        if begin is not None and step is not None:
            unit = use.result.part(number).unit
            use.relations.units.tie(seen.setdefault((begin, step), unit), unit)


def _relate_conditional(use: Relating, instruction: Instruction) -> None:
    for operand, (parameters, result) in zip(use.operands[1:], use.computations, strict=True):
        use.same_values(operand, parameters[0])
        use.same_values(result, use.result)


def _relate_async(use: Relating, instruction: Instruction) -> None:
    ((parameters, result),) = use.computations
    for operand, held_operand, parameter in zip(use.operands, use.result.part(0).parts, parameters, strict=False):
        use.same_values(operand, held_operand)
        use.same_values(operand, parameter)
    use.same_values(result, use.result.part(1))


def _relate_copy(use: Relating, instruction: Instruction) -> None:
    for part in use.result.parts[:2]:
        use.same_values(use.operands[0], part)


def _relate_part(use: Relating, instruction: Instruction) -> None:
    for result, operand in traits_of(instruction).aliases:
        use.same_values(use.operands[0].part(*operand), use.result.part(*result))


def _relate_late_operands(use: Relating, program: tuple[tuple[Value, ...], Value]) -> None:
    """An async-update that brings operands of the computation that was started without them."""
    before, *further = use.operands
    parameters, result = program
    for operand, held_operand, parameter in zip(
        (*before.part(0).parts, *further), use.result.part(0).parts, parameters, strict=False
    ):
        use.same_values(operand, held_operand)
        use.same_values(operand, parameter)
    use.same_values(result, use.result.part(1))


_FLOWS = {
    Role.PARAMETER: _nothing,
    Role.TOKEN: _nothing,
    Role.PARTITION_ID: _nothing,
    Role.REPLICA_ID: _nothing,
    Role.TUPLE: _relate_tuple,
    Role.GET_TUPLE_ELEMENT: _relate_element,
    Role.FORWARD: _relate_forward,
    Role.CALL: _relate_called,
    Role.WHILE: _relate_loop,
    Role.CONDITIONAL: _relate_conditional,
    Role.ASYNC_START: _relate_async,
    Role.COPY_START: _relate_copy,
    Role.PART: _relate_part,
}


def _relate_call(
    computation: Computation, instruction: Instruction, use: Relating, values: Mapping[str, Value]
) -> None:
    forwarded = [values[name] for name in forwarded_names(computation, instruction)]
    if forwarded:
        is_one = len(forwarded) == 1 and forwarded[0].shape.compatible(use.result.shape)
        for value, part in zip(forwarded, (use.result,) if is_one else use.result.parts, strict=False):
            use.same_values(value, part)
        return
    relate_library_call(use, instruction)


def _relate_constant(use: Relating, devices: int, shorter: DeviceAxes | None) -> None:
    for unit, literal in zip(use.result.units.values(), use.attributes.literal.leaves(), strict=True):
        use.relations.units.mark(unit)
        if isinstance(literal.held, np.ndarray) and literal.held.size == 1 and literal.held.dtype.kind in "iu":
            use.relations.numbers[unit] = int(literal.held.item())
    if shorter is not None and use.where in shorter.constants.tables:
        return
    for literal, axes in zip(use.attributes.literal.leaves(), use.result.leaves.values(), strict=True):
        if isinstance(literal.held, np.ndarray) and (mask := padding_of(literal.held)) is not None:
            use.at_least(axes[-1], mask[1] // mask[0] + 1)
        for axis, reason in fixed_axes(literal, devices):
            if shorter is not None and literal.held is None:
                use.relations.tie(axes[axis], shorter.dimension(shorter.grid.every, use.relations, use.where))
            else:
                use.keep([axes[axis]], reason)
