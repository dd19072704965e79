"""The observer that computes the shadows of a run, of exchanges and loops, too, for its result or for a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.core.tree import flat, leaves
from hloexec.core.values import Array, Value, arrays_of
from hloexec.engine.devices.manual_regions import crossings, is_boundary
from hloexec.engine.devices.topology import Group, Topology, groups_of, topology_of
from hloexec.engine.exec.observers import Event, LoopState
from hloexec.engine.exec.observers import Place as RunPlace
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.engine.plan.steps import Context, Step, While
from hloexec.errors import HloError, UnsupportedError
from hloexec.ops.collective.groups import is_handed_on
from hloexec.ops.common import is_inexact
from hloexec.ops.registry import exchanges, find_opcode, traits_of
from hloexec.ops.relations import Place as Static
from hloexec.ops.resources import hold_blas
from hloexec.tools.shadowing.alone.shares import Work
from hloexec.tools.shadowing.computing.elements import Difference, Sample, difference_of, sampled, taken
from hloexec.tools.shadowing.computing.evaluation import Evaluation
from hloexec.tools.shadowing.computing.wholes import Evaluated, order_changes
from hloexec.tools.shadowing.computing.widening import Kernels, kernels_of
from hloexec.tools.shadowing.looping.accounts import Runs, Units, accounts, shares_after, vanished_after
from hloexec.tools.shadowing.looping.program import LoopProgram, Node, Recording, Wrong, program_of, recorded
from hloexec.tools.shadowing.outputs import LeafError, leaf_errors
from hloexec.tools.shadowing.places import Losses, Place, blamed, losses, merged
from hloexec.tools.shadowing.store import EXACT, Blame, Shadow, Shadows, Store, wide
from hloexec.tools.watching.recording import (
    ERROR,
    LARGEST,
    RUNS,
    Key,
    Measure,
    ValueRecorder,
    Watched,
    difference_sample,
    of_errors,
    relative_error,
)

Found = tuple[Array, Difference | None, Losses | None, list[Shadow | None]]


@frozen(eq=False)
class _Meeting:
    """An exchange of arrays: a collective, or one of the arrays that cross the boundary of a manual region."""

    operands: tuple[str, ...]
    groups: list[Group]
    function: Callable[[dict[int, list[Array]]], Mapping[int, Any]]
    """What the members of a group get, from what they hold, by their numbers in the group."""
    numbers: tuple[int, ...]
    """Which leaves of the result they get."""
    count: int | None = None
    """How many operands a collective has, of which it hands some on; the result of its start has them before others."""

    def given(self, leaves: Sequence[Array]) -> Sequence[Array]:
        """The leaves that a member gets, of those of the result."""
        first = self.count if self.count is not None and len(leaves) >= 2 * self.count else 0
        return [leaves[first + number] for number in self.numbers]


class Exchanges:
    """Keeps the operands of exchanges until they have met."""

    def __init__(self, module: Module, kernels: Kernels, store: Store, topology: Topology) -> None:
        self._module = module
        self._kernels = kernels
        self._store = store
        self._topology = topology
        self._wanted: dict[str, frozenset[str]] = {}
        """By computation, the instructions that exchanges take."""
        self._held: dict[Static, dict[int, Any]] = {}
        """The latest values of these, by computation, name and device."""
        self._meetings: dict[Static, list[_Meeting]] = {}
        self._last: dict[_Meeting, tuple[tuple[int, ...], dict[int, list[Array]], dict[int, list[Array]]]] = {}

    def note(self, event: Event) -> None:
        """Keep what an exchange will take."""
        computation = event.computation
        wanted = self._wanted.get(computation.name)
        if wanted is None:
            wanted = self._wanted[computation.name] = _exchanged(computation)
        if event.instruction.name in wanted:
            held = self._held.setdefault((computation.name, event.instruction.name), {})
            held.update(dict.fromkeys(event.devices, event.value))

    def results(self, event: Event, leaves: Sequence[Array]) -> Iterator[Found]:
        """The differences of the leaves that an exchange gives to the event's devices, and what it added.

        A leaf that devices of an earlier event have got, too, has its shadow already.
        """
        computation, instruction = event.computation, event.instruction
        for meeting in self._meetings_of(computation, instruction):
            group, operands = self._members(computation, meeting, event.devices[0])
            number = next(number for number, member in group.items() if member == event.devices[0])
            exact, here = self._met(meeting, operands)
            shadows = [self._store.get(leaf) for member in operands.values() for leaf in member]
            moves = traits_of(instruction).moves is not None
            own = meeting.given(leaves)
            for leaf, theirs, its in zip(own, exact[number], here[number], strict=True):
                if self._store.knows(leaf):
                    continue
                difference = difference_of(theirs, leaf)
                if not difference.energy and not difference.is_whole:
                    yield leaf, None, None, shadows
                elif moves:
                    yield leaf, difference, None, shadows
                else:
                    lost = self._losses(instruction, leaf, theirs, its, difference, shadows)
                    yield leaf, difference, lost, shadows

    def _losses(
        self,
        instruction: Instruction,
        leaf: Array,
        exact: Array,
        here: Array,
        difference: Difference,
        shadows: Shadows,
    ) -> Losses:
        places = sampled(difference, leaf)
        ours, theirs, its = (taken(array, places) for array in (wide(leaf), exact, here))
        sample = Sample(ours, theirs, its, ours - its, its - theirs)
        loss = losses(sample, element_type_of(leaf.dtype), traits_of(instruction))
        energies = [0.0 if shadow is None else max(shadow.energy, float(shadow.lost)) for shadow in shadows]
        total = sum(energies) or 1.0
        weights = tuple(energy / total for energy in energies)
        return attrs.evolve(loss, weights=weights, lost_weights=(0.0,) * len(weights))

    def _meetings_of(self, computation: Computation, instruction: Instruction) -> list[_Meeting]:
        key = computation.name, instruction.name
        if key not in self._meetings:
            entry = find_opcode(instruction.opcode)
            if entry is not None and entry.exchange is not None:
                function = self._kernels.exchange(computation, instruction)
                names, by_name, attributes = instruction.operands, computation.by_name, instruction.attributes
                numbers = tuple(
                    number
                    for number, name in enumerate(names)
                    if not is_handed_on(number, by_name[name].shape, attributes)
                )
                operands = tuple(names[number] for number in numbers)
                groups = groups_of(instruction, self._topology)
                meetings = [_Meeting(operands, groups, function, numbers, len(names))]
            elif not is_boundary(instruction):
                raise UnsupportedError(f"{instruction.opcode} of devices that meet has no kernel in f64")
            else:
                arrays = zip(instruction.operands, crossings(self._module, computation, instruction), strict=True)
                meetings = [
                    _Meeting((name,), crossing.groups(self._topology), crossing.exchange, (index,))
                    for index, (name, crossing) in enumerate(arrays)
                    if not crossing.is_identity
                ]
            self._meetings[key] = meetings
        return self._meetings[key]

    def _members(
        self, computation: Computation, meeting: _Meeting, device: int
    ) -> tuple[Group, dict[int, list[Array]]]:
        """The devices of a group by their numbers, and the operands of each."""
        group = next(group for group in meeting.groups if device in group.values())
        held = [self._held[computation.name, name] for name in meeting.operands]
        return group, {
            number: [leaf for values in held for leaf in flat(values[member])] for number, member in group.items()
        }

    def _met(
        self, meeting: _Meeting, operands: dict[int, list[Array]]
    ) -> tuple[dict[int, list[Array]], dict[int, list[Array]]]:
        """What the members get exactly: out of their shadows, and out of their values as they are."""
        key = *operands, *(id(leaf) for member in operands.values() for leaf in member)
        last_result = self._last.get(meeting)
        if last_result is not None and last_result[0] == key:
            return last_result[1], last_result[2]
        function = meeting.function
        values = {number: list(map(wide, member)) for number, member in operands.items()}
        shadows = {number: list(map(self._store.get, member)) for number, member in operands.items()}
        here = {number: flat(result) for number, result in function(values).items()}
        exact = here
        if any(shadow is not None for member in shadows.values() for shadow in member):
            known_exactly = {
                number: [
                    array if shadow is None else shadow.exact(leaf)
                    for array, shadow, leaf in zip(values[number], shadows[number], operands[number], strict=True)
                ]
                for number in operands
            }
            exact = {number: flat(result) for number, result in function(known_exactly).items()}
        self._last[meeting] = key, exact, here
        return exact, here


def _exchanged(computation: Computation) -> frozenset[str]:
    return frozenset(name for instruction in computation if exchanges(instruction) for name in instruction.operands)


_MOST = 512
"""Iterations that are run at a time."""
_ELEMENTS = 1 << 18
"""Numbers that are recorded."""
_MANY = 64
"""Iterations that should fit; else large arrays are recorded at some places only."""
_FEWEST = 8
"""Where fewer fit, instructions are looked at one by one."""
_HELD = 1 << 21
"""Numbers that an iteration makes without rounding; where there are more, instructions are looked at one by one, and
large arrays are computed block by block."""


class Loops:
    """Runs iterations of loops for an observer that knows shadows and places."""

    def __init__(
        self,
        store: Store,
        places: Sequence[Place],
        evaluations: Callable[[Step], tuple[Evaluation, int]],
        work: Work,
    ) -> None:
        self._store = store
        self._work = work
        self._places = places
        self._evaluations = evaluations
        self._programs: dict[int, tuple[While, LoopProgram | None]] = {}
        self._alone: dict[int, int] = {}
        """By loop up to which iteration its instructions are looked at one by one."""

    def run(self, loop: LoopState) -> tuple[list[Array], int] | None:
        """What a loop carries after some more iterations, and how many; None where the next is not to be run so."""
        flow = loop.step.flow
        assert isinstance(flow, While)
        if not loop.iteration or loop.iteration < self._alone.get(id(flow), 0):
            # The first iteration says what the values are that passes have taken out of the loop.
            if not loop.iteration:
                self._alone.pop(id(flow), None)
            return None
        if id(flow) not in self._programs:
            self._programs[id(flow)] = flow, program_of(flow, self._evaluations)
        program = self._programs[id(flow)][1]
        if program is None:
            return None
        shadows = [self._store.get(array) for array in loop.state]
        if any(shadow is not None and (shadow.lost or shadow.blame.lost) for shadow in shadows):
            return None
        leaves = frozenset(number for number, shadow in enumerate(shadows) if shadow is not None)
        wrong = program.wrong(leaves, is_sampled=False)
        if wrong.elements * _MANY > _ELEMENTS:
            wrong = program.wrong(leaves, is_sampled=True)
        if wrong.elements * _FEWEST > _ELEMENTS or wrong.held > _HELD:
            return None
        most = min(_MOST, _ELEMENTS // max(1, wrong.elements))
        try:
            return self._run(loop, program, wrong, shadows, most)
        except Exception as error:
            if not isinstance(error, HloError):
                warn_of_failure(f"running iterations of %{loop.step.instruction.name} together", error)
            # Looked at one by one, an instruction that fails is named.
            self._programs[id(flow)] = flow, None
            return None

    def _run(
        self, loop: LoopState, program: LoopProgram, wrong: Wrong, shadows: Shadows, most: int
    ) -> tuple[list[Array], int] | None:
        recording = recorded(program, wrong, loop.state, shadows, most)
        if not recording.rows:
            return None
        numbered_shadows = [(number, shadow) for number, shadow in enumerate(shadows) if shadow is not None]
        units: Units = {}
        for number, shadow in numbered_shadows:
            units[program.parameters[number]] = units[program.condition_parameters[number]] = shadow.blame.unit
        account = accounts(recording, {number: shadow.absorbed for number, shadow in numbered_shadows}, units)
        if account is None:
            self._alone[id(loop.step.flow)] = loop.iteration + recording.rows
            return None
        runs, masks = account
        shares = shares_after(recording, runs, {number: shadow.blame.shares for number, shadow in numbered_shadows})
        vanished = vanished_after(
            recording, runs, {number: shadow.blame.vanished for number, shadow in numbered_shadows}
        )
        for number, its in runs.items():
            self._note(loop, program, number, its)
        for number, (changed, count) in recording.decisions.items():
            place = self._places[program.nodes[number].number]
            place.decisions, place.decided = place.decisions + changed, place.decided + count
        for number, array in enumerate(recording.state):
            if not self._store.knows(array):
                slot = program.results[number]
                blame = Blame(shares.get(number, {}), {}, vanished.get(number, {}), units.get(slot, 0.0))
                mask = masks[slot][-1].reshape(array.shape) if slot in masks and masks[slot][-1].any() else None
                self._store.put(array, _carried_shadow(recording, number, blame, mask))
        self._work.loop_events += recording.rows * program.events
        for node in program.nodes:
            step = node.step
            self._work.note(step.scope.computation, step.instruction, node.shape.element_count, recording.rows)
        return recording.state, recording.rows

    def _note(self, loop: LoopState, program: LoopProgram, number: int, runs: Runs) -> None:
        node = program.nodes[number]

        def where(row: int) -> RunPlace:
            return _where(loop, program, number, node, row)

        self._places[node.number].note_runs(runs, where)


def _where(loop: LoopState, program: LoopProgram, number: int, node: Node, row: int) -> RunPlace:
    flow = loop.step.flow
    assert isinstance(flow, While)
    plan = flow.condition if number < program.conditions else flow.body
    context = Context(loop.step, plan, loop.iteration + row, loop.context)
    return RunPlace(node.step.instruction, node.step.scope, context, loop.devices)


def _carried_shadow(recording: Recording, leaf: int, blame: Blame, absorbed: Array | None) -> Shadow | None:
    if leaf not in recording.exact:
        return EXACT
    found = difference_of(recording.exact[leaf], recording.state[leaf])
    if not found.energy and not found.is_whole:
        return EXACT
    return Shadow(found.data, found.is_whole, found.energy, 0, blame, absorbed)


_FAILURES = (HloError, ValueError, TypeError, IndexError, ArithmeticError)
"""What kernels may raise that were made for other element types."""


class ShadowObserver:
    """Watches a run; afterwards `places` and `outputs` say what it saw."""

    def __init__(self, module: Module, entry: str | None, topology: Topology) -> None:
        self._entry = module.entry_name if entry is None else entry.removeprefix("%")
        self._kernels = kernels_of(module)
        self._store = Store()
        self._has_devices = topology.count > 1
        self._exchanges = Exchanges(module, self._kernels, self._store, topology)
        self._evaluations: dict[tuple[str, str, tuple[int, ...]], tuple[Evaluation, int]] = {}
        self.places: list[Place] = []
        """Of each instruction one, or one for each of several devices whose runs of it differ."""
        self.work = Work()
        """What the run has done."""
        self._loops = Loops(
            self._store,
            self.places,
            lambda step: self._evaluation(step.scope.computation, step.instruction),
            self.work,
        )
        self.outputs: list[LeafError] = []
        self.failing: dict[int, str] = {}
        """Why instructions could not be computed on shadows, by the numbers of their places."""

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        self.work.events += 1
        hold_blas()
        instruction = event.instruction
        leaves = arrays_of(event.value)
        self.work.note(event.computation, instruction, sum(leaf.size for leaf in leaves))
        if exchanges(instruction):
            self._exchange(event, leaves)
            new = leaves
        else:
            new = [leaf for leaf in leaves if not self._store.knows(leaf)]
            if new and event.operands:
                self._compute(event, leaves)
        for leaf in new:
            if not self._store.knows(leaf):
                self._store.put(leaf, EXACT)
        self._exchanges.note(event)
        computation = event.computation
        if instruction.name == computation.root_name and computation.name == self._entry and not event.path:
            self._take_outputs(event)

    def on_loop(self, loop: LoopState) -> tuple[list[Array], int] | None:
        """Called by the run before each condition of a loop, of which it may run some iterations."""
        return self._loops.run(loop)

    @property
    def events(self) -> int:
        """How many instructions have run."""
        return self.work.events + self.work.loop_events

    def shadow_of(self, array: Array) -> Shadow | None:
        """The shadow of an array that is alive; None where it has no error."""
        return self._store.get(array)

    def evaluation(self, event: Event) -> tuple[Evaluation, int]:
        """How an instruction is computed on shadows, and the number of its place."""
        # Loops name no devices: on one device, an instruction has one place in and outside them.
        devices = event.devices if self._has_devices else ()
        return self._evaluation(event.computation, event.instruction, devices)

    def _evaluation(
        self, computation: Computation, instruction: Instruction, devices: tuple[int, ...] = ()
    ) -> tuple[Evaluation, int]:
        key = computation.name, instruction.name, devices
        entry = self._evaluations.get(key)
        if entry is None:
            place = Place(computation, instruction)
            made = Evaluation(self._kernels, computation, instruction, len(self.places), place)
            entry = self._evaluations[key] = made, len(self.places)
            self.places.append(place)
            if made.absorbing.source is not None:
                source = self._evaluations.get((computation.name, made.absorbing.source, devices))
                made.source = None if source is None else source[0]
        return entry

    def _compute(self, event: Event, leaves: Sequence[Array]) -> None:
        evaluation, number = self.evaluation(event)
        if not evaluation.is_computed or not any(leaf.size for leaf in leaves):
            return
        operands = flat(event.operands)
        shadows = list(map(self._store.get, operands))
        is_wrong = shadows.count(None) < len(shadows)
        if not any(map(is_inexact, leaves)):
            if is_wrong:
                self._decide(event, evaluation, number, operands, shadows)
            return
        if evaluation.is_failing:
            return
        try:
            evaluated = evaluation.evaluated(event.value, operands, shadows)
        except _FAILURES as error:
            evaluated, self.failing[number] = None, str(error).partition("\n")[0]
        if evaluated is None:
            evaluation.is_failing = True
            if evaluation.entry is not None and evaluation.entry.is_pure:
                # Random numbers are what they are.
                self.failing.setdefault(number, "it has no formula for f64")
            return
        if evaluation.doubt:
            self.failing.setdefault(number, evaluation.doubt)
        for entry in evaluated:
            self._keep(event, number, entry, shadows)
        if is_wrong and any(not is_inexact(leaf) for leaf in leaves):
            self._decide(event, evaluation, number, operands, shadows)

    def _keep(self, event: Event, number: int, evaluated: Evaluated, shadows: Shadows) -> None:
        blame, shadow = evaluated.moved or Blame(), EXACT
        if evaluated.losses is not None:
            self.places[number].note(event, evaluated.losses)
            blame = blamed(number, evaluated.losses, shadows, element_type_of(evaluated.value.dtype))
        if evaluated.pending is not None:
            shadow = Shadow(None, False, evaluated.energy, 0, blame, pending=evaluated.pending)
        elif evaluated.difference is not None:
            shadow = _shadow(evaluated.difference, evaluated.value, blame, evaluated.absorbed)
        self._store.put(evaluated.value, shadow)

    def _decide(
        self,
        event: Event,
        evaluation: Evaluation,
        number: int,
        operands: Sequence[Any],
        shadows: Shadows,
    ) -> None:
        place = self.places[number]
        try:
            if evaluation.is_sorting:
                count = order_changes(evaluation, operands, shadows)
            else:
                count = evaluation.decisions(event.value, operands, shadows)
        except _FAILURES as error:
            self.failing.setdefault(number, str(error).partition("\n")[0])
            return
        place.decisions += count
        place.decided += sum(leaf.size for leaf in arrays_of(event.value))

    def _exchange(self, event: Event, leaves: Sequence[Array]) -> None:
        evaluation, number = self.evaluation(event)
        if evaluation.is_failing or all(self._store.knows(leaf) or not is_inexact(leaf) for leaf in leaves):
            return
        try:
            exchanged = list(self._exchanges.results(event, leaves))
        except (KeyError, *_FAILURES) as error:
            evaluation.is_failing, self.failing[number] = True, str(error).partition("\n")[0]
            return
        for leaf, difference, its_losses, shadows in exchanged:
            moved = merged(shadows) if its_losses is None else None
            self._keep(event, number, Evaluated(leaf, difference, its_losses, moved), shadows)

    def _take_outputs(self, event: Event) -> None:
        arrays = [
            (index, leaf, self._store.get(leaf)) for index, leaf in leaves(event.value) if isinstance(leaf, np.ndarray)
        ]
        self.outputs.extend(leaf_errors(event.devices, arrays))


def _shadow(difference: Difference, value: Array, blame: Blame, absorbed: Array | None) -> Shadow | None:
    lost = 0
    if difference.is_whole:
        lost = int(np.count_nonzero(~np.isfinite(value) & np.isfinite(difference.data)))
        if not lost and not difference.energy:
            return EXACT
    return Shadow(difference.data, difference.is_whole, difference.energy, lost, blame, absorbed)


class ShadowRecorder(ValueRecorder):
    """Records rounding errors, beside a run of a module: each value's distance from its shadow."""

    def __init__(self, module: Module, entry: str | None, topology: Topology, wanted: Collection[Key]) -> None:
        super().__init__(wanted)
        self._shadows = ShadowObserver(module, entry, topology)

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        self._shadows.on_instruction(event)
        super().on_instruction(event)

    def _look(self, event: Event, key: Key, measure: Measure, leaf: Array, largest: float, infinite: int) -> None:
        if not is_inexact(leaf):
            return
        shadow = self._shadows.shadow_of(leaf)
        energy = 0.0 if shadow is None else shadow.energy
        lost = 0 if shadow is None else shadow.lost
        error = math.inf if lost else relative_error(energy, wide(leaf), lambda: _differences(leaf, shadow))
        self._look_at_error(
            event, key, measure, leaf, error, lambda: difference_sample(leaf, _differences(leaf, shadow))
        )


def _differences(leaf: Array, shadow: Shadow | None) -> Array:
    if shadow is None:
        return np.zeros(leaf.shape)
    if not shadow.is_whole:
        return shadow.data
    exact = shadow.data
    with np.errstate(all="ignore"):
        differences = wide(leaf) - exact
    return np.where((wide(leaf) == exact) | (np.isnan(wide(leaf)) & np.isnan(exact)), 0.0, differences)


def watch(
    _: object,
    module: Module,
    inputs: Sequence[Sequence[Value]],
    options: Sequence[Options],
    wanted: Sequence[Key],
    most: int,
) -> Watched:
    """The errors of all instructions."""
    given = options[0]
    topology = topology_of(module, given.replicas, given.partitions)
    recorder = ShadowRecorder(module, given.computation, topology, wanted)
    run_with(module, inputs, given, [recorder])
    figures = {key: (measure.error, measure.largest, measure.runs) for key, measure in recorder.measures.items()}
    return of_errors(recorder, (ERROR, LARGEST, RUNS), figures)
