"""Control flow of a run: what decided how often loops went round, and which branches were taken.

A value that leaves a loop depends on the loop's condition, and one that leaves a conditional on its index, though
neither is among its operands. Values from another branch, or from another number of iterations, differ although no
instruction that computed them is wrong.
"""

from __future__ import annotations

from array import array as column
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import attrs

from hloexec.analysis.calls import CallKind, call_of, calls_in, calls_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.core.values import arrays_of
from hloexec.engine.devices.topology import ONE_DEVICE
from hloexec.engine.exec.observers import Event
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.errors import HloError
from hloexec.ops.registry import Role, role_of
from hloexec.tools.diffing.correspondence import nested
from hloexec.tools.diffing.digests import Digest, digest_of
from hloexec.tools.diffing.findings import InstructionRun
from hloexec.tools.diffing.graph import Graph, Node, iterations_of
from hloexec.tools.diffing.limits import LIMITS

Holds = Callable[[str, str, int], tuple[Node, ...]]
"""The nodes that an instruction of a scope gave on a device."""


@frozen(eq=False)
class Control:
    """A loop or a conditional that ran, on one device."""

    instruction: Instruction
    computation: Computation
    scope: str
    device: int
    operands: tuple[tuple[Node, ...], ...]
    """The arrays of a conditional's operands; none of a loop's."""
    results: tuple[Node, ...]

    @property
    def name(self) -> str:
        return f"{self.scope}/{self.instruction.name}" if self.scope else self.instruction.name

    @property
    def place(self) -> InstructionRun:
        return InstructionRun(self.computation.name, self.instruction.name, self.name, self.device)

    @property
    def iterations(self) -> tuple[str, ...]:
        """The numbers of the iterations of the loops around it in which it ran, outermost first."""
        return iterations_of(self.scope)

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
        self.conditions: dict[tuple[str, int], column[int]] = defaultdict(lambda: column("i"))
        """By a loop's name and the device, the numbers of the nodes that its condition has given."""
        self.handings: dict[tuple[str, int], list[Handing]] = defaultdict(list)
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
        scope = event.name.rpartition("/")[0]
        loop, bracket, _ = scope.rpartition("[")
        is_early = all(int(number) < LIMITS.few_runs for number in iterations_of(scope))
        if parameter and is_early and bracket and scope.endswith(f"]:{computation.name}"):
            for device in event.devices:
                given = self._holds(scope, parameter, device)
                self.handings[loop, device].append(Handing(given, self._holds(scope, instruction.name, device)))
        if is_root and bracket and scope.endswith(f"]:{computation.name}"):
            for device in event.devices:
                self.conditions[loop, device] += column(
                    "i", [node.number for node in self._holds(scope, instruction.name, device)[:1]]
                )
        if is_control:
            self.controls += [self._control(event, scope, device) for device in event.devices]

    def _control(self, event: Event, scope: str, device: int) -> Control:
        instruction = event.instruction
        names = () if role_of(instruction) is Role.WHILE else instruction.operands
        operands = tuple(self._holds(scope, name, device) for name in names)
        results = self._holds(scope, instruction.name, device)
        return Control(instruction, event.computation, scope, device, operands, results)


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
        self._controls = {(control.name, control.device): control for control in recorder.controls}
        self._known: dict[tuple[str, int], list[Node]] = {}
        self._known_given: dict[tuple[str, int], list[int | None]] = {}
        self._others: dict[tuple[str, int], list[list[Digest]]] = {}
        self._by_frame: defaultdict[tuple[str, str, int], list[str]] = defaultdict(list)

    def of(self, name: str, device: int) -> list[Node]:
        """The conditions of a loop, one for each time that it was asked, or the index of a conditional; none where
        nothing of that name ran."""
        key = (name, device)
        if key not in self._known:
            control = self._controls.get(key)
            self._known[key] = [] if control is None else list(self._found(control))
        return self._known[key]

    def loops(self) -> list[tuple[str, int]]:
        """The loops that went round, by their names, and the devices; inner ones first."""
        return [*self._handings]

    @property
    def most_iterations(self) -> int:
        """How often the loop went round that did so most often."""
        return max((len(conditions) - 1 for conditions in self._conditions.values()), default=0)

    def handings(self, name: str, device: int) -> list[Handing]:
        """The first few iterations of a loop, if those of what is around it are the first few; else none."""
        return self._handings.get((name, device), [])

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
            return control.place
        for run in self._runs(control):
            if run.iterations in runs and not _has_another_index(run, runs[run.iterations]):
                wanted = other._results(runs[run.iterations])
                if wanted != self._results(run) and self._gives(run, wanted):
                    return run.place
        return None

    def _conditional(self, node: Node) -> Control | None:
        """The innermost conditional that a value leaves, if it leaves no loop in it."""
        for name in exits("", node)[-1:]:
            control = self._controls.get((name, node.device))
            return control if control is not None and not control.is_loop else None
        return None

    def _runs(self, control: Control) -> list[Control]:
        return [
            run
            for run in self._controls.values()
            if run.instruction is control.instruction and run.device == control.device
        ]

    def _results(self, control: Control) -> list[Digest]:
        return [node.digest for node in control.results]

    def _gives(self, control: Control, wanted: Sequence[Digest]) -> bool:
        """Whether a branch that a conditional has not taken gives these values, and that is no accident."""
        key = (control.name, control.device)
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
            found = [digest_of(array) for array in arrays_of(output)]
            if found != own:
                yield found

    def handed_on(self, name: str, iteration: int, device: int) -> InstructionRun | None:
        """The root of a loop's body, which hands values on to the next iteration; None where no such loop ran."""
        control = self._controls.get((name, device))
        if control is None or not control.is_loop:
            return None
        body = self._module.by_name[call_of(control.instruction, CallKind.BODY)]
        return InstructionRun(body.name, body.root_name, f"{name}[{iteration}]:{body.name}/{body.root_name}", device)

    def passed_on(self, name: str, device: int) -> InstructionRun | None:
        """What hands values on in the last iteration of a loop; None where no such loop ran, or none of them."""
        iterations = len(self.of(name, device)) - 1
        return self.handed_on(name, iterations - 1, device) if iterations > 0 else None

    def like(self, name: str, other: Decisions, device: int) -> str:
        """The loop or conditional that is one of another run by its place in it, or in the same iteration of the loop
        around it, if both ran as many there, or as many that give values of such sizes; else an empty string.

        Of several loops, which may run in another order, it is one that gives values of such sizes, and was given most
        of what the other was given, in most of the same places.
        """
        frame = theirs = _frame_of(name)
        if frame[0]:
            frame = (self.like(frame[0], other, device), frame[1])
            if not frame[0]:
                return ""
        names, others = self._directly_in(frame, device), other._directly_in(theirs, device)
        if len(names) != len(others) and name in others:
            sizes = other._sizes(name, device)
            names = [each for each in names if self._sizes(each, device) == sizes]
            others = [each for each in others if other._sizes(each, device) == sizes]
        if len(names) != len(others) or name not in others:
            return ""
        place = names[others.index(name)]
        given = other._given(name, device)

        sizes = other._sizes(name, device)

        def likeness(each: str) -> tuple[bool, int, int, bool]:
            found = self._given(each, device)
            in_place = {digest for digest, wanted in zip(found, given, strict=False) if digest == wanted}
            # What has never run was given nothing.
            is_as_large = self._sizes(each, device) == sizes
            return is_as_large, len({*found} & {*given} - {None}), len(in_place - {None}), each == place

        return max(names, key=likeness)

    def _given(self, name: str, device: int) -> list[int | None]:
        """The digests of what a loop was given at first; None of what others are easily given by accident."""
        key = (name, device)
        if key not in self._known_given:
            digests = [node.digest for handing in self.handings(*key)[:1] for node in handing.given]
            self._known_given[key] = [None if digest.is_uniform else digest.in_order for digest in digests]
        return self._known_given[key]

    def _sizes(self, name: str, device: int) -> list[tuple[str, int]]:
        """What kinds of values a loop or a conditional gives, and how many elements each has."""
        control = self._controls[name, device]
        return sorted((node.digest.family, node.digest.count) for node in control.results)

    def _directly_in(self, frame: tuple[str, str], device: int) -> list[str]:
        if not self._by_frame:
            for name, place in self._controls:
                self._by_frame[*_frame_of(name), place].append(name)
        return self._by_frame[*frame, device]

    def _found(self, control: Control) -> Iterator[Node]:
        if not control.is_loop:
            yield from control.operands[0]
            return
        yield from map(self._graph.node, self._conditions.get((control.name, control.device), ()))


def _has_another_index(ours: Control, theirs: Control | None) -> bool:
    """Whether a conditional was given another index than its counterpart, as far as both count branches alike."""
    if theirs is None or theirs.is_loop:
        return False
    first, second = ours.operands[0][0].digest, theirs.operands[0][0].digest
    return first.family == second.family and first.in_order != second.in_order


def _frame_of(name: str) -> tuple[str, str]:
    """The innermost loop or conditional around one of that name, by its own name, and which of its iterations; two
    empty strings where there is none."""
    components = name.split("/")
    for place in range(len(components) - 2, -1, -1):
        head, colon, _ = components[place].partition(":")
        if colon:
            loop, _, iteration = head.partition("[")
            return "/".join([*components[:place], loop]), iteration
    return "", ""


def is_unrolled(first: Sequence[Node], second: Sequence[Node]) -> bool:
    """Whether an iteration of one of two loops, given by their conditions, is several of the other: it goes round a
    whole number of times as often, and runs, each time, so many instructions less; that is, about as many in all."""
    more, fewer = sorted((first, second), key=len, reverse=True)
    trips = len(more) - 1, len(fewer) - 1
    if not 1 < trips[1] < trips[0] or trips[0] % trips[1]:
        return False
    steps = [(loop[-1].instance.number - loop[0].instance.number) / (len(loop) - 1) for loop in (more, fewer)]
    return (steps[1] / steps[0]) ** 2 > trips[0] / trips[1]


def exits(scope: str, node: Node) -> list[str]:
    """The loops and conditionals that a value has left where it is used in `scope`, by their names, outermost first."""
    found = []
    components = node.instance.scope.split("/")
    for place, component in enumerate(components):
        head, colon, _ = component.partition(":")
        if not colon:
            continue
        loop, bracket, _ = head.partition("[")
        name = "/".join([*components[:place], loop])
        if not scope.startswith(name + (bracket or ":")):
            found.append(name)
    return found


def carrying_loop(scope: str, node: Node) -> tuple[str, int] | None:
    """The loop that carries a value into the iteration in which it is used in `scope`, by its name, and the iteration
    that hands it on; None where it is computed in the same iteration, or comes from before the first."""
    own = node.instance.scope.split("/")
    components = scope.split("/")
    for place, component in enumerate(components):
        other = own[place] if place < len(own) else ""
        head, _, _ = component.partition(":")
        loop, bracket, number = head.partition("[")
        if bracket and other.partition(":")[0] != head:
            iteration = int(number.rstrip("]"))
            return ("/".join([*components[:place], loop]), iteration - 1) if iteration else None
        if other != component:
            return None
    return None
