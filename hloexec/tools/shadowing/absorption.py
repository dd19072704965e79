"""Absorption: a sum that has nothing of one of its operands, or few of its digits; a product that is one of its
operands.

Compilers compute sums of narrow types in wide ones, and round them by a convert behind them. So the operands of a sum
or product are kept until the convert has run, and the convert is the one that absorbs.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Computation, Instruction
from hloexec.core.precision import unit_roundoff
from hloexec.core.values import Array
from hloexec.ops.registry import traits_of
from hloexec.ops.traits import Traits
from hloexec.tools.shadowing.computing.elements import taken
from hloexec.tools.shadowing.store import Shadow

_MOST = 1 << 16
"""Elements of an array whose absorbed elements are remembered."""


class Absorbing:
    """Finds what one instruction absorbs."""

    def __init__(self, computation: Computation, instruction: Instruction) -> None:
        traits = traits_of(instruction)
        self.combines = _combines(traits)
        self.is_sum = traits.cancels
        source = computation.by_name.get(instruction.operands[0]) if traits.converts and instruction.operands else None
        self.source = source.name if source is not None and _combines(traits_of(source)) else None
        """Of a convert, the sum or product that it rounds."""
        self.is_rounded = self.combines and any(
            traits_of(user).converts and _is_narrower(user, instruction)
            for user in computation.users.get(instruction.name, ())
        )
        """Whether a convert rounds it further."""
        self._kept: tuple[weakref.ref[Any], tuple[Array, ...]] | None = None

    def keep(self, value: Array, operands: Sequence[Array]) -> None:
        """Keep the operands of what a convert will round."""
        if self.is_rounded and value.size <= _MOST:
            self._kept = weakref.ref(value), tuple(operands)

    def combined(
        self, operands: Sequence[Array], source: Absorbing | None, first: Array | None
    ) -> tuple[Sequence[Array], bool] | None:
        """The operands of the sum or product whose rounded result an instruction gives, and whether it is a sum; None
        where it gives none. `first` is the whole of its first operand, where `operands` are some elements."""
        if self.combines:
            return operands, self.is_sum
        if first is None or source is None or source._kept is None or source._kept[0]() is not first:
            return None
        return source._kept[1], source.is_sum


def _combines(traits: Traits) -> bool:
    return traits.cancels or traits.is_product


def _is_narrower(user: Instruction, instruction: Instruction) -> bool:
    ours, theirs = user.shape, instruction.shape
    return (
        isinstance(ours, ArrayShape)
        and isinstance(theirs, ArrayShape)
        and ours.element_type.is_floating
        and ours.element_type.mantissa_bits < theirs.element_type.mantissa_bits
    )


def absorbed(
    value: Array, combined: Sequence[Array], added: Array, entry: ElementType, *, is_sum: bool
) -> Array | None:
    """Which elements of a result absorb one of the numbers that they are made of: they are the other one, though
    exactly they are not; or a sum whose rounding takes half of the digits of the smaller number. None where none does.

    All are in f64 (c128); `added` is what rounding adds to each, and `entry` the element type of the result.
    """
    if not np.count_nonzero(added):
        return None
    ours = np.abs(value)
    sizes = [np.abs(operand) for operand in combined]
    found = np.zeros(ours.shape, np.bool_)
    for size in sizes:
        found |= ours == size
    if is_sum and len(sizes) == 2:
        found |= np.abs(added) > math.sqrt(unit_roundoff(entry)) * np.minimum(*sizes)
    if not np.count_nonzero(found):
        return None
    return np.asarray(found & (added != 0) & np.isfinite(ours))


def absorbed_before(shadows: Sequence[Shadow | None], places: Array | None) -> Array | None:
    """Where the error of an operand comes from absorption."""
    found = None
    for shadow in shadows:
        if shadow is not None and shadow.absorbed is not None:
            its = taken(shadow.absorbed, places)
            found = its if found is None else found | its
    return found
