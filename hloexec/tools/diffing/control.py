"""Control flow of a run: what decided how often loops went round, and which branches were taken.

A value that leaves a loop depends on the loop's condition, and one that leaves a conditional on its index, though
neither is among its operands. Values from another branch, or from another number of iterations, differ although no
instruction that computed them is wrong.
"""

from __future__ import annotations

from array import array as column
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import attrs

from hloexec.analysis.calls import CallKind, call_of, calls_in, calls_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.places import CallPath, RunPlace
from hloexec.core.structs import frozen
from hloexec.core.values import arrays_of
from hloexec.engine.devices.topology import ONE_DEVICE
from hloexec.engine.exec.observers import Event, path_entry, path_of
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.errors import HloError
from hloexec.ops.registry import Role, role_of
from hloexec.tools.diffing.correspondence import nested
from hloexec.tools.diffing.findings import InstructionRun, run_at
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.recording.arrays import Digest, digest_of

Holds = Callable[[CallPath, str, int], tuple[Node, ...]]
"""The nodes that an instruction of a scope gave on a device."""
_Frame: TypeAlias = tuple[RunPlace, int | None] | None
"""The innermost loop or conditional around something, and which of its iterations; None where there is none."""


@frozen(eq=False)
class Control:
    """A loop or a conditional that ran, on one device."""

    instruction: Instruction
    computation: Computation
    place: RunPlace
    operands: tuple[tuple[Node, ...], ...]
    """The arrays of a conditional's operands; none of a loop's."""
    results: tuple[Node, ...]

    @property
    def run(self) -> InstructionRun:
        return run_at(self.computation, self.place)

    @property
    def iterations(self) -> tuple[int, ...]:
        """The numbers of the iterations of the loops around it in which it ran, outermost first."""
        return self.place.path.iterations

    @property
    def is_loop(self) -> bool:
        return role_of(self.instruction) is Role.WHILE


@frozen(eq=False)
class Handing:
    """An iteration of a loop on a device: the values that it was given, and those that it hands on."""

    given: tuple[Node, ...]
    handed: tuple[Node, ...]


class ControlRecorder:
    """The observer that notes loops and conditionals, each time that they have run, and the conditions of loops; it is
    to come after the one that records the graph."""

    def __init__(self, module: Module, holds: Holds) -> None:
        self.controls: list[Control] = []
        self.conditions: dict[RunPlace, column[int]] = defaultdict(lambda: column("i"))
        """By loop, the numbers of the nodes that its condition has given."""
        self.handings: dict[RunPlace, list[Handing]] = defaultdict(list)
        """The first few of each loop, and of the first few iterations of what is around it."""
        self._holds = holds
        self._roots = set(_condition_roots(module))
        self._bodies = dict(_bodies(module))

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        instruction, computation = event.instruction, event.computation
        is_control = role_of(instruction) in (Role.WHILE, Role.CONDITIONAL)
        is_root = (computation.name, instruction.name) in self._roots
        parameter = self._bodies.get((computation.name, instruction.name))
        if not (is_control or is_root or parameter):
            return
        scope = path_of(event)
        is_handing = parameter and all(number < LIMITS.few_runs for number in scope.iterations)
        if (is_handing or is_root) and scope.calls and scope.calls[-1].iteration is not None:
            for device in event.devices:
                loop = RunPlace(scope.outer, scope.caller, device)
                handed = self._holds(scope, instruction.name, device)
                if parameter and is_handing:
                    self.handings[loop].append(Handing(self._holds(scope, parameter, device), handed))
                if is_root:
                    self.conditions[loop] += column("i", [node.number for node in handed[:1]])
        if is_control:
            self.controls += [self._control(event, scope, device) for device in event.devices]

    def _control(self, event: Event, scope: CallPath, device: int) -> Control:
        instruction = event.instruction
        names = () if role_of(instruction) is Role.WHILE else instruction.operands
        operands = tuple(self._holds(scope, name, device) for name in names)
        place = RunPlace(scope, instruction.name, device)
        return Control(instruction, event.computation, place, operands, self._holds(scope, instruction.name, device))


def _condition_roots(module: Module) -> Iterator[tuple[str, str]]:
    """The roots of the conditions of loops, with their computations."""
    for *_, condition in calls_in(module, CallKind.CONDITION):
        yield condition.name, condition.root_name


def _bodies(module: Module) -> Iterator[tuple[tuple[str, str], str]]:
    """The roots of the bodies of loops, with their computations, and the names of the bodies' parameters."""
    for *_, body in calls_in(module, CallKind.BODY):
        yield (body.name, body.root_name), body.parameters[0].name


class Decisions:
    """What decided each loop and conditional of a run."""

    def __init__(self, recorder: ControlRecorder, module: Module, graph: Graph, options: Options) -> None:
        self._options = options
        self._module = module
        self._graph = graph
        self._conditions = recorder.conditions
        self._handings = recorder.handings
        self._controls = {control.place: control for control in recorder.controls}
        self._known: dict[RunPlace, list[Node]] = {}
        self._known_given: dict[RunPlace, list[int | None]] = {}
        self._others: dict[RunPlace, list[list[Digest]]] = {}
        self._by_frame: defaultdict[tuple[_Frame, int], list[RunPlace]] = defaultdict(list)

    def of(self, place: RunPlace | None) -> list[Node]:
        """The conditions of a loop, one for each time that it was asked, or the index of a conditional; none where
        none ran there."""
        if place is None or place not in self._controls:
            return []
        if place not in self._known:
            self._known[place] = list(self._found(self._controls[place]))
        return self._known[place]

    def loops(self) -> list[RunPlace]:
        """The loops that went round; inner ones first."""
        return [*self._handings]

    @property
    def most_iterations(self) -> int:
        """How often the loop went round that did so most often."""
        return max((len(conditions) - 1 for conditions in self._conditions.values()), default=0)

    def handings(self, loop: RunPlace) -> list[Handing]:
        """The first few iterations of a loop, if those of what is around it are the first few; else none."""
        return self._handings.get(loop, [])

    def other_branch(self, ours: Node, other: Decisions, theirs: Node) -> InstructionRun | None:
        """The conditional that a value comes from, if a branch that it has not taken gives the value that it should be,
        `theirs`; or, in the first iterations in which it gives anything else than the conditional of the other run, all
        that this one gives."""
        control = self._conditional(ours)
        if control is None:
            return None
        counterpart = other._conditional(theirs)
        runs = {} if counterpart is None else {run.iterations: run for run in other._runs(counterpart)}
        if _has_another_index(control, runs.get(control.iterations)):
            # What gives the index is to blame.
            return None
        if self._gives(control, [theirs.digest]):
            return control.run
        for run in self._runs(control):
            if run.iterations in runs and not _has_another_index(run, runs[run.iterations]):
                wanted = other._results(runs[run.iterations])
                if wanted != self._results(run) and self._gives(run, wanted):
                    return run.run
        return None

    def _conditional(self, node: Node) -> Control | None:
        """The innermost conditional that a value leaves, if it leaves no loop in it."""
        for place in exits(CallPath(), node)[-1:]:
            control = self._controls.get(place)
            return control if control is not None and not control.is_loop else None
        return None

    def _runs(self, control: Control) -> list[Control]:
        return [
            run
            for run in self._controls.values()
            if run.instruction is control.instruction and run.place.device == control.place.device
        ]

    def _results(self, control: Control) -> list[Digest]:
        return [node.digest for node in control.results]

    def _gives(self, control: Control, wanted: Sequence[Digest]) -> bool:
        """Whether a branch that a conditional has not taken gives these values, and that is no accident."""
        key = control.place
        if sum(0 if digest.is_uniform else digest.count for digest in wanted) < LIMITS.few_results:
            return False
        if key not in self._others:
            self._others[key] = (
                list(self._from_other_branches(control)) if len(self._others) < LIMITS.other_branches else []
            )
        orders = Counter(digest.in_any_order for digest in wanted)
        return any(orders <= Counter(digest.in_any_order for digest in other) for other in self._others[key])

    def _from_other_branches(self, control: Control) -> Iterator[list[Digest]]:
        """The digests of the arrays that each branch of a conditional gives that it has not taken."""
        own = self._results(control)
        for branch, operand in zip(calls_of(control.instruction), control.operands[1:], strict=True):
            (name,) = branch.operands
            value = nested(control.computation.by_name[name].shape, iter([node.value for node in operand]))
            try:
                options = attrs.evolve(self._options.on(ONE_DEVICE), computation=branch.computation)
                output = run_with(self._module, [[value]], options)[0]
            except HloError:
                # It needs the other devices, or what comes from a host.
                continue
            digests = [digest_of(array) for array in arrays_of(output)]
            if digests != own:
                yield digests

    def handed_on(self, loop: RunPlace, iteration: int) -> InstructionRun | None:
        """The root of a loop's body, which hands values on to the next iteration; None where no such loop ran."""
        control = self._controls.get(loop)
        if control is None or not control.is_loop:
            return None
        body = self._module.by_name[call_of(control.instruction, CallKind.BODY)]
        path = loop.path.to(path_entry(control.instruction, body.name, iteration))
        return run_at(body, RunPlace(path, body.root_name, loop.device))

    def passed_on(self, loop: RunPlace | None) -> InstructionRun | None:
        """What hands values on in the last iteration of a loop; None where no such loop ran, or none of them."""
        iterations = len(self.of(loop)) - 1
        return self.handed_on(loop, iterations - 1) if loop is not None and iterations > 0 else None

    def like(self, place: RunPlace, other: Decisions) -> RunPlace | None:
        """The loop or conditional that is one of another run by its place in it, or in the same iteration of the loop
        around it, if both ran as many there, or as many that give values of such sizes.

        Of several loops, which may run in another order, it is one that gives values of such sizes, and was given most
        of what the other was given, in most of the same places.
        """
        frame = theirs = _frame_of(place)
        if frame is not None:
            around = self.like(frame[0], other)
            if around is None:
                return None
            frame = around, frame[1]
        ours, others = self._directly_in(frame, place.device), other._directly_in(theirs, place.device)
        if place not in others:
            return None
        sizes = other._sizes(place)
        if len(ours) != len(others):
            ours = [each for each in ours if self._sizes(each) == sizes]
            others = [each for each in others if other._sizes(each) == sizes]
        if len(ours) != len(others):
            return None
        counterpart = ours[others.index(place)]
        given = other._given(place)

        def likeness(each: RunPlace) -> tuple[bool, int, int, bool]:
            found = self._given(each)
            in_place = {digest for digest, wanted in zip(found, given, strict=False) if digest == wanted}
            # What has never run was given nothing.
            is_as_large = self._sizes(each) == sizes
            return is_as_large, len({*found} & {*given} - {None}), len(in_place - {None}), each == counterpart

        return max(ours, key=likeness)

    def _given(self, place: RunPlace) -> list[int | None]:
        """The digests of what a loop was given at first; None of what others are easily given by accident."""
        if place not in self._known_given:
            digests = [node.digest for handing in self.handings(place)[:1] for node in handing.given]
            self._known_given[place] = [None if digest.is_uniform else digest.in_order for digest in digests]
        return self._known_given[place]

    def _sizes(self, place: RunPlace) -> list[tuple[str, int]]:
        """What kinds of values a loop or a conditional gives, and how many elements each has."""
        return sorted((node.digest.family, node.digest.count) for node in self._controls[place].results)

    def _directly_in(self, frame: _Frame, device: int) -> list[RunPlace]:
        if not self._by_frame:
            for place in self._controls:
                self._by_frame[_frame_of(place), place.device].append(place)
        return self._by_frame[frame, device]

    def _found(self, control: Control) -> Iterator[Node]:
        if not control.is_loop:
            yield from control.operands[0]
            return
        yield from map(self._graph.node, self._conditions.get(control.place, ()))


def _has_another_index(ours: Control, theirs: Control | None) -> bool:
    """Whether a conditional was given another index than its counterpart, as far as both count branches alike."""
    if theirs is None or theirs.is_loop:
        return False
    first, second = ours.operands[0][0].digest, theirs.operands[0][0].digest
    return first.family == second.family and first.in_order != second.in_order


def _frame_of(place: RunPlace) -> _Frame:
    return next(reversed(place.path.choices(place.device)), None)


def is_unrolled(first: Sequence[Node], second: Sequence[Node]) -> bool:
    """Whether an iteration of one of two loops, given by their conditions, is several of the other: it goes round a
    whole number of times as often, and runs, each time, so many instructions less; that is, about as many in all."""
    more, fewer = sorted((first, second), key=len, reverse=True)
    trips = len(more) - 1, len(fewer) - 1
    if not 1 < trips[1] < trips[0] or trips[0] % trips[1]:
        return False
    steps = [(loop[-1].instance.number - loop[0].instance.number) / (len(loop) - 1) for loop in (more, fewer)]
    return (steps[1] / steps[0]) ** 2 > trips[0] / trips[1]


def exits(scope: CallPath, node: Node) -> list[RunPlace]:
    """The loops and conditionals that a value has left where it is used in `scope`, outermost first."""
    return [place for place, _ in node.instance.scope.choices(node.device) if not place.calls(scope)]


def carrying_loop(user: Node, node: Node) -> tuple[RunPlace, int] | None:
    """The loop that carries a value into the iteration in which it is used, and the iteration that hands it on; None
    where it is computed in the same iteration, or comes from before the first."""
    path, own = user.instance.scope, node.instance.scope
    for depth, call in enumerate(path.calls):
        if depth == len(own.calls) or str(call) != str(own.calls[depth]):
            loop = RunPlace(path.first(depth), call.instruction.name, user.device)
            if call.iteration and loop.iteration(own) != call.iteration:
                return loop, call.iteration - 1
            break
    return None
