"""Significant digits by random rounding: those on which runs that round up or down by chance agree with the run itself.

Let x be an element of the run and X₁ … X_N what N runs with random rounding give. Z = (X − x)/m, where m is the mean of
the X, has a root of mean square r, and −log₁₀ r is the number of digits that rounding leaves. If the X are normally
distributed, N r²/σ² is at most as spread as χ² of N degrees of freedom (as much where rounding has no bias), which
gives the interval for −log₁₀ σ. Without any assumption: as all of N runs agreed on d digits, at least α^(1/N) of all
runs do, or it happened by a chance of α (both: D. Sohier, P. de Oliveira Castro, F. Févotte, B. Lathuilière, E. Petit
and O. Jamond, "Confidence intervals for stochastic arithmetic", 2021).

Random rounding shows how sensitive a result is to rounding; it does not know the exact result. Where all runs agree to
the last digit, no more is claimed than the digits of the type, and infinities and NaN have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import attrs
import numpy as np

from hloexec.analysis.numerics.sampling.runs import at_random
from hloexec.core.arguments import require_integer
from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import Module
from hloexec.core.precision import unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Inputs, arrays_of, leaves
from hloexec.engine.exec.observers import Event, Stages
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.errors import InputError
from hloexec.ops.common import is_inexact
from hloexec.tools.shadowing.computing.elements import taken
from hloexec.tools.shadowing.store import wide

CONFIDENCE = 0.95
_WATCHED = 64
"""Elements of an instruction's result that are compared."""


@frozen
class SampledDigits:
    """Significant decimal digits of a value, as runs with random rounding show them."""

    index: tuple[int, ...]
    """Of an output the leaf; of an instruction the leaf of its result."""
    devices: tuple[int, ...]
    element_type: ElementType
    samples: int
    """The number of runs."""
    digits: float
    """Of the median element."""
    low: float
    """The lower end of the 95 % confidence interval, under normality."""
    high: float
    """Its upper end."""
    worst: float
    """Of the worst element."""
    agreed: float
    """The digits on which every run agreed, of the median element."""
    probability: float
    """At least this part of all runs agree so far, with a confidence of 95 %, whatever their distribution."""


class _Moments:
    """Of one array, what is known of its samples."""

    def __init__(self, first: Array) -> None:
        self.reference = wide(first)
        self.entry = element_type_of(first.dtype)
        self.squares = np.zeros(first.shape)
        self.largest = np.zeros(first.shape)
        self.sums = np.zeros(first.shape, self.reference.dtype)
        self.count = 0

    def add(self, sample: Array) -> None:
        if sample.shape != self.squares.shape:
            return
        with np.errstate(all="ignore"):
            numbers = wide(sample)
            distance = np.abs(numbers - self.reference)
            self.squares += distance**2
            np.maximum(self.largest, distance, out=self.largest)
            self.sums += numbers
        self.count += 1

    def found(self, index: tuple[int, ...], devices: tuple[int, ...]) -> SampledDigits | None:
        if not self.count or not self.squares.size:
            return None
        count = self.count
        most = -math.log10(unit_roundoff(self.entry))
        with np.errstate(all="ignore"):
            means = np.abs(self.sums / count)
            means = np.where(means > 0, means, np.abs(self.reference))
            digits = _digits(np.sqrt(self.squares / count) / means, most)
            agreed = _digits(self.largest / means, most)
        is_zero = (means == 0) & (self.squares == 0)
        if is_zero.all():
            return None
        digits, agreed = digits[~is_zero], agreed[~is_zero]
        middle = float(np.median(digits))
        low, high = (math.log10(chi_square_quantile(q, count) / count) / 2 for q in _TAILS)
        return SampledDigits(
            index=index,
            devices=devices,
            element_type=self.entry,
            samples=count,
            digits=middle,
            low=min(most, max(0.0, middle + low)),
            high=min(most, max(0.0, middle + high)),
            worst=float(digits.min()),
            agreed=float(np.median(agreed)),
            probability=(1 - CONFIDENCE) ** (1 / count),
        )


_TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


def _digits(relative: Array, most: float) -> Array:
    found = np.where(relative > 0, -np.log10(relative), most)
    return np.clip(np.where(np.isfinite(relative), found, 0.0), 0.0, most)


def chi_square_quantile(chance: float, degrees: int) -> float:
    """What χ² stays below with this chance, within 1 % from 3 degrees of freedom on (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * degrees)
    return float(degrees * max(1e-6, 1 - part + NormalDist().inv_cdf(chance) * math.sqrt(part)) ** 3)


class _Watcher:
    """Takes some elements of the last result of every instruction, on the first device."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[Array]] = {}

    def on_instruction(self, event: Event) -> None:
        if event.devices[0] == 0 and event.operands:
            found = [leaf for leaf in arrays_of(event.value) if leaf.size]
            arrays = [_some(leaf) for leaf in found if is_inexact(leaf)]
            if arrays:
                self.values[event.computation.name, event.instruction.name] = arrays


def _some(array: Array) -> Array:
    step = max(1, array.size // _WATCHED)
    return taken(array, np.arange(step // 2, array.size, step)[:_WATCHED])


def require_samples(samples: object, options: Options) -> None:
    """InputError unless so many runs with random rounding can be compared with the run."""
    require_integer("samples", samples, 0)
    policy = options.numerics
    if samples == 1:
        raise InputError("samples must be 0 or at least 2, as one run shows no spread, but is 1")
    if samples and policy.rounding_seed is not None:
        raise InputError(f"samples compare a run with others that round at random, but numerics is {policy.name}")


def sampled_digits(
    module: Module, inputs: Inputs | None, samples: int, stages: Stages, options: Options
) -> tuple[tuple[SampledDigits, ...], dict[tuple[str, str], SampledDigits]]:
    """The digits of the leaves of the result on each group of devices, and of instructions by computation and name."""
    if not samples:
        return (), {}
    policy = options.numerics
    outputs: dict[tuple[tuple[int, ...], tuple[int, ...]], _Moments] = {}
    places: dict[tuple[str, str], list[_Moments]] = {}
    stages.begin("rounding at random", samples)
    for seed in range(-1, samples):
        watcher = _Watcher()
        given = attrs.evolve(options, numerics=policy if seed < 0 else at_random(policy, seed))
        results = run_with(module, inputs, given, [watcher])
        for key, array in _leaves(results):
            if seed < 0:
                outputs[key] = _Moments(array)
            elif key in outputs:
                outputs[key].add(array)
        for place, arrays in watcher.values.items():
            if seed < 0:
                places[place] = [_Moments(array) for array in arrays]
            elif place in places:
                for moments, array in zip(places[place], arrays, strict=False):
                    moments.add(array)
        if seed >= 0:
            stages.tick()
    found = (moments.found(*key) for key, moments in outputs.items())
    by_place = {place: _first(moments) for place, moments in places.items()}
    return tuple(entry for entry in found if entry is not None), {
        place: entry for place, entry in by_place.items() if entry is not None
    }


def _first(moments: Sequence[_Moments]) -> SampledDigits | None:
    """The digits of the first leaf that has any."""
    found = (entry.found((number,) if len(moments) > 1 else (), (0,)) for number, entry in enumerate(moments))
    return next((entry for entry in found if entry is not None), None)


def _leaves(results: Sequence[Any]) -> list[tuple[tuple[tuple[int, ...], tuple[int, ...]], Array]]:
    """The leaves of floats of every device's result; devices that hold the same array share one."""
    found: dict[tuple[tuple[int, ...], int], list[int]] = {}
    arrays: dict[tuple[tuple[int, ...], int], Array] = {}
    for device, result in enumerate(results):
        for index, leaf in leaves(result):
            if is_inexact(leaf):
                found.setdefault((index, id(leaf)), []).append(device)
                arrays[index, id(leaf)] = leaf
    return [((index, tuple(devices)), arrays[index, key]) for (index, key), devices in found.items()]
