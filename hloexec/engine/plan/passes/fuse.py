"""Fusion: combining steps that can be computed together, one block of rows after the other.

A region is a set of steps that can all be computed by the same number of rows (`plan.regions.row_forms`):
chains of elementwise instructions, with their broadcasts and with reductions over the dimensions behind the prefix, as
in softmax and layer norm. It becomes one step, whose kernel runs block by block on all cores and has the same values to
the last bit. Its results are the values that are used outside; all others never exist as whole arrays.

Steps and regions are nodes of a graph that stays acyclic (`plan.units`): a step joins a region only if no path
between them passes through another node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import attrs

from hloexec.core.ir import ArrayShape, Instruction, TupleShape
from hloexec.core.structs import define
from hloexec.engine.plan.kernels import Leaf
from hloexec.engine.plan.passes.sharing import moved, value_numbers
from hloexec.engine.plan.regions import LEAST_BYTES
from hloexec.engine.plan.regions.block_program import Part
from hloexec.engine.plan.regions.recompute import Recomputing
from hloexec.engine.plan.regions.region import Region, RegionKernel
from hloexec.engine.plan.regions.row_forms import row_form
from hloexec.engine.plan.steps import Plan, Step
from hloexec.engine.plan.units import UnitGraph
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.traits import RowForm, prefixes

_LEAST_BYTES_ALONE = 1 << 19
"""What a single step must work on to be worth splitting over the cores."""
_MOST_ROW_BYTES = 1 << 16
"""Longer rows do not fit into the cache together with others."""
_WINDOW = 24
"""A step joins a region whose last step is not farther back, so that operands do not live on for long."""
_MOST_PARTS = 256


@define(eq=False)
class OpenRegion:
    """A region that is being found."""

    unit: int
    rows: frozenset[int]
    last: int
    """The position of its last step."""
    parts: dict[int, Part] = attrs.field(factory=dict)
    """By position."""


def with_regions(plan: Plan, numerics: NumericsPolicy, *, may_share: bool) -> Plan:
    """The plan, those of its steps that can be taken by rows together made one.

    `may_share`: whether steps of a region that compute the same may become one.
    """
    if not numerics.computes_by_rows:
        return plan
    finder = _Finder(plan.steps, plan.slot_shapes)
    regions = finder.regions()
    while may_share and (copies := _copies(plan, regions.values())):
        # Regions of fewer steps may become one.
        plan = attrs.evolve(plan, steps=[moved(step, copies) for step in plan.steps if step.result not in copies])
        finder = _Finder(plan.steps, plan.slot_shapes)
        regions = finder.regions()
    if not regions:
        return plan
    homes = {position: region for region in regions.values() for position in region.parts}
    order = finder.graph.in_order()
    Recomputing(plan, regions, order, finder.graph.find).run()
    return attrs.evolve(plan, steps=_Assembly(plan, regions, homes).steps(order, finder.members()))


def _copies(plan: Plan, regions: Iterable[OpenRegion]) -> dict[int, int]:
    """The slots of what a region computes again, and those of what it has computed before: that is an array only where
    others need it."""
    numbers, first, found = value_numbers(plan), dict[tuple[int, int], int](), dict[int, int]()
    units = {position: region.unit for region in regions for position in region.parts}
    for position, unit in sorted(units.items()):
        slot = plan.steps[position].result
        if slot in numbers and slot not in plan.results:
            original = first.setdefault((unit, numbers[slot]), slot)
            if original != slot:
                found[slot] = original
    return found


class _Finder:
    """Goes through the steps in order and lets each join a region of its operands."""

    def __init__(self, steps: Sequence[Step], shapes: Sequence[Leaf]) -> None:
        self._steps = steps
        self._shapes = shapes
        self.graph = UnitGraph()
        """The units are the steps, by their positions, as far as they have not become one."""
        self._maker: dict[int, int] = {}
        """The position of the step that makes a slot."""
        self._region_at: dict[int, OpenRegion] = {}
        """By unit."""
        self._forms: dict[tuple[int, ...], RowForm | None] = {}
        """How steps are computed by rows, by their kernels and the shapes of their slots."""
        self._scalar_of: dict[int, int] = {}
        """What broadcasts of scalars repeat."""

    def regions(self) -> dict[int, OpenRegion]:
        """The regions, by unit."""
        impure: int | None = None
        for position, step in enumerate(self._steps):
            if is_scalar_broadcast(step, self._shapes):
                self._scalar_of[step.result] = step.operands[0]
            needs = [self._maker[slot] for slot in step.operands if slot in self._maker]
            if not step.is_pure:
                # These keep their order.
                needs += [] if impure is None else [impure]
                impure = position
            self.graph.add(needs)
            for slot in step.results:
                self._maker[slot] = position
            form = self._form_of(step) if self._may_matter(step) else None
            if form is not None:
                self._join(position, step, form)
        return self._region_at

    def members(self) -> dict[int, list[int]]:
        """The positions of the steps of each unit."""
        positions: dict[int, list[int]] = {}
        for position in range(len(self._steps)):
            positions.setdefault(self.graph.find(position), []).append(position)
        return positions

    def _region_of(self, slot: int) -> OpenRegion | None:
        """The region that makes a slot."""
        return self._region_at.get(self.graph.find(self._maker[slot])) if slot in self._maker else None

    def _may_matter(self, step: Step) -> bool:
        """Whether a step is worth looking at: it works on much, or on the values of a region."""
        return any(self._region_of(slot) is not None for slot in step.operands) or any(
            self._shapes[slot].byte_size >= LEAST_BYTES for slot in (*step.results, *step.operands)
        )

    def _form_of(self, step: Step) -> RowForm | None:
        """How a step is computed by rows; one for all with the same kernel."""
        key = id(step.kernel), *(id(self._shapes[slot]) for slot in (*step.operands, *step.results))
        if key not in self._forms:
            self._forms[key] = row_form(step, self._shapes)
        return self._forms[key]

    def _join(self, position: int, step: Step, form: RowForm) -> None:
        """Let a step join the regions of its operands, which become one, or begin a region."""
        joined: OpenRegion | None = None
        part = Part(self._with_scalars(step, form), form)
        for slot in step.operands:
            region = self._region_of(slot)
            if region is None or region is joined or position - region.last > _WINDOW:
                continue
            rows = region.rows & (form.rows if joined is None else joined.rows)
            count = len(region.parts) + (1 if joined is None else len(joined.parts))
            if not rows or count > _MOST_PARTS:
                continue
            if self.graph.merge(region.unit, position):
                parts = region.parts | ({position: part} if joined is None else joined.parts)
                for old in (region, joined):
                    if old is not None:
                        del self._region_at[old.unit]
                joined = OpenRegion(self.graph.find(position), rows, position, parts)
                self._region_at[joined.unit] = joined
        if joined is None and not form.is_view:
            rows = form.rows & self._sensible(step)
            if rows:
                self._region_at[position] = OpenRegion(position, rows, position, {position: part})

    def _with_scalars(self, step: Step, form: RowForm) -> Step:
        """The step with scalars in place of their broadcasts, where other operands have the shape of the result."""
        operands = tuple(self._scalar_of.get(slot, slot) for slot in step.operands)
        if operands == step.operands:
            return step
        dimensions = getattr(self._shapes[step.result], "dimensions", ())
        if not form.is_elementwise or all(
            getattr(self._shapes[slot], "rank", 0) < len(dimensions) for slot in operands
        ):
            return step
        return attrs.evolve(step, operand_trees=operands)

    def _sensible(self, step: Step) -> frozenset[int]:
        """The numbers of rows by which a step that works on much may begin a region: a row must fit into the cache."""
        sizes = [self._shapes[slot] for slot in (*step.operands, step.result)]
        largest = max(sizes, key=lambda shape: shape.byte_size)
        if not isinstance(largest, ArrayShape) or largest.byte_size < LEAST_BYTES:
            return frozenset()
        return frozenset(rows for rows in prefixes(largest.dimensions) if largest.byte_size // rows <= _MOST_ROW_BYTES)


def is_scalar_broadcast(step: Step, shapes: Sequence[Leaf]) -> bool:
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


class _Assembly:
    """Puts the steps of a plan together again, regions as one step each."""

    def __init__(self, plan: Plan, regions: dict[int, OpenRegion], homes: dict[int, OpenRegion]) -> None:
        """`homes` are the regions of steps that are part of one, by position; others may compute them again."""
        self._plan = plan
        self._shapes = plan.slot_shapes
        self._regions = regions
        self._homes = homes
        self._readers: dict[int, set[OpenRegion | None]] = {slot: {None} for slot in plan.results}
        """The regions that read a slot which they don't make; None represents everything outside regions."""
        for position, step in enumerate(plan.steps):
            if position not in homes:
                for slot in step.operands:
                    self._readers.setdefault(slot, set()).add(None)
        for region in regions.values():
            made = {part.step.result for position, part in region.parts.items() if homes[position] is not region}
            for part in region.parts.values():
                for slot in set(part.step.operands) - made:
                    self._readers.setdefault(slot, set()).add(region)
        makers = (step for step in plan.steps if step.instruction.opcode in ("broadcast", "iota"))
        self._repeated = frozenset(step.result for step in makers)
        """What broadcasts or iotas have made, which takes little of the cache."""
        self._copied: set[int] = set()
        """The positions of views that stand outside of their region, too."""

    def steps(self, order: Sequence[int], members: dict[int, list[int]]) -> list[Step]:
        """The steps, given units in order and the positions of the steps of each."""
        made: dict[int, Step] = {}
        replaced: set[int] = set()
        # From behind, as what a view shows is needed outside where the view is made there.
        for unit in reversed(order):
            if unit in self._regions:
                region = self._regions[unit]
                if self._is_replaced(region):
                    replaced.add(unit)
                    continue
                step = self._region_step(region)
                if step is not None:
                    made[unit] = step
        steps: list[Step] = []
        for unit in order:
            if unit in made:
                steps.append(made[unit])
            steps += [
                self._plan.steps[position]
                for position in members[unit]
                if (unit not in made and unit not in replaced) or position in self._copied
            ]
        read = {*self._plan.results}.union(*(step.operands for step in steps))
        return [step for step in steps if not is_scalar_broadcast(step, self._shapes) or step.result in read]

    def _is_replaced(self, region: OpenRegion) -> bool:
        """Whether others compute again all that is needed of a region."""
        own = [part for position, part in region.parts.items() if self._homes[position] is region]
        if any(self._readers.get(part.step.result, set()) - {region} for part in own):
            return False
        for readers in self._readers.values():
            readers.discard(region)
        return True

    def _region_step(self, region: OpenRegion) -> Step | None:
        """The step that a region becomes; None where that is not worth while."""
        inside, outputs = self._needed(region)
        parts = [region.parts[position] for position in inside]
        if not self._is_worthwhile(parts, outputs):
            return None
        made = {part.step.result for part in parts}
        inputs = list(dict.fromkeys(slot for part in parts for slot in part.step.operands if slot not in made))
        function = Region(
            parts,
            inputs,
            outputs,
            self._shapes,
            self._row_count(parts, region.rows),
            self._overwritten(region, inputs, outputs[0]),
            self._repeated.intersection(inputs),
        )
        last = parts[-1].step
        shapes = tuple(self._shapes[slot] for slot in outputs)
        instruction = Instruction(
            name=last.instruction.name,
            shape=shapes[0] if len(shapes) == 1 else TupleShape(shapes),
            opcode="fusion",
            metadata=last.instruction.metadata,
        )
        tree: Any = outputs[0] if len(outputs) == 1 else tuple(outputs)
        kernel = RegionKernel.of(function)
        return Step(instruction, last.scope, tuple(inputs), tree, kernel, extra_bytes=function.scratch_bytes)

    def _needed(self, region: OpenRegion) -> tuple[list[int], list[int]]:
        """The positions of the steps that a region takes in, and the slots that are needed outside."""
        inside: list[int] = []
        outputs: list[int] = []
        for position in sorted(region.parts, reverse=True):
            part = region.parts[position]
            if self._homes[position] is not region:
                inside.append(position)
                continue
            users = self._readers.get(part.step.result, set())
            is_needed_outside = bool(users - {region})
            if is_needed_outside and part.form.is_view:
                self._copied.add(position)
                self._readers.setdefault(part.step.operands[0], set()).add(None)
            elif is_needed_outside:
                outputs.append(part.step.result)
            if users & {region} or (users and not part.form.is_view):
                inside.append(position)
        return inside[::-1], outputs[::-1]

    def _is_worthwhile(self, parts: Sequence[Part], outputs: Collection[int]) -> bool:
        computing = [part for part in parts if not (part.form.is_view or part.form.numbers_rows)]
        if not outputs or not computing:
            return False
        least = LEAST_BYTES if len(computing) > 1 else _LEAST_BYTES_ALONE
        return any(size >= least for size in self._sizes(computing))

    def _sizes(self, parts: Iterable[Part]) -> list[int]:
        """The bytes of all that parts read and make."""
        return [self._shapes[slot].byte_size for part in parts for slot in (*part.step.operands, part.step.result)]

    def _row_count(self, parts: Sequence[Part], rows: frozenset[int]) -> int:
        """The fewest rows that are short enough, so that loops over them are long."""
        widest = max(self._sizes(parts))
        return min((count for count in rows if widest // count <= _MOST_ROW_BYTES // 2), default=max(rows))

    def _overwritten(self, region: OpenRegion, inputs: Sequence[int], output: int) -> int | None:
        """The place of an input that nothing else reads, of the type and dimensions of an output."""
        wanted = self._shapes[output]
        assert isinstance(wanted, ArrayShape)
        # What is repeated is seldom an array of its own, and what comes from outside is seldom the plan's.
        seldom = {*self._repeated, *self._plan.parameters}
        for place, slot in sorted(enumerate(inputs), key=lambda entry: entry[1] in seldom):
            shape = self._shapes[slot]
            if not isinstance(shape, ArrayShape) or self._readers[slot] != {region}:
                continue
            if shape.element_type is wanted.element_type and shape.dimensions == wanted.dimensions:
                return place
        return None
