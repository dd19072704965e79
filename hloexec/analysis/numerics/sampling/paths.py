"""Runs of a module whose decisions are noted, turned, or held: comparisons, roundings to whole numbers, sorts.

How close a decision is shows in its operands: runs that round at random, but decide as the run without random errors
does, say how far rounding moves these. A decision is close if it would turn within `REACH` standard deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.analysis.dataflow.decisions import decides
from hloexec.analysis.numerics.selections import ModuleValue, order_of
from hloexec.analysis.numerics.undecided import alone
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Value, flat
from hloexec.engine.exec.observers import Event, Failure
from hloexec.engine.exec.running import repeated_run
from hloexec.engine.options import Options
from hloexec.ops.common import wide
from hloexec.ops.registry import is_elementwise, traits_of

REACH = 5.5
"""As many spreads as rounding may move anything."""
_STEPS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, REACH)
_MOST_ELEMENTS = 1 << 22
"""Of operands of decisions that are kept."""

_Key: TypeAlias = tuple[str, int]
"""The path and the instruction, and a device."""


_Held: TypeAlias = tuple[Array | None, list[int] | None]
"""What runs that follow have in common with a run, of one array: its value, and at which flat places, if not all."""


@frozen
class Turn:
    """A decision that can be turned."""

    key: _Key
    place: str
    """COMPUTATION/INSTRUCTION."""
    distance: float
    """How many spreads the other way is away."""
    operand: int
    element: int
    """Which operand is decided on, and the flat place of its element."""
    change: float = 0.0
    """By what it changes."""
    other: int | None = None
    """The element with which it changes places in an order."""

    @property
    def pair(self) -> tuple[_Key, frozenset[int | None]]:
        """What is turned, whichever way."""
        return self.key, frozenset((self.element, self.other))


@frozen(eq=False)
class _Subject:
    """What an instruction decides on."""

    operand: int
    pairs: tuple[Array, Array] | None = None
    """Flat places of neighbours in an order; None where each element is decided on by itself."""
    direction: int = 0
    """Which way the second of a pair goes, if it is to come first."""
    is_whole: bool = True
    """Whether runs that follow decide like it throughout. Of many elements that are decided on one by one, such as
    those of a ReLU, little hangs on each, and there are too many to turn all that go another way."""


@frozen(eq=False)
class _Margins:
    """How far what one instruction decides is from turning."""

    place: str
    subject: _Subject
    base: Array
    squares: Array
    """The sums of squares of what samples are off by."""
    jumps: Callable[[Array], Array] | None
    """Which elements of the result change if those of the operand do by so much; None of a comparison: all do."""

    def turns(self, key: _Key, samples: int) -> Iterator[Turn]:
        """The close decisions."""
        scales = np.sqrt(self.squares / samples)
        if self.jumps is None:
            with np.errstate(all="ignore"):
                distances = np.abs(self.base) / scales
            for place in np.flatnonzero(distances <= REACH).tolist():
                element, other = place, None
                if self.subject.pairs is not None:
                    element, other = (int(side[place]) for side in self.subject.pairs)
                yield Turn(
                    key,
                    self.place,
                    float(distances[place]),
                    self.subject.operand,
                    element,
                    self.subject.direction,
                    other,
                )
            return
        known = ~(scales > 0)
        for step in _STEPS:
            for sign in (1, -1):
                found = self.jumps(sign * step * scales).reshape(-1) & ~known
                known |= found
                for place in np.flatnonzero(found).tolist():
                    yield Turn(key, self.place, step, 0, place, float(sign * step * scales[place]))


@define(eq=False, slots=False)
class Path:
    """The controller of a run that takes some turns, and notes what it decides. Once it is followed, runs decide like
    it, whatever they round."""

    module: Module
    turns: Sequence[Turn] = ()
    is_followed: bool = False
    _held: dict[_Key, list[_Held]] = attrs.field(factory=dict, init=False)
    _margins: dict[_Key, _Margins] = attrs.field(factory=dict, init=False)
    _decides: dict[tuple[str, str], bool] = attrs.field(factory=dict, init=False)
    _size: int = 0
    _followed: dict[_Key, int] = attrs.field(factory=dict, init=False)

    def close(self) -> list[Turn]:
        """What was close in the runs that followed: first what much hangs on, then the closest."""
        margins = self._margins
        found = [turn for key in margins for turn in margins[key].turns(key, self._followed.get(key, 1))]
        return sorted(found, key=lambda turn: (not margins[turn.key].subject.is_whole, turn.distance))

    def on_failure(self, failure: Failure) -> None:
        """Called by the run."""

    def on_value(self, event: Event) -> Value | None:
        """Called by the run."""
        place = event.computation.name, event.instruction.name
        if place not in self._decides:
            self._decides[place] = decides(event.computation, event.instruction)
        if not self._decides[place]:
            return None
        key, value = (event.name, event.devices[0]), event.value
        if self.is_followed:
            self._compare(key, event)
            return _with_leaves(value, self._held.get(key, []))
        subject = _subject(self.module, event)
        if subject is not None:
            self._measure(key, event, subject)
        turns = [turn for turn in self.turns if turn.key == key]
        for turn in turns:
            value = self._turned(turn, event, value)
        if turns or (not is_elementwise(event.instruction) if subject is None else subject.is_whole):
            self._held[key] = [
                (_kept(event, leaf), None if subject is None or subject.is_whole else [turn.element for turn in turns])
                for leaf in flat(value)
            ]
        return None if value is event.value else value

    def _measure(self, key: _Key, event: Event, subject: _Subject) -> None:
        """Note how far the decisions of an instruction are from turning."""
        base = _margin(event, subject)
        self._size += 0 if subject.is_whole else base.size
        if self._size > _MOST_ELEMENTS:
            return
        is_simple = subject.pairs is not None or _compares(event)
        jumps = None if is_simple else partial(_jumps, _kernel(self.module, event), event)
        place = f"{event.computation.name}/{event.instruction.name}"
        self._margins[key] = _Margins(place, subject, base, np.zeros(base.shape), jumps)

    def _compare(self, key: _Key, event: Event) -> None:
        """Note how far rounding has moved what an instruction decides on."""
        margins = self._margins.get(key)
        if margins is not None:
            found = _margin(event, margins.subject)
            if found.shape == margins.base.shape:
                margins.squares[...] += (found - margins.base) ** 2
                self._followed[key] = self._followed.get(key, 0) + 1

    def _turned(self, turn: Turn, event: Event, value: Value) -> Value:
        """What an instruction gives once a decision of it is turned."""
        if _compares(event):
            changed = np.array(value)
            changed.reshape(-1)[turn.element] ^= True
            return changed
        operands = [np.array(operand) for operand in flat(event.operands)]
        operand = operands[turn.operand].reshape(-1)
        if turn.other is None:
            operand[turn.element] = wide(operand[turn.element : turn.element + 1])[0] + turn.change
        else:
            first, second = operand[[turn.element, turn.other]]
            # Of two that are equal, the one that comes later has to be the other's neighbour.
            operand[turn.element] = second
            operand[turn.other] = first if first != second else _next(first, turn.change)
        found: Value = _kernel(self.module, event)(operands)[0]
        return found


def _kernel(module: Module, event: Event) -> Callable[..., list[Value]]:
    return repeated_run(alone(module, event.computation, event.instruction), Options(verify=False))


def _kept(event: Event, leaf: Array) -> Array | None:
    """What of an array is decided; None where it rounds."""
    is_whole = traits_of(event.instruction).jumps and not (leaf != np.rint(wide(leaf))).any()
    return leaf if is_whole or not element_type_of(leaf.dtype).is_inexact else None


def _with_leaves(value: Value, held: Sequence[_Held]) -> Value | None:
    """A value with what is held of another run's, where that has the same shapes."""
    found = []
    for array, (other, places) in zip(flat(value), held, strict=False):
        if other is not None and other.shape == array.shape:
            array = np.array(array)
            where = slice(None) if places is None else places
            array.reshape(-1)[where] = other.reshape(-1)[where].astype(array.dtype)
        found.append(array)
    return None if not found else tuple(found) if isinstance(value, tuple) else found[0]


def _subject(module: Module, event: Event) -> _Subject | None:
    """What an instruction decides on; None where that cannot be told."""
    instruction, operands = event.instruction, flat(event.operands)
    if is_elementwise(instruction):
        is_number = not traits_of(instruction).reads_bits and element_type_of(operands[0].dtype).is_floating
        return _Subject(0, is_whole=operands[0].size == 1) if is_number else None
    found = order_of(module, ModuleValue(event.computation, instruction))
    if found is None or operands[found[0]].size == 0:
        return None
    number, dimension, count = found
    keys = np.moveaxis(wide(operands[number]), dimension, -1)
    places = np.moveaxis(np.arange(keys.size).reshape(operands[number].shape), dimension, -1)
    order = np.take_along_axis(places, np.argsort(keys, axis=-1, kind="stable"), -1)
    chosen = wide(flat(event.value)[number])
    largest = keys.max(-1, initial=-np.inf)
    is_descending = bool(
        (largest == (chosen if chosen.ndim < keys.ndim else np.moveaxis(chosen, dimension, -1)[..., 0])).all()
    )
    if is_descending:
        # Of equal ones, the first comes first in either direction.
        flipped = np.argsort(keys[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        order = np.take_along_axis(places[..., ::-1], flipped, -1)
    # Only the border between what is chosen and what is not decides, and the order of what is.
    order = order[..., : None if count is None else count + 1]
    return _Subject(number, (order[..., :-1].reshape(-1), order[..., 1:].reshape(-1)), 1 if is_descending else -1)


def _compares(event: Event) -> bool:
    """Whether an instruction compares one number with another."""
    return is_elementwise(event.instruction) and len(event.operands) == 2 and flat(event.value)[0].dtype == np.bool_


def _margin(event: Event, subject: _Subject) -> Array:
    """How far decisions are from turning."""
    operands = flat(event.operands)
    keys = wide(operands[subject.operand]).reshape(-1).astype(np.float64)
    if subject.pairs is not None:
        return keys[subject.pairs[0]] - keys[subject.pairs[1]]
    if _compares(event):
        return keys - wide(operands[1]).reshape(-1).astype(np.float64)
    return keys


def _jumps(kernel: Callable[..., list[Value]], event: Event, changes: Array) -> Array:
    """Which elements of a result are others if those of the first operand change."""
    first, *others = flat(event.operands)
    moved = (wide(first).astype(np.float64) + changes.reshape(first.shape)).astype(first.dtype)
    (value,) = kernel([moved, *others])
    return np.asarray(flat(value)[0] != flat(event.value)[0])


def _next(number: Any, direction: float) -> Any:
    """The next number in a direction."""
    return np.nextafter(number, np.asarray(np.copysign(np.finfo(np.float32).max, direction), number.dtype))
