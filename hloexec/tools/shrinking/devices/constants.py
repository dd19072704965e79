"""Constants of what devices compute from their numbers, for a grid with shorter axes.

An instruction that gave each device its index along axes should give it that still. Where it would not, constants
before it that encode sizes of axes are replaced, so that it does. Tables by device lose rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

import attrs
import numpy as np

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.errors import InputError
from hloexec.ops.elementwise.selection import CompareAttributes
from hloexec.ops.indexing.dynamic_slice import DynamicSliceAttributes
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.ops.relations import Place
from hloexec.tools.shrinking.devices.grid import Block, Shorter
from hloexec.tools.shrinking.devices.numbers import NOTHING, DeviceValues, Known, computed, literal_of

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
        found = cls(before, shorter)
        for computation, name in list(before.known):
            found._fit(before.module.by_name[computation], before.module.by_name[computation].by_name[name])
        return found

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
                each for each in own if each not in self.replaced and next(self._candidates(each), None) is not None
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
        found = np.zeros(self.shorter.after.size(counting[0]), array.dtype)
        found[self.shorter.after.index(counting[0])] = expected
        if not np.array_equal(self.replaced.get(table, found), found):
            raise InputError(f"the table %{table[1]} in {table[0]} is looked up in different ways")
        self.tables[table] = counting[0]
        self._replace(table, found)

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
                found = slice_.value(instruction.name, trial)
                if found is not None and np.array_equal(found.astype(np.int64), expected):
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
        found: dict[Place, None] = {}
        waiting = [name]
        for each in waiting:
            instruction = self.computation.by_name[each]
            if role_of(instruction) is Role.CONSTANT:
                array = literal_of(instruction)
                if array is not None and array.size == 1:
                    found[self.computation.name, each] = None
            elif role_of(instruction) is Role.KERNEL:
                waiting += [operand for operand in instruction.operands if operand not in waiting]
        return list(found)

    def value(self, name: str, trial: Mapping[Place, Array]) -> Array | None:
        """The numbers of all devices, with other constants."""
        place, instruction = (self.computation.name, name), self.computation.by_name[name]
        if place in trial:
            return np.broadcast_to(trial[place].reshape(-1)[:1], (self.values.count,))
        if role_of(instruction) is not Role.KERNEL or isinstance(instruction.attributes, DynamicSliceAttributes):
            return self.values.known.get(place, NOTHING).numbers
        return computed(instruction, [self.value(operand, trial) for operand in instruction.operands])
