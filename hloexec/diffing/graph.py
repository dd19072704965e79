"""The data flow of a run: every execution of every instruction, and the values that it used.

A `Node` is an array that an instruction computed once (in one iteration, on one device). An `Instance` is one execution
of an instruction on one device, from nodes to nodes; devices that agree share the array. Instructions that only forward
values (tuples, parameters of called computations, fusions, loops) have no nodes, so calls are not visible: the graph is
the data flow of the whole run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any

import attrs
import numpy as np

from hloexec.diffing.digests import Digest, digest_of
from hloexec.diffing.findings import InstructionRun
from hloexec.errors import ResourceError
from hloexec.exec.observers import Event
from hloexec.ir import Computation, Instruction, Module, leaf_shapes
from hloexec.operations import exchanges, traits_of
from hloexec.ops.registry import Role, find_opcode, role_of
from hloexec.system_memory import in_units
from hloexec.tracing.known import KnownArrays
from hloexec.values import Array, Value, flat

__all__ = ["Graph", "GraphRecorder", "Instance", "Node", "arrays_of", "iterations_of"]

_RENAMING = frozenset(
    {Role.TUPLE, Role.GET_TUPLE_ELEMENT, Role.FORWARD, Role.TOKEN, Role.CALL, Role.WHILE, Role.CONDITIONAL, Role.PART}
    # Without a kernel, it shows what the computation that it calls has given.
    | {Role.ASYNC_START}
)


_ITERATION = re.compile(r"\[(\d+)\]")


@attrs.define(eq=False)
class Node:
    """An array that an instruction gave."""

    number: int
    """Nodes are counted in the order in which they came to be."""
    value: Array
    instance: Instance
    leaf: int
    """Which of the instruction's arrays it is."""
    digest: Digest

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.dtype

    @property
    def device(self) -> int:
        return self.instance.device

    @property
    def place(self) -> InstructionRun:
        """The run of the instruction that computed it."""
        instance = self.instance
        return InstructionRun(instance.computation.name, instance.instruction.name, instance.name, instance.device)


@attrs.define(eq=False, slots=False)
class Instance:
    """One run of an instruction on one device."""

    number: int
    instruction: Instruction
    computation: Computation
    name: str
    """The path and the instruction, as `Event.name` gives it."""
    device: int
    operands: tuple[tuple[Node, ...], ...]
    """For each operand its arrays."""
    results: list[Node] = attrs.field(factory=list)
    others: dict[int, tuple[tuple[Node, ...], ...]] = attrs.field(factory=dict)
    """Of what exchanges values between devices: the operands on every device."""

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
        if role_of(self.instruction) in (Role.COPY_START, Role.PART):
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
    def scope(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def iterations(self) -> tuple[str, ...]:
        """The numbers of the iterations of the loops around it in which it ran, outermost first."""
        return iterations_of(self.scope)

    @property
    def loops(self) -> str:
        """The scope, whatever the iterations."""
        return _ITERATION.sub("", self.scope)


@attrs.define(eq=False, slots=False)
class Graph:
    """The data flow of a run."""

    module: Module
    nodes: list[Node] = attrs.field(factory=list)
    instances: list[Instance] = attrs.field(factory=list)
    outputs: dict[int, list[Node]] = attrs.field(factory=dict)
    """The arrays of the result on each device, depth first."""
    byte_size: int = 0
    """What the nodes' arrays keep alive."""

    @cached_property
    def runs(self) -> dict[tuple[str, str], list[Instance]]:
        """The instances of each instruction."""
        found: dict[tuple[str, str], list[Instance]] = defaultdict(list)
        for instance in self.instances:
            found[instance.static].append(instance)
        return found

    def users(self) -> list[list[Instance]]:
        """For each node the instances that it is an input of."""
        found: list[list[Instance]] = [[] for _ in self.nodes]
        for instance in self.instances:
            for node in instance.inputs:
                found[node.number].append(instance)
        return found


class GraphRecorder:
    """The observer that records a graph."""

    def __init__(self, module: Module, most_bytes: int | None = None) -> None:
        self._most_bytes = most_bytes
        self._kept: set[int] = set()
        self.graph = Graph(module)
        self._digest = KnownArrays(digest_of)
        self._by_name: dict[tuple[str, str], dict[int, tuple[Node, ...]]] = {}
        self._by_identity: dict[tuple[int, int], Node] = {}
        self._last_scopes: dict[tuple[str, str], str] = {}
        """Of each loop, by its name and that of its body, the scope of the last iteration."""

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        name = event.name
        scope = name.rpartition("/")[0]
        arrays = arrays_of(event.value)
        role = role_of(event.instruction)
        is_renaming = role in _RENAMING or (role is Role.PARAMETER and bool(event.path))
        holders = self._by_name.setdefault((scope, event.instruction.name), {})
        if scope and event.instruction.name == event.computation.root_name:
            self._last_scopes[scope.rpartition("[")[0], event.computation.name] = scope
        for device in event.devices:
            if is_renaming:
                given = self._handed_on(event, name, device) or _passed_on(event, self._operands(event, scope, device))
                holders[device] = tuple(
                    self._known(array, event, name, device, node)
                    for array, node in zip_longest(arrays, given[: len(arrays)])
                )
            else:
                holders[device] = self._computed(event, name, scope, device, arrays)

    def finish(self, outputs: Sequence[Value]) -> Graph:
        """The graph, once the run has given its outputs."""
        root = self.graph.module.entry.root_name
        for device in range(len(outputs)):
            self.graph.outputs[device] = list(self._by_name[("", root)][device])
        return self.graph

    def held(self, scope: str, name: str, device: int) -> tuple[Node, ...]:
        """The nodes that an instruction of a scope gave on a device; none where it has not run."""
        return self._by_name.get((scope, name), {}).get(device, ())

    def _handed_on(self, event: Event, name: str, device: int) -> Sequence[Node]:
        """What the last iteration of a loop has handed on."""
        if role_of(event.instruction) is not Role.WHILE:
            return ()
        body = self.graph.module.by_name[event.instruction.attributes.body]
        scope = self._last_scopes.get((name, body.name))
        return () if scope is None else self.held(scope, body.root_name, device)

    def _known(self, array: Array, event: Event, name: str, device: int, given: Node | None) -> Node:
        """The node of an array: the one that is given, if it is its; a copy of an array may share its memory."""
        if given is not None and given.value is array:
            return given
        node = self._by_identity.get((id(array), device))
        return node if node is not None else self._node(self._instance(event, name, device, ()), array, 0)

    def _instance(self, event: Event, name: str, device: int, operands: tuple[tuple[Node, ...], ...]) -> Instance:
        instances = self.graph.instances
        made = Instance(len(instances), event.instruction, event.computation, name, device, operands)
        instances.append(made)
        return made

    def _node(self, instance: Instance, array: Array, leaf: int) -> Node:
        node = Node(len(self.graph.nodes), array, instance, leaf, self._digest(array))
        self._keep(array)
        self.graph.nodes.append(node)
        instance.results.append(node)
        # Arrays that a graph holds stay alive, and so their identities stay theirs. Constants may share one; a loop
        # that has one inside was given the other before.
        if not (instance.is_constant and (id(array), instance.device) in self._by_identity):
            self._by_identity[id(array), instance.device] = node
        return node

    def _keep(self, array: Array) -> None:
        """Count the memory that an array keeps alive; ResourceError where there is no room for so much."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) in self._kept:
            return
        self._kept.add(id(owner))
        self.graph.byte_size += owner.nbytes
        if self._most_bytes is not None and self.graph.byte_size > self._most_bytes:
            raise ResourceError(
                f"the values of {self.graph.module.name} take more than the {in_units(self._most_bytes)} that may be "
                "kept of them; diff a part of the module (hloexec extract), or smaller shapes"
            )

    def _computed(self, event: Event, name: str, scope: str, device: int, arrays: Sequence[Array]) -> tuple[Node, ...]:
        instance = self._instance(event, name, device, self._operands(event, scope, device))
        if exchanges(event.instruction):
            operands = event.instruction.operands
            devices = self._by_name.get((scope, operands[0]), {}) if operands else {}
            instance.others = {other: self._operands(event, scope, other) for other in devices}
        return tuple(self._node(instance, array, leaf) for leaf, array in enumerate(arrays))

    def _operands(self, event: Event, scope: str, device: int) -> tuple[tuple[Node, ...], ...]:
        found: list[tuple[Node, ...]] = []
        for number, operand in enumerate(event.instruction.operands):
            held = self._by_name.get((scope, operand), {}).get(device)
            if held is None and number < len(event.operands):
                keys = [(id(array), device) for array in arrays_of(event.operands[number])]
                held = tuple(self._by_identity[key] for key in keys if key in self._by_identity)
            found.append(held or ())
        return tuple(found)


def _passed_on(event: Event, operands: tuple[tuple[Node, ...], ...]) -> Sequence[Node]:
    """The nodes of a renaming instruction's operands, from the one on that is its first array, if it passes them on."""
    if role_of(event.instruction) in (Role.CALL, Role.CONDITIONAL, Role.ASYNC_START):
        return ()
    nodes = [node for part in operands for node in part]
    if role_of(event.instruction) is not Role.GET_TUPLE_ELEMENT:
        return nodes
    place = event.instruction.attributes.index
    leaves = leaf_shapes(event.computation.by_name[event.instruction.operands[0]].shape)
    return nodes[sum(leaf.is_array for index, leaf in leaves if index[0] < place) :]


def iterations_of(scope: str) -> tuple[str, ...]:
    """The numbers of the iterations in a path, outermost first."""
    return tuple(_ITERATION.findall(scope))


def arrays_of(value: object) -> list[Any]:
    """The leaves of a value that are arrays, depth first."""
    return [leaf for leaf in flat(value) if isinstance(leaf, np.ndarray)]
