"""What each instruction of a module has done to the digits in a run, over all of its iterations and devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from hloexec.core.ir import Computation, Instruction
from hloexec.core.structs import define, frozen
from hloexec.engine.exec.observers import Event
from hloexec.engine.exec.observers import Place as RunPlace
from hloexec.tools.shadowing.kinds import Losses

if TYPE_CHECKING:
    from hloexec.tools.shadowing.looping.accounts import Runs


@frozen
class Worst:
    """The run of an instruction in which it lost most, relative to its result."""

    name: str
    """Path and instruction."""
    iteration: int | None
    devices: tuple[int, ...]
    inherited: float
    """Root of mean square, relative to that of the exact results."""
    added: float


@define(eq=False)
class Place:
    """An instruction, and what was seen of it."""

    computation: Computation
    instruction: Instruction
    runs: int = 0
    worst: Worst | None = None
    kinds: dict[str, float] = attrs.field(factory=dict)
    """The energies of errors that it is to blame for, relative to its results, by kind."""
    counts: dict[str, int] = attrs.field(factory=dict)
    """How many elements were affected, by kind."""
    absorbing_runs: int = 0
    """Runs within loops in which most of what it added was absorbed, and steps of its own."""
    decisions: int = 0
    """Elements of integers and preds that the shadows would make otherwise."""
    decided: int = 0
    """The elements that were compared."""
    cancels: bool | None = None
    """Whether runs have shown that its operands cancel; None where none was made."""

    @property
    def static(self) -> tuple[str, str]:
        """The names of the computation and the instruction."""
        return self.computation.name, self.instruction.name

    def note(self, event: Event, found: Losses) -> None:
        """Take one run into account."""
        self.runs += 1
        self.take(found)
        scale = found.scale if found.scale > 0 else 1.0
        added = min((found.added / scale) ** 0.5, 1.0) if not found.born else 1.0
        inherited = min((found.inherited / scale) ** 0.5, 1.0)
        if found.kinds.get("absorption", 0.0) > 0.5 * found.added:
            self.absorbing_runs += found.steps or int(event.iteration is not None)
        if self.worst is None or max(added, inherited) > max(self.worst.added, self.worst.inherited):
            self.worst = Worst(event.name, event.iteration, event.devices, inherited, added)

    def note_runs(self, found: Runs, where: Callable[[int], RunPlace]) -> None:
        """Take several runs within a loop into account; `where` says where each was."""
        counting = found.energy > 0
        if not counting.any():
            return
        self.runs += int(np.count_nonzero(counting))
        scale = np.where(found.scale > 0, found.scale, 1.0)
        for kind, energies in found.kinds.items():
            amounts = np.minimum(energies / scale, 1.0)[counting]
            if amounts.any():
                self.kinds[kind] = self.kinds.get(kind, 0.0) + float(amounts.sum())
        for kind, counts in found.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + int(counts[counting].sum())
        if "absorption" in found.kinds:
            self.absorbing_runs += int(np.count_nonzero(found.kinds["absorption"] > 0.5 * found.added))
        added, inherited = (np.minimum(np.sqrt(each / scale), 1.0) for each in (found.added, found.inherited))
        sizes = np.where(counting, np.maximum(added, inherited), -1.0)
        row = int(np.argmax(sizes))
        if self.worst is None or sizes[row] > max(self.worst.added, self.worst.inherited):
            place = where(row)
            self.worst = Worst(place.name, place.iteration, place.devices, float(inherited[row]), float(added[row]))

    @classmethod
    def joined(cls, places: Sequence[Place]) -> Place:
        """What an instruction did on several devices: how it loses, and where, is what the first place says."""
        counts: Counter[str] = Counter()
        for place in places:
            counts.update(place.counts)
        numbers = ("runs", "absorbing_runs", "decisions", "decided")
        return attrs.evolve(
            places[0], counts=dict(counts), **{name: sum(getattr(place, name) for place in places) for name in numbers}
        )

    def take(self, found: Losses, *, only_counts: bool = False) -> None:
        """Take into account how a run loses digits."""
        scale = found.scale if found.scale > 0 else 1.0
        for kind, energy in () if only_counts else found.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0.0) + min(energy / scale, 1.0)
        for kind, count in found.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count

    def judge(self, *, is_cancelling: bool, is_measured: bool) -> None:
        """Say whether runs have shown that its operands cancel."""
        self.cancels = is_cancelling if is_measured else None

    def kind(self, *, is_lost: bool) -> str:
        """How it loses most; `is_lost` says that what it loses has made others infinite or NaN, for which elements that
        are affected count however small their errors are."""
        if self.counts.get("overflow"):
            return "overflow"
        kinds = self.kinds
        if self.cancels is not None:
            kinds = {kind: energy for kind, energy in kinds.items() if kind != "cancellation"}
        kind = max(kinds, key=lambda name: kinds[name], default="rounding")
        if self.cancels and kind in ("rounding", "absorption"):
            kind = "cancellation"
        if is_lost and kind == "rounding":
            found = (kind for kind in ("underflow", "absorption", "cancellation") if self.counts.get(kind))
            kind = next(found, kind)
        if kind == "absorption" and self.absorbing_runs > 1:
            return "lost updates"
        return kind
