"""Whether two contestants computed the same: what is exact is equal, what is rounded lies within a derived bound.

Let u be the unit roundoff of the narrowest float type in the module. XLA:CPU runs a second time on stirred inputs, each
float times 1 ± 2u, the sign drawn for each. What that changes in a result, in the root mean square relative to the
result's own, as a multiple of 2u, is its condition κ (at least 1). A rounding on the way to a result weighs as much as
one of its inputs would, and roundings add up like a random walk. There are no more of them than instructions that run,
each of at most u; and within sums, which accumulate in f32 at least, no more than terms, which the largest array in the
module bounds, each of at most 2⁻²⁴. Both contestants make them, but the root mean square of a rounding is at most
u / √3, and √2 / √3 < 1:

    bound = κ · (√instructions · u + √elements · 2⁻²⁴)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

_Arrays = Sequence[np.ndarray[Any, Any]]


@attrs.frozen
class Agreement:
    """The leaf that is nearest to its bound, or beyond it."""

    error: float
    """Root mean square of the difference, as a part of the leaf's own."""
    bound: float

    @property
    def holds(self) -> bool:
        return self.error <= self.bound

    @property
    def nearness(self) -> float:
        """The error as a part of its bound, as far as there is one."""
        return self.error / self.bound if self.bound else self.error


def relative_roundings(unit: float, instructions: int, elements: int) -> float:
    """What the roundings of a run come to, where its condition is 1."""
    return instructions**0.5 * unit + elements**0.5 * 2.0**-24


def stirred(arrays: _Arrays, unit: float) -> list[np.ndarray[Any, Any]]:
    """Each float times 1 ± 2 · `unit`, the sign drawn for each; everything else as it is."""
    generator = np.random.default_rng(0)
    moved = []
    for array in arrays:
        if _is_float(array):
            sign = generator.integers(0, 2, array.shape, np.int8) * 4 - 2
            moved.append((_wide(array) * (1 + unit * sign)).astype(array.dtype))
        else:
            moved.append(array)
    return moved


def agreement(actual: _Arrays, expected: _Arrays, after_stirring: _Arrays, unit: float, roundings: float) -> Agreement:
    """Compare results leaf by leaf; `after_stirring` are the expected ones for stirred inputs, `roundings` is what
    `relative_roundings` says.

    Raises ValueError where the leaves are not alike in number, type and shape.
    """
    if [(leaf.dtype, leaf.shape) for leaf in actual] != [(leaf.dtype, leaf.shape) for leaf in expected]:
        raise ValueError("the results differ in number, type or shape")
    worst = Agreement(0.0, 0.0)
    for ours, theirs, moved in zip(actual, expected, after_stirring, strict=True):
        if _is_float(theirs):
            found = _of_leaf(_wide(ours), _wide(theirs), _wide(moved), unit, roundings)
        else:
            found = Agreement(0.0 if np.array_equal(ours, theirs) else float("inf"), 0.0)
        worst = max(worst, found, key=lambda each: each.nearness)
    return worst


def _of_leaf(ours: Any, theirs: Any, moved: Any, unit: float, roundings: float) -> Agreement:
    usual = np.isfinite(theirs)
    if not np.array_equal(ours[~usual], theirs[~usual], equal_nan=True):
        return Agreement(float("inf"), 0.0)
    scale = _root_mean_square(theirs[usual])
    difference = _root_mean_square(ours[usual] - theirs[usual])
    if not scale or not difference:
        return Agreement(float("inf") if difference else 0.0, 0.0)
    change = np.where(np.isfinite(moved), moved - theirs, 0)[usual]
    condition = max(_root_mean_square(change) / scale / (2 * unit), 1.0)
    return Agreement(difference / scale, condition * roundings)


def _is_float(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "fcV" or array.dtype.name.startswith(("bfloat", "float"))


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _root_mean_square(values: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean(np.abs(values) ** 2))) if values.size else 0.0
