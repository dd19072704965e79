"""How many different values the slots of plans hold over all devices, estimated before a run.

The classes of a run (`devices.varying`) are propagated through the plans without values. Classes split at
parameters for which devices are given different objects, and at partition-id and replica-id; kernels join their
operands' classes, and collectives form classes of devices whose groups hold the same values. Devices that agree by
chance count as different, so this is an upper bound. Estimates of memory use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hloexec.core.structs import define
from hloexec.engine.devices.topology import Topology
from hloexec.engine.devices.transfers import FromDevice, FromHost
from hloexec.engine.devices.varying import Classes, joined
from hloexec.engine.plan.steps import (
    Conditional,
    DeviceNumber,
    Exchange,
    Invocation,
    Plan,
    Step,
    While,
    groups_at,
    inner_plans,
)
from hloexec.ops.registry import find_opcode


@define(eq=False)
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
    following.join(plan, plan.parameters, [same if classes is None else classes for classes in arguments])
    following.follow_all(plan)
    return Spread(following.by_plan)


class _Following:
    """Classes only get finer, so the plans are processed until none changes."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.same: Classes = (0,) * topology.count
        self.by_plan: dict[int, list[Classes]] = {}
        self.changed = False

    def slots(self, plan: Plan) -> list[Classes]:
        return self.by_plan.setdefault(id(plan), [self.same] * len(plan.slot_shapes))

    def join(self, plan: Plan, taken: Iterable[int], classes: Iterable[Classes]) -> None:
        """Make slots at least as fine as these classes."""
        slots = self.slots(plan)
        for slot, found in zip(taken, classes, strict=True):
            if found != slots[slot]:
                finer = joined((slots[slot], found))[0]
                if finer != slots[slot]:
                    slots[slot] = finer
                    self.changed = True

    def follow_all(self, entry: Plan) -> None:
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
        if isinstance(flow, Invocation):
            self.join(flow.plan, flow.plan.parameters, operands)
            results = self.results(flow.plan)
        elif isinstance(flow, While):
            (choice,) = self.results(flow.condition)
            state = self.results(flow.body)
            carried = [self.finest([*pair, choice]) for pair in zip(operands, state, strict=True)]
            for part in (flow.condition, flow.body):
                self.join(part, part.parameters, carried)
            results = carried
        elif isinstance(flow, Conditional):
            for branch in flow.branches:
                self.join(branch.plan, branch.plan.parameters, operands[branch.start : branch.stop])
            columns = zip(*(self.results(branch.plan) for branch in flow.branches), strict=True)
            results = [self.finest([*column, operands[0]]) for column in columns]
        else:
            results = [self.result(step, operands)] * len(step.results)
        if len(results) == len(step.results):
            self.join(plan, step.results, results)
        return inner_plans(flow)

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
            return joined((tuple(map(number, range(self.topology.count))),))[0]
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
        for group in groups_at(step, self.topology):
            members = tuple(held[device] for device in group.values())
            if has_own_groups:
                members += tuple(group)
            for place, device in enumerate(group.values()):
                keys[device] = (*members, place) if places_matter else members
        numbers: dict[tuple[int, ...], int] = {}
        return tuple(numbers.setdefault(keys[device], len(numbers)) for device in range(self.topology.count))
