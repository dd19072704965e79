"""Shadows that are not computed until something needs more than a sample of them.

A chain of elementwise instructions computes its last shadow block by block from those that it began with. The shadows
in between need neither memory nor conversions, and most are never asked for. What each instruction adds and inherits is
measured on a sample at once. Where the whole array turns out to have far more error than the sample has shown, or
zeros that it has not shown, the chain is computed again for the elements that show it.
"""

from __future__ import annotations

import enum
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.tools.shadowing.computing.elements import (
    PART,
    SHARE,
    Difference,
    differences,
    either,
    exact_places,
    heaviest_of,
    sampled,
    spread,
    taken,
)
from hloexec.tools.shadowing.places import with_vanished
from hloexec.tools.shadowing.store import Ranges, Shadow, Shadows, exact_ranges, row_by_row, wide

if TYPE_CHECKING:
    from hloexec.tools.shadowing.store import Blame

_LEAST = 1 << 15
"""Elements from which on an array's shadow may wait."""
_MOST = 24
"""Instructions of a chain."""
_TOGETHER = 4
"""Shadows that are computed side by side: the numbers of a range should stay in the cache."""


class Noting(enum.Enum):
    """What is kept of elements for the kinds of an instruction's losses."""

    NOTHING = enum.auto()
    COUNTS = enum.auto()
    """How many are affected, of elements whose errors do not stand for those of the array."""
    ALL = enum.auto()


@frozen(eq=False)
class Elements:
    """Some elements of an instruction's result and of its operands, one for one."""

    value: Array
    operands: Sequence[Array]
    exact: Sequence[Array | None]
    """The operands without rounding; None where they have no error."""
    shadows: Shadows
    """Those of the operands as a whole."""
    first: Array | None
    """The whole of the first operand, where that is still there."""
    places: Array | None
    """Where they stand in the flat arrays; None where they are all there are."""
    noting: Noting
    """What to keep of them for the kinds of the instruction's losses."""


@define(eq=False)
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
    """The exact numbers at the places of a sample (`shadowing.computing.elements.spread`)."""
    own: Callable[..., Array] | None
    """The kernel for the types of the run."""
    blamed: Callable[[Elements], tuple[Array, Blame]]
    """What some elements say of the instruction: the exact results, and who is to blame for the errors."""
    length: int
    chooses: bool
    """Whether one of the chain's instructions gives one of its operands: zero, where the exact numbers would choose
    otherwise, which nobody has made so."""
    is_noted: bool = False
    """Whether other elements than those of the sample have been looked at."""

    def computed(self, shadow: Shadow, out: Array | None = None) -> tuple[Difference, Blame | None]:
        """The difference from the value, for what has been known of its shadow; and the blame, where the sample has not
        shown most of the error. `out` is filled with the exact numbers."""
        value = self.value()
        assert value is not None
        difference = differences(self.ranges(out), value)
        if difference.is_whole:
            return difference, self._blame_at(value, sampled(difference, value))
        assert difference.vanished is not None
        where = difference.heaviest, min(self.size, difference.heaviest + PART)
        return difference, self.corrected(value, shadow, difference.energy, where, difference.vanished)

    def ranges(self, out: Array | None = None) -> Ranges:
        """The exact numbers, which are not kept; `out` is filled with them."""
        exact = ranges_of([self])

        def one(start: int, stop: int) -> Array:
            numbers = exact(start, stop)[0]
            if out is not None:
                out[start:stop] = numbers
            return numbers

        return one

    def corrected(
        self, value: Array, shadow: Shadow, energy: float, heaviest: tuple[int, int], vanished: Array
    ) -> Blame | None:
        """The blame, where the sample has not shown most of the energy, or not that elements vanish, if they do; else
        None. Of the whole array are given the energy, the range that holds most of it, and where elements vanish."""
        if shadow.energy >= SHARE * energy:
            if not (vanished.size and self._hides_zeros(value)):
                return None
            # The sample tells the rest.
            blame = self._blame_at(value, vanished, is_rare=True)
            return None if blame is None else with_vanished(shadow.blame, blame)
        start, stop = heaviest
        errors = np.subtract(self.ranges()(start, stop), wide(row_by_row(value)[start:stop]))
        places = start + heaviest_of(errors)
        return self._blame_at(value, either(places, vanished))

    def _hides_zeros(self, value: Array) -> bool:
        """Whether none of the elements that are zero, and exactly are not, is in the sample."""
        if self.chooses:
            return False
        return not ((taken(value, spread(self.size)) == 0) & (self.sample != 0)).any()

    def _blame_at(self, value: Array, places: Array | None, *, is_rare: bool = False) -> Blame | None:
        """The blame, as elements at other places than those of the sample show it, of which the whole chain is computed
        again; None where it cannot be. `is_rare` says that these elements do not stand for all."""
        values: dict[int, Array] = {}
        exact: dict[int, Array] = {}
        shadows: dict[int, Shadow | None] = {}
        for key, link in _chain([self]).items():
            operand_values: list[Array] = []
            exact_operands: list[Array | None] = []
            before: list[Shadow | None] = []
            for operand, shadow, earlier in zip(link.operands, link.shadows, link.links, strict=True):
                if earlier is not None and id(earlier) in values:
                    operand_values.append(values[id(earlier)])
                    exact_operands.append(exact[id(earlier)])
                    is_settled = shadow is not None and shadow.pending is None
                    before.append(shadow if is_settled else shadows[id(earlier)])
                    continue
                array = operand if earlier is None else earlier.value()
                assert array is not None
                operand_values.append(taken(array, places))
                exact_operands.append(
                    None if shadow is None else exact_places(shadow, wide(operand_values[-1]), places)
                )
                before.append(shadow)
            kept = value if link is self else link.value()
            if kept is not None:
                values[key] = taken(kept, places)
            elif link.own is not None:
                values[key] = np.asarray(link.own(*operand_values))
            else:
                return None
            first = link.operands[0] if link.links[0] is None else link.links[0].value()
            noting = Noting.NOTHING if link.is_noted else Noting.COUNTS if is_rare else Noting.ALL
            exact[key], blame = link.blamed(
                Elements(values[key], operand_values, exact_operands, before, first, places, noting)
            )
            link.is_noted = True
            shadows[key] = Shadow(None, False, 0.0, 0, blame)
        return blame


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
    keys = [(id(entry), 0) for entry in wanted]
    seen = set(keys)
    steps = []
    for link, operand_keys in reversed(list(zip(links.values(), uses, strict=True))):
        # So that the cache has room for what comes.
        dead = [key for key in dict.fromkeys(operand_keys) if key not in seen]
        seen.update(operand_keys)
        steps.append((link.kernel, (id(link), 0), operand_keys, dead))
    steps.reverse()

    def exact(start: int, stop: int) -> list[Array]:
        arrays_by_key = {key: its(start, stop) for key, its in ranges.items()}
        for kernel, key, operand_keys, dead in steps:
            arrays_by_key[key] = np.asarray(kernel(*[arrays_by_key[entry] for entry in operand_keys]))
            for entry in dead:
                del arrays_by_key[entry]
        return [arrays_by_key[key] for key in keys]

    return exact


def together(pendings: Sequence[Pending]) -> list[list[int]]:
    """Which of some pending shadows share something, at most `_TOGETHER` of them, by their numbers."""
    groups: list[tuple[int, set[int], list[int]]] = []
    for number, pending in enumerate(pendings):
        parts: set[int] = set()
        for link in _chain([pending]).values():
            parts.add(id(link))
            # What is broadcast takes no time.
            parts.update(id(operand) for operand in link.operands if operand is not None and all(operand.strides))
        for size, group_parts, numbers in groups:
            if size == pending.size and len(numbers) < _TOGETHER and not group_parts.isdisjoint(parts):
                group_parts |= parts
                numbers.append(number)
                break
        else:
            groups.append((pending.size, parts, [number]))
    return [numbers for _, _, numbers in groups]


def _chain(wanted: Sequence[Pending]) -> dict[int, Pending]:
    """What has to be computed, in order; not what has been computed since and still has its value."""
    links: dict[int, Pending] = {}
    stack: list[tuple[Pending, bool]] = [(pending, False) for pending in reversed(wanted)]
    while stack:
        link, is_known = stack.pop()
        if id(link) in links:
            continue
        if is_known:
            links[id(link)] = link
            continue
        stack.append((link, True))
        for before, shadow in zip(link.links, link.shadows, strict=True):
            if before is not None and shadow is not None and (shadow.pending is not None or before.value() is None):
                stack.append((before, False))
    return links


def may_wait(value: Array, shadows: Shadows) -> bool:
    """Whether the shadow of an elementwise instruction's result may be computed later."""
    if value.size < _LEAST or value.dtype.kind == "c" or value.dtype.itemsize > 4:
        return False
    known_shadows = [shadow for shadow in shadows if shadow is not None]
    if any(shadow.pending is None and shadow.is_whole for shadow in known_shadows):
        return False
    return sum(shadow.pending.length for shadow in known_shadows if shadow.pending is not None) < _MOST


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
