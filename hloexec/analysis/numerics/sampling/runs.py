"""Running a module a few times with random rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from textwrap import shorten
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.analysis.dataflow.decisions import decided_leaves
from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.analysis.numerics.sampling.samples import Samples
from hloexec.analysis.numerics.sampling.spread import SAMPLES, STAGES, Spread
from hloexec.analysis.numerics.selections import ModuleValue, Watcher
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Value, join_values, label_of
from hloexec.engine.exec.observers import Observer
from hloexec.engine.options import DEFAULTS, Options
from hloexec.errors import HloError
from hloexec.ops.common import wide
from hloexec.ops.policies.chance import FAR_SEEDS
from hloexec.ops.policies.policy import RANDOM_ROUNDING, NumericsPolicy, numerics_policy


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


def by_either_label(spreads: Mapping[str, Spread]) -> Mapping[str, Spread]:
    """The spreads, where a lone leaf may be labelled in either way."""
    return {**spreads, **dict.fromkeys(("value", "0"), *spreads.values())} if len(spreads) == 1 else spreads


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


def _take_leaves(found: dict[str, Samples], results: Sequence[Value], number: int, decisions: _Decisions) -> None:
    """Add the leaves of one run."""
    is_of_several = len(results) > 1
    for label, array in leaves_of(tuple(results) if is_of_several else results[0], "sampled"):
        _take(found, label, array, number, partial(decisions.are_behind, label, is_of_several))


def _take(
    found: dict[Any, Samples],
    key: object,
    array: Array,
    number: int,
    is_decided: Callable[[], bool] | None = None,
) -> None:
    """Add a sample of floats to those of its place; what is not there in every run, or changes its extents, is not
    measured."""
    if number == 0 and element_type_of(array.dtype).is_inexact:
        found[key] = Samples(array, is_decided)
    elif key in found and found[key].fits(array):
        found[key].add(array)
    else:
        found.pop(key, None)
