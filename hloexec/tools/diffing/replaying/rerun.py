"""Computing values of `after` again: where one before them is another, and where rounding lets decisions go either way.

Rounding to whole numbers, a comparison, a conversion to integers or a sort may turn an error of one unit in the last
place into another result altogether. In the replay, such an instruction is computed on values of `before` in the place
of those that agree with them up to rounding. If it gives there what `before` has, it is right in itself, and what it
gave in the run is another decision about operands that rounding lets lie on either side. The run is then repeated with
the decisions of `before`: what differs still is not to be explained so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from heapq import heappop, heappush
from itertools import starmap

import attrs
import numpy as np

from hloexec.analysis.numerics.comparison import Comparison, LeafComparison
from hloexec.analysis.numerics.comparison import Verdict as Outcome
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, flat_arrays
from hloexec.core.ir.editing import replace_computation, replace_instruction
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value, arrays_of
from hloexec.engine.exec.observers import Event, Failure
from hloexec.ops.attributes import computation_names
from hloexec.ops.common import wide
from hloexec.ops.registry import traits_of
from hloexec.tools.diffing.correspondence import nested
from hloexec.tools.diffing.graph import Graph, Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.matching import is_near, is_same
from hloexec.tools.diffing.replaying.evaluation import Overlay
from hloexec.tools.diffing.replaying.replay import Replay, State


class Rerun:
    """Values of one state of a replay, computed again from others."""

    def __init__(self, replay: Replay, state: State, target: Node) -> None:
        self._replay = replay
        self._state = state
        self._target = target
        self._steps: list[Node] | None = None

    def value(self, changes: Mapping[int, Array]) -> Array | None:
        """What the target would be if some nodes held other arrays; None where it does not depend on them, or cannot be
        computed again."""
        if self._target.number in changes:
            return changes[self._target.number]
        now = dict(changes)
        first = min(changes)
        values = Overlay(self._state.values, now)
        for step in self._before_target(first):
            if step.number in now or all(entry.number not in now for entry in step.instance.inputs):
                continue
            arrays = self._replay.evaluator.results(step.instance, values)
            if arrays is None:
                return None
            for entry, array in zip(step.instance.results, arrays, strict=True):
                now.setdefault(entry.number, array)
        return now.get(self._target.number)

    def _before_target(self, first: int) -> list[Node]:
        """The nodes that the target is computed from, in data-flow order, behind one of them."""
        if self._steps is None:
            nodes = {self._target.number: self._target}
            pending = [self._target]
            most = LIMITS.rerun_steps * len(self._replay.graph.outputs)
            for current in pending:
                for entry in current.instance.inputs:
                    if entry.number not in nodes and not entry.instance.is_source and len(nodes) < most:
                        nodes[entry.number] = entry
                        pending.append(entry)
            self._steps = [nodes[number] for number in sorted(nodes)]
        return [node for node in self._steps if node.number > first]


def stays_wrong(replay: Replay, place: tuple[str, str], edited: Module, target: Node, expected: Array) -> bool:
    """Whether a result that should be another one is not near that either where an instruction of some place, which ran
    once on the only device of a module without loops and branches, is as an edited module has it. Unless it is certain,
    it is not said to be so: only some values are computed again, by kernels of the module as it was."""
    graph, evaluator = replay.graph, replay.evaluator
    runs = graph.runs[place]
    if len(runs) != 1 or len(graph.outputs) > 1:
        return False
    (instance,) = runs
    now: dict[int, Array] = {}
    values = Overlay(State.recorded(graph, replay.index.graph).values, now)
    alone = evaluator.alone(instance, values)
    if alone is None:
        return False
    root = attrs.evolve(edited.by_name[place[0]].by_name[place[1]], control_predecessors=())
    changed = replace_computation(alone, replace_instruction(alone.entry, root))
    pending, met = [instance.number], set[int]()
    while pending and target.number not in now:
        current = graph.instance(heappop(pending))
        is_first = current is instance
        arrays = evaluator.results_of(changed, current, values) if is_first else evaluator.results(current, values)
        if arrays is None:
            return False
        for node, array in zip(current.results, arrays, strict=True):
            if array.shape != node.shape:
                return False
            if not is_same(array, node.value):
                now[node.number] = array
                for user in set(replay.users.numbers(node.number)) - met:
                    met.add(user)
                    heappush(pending, user)
    return target.number not in now or not is_near(now[target.number], expected)


@frozen(eq=False)
class Tie:
    """Elements of a value that go another way than in `before`."""

    instruction: Instruction
    name: str
    """The path and the instruction."""
    device: int
    leaf: int
    """Which of the instruction's arrays it is."""
    elements: Array
    """Which elements: pred, of the value's dimensions."""
    values: Array
    """What `before` has; of no meaning elsewhere."""

    @property
    def key(self) -> tuple[str, int, int]:
        return self.name, self.device, self.leaf

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.elements))

    def joined(self, other: Tie) -> Tie:
        """The elements of both, which are of one value."""
        values = np.where(other.elements, other.values, self.values)
        return attrs.evolve(self, elements=self.elements | other.elements, values=values)


def ties_of(replay: Replay, state: State) -> Iterator[Tie]:
    """The ties of a run, from the state of its replay without overrides."""
    return _Search(replay, state).ties()


class _Search:
    """The search for ties."""

    def __init__(self, replay: Replay, state: State) -> None:
        self._replay = replay
        self._state = state
        self._left = LIMITS.tie_tries

    def ties(self) -> Iterator[Tie]:
        """Those of the run, but for what is decided about values that go another way themselves."""
        graph = self._replay.graph
        tied_numbers: set[int] = set()
        for instance in _jumping(graph):
            for node in instance.results:
                if tied_numbers.isdisjoint(entry.number for entry in instance.inputs):
                    tie = self._from_match(node) or self._from_counterpart(node)
                    if tie is not None:
                        tied_numbers.add(node.number)
                        yield tie

    def _from_match(self, node: Node) -> Tie | None:
        """What is another value in the replay, where that is what `before` has and is computed from what `before`
        computes it from."""
        match = self._state.matches[node.number]
        if match is None or not (match.is_exact and match.is_in_order):
            return None
        if self._replay.is_recorded(self._state.raw, node.number):
            return None
        tie = _tie(node, self._state.raw[node.number])
        return tie if tie is not None and self._takes_the_same(node.instance, match.node) else None

    def _takes_the_same(self, instance: Instance, theirs: Node) -> bool:
        """Whether `before` has all floats that an instruction takes and, where equal results are easily an accident,
        computes its counterpart from them."""
        floats = [entry for entry in instance.inputs if element_type_of(entry.dtype).is_inexact]
        matches = [self._state.matches[entry.number] for entry in floats]
        if not matches or not all(match is not None and match.is_in_order for match in matches):
            return False
        digest = theirs.digest
        if digest.count >= LIMITS.fewest_flags and digest.family != "pred" and not digest.is_uniform:
            return True
        taken = {entry.digest.in_any_order for entry in theirs.instance.inputs}
        return all(match is not None and match.node.digest.in_any_order in taken for match in matches)

    def _from_counterpart(self, node: Node) -> Tie | None:
        """What is another value than the one of `before` that one opcode computes from the same operands but for
        roundings, where it gives that on these: its own operands may be other values of `before`, to the bit."""
        floats = [entry for entry in node.instance.inputs if element_type_of(entry.dtype).is_inexact]
        if self._state.matches.is_any(node.number) or not all(map(self._state.has, floats)):
            return None
        key = _kind_of(node)
        for theirs in self._counterparts.get(key, ())[: LIMITS.candidates]:
            operands = self._alike(node.instance, theirs.instance)
            if operands is None:
                continue
            arrays = self._replay.evaluator.results(node.instance, Overlay(self._state.values, operands))
            if arrays is not None and is_same(arrays[node.leaf], theirs.value):
                return _tie(node, arrays[node.leaf])
        return None

    @cached_property
    def _counterparts(self) -> dict[object, list[Node]]:
        """What of `before` decides something and is nowhere in the replay."""
        counterparts: dict[object, list[Node]] = defaultdict(list)
        for instance in _jumping(self._replay.index.graph):
            for node in instance.results:
                if node.number not in self._state.matched:
                    counterparts[_kind_of(node)].append(node)
        return counterparts

    def _alike(self, ours: Instance, theirs: Instance) -> dict[int, Array] | None:
        """The operands of a counterpart in the place of an instruction's, if they are the same but for roundings."""
        if len(ours.inputs) != len(theirs.inputs) or self._left == 0:
            return None
        self._left -= 1
        changes = {}
        for one, other in zip(ours.inputs, theirs.inputs, strict=True):
            digest = self._state.raw.digest(one.number)
            if (digest.in_order, digest.family) == (other.digest.in_order, other.digest.family):
                continue
            is_float = element_type_of(one.dtype).is_inexact and (one.shape, one.dtype) == (other.shape, other.dtype)
            if not is_float or not self._replay.is_right(self._state, one, other):
                return None
            changes[one.number] = other.value
        return changes


def _kind_of(node: Node) -> object:
    instance = node.instance
    return instance.opcode, node.leaf, node.shape, node.dtype, node.device, instance.iterations


def _jumping(graph: Graph) -> Iterator[Instance]:
    """What decides something about floats, each time that it ran."""
    sites = graph.columns.sites
    jumping = np.array([_jumps(graph.module, computation, instruction) for instruction, computation in sites], bool)
    numbers = np.flatnonzero(jumping[np.array(graph.columns.site, np.int64)])
    return map(graph.instance, numbers.tolist())


def _jumps(module: Module, computation: Computation, instruction: Instruction) -> bool:
    """Whether an instruction, or one of a computation that it calls, decides something about floats."""
    if any(_is_inexact(operand.shape) for operand in computation.operands_of(instruction)) and (
        traits_of(instruction).jumps or not all(map(_is_inexact, flat_arrays(instruction.shape)))
    ):
        return True
    called = (module.by_name[name] for name in computation_names(instruction.attributes))
    return any(_jumps(module, callee, inner) for callee in called for inner in callee)


def _is_inexact(shape: Shape) -> bool:
    return any(isinstance(leaf, ArrayShape) and leaf.element_type.is_inexact for leaf in flat_arrays(shape))


def _tie(node: Node, values: Array) -> Tie | None:
    """The elements of a value that are others among `values`."""
    recorded = node.value
    if (values.shape, values.dtype) != (recorded.shape, recorded.dtype):
        return None
    elements = _jumped(recorded, values)
    if not elements.any():
        return None
    return Tie(node.instance.instruction, node.instance.name, node.device, node.leaf, elements, values)


def _jumped(first: Array, second: Array) -> Array:
    """Which elements are further apart than rounding errors carried on put them: all that differ of whole numbers."""
    x, y = wide(first), wide(second)
    if not element_type_of(first.dtype).is_inexact:
        return np.asarray(x != y)
    with np.errstate(all="ignore"):
        are_far = np.abs(x - y) > LIMITS.jump * np.maximum(np.abs(x), np.abs(y))
        are_whole = (x == np.rint(x)) & (y == np.rint(y)) & (x != y)
    return np.asarray(are_far | are_whole | (np.isnan(x) != np.isnan(y)))


class Decided:
    """The controller of a run in which elements go the way that they do in `before`."""

    def __init__(self, ties: Mapping[tuple[str, int, int], Tie] | None = None) -> None:
        self._ties = {} if ties is None else ties

    def with_further(self, ties: Iterable[Tie]) -> Decided | None:
        """One that lets the elements of further ties go that way, too; None where there are none."""
        ties_by_key = dict(self._ties)
        for tie in ties:
            earlier_tie = ties_by_key.get(tie.key)
            ties_by_key[tie.key] = tie if earlier_tie is None else earlier_tie.joined(tie)
        further = Decided(ties_by_key)
        return further if further._count > self._count else None

    @property
    def _count(self) -> int:
        return sum(tie.count for tie in self._ties.values())

    @property
    def notes(self) -> list[str]:
        """What is decided otherwise, by instruction."""
        ties_by_name: dict[str, list[Tie]] = defaultdict(list)
        for tie in self._ties.values():
            ties_by_name[tie.instruction.name].append(tie)
        notes = [
            f"%{name}: rounding lets {sum(tie.count for tie in ties)} of {sum(tie.elements.size for tie in ties)} "
            f"elements go either way; the results are compared as if they went as in before"
            for name, ties in ties_by_name.items()
        ]
        left = len(notes) - LIMITS.notes_on_ties
        return [*notes[: LIMITS.notes_on_ties], *([f"{left} more instructions decide so"] if left > 0 else [])]

    def on_value(self, event: Event) -> Value | None:
        """Called by the run."""
        arrays = arrays_of(event.value)
        for device in event.devices:
            new_arrays = [self._decided(event, device, leaf, array) for leaf, array in enumerate(arrays)]
            if any(new is not old for new, old in zip(new_arrays, arrays, strict=True)):
                return nested(event.instruction.shape, iter(new_arrays))
        return None

    def _decided(self, event: Event, device: int, leaf: int, array: Array) -> Array:
        tie = self._ties.get((event.name, device, leaf))
        if tie is None or tie.elements.shape != array.shape or tie.values.dtype != array.dtype:
            return array
        return np.where(tie.elements, tie.values, array).astype(array.dtype, copy=False)

    def on_failure(self, failure: Failure) -> None:
        """Called by the run."""


def explained_by_ties(as_it_ran: Comparison, as_decided: Comparison) -> Comparison:
    """The comparison of a run's results, of which those agree, too, that do in the run with decisions of `before`."""
    return Comparison(tuple(starmap(_explained, zip(as_it_ran.leaves, as_decided.leaves, strict=True))))


def _explained(leaf: LeafComparison, as_decided: LeafComparison) -> LeafComparison:
    if leaf.verdict.agrees:
        return leaf
    if not as_decided.verdict.agrees or leaf.measured is None:
        return as_decided
    measured = attrs.evolve(leaf.measured, mismatches=0, first=())
    many = f"{leaf.mismatches} element{' is another' if leaf.mismatches == 1 else 's are others'}"
    note = f"{many}, as rounding lets what decides about them go either way"
    return attrs.evolve(leaf, verdict=Outcome.ROUNDING, measured=measured, note=note)
