"""What a page shows of values: a figure for each instruction of a run, and plots of a few of them.

A recorder watches a run beside it and keeps no values: of each instruction its extremes, and of those that are wanted
what is drawn of their worst run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import numpy as np

from hloexec.analysis.numerics.statistics import energy_of
from hloexec.core.dtypes import element_type_of
from hloexec.core.structs import define
from hloexec.core.values import Array, arrays_of
from hloexec.engine.exec.observers import Event
from hloexec.ops.common import wide
from hloexec.tools.watching.findings import Key, Seen
from hloexec.tools.watching.sampling import Sample, error_sample, largest_of, value_sample

_MOST_BYTES = 1 << 28
_CLEARLY = 1.5
"""How much worse another run of an instruction has to be to be drawn instead: loops would draw too often."""
_DWARFED = 1e3
"""How many times as large a value is that dwarfs the smallest tenth of them."""
_MOST_RESHAPED = 0.5
"""Where dimensions differ, a larger relative error may be that of another order of the elements: it is not known."""


@define
class Measure:
    """An instruction over all its runs, on all devices."""

    order: int
    """How many others ran before it did first."""
    runs: int = 0
    largest: float | None = None
    """The largest absolute value of its finite elements."""
    infinite: int = 0
    """How many elements are NaN or infinite, in the run that has most of them."""
    error: float | None = None
    """The root of the sum of squared errors relative to that of the values, in the worst run; infinite where elements
    are NaN or infinite that should not be. None where it is not known."""


class ValueRecorder:
    """Records the sizes of values; draws those that are `wanted` and, of the others, the `most` with the worst."""

    def __init__(self, wanted: Collection[Key], most: int = 0) -> None:
        self.measures: dict[Key, Measure] = {}
        self.seen: dict[Key, Seen] = {}
        self._wanted = frozenset(wanted)
        self._most = most

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        key = event.computation.name, event.instruction.name
        measure = self.measures.setdefault(key, Measure(len(self.measures)))
        measure.runs += 1
        for leaf in _own_leaves(event):
            largest, infinite = largest_of(leaf)
            if largest is not None:
                measure.largest = max(measure.largest or 0.0, largest)
            measure.infinite = max(measure.infinite, infinite)
            self._look(event, key, measure, leaf, largest or 0.0, infinite)

    def _look(self, event: Event, key: Key, _: Measure, leaf: Array, largest: float, infinite: int) -> None:
        """Keep what is drawn of a value, where it is to be."""
        score = (1e300 if infinite and _has_nan(leaf) else 0.0) + largest
        if key in self._wanted or (event.operands and self._most and self._has_room(key, score)):
            self._keep(event, key, leaf, value_sample(leaf), score, is_error=False)

    def _has_room(self, key: Key, score: float) -> bool:
        """Whether this run of an instruction is to be drawn: worse than others of it, and among the worst of all."""
        if key in self.seen:
            return score > _CLEARLY * self.seen[key].score
        if key in self._wanted:
            return True
        others = {each: seen.score for each, seen in self.seen.items() if each not in self._wanted}
        if len(others) < self._most:
            return True
        least = min(others, key=others.__getitem__, default=None)
        if least is None or others[least] >= score:
            return False
        del self.seen[least]
        return True

    def _keep(self, event: Event, key: Key, leaf: Array, sample: Sample, score: float, *, is_error: bool) -> None:
        shape = f"{element_type_of(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"
        self.seen[key] = Seen(sample, event.name, shape, is_error, score)


class ValueStore:
    """Keeps the values of a run that another one is to be compared with, up to a size: those at some paths and devices,
    and all of some instructions."""

    def __init__(self, wanted: Collection[tuple[str, int]], keys: Collection[Key]) -> None:
        self._wanted = frozenset(wanted)
        self._keys = frozenset(keys)
        self.values: dict[tuple[str, int], Array] = {}
        self._bytes = 0

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        if not isinstance(event.value, np.ndarray):
            return
        is_wanted = (event.computation.name, event.instruction.name) in self._keys
        all_places = [(event.name, device) for device in event.devices]
        places = [place for place in all_places if is_wanted or place in self._wanted]
        if places and self._bytes + event.value.nbytes <= _MOST_BYTES:
            kept = event.value.copy()
            self._bytes += kept.nbytes
            self.values |= dict.fromkeys(places, kept)


class DifferenceRecorder(ValueRecorder):
    """Records how far values are from those of another run: `counterparts` has what each is compared with, None for the
    same; those of the instructions `alike` are compared with what is at the same path."""

    def __init__(
        self,
        wanted: Collection[Key],
        counterparts: Mapping[tuple[str, int], tuple[str, int] | None],
        alike: Collection[Key],
        store: ValueStore,
    ) -> None:
        super().__init__(wanted)
        self._counterparts = counterparts
        self._alike = frozenset(alike)
        self._values = store.values

    def _look(self, event: Event, key: Key, measure: Measure, leaf: Array, largest: float, infinite: int) -> None:
        place = event.name, event.devices[0]
        if not isinstance(event.value, np.ndarray) or (place not in self._counterparts and key not in self._alike):
            return
        other = self._counterparts.get(place, place)
        if other is None:  # the same numbers
            measure.error = max(measure.error or 0.0, 0.0)
            return
        expected = self._values.get(other)
        if expected is None or expected.size != leaf.size or expected.dtype != leaf.dtype:
            return
        is_reshaped = [size for size in expected.shape if size > 1] != [size for size in leaf.shape if size > 1]
        error = _error_beside(leaf, expected.reshape(leaf.shape))
        if is_reshaped and error > _MOST_RESHAPED:
            return
        expected = expected.reshape(leaf.shape)
        measure.error = max(measure.error or 0.0, error)
        if key in self._wanted and self._has_room(key, error):
            self._keep(event, key, leaf, error_sample(leaf, expected), error, is_error=True)


def relative_error(energy: float, values: Array, differences: Callable[[], Array]) -> float:
    """The size of differences, the sum of whose squares is `energy`, relative to that of the values.

    Where some values dwarf the others, as those of a mask do, each difference counts relative to its own value, or to
    what nine tenths of those that are not 0 exceed, if that is larger.
    """
    if not energy:
        return 0.0
    finite = values[np.isfinite(values)]
    sizes = np.abs(finite)
    small = float(np.quantile(sizes[sizes > 0], 0.1, method="lower")) if sizes.any() else 0.0
    if not small:
        return math.inf
    if sizes.max() <= _DWARFED * small:
        return math.sqrt(energy / energy_of(finite))
    shares = differences()[np.isfinite(values)] / np.maximum(sizes, small)
    return math.sqrt(energy_of(shares[np.isfinite(shares)]) / shares.size)


def _error_beside(actual: Array, expected: Array) -> float:
    with np.errstate(all="ignore"):
        ours, theirs = wide(actual), wide(expected)
        if ours.dtype.kind in "iub":
            ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
        is_finite = np.isfinite(ours) & np.isfinite(theirs)
        is_same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        if not (is_finite | is_same).all():
            return math.inf
        return relative_error(energy_of((ours - theirs)[is_finite]), theirs, lambda: ours - theirs)


def _has_nan(leaf: Array) -> bool:
    return element_type_of(leaf.dtype).has_nan and bool(np.isnan(leaf).any())


def _own_leaves(event: Event) -> list[Array]:
    """The arrays that an instruction gives; tuples that it only puts together have been seen before."""
    return [] if isinstance(event.value, tuple) and not event.operands else arrays_of(event.value)
