"""The shadow of one instruction's result, from those of its operands, also where it is of f64.

Shadows of f64 and c128: a value and its difference together have some 80 bits.

What operands' differences do is computed with them made 2²⁷ times as large or so, beside which the rounding of f64
vanishes, and divided by that factor again; what is not linear in them is as small. What the instruction itself adds is
what the error-free transformations of sums and products leave over (Knuth; Dekker), or the difference from the same
formula in a wider type where NumPy has one, or else from the formulas of the `exact` policy, which tells it to within
half an ULP.

The shadow of one instruction's result, from those of its operands.

Elements that move take their differences with them; sorts move them as the run has sorted. Elementwise instructions go
block by block (`elements`). All others are computed on whole arrays in f64: on the shadows, and on a part of the
operands as they are, to tell what the instruction adds. Results of f64 are a matter of `doubled`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from hloexec.analysis.numerics.leaves import energy_of
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Computation, Instruction
from hloexec.core.tree import flat
from hloexec.core.values import Array
from hloexec.ops.common import is_inexact
from hloexec.ops.policies.exact.doubled import two_product, two_sum
from hloexec.ops.registry import Entry, Kernel, Role, entry_of, traits_of
from hloexec.ops.traits import Rounding, Traits
from hloexec.tools.shadowing.computing.elements import (
    SAMPLE,
    Difference,
    Sample,
    count_unlike,
    difference_of_few,
    elementwise,
    sampled,
    spread,
    taken,
)
from hloexec.tools.shadowing.computing.pending import Elements, Noting, Pending, is_finite, may_wait
from hloexec.tools.shadowing.computing.wholes import Evaluated, exact_operands, moved, reordered, whole
from hloexec.tools.shadowing.computing.widening import SAME, WIDE, Floats, Kernels, Steps, steps_of
from hloexec.tools.shadowing.places import Absorbing, Losses, Place, absorbed, absorbed_before, blamed, losses
from hloexec.tools.shadowing.store import Blame, Shadow, Shadows, wide

_HEADROOM = 2.0**-26
"""The largest of the enlarged differences, relative to the largest of the values."""
_HAS_WIDER = np.finfo(np.longdouble).nmant >= 63


def has_doubles(value: object) -> bool:
    """Whether a result has floats of 64 bits."""
    return any(_is_double(leaf) for leaf in flat(value))


def _is_double(leaf: object) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype in (np.dtype(np.float64), np.dtype(np.complex128))


def evaluated_doubles(
    entry: Entry,
    traits: Traits,
    kernel: Kernel,
    exact: Callable[[], Kernel],
    value: object,
    operands: Sequence[Any],
    shadows: Shadows,
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
    shadows: Shadows,
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
    kernel: Kernel, operands: Sequence[Any], shadows: dict[int, Shadow | None], leaves: Sequence[Any]
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
        sizes = [np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0) for numbers in (array, data)]
        if sizes[1]:
            reach = min(reach, max(sizes[0], sizes[1]) * _HEADROOM / sizes[1])
    factor = 2.0 ** np.floor(np.log2(max(1.0, reach))) if np.isfinite(reach) else 1.0
    moved_operands = [
        operand + factor * differences[number] if number in differences else operand
        for number, operand in enumerate(operands)
    ]
    moved, before = flat(kernel(*moved_operands)), flat(kernel(*operands))
    return [
        np.subtract(ours, theirs) / factor if isinstance(leaf, np.ndarray) and ours.dtype.kind in "fc" else 0.0
        for ours, theirs, leaf in zip(moved, before, leaves, strict=True)
    ]


def _added(
    entry: Entry,
    traits: Traits,
    kernel: Kernel,
    exact: Callable[[], Kernel],
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


def _left_over(kernel: Kernel, operands: Sequence[Any], *, is_product: bool) -> Array:
    """What a sum, difference or product of two operands has that its rounded value lacks, with the sign of an error."""
    lhs, rhs = operands
    if is_product:
        return np.asarray(np.negative(two_product(lhs, rhs)[1]))
    # Of a sum or a difference, which one it is.
    sign = float(np.ravel(kernel(np.zeros(1), np.ones(1)))[0])
    return np.asarray(np.negative(two_sum(lhs, sign * rhs)[1]))


def _wider(array: Array) -> Array:
    return array.astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)


class Evaluation:
    """How one instruction is computed on shadows; made once for each."""

    def __init__(
        self, kernels: Kernels, computation: Computation, instruction: Instruction, number: int, place: Place
    ) -> None:
        self._kernels = kernels
        self.number = number
        self.place = place
        self.computation = computation
        self.instruction = instruction
        self.entry = entry_of(instruction)
        self.traits: Traits = traits_of(instruction)
        self.is_elementwise = self.entry is not None and self.entry.is_elementwise
        is_rounding = self.entry is None or self.entry.rounding is not Rounding.NONE
        self._chooses = not is_rounding and len(instruction.operands) > 1
        self.absorbing = Absorbing(computation, instruction)
        self.source: Evaluation | None = None
        """Of a convert, the sum or product that it rounds."""
        self._known: dict[Floats, Kernel | None] = {}
        self.doubt = ""
        """Why some of its results are taken as they are; empty where none is."""
        self.is_failing = False
        """Whether it cannot be computed in f64: its results are taken as they are."""

    @property
    def is_computed(self) -> bool:
        """Whether a kernel of its own gives the result."""
        return self.entry is not None and self.entry.role in (Role.KERNEL, Role.LIBRARY)

    @property
    def accumulates(self) -> bool:
        """Whether it adds something to operands: to leaf k of its result operand k."""
        return self.traits.in_place and self.entry is not None and self.entry.rounding is Rounding.SUM

    @property
    def is_sorting(self) -> bool:
        """Whether its results are elements of its operands in an order that it finds."""
        return self.entry is not None and self.entry.order is not None

    def kernel(self, floats: Floats) -> Kernel | None:
        if floats not in self._known:
            self._known[floats] = self._kernels.bound(self.computation, self.instruction, floats)
        return self._known[floats]

    def order(self, floats: Floats) -> Callable[..., tuple[int, Array]]:
        """The rule by which it sorts operands with other floats."""
        return self._kernels.order(self.computation, self.instruction, floats)

    def steps(self, operands: Sequence[Any]) -> list[Steps]:
        """What the steps of its own did to each leaf of its result."""
        return steps_of(self._kernels, self.computation, self.instruction, operands)

    def evaluated(self, value: object, operands: Sequence[Any], shadows: Shadows) -> list[Evaluated] | None:
        """The leaves of floats of a result; None where it cannot be computed in f64."""
        if self.traits.moves is not None and not self.traits.reads_bits:
            return moved(self, value, operands, shadows)
        if self.is_sorting:
            return reordered(self, value, operands, shadows)
        if self.traits.only_compared:
            compared = self.traits.only_compared
            shadows = [None if number in compared else shadow for number, shadow in enumerate(shadows)]
        if self.traits.reads_bits:
            return [Evaluated(leaf, None, None) for leaf in flat(value) if is_inexact(leaf)]
        kernel = self.kernel(WIDE)
        if kernel is None:
            return None
        if has_doubles(value):
            return self._doubled(kernel, value, operands, shadows)
        if self.is_elementwise and isinstance(value, np.ndarray):
            return [self._elementwise(value, operands, shadows)]
        return whole(self, kernel, value, operands, shadows)

    def decisions(self, value: object, operands: Sequence[Any], shadows: Shadows) -> int:
        """How many elements of a result's leaves of integers and preds would be others on the shadows."""
        kernel = self.kernel(WIDE)
        if kernel is None or self.traits.reads_bits or self.is_sorting:
            return 0
        if self.is_elementwise and isinstance(value, np.ndarray):
            return count_unlike(kernel, operands, shadows, value)
        results = flat(kernel(*exact_operands(operands, shadows)))
        count = 0
        for ours, theirs in zip(flat(value), results, strict=False):
            if isinstance(ours, np.ndarray) and not is_inexact(ours):
                count += int(np.count_nonzero(ours != theirs))
        return count

    # Arithmetic

    def _elementwise(self, value: Array, operands: Sequence[Array], shadows: Shadows) -> Evaluated:
        self.absorbing.keep(value, operands)
        if may_wait(value, shadows) and is_finite(value):
            found = self._waiting(value, operands, shadows)
            if found is not None:
                return found
        return self._at_once(value, operands, shadows)

    def _at_once(self, value: Array, operands: Sequence[Array], shadows: Shadows) -> Evaluated:
        sample = self._sample(value, operands, shadows, None) if value.size <= SAMPLE else None
        if sample is not None:
            difference = difference_of_few(sample, value)
        else:
            difference = elementwise(self.exact_kernel, operands, shadows, value)
        if not difference.energy and not difference.is_whole:
            return Evaluated(value, None, None)
        places = sampled(difference, value)
        if sample is None:
            sample = self._sample(value, operands, shadows, places)
        its_losses = self._losses(sample, value, shadows)
        mask = sample.absorbed if places is None and sample.absorbed is not None and sample.absorbed.any() else None
        if mask is None and places is None and self.traits.converts and not its_losses.added:
            mask = sample.absorbed_before
        return Evaluated(
            value,
            difference,
            its_losses.scaled(difference.energy),
            absorbed=None if mask is None else mask.reshape(value.shape),
        )

    def _waiting(self, value: Array, operands: Sequence[Array], shadows: Shadows) -> Evaluated | None:
        """A leaf whose shadow is pending; None where a sample shows no error."""
        places = spread(value.size)
        sample = self._sample(value, operands, shadows, places)
        its_losses = self._losses(sample, value, shadows)
        energy = (its_losses.added + its_losses.inherited) * (value.size / places.size)
        if not energy > 0 or not np.isfinite(energy):
            return None
        links = tuple(None if shadow is None else shadow.pending for shadow in shadows)
        pending = Pending(
            kernel=self.exact_kernel,
            operands=tuple(
                operand if before is None else None for operand, before in zip(operands, links, strict=True)
            ),
            shadows=tuple(shadows),
            links=links,
            value=weakref.ref(value),
            size=value.size,
            sample=sample.exact,
            own=self.kernel(SAME),
            blamed=self._blamed,
            length=1 + sum(before.length for before in links if before is not None),
            chooses=self._chooses or any(before.chooses for before in links if before is not None),
        )
        return Evaluated(value, None, its_losses.scaled(energy), pending=pending, energy=energy)

    def _blamed(self, elements: Elements) -> tuple[Array, Blame]:
        """What some elements say; as `Pending.blamed` has it."""
        value, operands, shadows = elements.value, elements.operands, elements.shadows
        sample = Sample.of_elements(self.exact_kernel, [*map(wide, operands)], elements.exact, wide(value))
        self._note_absorbed(sample, value, operands, shadows, elements.first, elements.places)
        its_losses = self._losses(sample, value, shadows)
        if elements.noting is not Noting.NOTHING:
            self.place.take(its_losses, only_counts=elements.noting is Noting.COUNTS)
        return sample.exact, blamed(self.number, its_losses, shadows, element_type_of(value.dtype))

    def _sample(self, value: Array, operands: Sequence[Array], shadows: Shadows, places: Array | None) -> Sample:
        sample = Sample.of(self.exact_kernel, operands, shadows, value, places)
        self._note_absorbed(sample, value, operands, shadows, operands[0], places)
        return sample

    def _note_absorbed(
        self,
        sample: Sample,
        value: Array,
        operands: Sequence[Array],
        shadows: Shadows,
        first: Array | None,
        places: Array | None,
    ) -> None:
        """Note what is absorbed in a sample, of the elements at `places`; `first` is the whole of the first operand,
        where that is still there."""
        sample.absorbed_before = absorbed_before(shadows, places)
        source = None if self.source is None else self.source.absorbing
        combined = self.absorbing.combined(operands, source, first)
        if combined is not None:
            terms, is_sum = combined
            # Terms that are not the instruction's own operands are whole arrays.
            its = sample.operands if terms is operands else [wide(taken(term, places)) for term in terms]
            sample.absorbed = absorbed(sample.value, its, sample.added, element_type_of(value.dtype), is_sum=is_sum)

    def _losses(self, sample: Sample, value: Array, shadows: Shadows) -> Losses:
        units = [shadow.blame.unit for shadow in shadows if shadow is not None]
        return losses(sample, element_type_of(value.dtype), self.traits, max(units, default=0.0))

    @cached_property
    def exact_kernel(self) -> Callable[..., Array]:
        """The kernel for f64, which it has; but beyond the numbers of f64 with the largest and the smallest of them, so
        that a function that overflows or underflows there, too, is not taken to be right."""
        kernel = self.kernel(WIDE)
        assert kernel is not None
        if self.entry is None or self.entry.rounding is not Rounding.FUNCTION:
            return kernel
        traits = self.traits

        def bounded(*operands: Array) -> Array:
            result = np.asarray(kernel(*operands))
            if result.dtype.kind != "f":
                return result
            # A finite sum, which takes one pass, has no infinity in it.
            if not math.isfinite(np.add.reduce(result, axis=None)) and np.isinf(result).any():
                finite = np.isinf(result)
                for operand in operands:
                    finite = finite & np.isfinite(operand)
                if traits.pole is not None:
                    finite &= ~np.broadcast_to(traits.pole.is_at(operands[traits.pole.operand]), result.shape)
                result = np.where(finite, np.copysign(_LARGEST, result), result)
            if traits.nonzero is not None and not result.all():
                tiny = (result == 0) & traits.nonzero(*operands)
                result = np.where(tiny, _SMALLEST, result)
            return result

        return bounded

    def _doubled(
        self,
        kernel: Kernel,
        value: object,
        operands: Sequence[Any],
        shadows: Shadows,
    ) -> list[Evaluated] | None:
        assert self.entry is not None
        exact = partial(self._kernels.exact, self.computation, self.instruction)
        found = evaluated_doubles(self.entry, self.traits, kernel, exact, value, operands, shadows)
        if found is None:
            return None
        return [
            Evaluated(
                leaf, difference, None if sample is None else losses(sample, element_type_of(leaf.dtype), self.traits)
            )
            for leaf, difference, sample in found
        ]


_LARGEST, _SMALLEST = 2.0**1000, 2.0**-1000
"""What stands for numbers beyond f64, so that sums and products of a few are numbers, too."""
