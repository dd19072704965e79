"""What the devices of a module compute from their own numbers: indices along axes, offsets, and comparisons of them.

Numbers that follow from a device's number and from constants are known for every device. Others, such as those that a
loop counts as well, are known to depend on some of these, their *sources*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from hloexec.analysis.dataflow import Fact, ForwardAnalysis
from hloexec.core.dtypes import Kind, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.ops.indexing.dynamic_slice import DynamicSliceAttributes
from hloexec.ops.registry import Role, find_opcode, role_of, traits_of
from hloexec.ops.relations import Place

_MOST_SOURCES = 4


def _are_equal(first: Array | None, second: Array | None) -> bool:
    return first is second or (first is not None and second is not None and np.array_equal(first, second))


@frozen
class Known(Fact["Known"]):
    """What is known of a value."""

    numbers: Array | None = attrs.field(default=None, eq=attrs.cmp_using(eq=_are_equal, require_same_type=False))
    """Of each device the only element, in the type of the value."""
    sources: tuple[Place, ...] = ()
    """The known numbers that differ between devices and on which it depends."""
    table: Place | None = None
    """The constant that it is."""

    def joined(self, other: Known) -> Known:
        return Known(
            numbers=self.numbers if _are_equal(self.numbers, other.numbers) else None,
            sources=_few(*self.sources, *other.sources),
            table=self.table if self.table == other.table else None,
        )


NOTHING = Known()


def _few(*sources: Place) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(sources))[:_MOST_SOURCES]


def literal_of(instruction: Instruction) -> Array | None:
    """The numbers of a constant of integers or pred; None for any other."""
    value = instruction.attributes.literal.held
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "iub" else None


@define(eq=False)
class DeviceValues(ForwardAnalysis[Known]):
    """The known values of all instructions."""

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
        found.run(module.entry, ())
        return found

    @property
    def nothing(self) -> Known:
        return NOTHING

    @property
    def count(self) -> int:
        return self.replicas * self.partitions

    def differing(self, place: Place) -> Array | None:
        """The numbers of a place, where they differ between devices."""
        numbers = self.known.get(place, NOTHING).numbers
        return numbers if numbers is not None and (numbers != numbers[0]).any() else None

    def found(self, place: Place, fact: Known) -> None:
        self.known[place] = self.known.get(place, fact).joined(fact)

    def constant(self, instruction: Instruction, place: Place) -> Known:
        array = self.replaced.get(place, literal_of(instruction))
        if array is None or array.size != 1:
            return Known(table=place)
        return Known(numbers=np.full(self.count, array.reshape(-1)[0], array.dtype), table=place)

    def computed(
        self, computation: Computation, instruction: Instruction, operands: list[Known], place: Place
    ) -> Known:
        if role_of(instruction) in (Role.PARTITION_ID, Role.REPLICA_ID):
            device = np.arange(self.count, dtype=np.uint32)
            is_partition = role_of(instruction) is Role.PARTITION_ID
            number = device % np.uint32(self.partitions) if is_partition else device // np.uint32(self.partitions)
            return self._of_numbers(number, place)
        shape = instruction.shape
        if not isinstance(shape, ArrayShape) or not (
            shape.element_type.is_integral or shape.element_type.kind is Kind.PRED
        ):
            return NOTHING
        numbers = self.looked_up(instruction, operands)
        if numbers is None and operands:
            numbers = computed(instruction, [each.numbers for each in operands])
        if numbers is not None:
            return self._of_numbers(numbers, place)
        entry = find_opcode(instruction.opcode)
        is_spread = entry is not None and (entry.is_elementwise or bool(traits_of(instruction).moved_operands(1)))
        if shape.element_type.kind is Kind.PRED or role_of(instruction) is not Role.KERNEL or not is_spread:
            return NOTHING
        return Known(sources=_few(*(source for each in operands for source in each.sources)))

    def _of_numbers(self, numbers: Array, place: Place) -> Known:
        return Known(numbers=numbers, sources=(place,) if (numbers != numbers[0]).any() else ())

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


def computed(instruction: Instruction, given: Sequence[Array | None]) -> Array | None:
    """What an instruction gives for single elements, of each device one; None where it or an operand is not known."""
    operands = [operand for operand in given if operand is not None]
    shape, entry = instruction.shape, find_opcode(instruction.opcode)
    if len(operands) < len(given) or not isinstance(shape, ArrayShape) or shape.element_count != 1 or entry is None:
        return None
    moved = traits_of(instruction).moved_operands(len(operands))
    if len(moved) == 1 and operands[moved[0]].dtype == shape.element_type.storage:
        return operands[moved[0]]
    if not entry.is_elementwise or entry.evaluate is None:
        return None
    types = [element_type_of(operand.dtype) for operand in operands]
    if "computations" in entry.evaluate.needs:
        return None
    count = (operands[0].size,)
    with np.errstate(all="ignore"):
        found = entry.evaluate(
            *operands,
            attributes=instruction.attributes,
            shape=ArrayShape(shape.element_type, count),
            operand_shapes=tuple(ArrayShape(each, count) for each in types),
        )
    return np.asarray(found).astype(shape.element_type.storage)
