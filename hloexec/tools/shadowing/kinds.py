"""How an instruction loses digits: what a sample of its elements shows.

- *cancellation*: r = a ± b is far smaller than a and b, which have most of their digits right: their rounding, harmless
  in them, is large in r. It adds nothing itself, and is to blame for what it inherits.
- *absorption*: r = a ± b is one of a and b, or takes half of the digits of the smaller one with it when it is rounded,
  or when it is converted to a narrower type; or a product is one of its factors, which exactly it is not. In a loop, or
  in an instruction that adds up many numbers one after the other, these are *lost updates*. Where operands cancel, what
  was absorbed before stays to blame: it may be all that exactly is left.
- *overflow*: an infinity, or NaN, where the exact result of the same operands is a number.
- *underflow*: zero, or a denormal number without half of its digits, in place of what is neither.
- *rounding*: everything else.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.precision import smallest_normal, unit_roundoff
from hloexec.core.structs import define
from hloexec.core.values import Array
from hloexec.ops.traits import Traits
from hloexec.tools.shadowing.computing.elements import Sample

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
        pole_weights=None if passing is None else _vanished(sample, passing),
    )


def _zeros(sample: Sample, traits: Traits, ruling: Array | np.bool_) -> tuple[int, tuple[int, ...] | None]:
    """How many elements vanish or absorb in the instruction, and of those that vanished before, the operands'."""
    new, before = zeros(sample, traits)
    return int(np.count_nonzero(new | ruling)), _vanished(sample, before)


def zeros(sample: Sample, traits: Traits) -> tuple[Array, Array]:
    """Where elements vanish in the instruction, and where they vanished before."""
    vanished = (sample.value == 0) & (sample.exact != 0)
    before = sample.absorbed_before if sample.absorbed_before is not None else np.False_
    new = vanished & ~before if traits.cancels else vanished & (sample.here != 0)
    return new, vanished & ~new


def _vanished(sample: Sample, where: Array) -> tuple[int, ...] | None:
    """For each operand, how many of some elements it has as zeros that exactly are none, or in which something was
    absorbed."""
    return tuple(int(np.count_nonzero(each)) for each in vanished_before(sample, where)) if where.any() else None


def vanished_before(sample: Sample, where: Array) -> list[Array]:
    """The same as elements, for each operand."""
    found = []
    for operand, shadow in zip(sample.operands, sample.shadows, strict=True):
        is_zero = (operand == 0) & (shadow != 0) if shadow is not None else np.False_
        if shadow is not None and sample.absorbed_before is not None:
            is_zero = is_zero | (sample.absorbed_before & (operand != shadow))
        found.append(where & is_zero)
    return found


def is_finite(values: Array) -> bool:
    """Whether all are finite; a finite sum, which takes one pass, has no infinity in it."""
    return math.isfinite(abs(np.add.reduce(values))) or bool(np.isfinite(values).all())


_NOTHING = np.zeros(1)
_MOST = 1e300
"""Squares are cut there, so that their sums stay finite."""


def squares(values: Array) -> Array:
    """The squared absolute values; 0 of what is not finite."""
    return summed_squares(values)[0]


def summed_squares(values: Array) -> tuple[Array, float]:
    """The same, and their sum."""
    found = values.real**2 + values.imag**2 if values.dtype.kind == "c" else np.square(values, dtype=np.float64)
    total = float(np.add.reduce(found, axis=None))
    if not total <= _MOST:
        found = np.minimum(np.where(np.isfinite(values), found, 0.0), _MOST)
        total = float(np.add.reduce(found, axis=None))
    return found, total


def _note(kind: str, where: Array | None, energies: Array, kinds: dict[str, float], counts: dict[str, int]) -> None:
    if where is not None:
        kinds[kind] = float(energies[where].sum())
        counts[kind] = int(np.count_nonzero(where))


def cancelled(sample: Sample, unit: float, inherited: Array) -> Array | None:
    """Where a sum or difference of two operands is far smaller than they are, and they have half of their digits; None
    where nowhere. The inherited errors are squared."""
    largest = np.maximum(*map(np.abs, sample.operands))
    found = largest >= unit**-0.25 * np.abs(sample.exact)
    if not np.count_nonzero(found):
        return None
    before = np.zeros(largest.shape)
    for operand, shadow in zip(sample.operands, sample.shadows, strict=True):
        if shadow is not None:
            before = np.maximum(before, np.abs(operand - shadow))
    found = found & (inherited > 0) & (before <= np.sqrt(unit) * largest)
    if sample.absorbed_before is not None:
        found &= ~sample.absorbed_before
    return found if found.any() else None


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
    return tuple(each / total for each in finite), tuple(each / total for each in lost)
