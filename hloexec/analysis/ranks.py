"""What several processes, or ranks, would hold and send if they ran a module together, from its plan alone.

Each rank holds a block of the devices, and one value for those of them that agree. That devices agree is what
`engine.plan.memory` says before a run: those that agree by chance count as different. What ranks send is what
`engine.devices.traffic` says for each collective, as often as it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod

from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.arguments import require_module
from hloexec.core.ir import Module
from hloexec.core.places import spell_name
from hloexec.core.structs import define, frozen, told
from hloexec.core.values import Described
from hloexec.core.wording import byte_text, counted
from hloexec.engine.devices.ranks import blocks_of
from hloexec.engine.devices.topology import ToDevice, Topology, ends_of, topology_of
from hloexec.engine.devices.traffic import Bundle, Network, Traffic, network_of
from hloexec.engine.devices.varying import Classes
from hloexec.engine.exec.lockstep.communication import require_devices
from hloexec.engine.exec.running import plan_of
from hloexec.engine.plan.memory import Spread, peak_of_devices, spread_of
from hloexec.engine.plan.steps import Conditional, Exchange, Plan, Step, While, groups_at, inner_plans
from hloexec.errors import unwarned
from hloexec.ops.registry import traits_of
from hloexec.ops.traits import Route


@frozen
class RankUsage:
    """What one rank holds and sends. Where inputs count as equal, all devices are given the same arrays; otherwise each
    is given arrays of its own."""

    rank: int
    """The number of the rank."""
    first_device: int
    """The first of its devices, which are neighbours."""
    device_count: int
    """How many devices it has."""
    input_bytes: int
    """The inputs of its devices, if all are different."""
    equal_input_bytes: int
    """The inputs of its devices, if all devices have the same."""
    peak_bytes: int
    """The most that its run takes beyond the inputs, results included, if inputs are different."""
    equal_peak_bytes: int
    """The same, if all devices have the same inputs."""
    result_bytes: int
    """The results of its devices, if inputs are different."""
    equal_result_bytes: int
    """The same, if all devices have the same inputs."""
    sent_bytes: int
    """What it sends to other ranks, if inputs are different."""
    received_bytes: int
    """What it receives from other ranks, if inputs are different."""
    messages: int
    """How many messages it sends or receives, whichever are more."""

    @property
    @told
    def bytes(self) -> int:
        """The inputs and the peak beyond them, if inputs are different."""
        return self.input_bytes + self.peak_bytes

    @property
    @told
    def equal_bytes(self) -> int:
        """The inputs and the peak beyond them, if all devices have the same inputs."""
        return self.equal_input_bytes + self.equal_peak_bytes


@frozen
class CollectiveUsage:
    """What an instruction makes ranks send one another, if inputs are different, in all its runs."""

    computation: str
    instruction: str
    opcode: str
    runs: int
    """How often it runs, with loops of unknown trip counts and branches of conditionals taken once."""
    is_counted: bool
    """Whether all loops around it are known to run so often, and it is in no branch of a conditional."""
    sent_bytes: int
    """The most that a rank sends."""
    received_bytes: int
    """The most that a rank receives."""
    total_bytes: int
    """What all ranks send."""
    messages: int
    """The most messages that a rank sends or receives."""
    seconds: float | None
    """The least time that it takes on the network; None where that was not said."""


@frozen(slots=False)
class DistributedUsage(Described):
    """The result of `distributed_usage`."""

    module_name: str
    """The module's name."""
    device_count: int
    """How many devices the module runs on."""
    network: Network | None
    """How fast ranks send; None where that was not said."""
    ranks: tuple[RankUsage, ...]
    """What each rank holds and sends."""
    collectives: tuple[CollectiveUsage, ...]
    """The instructions that make ranks send something, those that take longest or send most first."""
    unknown: tuple[str, ...]
    """Instructions of which only a run tells what they send, which counts as nothing."""

    @cached_property
    @told
    def largest(self) -> RankUsage:
        """The rank that needs most memory, if inputs are different."""
        return max(self.ranks, key=lambda rank: rank.bytes)

    @property
    @told
    def total_bytes(self) -> int:
        """What all ranks send."""
        return sum(rank.sent_bytes for rank in self.ranks)

    @property
    @told
    def seconds(self) -> float | None:
        """The least time that all messages take; None where nothing is said of the network."""
        if self.network is None:
            return None
        return sum(collective.seconds or 0.0 for collective in self.collectives)

    def __str__(self) -> str:
        held, sent = byte_text(self.largest.bytes), byte_text(self.total_bytes)
        devices, ranks = counted(self.device_count, "device"), counted(len(self.ranks), "rank")
        return f"{self.module_name}: {devices} on {ranks}, each with at most {held}, which send {sent}"


def distributed_usage(
    module: Module,
    ranks: int,
    network: str | None = None,
    *,
    replicas: int | None = None,
    partitions: int | None = None,
) -> DistributedUsage:
    """Plan a run of a module's devices on several ranks, and say what each would hold and send; nothing runs.

    Ranks hold blocks of neighbouring devices. `network` describes what they send over, as a bandwidth and perhaps a
    latency: `"100Gbps,2us"`. `replicas` and `partitions` are those of `run_devices`. Raises what `run_devices` raises
    before a run, and InputError where there are fewer devices than ranks.
    """
    require_module(module)
    topology = topology_of(module, replicas, partitions)
    blocks = blocks_of(topology.count, ranks)
    speed = None if network is None else network_of(network)
    # The substitutes for unknown constants do not affect what a run holds.
    with unwarned():
        plan = plan_of(module)
    if plan.communication:
        require_devices(plan, topology)
    every = tuple(range(topology.count))
    spread = spread_of(plan, [every] * len(plan.parameters), topology)
    equal_spread = spread_of(plan, [None] * len(plan.parameters), topology)
    sending = _Sending(topology, [rank for rank, block in enumerate(blocks) for _ in block], spread, speed)
    for inner, runs, is_counted in _runs_of(module, plan):
        sending.add_plan(inner, runs, is_counted=is_counted)
    rows = zip(blocks, _held(plan, spread, blocks), _held(plan, equal_spread, blocks), strict=True)
    input_bytes = sum(plan.slot_shapes[slot].byte_size for slot in plan.parameters)
    collectives = [sent.usage() for sent in sending.by_instruction.values()]
    return DistributedUsage(
        module_name=module.name,
        device_count=topology.count,
        network=speed,
        ranks=tuple(
            RankUsage(
                rank,
                block.start,
                len(block),
                input_bytes * len(block),
                input_bytes,
                held[0],
                equal[0],
                held[1],
                equal[1],
                sending.total.sent_bytes[rank],
                sending.total.received_bytes[rank],
                sending.total.messages[rank],
            )
            for rank, (block, held, equal) in enumerate(rows)
        ),
        collectives=tuple(sorted(collectives, key=lambda usage: (-(usage.seconds or 0), -usage.total_bytes))),
        unknown=tuple(sending.unknown),
    )


def _held(plan: Plan, spread: Spread, blocks: Sequence[range]) -> Iterator[tuple[int, int]]:
    """The most bytes that a run of each block takes beyond its inputs, and those of its results."""
    held: dict[int, tuple[int, int]] = {}
    for part in spread.within(blocks):
        if id(part) not in held:
            counts = part.counts(plan)
            results = sum(counts[slot] * plan.slot_shapes[slot].byte_size for slot in plan.results)
            held[id(part)] = max(peak_of_devices(plan, part)[0], results), results
        yield held[id(part)]


def _runs_of(module: Module, entry: Plan) -> Iterator[tuple[Plan, int, bool]]:
    """The plans that a plan runs, itself included; how often, and whether that is certain."""
    order: list[Plan] = []
    state: set[Plan] = set()
    stack = [(entry, False)]
    while stack:
        plan, is_done = stack.pop()
        if is_done:
            order.append(plan)
        elif plan not in state:
            state.add(plan)
            stack.append((plan, True))
            stack.extend((inner, False) for step in plan.steps for inner in inner_plans(step.flow))
    runs, counted_plans = dict.fromkeys(order, 0), dict.fromkeys(order, True)
    runs[entry] = 1
    for plan in reversed(order):
        yield plan, runs[plan], counted_plans[plan]
        for step in plan.steps:
            is_counted, times = counted_plans[plan], 1
            if isinstance(step.flow, While):
                trips = loop_trips(module, step.scope.computation, step.instruction)
                is_counted, times = is_counted and trips is not None, 1 if trips is None else trips
            for inner in inner_plans(step.flow):
                is_condition = isinstance(step.flow, While) and inner is step.flow.condition
                runs[inner] += runs[plan] * (times + is_condition)
                counted_plans[inner] &= is_counted and not isinstance(step.flow, Conditional)


@define(eq=False)
class _Sent:
    """What an instruction makes ranks send."""

    step: Step
    traffic: Traffic
    """In all its runs."""
    seconds: float | None
    runs: int = 0
    is_counted: bool = True

    def usage(self) -> CollectiveUsage:
        return CollectiveUsage(
            self.step.scope.computation.name,
            self.step.instruction.name,
            self.step.instruction.opcode,
            self.runs,
            self.is_counted,
            max(self.traffic.sent_bytes),
            max(self.traffic.received_bytes),
            sum(self.traffic.sent_bytes),
            max(self.traffic.messages),
            self.seconds,
        )


class _Sending:
    """What ranks send, step by step."""

    def __init__(self, topology: Topology, rank_of: Sequence[int], spread: Spread, network: Network | None) -> None:
        self.topology = topology
        self.rank_of = rank_of
        self.spread = spread
        self.network = network
        self.by_instruction: dict[tuple[str, str], _Sent] = {}
        self.total = Traffic.between(rank_of)
        self.unknown: dict[str, None] = {}
        """The instructions of which only a run tells what they send."""

    def add_plan(self, plan: Plan, runs: int, *, is_counted: bool) -> None:
        """Count what the steps of a plan make ranks send, but for the plans that these run."""
        counted_steps: set[tuple[int, str]] = set()
        for step in plan.steps:
            traffic = self._traffic(plan, step)
            if not traffic.crosses:
                continue
            computation, name = step.scope.computation.name, step.instruction.name
            if (computation, name) not in self.by_instruction:
                seconds = None if self.network is None else 0.0
                self.by_instruction[computation, name] = _Sent(step, Traffic.between(self.rank_of), seconds)
            sent = self.by_instruction[computation, name]
            for total in (sent.traffic, self.total):
                total.add(traffic, runs)
            sent.is_counted &= is_counted
            if self.network is not None:
                sent.seconds = (sent.seconds or 0.0) + runs * traffic.seconds(self.network)
            if (id(step.scope), name) not in counted_steps:
                # Where a manual region ends, each array is a step of its own.
                counted_steps.add((id(step.scope), name))
                sent.runs += runs

    def _traffic(self, plan: Plan, step: Step) -> Traffic:
        """What a step makes ranks send once, as far as it can be told."""
        flow, traffic = step.flow, Traffic.between(self.rank_of)
        if isinstance(flow, ToDevice):
            if flow.pairs is None:
                self.unknown[spell_name(step.scope.computation.name, step.instruction.name)] = None
                return traffic
            targets, _ = ends_of(flow.pairs, self.topology)
            pairs = ((source, target) for source, others in targets.items() for target in others)
            traffic.add_pairs(pairs, self._bundles(plan, step))
        elif isinstance(flow, Exchange):
            route, groups = traits_of(step.instruction).route, groups_at(step, self.topology)
            if route is Route.PAIRED:
                sources = {target: source for source, target in step.instruction.attributes.source_target_pairs}
                pairs = (
                    (group[sources[number]], device)
                    for group in groups
                    for number, device in group.items()
                    if sources.get(number) in group
                )
                traffic.add_pairs(pairs, self._bundles(plan, step))
            elif route is Route.COMPUTED:
                if any(len({self.rank_of[device] for device in group.values()}) > 1 for group in groups):
                    self.unknown[spell_name(step.scope.computation.name, step.instruction.name)] = None
            else:
                bundles = self._bundles(plan, step)
                for group in groups:
                    traffic.add_group(route, group.values(), bundles)
        return traffic

    def _bundles(self, plan: Plan, step: Step) -> list[Bundle]:
        """The arrays that a step sends, those that the same devices hold alike together."""
        attributes, slots = step.instruction.attributes, step.operands
        if getattr(attributes, "has_dynamic_root", False):
            slots = slots[:-1]
        sizes = [plan.slot_shapes[slot].byte_size for slot in slots]
        slices = getattr(attributes, "slice_sizes", ())
        if slices:
            types = [plan.slot_shapes[slot].array_shape.element_type for slot in slots]
            sizes = [prod(dims) * entry.byte_size for dims, entry in zip(slices, types, strict=False)]
        classes = self.spread.by_plan[id(plan)]
        bundles: dict[Classes, int] = {}
        for slot, size in zip(slots, sizes, strict=False):
            bundles[classes[slot]] = bundles.get(classes[slot], 0) + size
        return [Bundle(*bundle) for bundle in bundles.items()]
