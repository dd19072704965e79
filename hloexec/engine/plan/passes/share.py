"""Sharing: what an optimizer has copied into several fusions is computed once.

In a fusion, an instruction costs XLA next to nothing, so it copies what is cheap into each fusion that needs it. Here,
each instruction goes through an array. Copies are found by what they compute from what, in whatever fusions they are.
Two large ones outside of fusions stay: what an optimizer computes there again, it does to save memory
(rematerialization). For the same reason, no large value lives on where arrays take the most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import attrs
import numpy as np

from hloexec.engine.plan.passes.cse import SHARED_BYTES, Numbering, moved
from hloexec.engine.plan.steps import Plan, Scope, Step, inner_plans
from hloexec.ops.registry import is_elementwise, traits_of


def with_copies_shared(plan: Plan) -> Plan:
    """The plan without such copies, and without what nothing needs."""
    originals = _originals(plan)
    memory = _Memory(plan) if originals else None
    needed = {*plan.results}
    copies: dict[int, int] = {}
    kept: list[Step] = []
    for step in reversed(plan.steps):
        if step.is_pure and needed.isdisjoint(step.results):
            continue
        original = originals.get(step.result)
        if memory is not None and original is not None and memory.keeps(original, step.result):
            copies[step.result] = original
            needed.add(original)
        else:
            needed.update(step.operands)
            kept.append(step)
    if len(kept) == len(plan.steps):
        return plan
    return attrs.evolve(plan, steps=[moved(step, copies) for step in reversed(kept)])


def _originals(plan: Plan) -> dict[int, int]:
    """The slots of copies, and those of what they are copies of."""
    numbering = Numbering(None)
    numbers = numbering.of_constants(plan)
    first: dict[int, Step] = {}
    found: dict[int, int] = {}
    results = {*plan.results}
    for step in plan.steps:
        number = numbering.of_step(plan, step, numbers)
        if number is None:
            continue
        numbers[step.result] = number
        original = first.setdefault(number, step)
        if original is step or step.result in results:
            continue
        if plan.slot_shapes[step.result].byte_size <= SHARED_BYTES:
            # What loops carry is recognised by the step that makes it.
            is_shared = original.result not in results
        else:
            is_shared = _is_fused(step.scope) or _is_fused(original.scope)
        if is_shared:
            found[step.result] = original.result
    return found


def _is_fused(scope: Scope) -> bool:
    """Whether a scope is that of a fusion, or of something that one calls."""
    current: Scope | None = scope
    while current is not None:
        if current.caller is not None and traits_of(current.caller).fuses:
            return True
        current = current.parent
    return False


class _Memory:
    """What lives when in a plan as it is written, where fusions keep nothing but their results. That is what a run may
    take, though some instructions read whole arrays within fusions."""

    def __init__(self, plan: Plan) -> None:
        self._sizes = [shape.byte_size for shape in plan.slot_shapes]
        self._end = len(plan.steps)
        self._shown = list(range(len(self._sizes)))
        """The slot whose memory a slot shows."""
        self._lives: dict[int, tuple[int, int]] = {}
        """When a value is made and when it is last read, as positions of steps."""
        self._arrays: set[int] = set()
        """The slots whose values are arrays."""
        whole: set[int] = set()
        scopes: dict[int, Scope] = {}
        fused: dict[Scope, bool] = {}
        for position, step in enumerate(plan.steps):
            operands = {self._shown[slot] for slot in step.operands}
            self._read(operands, position)
            self._arrays |= {slot for slot in operands if scopes.get(slot) is not step.scope}
            if step.kernel is not None and step.kernel.is_view and operands:
                self._shown[step.result] = self._shown[step.operands[0]]
                continue
            if not is_elementwise(step.instruction):
                whole |= operands
            if step.scope not in fused:
                fused[step.scope] = _is_fused(step.scope)
            for slot in step.results:
                scopes[slot] = step.scope
                self._lives[slot] = position, position
                if not fused[step.scope]:
                    self._arrays.add(slot)
        results = {self._shown[slot] for slot in plan.results}
        self._read(results, self._end)
        self._arrays |= results
        # A result may take the place of what dies with it, and what loops replace dies within them.
        live = self._live_bytes(self._arrays, 0)
        self._most = max(
            (int(live[position]) for position, step in enumerate(plan.steps) if not inner_plans(step.flow)), default=0
        )
        self._arrays |= whole
        self._live = self._live_bytes(self._arrays, 1)

    def _read(self, slots: Iterable[int], position: int) -> None:
        for slot in slots:
            if slot in self._lives:
                self._lives[slot] = self._lives[slot][0], position

    def _live_bytes(self, arrays: Collection[int], further: int) -> Any:
        """The bytes of these arrays that are alive at each step, if they are for so many steps after their last use."""
        changes = np.zeros(self._end + 2, np.int64)
        for slot in self._lives.keys() & arrays:
            start, stop = self._lives[slot]
            changes[start] += self._sizes[slot]
            changes[stop + further] -= self._sizes[slot]
        return changes.cumsum()

    def keeps(self, original: int, copy: int) -> bool:
        """Whether a value may live on for those who read a copy of it; if so, it does."""
        slot, other = self._shown[original], self._shown[copy]
        if slot == other or self._sizes[slot] <= SHARED_BYTES or slot not in self._lives:
            return True
        start, stop = self._lives[slot]
        first, last = self._lives[other]
        begin = stop + 1 if slot in self._arrays else start
        spared = self._sizes[other] if other in self._arrays else 0
        self._live[first : last + 1] -= spared
        if begin <= last and self._live[begin : last + 1].max() + self._sizes[slot] > self._most:
            self._live[first : last + 1] += spared
            return False
        self._live[begin : last + 1] += self._sizes[slot]
        self._arrays.add(slot)
        self._arrays.discard(other)
        self._lives[slot] = start, max(stop, last)
        return True
