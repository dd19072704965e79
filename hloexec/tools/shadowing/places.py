"""How an instruction loses digits, what it has done to them in a run, and where the errors of values come from.

Absorption: a sum that has nothing of one of its operands, or few of its digits; a product that is one of its
operands.

Compilers compute sums of narrow types in wide ones, and round them by a convert behind them. So the operands of a sum
or product are kept until the convert has run, and the convert is the one that absorbs.

How an instruction loses digits: what a sample of its elements shows.

- *cancellation*: r = a ± b is far smaller than a and b, which have most of their digits right: their rounding, harmless
  in them, is large in r. It adds nothing itself, and is to blame for what it inherits.
- *absorption*: r = a ± b is one of a and b, or takes half of the digits of the smaller one with it when it is rounded,
  or when it is converted to a narrower type; or a product is one of its factors, which exactly it is not. In a loop, or
  in an instruction that adds up many numbers one after the other, these are *lost updates*. Where operands cancel, what
  was absorbed before stays to blame: it may be all that exactly is left.
- *overflow*: an infinity, or NaN, where the exact result of the same operands is a number.
- *underflow*: zero, or a denormal number without half of its digits, in place of what is neither.
- *rounding*: everything else.

What each instruction has done to the digits in a run, and where the errors of values come from.

What an instruction adds is its own; what it inherits comes from its operands, in proportion to what each operand's
error, by itself, changes in the result; a sum whose operands cancel takes over what it inherits. The shares of squared
errors are those of whole arrays. So an error that no output depends on, or that the next instruction makes small, is
in no output's shares. Elements that vanish are followed beside that: their errors are small, and yet their logarithms
and reciprocals are infinite.

These shares are estimates, as errors need not be independent; `shadowing.alone` measures them.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, smallest_normal, unit_roundoff
from hloexec.core.ir import ArrayShape, Computation, Instruction
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.engine.exec.observers import Event
from hloexec.engine.exec.observers import Place as RunPlace
from hloexec.ops.registry import traits_of
from hloexec.ops.traits import Traits
from hloexec.tools.shadowing.computing.elements import Sample, taken
from hloexec.tools.shadowing.store import Amounts, Blame, Shadows

if TYPE_CHECKING:
    from hloexec.tools.shadowing.looping.accounts import Runs


_MOST_ABSORBING = 1 << 16
"""Elements of an array whose absorbed elements are remembered."""


class Absorbing:
    """Finds what one instruction absorbs."""

    def __init__(self, computation: Computation, instruction: Instruction) -> None:
        traits = traits_of(instruction)
        self.combines = _combines(traits)
        self.is_sum = traits.cancels
        source = computation.by_name.get(instruction.operands[0]) if traits.converts and instruction.operands else None
        self.source = source.name if source is not None and _combines(traits_of(source)) else None
        """Of a convert, the sum or product that it rounds."""
        self.is_rounded = self.combines and any(
            traits_of(user).converts and _is_narrower(user, instruction)
            for user in computation.users.get(instruction.name, ())
        )
        """Whether a convert rounds it further."""
        self._kept: tuple[weakref.ref[Any], tuple[Array, ...]] | None = None

    def keep(self, value: Array, operands: Sequence[Array]) -> None:
        """Keep the operands of what a convert will round."""
        if self.is_rounded and value.size <= _MOST_ABSORBING:
            self._kept = weakref.ref(value), tuple(operands)

    def combined(
        self, operands: Sequence[Array], source: Absorbing | None, first: Array | None
    ) -> tuple[Sequence[Array], bool] | None:
        """The operands of the sum or product whose rounded result an instruction gives, and whether it is a sum; None
        where it gives none. `first` is the whole of its first operand, where `operands` are some elements."""
        if self.combines:
            return operands, self.is_sum
        if first is None or source is None or source._kept is None or source._kept[0]() is not first:
            return None
        return source._kept[1], source.is_sum


def _combines(traits: Traits) -> bool:
    return traits.cancels or traits.is_product


def _is_narrower(user: Instruction, instruction: Instruction) -> bool:
    ours, theirs = user.shape, instruction.shape
    return (
        isinstance(ours, ArrayShape)
        and isinstance(theirs, ArrayShape)
        and ours.element_type.is_floating
        and ours.element_type.mantissa_bits < theirs.element_type.mantissa_bits
    )


def absorbed(
    value: Array, combined: Sequence[Array], added: Array, entry: ElementType, *, is_sum: bool
) -> Array | None:
    """Which elements of a result absorb one of the numbers that they are made of: they are the other one, though
    exactly they are not; or a sum whose rounding takes half of the digits of the smaller number. None where none does.

    All are in f64 (c128); `added` is what rounding adds to each, and `entry` the element type of the result.
    """
    if not np.count_nonzero(added):
        return None
    ours = np.abs(value)
    sizes = [np.abs(operand) for operand in combined]
    mask = np.zeros(ours.shape, np.bool_)
    for size in sizes:
        mask |= ours == size
    if is_sum and len(sizes) == 2:
        mask |= np.abs(added) > math.sqrt(unit_roundoff(entry)) * np.minimum(*sizes)
    if not np.count_nonzero(mask):
        return None
    return np.asarray(mask & (added != 0) & np.isfinite(ours))


def absorbed_before(shadows: Shadows, places: Array | None) -> Array | None:
    """Where the error of an operand comes from absorption."""
    mask = None
    for shadow in shadows:
        if shadow is not None and shadow.absorbed is not None:
            its = taken(shadow.absorbed, places)
            mask = its if mask is None else mask | its
    return mask


KINDS = {
    "rounding": "its result is rounded",
    "cancellation": "its operands cancel, and their rounding errors remain",
    "absorption": "one operand is too small to change the other",
    "lost updates": "the updates are too small to change what they are added to",
    "overflow": "its result overflows",
    "underflow": "its result underflows",
}
"""The kinds of losses, and a clause about each."""


@define(eq=False)
class Losses:
    """What an instruction does to some elements of one run of it. Energies are sums of squared errors."""

    count: int
    scale: float
    """The sum of the squares of the exact results, but for elements that are infinite or NaN and should not be."""
    added: float
    inherited: float
    weights: tuple[float, ...] = ()
    """Of the inherited energy, how much comes from each operand's finite errors; they add up to 1 or are all 0."""
    lost_weights: tuple[float, ...] = ()
    """Of the inherited energy, how much comes from where each operand is infinite or NaN and should not be."""
    kinds: dict[str, float] = attrs.field(factory=dict)
    """The added energy by kind; of `cancellation`, the inherited energy that it is to blame for."""
    counts: dict[str, int] = attrs.field(factory=dict)
    """How many elements are affected, by kind; rounding is not counted."""
    born: int = 0
    """Elements that are infinite or NaN, exactly should not be, and whose operands, as they are, would not make so."""
    passed: int = 0
    """Such elements whose operands, as they are, make them so."""
    steps: int = 0
    """In how many steps of its own the instruction has absorbed a number."""
    vanished: int = 0
    """Elements that are zero, exactly should not be, and were not made so by an operand that is; and those that have
    absorbed a number, where that is no less than the error that they inherit."""
    vanished_weights: tuple[int, ...] | None = None
    """How many elements of each operand are zero, exactly should not be, and make the result zero; None if there are
    none, and empty where operands have no element for each of the result's."""
    pole_weights: tuple[int, ...] | None = None
    """The same of those that make the result infinite or NaN."""

    def scaled(self, energy: float) -> Losses:
        """What a sample shows, as of the whole array with this energy."""
        total = self.added + self.inherited
        if not total > 0 or not np.isfinite(energy):
            return self
        factor = energy / total
        self.scale *= factor
        self.added *= factor
        self.inherited *= factor
        self.kinds = {kind: amount * factor for kind, amount in self.kinds.items()}
        return self


def losses(sample: Sample, entry: ElementType, traits: Traits, unit: float = 0.0) -> Losses:
    """What a sample shows of an instruction with results of an element type, whose operands' errors were made in types
    of up to this unit roundoff."""
    with np.errstate(all="ignore"):
        added, rest = summed_squares(sample.added)
        is_inheriting = not sample.parts or any(part is not None for part in sample.parts)
        inherited, total = summed_squares(sample.inherited) if is_inheriting else (_NOTHING, 0.0)
        kinds: dict[str, float] = {}
        counts: dict[str, int] = {}
        exact = sample.exact
        passing, born, passed = None, 0, 0
        if not is_finite(sample.value):
            lost = ~np.isfinite(sample.value) & np.isfinite(exact)
            exact = np.where(lost, 0, exact)
            passing = lost & ~np.isfinite(sample.here)
            passed = int(np.count_nonzero(passing))
            born = int(np.count_nonzero(lost)) - passed
        if born:
            counts["overflow"] = born
        absorbing = 0 if sample.absorbed is None else int(np.count_nonzero(sample.absorbed))
        if absorbing:
            kinds["absorption"] = float(added[sample.absorbed].sum())
            counts["absorption"] = absorbing
        if is_inheriting and traits.cancels and len(sample.operands) == 2:
            _note(
                "cancellation", cancelled(sample, max(unit, unit_roundoff(entry)), inherited), inherited, kinds, counts
            )
        sizes = np.abs(sample.value)
        # NaN where an element is NaN.
        least = np.minimum.reduce(sizes)
        if not least >= smallest_normal(entry):
            _note("underflow", underflown(sample, sizes, entry), added, kinds, counts)
        named = sum(energy for kind, energy in kinds.items() if kind != "cancellation")
        kinds["rounding"] = max(0.0, rest - named)
        weights, lost_weights = _weights(sample, inherited, total)
        ruling = np.False_ if sample.absorbed is None else sample.absorbed & (added >= inherited)
        vanished, vanished_weights = int(np.count_nonzero(ruling)), None
        if not least > 0:
            vanished, vanished_weights = _zeros(sample, traits, ruling)
    return Losses(
        count=sample.value.size,
        scale=summed_squares(exact)[1],
        added=rest,
        inherited=total,
        weights=weights,
        lost_weights=lost_weights,
        kinds=kinds,
        counts=counts,
        born=born,
        passed=passed,
        vanished=vanished,
        vanished_weights=vanished_weights,
        pole_weights=None if passing is None else _count_vanished(sample, passing),
    )


def _zeros(sample: Sample, traits: Traits, ruling: Array | np.bool_) -> tuple[int, tuple[int, ...] | None]:
    """How many elements vanish or absorb in the instruction, and of those that vanished before, the operands'."""
    new, before = zeros(sample, traits)
    return int(np.count_nonzero(new | ruling)), _count_vanished(sample, before)


def zeros(sample: Sample, traits: Traits) -> tuple[Array, Array]:
    """Where elements vanish in the instruction, and where they vanished before."""
    vanished = (sample.value == 0) & (sample.exact != 0)
    before = sample.absorbed_before if sample.absorbed_before is not None else np.False_
    new = vanished & ~before if traits.cancels else vanished & (sample.here != 0)
    return new, vanished & ~new


def _count_vanished(sample: Sample, where: Array) -> tuple[int, ...] | None:
    """For each operand, how many of some elements it has as zeros that exactly are none, or in which something was
    absorbed."""
    return tuple(int(np.count_nonzero(each)) for each in vanished_before(sample, where)) if where.any() else None


def vanished_before(sample: Sample, where: Array) -> list[Array]:
    """The same as elements, for each operand."""
    masks = []
    for operand, shadow in zip(sample.operands, sample.shadows, strict=True):
        is_zero = (operand == 0) & (shadow != 0) if shadow is not None else np.False_
        if shadow is not None and sample.absorbed_before is not None:
            is_zero = is_zero | (sample.absorbed_before & (operand != shadow))
        masks.append(where & is_zero)
    return masks


def is_finite(values: Array) -> bool:
    """Whether all are finite; a finite sum, which takes one pass, has no infinity in it."""
    return math.isfinite(abs(np.add.reduce(values))) or bool(np.isfinite(values).all())


_NOTHING = np.zeros(1)
_MOST_SQUARE = 1e300
"""Squares are cut there, so that their sums stay finite."""


def squares(values: Array) -> Array:
    """The squared absolute values; 0 of what is not finite."""
    return summed_squares(values)[0]


def summed_squares(values: Array) -> tuple[Array, float]:
    """The same, and their sum."""
    squares = values.real**2 + values.imag**2 if values.dtype.kind == "c" else np.square(values, dtype=np.float64)
    total = float(np.add.reduce(squares, axis=None))
    if not total <= _MOST_SQUARE:
        squares = np.minimum(np.where(np.isfinite(values), squares, 0.0), _MOST_SQUARE)
        total = float(np.add.reduce(squares, axis=None))
    return squares, total


def _note(kind: str, where: Array | None, energies: Array, kinds: dict[str, float], counts: dict[str, int]) -> None:
    if where is not None:
        kinds[kind] = float(energies[where].sum())
        counts[kind] = int(np.count_nonzero(where))


def cancelled(sample: Sample, unit: float, inherited: Array) -> Array | None:
    """Where a sum or difference of two operands is far smaller than they are, and they have half of their digits; None
    where nowhere. The inherited errors are squared."""
    largest = np.maximum(*map(np.abs, sample.operands))
    mask = largest >= unit**-0.25 * np.abs(sample.exact)
    if not np.count_nonzero(mask):
        return None
    before = np.zeros(largest.shape)
    for operand, shadow in zip(sample.operands, sample.shadows, strict=True):
        if shadow is not None:
            before = np.maximum(before, np.abs(operand - shadow))
    mask = mask & (inherited > 0) & (before <= np.sqrt(unit) * largest)
    if sample.absorbed_before is not None:
        mask &= ~sample.absorbed_before
    return mask if mask.any() else None


def underflown(sample: Sample, sizes: Array, entry: ElementType) -> Array | None:
    """Where results below the normal numbers, of these absolute values, have lost half of their digits, or all; None
    where none has."""
    low = sizes < smallest_normal(entry)
    if low.any():
        low &= (sample.here != 0) & np.isfinite(sample.here)
        low &= np.abs(sample.added) > np.sqrt(unit_roundoff(entry)) * np.abs(sample.here)
    return low if low.any() else None


def _weights(sample: Sample, inherited: Array, total: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of what operands do to the result, which is `total` altogether, the shares of their finite errors and those of
    their lost elements."""
    finite, lost = [0.0] * len(sample.operands), [0.0] * len(sample.operands)
    is_one = sum(part is not None for part in sample.parts) == 1
    for number, (operand, part) in enumerate(zip(sample.operands, sample.parts, strict=True)):
        if part is not None:
            if is_finite(operand):
                # One operand alone does all of it.
                finite[number] = total if is_one else summed_squares(part)[1]
            else:
                energies = squares(part)
                its_finite = np.broadcast_to(np.isfinite(operand), energies.shape)
                finite[number] = float(energies[its_finite].sum())
                lost[number] = float(inherited[~its_finite].sum())
    total = sum(finite) + sum(lost)
    if not total:
        return tuple(finite), tuple(lost)
    return tuple(weight / total for weight in finite), tuple(weight / total for weight in lost)


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

    def note(self, event: Event, losses: Losses) -> None:
        """Take one run into account."""
        self.runs += 1
        self.take(losses)
        scale = losses.scale if losses.scale > 0 else 1.0
        added = min((losses.added / scale) ** 0.5, 1.0) if not losses.born else 1.0
        inherited = min((losses.inherited / scale) ** 0.5, 1.0)
        if losses.kinds.get("absorption", 0.0) > 0.5 * losses.added:
            self.absorbing_runs += losses.steps or int(event.iteration is not None)
        if self.worst is None or max(added, inherited) > max(self.worst.added, self.worst.inherited):
            self.worst = Worst(event.name, event.iteration, event.devices, inherited, added)

    def note_runs(self, runs: Runs, where: Callable[[int], RunPlace]) -> None:
        """Take several runs within a loop into account; `where` says where each was."""
        counting = runs.energy > 0
        if not counting.any():
            return
        self.runs += int(np.count_nonzero(counting))
        scale = np.where(runs.scale > 0, runs.scale, 1.0)
        for kind, energies in runs.kinds.items():
            amounts = np.minimum(energies / scale, 1.0)[counting]
            if amounts.any():
                self.kinds[kind] = self.kinds.get(kind, 0.0) + float(amounts.sum())
        for kind, counts in runs.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + int(counts[counting].sum())
        if "absorption" in runs.kinds:
            self.absorbing_runs += int(np.count_nonzero(runs.kinds["absorption"] > 0.5 * runs.added))
        added, inherited = (
            np.minimum(np.sqrt(row_energies / scale), 1.0) for row_energies in (runs.added, runs.inherited)
        )
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

    def take(self, losses: Losses, *, only_counts: bool = False) -> None:
        """Take into account how a run loses digits."""
        scale = losses.scale if losses.scale > 0 else 1.0
        for kind, energy in () if only_counts else losses.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0.0) + min(energy / scale, 1.0)
        for kind, count in losses.counts.items():
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
            losing_kinds = (kind for kind in ("underflow", "absorption", "cancellation") if self.counts.get(kind))
            kind = next(losing_kinds, kind)
        if kind == "absorption" and self.absorbing_runs > 1:
            return "lost updates"
        return kind


_LEAST = 1e-5
"""Smaller shares are forgotten."""
_MOST = 24
"""The number of shares that are kept."""


def blamed(place: int, losses: Losses, shadows: Shadows, entry: ElementType) -> Blame:
    """The blame of what an instruction gives, from that of its operands."""
    cancelled = min(losses.kinds.get("cancellation", 0.0), losses.inherited)
    own = losses.added + cancelled
    total = losses.added + losses.inherited
    shares: Amounts = {}
    lost: Amounts = {}
    if total > 0:
        add_shares(shares, {place: 1.0}, own / total)
        rest = (losses.inherited - cancelled) / total
        for shadow, weight, lost_weight in zip(shadows, losses.weights, losses.lost_weights, strict=False):
            if shadow is not None:
                add_shares(shares, shadow.blame.shares, rest * weight)
                add_shares(shares, shadow.blame.lost, rest * lost_weight)
    if losses.born:
        lost[place] = float(losses.born)
    if losses.passed:
        culprits = [shadow for shadow in shadows if shadow is not None and shadow.lost]
        for shadow in culprits:
            add_shares(lost, shadow.blame.lost, losses.passed / len(culprits))
        zeros = {} if culprits else _vanished(shadows, losses.pole_weights or ())
        add_shares(lost, zeros, losses.passed / (sum(zeros.values()) or 1.0))
        if not culprits and not zeros:
            # Other finite errors made it so: the logarithm of what has become negative.
            for shadow, weight in zip(shadows, _even(shadows, losses.weights), strict=True):
                if shadow is not None:
                    add_shares(lost, shadow.blame.shares, losses.passed * weight)
    vanished = {place: float(losses.vanished)} if losses.vanished else {}
    if losses.vanished_weights is not None:
        add_shares(vanished, _vanished(shadows, losses.vanished_weights), 1.0)
    units = [shadow.blame.unit for shadow in shadows if shadow is not None]
    if losses.added > 0 or losses.born:
        units.append(unit_roundoff(entry))
    return Blame(kept(shares), kept(lost), largest(vanished), max(units, default=0.0))


def merged(shadows: Shadows, weights: Sequence[float] | None = None) -> Blame:
    """The blame of an array that consists of elements of others; the weights are those of their energies."""
    known_shadows = [shadow for shadow in shadows if shadow is not None]
    if len(known_shadows) == 1:
        return known_shadows[0].blame
    if weights is None:
        weights = [0.0 if shadow is None else shadow.energy for shadow in shadows]
    shares: Amounts = {}
    lost: Amounts = {}
    for shadow, weight in zip(shadows, weights, strict=True):
        if shadow is not None:
            add_shares(shares, shadow.blame.shares, weight)
            add_shares(lost, shadow.blame.lost, float(shadow.lost))
    vanished: Amounts = {}
    for shadow in known_shadows:
        add_shares(vanished, shadow.blame.vanished, 1.0)
    units = [shadow.blame.unit for shadow in known_shadows]
    return Blame(kept(shares), kept(lost), largest(vanished), max(units, default=0.0))


def with_vanished(blame: Blame, found: Blame) -> Blame:
    """A blame, and who has made zeros of further elements, as these say."""
    vanished = dict(blame.vanished)
    add_shares(vanished, found.vanished, 1.0)
    return attrs.evolve(blame, vanished=largest(vanished))


def _vanished(shadows: Shadows, weights: Sequence[int]) -> Amounts:
    """Who has made zeros of elements of operands, which count by their weights; of whole arrays all count alike."""
    found: Amounts = {}
    for number, shadow in enumerate(shadows):
        if shadow is not None and shadow.blame.vanished:
            total = sum(shadow.blame.vanished.values())
            add_shares(found, shadow.blame.vanished, (weights[number] if weights else 1.0) / total)
    return found


def _even(shadows: Shadows, weights: Sequence[float]) -> list[float]:
    if sum(weights) > 0:
        return list(weights)
    count = sum(shadow is not None for shadow in shadows)
    return [0.0 if shadow is None else 1.0 / count for shadow in shadows]


def add_shares(target: Amounts, shares: Mapping[int, float], factor: float) -> None:
    """Add shares, as many times, to others."""
    if factor > 0:
        for place, share in shares.items():
            target[place] = target.get(place, 0.0) + factor * share


def kept(shares: Amounts) -> Amounts:
    """The largest, so that they add up to 1."""
    total = sum(shares.values())
    if not total > 0:
        return {}
    large = {place: share for place, share in largest(shares).items() if share > _LEAST * total}
    total = sum(large.values())
    return {place: share / total for place, share in large.items()}


def largest(shares: Amounts) -> Amounts:
    """Those that are kept, where there are many."""
    if len(shares) <= _MOST:
        return shares
    return dict(sorted(shares.items(), key=lambda entry: -entry[1])[:_MOST])
