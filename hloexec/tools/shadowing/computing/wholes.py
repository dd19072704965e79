"""Shadows of whole arrays: of elements that move, and of what is computed from many elements.

In f64 on the shadows; and again on the operands as they are, to tell what the instruction itself adds: on all of them,
or on so much that a part of the result can be told from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import energy_of
from hloexec.core.dtypes import element_type_of, unit_roundoff
from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.tree import flat
from hloexec.core.values import Array
from hloexec.ops.attributes import computation_names
from hloexec.ops.common import is_inexact
from hloexec.ops.registry import Kernel, Role
from hloexec.ops.resources import in_blocks
from hloexec.tools.shadowing.computing.elements import (
    NOWHERE,
    SHARE,
    Difference,
    Sample,
    difference_of,
    energy_in,
    first_places,
    narrowed,
    sampled,
    spread,
    subtracted,
    taken,
)
from hloexec.tools.shadowing.computing.widening import NARROW, PREDS, SAME, WIDE
from hloexec.tools.shadowing.places import Losses, absorbed, losses, merged
from hloexec.tools.shadowing.store import (
    BLOCK,
    Blame,
    Shadow,
    Shadows,
    exact_ranges,
    finite_energy_of,
    summed,
    wide,
    widened,
)

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


def moved(evaluation: Evaluation, value: object, operands: Sequence[Any], shadows: Shadows) -> list[Evaluated] | None:
    """The leaf of what an instruction moves; None where it cannot move differences."""
    if not isinstance(value, np.ndarray):
        return None
    known_shadows = [shadow for shadow in shadows if shadow is not None]
    if not known_shadows:
        return [Evaluated(value, None, None)]
    is_whole = any(shadow.is_whole for shadow in known_shadows)
    is_wide = is_whole or any(
        shadow.data.dtype.itemsize > 4 * (1 + (shadow.data.dtype.kind == "c")) for shadow in known_shadows
    )
    kernel = evaluation.kernel(WIDE if is_wide else NARROW)
    if kernel is None:
        return None
    is_complex = value.dtype.kind == "c"
    dtype = (np.complex128 if is_complex else np.float64) if is_wide else np.complex64 if is_complex else np.float32
    arguments = [
        _moving(operand, shadow, dtype, is_whole) if is_inexact(operand) else operand
        for operand, shadow in zip(operands, shadows, strict=True)
    ]
    data = np.asarray(kernel(*arguments))
    blame = _moved_blame(evaluation, shadows, operands)
    mask = _moved_mask(evaluation, known_shadows) if len(operands) == 1 else None
    if evaluation.traits.keeps_all and evaluation.traits.rearranges and not is_whole:
        return [Evaluated(value, Difference(data, False, known_shadows[0].energy, 0), None, blame, mask)]
    return [Evaluated(value, _difference(data, is_whole, value), None, blame, mask)]


def _moved_mask(evaluation: Evaluation, shadows: Sequence[Shadow]) -> Array | None:
    kernel = None if shadows[0].absorbed is None else evaluation.kernel(PREDS)
    return None if kernel is None else np.asarray(kernel(shadows[0].absorbed))


def _moved_blame(evaluation: Evaluation, shadows: Shadows, operands: Sequence[Any]) -> Blame:
    known_shadows = [shadow for shadow in shadows if shadow is not None]
    if len(known_shadows) < 2 or not evaluation.is_elementwise:
        return merged(shadows)
    # A select: of each operand what was chosen.
    kernel = evaluation.kernel(WIDE)
    assert kernel is not None
    weights = []
    for number, shadow in enumerate(shadows):
        if shadow is None:
            weights.append(0.0)
            continue
        arguments = [
            operand if not is_inexact(operand) else _errors_of(operand, shadow if place == number else None)
            for place, operand in enumerate(operands)
        ]
        weights.append(energy_of(np.asarray(kernel(*arguments))))
    return merged(shadows, weights)


def reordered(
    evaluation: Evaluation, value: object, operands: Sequence[Any], shadows: Shadows
) -> list[Evaluated] | None:
    """The leaves of what an instruction sorts."""
    dimension, places = evaluation.order(SAME)(*operands)
    results = []
    for leaf, shadow in zip(flat(value), [*shadows, None], strict=False):
        if not is_inexact(leaf):
            continue
        if shadow is None:
            results.append(Evaluated(leaf, None, None))
            continue
        data = np.take_along_axis(shadow.data, places, dimension)
        results.append(Evaluated(leaf, _difference(data, shadow.is_whole, leaf), None, merged([shadow])))
    return results


def order_changes(evaluation: Evaluation, operands: Sequence[Any], shadows: Shadows) -> int:
    """At how many places another element would be if the shadows were sorted."""
    _, places = evaluation.order(SAME)(*operands)
    exact = exact_operands(operands, shadows)
    try:
        _, others = evaluation.order(WIDE)(*exact)
    except ValueError:
        # A comparator that reads bits takes no other floats.
        rounded = (exact_operand.astype(operand.dtype) for exact_operand, operand in zip(exact, operands, strict=True))
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


def exact_operands(operands: Sequence[Any], shadows: Shadows) -> list[Any]:
    return [
        wide_operand(operand) if shadow is None else shadow.exact(operand)
        for operand, shadow in zip(operands, shadows, strict=True)
    ]


def wide_operand(operand: Any) -> Any:
    return widened(operand) if isinstance(operand, np.ndarray) else operand


_LARGE = 1 << 14
"""Elements from which on an instruction is computed again for a part of its result only."""
_SLICES = 8
_PIECE = 1 << 16
"""Elements of a part of an operand or result that a core keeps in f64, of what is computed slice by slice."""
_ROWS = 256
"""Rows of a piece of a large product, where that leaves `_FEWEST` pieces. BLAS puts the other operand into its order
for each piece, which with fewer rows takes it a good part of its time."""
_FEWEST = 4
_PIECES = 32
_TINY = 1e-300
_USUAL_ROUNDINGS = 8
"""An error of no more units of roundoff is not looked into."""
_WIDE_TYPES = (np.dtype(np.float64), np.dtype(np.complex128))


def whole(
    evaluation: Evaluation,
    kernel: Kernel,
    value: object,
    operands: Sequence[Any],
    shadows: Shadows,
) -> list[Evaluated] | None:
    """The leaves of what an instruction computes of whole arrays; None where it cannot do so in f64."""
    leaves = flat(value)
    if len(leaves) == 1:
        by_slices = _piecewise(evaluation, kernel, leaves[0], operands, shadows)
        if by_slices is not None:
            return by_slices
    exact = _results(evaluation, kernel, operands, shadows)
    pairs = list(zip(leaves, exact, strict=False))
    if len(exact) != len(leaves) or any(
        ours.shape != theirs.shape or theirs.dtype not in _WIDE_TYPES for ours, theirs in pairs if is_inexact(ours)
    ):
        # Some library calls compute in the type that their name has.
        return None
    differences = [difference_of(theirs, leaf) if is_inexact(leaf) else None for leaf, theirs in pairs]
    here, cut = _again(evaluation, kernel, operands, shadows, exact, differences)
    found = []
    for number, ((leaf, theirs), difference) in enumerate(zip(pairs, differences, strict=True)):
        if difference is None:
            continue
        if not difference.energy and not difference.is_whole:
            found.append(Evaluated(leaf, None, None))
            continue
        part, places = _cut(leaf, cut), None if cut else sampled(difference, leaf)
        if part.size > _LARGE and places is None:
            places = spread(part.size)
        sample = _compared(part, _cut(theirs, cut), here[number], places)
        if cut is not None and not _shows(sample, difference, leaf.size):
            # Most of the error is elsewhere.
            here, cut = _results(evaluation, kernel, operands, [None] * len(operands)), None
            sample = _compared(leaf, theirs, here[number], sampled(difference, leaf))
        if evaluation.accumulates and cut is None:
            where = places if sample.value.size < leaf.size else None
            operand = wide(taken(operands[number], where))
            sample.absorbed = absorbed(sample.value, [operand], sample.added, element_type_of(leaf.dtype), is_sum=False)
        its = losses(sample, element_type_of(leaf.dtype), evaluation.traits)
        weights, lost = operand_weights(kernel, operands, shadows, number, here[number], cut)
        its = attrs.evolve(its, weights=weights, lost_weights=lost)
        found.append(Evaluated(leaf, difference, its.scaled(difference.energy)))
    _note_steps(evaluation, operands, found)
    if evaluation.entry is None or evaluation.entry.role is not Role.LIBRARY or all(map(_is_plausible, found)):
        return found
    evaluation.doubt = "in f64, it gives other results, such as vectors of the other sign; these count as exact"
    return list(filter(_is_plausible, found))


def _note_steps(evaluation: Evaluation, operands: Sequence[Any], leaves: Sequence[Evaluated]) -> None:
    """Say what of the errors was absorbed in steps of the instruction's own, if they are more than usual roundings."""
    large = []
    for number, leaf in enumerate(leaves):
        its = leaf.losses
        usual = _USUAL_ROUNDINGS * unit_roundoff(element_type_of(leaf.value.dtype))
        if its is not None and its.added > usual**2 * its.scale:
            large.append((number, its))
    if not large or not computation_names(evaluation.instruction.attributes):
        return
    steps = evaluation.steps(operands)
    for number, its in large:
        if number < len(steps) and steps[number].absorbed:
            its.steps = its.counts["absorption"] = steps[number].absorbed
            its.kinds["absorption"] = steps[number].share * its.added
            its.kinds["rounding"] = max(0.0, its.kinds.get("rounding", 0.0) - its.kinds["absorption"])


def _piecewise(
    evaluation: Evaluation,
    kernel: Kernel,
    value: Array,
    operands: Sequence[Any],
    shadows: Shadows,
) -> list[Evaluated] | None:
    """The leaf of a large contraction, whose exact numbers are computed for some slices at a time; None where that is
    not to be done, or where differences do not tell."""
    pair = _slicing(evaluation, operands)
    if pair is None or value.size < _PIECE or value.dtype.kind == "c":
        return None
    dimension, result_dimension = pair
    first, shadow = operands[0], shadows[0]
    exact_part = _Pieces(first, shadow, dimension, keeps=True)
    rest = exact_operands(operands[1:], shadows[1:])
    result = np.empty(value.shape, np.float32)
    size = first.shape[dimension]
    step = max(min(_ROWS, -(-size // _FEWEST)), -(-size // _PIECES), _PIECE * size // max(first.size, value.size))
    seen = [(0.0, False, NOWHERE)] * -(-size // step)

    def work(start: int, stop: int) -> None:
        if any(is_lossy for _, is_lossy, _ in seen):
            return
        where = slice(start, stop)
        exact = np.asarray(kernel(exact_part(start, stop), *rest))
        its = _cut(value, (result_dimension, where))
        if exact.dtype != np.float64 or exact.shape != its.shape:
            seen[start // step] = 0.0, True, NOWHERE
            return
        block, is_lossy, vanished = narrowed(exact, its, _cut(result, (result_dimension, where)))
        seen[start // step] = energy_in(block), is_lossy, vanished

    in_blocks(work, size, step)
    energies, are_lossy, _ = zip(*seen, strict=True)
    if any(are_lossy):
        return None
    energy = float(sum(energies))
    difference = Difference(result, False, energy, 0)
    if not energy:
        return [Evaluated(value, None, None)]
    where = _sparse(size)
    plain = rest if not any(shadows[1:]) else [wide_operand(operand) for operand in operands[1:]]
    part, cut = _cut(first, (dimension, where)), (result_dimension, where)
    here = np.asarray(kernel(wide_operand(part), *plain))
    ours = _cut(value, cut)
    theirs = np.add(ours, _cut(result, cut), dtype=np.float64) if any(shadows) else here
    sample = _compared(ours, theirs, here, spread(ours.size) if ours.size > _LARGE else None)
    if not _shows(sample, difference, value.size):
        # Most of the error is elsewhere.
        return None
    weights, lost = operand_weights(kernel, operands, shadows, 0, here, cut)
    its_losses = losses(sample, element_type_of(value.dtype), evaluation.traits)
    its_losses.weights, its_losses.lost_weights = weights, lost
    return [Evaluated(value, difference, its_losses.scaled(energy))]


def _results(evaluation: Evaluation, kernel: Kernel, operands: Sequence[Any], shadows: Shadows) -> list[Array]:
    """What the kernel gives for exact operands. What makes little of much is computed for some rows at a time, where
    they follow one another in memory."""
    pair = _slicing(evaluation, operands)
    if pair is None or pair[0] or operands[0].size < 2 * _PIECE or operands[0].dtype.kind == "c":
        return flat(kernel(*exact_operands(operands, shadows)))
    first = operands[0]
    step = max(1, _PIECE * len(first) // first.size)
    exact_part = _Pieces(first, shadows[0], 0, keeps=False)
    rest = exact_operands(operands[1:], shadows[1:])
    parts: list[Any] = [None] * -(-len(first) // step)

    def work(start: int, stop: int) -> None:
        parts[start // step] = kernel(exact_part(start, stop), *rest)

    in_blocks(work, len(first), step)
    if not exact_part.are_told():
        assert shadows[0] is not None
        shadows[0].settle()
        return _results(evaluation, kernel, operands, shadows)
    return [np.concatenate(parts, pair[1])]


class _Pieces:
    """The exact numbers of an operand, for some slices at a time."""

    def __init__(self, array: Array, shadow: Shadow | None, dimension: int, *, keeps: bool) -> None:
        """What is pending is computed for each slice, unless it is to be kept for others."""
        self._array, self._dimension = array, dimension
        self._shadow = shadow
        self._pending = shadow.pending if shadow is not None and not keeps and not dimension else None
        self._data = None if shadow is None or self._pending is not None else shadow.data
        self._is_whole = self._data is not None and shadow is not None and shadow.is_whole
        if self._pending is not None:
            self._flat, self._ranges = np.ascontiguousarray(array).reshape(-1), self._pending.ranges()
        self._seen: dict[int, tuple[int, float, Array]] = {}
        """Of what is pending: from each place on up to which one, the energy, and where elements vanish."""

    def __call__(self, start: int, stop: int) -> Array:
        if self._pending is not None:
            return self._computed(start, stop)
        cut = self._dimension, slice(start, stop)
        part = _cut(self._array, cut)
        if self._data is None:
            return wide(part)
        if self._is_whole:
            return _cut(self._data, cut)
        return summed(part, _cut(self._data, cut))

    def _computed(self, start: int, stop: int) -> Array:
        length = self._array.size // self._array.shape[0]
        pieces = np.empty((stop - start, *self._array.shape[1:]))
        out, origin = pieces.reshape(-1), start * length
        for first in range(origin, stop * length, BLOCK):
            last = min(first + BLOCK, stop * length)
            out[first - origin : last - origin] = self._ranges(first, last)
            block, vanished = subtracted(out[first - origin : last - origin], self._flat[first:last])
            self._seen[first] = last, energy_in(block), vanished
        return pieces

    def are_told(self) -> bool:
        """Whether differences tell all of what is pending, once it has been computed; its shadow then knows its energy,
        and who is to blame for it."""
        if self._pending is None or self._shadow is None:
            return True
        energy = float(sum(self._seen[first][1] for first in sorted(self._seen)))
        if not math.isfinite(energy):
            return False
        vanished = first_places((first, self._seen[first][2]) for first in sorted(self._seen))
        start = max(sorted(self._seen), key=lambda first: self._seen[first][1])
        where = start, self._seen[start][0]
        blame = self._pending.corrected(self._array, self._shadow, energy, where, vanished)
        self._shadow.energy, self._shadow.blame = energy, blame or self._shadow.blame
        return True


def _again(
    evaluation: Evaluation,
    kernel: Kernel,
    operands: Sequence[Any],
    shadows: Shadows,
    exact: Sequence[Array],
    differences: Sequence[Difference | None],
) -> tuple[list[Array], tuple[int, slice] | None]:
    """What the kernel gives for the operands as they are: for all, or for a part of the result, and which."""
    if not any(shadow is not None for shadow in shadows):
        return list(exact), None
    is_whole = any(difference is not None and difference.is_whole for difference in differences)
    pair = None if is_whole else _sliced(evaluation, operands)
    if pair is None:
        return flat(kernel(*map(wide_operand, operands))), None
    dimension, result_dimension, where = pair
    first = _cut(operands[0], (dimension, where))
    wide = [wide_operand(operand) for operand in (first, *operands[1:])]
    return flat(kernel(*wide)), (result_dimension, where)


def _sliced(evaluation: Evaluation, operands: Sequence[Any]) -> tuple[int, int, slice] | None:
    pair = _slicing(evaluation, operands)
    return None if pair is None else (*pair, _sparse(operands[0].shape[pair[0]]))


def _sparse(size: int) -> slice:
    """A few of so many slices, from the middle of a step: the first and the last are often special."""
    step = max(1, size // min(_SLICES, max(1, size // 8)))
    return slice(step // 2, None, step)


def _slicing(evaluation: Evaluation, operands: Sequence[Any]) -> tuple[int, int] | None:
    """Along which dimension of the first operand, and which of the result, an instruction may be computed slice by
    slice."""
    slices = None if evaluation.entry is None else evaluation.entry.slices
    if slices is None or max(operand.size for operand in operands) < _LARGE:
        return None
    shapes = tuple(ArrayShape(element_type_of(operand.dtype), operand.shape) for operand in operands)
    pair = slices(attributes=evaluation.instruction.attributes, operand_shapes=shapes)
    return None if pair is None or operands[0].shape[pair[0]] < 4 else pair


def operand_weights(
    kernel: Kernel,
    operands: Sequence[Any],
    shadows: Shadows,
    leaf: int,
    here: Array,
    cut: tuple[int, slice] | None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """How much of what is inherited comes from each operand's finite errors, and from its lost elements."""
    wrong = [number for number, shadow in enumerate(shadows) if shadow is not None]
    weights = [0.0] * len(shadows)
    if len(wrong) == 1:
        weights[wrong[0]] = 1.0
    elif wrong and cut is None and sum(operand.size for operand in operands) < _LARGE:
        for number in wrong:
            alone = [shadow if place == number else None for place, shadow in enumerate(shadows)]
            changed = np.subtract(flat(kernel(*exact_operands(operands, alone)))[leaf], here)
            weights[number] = energy_of(changed[np.isfinite(changed)])
    elif wrong:
        for number in wrong:
            shadow = shadows[number]
            assert shadow is not None
            weights[number] = shadow.energy / max(finite_energy_of(operands[number]), _TINY)
    total = sum(weights)
    if not total > 0:
        weights, total = [float(number in wrong) for number in range(len(weights))], float(max(1, len(wrong)))
    shares = [weight / total for weight in weights]
    is_lost = [shadow is not None and shadow.lost > 0 for shadow in shadows]
    return (
        tuple(0.0 if lost else share for share, lost in zip(shares, is_lost, strict=True)),
        tuple(share if lost else 0.0 for share, lost in zip(shares, is_lost, strict=True)),
    )


def _cut(array: Array, cut: tuple[int, slice] | None) -> Array:
    return array if cut is None else array[(slice(None),) * cut[0] + (cut[1],)]


def _compared(value: Array, exact: Array, here: Array, places: Array | None) -> Sample:
    ours = wide(taken(value, places))
    theirs, its = (taken(np.asarray(array), places) for array in (exact, here))
    return Sample(ours, theirs, its, ours - its, its - theirs)


def _shows(sample: Sample, difference: Difference, size: int) -> bool:
    """Whether a sample of so many elements holds its part of the error."""
    with np.errstate(all="ignore"):
        errors = np.abs(sample.value - sample.exact)
    energy = float(np.square(errors[np.isfinite(errors)]).sum())
    return energy * size >= SHARE * difference.energy * sample.value.size


def _is_plausible(evaluated: Evaluated) -> bool:
    """Whether a library call computes in f64 what it computes otherwise, quantities of other types aside."""
    return evaluated.losses is None or evaluated.losses.added <= 0.1 * evaluated.losses.scale
