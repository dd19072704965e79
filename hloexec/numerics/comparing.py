"""`compare`: how far a value is from another, leaf by leaf, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hloexec.devices.topology import topology_of
from hloexec.dtypes import element_type_of
from hloexec.errors import InputError
from hloexec.ir import ArrayShape, Module
from hloexec.numerics.comparison import Comparison, LeafComparison, Verdict, verdict_of
from hloexec.numerics.error_budget import Chain, leaf_chains
from hloexec.numerics.index_leaves import IndexLeaves
from hloexec.numerics.leaves import leaves_of
from hloexec.numerics.measuring import measure
from hloexec.numerics.sampling import measured_spreads
from hloexec.numerics.spread import Spread
from hloexec.numerics.tolerances import (
    Tolerance,
    derived_tolerance,
    given_tolerance,
    measured_tolerance,
    required_equality,
)
from hloexec.numerics.ulps import are_comparable, narrower
from hloexec.values import Array, Value

__all__ = ["compare"]


_OWN_SIZE = (
    "each element is held to its own size, as nothing says what was added up to make it: the module and its inputs do "
    "(--module, --inputs), or a tolerance (--atol)"
)


def compare(
    actual: Value | Mapping[str, Array],
    expected: Value | Mapping[str, Array],
    *,
    atol: float | None = None,
    rtol: float | None = None,
    ulp: float | None = None,
    module: Module | None = None,
    inputs: Sequence[Value] | None = None,
    numerics: str = "reference",
    contraction_length: int | None = None,
    selects: Mapping[str, Any] | None = None,
    spreads: Mapping[str, Spread] | None = None,
) -> Comparison:
    """Hold a value against the one that is expected, leaf by leaf.

    A value is an array, a (nested) tuple of values, or a mapping from names to arrays, all of element types that HLO
    has; numbers count as arrays. Leaves are paired by place or name. They must have the same dimensions; floats,
    complex numbers and integers may be of different widths, and are held against each other in the narrower type.

    An element agrees where |actual − expected| ≤ atol + rtol·|expected|, or where it is `ulp` ULPs off at most; NaN
    agrees with NaN. Where none of the three is given, floats may be off by what rounding explains. With the `module`
    that gave the values and its `inputs` (of one device) that is measured, for each element by itself: the module runs
    a few times with roundings that go up or down by chance (`hloexec.numerics.spread`); `spreads`, by label, are what
    was measured before. Without inputs, and under policies that round operands, it is read off the module, run under
    `numerics` (`hloexec.numerics.tolerances`). Without a module an element is held to its own size: one contraction of
    `contraction_length` terms (1024 unless given) is assumed, of which nothing cancels. Integers and preds must be the
    same.

    Indices compare by the values that they select, where `module` shows that a leaf holds some (argmax, topk, argsort):
    they need `inputs`, the module's, or a leaf that holds the values themselves. `selects` says it where no module
    does: from a leaf's label to the array that it selects from, along its last dimension, or to a pair of the array and
    the dimension.

    Raises InputError for what is no value, negative tolerances, and `selects` that do not fit.
    """
    if contraction_length is not None and contraction_length < 1:
        raise InputError(f"contraction_length must be positive, but is {contraction_length}")
    given = given_tolerance(atol, rtol, ulp)
    leaves = dict(leaves_of(actual, "actual")), dict(leaves_of(expected, "expected"))
    pairs = list(_paired(*leaves))
    chains = {} if module is None else _chains(module, numerics, leaves[1])
    if spreads is None and module is not None and inputs is not None and given is None and _may_round(pairs):
        spreads = measured_spreads(module, [list(inputs)], numerics)
    spreads = _by_place(spreads or {})
    found = []
    for label, mine, its in pairs:
        chain = chains.get(label)
        if module is not None and chain is None and mine is not None and its is not None:
            raise InputError(f"the result of {module.name}, {module.entry.result_shape}, has no leaf {label!r}")
        found.append(_compared(label, mine, its, given, chain, spreads.get(label), contraction_length))
    indices = IndexLeaves(module, inputs, numerics, selects or {}, given)
    return Comparison(tuple(indices.settled(found, pairs)))


def _paired(actual: dict[str, Array], expected: dict[str, Array]) -> Iterator[tuple[str, Array | None, Array | None]]:
    """The leaves of either side; a tuple of one is what it holds, as some frameworks return it."""
    sides = [{"value": side["0"]} if side.keys() == {"0"} else side for side in (actual, expected)]
    if sides[0].keys() == {"value"} != actual.keys() and sides[1].keys() == {"value"} != expected.keys():
        sides = [actual, expected]
    for label in dict.fromkeys([*sides[1], *sides[0]]):
        yield label, sides[0].get(label), sides[1].get(label)


def _label(index: tuple[int, ...]) -> str:
    return ".".join(map(str, index)) or "value"


def _chains(module: Module, numerics: str, labels: Iterable[str]) -> dict[str, Chain]:
    """The chains to a module's leaves by label; in front of it, results of several devices have the device's number."""
    own = {_label(index): chain for index, chain in leaf_chains(module, numerics).items()}
    found = dict(own)
    if topology_of(module, None, None).count > 1:
        for label in labels:
            device, _, rest = label.partition(".")
            if device.isdecimal() and (rest or "value") in own:
                found.setdefault(label, own[rest or "value"])
    if len(own) == 1:
        found.setdefault("value", *own.values())
    return found


def _by_place(spreads: Mapping[str, Spread]) -> Mapping[str, Spread]:
    """Spreads by the labels of pairs: that of a lone leaf has any that such a leaf may have."""
    return {**spreads, **dict.fromkeys(("value", "0"), next(iter(spreads.values())))} if len(spreads) == 1 else spreads


def _may_round(pairs: Sequence[tuple[str, Array | None, Array | None]]) -> bool:
    """Whether any leaf holds floats that are not the same."""
    return any(
        mine is not None
        and its is not None
        and mine.shape == its.shape
        and not element_type_of(its.dtype).is_integral
        and not np.array_equal(mine, its)
        for _, mine, its in pairs
    )


def _compared(
    label: str,
    actual: Array | None,
    expected: Array | None,
    given: Tolerance | None,
    chain: Chain | None,
    spread: Spread | None,
    contraction_length: int | None,
) -> LeafComparison:
    shapes = (_shape_text(actual), _shape_text(expected))
    if actual is None or expected is None:
        side = "actual" if actual is None else "expected"
        return LeafComparison(label, Verdict.DIFFERENT, *shapes, note=f"the {side} value has no such leaf")
    mine, its = element_type_of(actual.dtype), element_type_of(expected.dtype)
    if actual.shape != expected.shape:
        return LeafComparison(label, Verdict.DIFFERENT, *shapes, note="the dimensions differ")
    if not are_comparable(mine, its):
        return LeafComparison(label, Verdict.DIFFERENT, *shapes, note="the element types cannot be compared")
    if given is not None or (spread is not None and spread.scales.shape != expected.shape):
        spread = None
    narrow = narrower(mine, its)
    wide = its if narrow is mine else mine

    def tolerance(root_mean_square: float) -> Tolerance:
        if given is not None:
            return given
        if not (narrow.is_floating or narrow.is_complex):
            return required_equality(f"{narrow} must be the same")
        if spread is not None:
            return measured_tolerance(narrow, wide, spread)
        size = 0.0 if chain is None else root_mean_square
        return derived_tolerance(narrow, wide, size, chain, contraction_length)

    measured = measure(actual, expected, tolerance, None if spread is None else spread.scales)
    is_assumed = chain is None and given is None and not narrow.is_integral
    note = _OWN_SIZE if measured.mismatches and is_assumed else ""
    return LeafComparison(label, verdict_of(measured), *shapes, actual.size, narrow.name, measured, note)


def _shape_text(array: Array | None) -> str:
    return "nothing" if array is None else str(ArrayShape(element_type_of(array.dtype), array.shape))
