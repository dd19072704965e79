"""Recomputing: regions compute cheap values again instead of taking them from a region before.

A training step keeps what its backward pass needs, the factors of derivatives among them: 1 − t² beside t, or x − mean
beside x. Where all later readers of such a value are regions, and what it is made of is there until then anyway, each
of them computes it for itself, a block at a time in the cache. The value then never exists as a whole array. XLA's
fusion does the same when it duplicates a producer into its consumers. The functions and so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hloexec.engine.plan.kernels import InstructionKernel
from hloexec.engine.plan.regions import LEAST_BYTES
from hloexec.engine.plan.regions.block_program import Part
from hloexec.engine.plan.steps import Plan
from hloexec.ops.traits import Rounding

if TYPE_CHECKING:
    from hloexec.engine.plan.passes.fuse import OpenRegion

_MOST_COMPUTED = 4
"""So many instructions take less time than a value takes to be written to memory and read again."""
_MOST_VIEWS = 8
_MOST_ROUNDS = 4
_SMALL = 16
"""What takes no more than one part in so many of a value may live on for it."""


class Recomputing:
    """Adds parts to regions. These, by unit, and the other steps of the plan run in this order of units."""

    def __init__(
        self, plan: Plan, regions: Mapping[int, OpenRegion], order: Sequence[int], unit_of: Callable[[int], int]
    ) -> None:
        self._plan = plan
        self._shapes = plan.slot_shapes
        self._regions = regions
        rank = {unit: number for number, unit in enumerate(order)}
        self._end = len(rank)
        self._maker: dict[int, int] = {}
        """The position of the step that makes a slot."""
        self._rank_at: list[int] = []
        """When the step at a position runs."""
        self._region_at: dict[int, OpenRegion] = {}
        self._readers: dict[int, set[int]] = {slot: {self._end} for slot in plan.results}
        """When a slot is read; a region makes its own and reads it, too."""
        for position, step in enumerate(plan.steps):
            unit = unit_of(position)
            self._rank_at.append(rank[unit])
            region = regions.get(unit)
            if region is not None:
                self._region_at[position] = region
            operands = step.operands if region is None else region.parts[position].step.operands
            for slot in operands:
                self._readers.setdefault(slot, set()).add(rank[unit])
            for slot in step.results:
                self._maker[slot] = position
        self._region_of_rank = {rank[unit]: region for unit, region in regions.items()}

    def run(self) -> None:
        """Add them."""
        # From behind, as what is made of others goes first; again, as what now lives longer may serve for more.
        positions = sorted(self._region_at, reverse=True)
        for _ in range(_MOST_ROUNDS):
            if sum(map(self._is_left_to_readers, positions)) == 0:
                return

    def _is_left_to_readers(self, position: int) -> bool:
        """Let all later readers of a value compute it, if they can."""
        part = self._region_at[position].parts[position]
        slot, home = part.step.result, self._rank_at[position]
        readers = self._readers.get(slot, set()) - {home}
        if self._size(slot) < LEAST_BYTES or not _is_cheap(part) or not readers:
            return False
        for kept in (None, *filter(partial(self._may_replace, slot, home), part.step.operands)):
            found = {reader: self._needed(position, reader, kept) for reader in readers}
            if all(found.values()):
                for reader, positions in found.items():
                    self._let_compute(reader, positions or [])
                return True
        return False

    def _may_replace(self, slot: int, home: int, operand: int) -> bool:
        """Whether an operand is there when a value is made of it, and takes no more memory in its place later on."""
        maker = self._maker.get(operand)
        readers = self._readers.get(operand, set())
        if maker is None or self._size(operand) > self._size(slot) or max(readers, default=-1) < home:
            return False
        if maker in self._region_at:
            made = self._rank_at[maker]
            return not self._region_at[maker].parts[maker].form.is_view and bool(readers - {made})
        kernel = self._plan.steps[maker].kernel
        return kernel is not None and not kernel.is_view

    def _size(self, slot: int) -> int:
        return self._shapes[slot].byte_size

    def _needed(self, position: int, reader: int, kept: int | None) -> list[int] | None:
        """The positions of what a region has to compute for the value of one; None where it cannot. One slot may be
        `kept` for it."""
        region = self._region_of_rank.get(reader)
        if region is None:
            return None
        size = self._size(self._plan.steps[position].results[0])
        rows, found, computed = region.rows, [], 0
        pending = [position]
        while pending:
            current = pending.pop()
            if current in found or current in region.parts:
                continue
            part = self._region_at[current].parts[current]
            rows = rows & part.form.rows
            computed += not part.form.is_view
            found.append(current)
            if not rows or computed > _MOST_COMPUTED or len(found) > _MOST_VIEWS:
                return None
            for slot in part.step.operands:
                if slot == kept or self._is_there(slot, reader, size):
                    continue
                maker = self._maker.get(slot)
                inner = None if maker is None or maker not in self._region_at else self._region_at[maker].parts[maker]
                if inner is None or not (inner.form.is_view or _is_cheap(inner)):
                    return None
                pending.append(self._maker[slot])
        return found

    def _is_there(self, slot: int, reader: int, size: int) -> bool:
        """Whether a value exists as an array when a region runs, or may for what it takes beside one of such a size."""
        maker = self._maker.get(slot)
        if maker is not None and maker in self._region_at:
            home = self._rank_at[maker]
            part = self._region_at[maker].parts[maker]
            # A view is made again where it is needed.
            if part.form.is_view or not self._readers.get(slot, set()) - {home}:
                return False
        elif maker is not None:
            kernel = self._plan.steps[maker].kernel
            if kernel is not None and kernel.is_view:
                return all(self._is_there(operand, reader, size) for operand in self._plan.steps[maker].operands[:1])
        return _SMALL * self._size(slot) <= size or max(self._readers.get(slot, ()), default=-1) >= reader

    def _let_compute(self, reader: int, positions: Sequence[int]) -> None:
        region = self._region_of_rank[reader]
        for position in positions:
            part = region.parts[position] = self._region_at[position].parts[position]
            region.rows = region.rows & part.form.rows
            self._readers[part.step.result].discard(reader)
        for position in positions:
            for slot in region.parts[position].step.operands:
                maker = self._maker.get(slot)
                if maker is None or maker not in region.parts:
                    self._readers.setdefault(slot, set()).add(reader)


def _is_cheap(part: Part) -> bool:
    """Whether computing a value takes less time than to fetch it from memory."""
    kernel = part.step.kernel
    return (
        part.form.is_elementwise
        and part.form.wide is None
        and isinstance(kernel, InstructionKernel)
        and kernel.ufunc is not None
        and kernel.random is None
        and kernel.entry is not None
        and kernel.entry.rounding in (Rounding.NONE, Rounding.ONCE)
    )
