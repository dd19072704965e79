"""Control flow of a run: trip counts of loops, and branches taken.

Values from another branch, or from a different number of iterations, differ from `before` although no instruction that
computed them is wrong. The instruction to blame is the one that decided: a condition or an index with the same operands
but another value; or the conditional itself, if its index is right and another of its branches computes the value of
`before`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import attrs

from hloexec.diffing.chains import NO_CHAIN
from hloexec.diffing.correspondence import nested
from hloexec.diffing.digests import digest_of
from hloexec.diffing.findings import Finding, InstructionRun
from hloexec.diffing.graph import Node, arrays_of
from hloexec.diffing.matching import Index
from hloexec.diffing.replay import State
from hloexec.errors import HloError
from hloexec.exec.observers import Event
from hloexec.exec.running import run_devices
from hloexec.ir import Computation, Instruction, Module
from hloexec.operations import traits_of
from hloexec.ops.registry import Role, role_of

__all__ = ["ControlRecorder", "control_findings"]

Holds = Callable[[str, str, int], tuple[Node, ...]]
"""The nodes that an instruction of a scope gave on a device."""


@attrs.frozen(eq=False)
class Control:
    """A loop or a conditional that ran."""

    instruction: Instruction
    computation: Computation
    scope: str
    device: int

    @property
    def name(self) -> str:
        return f"{self.scope}/{self.instruction.name}" if self.scope else self.instruction.name

    @property
    def is_loop(self) -> bool:
        return role_of(self.instruction) is Role.WHILE

    @property
    def place(self) -> InstructionRun:
        return InstructionRun(self.computation.name, self.instruction.name, self.name, self.device)


@attrs.frozen(eq=False)
class Decision:
    """A condition of a loop, once, or the index of a conditional."""

    control: Control
    decided: int
    cause: Node
    """What decided it: its value is the decision's but for conversions."""
    trips: int
    """Of a loop, how often it went round."""


class ControlRecorder:
    """The observer that notes loops and conditionals, each time that they have run."""

    def __init__(self) -> None:
        self.controls: list[Control] = []

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        if role_of(event.instruction) in (Role.WHILE, Role.CONDITIONAL):
            scope = event.name.rpartition("/")[0]
            self.controls += [Control(event.instruction, event.computation, scope, device) for device in event.devices]

    def decisions(self, module: Module, holds: Holds) -> Iterator[Decision]:
        """What was decided, in the order in which the loops and conditionals ended."""
        for control in self.controls:
            if not control.is_loop:
                nodes = holds(control.scope, control.instruction.operands[0], control.device)
                if len(nodes) == 1:
                    yield Decision(control, int(nodes[0].value), _cause(nodes[0]), 0)
                continue
            condition = module.by_name[control.instruction.attributes.condition]
            found: list[Node] = []
            while nodes := holds(f"{control.name}[{len(found)}]:{condition.name}", condition.root_name, control.device):
                found.append(nodes[0])
            for node in found:
                yield Decision(control, int(node.value), _cause(node), len(found) - 1)


def control_findings(
    after: Module,
    state: State,
    index: Index,
    first: InstructionRun | None,
    sides: Sequence[tuple[ControlRecorder, Module, Holds]],
    options: dict[str, object],
) -> list[Finding]:
    """The decisions of `after` that are to blame, given that its results differ.

    `first` is what is to blame by values alone; `sides` are of `before` and of `after`. A decision is to blame where
    every decision of `before` that was made of the same values came out differently, and, in loops, led to another
    number of rounds. `options` are those of `run_devices`.
    """
    known: dict[tuple[str, frozenset[tuple[int, int]]], list[Decision]] = defaultdict(list)
    theirs, ours = (list(recorder.decisions(module, holds)) for recorder, module, holds in sides)
    for entry in theirs:
        known[entry.control.instruction.opcode, _made_of(entry.cause, None)].append(entry)
    for entry in ours:
        values = _made_of(entry.cause, state)
        others = known[entry.control.instruction.opcode, values]
        is_loop = entry.control.is_loop
        if (
            values
            and others
            and all(other.decided != entry.decided and (not is_loop or other.trips != entry.trips) for other in others)
        ):
            reason = "the loop ends at another iteration" if is_loop else "another branch is taken"
            return [Finding(entry.cause.place, others[0].cause.place, None, True, reason)]
    if started := _other_starts(theirs, ours):
        return started
    recorder, _, holds = sides[1]
    return [
        Finding(control.place, None, None, True, "another branch gives what it should")
        for control in recorder.controls
        if first is not None
        and not control.is_loop
        and first.device == control.device
        and first.path.startswith(f"{control.name}:")
        and _should_go_elsewhere(after, control, holds, index, options)
    ][:1]


def _other_starts(theirs: Sequence[Decision], ours: Sequence[Decision]) -> list[Finding]:
    """The constants that loops start from, where one has another trip count than its counterpart for that.

    Loops are alike by the order in which they ran, where both sides ran as many.
    """
    sides = [_first_decisions(decisions) for decisions in (ours, theirs)]
    if len(sides[0]) != len(sides[1]):
        return []
    for entry, other in zip(*sides, strict=True):
        if entry.trips == other.trips or entry.cause.instance.opcode != other.cause.instance.opcode:
            continue
        starts = [_constants(decision.cause) for decision in (entry, other)]
        new, old = (set(starts[side]) - set(starts[1 - side]) for side in (0, 1))
        if len(new) == len(old) == 1:
            node, counterpart = starts[0][new.pop()], starts[1][old.pop()]
            return [Finding(node.place, counterpart.place, None, True, "the loop starts elsewhere")]
    return []


def _constants(node: Node) -> dict[int, Node]:
    """The constants that a scalar was made of, by their digests."""
    found = {}
    for entry in node.instance.inputs:
        while _passes_on(entry) and len(entry.instance.inputs) == 1:
            entry = entry.instance.inputs[0]
        if entry.instance.is_constant:
            found[entry.digest.in_order] = entry
    return found


def _first_decisions(decisions: Sequence[Decision]) -> list[Decision]:
    """The first decision of each loop."""
    runs = groupby(decisions, lambda decision: decision.control)
    return [next(run) for control, run in runs if control.is_loop]


def _cause(node: Node) -> Node:
    """The node that a scalar is but for conversions."""
    while _passes_on(node):
        varying = [entry for entry in node.instance.inputs if not entry.instance.is_constant]
        if len(varying) != 1:
            break
        node = varying[0]
    return node


def _passes_on(node: Node) -> bool:
    """Whether a node may stand between a decision and what decides it."""
    traits = traits_of(node.instance.instruction)
    return traits.keeps_all or traits.converts or traits.is_involution or node.instance.opcode == "clamp"


def _made_of(node: Node, state: State | None) -> frozenset[tuple[int, int]]:
    """What a node was made of, constants aside: digests of `before`'s values."""
    found = set()
    for entry in node.instance.inputs:
        entry = _cause(entry)
        if not entry.instance.is_constant:
            match = None if state is None else state.matches[entry.number]
            digest = entry.digest if match is None else match.node.digest
            found.add((digest.count, digest.in_any_order))
    return frozenset(found)


def _should_go_elsewhere(module: Module, control: Control, holds: Holds, index: Index, options: dict[str, Any]) -> bool:
    """Whether another branch than the one taken gives what `before` has."""
    attributes, operands = control.instruction.attributes, control.instruction.operands
    own = [node.digest.in_order for node in holds(control.scope, control.instruction.name, control.device)]
    for branch, operand in zip(attributes.branches, operands[1:], strict=True):
        nodes = holds(control.scope, operand, control.device)
        shape = control.computation.by_name[operand].shape
        value = nested(shape, iter([node.value for node in nodes]))
        try:
            output = run_devices(module, [[value]], computation=branch, replicas=1, partitions=1, **options)[0]
        except HloError:
            # It needs the other devices, or what comes from a host.
            continue
        arrays = arrays_of(output)
        digests = [digest_of(array) for array in arrays]
        if [digest.in_order for digest in digests] == own or any(digest.is_uniform for digest in digests):
            continue
        like = index.graph.nodes[0]
        if all(index.find(array, digest, NO_CHAIN, like) for array, digest in zip(arrays, digests, strict=True)):
            return True
    return False
