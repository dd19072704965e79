"""Running a module a few times with random rounding, and the moments of what that gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from textwrap import shorten
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs
import ml_dtypes
import numpy as np

from hloexec.analysis.dataflow.dependences import decided_leaves
from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.analysis.numerics.sampling.spread import FEW, SAMPLES, STAGES, Spread, moderated, student_quantile
from hloexec.analysis.numerics.selections import ModuleValue, Watcher
from hloexec.core.dtypes import DType, element_type_of, unit_roundoff
from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Value, join_values, label_of
from hloexec.engine.exec.observers import Observer
from hloexec.engine.options import DEFAULTS, Options
from hloexec.errors import HloError
from hloexec.ops.common import wide
from hloexec.ops.policies.chance import FAR_SEEDS
from hloexec.ops.policies.policy import RANDOM_ROUNDING, NumericsPolicy, numerics_policy

_CHANCE = 0.01
"""Of rounding alone exceeding the tolerance of some element of a leaf."""
_MOST_FACTOR = 6.5
"""Where more would be due, faults of ten spreads would pass; see `numerics.sampling.spread`."""
_MOST_FACTOR_BY_MEANS = 5.5
"""The same where both sides are compared with the samples' mean, too."""
_PART = 1 << 17
"""Number of elements processed together: their samples are one fit, and only the results are kept in memory."""
_FULL = 127
"""A share of 1, in eight bits."""

Part = tuple[Any, ...]
"""What indexes a part of a leaf."""


class Samples:
    """The first and second moments of a leaf's samples, about the first of them."""

    def __init__(self, first: Array, is_decided: Callable[[], bool] | None = None) -> None:
        """The array is kept, and must not be modified. `is_decided` says whether decisions about floats are behind the
        leaf (`dataflow.dependences`)."""
        self.count = 1
        self._factors = [1.0]
        self._moments = _Moments.of(first)
        self._is_decided = is_decided

    def fits(self, sample: Array) -> bool:
        """Whether a sample has the extents of the others; dynamic ones may change."""
        return bool(sample.shape == self._moments.first.shape)

    def means(self, places: Array | None = None) -> Array:
        """The means of all elements, or of those at places of the flat leaf, where they are always finite; others as
        they were first."""
        return (self._moments if places is None else self._moments.at(places)).mean(self.count)

    def add(self, sample: Array) -> None:
        """Take one more sample into account."""
        self.count += 1
        sums = [self._moments.part(where).add(sample[where], self.count) for where in _parts(sample.shape)]
        drift, square = map(sum, zip(*sums, strict=True))
        self._factors.append(1.0 + drift / square if square else math.nan)

    def spread(self, *, has_means: bool = False) -> Spread:
        """The scales of the elements, and their means if asked for; at least two samples must have been given."""
        scales = np.empty(self._moments.first.shape, self._moments.real)
        freedoms = []
        parts = [*_parts(scales.shape)]
        for where in parts:
            scales[where], degrees = self._moments.part(where).scales(self.count, self._is_decided)
            freedoms.append(degrees)
        chance = _CHANCE / max(1, int(np.count_nonzero(scales)))
        most = _MOST_FACTOR_BY_MEANS if has_means else _MOST_FACTOR
        factors = [min(most, student_quantile(degrees, chance)) for degrees in freedoms]
        for where, factor in zip(parts, factors, strict=True):
            scales[where] *= factor / max(factors)
        common = float(np.std(self._factors, ddof=1))
        return Spread(scales, self.count, min(freedoms), max(factors), self.means if has_means else None, common)


@frozen(eq=False)
class _Moments:
    """Those of some elements' distances d from the first sample: Σd² as its root, and Σd as a share of the most that it
    can be, which is √n of that root (Cauchy and Schwarz). Eight bits of each are more than so few samples know of
    them."""

    first: Array
    norms: Array
    """Roots of the sums of squares, which overflow no sooner than the samples do; NaN where samples differ in whether
    they are finite, and where they are NaN."""
    shares: Array
    """Of real and imaginary parts, which are the last dimension."""
    compute: DType
    """The type that the samples are computed in, and that of its real and imaginary parts."""
    real: DType

    @classmethod
    def of(cls, first: Array) -> _Moments:
        compute = element_type_of(first.dtype).compute
        real = compute.type(0).real.dtype
        norms = np.zeros(first.shape, ml_dtypes.bfloat16 if real == np.float32 else real)
        shares = np.zeros((*first.shape, compute.itemsize // real.itemsize), np.int8)
        return cls(np.asarray(first, order="C"), norms, shares, compute, real)

    def part(self, where: Part) -> _Moments:
        """Views of the moments of a part of the elements."""
        return attrs.evolve(self, first=self.first[where], norms=self.norms[where], shares=self.shares[where])

    def at(self, places: Array) -> _Moments:
        """The moments of elements at these places of the flat leaf."""
        first, norms = self.first.reshape(-1)[places], self.norms.reshape(-1)[places]
        return attrs.evolve(
            self, first=first, norms=norms, shares=self.shares.reshape(-1, self.shares.shape[-1])[places]
        )

    def add(self, sample: Array, count: int) -> tuple[float, float]:
        """Take a sample into account, the `count`-th; returns the sums of its distances' products with the first
        sample, and of that one's squares, which tell the factor that the sample has in common with the first."""
        with np.errstate(all="ignore"):
            values, first = self._widened(sample), self._widened(self.first)
            distance = np.asarray(values - first)
            distance[values == first] = 0
            sizes = np.asarray(np.abs(distance))
            sizes[~np.isfinite(sizes)] = np.nan
            distance[np.isnan(sizes)] = 0
            sums = self._sums(count - 1) + distance
            self.norms[...] = np.hypot(self.norms.astype(self.real), sizes)
            shares = sums[..., None].view(self.real) / self._units(count)
            self.shares[...] = np.clip(np.rint(np.nan_to_num(shares)), -_FULL, _FULL)
            if self.compute.kind == "c":
                return math.nan, math.nan
            wide = first.astype(np.float64)
            return float(np.sum(distance * wide)), float(np.sum(wide * wide))

    def mean(self, count: int) -> Array:
        means = self._sums(count) / count
        return np.asarray(np.where(np.isnan(self.norms), 0, means) + self._widened(self.first))

    def scales(self, count: int, is_decided: Callable[[], bool] | None) -> tuple[Array, float]:
        """The elements' scales, and their degrees of freedom.

        Where decisions are behind a leaf, and move a few elements only, how far these move says nothing of the others,
        as of a floor at a tie: what no sample has moved is held to a rounding of its own.
        """
        with np.errstate(all="ignore"):
            norms = self.norms.astype(self.real)
            is_parted = np.isnan(norms)
            norms[is_parted] = 0
            means = np.where(is_parted, 0, self._sums(count) / count)
            # √(Σd² − n d̄²), of which neither square need be a number.
            shares = np.abs(means) * self.real.type(math.sqrt(count))
            scales = np.sqrt(np.maximum(norms - shares, 0)) * np.sqrt(norms + shares)
            scales /= self.real.type(math.sqrt(count - 1))
            means += self._widened(self.first)
            own, roundings = np.asarray(scales), np.abs(means)
            scales, degrees = moderated(own, roundings, count - 1)
            if 2 * np.count_nonzero(own == 0) >= own.size and np.count_nonzero(own) < FEW:
                roundings *= unit_roundoff(element_type_of(self.first.dtype))
                too_large = (own == 0) & (scales > roundings)
                if too_large.any() and is_decided is not None and is_decided():
                    scales = np.where(too_large, roundings, scales)
            return np.where(is_parted, np.inf, scales), degrees

    def _widened(self, values: Array) -> Array:
        return values.astype(self.compute, copy=False)

    def _units(self, count: int) -> Array:
        """What one unit of each share stands for."""
        return np.asarray(self.norms.astype(self.real)[..., None] * self.real.type(math.sqrt(count) / _FULL))

    def _sums(self, count: int) -> Array:
        # Where a root is infinite or NaN, no share is kept.
        sums = np.where(self.shares == 0, self.real.type(0), self.shares * self._units(count))
        return sums.view(self.compute)[..., 0]


def _parts(shape: tuple[int, ...]) -> Iterator[Part]:
    """The parts of a leaf that have about `_PART` elements each, or all where it has fewer."""
    if math.prod(shape) <= _PART:
        yield (...,)
        return
    axis = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= _PART)
    size = shape[axis]
    count = min(size, -(-math.prod(shape[axis:]) // _PART))
    for outer in np.ndindex(*shape[:axis]):
        rows = [slice(number, number + 1) for number in outer]
        for number in range(count):
            yield (*rows, slice(number * size // count, (number + 1) * size // count))


@frozen(eq=False)
class Key:
    """Values that indices select from."""

    values: Array
    """Floats: their means, in f64."""
    spread: Spread | None
    """None where nothing rounds: of integers."""


@frozen(eq=False)
class Sampled:
    """What a few runs showed."""

    spreads: dict[str, Spread] = attrs.field(factory=dict)
    """Of the result's leaves of floats, by label."""
    keys: dict[ModuleValue, Key] = attrs.field(factory=dict)
    """Of the places that were watched and met once."""
    failure: str = ""
    """Why the module does not run, in a line; empty where it does."""
    kept: dict[str, Array] = attrs.field(factory=dict)
    """Of elements that were asked for, by the label of their leaf: f64, one row for each run."""


Sample: TypeAlias = Callable[..., Iterator[Sampled]]
"""Takes samples in stages, as `sampled_in_stages` does, with its options."""


def sampled(
    module: Module,
    inputs: Sequence[Sequence[Value]],
    numerics: str | NumericsPolicy = "reference",
    samples: int = SAMPLES,
    *,
    has_means: bool = True,
    options: Options = DEFAULTS,
) -> Sampled:
    """What rounding does to the leaves of a module's result, from so many runs with `options`.

    `inputs` are one list of values for each device, or one for all. The results of several devices are a tuple. Nothing
    is found where the module does not run.
    """
    return next(sampled_in_stages(module, inputs, numerics, stages=(samples,), has_means=has_means, options=options))


def sampled_in_stages(
    module: Module,
    inputs: Sequence[Sequence[Value]],
    numerics: str | NumericsPolicy = "reference",
    places: Sequence[ModuleValue] = (),
    *,
    stages: Sequence[int] = STAGES,
    has_means: bool = True,
    first_only: bool = False,
    kept: Mapping[str, Array] = MappingProxyType({}),
    round_far: bool = False,
    observers: Sequence[Observer] = (),
    options: Options = DEFAULTS,
) -> Iterator[Sampled]:
    """The same, also of values at `places` in the module, after as many runs in all as each of `stages` says.

    With `first_only`, only the result of the first device is looked at. Of leaves in `kept`, the samples of elements at
    these flat places are kept. With `round_far`, `is_far` says which runs round farther.

    Runs take place when what they show is asked for. Each stage goes on from the one before, whose means change with
    it: what is found is to be used before the next is asked for. It ends early where a later run fails.
    """
    from hloexec.engine.exec.running import run_seeds, run_with

    decisions = _Decisions(module)
    leaves: dict[str, Samples] = {}
    keys: dict[ModuleValue, Samples] = {}
    whole: dict[ModuleValue, Array] = {}
    rows: dict[str, list[Array]] = {label: [] for label in kept}
    together: list[Value] = []
    are_plain = not (places or round_far or observers) and at_random(numerics, 0) == at_random("reference", 0)
    for before, count in pairwise((0, *stages)):
        try:
            for seed in range(before, count):
                watcher = Watcher(places)
                watching = [*observers, watcher] if places else observers
                policy = at_random(numerics, seed + FAR_SEEDS * (round_far and is_far(seed)))
                given = attrs.evolve(options, numerics=policy)
                if are_plain and not together:
                    some = range(seed, min(seed + SAMPLES, count))
                    together = run_seeds(module, inputs, some, given)[::-1]
                    are_plain = bool(together)
                results = [together.pop()] if together else run_with(module, inputs, given, watching)
                looked_at = results[:1] if first_only else results
                _take_leaves(leaves, looked_at, seed, decisions)
                _keep(rows, kept, looked_at)
                # The next run shall not find them in memory.
                del results, looked_at
                for place, found in watcher.found.items():
                    if found is not None and element_type_of(found.dtype).is_integral:
                        whole[place] = found
                    elif found is not None:
                        _take(keys, place, found, seed)
        except HloError as error:
            # It may lack a library call, or memory: what is read off its text does not need to run.
            if not before:
                yield Sampled(failure=shorten(str(error), 200, placeholder=" …"))
            return
        found_keys = {place: Key(array, None) for place, array in whole.items()}
        found_keys |= {place: Key(entry.means(), entry.spread()) for place, entry in keys.items()}
        spreads = {label: entry.spread(has_means=has_means) for label, entry in leaves.items()}
        whole_rows = {label: np.stack(found) for label, found in rows.items() if len(found) == count}
        yield Sampled(spreads, found_keys, kept=whole_rows)


def is_far(number: int) -> bool:
    """Whether a run rounds farther: half of those behind the second stage, with even and odd seeds."""
    return number >= STAGES[1] and number % 4 >= 2


def at_random(numerics: str | NumericsPolicy, seed: int) -> NumericsPolicy:
    """The policy that rounds at random in the formats of another one; formulas of its own it has none, nor does it
    flush denormals."""
    return numerics_policy(numerics).changed(
        name=f"{RANDOM_ROUNDING}:{seed}",
        rounding_seed=seed,
        is_exact=False,
        flushes_denormals=False,
        fuses_multiply_add=False,
        has_xla_cpu_functions=False,
        ignores_algorithms=False,
    )


@define(eq=False, slots=False)
class _Decisions:
    """Tells which leaves of a module's results decisions about floats are behind."""

    _module: Module

    def are_behind(self, label: str, is_of_several: bool) -> bool:
        """Whether some are behind a leaf; labels of results of several devices begin with the device's number."""
        own = label.partition(".")[2] if is_of_several else label
        # A lone leaf may be labelled in either way.
        return not self._labels.isdisjoint((own, "value", "0") if own in ("", "value", "0") else (own,))

    @cached_property
    def _labels(self) -> frozenset[str]:
        return frozenset(label_of(index) for index in decided_leaves(self._module))


def _keep(rows: Mapping[str, list[Array]], kept: Mapping[str, Array], results: Sequence[Value]) -> None:
    """Add the elements that are kept of one run."""
    leaves = dict(leaves_of(join_values(results), "sampled")) if kept else {}
    for label, places in kept.items():
        # A lone leaf may be labelled in either way.
        array = leaves.get(label) if len(leaves) > 1 else next(iter(leaves.values()), None)
        if array is not None and places.max(initial=-1) < array.size:
            rows[label].append(wide(array.reshape(-1)[places]).astype(np.float64))


def _take_leaves(samples: dict[str, Samples], results: Sequence[Value], number: int, decisions: _Decisions) -> None:
    """Add the leaves of one run."""
    is_of_several = len(results) > 1
    for label, array in leaves_of(tuple(results) if is_of_several else results[0], "sampled"):
        _take(samples, label, array, number, partial(decisions.are_behind, label, is_of_several))


def _take(
    samples: dict[Any, Samples],
    key: object,
    array: Array,
    number: int,
    is_decided: Callable[[], bool] | None = None,
) -> None:
    """Add a sample of floats to those of its place; what is not there in every run, or changes its extents, is not
    measured."""
    if number == 0 and element_type_of(array.dtype).is_inexact:
        samples[key] = Samples(array, is_decided)
    elif key in samples and samples[key].fits(array):
        samples[key].add(array)
    else:
        samples.pop(key, None)
