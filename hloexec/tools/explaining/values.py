"""Results as the search sees them: the leaves of floats as one vector, in units of what rounding does to each element.

Let e be what is expected, p what a policy gives, and s what random rounding under `reference` does to an element (its
spread, and the last rounding of either side). What remains is (e − p)/s. With δ = (p − c)/s the effect of a policy p as
opposed to another, c, the share of that effect in what is expected is

    t = ⟨(e − c)/s, δ⟩ / ⟨δ, δ⟩,

the coefficient of the regression of e − c on p − c: 1 where p is what happened, 0 where c is. Rounding moves t, too;
how far is measured: the same coefficient of runs that round at random, instead of e, is the error of t, however errors
of elements depend on one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.analysis.numerics.sampling.samples import Samples
from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.analysis.numerics.ulps import same_bits
from hloexec.core.dtypes import element_type_of
from hloexec.core.precision import unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value, join_values
from hloexec.ops.common import is_inexact, wide

Leaves = dict[str, Array]
"""The arrays of a result, by label."""
FAR = 1e6
"""Elements that are further off, or a number on one side only, count as this many units."""
_MOST = 1 << 18
"""Number of elements that are looked at, evenly spread."""
_REWEIGHTINGS = 15


def leaves_from(results: Sequence[Value], which: str) -> Leaves:
    """The leaves of the results of one or several devices."""
    return dict(leaves_of(join_values(results), which))


def spreads_of(samples: Sequence[Leaves]) -> dict[str, Spread]:
    """What rounding does to the elements of each leaf of floats, as runs show it that round at random."""
    found = {}
    for label, first in samples[0].items():
        if not is_inexact(first):
            continue
        moments = Samples(first)
        if all(label in sample and moments.fits(sample[label]) for sample in samples):
            for sample in samples[1:]:
                moments.add(sample[label])
            found[label] = moments.spread(has_means=True)
    return found


@frozen(eq=False)
class Scale:
    """The units of the elements, and how a result becomes a vector of them."""

    labels: tuple[str, ...]
    units: Mapping[str, Array]
    step: int
    """Of so many elements, one is looked at."""

    @classmethod
    def of(cls, expected: Leaves, spreads: Mapping[str, Spread]) -> Scale:
        """The units for what is expected: of floats, where there are any; else elements are right or wrong."""
        floats = {label: array for label, array in expected.items() if is_inexact(array)}
        labels = tuple(floats or expected)
        step = max(1, math.ceil(sum(expected[label].size for label in labels) / _MOST))
        units = {}
        for label, array in floats.items():
            entry = element_type_of(array.dtype)
            sizes = np.nan_to_num(np.abs(wide(array.reshape(-1)[::step])), posinf=0.0)
            last = sizes * unit_roundoff(entry)
            smallest = float(np.finfo(np.float64).smallest_normal if entry.bits >= 64 else 2.0**-149)
            units[label] = np.maximum(last, smallest)
            if entry.is_complex:
                units[label] = np.repeat(units[label], 2)
        return cls(labels, units, step).widened(spreads)

    def widened(self, spreads: Mapping[str, Spread]) -> Scale:
        """Units that are as large as these spreads, too."""
        units = dict(self.units)
        for label in self.labels:
            spread = spreads.get(label)
            if spread is None or label not in units:
                continue
            scales = np.nan_to_num(_taken(spread.scales, self.step).astype(np.float64), posinf=0.0)
            if scales.size and units[label].size % scales.size == 0:
                units[label] = np.hypot(units[label], np.repeat(scales, units[label].size // scales.size))
        return attrs.evolve(self, units=units)

    def vector(self, ours: Leaves, theirs: Leaves) -> Array:
        """(ours − theirs)/s, elements that are no numbers on either side being equal."""
        parts = [np.zeros(0)]
        for label in self.labels:
            first, second = (_taken(side[label], self.step) for side in (ours, theirs))
            if label not in self.units:
                parts.append((first > second).astype(np.float64) - (first < second))
                continue
            with np.errstate(all="ignore"):
                found = np.clip((first - second) / self.units[label], -FAR, FAR)
            finite = np.isfinite(first) & np.isfinite(second)
            alike = (first == second) | (np.isnan(first) & np.isnan(second))
            parts.append(np.where(finite, found, np.where(alike, 0.0, FAR)))
        return np.concatenate(parts)


def _taken(array: Array, step: int) -> Array:
    """Some elements of an array in one dimension; of complex numbers both parts."""
    found = np.ascontiguousarray(wide(array.reshape(-1)[::step]))
    return found.view(np.float64) if found.dtype.kind == "c" else found


def coefficient(vector: Array, effect: Array) -> float:
    """The coefficient of the regression of a vector on an effect."""
    return float(np.dot(vector, effect) / max(float(np.dot(effect, effect)), 1e-300))


def shares_of(rest: Array, effects: Sequence[Array | None]) -> tuple[list[float], list[float]]:
    """How much of each effect is in what remains, by a regression, and the errors of that if those of elements were
    independent.

    Elements that it fits badly count less, the more so the worse (Cauchy's weights): where effects do not add up. An
    effect that is smaller than rounding counts as none.
    """
    known = [number for number, effect in enumerate(effects) if effect is not None and effect.any()]
    found, errors = [0.0] * len(effects), [math.inf] * len(effects)
    if not known:
        return found, errors
    matrix = np.array([effects[number] for number in known])
    weights = np.ones(rest.size)
    for _ in range(_REWEIGHTINGS):
        # As if each share were 0 or so beforehand, and every element had an error of one unit.
        inverse = np.linalg.inv((matrix * weights) @ matrix.T + np.eye(len(known)))
        solution = inverse @ ((matrix * weights) @ rest)
        residuals = rest - solution @ matrix
        usual = max(1.0, 1.5 * float(np.median(np.abs(residuals))))
        weights = 1 / (1 + np.square(residuals / usual))
    for number, share, variance in zip(known, solution.tolist(), np.diag(inverse).tolist(), strict=True):
        found[number], errors[number] = share, usual * math.sqrt(max(variance, 0.0))
    return found, errors


def size_of(vector: Array) -> float:
    """What size elements have that are all about as large: √(exp(mean(ln(1 + x²))) − 1). Other than the root of the
    mean square, it hardly sees a few huge ones; these are counted by themselves."""
    return math.sqrt(math.expm1(float(np.mean(np.log1p(np.square(vector)))))) if vector.size else 0.0


def same(ours: Leaves, theirs: Leaves) -> bool:
    """Whether two results have the same bits."""
    return all(bool(same_bits(ours[label], theirs[label]).all()) for label in theirs)
