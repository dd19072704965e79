"""Runs of a module whose decisions are noted, turned, or held: comparisons, roundings, sorts.

How close a decision is shows in its operands: runs that round at random, but decide as the run without random errors
does, say how far rounding moves these. A decision is close if it would turn within `REACH` standard deviations.

Decisions that rounding may turn, turned in runs of their own.

What follows from a decision that rounding turns once in a thousand runs shows in no sample, or in few. Close decisions
(`numerics.sampling.paths`) are therefore turned one at a time, the closest first, in runs without random errors. One
that brings the results nearer to the side that is to be explained stays turned in the runs that follow. If the side is
as near to the last of these as samples explain that decide like it, these decisions explain the side. What is beyond
that is *different*, as a fault beside a turned decision is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.analysis.dataflow.dependences import decides
from hloexec.analysis.numerics.comparison import Comparison, LeafComparison, Undecided, Verdict
from hloexec.analysis.numerics.leaves import Pair, leaves_of
from hloexec.analysis.numerics.sampling.decided import Labels, is_whole, settled, with_groups
from hloexec.analysis.numerics.sampling.runs import Sample, Sampled
from hloexec.analysis.numerics.sampling.spread import Spreads, by_either_label
from hloexec.analysis.numerics.selections import ModuleValue, order_of
from hloexec.analysis.numerics.undecided import run_of
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Module
from hloexec.core.places import split_name
from hloexec.core.structs import define, frozen
from hloexec.core.tree import flat
from hloexec.core.values import Array, Value
from hloexec.core.wording import listing
from hloexec.engine.exec.observers import Event, Failure
from hloexec.errors import HloError
from hloexec.ops.common import wide
from hloexec.ops.registry import is_elementwise, traits_of

REACH = 5.5
"""As many spreads as rounding may move anything."""
_STEPS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, REACH)
_MOST_ELEMENTS = 1 << 22
"""Of operands of decisions that are kept."""

_Key: TypeAlias = tuple[str, int]
"""The path and the instruction, and a device."""


_Held: TypeAlias = tuple[Array | None, list[int] | None]
"""What runs that follow have in common with a run, of one array: its value, and at which flat places, if not all."""


@frozen
class Turn:
    """A decision that can be turned."""

    key: _Key
    place: str
    """COMPUTATION/INSTRUCTION."""
    distance: float
    """How many spreads the other way is away."""
    operand: int
    element: int
    """Which operand is decided on, and the flat place of its element."""
    change: float = 0.0
    """By what it changes."""
    other: int | None = None
    """The element with which it changes places in an order."""

    @property
    def pair(self) -> tuple[_Key, frozenset[int | None]]:
        """What is turned, whichever way."""
        return self.key, frozenset((self.element, self.other))


@frozen(eq=False)
class _Subject:
    """What an instruction decides on."""

    operand: int
    pairs: tuple[Array, Array] | None = None
    """Flat places of neighbours in an order; None where each element is decided on by itself."""
    direction: int = 0
    """Which way the second of a pair goes, if it is to come first."""
    is_whole: bool = True
    """Whether runs that follow decide like it throughout. Of many elements that are decided on one by one, such as
    those of a ReLU, little hangs on each, and there are too many to turn all that go another way."""


@frozen(eq=False)
class _Margins:
    """How far what one instruction decides is from turning."""

    place: str
    subject: _Subject
    base: Array
    squares: Array
    """The sums of squares of what samples are off by."""
    jumps: Callable[[Array], Array] | None
    """Which elements of the result change if those of the operand do by so much; None of a comparison: all do."""

    def turns(self, key: _Key, samples: int) -> Iterator[Turn]:
        """The close decisions."""
        scales = np.sqrt(self.squares / samples)
        if self.jumps is None:
            with np.errstate(all="ignore"):
                distances = np.abs(self.base) / scales
            for place in np.flatnonzero(distances <= REACH).tolist():
                element, other = place, None
                if self.subject.pairs is not None:
                    element, other = (int(side[place]) for side in self.subject.pairs)
                yield Turn(
                    key,
                    self.place,
                    float(distances[place]),
                    self.subject.operand,
                    element,
                    self.subject.direction,
                    other,
                )
            return
        settled = ~(scales > 0)
        for step in _STEPS:
            for sign in (1, -1):
                turned = self.jumps(sign * step * scales).reshape(-1) & ~settled
                settled |= turned
                for place in np.flatnonzero(turned).tolist():
                    yield Turn(key, self.place, step, 0, place, float(sign * step * scales[place]))


@define(eq=False, slots=False)
class Path:
    """The controller of a run that takes some turns, and notes what it decides. Once it is followed, runs decide like
    it, whatever they round."""

    module: Module
    turns: Sequence[Turn] = ()
    is_followed: bool = False
    _held: dict[_Key, list[_Held]] = attrs.field(factory=dict, init=False)
    _margins: dict[_Key, _Margins] = attrs.field(factory=dict, init=False)
    _decides: dict[tuple[str, str], bool] = attrs.field(factory=dict, init=False)
    _size: int = 0
    _followed: dict[_Key, int] = attrs.field(factory=dict, init=False)

    def close(self) -> list[Turn]:
        """What was close in the runs that followed: first what much hangs on, then the closest."""
        margins = self._margins
        turns = [turn for key in margins for turn in margins[key].turns(key, self._followed.get(key, 1))]
        return sorted(turns, key=lambda turn: (not margins[turn.key].subject.is_whole, turn.distance))

    def on_failure(self, failure: Failure) -> None:
        """Called by the run."""

    def on_value(self, event: Event) -> Value | None:
        """Called by the run."""
        place = event.computation.name, event.instruction.name
        if place not in self._decides:
            self._decides[place] = decides(event.computation, event.instruction)
        if not self._decides[place]:
            return None
        key, value = (event.name, event.devices[0]), event.value
        if self.is_followed:
            self._compare(key, event)
            return _with_leaves(value, self._held.get(key, []))
        subject = _subject(self.module, event)
        if subject is not None:
            self._measure(key, event, subject)
        turns = [turn for turn in self.turns if turn.key == key]
        for turn in turns:
            value = self._turned(turn, event, value)
        if turns or (not is_elementwise(event.instruction) if subject is None else subject.is_whole):
            self._held[key] = [
                (_kept(event, leaf), None if subject is None or subject.is_whole else [turn.element for turn in turns])
                for leaf in flat(value)
            ]
        return None if value is event.value else value

    def _measure(self, key: _Key, event: Event, subject: _Subject) -> None:
        """Note how far the decisions of an instruction are from turning."""
        base = _margin(event, subject)
        self._size += 0 if subject.is_whole else base.size
        if self._size > _MOST_ELEMENTS:
            return
        is_simple = subject.pairs is not None or _compares(event)
        jumps = None if is_simple else partial(_jumps, run_of(self.module, event.computation, event.instruction), event)
        place = f"{event.computation.name}/{event.instruction.name}"
        self._margins[key] = _Margins(place, subject, base, np.zeros(base.shape), jumps)

    def _compare(self, key: _Key, event: Event) -> None:
        """Note how far rounding has moved what an instruction decides on."""
        margins = self._margins.get(key)
        if margins is not None:
            moved = _margin(event, margins.subject)
            if moved.shape == margins.base.shape:
                margins.squares[...] += (moved - margins.base) ** 2
                self._followed[key] = self._followed.get(key, 0) + 1

    def _turned(self, turn: Turn, event: Event, value: Value) -> Value:
        """What an instruction gives once a decision of it is turned."""
        if _compares(event):
            changed = np.array(value)
            changed.reshape(-1)[turn.element] ^= True
            return changed
        operands = [np.array(operand) for operand in flat(event.operands)]
        operand = operands[turn.operand].reshape(-1)
        if turn.other is None:
            operand[turn.element] = wide(operand[turn.element : turn.element + 1])[0] + turn.change
        else:
            first, second = operand[[turn.element, turn.other]]
            # Of two that are equal, the one that comes later has to be the other's neighbour.
            operand[turn.element] = second
            operand[turn.other] = first if first != second else _next(first, turn.change)
        result: Value = run_of(self.module, event.computation, event.instruction)(operands)[0]
        return result


def _kept(event: Event, leaf: Array) -> Array | None:
    """What of an array is decided; None where it rounds."""
    is_whole = traits_of(event.instruction).jumps and not (leaf != np.rint(wide(leaf))).any()
    return leaf if is_whole or not element_type_of(leaf.dtype).is_inexact else None


def _with_leaves(value: Value, held: Sequence[_Held]) -> Value | None:
    """A value with what is held of another run's, where that has the same shapes."""
    leaves = []
    for array, (other, places) in zip(flat(value), held, strict=False):
        if other is not None and other.shape == array.shape:
            array = np.array(array)
            where = slice(None) if places is None else places
            array.reshape(-1)[where] = other.reshape(-1)[where].astype(array.dtype)
        leaves.append(array)
    return None if not leaves else tuple(leaves) if isinstance(value, tuple) else leaves[0]


def _subject(module: Module, event: Event) -> _Subject | None:
    """What an instruction decides on; None where that cannot be told."""
    instruction, operands = event.instruction, flat(event.operands)
    if is_elementwise(instruction):
        is_number = not traits_of(instruction).reads_bits and element_type_of(operands[0].dtype).is_floating
        return _Subject(0, is_whole=operands[0].size == 1) if is_number else None
    found = order_of(module, ModuleValue(event.computation, instruction))
    if found is None or operands[found[0]].size == 0:
        return None
    number, dimension, count = found
    keys = np.moveaxis(wide(operands[number]), dimension, -1)
    places = np.moveaxis(np.arange(keys.size).reshape(operands[number].shape), dimension, -1)
    order = np.take_along_axis(places, np.argsort(keys, axis=-1, kind="stable"), -1)
    chosen = wide(flat(event.value)[number])
    largest = keys.max(-1, initial=-np.inf)
    is_descending = bool(
        (largest == (chosen if chosen.ndim < keys.ndim else np.moveaxis(chosen, dimension, -1)[..., 0])).all()
    )
    if is_descending:
        # Of equal ones, the first comes first in either direction.
        flipped = np.argsort(keys[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        order = np.take_along_axis(places[..., ::-1], flipped, -1)
    # Only the border between what is chosen and what is not decides, and the order of what is.
    order = order[..., : None if count is None else count + 1]
    return _Subject(number, (order[..., :-1].reshape(-1), order[..., 1:].reshape(-1)), 1 if is_descending else -1)


def _compares(event: Event) -> bool:
    """Whether an instruction compares one number with another."""
    return is_elementwise(event.instruction) and len(event.operands) == 2 and flat(event.value)[0].dtype == np.bool_


def _margin(event: Event, subject: _Subject) -> Array:
    """How far decisions are from turning."""
    operands = flat(event.operands)
    keys = wide(operands[subject.operand]).reshape(-1).astype(np.float64)
    if subject.pairs is not None:
        return keys[subject.pairs[0]] - keys[subject.pairs[1]]
    if _compares(event):
        return keys - wide(operands[1]).reshape(-1).astype(np.float64)
    return keys


def _jumps(kernel: Callable[..., list[Value]], event: Event, changes: Array) -> Array:
    """Which elements of a result are others if those of the first operand change."""
    first, *others = flat(event.operands)
    moved = (wide(first).astype(np.float64) + changes.reshape(first.shape)).astype(first.dtype)
    (value,) = kernel([moved, *others])
    return np.asarray(flat(value)[0] != flat(event.value)[0])


def _next(number: Any, direction: float) -> Any:
    """The next number in a direction."""
    return np.nextafter(number, np.asarray(np.copysign(np.finfo(np.float32).max, direction), number.dtype))


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
_Judge: TypeAlias = Callable[[Spreads, Sequence[Pair]], Sequence[LeafComparison]]


def with_decisions(comparison: Comparison, spreads: Spreads, pairs: Sequence[Pair], turning: Turning) -> Comparison:
    """A comparison with these spreads, with elements *not decided* of which rounding decides. What all runs explain
    that round at random is *different*, too, if it is off as a whole from those that decide alike."""
    return turning.explained(turning.grouped(comparison, spreads, pairs, turning.sample), pairs)


@define(eq=False)
class Turning:
    """The search."""

    module: Module
    judge: _Judge
    """Compares pairs, with these spreads."""
    sample: Sample
    run: Callable[[Path], Value]
    """Gives the result of a run that is controlled so."""

    def grouped(self, comparison: Comparison, spreads: Spreads, pairs: Sequence[Pair], sample: Sample) -> Comparison:
        """A comparison with what groups of samples show."""
        return with_groups(comparison, pairs, spreads, sample, self.judge, self.module)

    def explained(self, comparison: Comparison, pairs: Sequence[Pair]) -> Comparison:
        """A comparison, with leaves *not decided* whose sides are results of runs that decide otherwise, and others
        *different* that are off as a whole from all runs."""
        labels = Labels(self.module)
        if any(leaf.measured is None or not labels.decides(leaf.label) for leaf in comparison.different):
            return comparison
        if comparison.agrees and not any(
            leaf.unequal and leaf.tolerance.factor and labels.is_ordered(leaf.label) for leaf in comparison.leaves
        ):
            return comparison
        try:
            start = self._run(())
            if not start.close:
                return comparison
            sides = ([(label, arrays[number]) for label, *arrays in pairs] for number in (0, 1))
            ends = [self._search(side, start, comparison) for side in sides]
        except HloError:
            return comparison
        if all(end.is_explained for end in ends):
            turns = [*dict.fromkeys(turn for end in ends for turn in end.turns)]
            return Comparison(tuple(_not_decided(leaf, turns) for leaf in comparison.leaves)) if turns else comparison
        notes = {label: note for end in ends for label, note in end.faults().items()}
        return Comparison(tuple(_different(leaf, notes.get(leaf.label, "")) for leaf in comparison.leaves))

    def _run(self, turns: Sequence[Turn]) -> _Run:
        path = Path(self.module, turns)
        return _Run(self, path, self.run(path))

    def _search(self, side: _Side, start: _Run, comparison: Comparison) -> _Run:
        """The run with turns that explains one side, or is as near as any. Unless something was found to be different,
        what is off as a whole is all that counts."""
        is_thorough = bool(comparison.different)
        run, trials = start, 0
        while off := _off(leaves := self.judge(run.spreads, run.paired(side))):
            if comparison.agrees and not any(map(_is_doubtful, leaves)):
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
        spreads: Spreads = {}

        def judged(sampled: Sampled) -> Comparison:
            nonlocal spreads
            spreads = by_either_label(sampled.spreads)
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
    def spreads(self) -> Spreads:
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
    said = listing((f"%{split_name(name)[1]}" for name in names), 3)
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
