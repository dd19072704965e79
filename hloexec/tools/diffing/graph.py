"""The data flow of a run: every execution of every instruction, and the values that it used.

A `Node` is an array that an instruction computed once (in one iteration, on one device). An `Instance` is one execution
of an instruction on one device, from nodes to nodes; devices that agree share the array. Instructions that only forward
values (tuples, parameters of called computations, fusions, loops) have no nodes, so calls are not visible: the graph is
the data flow of the whole run.

A run may have millions of nodes. The graph holds them in columns (`diffing.recording`), and makes the objects
when they are asked for. As long as an object is in use, it is the only one of its number.

It is kept as columns of numbers: an object for each of a million instructions takes too much.
"""

from __future__ import annotations

import re
from array import array as column
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias, overload
from weakref import WeakValueDictionary

import attrs
import numpy as np

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.places import CallPath, RunPlace
from hloexec.core.structs import define
from hloexec.core.values import Array
from hloexec.ops.registry import Role, find_opcode, role_of, traits_of
from hloexec.tools.diffing.findings import InstructionRun, run_at
from hloexec.tools.diffing.recording.arrays import Arrays, Digest
from hloexec.tools.diffing.recording.held import Kept

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
        operands: list[Sequence[int]] = []
        place, stop = self._start[instance], self._start[instance + 1]
        while place < stop:
            count = 1
            if self._operands[place] < 0:
                count = -1 - self._operands[place]
                place += 1
            operands.append(self._operands[place : place + count])
            place += count
        return operands

    def inputs(self, instance: int) -> list[int]:
        """The nodes that an instance's results are made of, each once."""
        others = self.others.get(instance)
        if others is None:
            numbers = self._operands[self._start[instance] : self._start[instance + 1]]
            return [number for number in dict.fromkeys(numbers) if number >= 0]
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


_ITERATION = re.compile(r"\[(\d+)\]")
_RECENT = 1 << 12
"""So many instances are kept once they have been made."""
_KEPT = 1 << 14
"""All nodes of a graph are kept once they have been made, unless there are more."""


@define(eq=False)
class Node:
    """An array that an instruction gave."""

    number: int
    """Nodes are counted in the order in which they came to be."""
    _graph: Graph
    _digest: Digest | None = attrs.field(default=None, init=False)

    @property
    def value(self) -> Array:
        return self._graph.arrays[self.array]

    @property
    def array(self) -> int:
        """The number of its value among the arrays that are kept."""
        return self._graph.columns.array[self.number]

    @property
    def held(self) -> Kept:
        return Kept(self._graph.arrays, self.array)

    @property
    def instance(self) -> Instance:
        return self._graph.instance_of(self.number)

    @property
    def instruction(self) -> Instruction:
        return self._graph.instruction_of(self.number)

    @property
    def leaf(self) -> int:
        """Which of the instruction's arrays it is."""
        columns = self._graph.columns
        return self.number - columns.first[columns.instance[self.number]]

    @property
    def digest(self) -> Digest:
        if self._digest is None:
            self._digest = self._graph.arrays.digest(self.array)
        return self._digest

    @property
    def shape(self) -> tuple[int, ...]:
        return self._graph.arrays.shape(self.array)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._graph.arrays.dtype(self.array)

    @property
    def device(self) -> int:
        return self._graph.device_of(self.number)

    @property
    def place(self) -> InstructionRun:
        """The run of the instruction that computed it."""
        instance = self.instance
        return run_at(instance.computation, RunPlace(instance.scope, instance.instruction.name, instance.device))


@define(eq=False, slots=False)
class Instance:
    """One run of an instruction on one device."""

    number: int
    instruction: Instruction
    computation: Computation
    scope: CallPath
    """The path of calls and iterations."""
    device: int
    operands: tuple[tuple[Node, ...], ...]
    """For each operand its arrays."""
    results: list[Node] = attrs.field(factory=list)
    others: Mapping[int, tuple[tuple[Node, ...], ...]] = attrs.field(factory=dict)
    """Of what exchanges values between devices: the operands on every device."""
    cut: tuple[slice, ...] | None = None
    """Of a part of a result, which is computed from whole operands: its place."""

    @property
    def name(self) -> str:
        """The path and the instruction, as `Event.name` gives it."""
        return self.scope.name_of(self.instruction.name)

    @property
    def opcode(self) -> str:
        return self.instruction.opcode

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """All nodes that the results are made of."""
        devices = self.others.values() if self.others else [self.operands]
        return tuple(dict.fromkeys(node for operands in devices for part in operands for node in part))

    @property
    def is_movement(self) -> bool:
        """Whether the result is the operand's elements, perhaps in another order."""
        if role_of(self.instruction) is Role.PART:
            return True
        is_rearranged = len(self.operands) == 1 and traits_of(self.instruction).rearranges
        return is_rearranged and self.results[0].digest.count == self.inputs[0].digest.count

    @property
    def is_source(self) -> bool:
        """Whether the results come from outside, or out of nothing."""
        entry = find_opcode(self.opcode)
        return entry is not None and (
            entry.maximum_operands == 0 or (entry.role is Role.MACHINE and entry.exchange is None)
        )

    @property
    def is_constant(self) -> bool:
        return role_of(self.instruction) is Role.CONSTANT

    @property
    def static(self) -> tuple[str, str]:
        """Which instruction it is, whenever it runs."""
        return self.computation.name, self.instruction.name

    @property
    def iterations(self) -> tuple[int, ...]:
        """The numbers of the iterations of the loops around it in which it ran, outermost first."""
        return self.scope.iterations

    @property
    def loops(self) -> str:
        """The scope, whatever the iterations."""
        return self.scope.loops


class Graph:
    """The data flow of a run."""

    def __init__(self, module: Module, arrays: Arrays) -> None:
        self.module = module
        self.arrays = arrays
        self.columns = Columns()
        self.outputs: dict[int, list[Node]] = {}
        """The arrays of the result on each device, depth first."""
        self._nodes: MutableMapping[int, Node] = {}
        self._instances: WeakValueDictionary[int, Instance] = WeakValueDictionary()
        self._recent: deque[Instance] = deque(maxlen=_RECENT)
        self._added: dict[int, Instance] = {}
        """By number."""
        self._apart: dict[int, Instance] = {}
        """By the number of their node, those that are no runs."""
        self._words: Array = np.zeros(0, np.uint64)
        """By node, what its digest says of its elements in their order; of those that were there when it was asked."""

    @property
    def nodes(self) -> _Nodes:
        return _Nodes(self)

    @property
    def instances(self) -> _Instances:
        return _Instances(self)

    def node(self, number: int) -> Node:
        node = self._nodes.get(number)
        if node is None:
            if len(self._nodes) == _KEPT and type(self._nodes) is dict:
                self._nodes = WeakValueDictionary(self._nodes)
            node = self._nodes[number] = Node(number, self)
        return node

    def instance(self, number: int) -> Instance:
        instance = self._instances.get(number) or self._added.get(number)
        if instance is None:
            instance = self._instances[number] = self._made(number)
            self._recent.append(instance)
        return instance

    def instance_of(self, node: int) -> Instance:
        """The instance that gave a node."""
        number = self.columns.instance[node]
        return self._apart[node] if number < 0 else self.instance(number)

    def device_of(self, node: int) -> int:
        number = self.columns.instance[node]
        return self._apart[node].device if number < 0 else self.columns.device[number]

    def instruction_of(self, node: int) -> Instruction:
        number = self.columns.instance[node]
        return self._apart[node].instruction if number < 0 else self.columns.sites[self.columns.site[number]][0]

    def scope_of(self, node: int) -> CallPath:
        number = self.columns.instance[node]
        return self._apart[node].scope if number < 0 else self.columns.scopes[self.columns.scope[number]]

    def inputs_of(self, node: int) -> list[int]:
        """The numbers of the nodes that a node is made of."""
        number = self.columns.instance[node]
        return self.columns.inputs(number) if number >= 0 else []

    def _made(self, number: int) -> Instance:
        columns = self.columns
        instruction, computation = columns.sites[columns.site[number]]
        others = columns.others.get(number)
        made = Instance(
            number,
            instruction,
            computation,
            columns.scopes[columns.scope[number]],
            columns.device[number],
            self._operands(columns.operands(number)),
            [self.node(node) for node in columns.results(number)],
        )
        if others is not None:
            made.others = {device: self._operands(operands) for device, operands in others.items()}
        return made

    def _operands(self, numbers: Sequence[Sequence[int]]) -> tuple[tuple[Node, ...], ...]:
        return tuple(tuple(map(self.node, part)) for part in numbers)

    def add(self, instance: Instance, value: Array, digest: Digest) -> Node:
        """Add an instance with one result; one with a negative number is no run, and has its result only."""
        columns = self.columns
        if instance.number >= 0:
            operands, *others = (
                [[node.number for node in part] for part in parts]
                for parts in (instance.operands, *instance.others.values())
            )
            columns.add_instance(
                instance.instruction,
                instance.computation,
                columns.add_scope(instance.scope),
                instance.device,
                operands,
                dict(zip(instance.others, others, strict=True)),
            )
            self._added[instance.number] = instance
        node = self.node(columns.add_node(instance.number, self.arrays.add(value, digest)))
        if instance.number < 0:
            self._apart[node.number] = instance
            self.runs.add(instance)
        instance.results.append(node)
        return node

    def of_opcode(self, opcode: str, first: int) -> list[int]:
        """The numbers of the instances of an opcode, from the first one on, in their order."""
        sites = [site for site, (instruction, _) in enumerate(self.columns.sites) if instruction.opcode == opcode]
        numbers: list[int] = np.flatnonzero(np.isin(np.array(self.columns.site)[first:], sites)).tolist()
        return [first + number for number in numbers]

    def has_digest(self, digest: Digest) -> list[Node]:
        """The nodes with a digest."""
        if len(self._words) < len(self.columns.array):
            self._words = self.arrays.digests.columns()[0][np.array(self.columns.array)]
        numbers = np.flatnonzero(self._words == np.uint64(digest.in_order))
        return [node for node in map(self.node, numbers.tolist()) if node.digest == digest]

    @cached_property
    def types(self) -> frozenset[np.dtype[Any]]:
        """The types of its values."""
        return frozenset(map(self.arrays.dtype, set(self.columns.array)))

    @cached_property
    def runs(self) -> _Runs:
        """The instances of each instruction."""
        return _Runs(self, self._added.values())

    def users(self) -> Users:
        """For each node the instances that it is an input of."""
        return Users(self)


class _Nodes(Sequence[Node]):
    """The nodes of a graph, made when they are asked for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __len__(self) -> int:
        return len(self._graph.columns.instance)

    @overload
    def __getitem__(self, place: int) -> Node: ...
    @overload
    def __getitem__(self, place: slice) -> list[Node]: ...
    def __getitem__(self, place: int | slice) -> Node | list[Node]:
        numbers = range(len(self))[place]
        return self._graph.node(numbers) if isinstance(numbers, int) else list(map(self._graph.node, numbers))

    def __iter__(self) -> Iterator[Node]:
        return map(self._graph.node, range(len(self)))

    def __reversed__(self) -> Iterator[Node]:
        return map(self._graph.node, reversed(range(len(self))))


class _Instances(Sequence[Instance]):
    """The instances of a graph, made when they are asked for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __len__(self) -> int:
        return len(self._graph.columns.site)

    @overload
    def __getitem__(self, place: int) -> Instance: ...
    @overload
    def __getitem__(self, place: slice) -> list[Instance]: ...
    def __getitem__(self, place: int | slice) -> Instance | list[Instance]:
        numbers = range(len(self))[place]
        return self._graph.instance(numbers) if isinstance(numbers, int) else list(map(self._graph.instance, numbers))

    def __iter__(self) -> Iterator[Instance]:
        return map(self._graph.instance, range(len(self)))


class _Runs:
    """The instances of each instruction, by `Instance.static`."""

    def __init__(self, graph: Graph, added: Iterable[Instance]) -> None:
        self._graph = graph
        self._added: dict[tuple[str, str], list[Instance]] = defaultdict(list)
        for instance in added:
            self.add(instance)
        columns = graph.columns
        sites = np.array(columns.site, np.int64)[: len(columns.site) - sum(map(len, self._added.values()))]
        parts = np.split(np.argsort(sites, kind="stable"), np.cumsum(np.bincount(sites))[:-1])
        self._numbers: dict[tuple[str, str], list[Array]] = defaultdict(list)
        for (instruction, computation), numbers in zip(columns.sites, parts, strict=False):
            self._numbers[computation.name, instruction.name].append(numbers)

    def __getitem__(self, static: tuple[str, str]) -> list[Instance]:
        return [*map(self._graph.instance, self.numbers(static).tolist()), *self._added.get(static, ())]

    def numbers(self, static: tuple[str, str]) -> Array:
        """The numbers of the instances of an instruction that the run has recorded, in its order."""
        parts = self._numbers.get(static, [])
        if len(parts) > 1:
            parts = self._numbers[static] = [np.sort(np.concatenate(parts))]
        return parts[0] if parts else np.zeros(0, np.int64)

    def before(self, instance: Instance) -> Iterator[Instance]:
        """The earlier runs of an instruction in the same loops on its device, the last one first."""
        return self._alike(instance, self._numbers_before(instance)[::-1])

    def first(self, instance: Instance) -> Instance:
        """The first of these, or the instance itself."""
        return next(self._alike(instance, self._numbers_before(instance)), instance)

    def _numbers_before(self, instance: Instance) -> Array:
        numbers = self.numbers(instance.static)
        return numbers[: np.searchsorted(numbers, instance.number)]

    def _alike(self, instance: Instance, numbers: Array) -> Iterator[Instance]:
        runs = (self._graph.instance(int(number)) for number in numbers)
        return (run for run in runs if run.device == instance.device and run.loops == instance.loops)

    def add(self, instance: Instance) -> None:
        self._added[instance.static].append(instance)


class Users:
    """By the number of a node, the instances that it is an input of."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._users, self._starts = graph.columns.users()

    def __getitem__(self, node: int) -> list[Instance]:
        return list(map(self._graph.instance, self.numbers(node)))

    def numbers(self, node: int) -> list[int]:
        user_numbers: list[int] = self._users[self._starts[node] : self._starts[node + 1]].tolist()
        return user_numbers
