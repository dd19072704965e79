"""Shadows of f64 and c128: a value and its difference together have some 80 bits.

What operands' differences do is computed with them made 2²⁷ times as large or so, beside which the rounding of f64
vanishes, and divided by that factor again; what is not linear in them is as small. What the instruction itself adds is
what the error-free transformations of sums and products leave over (Knuth; Dekker), or the difference from the same
formula in a wider type where NumPy has one, or else from the formulas of the `exact` policy, which tells it to within
half an ULP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hloexec.analysis.numerics.statistics import energy_of
from hloexec.core.values import Array, flat
from hloexec.ops.common import is_inexact
from hloexec.ops.policies.exact.doubled import two_product, two_sum
from hloexec.ops.registry import Entry
from hloexec.ops.traits import Rounding, Traits
from hloexec.tools.shadowing.computing.elements import Difference, Sample, sampled, taken
from hloexec.tools.shadowing.store import Shadow, wide

_HEADROOM = 2.0**-26
"""The largest of the enlarged differences, relative to the largest of the values."""
_HAS_WIDER = np.finfo(np.longdouble).nmant >= 63


def is_needed(value: object) -> bool:
    """Whether a result has floats of 64 bits."""
    return any(_is_double(leaf) for leaf in flat(value))


def _is_double(leaf: object) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype in (np.dtype(np.float64), np.dtype(np.complex128))


def evaluated(
    entry: Entry,
    traits: Traits,
    kernel: Callable[..., Any],
    exact: Callable[[], Callable[..., Any]],
    value: object,
    operands: Sequence[Any],
    shadows: Sequence[Shadow | None],
) -> Iterator[tuple[Array, Difference | None, Sample | None]] | None:
    """The leaves of floats of a result, each with its difference, and what a sample shows of it.

    `exact` gives the kernel under the `exact` policy, where it is needed.
    """
    leaves = flat(value)
    given = [wide(operand) if isinstance(operand, np.ndarray) else operand for operand in operands]
    wrong = [number for number, shadow in enumerate(shadows) if shadow is not None]
    parts = {number: _changes(kernel, given, {number: shadows[number]}, leaves) for number in wrong}
    if len(wrong) > 1:
        inherited = _changes(kernel, given, {number: shadows[number] for number in wrong}, leaves)
    else:
        inherited = next(iter(parts.values()), [0.0] * len(leaves))
    added = _added(entry, traits, kernel, exact, given, leaves)
    if len(added) != len(leaves):
        return None
    return _leaves(leaves, given, shadows, parts, inherited, added)


def _leaves(
    leaves: Sequence[Any],
    operands: Sequence[Any],
    shadows: Sequence[Shadow | None],
    parts: dict[int, list[Any]],
    inherited: Sequence[Any],
    added: Sequence[Any],
) -> Iterator[tuple[Array, Difference | None, Sample | None]]:
    for number, leaf in enumerate(leaves):
        if not is_inexact(leaf):
            continue
        numbers = wide(leaf)
        data = np.asarray(np.subtract(np.broadcast_to(inherited[number], leaf.shape), added[number]), numbers.dtype)
        data = np.where(np.isfinite(data) & np.isfinite(numbers), data, 0)
        energy = energy_of(data)
        if not energy:
            yield leaf, None, None
            continue
        difference = Difference(data, False, energy, 0)
        places = sampled(difference, leaf)
        here = {k: taken(np.asarray(part[number]), places) for k, part in parts.items()}
        fits = all(isinstance(array, np.ndarray) and array.shape in ((), leaf.shape) for array in operands)
        ours = taken(numbers, places)
        own = np.broadcast_to(taken(np.broadcast_to(added[number], leaf.shape), places), ours.shape)
        old = np.broadcast_to(taken(np.broadcast_to(inherited[number], leaf.shape), places), ours.shape)
        yield (
            leaf,
            difference,
            Sample(
                ours,
                ours + taken(data, places),
                ours - own,
                own,
                -old,
                tuple(taken(operand, places) for operand in operands) if fits else tuple(np.zeros(1) for _ in operands),
                tuple(
                    taken(operand, places) + taken(shadow.data, places) if shadow is not None and fits else None
                    for operand, shadow in zip(operands, shadows, strict=True)
                ),
                tuple(here.get(k) for k in range(len(operands))),
            ),
        )


def _changes(
    kernel: Callable[..., Any], operands: Sequence[Any], shadows: dict[int, Shadow | None], leaves: Sequence[Any]
) -> list[Any]:
    """What the differences of some operands change in each leaf."""
    differences = {}
    reach = np.inf
    for number, shadow in shadows.items():
        assert shadow is not None
        array = operands[number]
        data = np.subtract(shadow.data, array) if shadow.is_whole else shadow.data.astype(array.dtype, copy=False)
        data = np.where(np.isfinite(data), data, 0)
        differences[number] = data
        sizes = [np.abs(each[np.isfinite(each)]).max(initial=0.0) for each in (array, data)]
        if sizes[1]:
            reach = min(reach, max(sizes[0], sizes[1]) * _HEADROOM / sizes[1])
    factor = 2.0 ** np.floor(np.log2(max(1.0, reach))) if np.isfinite(reach) else 1.0
    given = [
        operand + factor * differences[number] if number in differences else operand
        for number, operand in enumerate(operands)
    ]
    moved, before = flat(kernel(*given)), flat(kernel(*operands))
    return [
        np.subtract(ours, theirs) / factor if isinstance(leaf, np.ndarray) and ours.dtype.kind in "fc" else 0.0
        for ours, theirs, leaf in zip(moved, before, leaves, strict=True)
    ]


def _added(
    entry: Entry,
    traits: Traits,
    kernel: Callable[..., Any],
    exact: Callable[[], Callable[..., Any]],
    operands: Sequence[Any],
    leaves: Sequence[Any],
) -> list[Any]:
    """What an instruction adds to the error of each leaf: value − exact."""
    if entry.rounding is Rounding.NONE:
        return [0.0] * len(leaves)
    if len(leaves) == 1 and entry.is_elementwise:
        value = leaves[0]
        if traits.converts:
            return [np.subtract(wide(value), operands[0])]
        if (traits.cancels or traits.is_product) and value.dtype == np.float64:
            return [_left_over(kernel, operands, is_product=traits.is_product)]
        ufunc = kernel if isinstance(kernel, np.ufunc) else getattr(kernel, "func", None)
        if _HAS_WIDER and isinstance(ufunc, np.ufunc):
            wider = ufunc(*(_wider(operand) for operand in operands))
            return [np.asarray(_wider(value) - wider).astype(value.dtype)]
    return [
        np.subtract(wide(leaf), theirs) if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fc" else 0.0
        for leaf, theirs in zip(leaves, flat(exact()(*operands)), strict=True)
    ]


def _left_over(kernel: Callable[..., Any], operands: Sequence[Any], *, is_product: bool) -> Array:
    """What a sum, difference or product of two operands has that its rounded value lacks, with the sign of an error."""
    lhs, rhs = operands
    if is_product:
        return np.asarray(np.negative(two_product(lhs, rhs)[1]))
    # Of a sum or a difference, which one it is.
    sign = float(np.ravel(kernel(np.zeros(1), np.ones(1)))[0])
    return np.asarray(np.negative(two_sum(lhs, sign * rhs)[1]))


def _wider(array: Array) -> Array:
    return array.astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)
