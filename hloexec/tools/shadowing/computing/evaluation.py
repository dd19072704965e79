"""The shadow of one instruction's result, from those of its operands.

Elements that move take their differences with them; sorts move them as the run has sorted. Elementwise instructions go
block by block (`elements`). All others are computed on whole arrays in f64: on the shadows, and on a part of the
operands as they are, to tell what the instruction adds. Results of f64 are a matter of `doubled`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Computation, Instruction
from hloexec.core.values import Array, flat
from hloexec.ops.common import is_inexact
from hloexec.ops.registry import Role, entry_of, traits_of
from hloexec.ops.traits import Rounding, Traits
from hloexec.tools.shadowing.absorption import Absorbing, absorbed, absorbed_before
from hloexec.tools.shadowing.blame import blamed
from hloexec.tools.shadowing.computing import doubled
from hloexec.tools.shadowing.computing.elements import (
    SAMPLE,
    Sample,
    count_unlike,
    difference_of_few,
    elementwise,
    sampled,
    spread,
    taken,
)
from hloexec.tools.shadowing.computing.moving import Evaluated, exact_operands, moved, reordered
from hloexec.tools.shadowing.computing.pending import Elements, Noting, Pending, is_finite, may_wait
from hloexec.tools.shadowing.computing.steps import Steps, steps_of
from hloexec.tools.shadowing.computing.wholes import whole
from hloexec.tools.shadowing.computing.widening import SAME, WIDE, Floats, Kernels
from hloexec.tools.shadowing.kinds import Losses, losses
from hloexec.tools.shadowing.places import Place
from hloexec.tools.shadowing.store import Blame, Shadow, wide


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
        self._known: dict[Floats, Callable[..., Any] | None] = {}
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

    def kernel(self, floats: Floats) -> Callable[..., Any] | None:
        if floats not in self._known:
            self._known[floats] = self._kernels.bound(self.computation, self.instruction, floats)
        return self._known[floats]

    def order(self, floats: Floats) -> Callable[..., tuple[int, Array]]:
        """The rule by which it sorts operands with other floats."""
        return self._kernels.order(self.computation, self.instruction, floats)

    def steps(self, operands: Sequence[Any]) -> list[Steps]:
        """What the steps of its own did to each leaf of its result."""
        return steps_of(self._kernels, self.computation, self.instruction, operands)

    def evaluated(
        self, value: object, operands: Sequence[Any], shadows: Sequence[Shadow | None]
    ) -> list[Evaluated] | None:
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
        if doubled.is_needed(value):
            return self._doubled(kernel, value, operands, shadows)
        if self.is_elementwise and isinstance(value, np.ndarray):
            return [self._elementwise(kernel, value, operands, shadows)]
        return whole(self, kernel, value, operands, shadows)

    def decisions(self, value: object, operands: Sequence[Any], shadows: Sequence[Shadow | None]) -> int:
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

    def _elementwise(
        self,
        kernel: Callable[..., Array],
        value: Array,
        operands: Sequence[Array],
        shadows: Sequence[Shadow | None],
    ) -> Evaluated:
        self.absorbing.keep(value, operands)
        if may_wait(value, shadows) and is_finite(value):
            found = self._waiting(kernel, value, operands, shadows)
            if found is not None:
                return found
        return self._at_once(kernel, value, operands, shadows)

    def _at_once(
        self, kernel: Callable[..., Array], value: Array, operands: Sequence[Array], shadows: Sequence[Shadow | None]
    ) -> Evaluated:
        sample = self._sample(kernel, value, operands, shadows, None) if value.size <= SAMPLE else None
        if sample is not None:
            found = difference_of_few(sample, value)
        else:
            found = elementwise(self.in_range(kernel), operands, shadows, value)
        if not found.energy and not found.is_whole:
            return Evaluated(value, None, None)
        places = sampled(found, value)
        if sample is None:
            sample = self._sample(kernel, value, operands, shadows, places)
        its_losses = self._losses(sample, value, shadows)
        mask = sample.absorbed if places is None and sample.absorbed is not None and sample.absorbed.any() else None
        if mask is None and places is None and self.traits.converts and not its_losses.added:
            mask = sample.absorbed_before
        return Evaluated(
            value,
            found,
            its_losses.scaled(found.energy),
            absorbed=None if mask is None else mask.reshape(value.shape),
        )

    def _waiting(
        self, kernel: Callable[..., Array], value: Array, operands: Sequence[Array], shadows: Sequence[Shadow | None]
    ) -> Evaluated | None:
        """A leaf whose shadow is pending; None where a sample shows no error."""
        places = spread(value.size)
        sample = self._sample(kernel, value, operands, shadows, places)
        its_losses = self._losses(sample, value, shadows)
        energy = (its_losses.added + its_losses.inherited) * (value.size / places.size)
        if not energy > 0 or not np.isfinite(energy):
            return None
        links = tuple(None if shadow is None else shadow.pending for shadow in shadows)
        pending = Pending(
            kernel=self.in_range(kernel),
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
        kernel = self.kernel(WIDE)
        assert kernel is not None
        value, operands, shadows = elements.value, elements.operands, elements.shadows
        sample = Sample.of_elements(self.in_range(kernel), [*map(wide, operands)], elements.exact, wide(value))
        self._note_absorbed(sample, value, operands, shadows, elements.first, elements.places)
        its_losses = self._losses(sample, value, shadows)
        if elements.noting is not Noting.NOTHING:
            self.place.take(its_losses, only_counts=elements.noting is Noting.COUNTS)
        return sample.exact, blamed(self.number, its_losses, shadows, element_type_of(value.dtype))

    def _sample(
        self,
        kernel: Callable[..., Array],
        value: Array,
        operands: Sequence[Array],
        shadows: Sequence[Shadow | None],
        places: Array | None,
    ) -> Sample:
        sample = Sample.of(self.in_range(kernel), operands, shadows, value, places)
        self._note_absorbed(sample, value, operands, shadows, operands[0], places)
        return sample

    def _note_absorbed(
        self,
        sample: Sample,
        value: Array,
        operands: Sequence[Array],
        shadows: Sequence[Shadow | None],
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
            its = sample.operands if terms is operands else [wide(taken(each, places)) for each in terms]
            sample.absorbed = absorbed(sample.value, its, sample.added, element_type_of(value.dtype), is_sum=is_sum)

    def _losses(self, sample: Sample, value: Array, shadows: Sequence[Shadow | None]) -> Losses:
        units = [shadow.blame.unit for shadow in shadows if shadow is not None]
        return losses(sample, element_type_of(value.dtype), self.traits, max(units, default=0.0))

    def in_range(self, kernel: Callable[..., Array]) -> Callable[..., Array]:
        """The kernel, but beyond the numbers of f64 with the largest and the smallest of them, so that a function that
        overflows or underflows there, too, is not taken to be right."""
        is_function = self.entry is not None and self.entry.rounding is Rounding.FUNCTION
        if not is_function:
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
        kernel: Callable[..., Any],
        value: object,
        operands: Sequence[Any],
        shadows: Sequence[Shadow | None],
    ) -> list[Evaluated] | None:
        assert self.entry is not None
        exact = partial(self._kernels.exact, self.computation, self.instruction)
        found = doubled.evaluated(self.entry, self.traits, kernel, exact, value, operands, shadows)
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
