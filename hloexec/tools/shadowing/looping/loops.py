"""Loops whose iterations are run many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloexec.core.values import Array
from hloexec.engine.exec.observers import LoopState
from hloexec.engine.exec.observers import Place as RunPlace
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.engine.plan.steps import Context, Step, While
from hloexec.errors import HloError
from hloexec.tools.shadowing.alone.budget import Work
from hloexec.tools.shadowing.computing.elements import difference_of
from hloexec.tools.shadowing.computing.evaluation import Evaluation
from hloexec.tools.shadowing.looping.accounts import Runs, Units, accounts
from hloexec.tools.shadowing.looping.blames import shares_after, vanished_after
from hloexec.tools.shadowing.looping.iterating import recorded
from hloexec.tools.shadowing.looping.program import LoopProgram, Node, Wrong, program_of
from hloexec.tools.shadowing.looping.recording import Recording
from hloexec.tools.shadowing.places import Place
from hloexec.tools.shadowing.store import EXACT, Blame, Shadow, Store

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
        self, loop: LoopState, program: LoopProgram, wrong: Wrong, shadows: Sequence[Shadow | None], most: int
    ) -> tuple[list[Array], int] | None:
        recording = recorded(program, wrong, loop.state, shadows, most)
        if not recording.rows:
            return None
        known = [(number, shadow) for number, shadow in enumerate(shadows) if shadow is not None]
        units: Units = {}
        for number, shadow in known:
            units[program.parameters[number]] = units[program.condition_parameters[number]] = shadow.blame.unit
        found = accounts(recording, {number: shadow.absorbed for number, shadow in known}, units)
        if found is None:
            self._alone[id(loop.step.flow)] = loop.iteration + recording.rows
            return None
        runs, masks = found
        shares = shares_after(recording, runs, {number: shadow.blame.shares for number, shadow in known})
        vanished = vanished_after(recording, runs, {number: shadow.blame.vanished for number, shadow in known})
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
                self._store.put(array, _shadow(recording, number, blame, mask))
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


def _shadow(recording: Recording, leaf: int, blame: Blame, absorbed: Array | None) -> Shadow | None:
    if leaf not in recording.exact:
        return EXACT
    found = difference_of(recording.exact[leaf], recording.state[leaf])
    if not found.energy and not found.is_whole:
        return EXACT
    return Shadow(found.data, found.is_whole, found.energy, 0, blame, absorbed)
