"""`compare`: compare two values leaf by leaf, and decide whether rounding explains the differences.

Two indices agree if the values that they select do, within the spread of each in a few runs with random rounding. The
values come from the caller, from a run of the module up to where they are computed, or from the result itself, if
another leaf holds the selected values: an index of the actual value is then looked up among the expected ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.analysis.numerics.comparison import Comparison, LeafComparison, Verdict, verdict_of
from hloexec.analysis.numerics.leaves import Pair, leaves_of, relabelled
from hloexec.analysis.numerics.measuring import agreement, are_comparable, elements_at, measure, narrower
from hloexec.analysis.numerics.sampling.spread import Spread, Spreads, by_either_label
from hloexec.analysis.numerics.tolerances import (
    Chain,
    Tolerance,
    chains_of,
    derived_tolerance,
    given_tolerance,
    leaf_chains,
    measured_tolerance,
    worst,
)
from hloexec.analysis.numerics.undecided import UndecidedLeaves
from hloexec.core.arguments import require_flags, require_integer, require_module, wrong
from hloexec.core.arrays import as_array
from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Inputs, Value, index_of, join_values, label_of
from hloexec.core.wording import argument
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.arguments import device_arguments, inputs_by_device
from hloexec.engine.exec.running import run_devices
from hloexec.engine.options import require_elided
from hloexec.errors import InputError
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy

if TYPE_CHECKING:
    from hloexec.analysis.numerics.sampling.paths import Path
    from hloexec.analysis.numerics.sampling.runs import Key, Sampled
    from hloexec.analysis.numerics.selections import ModuleValue, Selection


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
        spreads: Spreads,
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
        from hloexec.analysis.numerics.selections import apply_steps

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
        from hloexec.analysis.numerics.selections import apply_steps

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
        if self._module is None:
            return {}
        from hloexec.analysis.numerics.selections import selections_of

        return selections_of(self._module)

    @cached_property
    def _keys(self) -> Mapping[ModuleValue, Key]:
        """The values at the places that indices select from, from runs on the inputs."""
        module, inputs = self._module, self._inputs
        if module is None or inputs is None or topology_of(module, None, None).count > 1:
            return {}
        keys = {} if self._given is not None else self._sampled()
        if not keys:
            from hloexec.analysis.numerics.sampling.runs import Key
            from hloexec.analysis.numerics.selections import observed_sources

            observed = observed_sources(module, inputs, self.places, self._numerics)
            keys = {place: Key(array, None) for place, array in observed.items()}
        return keys

    @cached_property
    def _chains(self) -> dict[str, dict[str, Chain]]:
        return {} if self._module is None else chains_of(self._module, self._numerics)

    def _sources(self, selection: Selection) -> list[_Source] | None:
        sources = []
        for place in selection.sources:
            key = self._keys.get(place)
            if key is None:
                return None
            tolerance = self._tolerance(key.values, place, key.spread)
            scales = None if key.spread is None else key.spread.scales
            sources.append(_Source(key.values, selection.dimension, tolerance, scales))
        return sources

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
        agreeing = agreement(first, second, source.tolerance, scales) & inside[0] & inside[1]
        agree &= agreeing.reshape(actual.shape)
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
    repeats = np.empty_like(same)
    np.put_along_axis(repeats, np.moveaxis(order, dimension, -1), same, -1)
    return np.moveaxis(repeats, -1, dimension)


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
    from hloexec.analysis.numerics.selections import apply_steps

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


def compare(
    actual: Value | Mapping[str, Array],
    expected: Value | Mapping[str, Array],
    *,
    atol: float | None = None,
    rtol: float | None = None,
    ulp: float | None = None,
    check_error: str = "max",
    module: Module | None = None,
    inputs: Inputs | None = None,
    numerics: str | NumericsPolicy = "reference",
    contraction_length: int | None = None,
    selects: Mapping[str, object] | None = None,
    spreads: Spreads | None = None,
    elided: str | Mapping[str, Any] | None = "zeros",
    same_choices: bool = False,
) -> Comparison:
    """Compare a value with the expected one, leaf by leaf.

    A value is an array, a (nested) tuple of values, or a mapping from names to arrays, with element types of HLO;
    numbers count as arrays. Leaves are paired by position or name. They must have the same dimensions. Floats, complex
    numbers and integers may differ in width, and are compared in the narrower type.

    An element agrees if |actual − expected| ≤ atol + rtol·|expected|, or if it is at most `ulp` ULPs off; NaN agrees
    with NaN. `check_error` selects the statistic of a leaf's errors, each in units of the tolerance of its element,
    that must meet this: `max` every one, `mean` their mean, `median` and `p99` that of the rank of 50 and 99 % of the
    elements; the verdict says which. NaN and infinities must be where they are expected under any of them. If none of
    the three is given, floats may differ by as much as rounding explains. Given the `module` that computed the values
    and its `inputs` (see `hloexec.Inputs`), this is measured for each element: the module runs six times with random
    rounding (`numerics.sampling.spread`), and up to 64 times where chance may be behind the few elements that
    differ (`numerics.sampling.decided`). Of a module for several devices, either the results of all of them are
    given, as a tuple, or that of the first. `spreads` are results of an earlier measurement, by label. `numerics`
    is the policy under which the module runs. Without inputs, the tolerance follows from the magnitude of the element
    and from the number of roundings in the module (`numerics.tolerances`); without a module, one contraction of
    `contraction_length` terms (default 1024) is assumed. Integers and preds must be equal.

    Indices are compared by the values that they select if `module` shows that a leaf holds indices (argmax, topk,
    argsort); this needs the module's `inputs`, or a leaf with the values themselves. Without a module, `selects` maps
    the label of a leaf to the array that it selects from along the last dimension, or to a pair of array and dimension.

    Given the `module`, an element that differs is *not decided* if it depends on what HLO, or the text, leaves open:
    constants that the text elides, random numbers of an unspecified generator, the order in which a scatter writes,
    memory that nothing has written. Which elements do, shows on the `inputs`; without these, all of a leaf may.
    `elided` are the values of the constants, as for `run`: a mapping where they are known, and None where both sides
    were computed with the same ones. `same_choices` says that both sides are hloexec's, with the same choices in all
    that is left open.

    Raises InputError for arguments that are not values, for negative tolerances, for a `check_error` without a
    tolerance, and for `selects` that do not fit.
    """
    rows = _rows(module, inputs)
    numerics = numerics_policy(numerics)
    _require_kinds(contraction_length, selects, spreads, same_choices, elided)
    stated_tolerance = given_tolerance(atol, rtol, ulp, check_error)
    leaves = dict(leaves_of(actual, "actual")), dict(leaves_of(expected, "expected"))
    pairs = list(_paired(*leaves))
    own = {} if module is None else _own_chains(module, numerics, leaves[1].keys())
    chains = {} if module is None else _chains(module, own, leaves[1])
    _require_leaves(module, pairs, chains)
    is_of_one_device = own.keys() >= leaves[1].keys()
    indices = IndexLeaves(module, None if rows is None else rows[0], numerics, selects or {}, stated_tolerance)
    undecided = UndecidedLeaves(None if same_choices else module, rows, numerics, elided, is_of_one_device)
    sample = None
    if module is not None and rows is not None and stated_tolerance is None:
        places = indices.places if any(entry.is_integral for entry in _differing(pairs)) else ()
        sample = partial(_sampled, module, rows, numerics, places, first_only=is_of_one_device)
    runs = _Runs(iter(()) if sample is None else sample())

    def judged(spreads: Spreads, pairs: Sequence[Pair]) -> list[LeafComparison]:
        spreads = by_either_label(spreads)

        def found(own: Sequence[Pair], others: Sequence[Pair]) -> Iterator[LeafComparison]:
            way = _way(module, runs.failure)
            compared = (
                _compared(pair, stated_tolerance, chains.get(pair[0]), spreads.get(pair[0]), contraction_length, way)
                for pair in own
            )
            return indices.resolve([*compared], others, spreads, runs.keys)

        def again(pair: Pair) -> LeafComparison:
            return next(found([pair], [pair if pair[0] == other[0] else other for other in pairs]))

        return [*undecided.resolve([*found(pairs, pairs)], pairs, again)]

    if spreads is not None or all(entry.is_integral for entry in _differing(pairs)):
        result = Comparison(tuple(judged(spreads or {}, pairs)))
    else:
        result = runs.settled(lambda spreads: Comparison(tuple(judged(spreads, pairs))))
    if module is None or sample is None or spreads is not None or result.verdict is Verdict.EQUAL:
        return result

    run = partial(_controlled, module, rows, numerics, is_of_one_device)
    return _turned(result, by_either_label(runs.spreads), pairs, module, judged, sample, run)


def _turned(result: Comparison, spreads: Spreads, pairs: Sequence[Pair], *turning: Any) -> Comparison:
    """The comparison once decisions that rounding makes are turned, where that explains more."""
    from hloexec.analysis.numerics.sampling.paths import Turning, with_decisions

    return with_decisions(result, spreads, pairs, Turning(*turning))


def _sampled(*arguments: Any, **options: Any) -> Iterator[Sampled]:
    """What runs that round at random show, in stages."""
    from hloexec.analysis.numerics.sampling.runs import sampled_in_stages

    return sampled_in_stages(*arguments, **options)


def _controlled(
    module: Module, rows: Sequence[Sequence[Value]] | None, numerics: NumericsPolicy, first_only: bool, path: Path
) -> Value:
    """The result of a run that takes a path."""
    results = run_devices(module, rows, numerics=numerics, observers=[path])
    return join_values(results[:1] if first_only else results)


@define(eq=False)
class _Runs:
    """What runs that round at random show, which take place when it is asked for."""

    stages: Iterator[Sampled]
    taken: Sampled | None = None

    def settled(self, judge: Callable[[Spreads], Comparison]) -> Comparison:
        """The comparison with the spreads of as many runs as are needed."""

        def judged(sampled: Sampled) -> Comparison:
            self.taken = sampled
            return judge(sampled.spreads)

        from hloexec.analysis.numerics.sampling.decided import settled

        return settled(self.stages, judged)

    def keys(self) -> Mapping[ModuleValue, Key]:
        if self.taken is None:
            from hloexec.analysis.numerics.sampling.runs import Sampled

            self.taken = next(self.stages, Sampled())
        return self.taken.keys

    @property
    def spreads(self) -> Spreads:
        return {} if self.taken is None else self.taken.spreads

    @property
    def failure(self) -> str:
        return "" if self.taken is None else self.taken.failure


def _way(module: Module | None, failure: str) -> str:
    """What would say more, where no run shows what rounding does."""
    if failure:
        return f"the module does not run on these inputs ({failure}): give --atol"
    return f"give {'--module and --inputs' if module is None else '--inputs'}, or --atol"


def _require_kinds(
    contraction_length: object, selects: object, spreads: object, same_choices: object, elided: object
) -> None:
    """InputError where an argument is of a wrong type."""
    require_flags(same_choices=same_choices)
    if elided is not None:
        require_elided("elided", elided)
    if contraction_length is not None:
        require_integer("contraction_length", contraction_length, 1)
    if selects is not None and not isinstance(selects, Mapping):
        raise wrong("selects", "a mapping from the labels of leaves to arrays", selects)
    if spreads is not None and not (
        isinstance(spreads, Mapping) and all(isinstance(spread, Spread) for spread in spreads.values())
    ):
        raise wrong("spreads", "a mapping from the labels of leaves to Spread objects", spreads)


def _require_leaves(module: Module | None, pairs: Sequence[Pair], chains: Mapping[str, Chain]) -> None:
    """InputError where both sides have a leaf that the module's result has not."""
    for label, ours, theirs in pairs:
        if module is not None and label not in chains and ours is not None and theirs is not None:
            raise InputError(f"the result of {module.name}, {module.entry.result_shape}, has no leaf {label!r}")


def _paired(actual: dict[str, Array], expected: dict[str, Array]) -> Iterator[Pair]:
    """The leaves of either side; a tuple of one is what it holds, as some frameworks return it."""
    sides = [{"value": side["0"]} if side.keys() == {"0"} else side for side in (actual, expected)]
    if sides[0].keys() == {"value"} != actual.keys() and sides[1].keys() == {"value"} != expected.keys():
        sides = [actual, expected]
    if sides[0].keys() != sides[1].keys():
        for one, other in ((0, 1), (1, 0)):
            sizes = {label: array.shape for label, array in sides[other].items()}
            sides[one] = relabelled(sides[one], sizes)
    for label in dict.fromkeys([*sides[1], *sides[0]]):
        yield label, sides[0].get(label), sides[1].get(label)


def _own_chains(module: Module, numerics: str | NumericsPolicy, labels: Set[str]) -> dict[str, Chain]:
    """The chains to a module's leaves by label; of a lone leaf by any that results have for it."""
    chains = {label_of(index): chain for index, chain in leaf_chains(module, numerics).items()}
    if len(chains) == 1:
        chains |= dict.fromkeys(("value", "0") if labels == {"0"} else ("value",), *chains.values())
    return chains


def _chains(module: Module, own: Mapping[str, Chain], labels: Iterable[str]) -> dict[str, Chain]:
    """The same with those of results of several devices, which have the device's number in front."""
    chains = dict(own)
    if topology_of(module, None, None).count > 1:
        for label in labels:
            device, _, rest = label.partition(".")
            if device.isdecimal() and (rest or "value") in own:
                chains.setdefault(label, own[rest or "value"])
    return chains


def _differing(pairs: Sequence[Pair]) -> Iterator[ElementType]:
    """The element types of leaves that both sides have, in the same dimensions, and that are not the same."""
    for _, ours, theirs in pairs:
        if ours is not None and theirs is not None and ours.shape == theirs.shape and not np.array_equal(ours, theirs):
            yield element_type_of(theirs.dtype)


def _rows(module: Any, inputs: Any) -> list[list[Value]] | None:
    """The inputs of each device, or of one for all; None where none are given."""
    if module is not None:
        require_module(module)
    if inputs is None:
        return None
    if module is None:
        raise InputError("inputs are those of a module; give it as module, too")
    rows = inputs_by_device(module.entry, inputs)
    device_arguments(module.entry, rows, len(rows))
    return rows


def _compared(
    pair: Pair, given: Tolerance | None, chain: Chain | None, spread: Spread | None, length: int | None, way: str
) -> LeafComparison:
    label, actual, expected = pair
    shapes = (_shape_text(actual), _shape_text(expected))
    if actual is None or expected is None:
        side = "actual" if actual is None else "expected"
        return LeafComparison(label, Verdict.DIFFERENT, *shapes, note=f"the {side} value has no such leaf")
    ours, theirs = element_type_of(actual.dtype), element_type_of(expected.dtype)
    if actual.shape != expected.shape:
        return LeafComparison(label, Verdict.DIFFERENT, *shapes, note="the dimensions differ")
    if not are_comparable(ours, theirs):
        return LeafComparison(label, Verdict.DIFFERENT, *shapes, note="the element types cannot be compared")
    if given is not None or (spread is not None and spread.scales.shape != expected.shape):
        spread = None
    narrow = narrower(ours, theirs)
    wide = theirs if narrow is ours else ours

    if given is not None:
        tolerance = given
    elif not narrow.is_inexact:
        tolerance = Tolerance(derivation=f"{narrow} must be the same")
    elif spread is not None:
        tolerance = measured_tolerance(narrow, wide, spread, chain)
    else:
        tolerance = derived_tolerance(narrow, wide, chain, length)
    if narrow is not wide and narrow.is_inexact and given is None:
        side = "actual" if narrow is ours else "expected"
        said = f"{tolerance.derivation}: {narrow} is the type of the {side} value, whose rounding sets it"
        tolerance = attrs.evolve(tolerance, derivation=said)
    scales, means = (None, None) if spread is None else (spread.scales, spread.means)
    measured = measure(actual, expected, tolerance, scales, means)
    note = ""
    if measured.mismatches and given is None and spread is None and narrow.is_inexact:
        # Only a scale taken from elsewhere could explain these.
        many = f"{measured.mismatches} element{' is' if measured.mismatches == 1 else 's are'}"
        note = (
            f"{many} off by more than roundings make of their own size; where larger numbers were added up to make "
            f"them, a run on the inputs shows it: {way}"
        )
    beside, verdict, is_suspect = 0.0, verdict_of(measured), False
    if spread is not None:
        from hloexec.analysis.numerics.sampling.decided import CHANCE, severity_beside, severity_in_common

        is_suspect = severity_in_common(measured, spread, actual.size, CHANCE) > 0
        beside = severity_beside(actual, expected, measured, spread)
        if common := severity_in_common(measured, spread, actual.size):
            share, verdict = measured.common[0], Verdict.DIFFERENT
            note = (
                f"what is within its tolerance is off by {share:+.2%} in common, where runs vary by {spread.common:.2%}"
            )
            beside = max(beside, common)
    return LeafComparison(label, verdict, *shapes, actual.size, narrow.name, measured, note, beside, is_suspect)


def _shape_text(array: Array | None) -> str:
    return "nothing" if array is None else str(ArrayShape(element_type_of(array.dtype), array.shape))
