"""Elements that move: their differences move with them, by the instruction's own kernel, or as the run has sorted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hloexec.analysis.numerics.statistics import energy_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array, flat
from hloexec.ops.common import is_inexact
from hloexec.tools.shadowing.blame import merged
from hloexec.tools.shadowing.computing.elements import Difference, energy_in
from hloexec.tools.shadowing.computing.ranges import BLOCK, exact_ranges
from hloexec.tools.shadowing.computing.widening import NARROW, PREDS, SAME, WIDE
from hloexec.tools.shadowing.kinds import Losses
from hloexec.tools.shadowing.store import Blame, Shadow, wide, widened

if TYPE_CHECKING:
    from hloexec.tools.shadowing.computing.evaluation import Evaluation
    from hloexec.tools.shadowing.computing.pending import Pending


@frozen(eq=False)
class Evaluated:
    """A leaf of a result, its difference, and what the instruction did to it."""

    value: Array
    difference: Difference | None
    """None where the leaf has no error."""
    losses: Losses | None
    """None where the elements only moved."""
    moved: Blame | None = None
    """The blame of elements that moved."""
    absorbed: Array | None = None
    """As in `Shadow`."""
    pending: Pending | None = None
    """In place of the difference, how it is computed, and an estimate of its energy."""
    energy: float = 0.0


def moved(
    evaluation: Evaluation, value: object, operands: Sequence[Any], shadows: Sequence[Shadow | None]
) -> list[Evaluated] | None:
    """The leaf of what an instruction moves; None where it cannot move differences."""
    if not isinstance(value, np.ndarray):
        return None
    known = [shadow for shadow in shadows if shadow is not None]
    if not known:
        return [Evaluated(value, None, None)]
    is_whole = any(shadow.is_whole for shadow in known)
    is_wide = is_whole or any(
        shadow.data.dtype.itemsize > 4 * (1 + (shadow.data.dtype.kind == "c")) for shadow in known
    )
    kernel = evaluation.kernel(WIDE if is_wide else NARROW)
    if kernel is None:
        return None
    is_complex = value.dtype.kind == "c"
    dtype = (np.complex128 if is_complex else np.float64) if is_wide else np.complex64 if is_complex else np.float32
    given = [
        _moving(operand, shadow, dtype, is_whole) if is_inexact(operand) else operand
        for operand, shadow in zip(operands, shadows, strict=True)
    ]
    data = np.asarray(kernel(*given))
    blame = _moved_blame(evaluation, shadows, operands)
    mask = _moved_mask(evaluation, known) if len(operands) == 1 else None
    if evaluation.traits.keeps_all and evaluation.traits.rearranges and not is_whole:
        return [Evaluated(value, Difference(data, False, known[0].energy, 0), None, blame, mask)]
    return [Evaluated(value, _difference(data, is_whole, value), None, blame, mask)]


def _moved_mask(evaluation: Evaluation, known: Sequence[Shadow]) -> Array | None:
    kernel = None if known[0].absorbed is None else evaluation.kernel(PREDS)
    return None if kernel is None else np.asarray(kernel(known[0].absorbed))


def _moved_blame(evaluation: Evaluation, shadows: Sequence[Shadow | None], operands: Sequence[Any]) -> Blame:
    known = [shadow for shadow in shadows if shadow is not None]
    if len(known) < 2 or not evaluation.is_elementwise:
        return merged(shadows)
    # A select: of each operand what was chosen.
    kernel = evaluation.kernel(WIDE)
    assert kernel is not None
    weights = []
    for number, shadow in enumerate(shadows):
        if shadow is None:
            weights.append(0.0)
            continue
        given = [
            operand if not is_inexact(operand) else _errors_of(operand, shadow if place == number else None)
            for place, operand in enumerate(operands)
        ]
        weights.append(energy_of(np.asarray(kernel(*given))))
    return merged(shadows, weights)


def reordered(
    evaluation: Evaluation, value: object, operands: Sequence[Any], shadows: Sequence[Shadow | None]
) -> list[Evaluated] | None:
    """The leaves of what an instruction sorts."""
    dimension, places = evaluation.order(SAME)(*operands)
    found = []
    for leaf, shadow in zip(flat(value), [*shadows, None], strict=False):
        if not is_inexact(leaf):
            continue
        if shadow is None:
            found.append(Evaluated(leaf, None, None))
            continue
        data = np.take_along_axis(shadow.data, places, dimension)
        found.append(Evaluated(leaf, _difference(data, shadow.is_whole, leaf), None, merged([shadow])))
    return found


def order_changes(evaluation: Evaluation, operands: Sequence[Any], shadows: Sequence[Shadow | None]) -> int:
    """At how many places another element would be if the shadows were sorted."""
    _, places = evaluation.order(SAME)(*operands)
    exact = exact_operands(operands, shadows)
    try:
        _, others = evaluation.order(WIDE)(*exact)
    except ValueError:
        # A comparator that reads bits takes no other floats.
        rounded = (each.astype(operand.dtype) for each, operand in zip(exact, operands, strict=True))
        _, others = evaluation.order(SAME)(*rounded)
    return int(np.count_nonzero(places != others))


def _difference(data: Array, is_whole: bool, value: Array) -> Difference | None:
    """The difference that elements which moved have."""
    if is_whole:
        return Difference(data, True, _whole_energy(data, value), 0)
    energy = energy_of(data)
    return Difference(data, False, energy, 0) if energy else None


def _whole_energy(data: Array, value: Array) -> float:
    """The sum of the squares of what finite numbers differ by from a value."""
    exact, values = exact_ranges(data, None), exact_ranges(value, None)
    total = 0.0
    for start in range(0, value.size, BLOCK):
        stop = min(start + BLOCK, value.size)
        errors = np.subtract(exact(start, stop), values(start, stop))
        energy = energy_in(errors)
        if not math.isfinite(energy):
            energy = energy_in(errors[np.isfinite(errors)])
        total += energy * ((stop - start) / errors.size)
    return total


def _moving(operand: Array, shadow: Shadow | None, dtype: Any, is_whole: bool) -> Array:
    if is_whole:
        return wide(operand) if shadow is None else shadow.exact(operand)
    if shadow is None:
        # Nothing is read but zeros, which take no memory.
        return np.broadcast_to(np.zeros((), dtype), operand.shape)
    return shadow.data.astype(dtype, copy=False)


def _errors_of(operand: Array, shadow: Shadow | None) -> Array:
    if shadow is None:
        return np.broadcast_to(np.zeros((), np.complex128 if operand.dtype.kind == "c" else np.float64), operand.shape)
    errors = np.subtract(shadow.exact(operand), wide(operand)) if shadow.is_whole else shadow.data
    errors = errors.astype(np.complex128 if errors.dtype.kind == "c" else np.float64)
    return np.where(np.isfinite(errors), errors, 0)


def exact_operands(operands: Sequence[Any], shadows: Sequence[Shadow | None]) -> list[Any]:
    return [
        wide_operand(operand) if shadow is None else shadow.exact(operand)
        for operand, shadow in zip(operands, shadows, strict=True)
    ]


def wide_operand(operand: Any) -> Any:
    return widened(operand) if isinstance(operand, np.ndarray) else operand
