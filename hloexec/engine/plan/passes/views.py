"""Views: slices and reshapes of one another become one view, and NumPy's functions broadcast their operands themselves.

In a loop on small arrays, a step that moves no element costs as much as one that computes. What `slice` and `reshape`
do to an array's dimensions is an index, and so is what several of them do one after the other. A function of
elements does not need an operand to be broadcast first if another one has all of the result's dimensions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.kernels import InstructionKernel, View
from hloexec.engine.plan.passes.sharing import moved
from hloexec.engine.plan.steps import Plan, Step
from hloexec.ops.indexing.fast.indexing import Moving, WindowReader, WindowWriter
from hloexec.ops.movement.strided import Indexing, Spreading
from hloexec.ops.traits import Rounding


def with_views_composed(plan: Plan) -> Plan:
    """The plan with such steps made one, and without those that nothing needs any more."""
    makers = {step.result: step for step in plan.steps}
    before = Counter(slot for step in plan.steps for slot in step.operands)
    steps: list[Step] = []
    for step in plan.steps:
        composed = _of_sources(step, makers)
        composed = _composed(composed, makers) or composed
        if isinstance(composed.function, WindowWriter):
            composed = _without_new_dimensions(composed, makers)
        steps += _unspread(composed, makers, plan)
        makers[composed.result] = steps[-1]
    after = Counter(slot for step in steps for slot in step.operands)
    unused = {slot for slot in before if before[slot] and not after[slot]}
    kept = _without_unused(steps, unused, after, plan)
    return plan if len(kept) == len(plan.steps) and not unused else attrs.evolve(plan, steps=kept)


def _movement(step: Step | None, kind: type[Any]) -> Any:
    """The kernel of a step where it moves elements in this way and does nothing else; else None."""
    kernel = None if step is None else step.kernel
    if isinstance(kernel, View):
        return kernel.function if isinstance(kernel.function, kind) else None
    if not isinstance(kernel, InstructionKernel) or not kernel.is_bare or kernel.orders is not None:
        return None
    return kernel.bound if isinstance(kernel.bound, kind) else None


def _of_sources(step: Step, makers: Mapping[int, Step]) -> Step:
    """A step with operands of which views show all, as they are, in the place of these views."""

    whole = {slot: _movement(makers.get(slot), Indexing) for slot in step.operands if step.kernel is not None}
    shown = {slot: makers[slot].operands[0] for slot, view in whole.items() if view and _shows_all(view.index)}
    return moved(step, shown)


def _shows_all(index: Iterable[Any]) -> bool:
    return all(entry is ... or entry == slice(None) for entry in index)


def _composed(step: Step, makers: Mapping[int, Step]) -> Step | None:
    """A view of a view, or of a window, as one of what that shows."""
    own = _movement(step, Indexing)
    inner = None if own is None else makers.get(step.operands[0])
    if inner is None:
        return None
    window = _movement(inner, WindowReader)
    if window is not None:
        moving = window.index
        if not isinstance(moving, Moving) or moving.extent != 1 or not _drops(own.index, moving.axis):
            return None
        reader = WindowReader(attrs.evolve(moving, drops=True))
        return attrs.evolve(step, operand_trees=inner.operand_trees, kernel=View(reader))
    first = _movement(inner, Indexing)
    index = None if first is None else _one_after_the_other(first.index, own.index)
    if index is None:
        return None
    return attrs.evolve(step, operand_trees=(inner.operands[0],), kernel=View(Indexing(index)))


def _drops(index: Iterable[Any], axis: int) -> bool:
    """Whether an index does nothing but drop one dimension, of one element."""
    entries = [entry for entry in index if entry is not ...]
    return (
        all(entry == (0 if place == axis else slice(None)) and entry is not None for place, entry in enumerate(entries))
        and len(entries) > axis
    )


def _one_after_the_other(first: Iterable[Any], then: Iterable[Any]) -> tuple[Any, ...] | None:
    """The index that gives what two give one after the other; None where that is not an index of this kind."""
    index: list[Any] = []
    entries = [entry for entry in first if entry is not ...]
    place = 0
    for entry in then:
        if entry is ...:
            continue
        while place < len(entries) and isinstance(entries[place], int):
            index.append(entries[place])
            place += 1
        if entry is None:
            index.append(None)
            continue
        old = entries[place]
        place += 1
        if entry == slice(None):
            index.append(old)
        elif old is None:
            count = 1 if isinstance(entry, int) else len(range(*entry.indices(1)))
            if not count:
                return None
            index += [] if isinstance(entry, int) else [None]
        elif isinstance(entry, int):
            index.append((old.start or 0) + entry * (old.step or 1))
        elif old == slice(None):
            index.append(entry)
        else:
            part = range(old.start, old.stop, old.step or 1)[entry]
            index.append(slice(part.start, part.stop, part.step))
    index += entries[place:]
    return tuple(index) if any(not isinstance(entry, int) for entry in index) else (*index, ...)


def _without_new_dimensions(step: Step, makers: Mapping[int, Step]) -> Step:
    """An update of a window with a value as it was before it got dimensions in front: assignment gives it those."""
    update = makers.get(step.operands[1])
    indexing = _movement(update, Indexing)
    if update is None or indexing is None or None not in indexing.index:
        return step
    kept = [entry for entry in indexing.index if entry is not None]
    if any(entry not in (slice(None), ...) for entry in kept) or None in indexing.index[-len(kept) :][: len(kept)]:
        return step
    operand, _, *starts = step.operand_trees
    return attrs.evolve(step, operand_trees=(operand, update.operands[0], *starts))


def _unspread(step: Step, makers: Mapping[int, Step], plan: Plan) -> list[Step]:
    """A function of elements with operands as they were before they were broadcast, where NumPy does that itself, and
    the view before it that makes one of them fit."""
    kernel = step.kernel
    shape = plan.slot_shapes[step.result] if isinstance(step.tree, int) else None
    if kernel is None or kernel.ufunc is None or len(step.operands) != 2 or not isinstance(kernel, InstructionKernel):
        return [step]
    # Where functions are approximated, NumPy's loops may differ for a repeated element.
    entry = kernel.entry
    if entry is None or entry.rounding not in (Rounding.NONE, Rounding.ONCE):
        return [step]
    if not isinstance(shape, ArrayShape) or shape.dynamic_dimensions or not shape.element_count:
        return [step]
    for place in (0, 1):
        maker = makers.get(step.operands[place])
        spreading = _movement(maker, Spreading)
        other = step.operands[1 - place]
        # The other may have been broadcast, too, and lack dimensions by now.
        spans = other != step.operands[place] and getattr(plan.slot_shapes[other], "dimensions", ()) == shape.dimensions
        if maker is None or spreading is None or not spans:
            continue
        fill = spreading.fill[next((k for k, entry in enumerate(spreading.fill) if entry is not None), 0) :]
        before: list[Step] = []
        slot = maker.operands[0]
        if None in fill:
            source = plan.slot_shapes[slot]
            assert isinstance(source, ArrayShape)
            sizes = iter(source.dimensions)
            aligned = tuple(1 if entry is None else next(sizes) for entry in fill)
            view = attrs.evolve(
                maker,
                tree=plan.new_slot(ArrayShape(source.element_type, aligned)),
                kernel=View(Indexing(fill)),
                is_silent=True,
            )
            before = [_composed(view, makers) or view]
            slot = view.result
        operands = (slot, other) if place == 0 else (other, slot)
        return [*before, attrs.evolve(step, operand_trees=operands)]
    return [step]


def _without_unused(steps: list[Step], unused: set[int], uses: Counter[int], plan: Plan) -> list[Step]:
    """The steps but for pure ones whose results nothing needs any more."""
    results = {*plan.results}
    kept = []
    for step in reversed(steps):
        if step.result in unused and step.result not in results and step.is_pure:
            uses.subtract(step.operands)
            unused.update(slot for slot in step.operands if not uses[slot])
        else:
            kept.append(step)
    return kept[::-1]
