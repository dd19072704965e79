"""What the devices of a module compute from their numbers, and the constants that they do so with.

What the devices of a module compute from their own numbers: indices along axes, offsets, and comparisons of them.

Numbers that follow from a device's number and from constants are known for every device. Others, such as those that a
loop counts as well, are known to depend on some of these, their *sources*.

Constants of what devices compute from their numbers, for a grid with shorter axes.

An instruction that gave each device its index along axes should give it that still. Where it would not, constants
before it that encode sizes of axes are replaced, so that it does. Tables by device lose rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

import attrs
import numpy as np

from hloexec.analysis.dataflow import Fact, ForwardAnalysis
from hloexec.core.dtypes import Kind, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.ir.editing import change_computations, rename_operands
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.errors import InputError
from hloexec.ops.elementwise.selection import CompareAttributes
from hloexec.ops.indexing.dynamic_slice import DynamicSliceAttributes
from hloexec.ops.registry import Role, find_opcode, role_of, traits_of
from hloexec.ops.relations import Place
from hloexec.tools.shrinking.devices.grid import Block, Shorter

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
        values = cls(module, replicas, partitions, replaced or {})
        values.run(module.entry, ())
        return values

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
            numbers = computed(instruction, [operand.numbers for operand in operands])
        if numbers is not None:
            return self._of_numbers(numbers, place)
        entry = find_opcode(instruction.opcode)
        is_spread = entry is not None and (entry.is_elementwise or bool(traits_of(instruction).moved_operands(1)))
        if shape.element_type.kind is Kind.PRED or role_of(instruction) is not Role.KERNEL or not is_spread:
            return NOTHING
        return Known(sources=_few(*(source for operand in operands for source in operand.sources)))

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
        result = entry.evaluate(
            *operands,
            attributes=instruction.attributes,
            shape=ArrayShape(shape.element_type, count),
            operand_shapes=tuple(ArrayShape(element_type, count) for element_type in types),
        )
    return np.asarray(result).astype(shape.element_type.storage)


_MOST_CONSTANTS = 8


@define(eq=False)
class DeviceConstants:
    """The constants of a module that encode how its devices are arranged."""

    before: DeviceValues
    shorter: Shorter
    replaced: dict[Place, Array] = attrs.field(factory=dict)
    """Those that are replaced, and those that were found to stay."""
    uncertain: list[Place] = attrs.field(factory=list)
    unclear: list[Place] = attrs.field(factory=list)
    """Those that stay, although they may encode the size of an axis."""
    tables: dict[Place, Block] = attrs.field(factory=dict)
    """The axes along which a constant has rows."""
    _after: DeviceValues | None = None

    @classmethod
    def of(cls, before: DeviceValues, shorter: Shorter) -> DeviceConstants:
        constants = cls(before, shorter)
        for computation, name in list(before.known):
            constants._fit(before.module.by_name[computation], before.module.by_name[computation].by_name[name])
        return constants

    @property
    def module(self) -> Module:
        return self.before.module

    @property
    def after(self) -> DeviceValues:
        """What the devices of the shorter grid compute."""
        if self._after is None:
            count = self.shorter.after.count
            counts = (count, 1) if self.before.partitions == 1 else (1, count)
            self._after = DeviceValues.of(self.module, *counts, self.replaced)
        return self._after

    def _replace(self, place: Place, numbers: Array) -> None:
        self.replaced[place] = numbers
        self._after = None

    def _fit(self, computation: Computation, instruction: Instruction) -> None:
        place = (computation.name, instruction.name)
        old = self.before.differing(place)
        if old is None or role_of(instruction) is not Role.KERNEL:
            return
        operands = [self.before.known.get((computation.name, name), NOTHING) for name in instruction.operands]
        if isinstance(instruction.attributes, CompareAttributes):
            self._fit_comparison(computation, instruction, operands)
            return
        expected = None if old.dtype == bool else self.shorter.expected(old.astype(np.int64))
        if self.before.looked_up(instruction, operands) is not None:
            self._fit_table(place, operands, expected)
        elif expected is not None:
            self._fit_arithmetic(computation, instruction, expected)
        elif old.dtype != bool:
            own = [(computation.name, name) for name in instruction.operands]
            self.unclear += [
                own_place
                for own_place in own
                if own_place not in self.replaced and next(self._candidates(own_place), None) is not None
            ]

    def _fit_table(self, place: Place, operands: Sequence[Known], expected: Array | None) -> None:
        """The rows of a constant for the devices that are left."""
        table, numbers = operands[0].table, operands[1].numbers
        assert table is not None and numbers is not None
        array = literal_of(self.module.by_name[table[0]].by_name[table[1]])
        counting = self.shorter.before.counting(numbers.astype(np.int64))
        assert array is not None
        if counting is None or counting[1] != 1 or self.shorter.before.size(counting[0]) != array.size:
            raise InputError(f"%{place[1]} in {place[0]} looks up a table, %{table[1]}, not along axes of devices")
        if expected is None:
            raise InputError(
                f"the table %{table[1]} in {table[0]} lists numbers for all devices that do not count along an axis"
            )
        rows = np.zeros(self.shorter.after.size(counting[0]), array.dtype)
        rows[self.shorter.after.index(counting[0])] = expected
        if not np.array_equal(self.replaced.get(table, rows), rows):
            raise InputError(f"the table %{table[1]} in {table[0]} is looked up in different ways")
        self.tables[table] = counting[0]
        self._replace(table, rows)

    def _fit_comparison(self, computation: Computation, instruction: Instruction, operands: Sequence[Known]) -> None:
        """The last index along axes, or their size, follows."""
        for index, constant in (operands, operands[::-1]):
            place = constant.table
            if place is None or constant.numbers is None or index.numbers is None:
                continue
            counting = self.shorter.before.counting(index.numbers.astype(np.int64))
            if counting is None:
                return
            (block, step), number = counting, int(constant.numbers[0])
            size, smaller = self.shorter.before.size(block), self.shorter.after.size(block)
            follows = {step * (size - 1): step * (smaller - 1), step * size: step * smaller}
            guessed = number * smaller // size if 2 * number == size * step and size > 2 else number
            after = follows.get(number, guessed)
            if (number not in follows and smaller < size and number > step) or (after != number and step > 1):
                self.uncertain.append(place)
            if after != number or place not in self.replaced:
                self._replace(place, _of_type(constant.numbers, after))
            return

    def _fit_arithmetic(self, computation: Computation, instruction: Instruction, expected: Array) -> None:
        slice_ = _Slice(computation, self.after)
        places = slice_.constants(instruction.name)
        traits = traits_of(instruction)
        is_division = len(instruction.operands) == 2 and not (traits.same_unit or traits.is_product)
        # A divisor that is the size of axes follows them even if it need not.
        own = [place for place in places if is_division and place[1] == instruction.operands[-1]]
        trials: list[Sequence[Place]] = [own] if own else []
        trials += [[]]
        free = [place for place in places if place not in own][:_MOST_CONSTANTS]
        trials += [chosen for count in (1, 2) for chosen in combinations([*own, *free], count)]
        for chosen in trials:
            for numbers in product(*(list(self._candidates(place)) for place in chosen)):
                trial = dict(zip(chosen, numbers, strict=True))
                result = slice_.value(instruction.name, trial)
                if result is not None and np.array_equal(result.astype(np.int64), expected):
                    for place, array in trial.items():
                        self._replace(place, array)
                    return
        raise InputError(
            f"%{instruction.name} in {computation.name} gives each device its place along axes of devices, and how it "
            "does so for fewer is unclear"
        )

    def _candidates(self, place: Place) -> Iterator[Array]:
        """What a constant may become that encodes the size of neighbouring axes."""
        constant = self.module.by_name[place[0]].by_name[place[1]]
        array = literal_of(constant) if role_of(constant) is Role.CONSTANT else None
        if array is None or array.size != 1:
            return
        number, every = int(array.reshape(-1)[0]), self.shorter.before.every
        seen = set()
        for low, high in combinations(range(len(every) + 1), 2):
            size, smaller = self.shorter.before.size(every[low:high]), self.shorter.after.size(every[low:high])
            for before, after in zip(_codes(size), _codes(smaller), strict=True):
                if before == number and after not in seen:
                    seen.add(after)
                    yield _of_type(array, after)


def _codes(size: int) -> tuple[int, int, int]:
    """How arithmetic encodes a size: as a divisor, a mask, and a number of bits."""
    return size, size - 1, size.bit_length() - 1


def _of_type(array: Array, number: int) -> Array:
    return np.array([number]).astype(array.dtype)


@frozen(eq=False)
class _Slice:
    """What an instruction is computed from within its computation."""

    computation: Computation
    values: DeviceValues

    def constants(self, name: str) -> list[Place]:
        """The constants of single integers from which an instruction is computed, the nearest first."""
        places: dict[Place, None] = {}
        waiting = [name]
        for operand_name in waiting:
            instruction = self.computation.by_name[operand_name]
            if role_of(instruction) is Role.CONSTANT:
                array = literal_of(instruction)
                if array is not None and array.size == 1:
                    places[self.computation.name, operand_name] = None
            elif role_of(instruction) is Role.KERNEL:
                waiting += [operand for operand in instruction.operands if operand not in waiting]
        return list(places)

    def value(self, name: str, trial: Mapping[Place, Array]) -> Array | None:
        """The numbers of all devices, with other constants."""
        place, instruction = (self.computation.name, name), self.computation.by_name[name]
        if place in trial:
            return np.broadcast_to(trial[place].reshape(-1)[:1], (self.values.count,))
        if role_of(instruction) is not Role.KERNEL or isinstance(instruction.attributes, DynamicSliceAttributes):
            return self.values.known.get(place, NOTHING).numbers
        return computed(instruction, [self.value(operand, trial) for operand in instruction.operands])


Originals = Mapping[str, Mapping[str, str]]
"""By computation, from a constant that was copied to the original."""


def with_own_constants(module: Module, values: DeviceValues) -> tuple[Module, Originals]:
    """The module with a copy of a constant for each use but the first, where one of these depends on devices."""
    computations, originals = [], {}
    for computation in module.computations:
        separated, copies = _separated(computation, values)
        computations.append(separated)
        if copies:
            originals[computation.name] = copies
    return change_computations(module, computations), originals


def _separated(computation: Computation, values: DeviceValues) -> tuple[Computation, dict[str, str]]:
    shared = {name for name in computation.by_name if _is_shared(computation, name, values)}
    copies: dict[str, str] = {}
    if not shared:
        return computation, copies
    used: set[str] = set()
    changed: dict[str, Instruction] = {}
    for instruction in computation.instructions:
        operands = []
        for name in instruction.operands:
            if name in shared and name in used:
                copy = _fresh(computation, copies, name)
                copies[copy] = name
                operands.append(copy)
            else:
                operands.append(name)
            used.add(name)
        changed[instruction.name] = attrs.evolve(instruction, operands=tuple(operands))
    instructions: list[Instruction] = []
    for name, instruction in changed.items():
        instructions.append(instruction)
        instructions += [attrs.evolve(instruction, name=copy) for copy, original in copies.items() if original == name]
    return attrs.evolve(computation, instructions=tuple(instructions)), copies


def _fresh(computation: Computation, copies: Mapping[str, str], name: str) -> str:
    number = 1
    while (fresh_name := f"{name}.copy{number}") in computation.by_name or fresh_name in copies:
        number += 1
    return fresh_name


def _is_shared(computation: Computation, name: str, values: DeviceValues) -> bool:
    """Whether a constant of one integer is used several times, and for numbers of devices."""
    instruction = computation.by_name[name]
    if role_of(instruction) is not Role.CONSTANT or name == computation.root_name:
        return False
    array = literal_of(instruction)
    users = computation.users[name]
    if array is None or array.size != 1 or len(users) < 2:
        return False
    places = [(computation.name, operand) for user in users for operand in (user.name, *user.operands)]
    return any(values.known.get(place, NOTHING).sources for place in places)


def without_copies(module: Module, originals: Originals) -> Module:
    """The module without the copies that are the same as their originals still."""
    computations = (
        _merged(computation, originals[computation.name]) if computation.name in originals else computation
        for computation in module
    )
    return change_computations(module, computations)


def _merged(computation: Computation, copies: Mapping[str, str]) -> Computation:
    firsts: dict[tuple[str, bytes], str] = {}
    names: dict[str, str] = {}
    for instruction in computation.instructions:
        original = copies.get(instruction.name, instruction.name if instruction.name in copies.values() else None)
        if original is not None:
            key = original, instruction.attributes.literal.value.tobytes()
            names[instruction.name] = firsts.setdefault(key, instruction.name)
    instructions = [
        rename_operands(instruction, names)
        for instruction in computation.instructions
        if names.get(instruction.name, instruction.name) == instruction.name
    ]
    return attrs.evolve(computation, instructions=tuple(instructions))
