"""The observer that records a run's data flow."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from itertools import accumulate, zip_longest

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, call_of
from hloexec.core.ir import Computation, Instruction, Module, flat_arrays, parts_of
from hloexec.core.places import CallPath
from hloexec.core.structs import define
from hloexec.core.values import Array, Value, arrays_of
from hloexec.core.wording import byte_text
from hloexec.engine.exec.observers import Event, PathMemo
from hloexec.errors import ResourceError
from hloexec.ops.registry import Role, exchanges, find_opcode, forwarded_names, role_of
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.recording.arrays import Arrays
from hloexec.tools.diffing.recording.columns import Operands

_RENAMING = frozenset(
    {Role.TUPLE, Role.GET_TUPLE_ELEMENT, Role.FORWARD, Role.TOKEN, Role.CALL, Role.WHILE, Role.CONDITIONAL, Role.PART}
    # Without a kernel, it shows what the computation that it calls has given, or what it is to copy.
    | {Role.ASYNC_START, Role.COPY_START}
)
_NODE_BYTES = 128
"""What a node takes beside its array."""


@define(eq=False)
class _Scope:
    """A path of calls and iterations that is running on a device: what its instructions have given."""

    number: int
    parent: _Scope | None
    nodes: dict[str, tuple[int, ...]] = attrs.field(factory=dict)
    inner: dict[str, list[CallPath]] = attrs.field(factory=dict)
    """By the name of an instruction, the scopes that it opened."""
    handed_on: dict[tuple[str, str], tuple[int, ...]] = attrs.field(factory=dict)
    """By the name of an instruction and of a computation that it called, what that has given last."""
    exchanges: bool = False
    """Whether what runs in it looks at other devices' scopes."""


class _Living(weakref.ref[Array]):
    """An array that the run still holds: its number, and its node on each device."""

    __slots__ = ("array", "key", "nodes")

    key: int
    array: int
    nodes: dict[int, int]


class GraphRecorder:
    """The observer that records a graph."""

    def __init__(self, module: Module, arrays: Arrays | None = None, most_bytes: int | None = None) -> None:
        self._arrays = Arrays() if arrays is None else arrays
        """With those of the other run, if that has been recorded."""
        self._most_bytes = most_bytes
        self.graph = Graph(module, self._arrays)
        self._scopes: dict[tuple[str, int], _Scope] = {}
        self._devices: set[int] = set()
        self._living: dict[int, _Living] = {}
        self._starts: dict[tuple[str, str], list[int]] = {}
        """By computation and tuple, where each element begins among its arrays."""
        self._paths = PathMemo()

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        path, name = self._paths.of(event), event.instruction.name
        arrays = arrays_of(event.value)
        role = role_of(event.instruction)
        is_renaming = role in _RENAMING or (role is Role.PARAMETER and bool(path.calls)) or _hands_over(event)
        for device in event.devices:
            scope = self._scope(path, device)
            if is_renaming:
                given = self._passed_on(event, path, scope, device)[: len(arrays)]
                scope.nodes[name] = tuple(
                    self._known(array, event, scope, device, node) for array, node in zip_longest(arrays, given)
                )
            else:
                scope.nodes[name] = self._computed(event, path, scope, device, arrays)
            if scope.parent is not None and name == event.computation.root_name:
                scope.parent.handed_on[path.caller, event.computation.name] = scope.nodes[name]
            for inner in scope.inner.pop(name, ()):
                self._leave(inner, device)
        self._require_room()

    def finish(self, outputs: Sequence[Value]) -> Graph:
        """The graph, once the run has given its outputs."""
        root = self.graph.module.entry.root_name
        for device in range(len(outputs)):
            self.graph.outputs[device] = list(self.held(CallPath(), root, device))
        self._scopes.clear()
        self._living.clear()
        return self.graph

    def held(self, path: CallPath, name: str, device: int) -> tuple[Node, ...]:
        """The nodes that an instruction gave on a device, in a scope that is running; none where it has not run."""
        scope = self._scopes.get((path.text, device))
        return () if scope is None else tuple(map(self.graph.node, scope.nodes.get(name, ())))

    def _scope(self, path: CallPath, device: int) -> _Scope:
        found = self._scopes.get((path.text, device))
        if found is None:
            self._devices.add(device)
            parent = self._scope(path.outer, device) if path.calls else None
            if parent is not None:
                # Whatever the same instruction opened before is over.
                for inner in parent.inner.pop(path.caller, ()):
                    self._leave(inner, device)
                parent.inner[path.caller] = [path]
            found = self._scopes[path.text, device] = _Scope(self.graph.columns.add_scope(path), parent)
        return found

    def _leave(self, path: CallPath, device: int) -> None:
        """Forget what a scope's instructions have given, unless other devices may yet look at it."""
        scope = self._scopes.get((path.text, device))
        if scope is None or (scope.exchanges and len(self._devices) > 1):
            return
        del self._scopes[path.text, device]
        for paths in scope.inner.values():
            for inner in paths:
                self._leave(inner, device)

    def _passed_on(self, event: Event, path: CallPath, scope: _Scope, device: int) -> Sequence[int]:
        """The nodes that a renaming instruction may pass on, the one of its first array first: the operands', or those
        that a call was given or the last iteration of a loop has handed on."""
        instruction = event.instruction
        role = role_of(instruction)
        if role is Role.PARAMETER:
            return _given(instruction.attributes.number, path.calls[-1].instruction, scope.parent)
        if role is Role.WHILE and (loop := (instruction.name, call_of(instruction, CallKind.BODY))) in scope.handed_on:
            return scope.handed_on.pop(loop)
        if role in (Role.CALL, Role.CONDITIONAL, Role.ASYNC_START):
            return ()
        if role is Role.CUSTOM_CALL:
            names = forwarded_names(event.computation, instruction)
            return [node for name in names for node in scope.nodes.get(name, ())]
        nodes = [node for part in self._operands(event, scope, device) for node in part]
        if role is Role.COPY_START:
            return [*nodes, *nodes]
        if role is not Role.GET_TUPLE_ELEMENT:
            return nodes
        return nodes[self._first_array(event.computation, instruction) :]

    def _first_array(self, computation: Computation, element: Instruction) -> int:
        """The number of arrays that a tuple has before the element that an instruction takes."""
        tuple_name = element.operands[0]
        starts = self._starts.get((computation.name, tuple_name))
        if starts is None:
            elements = parts_of(computation.by_name[tuple_name].shape)
            counts = (len(flat_arrays(part)) for part in elements)
            starts = self._starts[computation.name, tuple_name] = list(accumulate(counts, initial=0))
        place: int = element.attributes.index
        return starts[place]

    def _known(self, array: Array, event: Event, scope: _Scope, device: int, given: int | None) -> int:
        """The node of an array: the one that is given, if it is its; a copy of an array may share its memory."""
        living = self._living.get(id(array))
        if given is not None and living is not None and self.graph.columns.array[given] == living.array:
            return given
        if living is not None and device in living.nodes:
            return living.nodes[device]
        (made,) = self._added(event, scope, device, (), None, [array])
        return made

    def _computed(
        self, event: Event, path: CallPath, scope: _Scope, device: int, arrays: Sequence[Array]
    ) -> tuple[int, ...]:
        others = None
        if exchanges(event.instruction):
            scope.exchanges = True
            first = event.instruction.operands[:1]
            others = {
                other: self._operands(event, self._scopes[path.text, other], other)
                for other in sorted(self._devices)
                if (path.text, other) in self._scopes and first and first[0] in self._scopes[path.text, other].nodes
            }
        return self._added(event, scope, device, self._operands(event, scope, device), others, arrays)

    def _operands(self, event: Event, scope: _Scope, device: int) -> Operands:
        found = []
        for number, operand in enumerate(event.instruction.operands):
            held = scope.nodes.get(operand)
            if held is None and number < len(event.operands):
                living = (self._living.get(id(array)) for array in arrays_of(event.operands[number]))
                nodes = (entry.nodes.get(device) for entry in living if entry is not None)
                held = tuple(node for node in nodes if node is not None)
            found.append(held or ())
        return found

    def _added(
        self,
        event: Event,
        scope: _Scope,
        device: int,
        operands: Operands,
        others: Mapping[int, Operands] | None,
        arrays: Sequence[Array],
    ) -> tuple[int, ...]:
        """The nodes of the results of a run of an instruction."""
        columns = self.graph.columns
        instance = columns.add_instance(event.instruction, event.computation, scope.number, device, operands, others)
        is_constant = role_of(event.instruction) is Role.CONSTANT
        made = []
        for array in arrays:
            living = self._living_of(array, event, operands)
            node = columns.add_node(instance, living.array)
            # Constants may share an array; a loop that has one inside was given the other before.
            if not (is_constant and device in living.nodes):
                living.nodes[device] = node
            made.append(node)
        return tuple(made)

    def _living_of(self, array: Array, event: Event, operands: Operands) -> _Living:
        known = self._living.get(id(array))
        if known is not None and known() is array:
            return known
        number = self._overwritten(array, event, operands)
        living = _Living(array, self._forget)
        living.key, living.nodes = id(array), {}
        living.array = self._arrays.add(array) if number is None else number
        self._living[id(array)] = living
        return living

    def _forget(self, living: weakref.ref[Array]) -> None:
        assert isinstance(living, _Living)
        if self._living.get(living.key) is living:
            del self._living[living.key]

    def _overwritten(self, array: Array, event: Event, operands: Operands) -> int | None:
        """The number of an array that is an operand but for a window; None where it is not, or is better kept whole."""
        entry = find_opcode(event.instruction.opcode)
        if entry is None or entry.window is None or not operands or len(operands[0]) != 1 or len(event.operands) < 2:
            return None
        base = self.graph.node(operands[0][0])
        operand, update = event.operands[:2]
        if not isinstance(operand, np.ndarray) or not isinstance(update, np.ndarray):
            return None
        if not (operand.shape == array.shape == base.shape and operand.dtype == array.dtype == base.dtype):
            return None
        window = entry.window(operand.shape, update.shape, *event.operands[2:])
        return self._arrays.add_overwritten(base.array, window, operand[window], array)

    def _require_room(self) -> None:
        """ResourceError where there is no room for so much."""
        taken = self._arrays.byte_size + _NODE_BYTES * len(self._arrays)
        if self._most_bytes is not None and taken > self._most_bytes:
            raise ResourceError(
                f"the values of {self.graph.module.name} take more than the {byte_text(self._most_bytes)} that may be "
                "kept of them; diff a part of the module (hloexec extract), or smaller shapes"
            )


def _given(number: int, caller: Instruction, outer: _Scope | None) -> Sequence[int]:
    """The nodes that a parameter of what an instruction calls was given; none where operands are not passed as they
    are."""
    if outer is None:
        return ()
    role = role_of(caller)
    if role is Role.WHILE and (loop := (caller.name, call_of(caller, CallKind.BODY))) in outer.handed_on:
        return outer.handed_on[loop]
    return outer.nodes.get(caller.operands[number], ()) if role in (Role.WHILE, Role.CALL) else ()


def _hands_over(event: Event) -> bool:
    """Whether a library call only hands values over, on each device its own."""
    instruction = event.instruction
    is_call = role_of(instruction) is Role.CUSTOM_CALL and not exchanges(instruction)
    return is_call and bool(forwarded_names(event.computation, instruction))
