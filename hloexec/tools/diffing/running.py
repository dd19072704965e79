"""`diff`: run two modules on the same inputs, record what they compute, and say whether their results are equal."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, call_of
from hloexec.core.arguments import (
    listed,
    require_integer,
    require_module,
    require_number,
)
from hloexec.core.dtypes import element_type_of, unit_roundoff
from hloexec.core.ir import Computation, Instruction, Module, flat_arrays, parts_of
from hloexec.core.places import CallPath
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Inputs, Value, arrays_of
from hloexec.core.wording import argument, byte_text
from hloexec.engine.devices.topology import Topology, topology_of
from hloexec.engine.exec.arguments import device_arguments, inputs_by_device
from hloexec.engine.exec.observers import Event, Observer, PathMemo, Stages
from hloexec.engine.exec.running import run_with
from hloexec.engine.inputs import random_inputs
from hloexec.engine.options import Options
from hloexec.errors import InputError, ResourceError
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy
from hloexec.ops.registry import Role, exchanges, find_opcode, forwarded_names, role_of
from hloexec.tools.diffing.correspondence import (
    Correspondence,
    EqualValues,
    Pairs,
    compared,
    correspondence_of,
    drawn,
    exact_matches,
    have_same_bits,
    result_arrays,
    tells_something,
    unseen_exchanges,
)
from hloexec.tools.diffing.findings import NOT_REPLAYED, Diff
from hloexec.tools.diffing.graph import Graph, Node, Operands
from hloexec.tools.diffing.limits import LIMITS, Work
from hloexec.tools.diffing.recording.arrays import Arrays
from hloexec.tools.diffing.texts import notes_on_texts, text_changes

if TYPE_CHECKING:
    from hloexec.tools.diffing.control import ControlRecorder


_RENAMING = frozenset(
    {Role.TUPLE, Role.GET_TUPLE_ELEMENT, Role.FORWARD, Role.TOKEN, Role.CALL, Role.WHILE, Role.CONDITIONAL, Role.PART}
    # Without a kernel, it shows what the computation that it calls has given, or what it is to copy.
    | {Role.ASYNC_START, Role.COPY_START}
)
_LITTLE = 1 << 20
"""So many bytes are free: to ask how many are takes longer than many a run."""
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

    def __init__(self, module: Module, arrays: Arrays | None = None) -> None:
        self._arrays = Arrays() if arrays is None else arrays
        """With those of the other run, if that has been recorded."""
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
        operand_nodes = []
        for number, operand in enumerate(event.instruction.operands):
            held = scope.nodes.get(operand)
            if held is None and number < len(event.operands):
                living = (self._living.get(id(array)) for array in arrays_of(event.operands[number]))
                nodes = (entry.nodes.get(device) for entry in living if entry is not None)
                held = tuple(node for node in nodes if node is not None)
            operand_nodes.append(held or ())
        return operand_nodes

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
        known_living = self._living.get(id(array))
        if known_living is not None and known_living() is array:
            return known_living
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
        if taken <= (_LITTLE if self._arrays.most_bytes is None else self._arrays.most_bytes):
            return
        room = self._arrays.room
        if room is not None and taken > room:
            raise ResourceError(
                f"the values of {self.graph.module.name} take more than the {byte_text(room)} that may be "
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


@frozen(eq=False)
class Side:
    """One of the modules, and how it runs."""

    module: Module
    inputs: list[list[Value]]
    topology: Topology
    policy: NumericsPolicy

    def options(self, common: Options) -> Options:
        """Those of its runs, of which these are the same for both sides."""
        return attrs.evolve(common.on(self.topology), numerics=self.policy)


@frozen(eq=False)
class Recording:
    """What a side computed, and which way it went; None where it has no loops and no conditionals."""

    graph: Graph
    controls: ControlRecorder | None


def recorded(
    arrays: Arrays,
    watchers: Sequence[Observer],
    options: Options,
    stages: Stages,
    name: str,
    side: Side,
    *controllers: Observer,
) -> Recording:
    """The recording of a side's run, whose values are added to `arrays`."""
    stages.begin(f"recording {name}")
    recorder, controls = GraphRecorder(side.module, arrays), None
    observers: list[Observer] = [*controllers, recorder]
    if not roles_in(side.module).isdisjoint((Role.WHILE, Role.CONDITIONAL)):
        # Imported late, like all that only some modules need.
        from hloexec.tools.diffing.control import ControlRecorder

        controls = ControlRecorder(side.module, recorder.held)
        observers.append(controls)
    found = run_with(side.module, side.inputs, side.options(options), [*observers, *watchers])
    return Recording(recorder.finish(found), controls)


def roles_in(module: Module) -> set[Role]:
    """The roles of a module's instructions."""
    opcodes = {instruction.opcode for computation in module for instruction in computation}
    return {entry.role for entry in map(find_opcode, opcodes) if entry is not None}


def diff(
    before: Module,
    after: Module,
    inputs: Inputs | None = None,
    *,
    replicas: int | None = None,
    partitions: int | None = None,
    numerics: str | NumericsPolicy | tuple[str | NumericsPolicy, str | NumericsPolicy] = "reference",
    seed: int = 0,
    elided: str | Mapping[str, Any] = "zeros",
    unknown: str = "error",
    memory_limit: int | str | None = None,
    max_iterations: int | None = None,
    timeout: float | None = None,
    verify: bool = True,
    planner: bool = True,
    observers: Sequence[Observer] = (),
    top: int = 20,
    runs: int | None = LIMITS.runs,
    budget: float | None = None,
) -> Diff:
    """Run two modules on the same inputs, and find the instruction that makes their results differ.

    `inputs` are those of `before`, as for `run_devices` (see `hloexec.Inputs`); None generates them from `seed`. Both
    modules must have the same arrays as parameters and as results. Tuples may be nested differently, and results with
    distinct shapes may be in another order. Or `after` is what SPMD partitioning made of `before`, whose shardings say
    how arrays are divided.

    Instructions are matched by their values, not by their names, through fusions, loops and layouts. The verdict is
    `agree` if the results have the same bits. It is `rounding only` if they are no further apart than the spread of
    `before` in 6 to 64 runs with random rounding, and within the bounds on rounding of their elements since values that
    both modules have; an instruction that is wrong by more, but whose effect is gone by then, is not reported.
    Otherwise it is `differ`, and `findings` has at most `top` instructions whose operands are right but whose results
    are not, in data-flow order. If every instruction is within its own rounding bound but the results are not, the
    instruction closest to its bound is reported, as uncertain. A rounding that `after` leaves out is only a note if the
    results are within their tolerance.

    `numerics` is the policy of both, or a pair. All values of both runs are kept, in at most `memory_limit` bytes (by
    default 80 % of the free memory). The other options are those of `run_devices`, for both modules; `max_iterations`
    and `timeout` apply to each of the two runs.

    The search for what is to blame ends after the work of `runs` runs of an instruction (of large arrays, a run counts
    as several; None: never), or at Ctrl-C; the result is then the best that was found, and a note says so. As work is
    counted, the result is the same on every machine, unless `budget` ends the search after so many seconds. Observers
    that also have a method `on_stage(stage)` are told which stage has begun, and how far it is.

    Raises InputError if parameters or results do not correspond, ResourceError if the values take more than the limit,
    and whatever `run_devices` raises.
    """
    _require_arguments(before, after, top, runs, budget)
    policies, watchers = _policies(numerics), listed("observers", observers, "observers")
    given = Options(None, policies[0], seed, elided, unknown, memory_limit, max_iterations, timeout, verify, planner)
    pairing, topologies = _paired(before, after, replicas, partitions)
    values = [random_inputs(before, given.seed)] if inputs is None else inputs_by_device(before.entry, inputs)
    device_arguments(before.entry, values, topologies[0].count)  # so that what is wrong with them is said of `before`
    once = attrs.evolve(given, planner=given.planner and _has_large_loops((before, after)))
    sides = list(map(Side, (before, after), (values, pairing.inputs_by_device(values)), topologies, policies))
    stages = Stages(watchers)
    record = partial(recorded, Arrays(given.memory_limit), watchers, once, stages)
    recordings = record("before", sides[0]), record("after", sides[1])
    theirs, ours = (recording.graph for recording in recordings)
    theirs.outputs = {device: pairing.ordered(nodes) for device, nodes in theirs.outputs.items()}
    work = Work(runs, budget, stages.tick)
    is_partitioned = type(pairing) is not Correspondence
    changes = text_changes(before, after) if not is_partitioned and _are_alike(*policies) else []
    if not is_partitioned and have_same_bits(ours, theirs):
        notes = notes_on_texts(changes, (), (after, before))
        notes += unseen_exchanges((before, after), topologies[1], values)
        found = _agreeing(sides, (theirs, ours), pairing, notes, work, stages)
        if found is not None:
            return found
    # Imported late: values that agree need none of it.
    from hloexec.tools.diffing.judging import judged

    again = partial(record, "after")
    return judged(sides, recordings, pairing, changes, again, (given, once), top, work, stages)


def _agreeing(
    sides: Sequence[Side],
    graphs: tuple[Graph, Graph],
    pairing: Correspondence,
    notes: Sequence[str],
    work: Work,
    stages: Stages,
) -> Diff | None:
    """The result where all results have the same bits and the values before them the same numbers; None where it takes
    a replay to say which values match, or before rounds what after does not."""
    theirs, ours = graphs
    if max(_units(theirs), default=0.0) > min(_units(ours), default=0.0):
        return None
    comparison = compared(result_arrays(ours), result_arrays(theirs), pairing, sides[0].policy, {})
    if not comparison.agrees or any(leaf.unequal for leaf in comparison.leaves):
        return None
    stages.begin("replay", len(ours.instances))
    work.begin()
    found = exact_matches(ours, EqualValues(theirs), work.is_over)
    if found is None:
        return None
    said = [*pairing.notes, *filter(None, [work.end])]
    if len(found) < len(ours.nodes):
        said.append(NOT_REPLAYED)
    counted = [node.number for node in ours.nodes if tells_something(node)]
    matched = [number < len(found) for number in counted]
    rows = np.array([(number, other, True, True) for number, other in enumerate(found)], np.int32).reshape(-1, 4)
    before, after = (side.module for side in sides)
    characters = ["█" if is_any else "·" for is_any in matched]
    pairs = Pairs(ours.columns, theirs.columns, rows)
    return Diff(
        *(before, after, "agree", (), comparison, pairs, len(counted), sum(matched), drawn(characters)),
        (*said, *notes),
    )


def _units(graph: Graph) -> list[float]:
    """The units of roundoff of the floating types of its values."""
    return [unit_roundoff(entry) for entry in map(element_type_of, graph.types) if entry.is_floating]


def _require_arguments(before: object, after: object, top: object, runs: object, budget: object) -> None:
    require_module(before, "before")
    require_module(after, "after")
    require_integer("top", top, 1)
    if runs is not None:
        require_integer("runs", runs, 1)
    if budget is not None:
        require_number("budget", budget)


def _has_large_loops(modules: Sequence[Module]) -> bool:
    """Whether modules that run once, each value being kept, are optimized: that takes longer than it saves, unless they
    have loops, and values so large that to compute one again in each iteration takes long."""
    if not any(Role.WHILE in roles_in(module) for module in modules):
        return False
    shapes = [each.shape for module in modules for computation in module for each in computation]
    return any(leaf.byte_size >= LIMITS.large for leaf in flat_arrays(*shapes))


def _are_alike(before: NumericsPolicy, after: NumericsPolicy) -> bool:
    """Whether both modules compute the same wherever their texts say the same, whatever instructions are called."""
    return before == after and not before.overrides and before.rounding_seed is None


def _paired(
    before: Module, after: Module, replicas: int | None, partitions: int | None
) -> tuple[Correspondence, list[Topology]]:
    """The correspondence of two modules, and the devices that each runs on: what has yet to be partitioned runs on as
    many as what has been."""
    topologies = [topology_of(module, replicas, partitions) for module in (before, after)]
    if topologies[1].partitions > 1:
        from hloexec.tools.diffing.partitioned.tiles import partitioning_of

        partitioning = partitioning_of(before, after, topologies)
        if partitioning is not None:
            return partitioning, [topologies[1]] * 2
    return correspondence_of(before, after, topologies), topologies


def _policies(numerics: object) -> tuple[NumericsPolicy, NumericsPolicy]:
    """Those of both sides."""
    policies = numerics if isinstance(numerics, (tuple, list)) else (numerics, numerics)
    if len(policies) != 2:
        raise InputError(
            f"{argument('numerics')} must be one policy or two, for before and after, but there are {len(policies)}"
        )
    return numerics_policy(policies[0]), numerics_policy(policies[1])
