"""What a program has to do at least: bytes that must move, and operations on numbers; and what hloexec's plan moves.

- *Bytes* that must move are the inputs, read once, and the results, written once. In a warm run they come from memory
  unless all of them fit into the processor's last cache together.
- *Plan bytes* are what the steps of hloexec's plan read and write of inputs and results, and of other values that do
  not fit into that cache, and no less than what must move: how often a run goes over its large data. What a region
  keeps to itself does not move.
- *FLOPs* are a multiplication and an addition per product of a contraction; and for every other instruction that
  computes something, one per element of the largest array that it reads or makes. A function such as `exp` counts once,
  though it takes twenty; what moves elements takes none.

A loop counts as often as it goes round. A step that reads a part of an operand (a slice, a gather) reads as much as it
makes; one that overwrites a part (an update, a scatter) reads its other operands, and writes as much again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

import hloexec
from hloexec.engine.exec.running import plan_of
from hloexec.engine.plan.regions.region import RegionKernel
from hloexec.engine.plan.steps import Plan, Step, inner_plans
from hloexec.ops.costs import contraction_of
from hloexec.ops.registry import traits_of


@attrs.define
class Work:
    """The bytes and operations of one run, as the head of this file defines them."""

    bytes: int = 0
    plan_bytes: int = 0
    flops: int = 0

    def as_json(self) -> dict[str, int]:
        return attrs.asdict(self)


def work_of(module: hloexec.Module, inputs: Sequence[Any], *, cache_bytes: int | None = None) -> Work:
    """Count it in a run on these inputs, which decide how often loops go round."""
    runs = _Runs()
    hloexec.run(module, *inputs, observers=[runs])
    # The same steps as in a run without observers, in a plan of its own.
    plan = plan_of(module, is_observed=True)
    cache = last_cache_bytes() if cache_bytes is None else cache_bytes
    ends = {*plan.parameters, *plan.results}
    found = Work(bytes=_size(plan, plan.parameters) + _size(plan, plan.results))
    for inner, times in _plans(plan, runs):
        for step in inner.steps:
            if step.function is not None and not step.is_shown_only:
                found.plan_bytes += times * sum(
                    size
                    for slot, size in _moved(inner, step)
                    if (inner is plan and slot in ends) or inner.slot_shapes[slot].byte_size > cache
                )
                found.flops += times * sum(_flops(part, inner) for part in _parts(step))
    # Loops have the slots of inputs in plans of their own.
    found.plan_bytes = max(found.plan_bytes, found.bytes)
    return found


def last_cache_bytes() -> int:
    """The size of the largest cache that Linux tells of, of the first processor; 32 MiB where it does not."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]])
    return max(sizes, default=32 << 20)


class _Runs:
    """Counts how often each plan runs, by the first of its instructions that it shows."""

    def __init__(self) -> None:
        self.counts: Counter[Plan] = Counter()
        self._first: dict[Plan, object] = {}

    def on_instruction(self, event: hloexec.Event) -> None:
        scope, context = event.activation
        # Instructions of calls that the plan has inlined have a scope within its own.
        if context is None or scope.parent is not None:
            return
        if self._first.setdefault(context.plan, event.instruction) is event.instruction:
            self.counts[context.plan] += 1


def _plans(plan: Plan, runs: _Runs) -> Iterator[tuple[Plan, int]]:
    """The plan and those that its steps run, each with how often it runs."""
    waiting, seen = [(plan, 1)], {plan}
    while waiting:
        current, times = waiting.pop()
        yield current, times
        for step in current.steps:
            for inner in inner_plans(step.flow):
                if inner not in seen:
                    seen.add(inner)
                    waiting.append((inner, runs.counts[inner]))


def _size(plan: Plan, slots: Sequence[int]) -> int:
    return sum(plan.slot_shapes[slot].byte_size for slot in {*slots} - {*plan.constants})


def _moved(plan: Plan, step: Step) -> Iterator[tuple[int, int]]:
    """The slots that a step reads and writes, and how many bytes of each."""
    assert step.kernel is not None
    if step.kernel.is_view:
        return
    sizes = {slot: plan.slot_shapes[slot].byte_size for slot in (*step.operands, *step.results)}
    read, written = {slot: sizes[slot] for slot in step.operands}, {slot: sizes[slot] for slot in step.results}
    traits = traits_of(step.instruction)
    if len(written) == 1 and not isinstance(step.kernel, RegionKernel):
        (result,) = written
        if step.kernel.overwrites is not None and traits.moves is not None:
            del read[step.operands[step.kernel.overwrites]]
            written[result] = min(sum(read.values()), sizes[result])
        for number in traits.moved_operands(len(step.operands)):
            slot = step.operands[number]
            if slot in read:
                read[slot] = min(read[slot], sizes[result])
    yield from read.items()
    yield from written.items()


def _parts(step: Step) -> list[Step]:
    """The steps that a step consists of."""
    return [part.step for part in step.kernel.region.parts] if isinstance(step.kernel, RegionKernel) else [step]


def _flops(step: Step, plan: Plan) -> int:
    instruction = step.instruction
    traits = traits_of(instruction)
    if traits.moves is not None or step.kernel is None or step.kernel.is_view:
        return 0
    cost = contraction_of(instruction, [operand.shape for operand in step.scope.computation.operands_of(instruction)])
    if cost is not None:
        return cost.flops
    shapes = [plan.slot_shapes[slot] for slot in (*step.operands, *step.results)]
    return max((shape.element_count for shape in shapes if hasattr(shape, "element_count")), default=0)
