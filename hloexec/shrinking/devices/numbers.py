"""What the devices of a module compute from their own numbers: indices along axes, offsets, and comparisons of them.

Numbers that follow from a device's number and from constants are known for every device. Others, such as those that a
loop counts as well, are known to depend on some of these, their *sources*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from hloexec.dtypes import Kind, element_type_of
from hloexec.ir import ArrayShape, Computation, Instruction, Module
from hloexec.operations import traits_of
from hloexec.ops.attributes import computation_names
from hloexec.ops.indexing.dynamic_slice import DynamicSliceAttributes
from hloexec.ops.policies.policy import REFERENCE
from hloexec.ops.registry import Role, find_opcode, role_of
from hloexec.ops.relations import Place
from hloexec.values import Array

__all__ = ["DeviceValues", "Known", "computed", "literal_of"]

_MOST_SOURCES = 4
_MOST_ROUNDS = 4


@attrs.frozen(eq=False)
class Known:
    """What is known of a value."""

    numbers: Array | None = None
    """Of each device the only element, in the type of the value."""
    sources: tuple[Place, ...] = ()
    """The known numbers that differ between devices and on which it depends."""
    table: Place | None = None
    """The constant that it is."""
    parts: tuple[Known, ...] = ()

    def joined(self, other: Known) -> Known:
        """What is known of a value that is this one or the other."""
        if self is other:
            return self
        same = self.numbers is not None and other.numbers is not None and np.array_equal(self.numbers, other.numbers)
        parts = tuple(map(Known.joined, self.parts, other.parts)) if len(self.parts) == len(other.parts) else ()
        return Known(
            numbers=self.numbers if same else None,
            sources=_few(*self.sources, *other.sources),
            table=self.table if self.table == other.table else None,
            parts=parts,
        )

    def equals(self, other: Known) -> bool:
        is_same = (self.numbers is None) == (other.numbers is None) and (self.sources, self.table) == (
            other.sources,
            other.table,
        )
        return (
            is_same
            and (self.numbers is None or np.array_equal(self.numbers, other.numbers))  # type: ignore[arg-type]
            and len(self.parts) == len(other.parts)
            and all(map(Known.equals, self.parts, other.parts))
        )


NOTHING = Known()


def _few(*sources: Place) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(sources))[:_MOST_SOURCES]


def literal_of(instruction: Instruction) -> Array | None:
    """The numbers of a constant of integers or pred; None for any other."""
    value = instruction.attributes.literal.value
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "iub" else None


@attrs.define(eq=False)
class DeviceValues:
    """The known values of all instructions, found by following them from the entry computation."""

    module: Module
    replicas: int
    partitions: int
    replaced: Mapping[Place, Array] = attrs.field(factory=dict)
    """Constants with other numbers."""
    known: dict[Place, Known] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls, module: Module, replicas: int, partitions: int, replaced: Mapping[Place, Array] | None = None
    ) -> DeviceValues:
        found = cls(module, replicas, partitions, replaced or {})
        found.run(module.entry, (), is_final=True)
        return found

    @property
    def count(self) -> int:
        return self.replicas * self.partitions

    def differing(self, place: Place) -> Array | None:
        """The numbers of a place, where they differ between devices."""
        numbers = self.known.get(place, NOTHING).numbers
        return numbers if numbers is not None and (numbers != numbers[0]).any() else None

    def run(self, computation: Computation, arguments: Sequence[Known], *, is_final: bool) -> Known:
        values: dict[str, Known] = {}
        for instruction in computation.instructions:
            operands = [values.get(name, NOTHING) for name in instruction.operands]
            found = self._of(computation, instruction, operands, arguments, is_final=is_final)
            values[instruction.name] = found
            if is_final:
                place = (computation.name, instruction.name)
                self.known[place] = self.known.get(place, found).joined(found)
        return values[computation.root_name]

    def _of(
        self,
        computation: Computation,
        instruction: Instruction,
        operands: list[Known],
        arguments: Sequence[Known],
        *,
        is_final: bool,
    ) -> Known:
        role, place = role_of(instruction), (computation.name, instruction.name)
        if role is Role.PARAMETER:
            number = instruction.attributes.number
            return arguments[number] if number < len(arguments) else NOTHING
        if role is Role.CONSTANT:
            return self._constant(instruction, place)
        if role in (Role.PARTITION_ID, Role.REPLICA_ID):
            device = np.arange(self.count, dtype=np.uint32)
            is_partition = role is Role.PARTITION_ID
            numbers = device % np.uint32(self.partitions) if is_partition else device // np.uint32(self.partitions)
            return self._of_numbers(numbers, place)
        if role is Role.TUPLE:
            return Known(parts=tuple(operands))
        if role is Role.GET_TUPLE_ELEMENT:
            index, parts = instruction.attributes.index, operands[0].parts
            return parts[index] if index < len(parts) else NOTHING
        if role is Role.FORWARD:
            return operands[0]
        if role is Role.PART:
            return self._part(instruction, operands[0])
        if role in (Role.CALL, Role.WHILE, Role.CONDITIONAL, Role.ASYNC_START):
            return self._called(instruction, operands, is_final=is_final)
        return self._computed(computation, instruction, operands, place)

    def _constant(self, instruction: Instruction, place: Place) -> Known:
        array = self.replaced.get(place, literal_of(instruction))
        if array is None or array.size != 1:
            return Known(table=place)
        return Known(numbers=np.full(self.count, array.reshape(-1)[0], array.dtype), table=place)

    def _of_numbers(self, numbers: Array, place: Place) -> Known:
        return Known(numbers=numbers, sources=(place,) if (numbers != numbers[0]).any() else ())

    def _part(self, instruction: Instruction, value: Known) -> Known:
        for _, operand in traits_of(instruction).aliases:
            for index in operand:
                value = value.parts[index] if index < len(value.parts) else NOTHING
        return value

    def _called(self, instruction: Instruction, operands: list[Known], *, is_final: bool) -> Known:
        role = role_of(instruction)
        called = [self.module.by_name[name] for name in computation_names(instruction.attributes)]
        if role is Role.WHILE:
            return self._loop(called, operands[0], is_final=is_final)
        if role is Role.CONDITIONAL:
            found = [self.run(each, [part], is_final=is_final) for each, part in zip(called, operands[1:], strict=True)]
            result = found[0]
            for other in found[1:]:
                result = result.joined(other)
            return result
        result = self.run(called[0], operands, is_final=is_final)
        return result if role is Role.CALL else Known(parts=(Known(parts=tuple(operands)), result))

    def _loop(self, called: Sequence[Computation], state: Known, *, is_final: bool) -> Known:
        """What holds in every iteration."""
        body = next((each for each in called if each.root.shape == each.parameter_shapes[0]), called[-1])
        for _ in range(_MOST_ROUNDS):
            after = state.joined(self.run(body, [state], is_final=False))
            if after.equals(state):
                break
            state = after
        else:
            state = NOTHING
        if is_final:
            for each in called:
                self.run(each, [state], is_final=True)
        return state

    def looked_up(self, instruction: Instruction, operands: Sequence[Known]) -> Array | None:
        """What a slice of one element of a constant holds on each device."""
        is_slice = isinstance(instruction.attributes, DynamicSliceAttributes)
        if not is_slice or len(operands) != 2 or operands[0].table is None:
            return None
        computation, name = operands[0].table
        array = self.replaced.get(operands[0].table, literal_of(self.module.by_name[computation].by_name[name]))
        sizes = instruction.attributes.dynamic_slice_sizes
        if array is None or array.ndim != 1 or sizes != (1,) or operands[1].numbers is None:
            return None
        return array[np.clip(operands[1].numbers.astype(np.int64), 0, array.size - 1)]

    def _computed(
        self, computation: Computation, instruction: Instruction, operands: list[Known], place: Place
    ) -> Known:
        shape = instruction.shape
        if not isinstance(shape, ArrayShape) or not (
            shape.element_type.is_integral or shape.element_type.kind is Kind.PRED
        ):
            return NOTHING
        numbers = self.looked_up(instruction, operands)
        if numbers is None and all(each.numbers is not None for each in operands) and operands:
            numbers = computed(instruction, [each.numbers for each in operands])  # type: ignore[misc]
        if numbers is not None:
            return self._of_numbers(numbers, place)
        entry = find_opcode(instruction.opcode)
        is_spread = entry is not None and (entry.is_elementwise or bool(traits_of(instruction).moved_operands(1)))
        if shape.element_type.kind is Kind.PRED or role_of(instruction) is not Role.KERNEL or not is_spread:
            return NOTHING
        return Known(sources=_few(*(source for each in operands for source in each.sources)))


def computed(instruction: Instruction, operands: Sequence[Array]) -> Array | None:
    """What an instruction on single elements gives, for each device; None where it is not one that is followed."""
    shape, entry = instruction.shape, find_opcode(instruction.opcode)
    if not isinstance(shape, ArrayShape) or shape.element_count != 1 or entry is None:
        return None
    moved = traits_of(instruction).moved_operands(len(operands))
    if len(moved) == 1 and operands[moved[0]].dtype == shape.element_type.storage:
        return operands[moved[0]]
    if not entry.is_elementwise or entry.evaluate is None:
        return None
    types = [element_type_of(operand.dtype) for operand in operands]
    given = {
        "attributes": instruction.attributes,
        "shape": ArrayShape(shape.element_type, (operands[0].size,)),
        "numerics": REFERENCE,
        "operand_shapes": tuple(ArrayShape(each, (operands[0].size,)) for each in types),
    }
    needs = entry.evaluate_needs
    if not needs <= given.keys():
        return None
    with np.errstate(all="ignore"):
        found = entry.evaluate(*operands, **{name: given[name] for name in needs})
    return np.asarray(found).astype(shape.element_type.storage)
