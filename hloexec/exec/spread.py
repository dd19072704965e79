"""How many different values the slots of plans hold over all devices, worked out before a run.

The classes of a run (`hloexec.exec.split`) are followed through the plans without values: parameters part where devices
are given different objects, and at partition-id and replica-id; kernels join their operands' classes, and collectives
make classes of devices whose groups hold the same. Devices that agree by chance count as different, so that this is an
upper bound. It serves estimates of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from hloexec.exec.plan import (
    Conditional,
    DeviceNumber,
    Exchange,
    FromDevice,
    FromHost,
    Invocation,
    Plan,
    Step,
    While,
)
from hloexec.exec.split import Classes, joined, renumbered
from hloexec.exec.topology import Group, Topology, groups_at
from hloexec.ops.registry import find_opcode

__all__ = ["Spread", "spread_of"]


@attrs.define(eq=False)
class Spread:
    """The classes of devices in the slots of a plan, and of all plans that it runs."""

    by_plan: dict[int, list[Classes]]
    """The classes of each slot, by the identity of the plan."""

    def counts(self, plan: Plan) -> list[int]:
        """How many values each slot holds."""
        known = self.by_plan.get(id(plan))
        return [1] * len(plan.slot_shapes) if known is None else [max(classes) + 1 for classes in known]

    def factor(self, plan: Plan) -> float:
        """How many times as many bytes all devices hold as one does, within a plan."""
        sizes = [shape.byte_size for shape in plan.slot_shapes]
        total = sum(sizes)
        weighted = sum(size * count for size, count in zip(sizes, self.counts(plan), strict=True))
        return weighted / total if total else 1.0


def spread_of(plan: Plan, arguments: Sequence[Classes | None], topology: Topology) -> Spread:
    """The spread of a plan whose parameter leaves have these classes; None where all devices agree."""
    following = _Following(topology)
    same = (0,) * topology.count
    following.join(plan, 0, [same if classes is None else classes for classes in arguments])
    following.settle(plan)
    return Spread(following.by_plan)


class _Following:
    """Classes only grow finer, so the plans are gone through until none changes."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.same: Classes = (0,) * topology.count
        self.by_plan: dict[int, list[Classes]] = {}
        self.groups: dict[int, list[Group]] = {}
        """The groups of each exchange, by the identity of its step."""
        self.changed = False

    def slots(self, plan: Plan) -> list[Classes]:
        return self.by_plan.setdefault(id(plan), [self.same] * len(plan.slot_shapes))

    def join(self, plan: Plan, first: int, classes: Iterable[Classes]) -> None:
        """Make slots from `first` on at least as fine as these classes."""
        slots = self.slots(plan)
        for slot, found in enumerate(classes, first):
            if found != slots[slot]:
                finer = joined((slots[slot], found))[0]
                if finer != slots[slot]:
                    slots[slot] = finer
                    self.changed = True

    def settle(self, entry: Plan) -> None:
        self.changed = True
        while self.changed:
            self.changed = False
            pending, seen = [entry], {id(entry)}
            while pending:
                plan = pending.pop()
                for step in plan.steps:
                    for inner in self.follow(plan, step):
                        if id(inner) not in seen:
                            seen.add(id(inner))
                            pending.append(inner)

    def follow(self, plan: Plan, step: Step) -> Sequence[Plan]:
        """Work out a step's results; returns the plans that it runs."""
        slots = self.slots(plan)
        operands = [slots[slot] for slot in step.operands]
        flow = step.flow
        inner: list[Plan] = []
        if isinstance(flow, Invocation):
            self.join(flow.plan, 0, operands)
            results = self.results(flow.plan)
            inner = [flow.plan]
        elif isinstance(flow, While):
            (choice,) = self.results(flow.condition)
            state = self.results(flow.body)
            carried = [self.finest([*pair, choice]) for pair in zip(operands, state, strict=True)]
            for part in (flow.condition, flow.body):
                self.join(part, 0, carried)
            results = carried
            inner = [flow.condition, flow.body]
        elif isinstance(flow, Conditional):
            for branch in flow.branches:
                self.join(branch.plan, 0, operands[branch.start : branch.stop])
            inner = [branch.plan for branch in flow.branches]
            columns = zip(*map(self.results, inner), strict=True)
            results = [self.finest([*column, operands[0]]) for column in columns]
        else:
            results = [self.result(step, operands)] * len(step.results)
        if len(results) == len(step.results):
            for slot, classes in zip(step.results, results, strict=True):
                self.join(plan, slot, [classes])
        return inner

    def results(self, plan: Plan) -> list[Classes]:
        slots = self.slots(plan)
        return [slots[slot] for slot in plan.results]

    def finest(self, partitions: Sequence[Classes]) -> Classes:
        distinct = tuple(dict.fromkeys(classes for classes in partitions if classes != self.same))
        return joined(distinct)[0] if distinct else self.same

    def result(self, step: Step, operands: Sequence[Classes]) -> Classes:
        """The classes of a step that runs no other plan."""
        flow = step.flow
        if isinstance(flow, DeviceNumber):
            number = self.topology.replica_of if flow.is_replica else self.topology.partition_of
            return renumbered(tuple(map(number, range(self.topology.count))))[0]
        if isinstance(flow, (FromHost, FromDevice)):
            return tuple(range(self.topology.count))
        if isinstance(flow, Exchange):
            return self.exchanged(step, self.finest(operands))
        return self.finest(operands)

    def exchanged(self, step: Step, held: Classes) -> Classes:
        """Devices agree where their groups hold the same, and they have the same place there if places matter."""
        assert isinstance(step.flow, Exchange)
        entry = find_opcode(step.instruction.opcode)
        has_own_groups = step.flow.groups is not None
        places_matter = not has_own_groups and (entry is None or not entry.gives_same)
        keys: dict[int, tuple[int, ...]] = {}
        if id(step) not in self.groups:
            self.groups[id(step)] = groups_at(step, self.topology)
        for group in self.groups[id(step)]:
            members = tuple(held[device] for device in group.values())
            if has_own_groups:
                members += tuple(group)
            for place, device in enumerate(group.values()):
                keys[device] = (*members, place) if places_matter else members
        numbers: dict[tuple[int, ...], int] = {}
        return tuple(numbers.setdefault(keys[device], len(numbers)) for device in range(self.topology.count))
