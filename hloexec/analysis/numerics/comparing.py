"""`compare`: compare two values leaf by leaf, and decide whether rounding explains the differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.analysis.numerics.comparison import Comparison, LeafComparison, Verdict, verdict_of
from hloexec.analysis.numerics.error_budget import Chain, leaf_chains
from hloexec.analysis.numerics.index_leaves import IndexLeaves
from hloexec.analysis.numerics.leaves import Pair, leaves_of, relabelled
from hloexec.analysis.numerics.measuring import measure
from hloexec.analysis.numerics.sampling.paths import Path
from hloexec.analysis.numerics.sampling.runs import Key, Sampled, by_either_label, sampled_in_stages
from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.analysis.numerics.sampling.turning import Turning, with_decisions
from hloexec.analysis.numerics.selections import ModuleValue
from hloexec.analysis.numerics.sequential import CHANCE, settled, severity_beside, severity_in_common
from hloexec.analysis.numerics.tolerances import Tolerance, derived_tolerance, given_tolerance, measured_tolerance
from hloexec.analysis.numerics.ulps import are_comparable, narrower
from hloexec.analysis.numerics.undecided import UndecidedLeaves
from hloexec.core.arguments import require_flags, require_integer, require_module, wrong
from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Module
from hloexec.core.structs import define
from hloexec.core.values import Array, Inputs, Value, join_values, label_of
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.arguments import device_arguments, inputs_by_device
from hloexec.engine.exec.running import run_devices
from hloexec.engine.options import require_elided
from hloexec.errors import InputError
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy


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
    spreads: Mapping[str, Spread] | None = None,
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
    differ (`numerics.sequential`). Of a module for several devices, either the results of all of them are
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
    given = given_tolerance(atol, rtol, ulp, check_error)
    leaves = dict(leaves_of(actual, "actual")), dict(leaves_of(expected, "expected"))
    pairs = list(_paired(*leaves))
    own = {} if module is None else _own_chains(module, numerics, leaves[1].keys())
    chains = {} if module is None else _chains(module, own, leaves[1])
    _require_leaves(module, pairs, chains)
    is_of_one_device = own.keys() >= leaves[1].keys()
    indices = IndexLeaves(module, None if rows is None else rows[0], numerics, selects or {}, given)
    undecided = UndecidedLeaves(None if same_choices else module, rows, numerics, elided, is_of_one_device)
    sample = None
    if module is not None and rows is not None and given is None:
        places = indices.places if any(entry.is_integral for entry in _differing(pairs)) else ()
        sample = partial(sampled_in_stages, module, rows, numerics, places, first_only=is_of_one_device)
    runs = _Runs(iter(()) if sample is None else sample())

    def judged(spreads: Mapping[str, Spread], pairs: Sequence[Pair]) -> list[LeafComparison]:
        spreads = by_either_label(spreads)

        def found(own: Sequence[Pair], others: Sequence[Pair]) -> Iterator[LeafComparison]:
            way = _way(module, runs.failure)
            compared = (
                _compared(pair, given, chains.get(pair[0]), spreads.get(pair[0]), contraction_length, way)
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
    return with_decisions(result, by_either_label(runs.spreads), pairs, Turning(module, judged, sample, run))


def _controlled(
    module: Module, rows: Sequence[Sequence[Value]] | None, numerics: NumericsPolicy, first_only: bool, path: Path
) -> Value:
    """The result of a run that takes a path."""
    found = run_devices(module, rows, numerics=numerics, observers=[path])
    return join_values(found[:1] if first_only else found)


@define(eq=False)
class _Runs:
    """What runs that round at random show, which take place when it is asked for."""

    stages: Iterator[Sampled]
    taken: Sampled | None = None

    def settled(self, judge: Callable[[Mapping[str, Spread]], Comparison]) -> Comparison:
        """The comparison with the spreads of as many runs as are needed."""

        def judged(found: Sampled) -> Comparison:
            self.taken = found
            return judge(found.spreads)

        return settled(self.stages, judged)

    def keys(self) -> Mapping[ModuleValue, Key]:
        if self.taken is None:
            self.taken = next(self.stages, Sampled())
        return self.taken.keys

    @property
    def spreads(self) -> Mapping[str, Spread]:
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
    found = {label_of(index): chain for index, chain in leaf_chains(module, numerics).items()}
    if len(found) == 1:
        found |= dict.fromkeys(("value", "0") if labels == {"0"} else ("value",), *found.values())
    return found


def _chains(module: Module, own: Mapping[str, Chain], labels: Iterable[str]) -> dict[str, Chain]:
    """The same with those of results of several devices, which have the device's number in front."""
    found = dict(own)
    if topology_of(module, None, None).count > 1:
        for label in labels:
            device, _, rest = label.partition(".")
            if device.isdecimal() and (rest or "value") in own:
                found.setdefault(label, own[rest or "value"])
    return found


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
