"""Cropping: elementwise steps whose results are only sliced compute no more than the slices show.

Optimizers copy what several fusions need into each of them, and a fusion that needs a part of it slices that out at its
end. XLA computes such a fusion element by element, from the result back; here, the operands are sliced instead of the
results. Only steps whose results are exact, or rounded once, are cropped: others may round otherwise in other loops of
NumPy's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import TypeAlias

import attrs

from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.kernels import InstructionKernel, Leaf, View
from hloexec.engine.plan.passes.fuse import is_scalar_broadcast
from hloexec.engine.plan.regions import LEAST_BYTES
from hloexec.engine.plan.regions.row_forms import row_form
from hloexec.engine.plan.steps import Plan, Step
from hloexec.ops.movement.strided import Indexing, Spreading
from hloexec.ops.traits import Rounding

Box: TypeAlias = tuple[range, ...]
"""Some neighbouring elements of an array: where they lie in each dimension."""

_LEAST_SAVING = 2
"""How many times as many elements as are needed a step must have to be cropped."""


def with_values_cropped(plan: Plan) -> Plan:
    """The plan with all such steps cropped."""
    makers = {step.result: step for step in plan.steps}
    whole: set[int] = set()
    while True:
        boxes = _needed(plan, whole)
        torn = {slot for slot in boxes if _tears(makers[slot], makers, boxes, plan.slot_shapes)}
        if not torn:
            return _Cropping(plan, boxes, makers).cropped() if boxes else plan
        whole |= torn


def _tears(step: Step, makers: Mapping[int, Step], boxes: Mapping[int, Box], shapes: Sequence[Leaf]) -> bool:
    """Whether an operand is computed by rows, as the step is: in one region, it need not exist as a whole array."""
    for slot in step.operands:
        form = row_form(makers[slot], shapes) if slot in makers and slot not in boxes else None
        if form is not None and not form.is_view and max(form.rows, default=1) > 1:
            return True
    return False


def _needed(plan: Plan, whole: Collection[int]) -> dict[int, Box]:
    """What is needed of the results of the steps to be cropped, by slot; those in `whole` are not."""
    shapes = plan.slot_shapes
    needed: dict[int, Box | None] = dict.fromkeys(plan.results)
    found: dict[int, Box] = {}
    for step in reversed(plan.steps):
        slices = _slices(step, shapes)
        box = needed.get(step.result)
        if slices is not None:
            needs: Sequence[Box | None] = [tuple(range(part[0], part[-1] + 1) for part in slices)]
        elif box is not None and step.result not in whole and _can_be_cropped(step, shapes, box):
            found[step.result] = box
            needs = [box if getattr(shapes[slot], "dimensions", ()) else None for slot in step.operands]
        else:
            needs = [None] * len(step.operands)
        for slot, need in zip(step.operands, needs, strict=True):
            before = needed.get(slot, need)
            needed[slot] = None if before is None or need is None else tuple(map(_hull, before, need))
    return found


def _hull(first: range, second: range) -> range:
    return range(min(first.start, second.start), max(first.stop, second.stop))


def _slices(step: Step, shapes: Sequence[Leaf]) -> Box | None:
    """The indices that a slice takes in each dimension; None where a step is something else."""
    kernel = step.kernel
    if not isinstance(kernel, InstructionKernel) or not kernel.is_bare or not isinstance(kernel.bound, Indexing):
        return None
    shape = shapes[step.operands[0]]
    index = kernel.bound.index
    if not isinstance(shape, ArrayShape) or len(index) != shape.rank or not all(type(part) is slice for part in index):
        return None
    found = tuple(range(size)[part] for size, part in zip(shape.dimensions, index, strict=True))
    return found if found and all(map(len, found)) else None


def _can_be_cropped(step: Step, shapes: Sequence[Leaf], box: Box) -> bool:
    kernel, shape = step.kernel, shapes[step.result]
    if not isinstance(kernel, InstructionKernel) or not kernel.is_bare or not kernel.is_pure or kernel.random:
        return False
    entry = kernel.entry
    if entry is None or not entry.is_elementwise or kernel.orders is not None:
        return False
    if entry.rounding not in (Rounding.NONE, Rounding.ONCE) or not isinstance(shape, ArrayShape):
        return False
    operands = [shapes[slot] for slot in step.operands]
    if any(not isinstance(each, ArrayShape) or each.dimensions not in ((), shape.dimensions) for each in operands):
        return False
    is_static = not any(isinstance(each, ArrayShape) and each.is_dynamic for each in (shape, *operands))
    is_worth_it = shape.byte_size >= LEAST_BYTES and _LEAST_SAVING * prod(map(len, box)) <= shape.element_count
    return is_static and is_worth_it


class _Cropping:
    """Makes the steps of the new plan."""

    def __init__(self, plan: Plan, boxes: Mapping[int, Box], makers: Mapping[int, Step]) -> None:
        self._plan = plan
        self._boxes = boxes
        self._makers = makers
        self._parts: dict[tuple[int, Box], int] = {}
        """The slots that hold parts of slots."""
        self._steps: list[Step] = []

    def cropped(self) -> Plan:
        """The plan."""
        shapes = self._plan.slot_shapes
        for step in self._plan.steps:
            slices = _slices(step, shapes)
            if step.result in self._boxes:
                box = self._boxes[step.result]
                operands = tuple(self._part(slot, box, step) for slot in step.operands)
                self._add(attrs.evolve(step, operand_trees=operands), step.result, box)
            elif slices is not None and step.operands[0] in self._boxes:
                box = self._boxes[step.operands[0]]
                kernel = View(Indexing(tuple(map(_within, slices, box))))
                source = self._parts[step.operands[0], box]
                self._steps.append(attrs.evolve(step, operand_trees=(source,), kernel=kernel))
            else:
                self._steps.append(step)
        return attrs.evolve(self._plan, steps=self._steps)

    def _part(self, slot: int, box: Box, step: Step) -> int:
        """The slot that holds what lies in a box of another one, for a step that reads it."""
        shape = self._plan.slot_shapes[slot]
        assert isinstance(shape, ArrayShape)
        if not shape.dimensions or (slot, box) in self._parts:
            return self._parts.get((slot, box), slot)
        maker = self._makers.get(slot)
        if maker is not None and is_scalar_broadcast(maker, self._plan.slot_shapes):
            kernel = maker.kernel
            assert isinstance(kernel, InstructionKernel)
            function = Spreading((), tuple(map(len, box)), is_copied=False)
            repeated = attrs.evolve(kernel, function=function, bound=function)
            return self._add(attrs.evolve(maker, kernel=repeated, is_silent=True), slot, box)
        outer = self._boxes.get(slot, tuple(map(range, shape.dimensions)))
        source = self._parts[slot, outer] if slot in self._boxes else slot
        view = View(Indexing(tuple(map(_within, box, outer))))
        return self._add(attrs.evolve(step, operand_trees=(source,), kernel=view, is_silent=True), slot, box)

    def _add(self, step: Step, slot: int, box: Box) -> int:
        """Add a step like this one that gives what lies in a box of a slot, and return the slot of that."""
        shape = self._plan.slot_shapes[slot]
        assert isinstance(shape, ArrayShape)
        part = ArrayShape(shape.element_type, tuple(map(len, box)))
        found = self._parts[slot, box] = self._plan.new_slot(part)
        instruction = attrs.evolve(step.instruction, shape=part)
        self._steps.append(attrs.evolve(step, instruction=instruction, tree=found))
        return found


def _within(part: range, box: range) -> slice:
    """The slice of a box that is a part of it."""
    return slice(part.start - box.start, part[-1] + 1 - box.start, part.step)
