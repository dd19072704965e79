"""Comparing leaves of indices by the values that they select (see `numerics.selections`).

Two indices agree if the values that they select do, within the spread of each in a few runs with random rounding. The
values come from the caller, from a run of the module up to where they are computed, or from the result itself, if
another leaf holds the selected values: an index of the actual value is then looked up among the expected ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from hloexec.analysis.numerics.comparison import LeafComparison, Verdict
from hloexec.analysis.numerics.error_budget import Chain, chains_of, worst
from hloexec.analysis.numerics.leaves import Pair
from hloexec.analysis.numerics.measuring import elements_at
from hloexec.analysis.numerics.sampling.runs import Key
from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.analysis.numerics.selections import ModuleValue, Selection, apply_steps, observed_sources, selections_of
from hloexec.analysis.numerics.severities import agreement
from hloexec.analysis.numerics.tolerances import Tolerance, derived_tolerance, measured_tolerance
from hloexec.core.arrays import as_array
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, index_of
from hloexec.core.wording import argument
from hloexec.engine.devices.topology import topology_of
from hloexec.errors import InputError
from hloexec.ops.policies.policy import NumericsPolicy


@frozen(eq=False)
class _Source:
    """Values that indices select from."""

    values: Array
    dimension: int
    tolerance: Tolerance
    scales: Array | None = None
    """Of each value, what its tolerance is in units of; √(s² + t²) of two that round independently."""


@define(slots=False, eq=False)
class IndexLeaves:
    """Looks at leaves that differ once more, where they hold indices."""

    _module: Module | None
    _inputs: Sequence[Any] | None
    _numerics: str | NumericsPolicy
    _selects: Mapping[str, object]
    _given: Tolerance | None
    _spreads: Mapping[str, Spread] = {}
    _sampled: Callable[[], Mapping[ModuleValue, Key]] = dict

    @cached_property
    def places(self) -> list[ModuleValue]:
        """Where the values stand in the module that its leaves of indices select from."""
        return [place for selection in self._selections.values() for place in selection.sources]

    def resolve(
        self,
        leaves: Sequence[LeafComparison],
        pairs: Sequence[Pair],
        spreads: Mapping[str, Spread],
        sampled: Callable[[], Mapping[ModuleValue, Key]],
    ) -> Iterator[LeafComparison]:
        """The leaves, those of indices with the verdict of what they select.

        `spreads` are of the result's leaves; `sampled` gives what a few runs showed of `places`.
        """
        self._spreads, self._sampled = spreads, sampled
        arrays = {label: (actual, expected) for label, actual, expected in pairs}
        for label in self._selects:
            if label not in arrays:
                raise InputError(
                    f"{argument('selects')} names leaf {label!r}, but there are {', '.join(arrays) or 'none'}"
                )
        for leaf in leaves:
            actual, expected = arrays[leaf.label]
            if leaf.unequal and actual is not None and expected is not None and actual.dtype.kind in "iu":
                yield self._compared_by_value(leaf, actual, expected, arrays)
            else:
                yield leaf
        # They may take memory, and more runs measure them anew.
        self._spreads, self._sampled = {}, dict
        vars(self).pop("_keys", None)

    def _compared_by_value(
        self, leaf: LeafComparison, actual: Array, expected: Array, arrays: Mapping[str, Any]
    ) -> LeafComparison:
        if leaf.label in self._selects:
            agree = _selected_agree(actual, expected, [self._given_source(leaf.label, actual)], is_permutation=False)
            return _explained(leaf, actual, expected, agree, "the values given")
        selection = self._selections.get(index_of(leaf.label) or ())
        if selection is None:
            return leaf
        name = selection.instruction.name
        ours, theirs = (apply_steps(side, selection.steps) for side in (actual, expected))
        if ours is None or theirs is None:
            return leaf
        sources = self._sources(selection)
        chosen = ".".join(map(str, selection.values_leaf or ()))
        if sources is not None and all(_fits(ours, source, selection.is_reduced) for source in sources):
            agree = _selected_agree(ours, theirs, sources, is_permutation=not selection.is_reduced)
            where = f"what {name} selects from"
        elif (held := self._held_values(selection, chosen, ours.shape, arrays)) is not None:
            agree, where = _looked_up_agree(ours, theirs, held), f"the values in leaf {chosen}"
        else:
            makes = f"indices that {name} ({selection.instruction.opcode}) makes"
            note = f"{makes}; the module's inputs would tell whether they select values that agree"
            return attrs.evolve(leaf, note=note)
        return _explained(leaf, actual, expected, _as_leaf(agree, selection, actual), where)

    def _held_values(
        self, selection: Selection, chosen: str, dimensions: tuple[int, ...], arrays: Mapping[str, Any]
    ) -> _Source | None:
        """The values that indices of these dimensions selected, where the result holds them in the leaf `chosen`."""
        _, expected = arrays.get(chosen, (None, None))
        values = None if expected is None or selection.is_reduced else apply_steps(expected, selection.steps)
        if values is None or values.shape != dimensions:
            return None
        spread = self._spreads.get(chosen)
        scales = None if spread is None else apply_steps(spread.scales, selection.steps)
        if scales is None or scales.shape != values.shape:
            spread = scales = None
        return _Source(values, selection.dimension, self._tolerance(values, selection.sources[0], spread), scales)

    def _given_source(self, label: str, leaf: Array) -> _Source:
        chosen, name = self._selects[label], argument("selects", label, f"selects[{label!r}]")
        values, dimension = chosen if isinstance(chosen, tuple) else (chosen, -1)
        values = as_array(values)
        if not -values.ndim <= dimension < values.ndim:
            raise InputError(f"{name}: there is no dimension {dimension} in {list(values.shape)}")
        source = _Source(values, dimension % values.ndim, self._tolerance(values, None))
        if not _fits(leaf, source, leaf.ndim < values.ndim):
            raise InputError(
                f"{name} has dimensions {list(values.shape)}, among which the indices {list(leaf.shape)} "
                f"cannot select along dimension {source.dimension}"
            )
        return source

    @cached_property
    def _selections(self) -> dict[tuple[int, ...], Selection]:
        return {} if self._module is None else selections_of(self._module)

    @cached_property
    def _keys(self) -> Mapping[ModuleValue, Key]:
        """The values at the places that indices select from, from runs on the inputs."""
        module, inputs = self._module, self._inputs
        if module is None or inputs is None or topology_of(module, None, None).count > 1:
            return {}
        found = {} if self._given is not None else self._sampled()
        if not found:
            observed = observed_sources(module, inputs, self.places, self._numerics)
            found = {place: Key(array, None) for place, array in observed.items()}
        return found

    @cached_property
    def _chains(self) -> dict[str, dict[str, Chain]]:
        return {} if self._module is None else chains_of(self._module, self._numerics)

    def _sources(self, selection: Selection) -> list[_Source] | None:
        found = []
        for place in selection.sources:
            key = self._keys.get(place)
            if key is None:
                return None
            tolerance = self._tolerance(key.values, place, key.spread)
            scales = None if key.spread is None else key.spread.scales
            found.append(_Source(key.values, selection.dimension, tolerance, scales))
        return found

    def _tolerance(self, values: Array, place: ModuleValue | None, spread: Spread | None = None) -> Tolerance:
        """What rounding explains on the values that are selected from."""
        entry = element_type_of(values.dtype)
        if self._given is not None:
            return self._given
        if not entry.is_inexact:
            return Tolerance()
        if spread is not None:
            return measured_tolerance(entry, entry, spread)
        chain = None
        if place is not None:
            chain = self._chains[place.computation.name][place.instruction.name]
            for computation, caller in place.callers:
                chain = worst(self._chains[computation.name][name] for name in caller.operands).then(chain)
        return derived_tolerance(entry, entry, chain)


def _fits(leaf: Array, source: _Source, is_reduced: bool) -> bool:
    """Whether indices and the values that they select from are in the same result."""
    others = (*source.values.shape[: source.dimension], *source.values.shape[source.dimension + 1 :])
    if is_reduced:
        return bool(leaf.shape == others)
    kept = (*leaf.shape[: source.dimension], *leaf.shape[source.dimension + 1 :])
    return leaf.ndim == source.values.ndim and kept == others


def _selected_agree(actual: Array, expected: Array, sources: Sequence[_Source], is_permutation: bool) -> Array:
    """Which pairs of indices select values that agree."""
    agree = np.ones(actual.shape, np.bool_)
    for source in sources:
        dimension, size = source.dimension, source.values.shape[source.dimension]
        is_reduced = actual.ndim < source.values.ndim
        sides = [np.expand_dims(side, dimension) if is_reduced else side for side in (actual, expected)]
        inside = [(side >= 0) & (side < size) for side in sides]
        places = [np.where(fits, side, 0).astype(np.int64) for side, fits in zip(sides, inside, strict=True)]
        first, second = (np.take_along_axis(source.values, place, dimension) for place in places)
        scales = source.scales
        if scales is not None:
            scales = np.hypot(*(np.take_along_axis(scales, place, dimension) for place in places))
        found = agreement(first, second, source.tolerance, scales) & inside[0] & inside[1]
        agree &= found.reshape(actual.shape)
    if is_permutation:
        agree &= ~_occurs_twice(actual, sources[0].dimension)
    return np.asarray(agree | (actual == expected))


def _occurs_twice(indices: Array, dimension: int) -> Array:
    """Which indices occur more than once along a dimension."""
    order = np.argsort(indices, axis=dimension, kind="stable")
    ordered = np.moveaxis(np.take_along_axis(indices, order, dimension), dimension, -1)
    same = np.zeros(ordered.shape, np.bool_)
    same[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    same[..., :-1] |= same[..., 1:]
    found = np.empty_like(same)
    np.put_along_axis(found, np.moveaxis(order, dimension, -1), same, -1)
    return np.moveaxis(found, -1, dimension)


def _looked_up_agree(actual: Array, expected: Array, source: _Source) -> Array:
    """Which indices the expected value has as well, at places whose values agree with the one that stands there."""
    rows = [np.moveaxis(side, source.dimension, -1) for side in (actual, expected, source.values)]
    shape = rows[0].shape
    count = shape[-1]
    flat = [np.ascontiguousarray(row).reshape(-1) for row in rows]
    # A row's number in front makes one key of both; indices that do not fit are found nowhere.
    wide = max(int(flat[0].max(initial=0)), int(flat[1].max(initial=0))) + 1
    row = np.arange(flat[0].size) // max(count, 1)
    keys = [row * wide + side.astype(np.int64) for side in flat[:2]]
    order = np.argsort(keys[1], kind="stable")
    place = np.minimum(np.searchsorted(keys[1][order], keys[0]), max(flat[0].size - 1, 0))
    is_there = (keys[1][order][place] == keys[0]) & (flat[0] >= 0)
    scales = None
    if source.scales is not None:
        held = np.ascontiguousarray(np.moveaxis(source.scales, source.dimension, -1)).reshape(-1)
        scales = np.hypot(held[order][place], held)
    agree = is_there & agreement(flat[2][order][place], flat[2], source.tolerance, scales)
    agree = agree.reshape(shape) & ~_occurs_twice(rows[0], -1)
    return np.moveaxis(agree | (rows[0] == rows[1]), -1, source.dimension)


def _as_leaf(agree: Array, selection: Selection, leaf: Array) -> Array:
    """A mask in the dimensions of the indices' instruction, in those of the leaf."""
    places = apply_steps(np.arange(leaf.size).reshape(leaf.shape), selection.steps)
    assert places is not None
    mask = np.empty(leaf.size, np.bool_)
    mask[places.reshape(-1)] = agree.reshape(-1)
    return mask.reshape(leaf.shape)


def _explained(leaf: LeafComparison, actual: Array, expected: Array, agree: Array, where: str) -> LeafComparison:
    """The leaf with the verdict of a mask that says which indices select values that agree."""
    assert leaf.measured is not None
    wrong = np.flatnonzero(~agree)
    note = f"of {leaf.unequal} other indices, {leaf.unequal - wrong.size} select values that agree, by {where}"
    first = elements_at(actual, expected, wrong)
    measured = attrs.evolve(leaf.measured, mismatches=wrong.size, first=first, beyond=wrong)
    verdict = Verdict.DIFFERENT if wrong.size else Verdict.ROUNDING
    return attrs.evolve(leaf, verdict=verdict, measured=measured, note=note)
