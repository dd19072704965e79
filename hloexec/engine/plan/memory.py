"""Liveness, and the memory that a run needs on all its devices, estimated before it starts.

How many different values the slots of plans hold over all devices, estimated before a run. The classes of a run
(`devices.varying`) are propagated through the plans without values. Classes split at parameters for which devices are
given different objects, and at partition-id and replica-id; kernels join their operands' classes, and collectives form
classes of devices whose groups hold the same values. Devices that agree by chance count as different, so this is an
upper bound. Estimates of memory use it.

The estimate goes through a plan's steps and adds up the buffers that are live at each. A value that an opcode usually
returns as a view of its first operand has no buffer of its own, and keeps its operand's live. Values that the caller
passes in, and constants of the module, exist already and do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hloexec.core.process import memory_limit_bytes
from hloexec.core.structs import define
from hloexec.core.wording import byte_text
from hloexec.engine.devices.topology import FromDevice, FromHost, Topology
from hloexec.engine.devices.varying import Classes, joined
from hloexec.engine.plan.kernels import NO_SLOT
from hloexec.engine.plan.steps import (
    COMMUNICATION,
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
from hloexec.errors import ResourceError
from hloexec.ops.registry import entry_of
from hloexec.ops.resources import release_memory


@define(eq=False)
class Spread:
    """The classes of devices in the slots of a plan, and of all plans that it runs."""

    by_plan: dict[int, list[Classes]]
    """The classes of each slot, by the identity of the plan."""
    own: Sequence[int] | None = None
    """The devices of this process, where it has only some."""

    def counts(self, plan: Plan) -> list[int]:
        """How many values each slot holds."""
        slot_classes = self.by_plan.get(id(plan))
        if slot_classes is None:
            return [1] * len(plan.slot_shapes)
        if self.own is None:
            return [max(classes) + 1 for classes in slot_classes]
        return [len({classes[device] for device in self.own}) for classes in slot_classes]

    def factor(self, plan: Plan) -> float:
        """How many times as many bytes all devices hold as one does, within a plan."""
        sizes = [shape.byte_size for shape in plan.slot_shapes]
        total = sum(sizes)
        weighted = sum(size * count for size, count in zip(sizes, self.counts(plan), strict=True))
        return weighted / total if total else 1.0

    def within(self, blocks: Sequence[range]) -> list[Spread]:
        """The spread among the devices of each block alone; one and the same where blocks are alike."""
        objects = {id(classes): classes for slots in self.by_plan.values() for classes in slots}
        made: dict[tuple[Classes, ...], Spread] = {}
        spreads = []
        for block in blocks:
            parts = tuple(joined((classes[block.start : block.stop],))[0] for classes in objects.values())
            if parts not in made:
                part_of = dict(zip(objects, parts, strict=True))
                made[parts] = Spread(
                    {plan: [part_of[id(classes)] for classes in slots] for plan, slots in self.by_plan.items()}
                )
            spreads.append(made[parts])
        return spreads


def spread_of(
    plan: Plan, arguments: Sequence[Classes | None], topology: Topology, own: Sequence[int] | None = None
) -> Spread:
    """The spread of a plan whose parameter leaves have these classes; None where all devices agree. Where this process
    has only some of its `own`, the classes are those of these, and devices elsewhere count as different."""
    following = _Following(topology)
    same = (0,) * topology.count
    if own is not None:
        arguments = [None if classes is None else _everywhere(classes, topology.count, own) for classes in arguments]
    following.join(plan, plan.parameters, [same if classes is None else classes for classes in arguments])
    following.follow_all(plan)
    return Spread(following.by_plan, own)


def _everywhere(classes: Classes, count: int, own: Sequence[int]) -> Classes:
    """The classes of all devices, of which `own` have these, and no others agree with any."""
    by_device = dict(zip(own, classes, strict=True))
    numbers: dict[Any, int] = {}
    keys = (by_device.get(device, f"device {device}") for device in range(count))
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def draws_alike(plan: Plan, topology: Topology) -> bool:
    """Whether devices that are given different values all draw the same random numbers: none takes a way of its own, or
    draws within bounds of its own."""
    spread = spread_of(plan, [tuple(range(topology.count))] * len(plan.parameters), topology)
    pending, seen = [plan], {id(plan)}
    while pending:
        current = pending.pop()
        slots = spread.by_plan.get(id(current), [])
        for step in current.steps:
            deciding: list[Classes] = []
            if isinstance(step.flow, Conditional):
                deciding = [slots[step.operands[0]]]
            elif isinstance(step.flow, While):
                condition = step.flow.condition
                deciding = [spread.by_plan[id(condition)][slot] for slot in condition.results]
            elif step.kernel is not None and not step.is_pure:
                deciding = [slots[slot] for slot in step.operands]
            if any(map(max, deciding)):
                return False
            inner = [inner_plan for inner_plan in inner_plans(step.flow) if id(inner_plan) not in seen]
            seen.update(map(id, inner))
            pending += inner
    return True


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
        for slot, partition in zip(taken, classes, strict=True):
            if partition != slots[slot]:
                finer = joined((slots[slot], partition))[0]
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
        entry = entry_of(step.instruction)
        has_own_groups = step.flow.groups is not None
        places_matter = entry is None or (entry.exchange is not None and not entry.gives_same)
        keys: dict[int, tuple[int, int]] = {}
        teams: dict[tuple[int, ...], int] = {}
        for group in groups_at(step, self.topology):
            members = tuple(held[device] for device in group.values())
            if has_own_groups:
                members += tuple(group)
            team = teams.setdefault(members, len(teams))
            for place, device in enumerate(group.values()):
                keys[device] = team, place if places_matter else 0
        numbers: dict[tuple[int, int], int] = {}
        return tuple(numbers.setdefault(keys[device], len(numbers)) for device in range(self.topology.count))


_NEXT_TO_NOTHING = 1 << 20
"""Querying the free memory takes longer than allocating this many bytes."""
_LISTED = 5
_OWNERSHIP_PATTERNS = 16
"""The memory of a callee is estimated for this many sets of dying arguments; for others, as if none died."""


class _Liveness:
    """The buffers of one plan, as its steps come and go."""

    def __init__(self, plan: Plan, owned: Sequence[bool], spread: Spread | None = None) -> None:
        """`owned` says for each parameter leaf whether its buffer may die within the plan."""
        self.declared = [shape.byte_size for shape in plan.slot_shapes]
        self.sizes = self.declared.copy()
        if spread is not None:
            self.sizes = [size * count for size, count in zip(self.sizes, spread.counts(plan), strict=True)]
        for slot, is_owned in zip(plan.parameters, owned, strict=True):
            if not is_owned:
                self.sizes[slot] = 0
        for slot in plan.constants:
            self.sizes[slot] = 0
        self.buffer = list(range(len(self.sizes)))
        self.users = [0] * len(self.sizes)
        self.live = 0
        dead = set(plan.dead_on_entry)
        for slot in plan.parameters:
            if slot not in dead:
                self.add(slot)

    def add(self, slot: int) -> None:
        self.users[self.buffer[slot]] += 1
        if self.buffer[slot] == slot:
            self.live += self.sizes[slot]

    def drop(self, slot: int) -> None:
        buffer = self.buffer[slot]
        self.users[buffer] -= 1
        if self.users[buffer] == 0:
            self.live -= self.sizes[buffer]

    def enter(self, step: Step) -> None:
        """Take in a step's results."""
        if step.operands and step.kernel is not None and step.kernel.is_view:
            self.buffer[step.result] = self.buffer[step.operands[0]]
        for slot in step.results:
            self.add(slot)

    def leave(self, step: Step) -> None:
        for slot in step.dead:
            self.drop(slot)

    def dying(self, step: Step) -> list[int]:
        """For each operand of a step that runs plans, how many bytes of this run they may free with it.

        A buffer that is passed several times counts once, and no more of one than the operand shows.
        """
        drops = Counter(self.buffer[slot] for slot in step.dead)
        free = {buffer for buffer, count in drops.items() if self.users[buffer] == count and self.sizes[buffer]}
        byte_counts, dead = [], set(step.dead)
        for slot in step.operands:
            buffer = self.buffer[slot]
            is_free = slot in dead and buffer in free
            free.discard(buffer)
            byte_counts.append(min(self.sizes[buffer], self.declared[slot]) if is_free else 0)
        return byte_counts


def annotate_peaks_within(plan: Plan) -> None:
    """Estimate what the plans that a plan's steps run allocate; what runs within those is annotated already.

    Arguments count as a loop body's own where it replaces them; a loop-invariant leaf stays its caller's.
    """
    for step in plan.steps:
        for inner in inner_plans(step.flow):
            nothing = (False,) * len(inner.parameters)
            if isinstance(step.flow, While) and inner is step.flow.body:
                if inner.body_peak_bytes is None:
                    owned = [not inner.is_invariant(leaf) for leaf in range(len(inner.parameters))]
                    inner.body_peak_bytes, _ = _peak(inner, owned)
            elif nothing not in inner.peaks_by_ownership:
                inner.peaks_by_ownership[nothing], _ = _peak(inner, nothing)


def _peak(
    plan: Plan, owned: Sequence[bool], spread: Spread | None = None, *, is_nested: bool = False
) -> tuple[int, Step | None]:
    """The most bytes alive at once, and at which step: on one device, or with a spread on all of them.

    Where it `is_nested`, plans that its steps run are not estimated again, because they may be nested to any depth.
    """
    liveness = _Liveness(plan, owned, spread)
    counts = [] if spread is None else spread.counts(plan)
    peak, where = liveness.live, None
    for step in plan.steps:
        if step.function is not None or isinstance(step.flow, COMMUNICATION):
            liveness.enter(step)
            total = liveness.live + step.extra_bytes
            if spread is not None:
                total -= _freed_by_class(step, liveness, counts)
        elif isinstance(step.flow, (Invocation, While, Conditional)):
            # The results of a flow are part of what its plans allocate.
            step.extra_bytes = _flow_bytes(step, liveness.dying(step), is_nested=is_nested)
            factor = 1.0 if spread is None else max(map(spread.factor, inner_plans(step.flow)))
            total = liveness.live + int(step.extra_bytes * factor)
            liveness.enter(step)
        else:
            continue
        if total > peak or where is None:
            peak, where = max(total, peak), step
        liveness.leave(step)
        if liveness.live > peak:
            # Devices on ways of their own have a result each.
            peak, where = liveness.live, step
    return peak, where


def _freed_by_class(step: Step, liveness: _Liveness, counts: Sequence[int]) -> int:
    """What a kernel that runs once per class of devices frees of its operands before its last run."""
    dying = sum(liveness.sizes[slot] for slot in set(step.operands) & set(step.dead) if counts[slot] > 1)
    most = max((counts[slot] for slot in step.results), default=1)
    made = sum(liveness.sizes[slot] for slot in step.results)
    return min(dying, made) * (most - 1) // most


def _flow_bytes(step: Step, dying: Sequence[int], *, is_nested: bool) -> int:
    """What the plans of a step allocate beyond its operands, of each of which so many bytes may be freed on the way."""
    flow = step.flow
    if isinstance(flow, Invocation):
        return _beyond(flow.plan, dying, is_nested=is_nested)
    if isinstance(flow, Conditional):
        return max(
            _beyond(branch.plan, dying[branch.start : branch.stop], is_nested=is_nested) for branch in flow.branches
        )
    if isinstance(flow, While):
        replaced = [not flow.body.is_invariant(leaf) for leaf in range(len(step.operands))]
        own = sum(freed for freed, changes in zip(dying, replaced, strict=True) if changes)
        carried = sum(
            flow.body.slot_shapes[slot].byte_size
            for slot, changes in zip(flow.body.parameters, replaced, strict=True)
            if changes
        )
        condition = flow.condition.peaks_by_ownership[(False,) * len(flow.condition.parameters)]
        return max(flow.body.body_peak_bytes or 0, carried + condition) - own + sum(flow.sums.values())
    return 0


def _beyond(callee: Plan, dying: Sequence[int], *, is_nested: bool) -> int:
    peaks = callee.peaks_by_ownership
    pattern = tuple(freed > 0 for freed in dying)
    if pattern not in peaks:
        if is_nested or len(peaks) >= _OWNERSHIP_PATTERNS:
            return peaks[(False,) * len(pattern)]
        peaks[pattern], _ = _peak(callee, pattern, is_nested=True)
    return peaks[pattern] - sum(dying)


def _largest_buffers(plan: Plan, where: Step | None, spread: Spread | None) -> list[str]:
    """The largest values that are alive at a plan's peak, in words."""
    lines: list[str] = []
    if where is None:
        return lines
    liveness = _Liveness(plan, [False] * len(plan.parameters), spread)
    counts = [1] * len(plan.slot_shapes) if spread is None else spread.counts(plan)
    origin: dict[int, Step] = {}
    for step in plan.steps:
        for slot in step.results:
            origin.setdefault(slot, step)
        liveness.enter(step)
        if step is where:
            break
        liveness.leave(step)
    sizes = [
        (liveness.sizes[slot], slot)
        for slot in origin
        if liveness.users[liveness.buffer[slot]] > 0 and liveness.buffer[slot] == slot and liveness.sizes[slot]
    ]
    for size, slot in sorted(sizes, reverse=True)[:_LISTED]:
        step = origin[slot]
        times = f"{counts[slot]} × " if counts[slot] > 1 else ""
        lines.append(
            f"  {byte_text(size):>10}  {times}{plan.slot_shapes[slot]} of %{step.instruction.name} in "
            f"{step.scope.computation.name}"
        )
    if where.flow is not None and where.extra_bytes:
        lines.append(
            f"  {byte_text(where.extra_bytes):>10}  within %{where.instruction.name} in {where.scope.computation.name}"
        )
    elif where.extra_bytes:
        lines.append(f"  {byte_text(where.extra_bytes):>10}  temporaries of %{where.instruction.name}")
    return lines


def _copied_results(plan: Plan) -> list[str]:
    """The largest results that are parameters or views of them, which a run copies for the caller."""
    shapes = sorted((plan.slot_shapes[slot] for slot in plan.results), key=lambda shape: shape.byte_size, reverse=True)
    return [f"  {byte_text(shape.byte_size):>10}  {shape} of the result, a copy" for shape in shapes[:_LISTED]]


def require_memory(plan: Plan, limit: int | None, spread: Spread | None = None, sharing: int = 1) -> None:
    """Raise ResourceError where a run of `plan` would allocate more than `limit` bytes, or than the default limit.

    With a spread the run is one of many devices. The default limit is not worked out for a run that takes next to
    nothing; so many processes are `sharing` this machine's memory.
    """
    peak, where = entry_peak_bytes(plan), plan.peak_step
    if limit is None and spread is None and peak <= _NEXT_TO_NOTHING:
        return
    devices = ""
    if spread is not None:
        alone = peak
        peak, where = peak_of_devices(plan, spread)
        number = len(spread.own or ())
        devices = f" on {f'the {number} devices of a rank' if number else 'all devices'} ({byte_text(alone)} on one)"
    allowed = memory_limit_bytes(limit)
    if limit is None and allowed is not None and peak > allowed // sharing:
        # What modules keep for their next runs is not free, but may be.
        release_memory()
        allowed = memory_limit_bytes(limit)
    if limit is None and allowed is not None:
        allowed //= sharing
    if allowed is None or peak <= allowed:
        return
    buffers = "\n".join(_largest_buffers(plan, where, spread) or _copied_results(plan))
    at = f" at %{where.instruction.name}" if where is not None else ""
    source = "the limit that was given" if limit is not None else "80 % of what this machine has free"
    if sharing > 1 and limit is None:
        source += f" for each of its {sharing} ranks"
    raise ResourceError(
        f"running {plan.computation.name} would take about {byte_text(peak)}{devices} beyond its inputs{at}, more than "
        f"{byte_text(allowed)}, {source}. The largest buffers then:\n{buffers}\n"
        "Run one of its computations alone, or a smaller module, or raise the memory limit."
    )


def entry_peak_bytes(plan: Plan) -> int:
    """The estimated peak of a run whose arguments belong to the caller; copies made of aliased results included."""
    if plan.entry_peak_bytes is None:
        peak, plan.peak_step = _peak(plan, [False] * len(plan.parameters))
        fresh = {step.result for step in plan.steps if step.kernel is not None and not step.kernel.is_view}
        copied = sum(plan.slot_shapes[slot].byte_size for slot in plan.results if slot not in fresh)
        kept = sum(plan.slot_shapes[slot].byte_size for slot in set(plan.results) & fresh)
        plan.entry_peak_bytes = max(peak, copied + kept)
    return plan.entry_peak_bytes


def peak_of_devices(plan: Plan, spread: Spread) -> tuple[int, Step | None]:
    """The estimated peak of a run of several devices, and at which step it is."""
    peak, where = _peak(plan, [False] * len(plan.parameters), spread)
    return max(peak, entry_peak_bytes(plan)), where


_LARGE_BYTES = 1 << 18
"""Where less is made, freeing operands early is not worth the looking."""


def with_lifetimes(plan: Plan, *, may_reuse: bool) -> Plan:
    """The plan, ready to run: its steps are its own, and know what dies with them.

    Where arrays may be reused, a step also knows which operand's array it may write to (`Kernel.overwrites`): of one
    that dies with it, and occurs once. Whether anybody else holds that array only a run can tell.
    """
    plan.steps = [step.copied() for step in plan.steps]
    needed = set(plan.results) | plan.constants.keys()
    for step in reversed(plan.steps):
        touched = dict.fromkeys((*step.operands, *step.results))
        step.dead = tuple(slot for slot in touched if slot not in needed)
        step.is_large = getattr(step.instruction.shape, "byte_size", 0) >= _LARGE_BYTES
        # What died here may live on once the plan is another: a value that has moved out of a loop.
        step.reused = NO_SLOT
        if may_reuse and step.kernel is not None and step.kernel.overwrites is not None:
            target = step.operands[step.kernel.overwrites]
            if target in step.dead and step.operands.count(target) == 1:
                step.reused = target
        needed.update(touched)
    plan.dead_on_entry = tuple(slot for slot in plan.parameters if slot not in needed)
    plan.initial = [plan.constants.get(slot) for slot in range(len(plan.slot_shapes))]
    plan.depth = _depth(plan)
    annotate_peaks_within(plan)
    plan.is_finished = True
    return plan


def _depth(plan: Plan) -> int | None:
    """How deep the plans that a plan runs nest; None where one of them exchanges values with others."""
    most = 0
    for step in plan.steps:
        if step.function is not None:
            continue
        inner = inner_plans(step.flow)
        if not inner:
            return None
        for plan_within in inner:
            if plan_within.depth is None:
                return None
            most = max(most, plan_within.depth)
    return most + 1
