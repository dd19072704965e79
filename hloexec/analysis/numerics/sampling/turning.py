"""Decisions that rounding may turn, turned in runs of their own.

What follows from a decision that rounding turns once in a thousand runs shows in no sample, or in few. Close decisions
(`numerics.sampling.paths`) are therefore turned one at a time, the closest first, in runs without random errors. One
that brings the results nearer to the side that is to be explained stays turned in the runs that follow. If the side is
as near to the last of these as samples explain that decide like it, these decisions explain the side. What is beyond
that is *different*, as a fault beside a turned decision is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TypeAlias

import attrs

from hloexec.analysis.numerics.comparison import Comparison, LeafComparison, Undecided, Verdict
from hloexec.analysis.numerics.leaves import Pair, leaves_of
from hloexec.analysis.numerics.sampling.decided import Labels, is_whole, with_groups
from hloexec.analysis.numerics.sampling.paths import Path, Turn
from hloexec.analysis.numerics.sampling.runs import Sample, Sampled, by_either_label
from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.analysis.numerics.sequential import settled
from hloexec.core.ir import Module
from hloexec.core.structs import define
from hloexec.core.values import Array, Value
from hloexec.core.wording import listing
from hloexec.errors import HloError

_RUNS = 12
"""How many decide alike at first: fewer may round what is decided on as one, above all in bf16."""
_MOST_TRIALS = 128
_MOST_FRUITLESS = 64
"""After so many runs that are no nearer, there are no more."""
_FEW_FRUITLESS = 16
"""And after so many for what is different: most of that is a fault."""
_NEARER = 0.95
"""A run is nearer if at most this share of what was off still is."""
_FIRST = 4

_Side: TypeAlias = Sequence[tuple[str, Array | None]]
_Judge: TypeAlias = Callable[[Mapping[str, Spread], Sequence[Pair]], Sequence[LeafComparison]]


def with_decisions(
    found: Comparison, spreads: Mapping[str, Spread], pairs: Sequence[Pair], turning: Turning
) -> Comparison:
    """A comparison with these spreads, with elements *not decided* of which rounding decides. What all runs explain
    that round at random is *different*, too, if it is off as a whole from those that decide alike."""
    return turning.explained(turning.grouped(found, spreads, pairs, turning.sample), pairs)


@define(eq=False)
class Turning:
    """The search."""

    module: Module
    judge: _Judge
    """Compares pairs, with these spreads."""
    sample: Sample
    run: Callable[[Path], Value]
    """Gives the result of a run that is controlled so."""

    def grouped(
        self, found: Comparison, spreads: Mapping[str, Spread], pairs: Sequence[Pair], sample: Sample
    ) -> Comparison:
        """A comparison with what groups of samples show."""
        return with_groups(found, pairs, spreads, sample, self.judge, self.module)

    def explained(self, found: Comparison, pairs: Sequence[Pair]) -> Comparison:
        """A comparison, with leaves *not decided* whose sides are results of runs that decide otherwise, and others
        *different* that are off as a whole from all runs."""
        labels = Labels(self.module)
        if any(leaf.measured is None or not labels.decides(leaf.label) for leaf in found.different):
            return found
        if found.agrees and not any(
            leaf.unequal and leaf.tolerance.factor and labels.is_ordered(leaf.label) for leaf in found.leaves
        ):
            return found
        try:
            start = self._run(())
            if not start.close:
                return found
            sides = ([(label, arrays[number]) for label, *arrays in pairs] for number in (0, 1))
            ends = [self._search(side, start, found) for side in sides]
        except HloError:
            return found
        if all(end.is_explained for end in ends):
            turns = [*dict.fromkeys(turn for end in ends for turn in end.turns)]
            return Comparison(tuple(_not_decided(leaf, turns) for leaf in found.leaves)) if turns else found
        notes = {label: note for end in ends for label, note in end.faults().items()}
        return Comparison(tuple(_different(leaf, notes.get(leaf.label, "")) for leaf in found.leaves))

    def _run(self, turns: Sequence[Turn]) -> _Run:
        path = Path(self.module, turns)
        return _Run(self, path, self.run(path))

    def _search(self, side: _Side, start: _Run, found: Comparison) -> _Run:
        """The run with turns that explains one side, or is as near as any. Unless something was found to be different,
        what is off as a whole is all that counts."""
        is_thorough = bool(found.different)
        run, trials = start, 0
        while off := _off(leaves := self.judge(run.spreads, run.paired(side))):
            if found.agrees and not any(map(_is_doubtful, leaves)):
                break
            nearest, fruitless, turned = run, 0, {turn.pair for turn in run.turns}
            for turn in run.close:
                if (
                    fruitless == (_FEW_FRUITLESS if is_thorough else _MOST_FRUITLESS)
                    or trials == _MOST_TRIALS
                    or not off
                ):
                    break
                if turn.pair in turned:
                    continue
                trial = self._run((*nearest.turns, turn))
                its_off, trials = _off(self.judge(run.spreads, trial.paired(side))), trials + 1
                fruitless += 1
                if its_off <= _NEARER * off:
                    nearest, off, fruitless = trial, its_off, 0
            else:
                run.is_exhausted = nearest is run
            if nearest is run:
                break
            run = nearest
        run.compared = Comparison(tuple(self.judge(run.spreads, run.paired(side))))
        if (is_thorough and run.compared.different) or any(map(_is_doubtful, run.compared.leaves)):
            run.compared = self._settled(run.paired(side), partial(self.sample, observers=[run.path]))
        return run

    def _settled(self, pairs: Sequence[Pair], sample: Sample) -> Comparison:
        """Pairs, compared by as many samples as are needed."""
        spreads: Mapping[str, Spread] = {}

        def judged(found: Sampled) -> Comparison:
            nonlocal spreads
            spreads = by_either_label(found.spreads)
            return Comparison(tuple(self.judge(spreads, pairs)))

        return self.grouped(settled(sample(), judged), spreads, pairs, sample)


@define(eq=False, slots=False)
class _Run:
    """A run with some turns."""

    _owner: Turning
    path: Path
    result: Value
    is_exhausted: bool = False
    """Whether no further turn would bring it nearer to what was looked for."""
    compared: Comparison = Comparison(())
    """The side that it was looked for, compared with it."""

    @property
    def turns(self) -> Sequence[Turn]:
        return self.path.turns

    @cached_property
    def spreads(self) -> Mapping[str, Spread]:
        """What rounding does to its results, where it decides like this."""
        self.path.is_followed = True
        return next(self._owner.sample(stages=(_RUNS,), observers=[self.path])).spreads

    @cached_property
    def close(self) -> Sequence[Turn]:
        """The decisions that rounding may turn."""
        return self.path.close() if self.spreads else ()

    def paired(self, side: _Side) -> list[Pair]:
        """The leaves of a side with those of the result."""
        leaves = dict(leaves_of(self.result, "run's"))
        # A lone leaf may be labelled in either way.
        lone = next(iter(leaves.values())) if len(leaves) == 1 else None
        return [(label, array, leaves.get(label, lone)) for label, array in side]

    @property
    def is_explained(self) -> bool:
        return not self.compared.different

    def faults(self) -> dict[str, str]:
        """The leaves that are off as a whole, whatever is turned, and how."""
        if not self.is_exhausted:
            return {}
        return {leaf.label: leaf.note or "it is off as a whole" for leaf in self.compared.different if is_whole(leaf)}


def _off(leaves: Sequence[LeafComparison]) -> int:
    """How many elements are different."""
    return sum(max(1, leaf.mismatches) for leaf in leaves if leaf.verdict is Verdict.DIFFERENT)


def _is_doubtful(leaf: LeafComparison) -> bool:
    """Whether a leaf may be off as a whole."""
    return leaf.is_suspect or (leaf.verdict is Verdict.DIFFERENT and is_whole(leaf))


def _not_decided(leaf: LeafComparison, turns: Sequence[Turn]) -> LeafComparison:
    """A leaf that the turns explain."""
    measured, other = leaf.measured, leaf.undecided
    if leaf.verdict.agrees or measured is None or (other is not None and other.instructions):
        return leaf
    names = tuple(dict.fromkeys(turn.place for turn in turns))
    said = listing((f"%{name.rpartition('/')[2]}" for name in names), 3)
    many = "a decision" if len(turns) == 1 else f"{len(turns)} decisions"
    farthest = max(turn.distance for turn in turns)
    reason = (
        f"{many} of {said} may go either way ({farthest:.1f} spreads of the operands at most): turned, they give what "
        "the sides have"
    )
    first = tuple(element.index for element in measured.first[:_FIRST])
    return attrs.evolve(
        leaf, verdict=Verdict.NOT_DECIDED, undecided=Undecided(measured.mismatches, first, names, reason)
    )


def _different(leaf: LeafComparison, note: str) -> LeafComparison:
    """A leaf that is off as a whole from all runs, if there is a note."""
    if not note:
        return leaf
    return attrs.evolve(leaf, verdict=Verdict.DIFFERENT, note=f"beside runs that decide alike, {note}")
