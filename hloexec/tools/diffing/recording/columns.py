"""The data flow of a run, as columns of numbers: an object for each of a million instructions takes too much."""

from __future__ import annotations

from array import array as column
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from hloexec.core.ir import Computation, Instruction
from hloexec.core.places import CallPath, RunPlace
from hloexec.core.values import Array
from hloexec.tools.diffing.findings import InstructionRun, run_at

Operands: TypeAlias = Sequence[Sequence[int]]
"""For each operand the numbers of the nodes that are its arrays."""


class Columns:
    """Which instruction each instance is a run of, and between which nodes."""

    def __init__(self) -> None:
        self.sites: list[tuple[Instruction, Computation]] = []
        """The instructions that ran, and where they stand."""
        self.scopes: list[CallPath] = []
        """The paths of calls and iterations in which they ran."""
        self.site = column("i")
        self.scope = column("i")
        self.device = column("i")
        self.first = column("i")
        """By instance: its site, scope, device and first result."""
        self.others: dict[int, Mapping[int, Operands]] = {}
        """By instance that exchanges values: the operands on every device."""
        self.instance = column("i")
        self.array = column("i")
        """By node: its instance, and its array's number."""
        self._operands = column("i")
        """One after the other: the node of an operand, or -1 - n and then its n nodes."""
        self._start = column("q", [0])
        self._site_numbers: dict[tuple[int, int], int] = {}

    def add_scope(self, path: CallPath) -> int:
        """The number of a path of calls and iterations."""
        self.scopes.append(path)
        return len(self.scopes) - 1

    def add_instance(
        self,
        instruction: Instruction,
        computation: Computation,
        scope: int,
        device: int,
        operands: Operands,
        others: Mapping[int, Operands] | None = None,
    ) -> int:
        """The number of a run of an instruction, whose results are to be added next."""
        number = len(self.site)
        key = (id(instruction), id(computation))
        site = self._site_numbers.setdefault(key, len(self.sites))
        if site == len(self.sites):
            self.sites.append((instruction, computation))
        self.site.append(site)
        self.scope.append(scope)
        self.device.append(device)
        self.first.append(len(self.instance))
        for part in operands:
            if len(part) != 1:
                self._operands.append(-1 - len(part))
            self._operands.extend(part)
        self._start.append(len(self._operands))
        if others:
            self.others[number] = others
        return number

    def add_node(self, instance: int, array: int) -> int:
        """The number of a result of an instance."""
        self.instance.append(instance)
        self.array.append(array)
        return len(self.instance) - 1

    def operands(self, instance: int) -> Operands:
        found: list[Sequence[int]] = []
        place, stop = self._start[instance], self._start[instance + 1]
        while place < stop:
            count = 1
            if self._operands[place] < 0:
                count = -1 - self._operands[place]
                place += 1
            found.append(self._operands[place : place + count])
            place += count
        return found

    def inputs(self, instance: int) -> list[int]:
        """The nodes that an instance's results are made of, each once."""
        others = self.others.get(instance)
        if others is None:
            given = self._operands[self._start[instance] : self._start[instance + 1]]
            return [number for number in dict.fromkeys(given) if number >= 0]
        return list(dict.fromkeys(number for operands in others.values() for part in operands for number in part))

    def results(self, instance: int) -> range:
        stop = self.first[instance + 1] if instance + 1 < len(self.first) else len(self.instance)
        return range(self.first[instance], stop)

    def place(self, node: int) -> InstructionRun:
        """The run of the instruction that gave a node."""
        instance = self.instance[node]
        instruction, computation = self.sites[self.site[instance]]
        path = self.scopes[self.scope[instance]]
        return run_at(computation, RunPlace(path, instruction.name, self.device[instance]))

    def users(self) -> tuple[Array, Array]:
        """The instances that use each node: those of node n are `users[starts[n] : starts[n + 1]]`."""
        pairs = np.fromiter(self._uses(), np.dtype((np.int32, 2)))
        starts = np.zeros(len(self.instance) + 1, np.int64)
        np.cumsum(np.bincount(pairs[:, 0], minlength=len(self.instance)), out=starts[1:])
        return pairs[np.argsort(pairs[:, 0], kind="stable"), 1], starts

    def _uses(self) -> Iterator[tuple[int, int]]:
        for instance in range(len(self.site)):
            for node in self.inputs(instance):
                yield node, instance
