"""Modules under change.

A `Draft` holds the computations of a module as instructions that can be added, changed and taken out; names of
instructions are unique in the whole module there, so a name alone says where an instruction stands. `module()` puts
everything into an order in which operands and called computations come first. Whatever is new or altered is noted: that
is what a planted fault consists of.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module, Shape
from hloexec.ops.attributes import computation_names
from hloexec.ops.control.flow import ConstantAttributes
from hloexec.ops.movement.strided import BroadcastAttributes
from hloexec.ops.registry import OPCODES

Where = Callable[["Draft", Instruction], bool]


class Draft:
    """A module whose instructions have names of their own, while it is changed."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self.computations = {
            computation.name: {instruction.name: instruction for instruction in computation} for computation in module
        }
        self.roots = {computation.name: computation.root_name for computation in module}
        self._home = {name: home for home, instructions in self.computations.items() for name in instructions}
        assert len(self._home) == module.instruction_count, "names must be unique: see evaluation.faults.naming"
        self.touched: set[str] = set()
        """The names of instructions that are new or altered."""
        self._number = 0

    # Looking

    def __getitem__(self, name: str) -> Instruction:
        return self.computations[self._home[name]][name]

    def __contains__(self, name: str) -> bool:
        return name in self._home

    @property
    def entry_name(self) -> str:
        return self._module.entry_name

    def home(self, name: str) -> str:
        """The computation that an instruction stands in."""
        return self._home[name]

    def instructions(self) -> Iterator[Instruction]:
        """All instructions in the order of the text."""
        for instructions in self.computations.values():
            yield from instructions.values()

    def find(self, opcode: str, nth: int = 0, where: Where | None = None) -> Instruction:
        """The nth instruction of an opcode that fulfils a condition, in the order of the text; LookupError if none."""
        found = [each for each in self.instructions() if each.opcode == opcode and (where is None or where(self, each))]
        if not -len(found) <= nth < len(found):
            raise LookupError(
                f"{self._module.name} has {len(found)} such {opcode} instructions, so none of number {nth}"
            )
        return found[nth]

    def operand(self, instruction: Instruction, number: int = 0) -> Instruction:
        return self[instruction.operands[number]]

    def users(self, name: str) -> list[Instruction]:
        return [each for each in self.computations[self._home[name]].values() if name in each.operands]

    def is_root(self, name: str) -> bool:
        return self.roots[self._home[name]] == name

    def scalar(self, name: str) -> float | None:
        """The number that all elements of an instruction are, where constants and broadcasts show it."""
        instruction = self[name]
        while instruction.opcode in ("broadcast", "reshape", "convert", "copy", "bitcast"):
            instruction = self.operand(instruction)
        if instruction.opcode != "constant":
            return None
        value = instruction.attributes.literal.value
        return float(value.reshape(-1)[0]) if isinstance(value, np.ndarray) and value.size == 1 else None

    # Changing

    def fresh(self, stem: str) -> str:
        """A name that is not in use."""
        while True:
            self._number += 1
            name = f"{stem}.p{self._number}"
            if name not in self._home:
                return name

    def put(self, home: str, instruction: Instruction) -> str:
        """Add an instruction to a computation; returns its name."""
        assert instruction.name not in self._home
        self.computations[home][instruction.name] = instruction
        self._home[instruction.name] = home
        self.touched.add(instruction.name)
        return instruction.name

    def add(
        self,
        near: str,
        opcode: str,
        operands: Sequence[str],
        shape: Shape,
        *,
        name: str | None = None,
        **attributes: Any,
    ) -> str:
        """Add an instruction to the computation of the instruction `near`; returns its name."""
        kind = OPCODES[opcode].attributes
        return self.put(
            self._home[near],
            Instruction(
                name=name or self.fresh(opcode),
                shape=shape,
                opcode=opcode,
                operands=tuple(operands),
                attributes=None if kind is None else kind(**attributes),
                metadata=self[near].metadata,
            ),
        )

    def constant(self, near: str, value: Any, element_type: str) -> str:
        """Add a scalar constant, a negative one in unsigned integers modulo their range; returns its name."""
        shape = array(element_type)
        if shape.element_type.storage.kind == "u" and isinstance(value, int):
            value %= int(np.iinfo(shape.element_type.storage).max) + 1
        literal = Literal.from_array(np.asarray(value, shape.element_type.storage), shape)
        return self.put(
            self._home[near],
            Instruction(
                name=self.fresh("constant"), shape=shape, opcode="constant", attributes=ConstantAttributes(literal)
            ),
        )

    def filled(self, near: str, value: Any, shape: Shape) -> str:
        """Add an array of one number; returns its name."""
        assert isinstance(shape, ArrayShape)
        scalar = self.constant(near, value, shape.element_type.name)
        if not shape.dimensions:
            return scalar
        return self.put(
            self._home[near],
            Instruction(
                name=self.fresh("broadcast"),
                shape=shape,
                opcode="broadcast",
                operands=(scalar,),
                attributes=BroadcastAttributes(dimensions=()),
            ),
        )

    def change(self, name: str, **changes: Any) -> None:
        """Alter an instruction: `operands`, `opcode`, `attributes`, `shape` …; of attributes, give only what changes."""
        instruction = self[name]
        if isinstance(changes.get("attributes"), Mapping):
            changes["attributes"] = attrs.evolve(instruction.attributes, **changes["attributes"])
        self.computations[self._home[name]][name] = attrs.evolve(instruction, **changes)
        self.touched.add(name)

    def rewire(self, old: str, new: str, *, users: Iterable[str] | None = None, altered: bool = True) -> None:
        """Let the users of an instruction, or some of them, use another, which may itself be among them.

        They count as altered unless the new value is what was altered.
        """
        for user in self.users(old) if users is None else [self[name] for name in users]:
            if user.name == new:
                continue
            operands = tuple(new if operand == old else operand for operand in user.operands)
            self.computations[self._home[old]][user.name] = attrs.evolve(user, operands=operands)
            if altered:
                self.touched.add(user.name)
        if users is None and self.is_root(old):
            self.roots[self._home[old]] = new

    def insert_after(self, name: str, new: str) -> None:
        """Let all users of an instruction use what was made of it: everything in the computation that is new stays."""
        users = [user.name for user in self.users(name) if user.name not in self.touched]
        self.rewire(name, new, users=users, altered=False)
        if self.is_root(name):
            self.roots[self._home[name]] = new

    def remove(self, name: str) -> None:
        """Take out an instruction that nobody uses."""
        assert not self.users(name) and not self.is_root(name), name
        self.take_out([name])

    def take_out(self, names: Iterable[str]) -> None:
        """Take out instructions, wherever they are used."""
        for name in list(names):
            del self.computations[self._home.pop(name)][name]
            self.touched.discard(name)

    def add_computation(self, computation: Computation) -> None:
        """Add a computation whose names are not in use."""
        assert computation.name not in self.computations
        self.computations[computation.name] = {}
        self.roots[computation.name] = computation.root_name
        for instruction in computation:
            assert instruction.name not in self._home
            self.computations[computation.name][instruction.name] = instruction
            self._home[instruction.name] = computation.name

    def clean(self) -> None:
        """Take out what no result needs any more, and computations that nobody calls."""
        for home, instructions in self.computations.items():
            needed = {self.roots[home]}
            pending = [self.roots[home]]
            pending += [each.name for each in instructions.values() if _must_stay(each)]
            while pending:
                instruction = instructions[pending.pop()]
                needed.add(instruction.name)
                pending += [n for n in (*instruction.operands, *instruction.control_predecessors) if n not in needed]
            for name in [name for name in instructions if name not in needed]:
                del instructions[name], self._home[name]
                self.touched.discard(name)
        called = {self.entry_name}
        pending = [self.entry_name]
        while pending:
            for instruction in self.computations[pending.pop()].values():
                new = set(computation_names(instruction.attributes)) - called
                called |= new
                pending += new
        for home in [home for home in self.computations if home not in called]:
            for name in self.computations.pop(home):
                del self._home[name]
                self.touched.discard(name)
            del self.roots[home]

    def module(self, priority: Callable[[], float] | None = None) -> Module:
        """The module, in the order it has as far as that is possible, or in the order of priorities that are drawn."""
        computations = {}
        calls = {}
        for home, instructions in self.computations.items():
            before = {each.name: (*each.operands, *each.control_predecessors) for each in instructions.values()}
            order = _topological(before, priority)
            computations[home] = Computation(
                name=home,
                instructions=tuple(instructions[name] for name in order),
                root_name=self.roots[home],
                execution_thread=self._thread(home),
            )
            calls[home] = [name for each in instructions.values() for name in computation_names(each.attributes)]
        return attrs.evolve(
            self._module,
            computations=tuple(computations[name] for name in _topological(calls, priority)),
            is_scheduled=False,
            source=None,
            origin_recovery_table=None,
        )

    def _thread(self, home: str) -> str:
        known = self._module.by_name.get(home)
        return "main" if known is None else known.execution_thread


def _must_stay(instruction: Instruction) -> bool:
    return instruction.opcode == "parameter" or bool(
        getattr(instruction.attributes, "custom_call_has_side_effect", False)
    )


def _topological(before: Mapping[str, Iterable[str]], priority: Callable[[], float] | None) -> list[str]:
    """The names such that what must come before a name does; else by priority, or in the order given."""
    rank = {name: float(number) if priority is None else priority() for number, name in enumerate(before)}
    waiting = {name: len(set(others)) for name, others in before.items()}
    after: dict[str, list[str]] = {name: [] for name in before}
    for name, others in before.items():
        for other in set(others):
            after[other].append(name)
    ready = [(rank[name], name) for name, count in waiting.items() if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        _, name = heapq.heappop(ready)
        found.append(name)
        for other in after[name]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (rank[other], other))
    assert len(found) == len(before), "instructions or computations depend on each other in a circle"
    return found


def array(element_type: str, *dimensions: int) -> ArrayShape:
    """An array's shape, without layout."""
    return ArrayShape(ELEMENT_TYPES[element_type], dimensions)
