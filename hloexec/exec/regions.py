"""Regions: steps that are taken together, one block of rows after the other.

A region is a set of steps that all can be taken by the same number of rows (`hloexec.exec.rowwise`): chains of
elementwise instructions, with their broadcasts and with reductions behind the prefix, as softmax and layer norm have
them. It becomes one step, which runs block by block on all cores (`hloexec.exec.blocks`) and has the same values to the
last bit. What is needed of it outside is its result; everything else never exists as a whole.

A region stands where its last instruction stood. Steps that need its values move behind it, and no step may be both
before and behind a region.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from hloexec.exec.binding import Surroundings
from hloexec.exec.block_programs import Part
from hloexec.exec.blocks import Region
from hloexec.exec.in_place import InPlace, bare
from hloexec.exec.plan import SlotTree, Step, leaves
from hloexec.exec.purity import is_pure
from hloexec.exec.rowwise import RowForm, prefixes, row_form
from hloexec.ir import ArrayShape, BufferShape, Instruction, TupleShape

__all__ = ["with_regions"]

_LEAST_BYTES = 1 << 16
"""Smaller values are in the cache anyway."""
_LEAST_BYTES_ALONE = 1 << 19
"""What a single step must work on to be worth splitting over the cores."""
_MOST_ROW_BYTES = 1 << 16
"""Longer rows do not fit into the cache together with others."""
_WINDOW = 24
"""A step joins a region whose last step is not farther back, so that operands do not live on for long."""
_MOST_PARTS = 256


@attrs.define(eq=False)
class _Open:
    """A region that is being found."""

    rows: frozenset[int]
    first: int
    last: int
    """Positions of steps."""
    parts: dict[int, Part] = attrs.field(factory=dict)
    """By position."""
    before: set[_Open] = attrs.field(factory=set)
    """Regions whose values it needs, directly or through steps outside of regions."""
    merged_into: _Open | None = None

    def found(self) -> _Open:
        current = self
        while current.merged_into is not None:
            current = current.merged_into
        return current


def with_regions(
    around: Surroundings, steps: list[Step], result: SlotTree, shapes: Sequence[ArrayShape | BufferShape]
) -> list[Step]:
    """The steps of a plan whose value is `result`, those that can be taken by rows together made one."""
    numerics = around.options.numerics
    is_plain = not (numerics.is_exact or numerics.flushes_denormals or numerics.has_xla_cpu_functions)
    if not around.options.is_planned or around.options.is_observed or not is_plain:
        return steps
    needed = frozenset(leaves(result))
    regions = _Finder(steps, shapes).regions()
    return _assembled(steps, regions, needed, shapes) if regions else steps


class _Finder:
    """Goes through the steps in order and lets each join a region of its operands."""

    def __init__(self, steps: Sequence[Step], shapes: Sequence[ArrayShape | BufferShape]) -> None:
        self._steps = steps
        self._shapes = shapes
        self._region_of: dict[int, _Open] = {}
        """By slot."""
        self._behind: dict[int, frozenset[_Open]] = {}
        """For values from outside of regions, the regions that they were made from without other regions between."""
        self._open: list[_Open] = []
        self._scalar_of: dict[int, int] = {}
        """What broadcasts of scalars repeat."""

    def regions(self) -> list[_Open]:
        impure: frozenset[_Open] = frozenset()
        for position, step in enumerate(self._steps):
            if is_splat(step, self._shapes):
                self._scalar_of[step.result] = step.operands[0]
            behind = frozenset(region for slot in step.operands for region in self._sources(slot, position))
            form = row_form(step, self._shapes) if self._may_matter(step) else None
            if form is not None and self._join(position, step, form):
                continue
            if not is_pure(step):
                # These keep their order.
                behind = impure = behind | {region for region in impure if position - region.found().last <= _WINDOW}
            if behind:
                for slot in step.results:
                    self._behind[slot] = behind
        return [region for region in self._open if region.merged_into is None]

    def _may_matter(self, step: Step) -> bool:
        """Whether a step is worth looking at: it works on much, or on the values of a region."""
        return any(slot in self._region_of for slot in step.operands) or any(
            self._shapes[slot].byte_size >= _LEAST_BYTES for slot in (*step.results, *step.operands)
        )

    def _sources(self, slot: int, position: int) -> list[_Open]:
        """The regions that a value comes from which steps from a position on may still join."""
        region = self._region_of.get(slot)
        found = self._behind.get(slot, ()) if region is None else (region,)
        return [source for source in (entry.found() for entry in found) if position - source.last <= _WINDOW]

    def _join(self, position: int, step: Step, form: RowForm) -> bool:
        """Let a step join the regions of its operands, which become one, or begin a region."""
        near: list[_Open] = []
        rows = form.rows
        for slot in step.operands:
            region = self._region_of.get(slot)
            if region is None or (region := region.found()) in near:
                continue
            if position - region.last > _WINDOW or not rows & region.rows:
                continue
            others = [other for other in step.operands if self._found(other) not in (*near, region)]
            if self._may_join(others, [*near, region], position):
                near.append(region)
                rows &= region.rows
        if near and sum(len(region.parts) for region in near) < _MOST_PARTS:
            region = self._merge(near)
        else:
            rows = form.rows & self._sensible(step)
            if form.is_view or not rows:
                return False
            region = _Open(rows, position, position)
            self._open.append(region)
        region.rows = rows
        region.last = position
        region.parts[position] = Part(self._with_scalars(step, form), form)
        for slot in step.operands:
            region.before |= set(self._sources(slot, position)) - {region}
        self._region_of[step.result] = region
        return True

    def _with_scalars(self, step: Step, form: RowForm) -> Step:
        """The step with scalars in place of their broadcasts, where other operands have the shape of the result."""
        operands = tuple(self._scalar_of.get(slot, slot) for slot in step.operands)
        dimensions = getattr(self._shapes[step.result], "dimensions", ())
        if not form.is_elementwise or all(
            getattr(self._shapes[slot], "rank", 0) < len(dimensions) for slot in operands
        ):
            return step
        return attrs.evolve(step, operand_trees=operands)

    def _found(self, slot: int) -> _Open | None:
        region = self._region_of.get(slot)
        return None if region is None else region.found()

    def _may_join(self, others: Iterable[int], together: Sequence[_Open], position: int) -> bool:
        """Whether regions can become one that takes in other operands, too: none of it needs a value made from it."""
        first = min(region.first for region in together)
        pending = [region for slot in others for region in self._sources(slot, position)]
        pending += [other for region in together for other in region.before if other.found() not in together]
        for region in together:
            if any(other.found() in together and other.found() is not region for other in region.before):
                return False
        seen: set[_Open] = set()
        while pending:
            region = pending.pop().found()
            if region in together:
                return False
            if region not in seen and region.last > first:
                seen.add(region)
                pending.extend(region.before)
        return True

    def _merge(self, regions: Sequence[_Open]) -> _Open:
        first, *others = regions
        for other in others:
            first.parts |= other.parts
            first.before |= other.before
            first.first = min(first.first, other.first)
            other.merged_into = first
        first.before = {region.found() for region in first.before} - {first}
        return first

    def _sensible(self, step: Step) -> frozenset[int]:
        """The numbers of rows by which a step that works on much may begin a region: a row must fit into the cache."""
        sizes = [self._shapes[slot] for slot in (*step.operands, step.result)]
        largest = max(sizes, key=lambda shape: shape.byte_size)
        if not isinstance(largest, ArrayShape) or largest.byte_size < _LEAST_BYTES:
            return frozenset()
        return frozenset(rows for rows in prefixes(largest.dimensions) if largest.byte_size // rows <= _MOST_ROW_BYTES)


def is_splat(step: Step, shapes: Sequence[ArrayShape | BufferShape]) -> bool:
    """Whether a step repeats one number."""
    if step.instruction.opcode != "broadcast" or len(step.operands) != 1:
        return False
    operand, result = shapes[step.operands[0]], shapes[step.results[0]]
    return (
        isinstance(operand, ArrayShape)
        and isinstance(result, ArrayShape)
        and operand.rank == 0
        and operand.element_type is result.element_type
    )


def _assembled(
    steps: Sequence[Step],
    regions: Sequence[_Open],
    needed: frozenset[int],
    shapes: Sequence[ArrayShape | BufferShape],
) -> list[Step]:
    """All steps, each region as one, in an order in which values are made before they are used."""
    region_at = {position: region for region in regions for position in region.parts}
    readers: dict[int, set[_Open | None]] = {slot: {None} for slot in needed}
    for position, step in enumerate(steps):
        region = region_at.get(position)
        for slot in step.operands if region is None else region.parts[position].step.operands:
            readers.setdefault(slot, set()).add(region)
    chosen: dict[_Open, tuple[list[int], list[int]]] = {}
    copied: set[int] = set()
    # From behind, as what a view shows is needed outside where the view is made there.
    for region in sorted(regions, key=lambda region: region.last, reverse=True):
        inside: list[int] = []
        outputs: list[int] = []
        for position in sorted(region.parts, reverse=True):
            part = region.parts[position]
            users = readers.get(part.step.result, set())
            is_needed_outside = bool(users - {region})
            if is_needed_outside and part.form.is_view:
                copied.add(position)
                readers.setdefault(part.step.operands[0], set()).add(None)
            elif is_needed_outside:
                outputs.append(part.step.result)
            if users & {region} or (users and not part.form.is_view):
                inside.append(position)
        inside.reverse()
        outputs.reverse()
        chosen[region] = (inside, outputs)
    repeated = frozenset(step.result for step in steps if step.instruction.opcode in ("broadcast", "iota"))
    units: list[tuple[int, Step]] = []
    taken: set[int] = set()
    for region, (inside, outputs) in chosen.items():
        parts = [region.parts[position] for position in inside]
        if _is_worthwhile(parts, outputs, shapes):
            dying = {slot for part in parts for slot in part.step.operands if readers[slot] == {region}}
            units.append((max(inside), _region_step(parts, outputs, region.rows, shapes, dying, repeated)))
            taken.update(position for position in region.parts if position not in copied)
    units += [(position, step) for position, step in enumerate(steps) if position not in taken]
    read = needed.union(*(step.operands for _, step in units))
    return _in_order([unit for unit in units if not is_splat(unit[1], shapes) or unit[1].results[0] in read])


def _is_worthwhile(parts: Sequence[Part], outputs: Sequence[int], shapes: Sequence[Any]) -> bool:
    computing = [part for part in parts if not part.form.is_view]
    if not outputs or not computing:
        return False
    sizes = [shapes[slot].byte_size for part in computing for slot in (*part.step.operands, part.step.result)]
    least = _LEAST_BYTES if len(computing) > 1 else _LEAST_BYTES_ALONE
    return any(size >= least for size in sizes)


def _region_step(
    parts: Sequence[Part],
    outputs: Sequence[int],
    rows: frozenset[int],
    shapes: Sequence[Any],
    dying: set[int],
    repeated: frozenset[int],
) -> Step:
    """The step that stands for these; `dying` are slots that nothing else reads, `repeated` those of broadcasts."""
    made = {part.step.result for part in parts}
    inputs = list(dict.fromkeys(slot for part in parts for slot in part.step.operands if slot not in made))
    count = _row_count(parts, rows, shapes)
    place = next(
        (
            place
            for place, slot in enumerate(inputs)
            if slot in dying
            and shapes[slot].element_type is shapes[outputs[0]].element_type
            and shapes[slot].dimensions == shapes[outputs[0]].dimensions
        ),
        None,
    )
    region = Region(parts, inputs, outputs, shapes, count, place, repeated)
    last = parts[-1].step
    found = tuple(shapes[slot] for slot in outputs)
    instruction = Instruction(
        name=last.instruction.name,
        shape=found[0] if len(found) == 1 else TupleShape(found),
        opcode="fusion",
        metadata=last.instruction.metadata,
    )
    function: Any = InPlace(region, region.overwrite, place) if region.can_overwrite and place is not None else region
    tree = outputs[0] if len(outputs) == 1 else tuple(outputs)
    return Step(instruction, last.scope, tuple(inputs), tree, function, None, region.scratch_bytes)


def _row_count(parts: Sequence[Part], rows: frozenset[int], shapes: Sequence[Any]) -> int:
    """The fewest rows that are short enough, so that loops over them are long."""
    widest = max(shapes[slot].byte_size for part in parts for slot in (*part.step.operands, part.step.result))
    return min((count for count in rows if widest // count <= _MOST_ROW_BYTES // 2), default=max(rows))


def _in_order(units: Sequence[tuple[int, Step]]) -> list[Step]:
    """Steps in the order of their positions, but behind those whose values they need."""
    maker = {slot: number for number, (_, step) in enumerate(units) for slot in step.results}
    waiting: list[int] = []
    behind: dict[int, list[int]] = {}
    impure: int | None = None
    for number in sorted(range(len(units)), key=lambda number: units[number][0]):
        step = units[number][1]
        makers = {maker[slot] for slot in step.operands if slot in maker}
        if not is_pure(step) and not isinstance(bare(step.function), Region):
            if impure is not None:
                makers.add(impure)
            impure = number
        for source in makers:
            behind.setdefault(source, []).append(number)
    counts = [0] * len(units)
    for numbers in behind.values():
        for number in numbers:
            counts[number] += 1
    waiting = [(units[number][0], number) for number in range(len(units)) if not counts[number]]  # type: ignore[misc]
    heapq.heapify(waiting)
    found: list[Step] = []
    while waiting:
        _, number = heapq.heappop(waiting)  # type: ignore[misc]
        found.append(units[number][1])
        for other in behind.get(number, ()):
            counts[other] -= 1
            if not counts[other]:
                heapq.heappush(waiting, (units[other][0], other))  # type: ignore[misc]
    assert len(found) == len(units), "a region and a step need each other's values"
    return found
