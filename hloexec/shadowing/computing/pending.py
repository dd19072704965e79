"""Shadows that are not computed until something needs more than a sample of them.

A chain of elementwise instructions computes its last shadow block by block from those that it began with. The shadows
in between need neither memory nor conversions, and most are never asked for. What each instruction adds and inherits is
measured on a sample at once. Where the whole array turns out to have far more error than the sample has shown, the
chain is computed again, instruction by instruction.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.dtypes import element_type_of
from hloexec.shadowing.computing.elements import (
    SHARE,
    Difference,
    differences,
    spread,
    taken,
)
from hloexec.shadowing.computing.ranges import Ranges, exact_ranges
from hloexec.shadowing.store import Shadow
from hloexec.values import Array

if TYPE_CHECKING:
    from hloexec.shadowing.store import Blame

__all__ = ["Pending", "is_finite", "may_wait", "ranges_of", "together"]

_LEAST = 1 << 15
"""Elements from which on an array's shadow may wait."""
_MOST = 24
"""Instructions of a chain."""
_TOGETHER = 4
"""Shadows that are computed side by side: the numbers of a range should stay in the cache."""


@attrs.define(eq=False)
class Pending:
    """How a shadow is computed."""

    kernel: Callable[..., Array]
    """For f64."""
    operands: tuple[Array | None, ...]
    """None for those whose shadows are pending themselves."""
    shadows: tuple[Shadow | None, ...]
    links: tuple[Pending | None, ...]
    """For those how they are computed, even where something has asked for them since."""
    value: weakref.ref[Any]
    size: int
    sample: Array
    """The exact numbers at the places of a sample (`hloexec.shadowing.computing.elements.spread`)."""
    own: Callable[..., Array] | None
    """The kernel for the types of the run."""
    again: Callable[[Array, Sequence[Array], Sequence[Shadow | None]], tuple[Difference, Blame] | None]
    """Computes the instruction by itself."""
    length: int
    chooses: bool
    """Whether one of the chain's instructions gives one of its operands: zero, where the exact numbers would choose
    otherwise, which nobody has made so."""

    def computed(
        self, estimate: float, out: Array | None = None, *, is_like: bool | None = None
    ) -> tuple[Difference, Blame | None]:
        """The difference from the value; and the blame, where the sample has not shown most of the error, which
        `is_like` says where that is known. `out` is filled with the exact numbers."""
        value = self.value()
        assert value is not None
        if is_like is not False:
            found = differences(self.ranges(out), value)
            if not found.is_whole and self.is_like_sample(value, estimate, found.energy, found.may_vanish):
                return found, None
            # It is computed again, and large.
            del found
        operands = self._values()
        again = None if operands is None else self._again(value, operands)
        return again or (differences(self.ranges(out), value), None)

    def ranges(self, out: Array | None = None) -> Ranges:
        """The exact numbers, which are not kept; `out` is filled with them."""
        exact = ranges_of([self])

        def one(start: int, stop: int) -> Array:
            found = exact(start, stop)[0]
            if out is not None:
                out[start:stop] = found
            return found

        return one

    def is_like_sample(self, value: Array, estimate: float, energy: float, may_vanish: bool) -> bool:
        """Whether the sample has shown most of the energy, and that elements vanish, if they do."""
        return estimate >= SHARE * energy and not (may_vanish and self._hides_zeros(value))

    def _hides_zeros(self, value: Array) -> bool:
        """Whether none of the elements that are zero, and exactly are not, is in the sample."""
        if self.chooses:
            return False
        return not ((taken(value, spread(self.size)) == 0) & (self.sample != 0)).any()

    def _again(self, value: Array, operands: Sequence[Array]) -> tuple[Difference, Blame] | None:
        """The same, one instruction after the other."""
        for operand, shadow in zip(operands, self.shadows, strict=True):
            if shadow is not None:
                shadow.settle(operand)
        # What they were made of is not needed any more.
        self.operands, self.links = tuple(operands), (None,) * len(operands)
        return self.again(value, operands, self.shadows)

    def _values(self) -> list[Array] | None:
        """The operands as they are; those that were not kept are computed again."""
        found = []
        for operand, before in zip(self.operands, self.links, strict=True):
            if operand is not None:
                found.append(operand)
                continue
            assert before is not None
            kept = before.value()
            if kept is not None:
                found.append(kept)
                continue
            its = before._values()
            if its is None or before.own is None:
                return None
            found.append(np.asarray(before.own(*its)))
        return found


def ranges_of(wanted: Sequence[Pending]) -> Callable[[int, int], list[Array]]:
    """The exact numbers of pending shadows of as many elements each, by ranges of the flat arrays: what their chains
    share is computed once."""
    leaves: dict[tuple[int, int], tuple[Array, Shadow | None]] = {}
    """What is converted once for each range, however many instructions take it."""
    links = _chain(wanted)
    uses: list[list[tuple[int, int]]] = []
    for link in links.values():
        uses.append([])
        for operand, shadow, before in zip(link.operands, link.shadows, link.links, strict=True):
            if before is not None and id(before) in links:
                uses[-1].append((id(before), 0))
                continue
            array = operand if before is None else before.value()
            assert array is not None
            uses[-1].append((id(array), id(shadow)))
            leaves[uses[-1][-1]] = array, shadow
    ranges = {key: exact_ranges(array, shadow) for key, (array, shadow) in leaves.items()}
    keys = [(id(each), 0) for each in wanted]
    seen = set(keys)
    steps = []
    for link, given in reversed(list(zip(links.values(), uses, strict=True))):
        # So that the cache has room for what comes.
        dead = [key for key in dict.fromkeys(given) if key not in seen]
        seen.update(given)
        steps.append((link.kernel, (id(link), 0), given, dead))
    steps.reverse()

    def exact(start: int, stop: int) -> list[Array]:
        known = {key: its(start, stop) for key, its in ranges.items()}
        for kernel, key, given, dead in steps:
            known[key] = np.asarray(kernel(*[known[each] for each in given]))
            for each in dead:
                del known[each]
        return [known[key] for key in keys]

    return exact


def together(pendings: Sequence[Pending]) -> list[list[int]]:
    """Which of some pending shadows share something, at most `_TOGETHER` of them, by their numbers."""
    groups: list[tuple[int, set[int], list[int]]] = []
    for number, each in enumerate(pendings):
        parts: set[int] = set()
        for link in _chain([each]).values():
            parts.add(id(link))
            # What is broadcast takes no time.
            parts.update(id(operand) for operand in link.operands if operand is not None and all(operand.strides))
        for size, known, numbers in groups:
            if size == each.size and len(numbers) < _TOGETHER and not known.isdisjoint(parts):
                known |= parts
                numbers.append(number)
                break
        else:
            groups.append((each.size, parts, [number]))
    return [numbers for _, _, numbers in groups]


def _chain(wanted: Sequence[Pending]) -> dict[int, Pending]:
    """What has to be computed, in order; not what has been computed since and still has its value."""
    found: dict[int, Pending] = {}
    stack: list[tuple[Pending, bool]] = [(each, False) for each in reversed(wanted)]
    while stack:
        link, is_known = stack.pop()
        if id(link) in found:
            continue
        if is_known:
            found[id(link)] = link
            continue
        stack.append((link, True))
        for before, shadow in zip(link.links, link.shadows, strict=True):
            if before is not None and shadow is not None and (shadow.pending is not None or before.value() is None):
                stack.append((before, False))
    return found


def may_wait(value: Array, shadows: Sequence[Shadow | None]) -> bool:
    """Whether the shadow of an elementwise instruction's result may be computed later."""
    if value.size < _LEAST or value.dtype.kind == "c" or value.dtype.itemsize > 4:
        return False
    known = [shadow for shadow in shadows if shadow is not None]
    if any(shadow.pending is None and shadow.is_whole for shadow in known):
        return False
    return sum(shadow.pending.length for shadow in known if shadow.pending is not None) < _MOST


def is_finite(value: Array) -> bool:
    """Whether an array has neither infinities nor NaN; what is so large that its square is infinite counts as such."""
    flat = value.ravel(order="K")
    if value.dtype == np.float32:
        return math.isfinite(float(np.vdot(flat, flat)))
    entry = element_type_of(value.dtype)
    if entry.bits != 16:
        return False
    mask = ((1 << entry.exponent_bits) - 1) << entry.mantissa_bits
    return not ((flat.view(np.uint16) & mask) == mask).any()
