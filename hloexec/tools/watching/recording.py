"""Another run of a module for a page: a figure for each instruction, and plots of a few of them.

What a plot of an array needs, block by block: how many elements of each size there are, and the largest of a part.

Works for every element type and shape, and takes a few megabytes for an array of any size.

What a page shows of values: a figure for each instruction of a run, and plots of a few of them.

A recorder watches a run beside it and keeps no values: of each instruction its extremes, and of those that are wanted
what is drawn of their worst run.

Another run of a module, in which the values of its instructions are watched.

The first run has given the result, and nothing here can change it; where this one fails, there are no values, and it is
said why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import blocks, energy_of
from hloexec.analysis.numerics.measuring import ulp_distances
from hloexec.core.dtypes import element_type_of, smallest_normal, unit_roundoff
from hloexec.core.ir import Module, TupleShape
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Value, arrays_of
from hloexec.core.wording import number_text, plural
from hloexec.engine.exec.observers import Event
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.errors import HloError, InputError, unwarned
from hloexec.ops.common import wide

_BLOCK = 1 << 17
_MOST_ROWS, _MOST_COLUMNS = 64, 160
_OFFSET = 1080
"""Of the smallest f64's exponent, so that counts have indices from 0."""
_EXPONENTS = 2 * _OFFSET + 64


@frozen(eq=False)
class Spectrum:
    """How many elements there are between one power of two and the next."""

    counts: Array
    """By exponent, from that of the smallest number on."""
    zeros: int
    infinite: int
    """NaN or infinite."""

    @property
    def total(self) -> int:
        return int(self.counts.sum()) + self.zeros + self.infinite

    @staticmethod
    def exponent(index: int) -> int:
        """The power of two at the lower end of a count."""
        return index - _OFFSET


@frozen(eq=False)
class Grid:
    """The largest element of each block of an array, over its last two dimensions; the leading ones are overlaid."""

    rows: int
    columns: int
    cells: Array
    """f64; infinite where an element is NaN or infinite."""


@frozen(eq=False)
class Sample:
    """What is drawn of an array."""

    spectrum: Spectrum
    grid: Grid
    dimensions: tuple[int, ...]
    largest: float
    """The largest of the finite ones."""


def largest_of(array: Array) -> tuple[float | None, int]:
    """The largest absolute value of the finite elements, None if there is none, and how many are NaN or infinite."""
    largest, infinite = -1.0, 0
    for sizes in _sizes(array):
        finite = sizes[np.isfinite(sizes)]
        infinite += sizes.size - finite.size
        largest = max(largest, float(finite.max(initial=-1.0)))
    return (largest if largest >= 0 else None), infinite


def value_sample(array: Array) -> Sample:
    """The absolute values of an array's elements."""
    return _sample(array.shape, _sizes(array))


def error_sample(actual: Array, expected: Array) -> Sample:
    """How many units in the last place the elements of two arrays of one shape are apart (`ulp_distances`)."""
    pairs = blocks(_BLOCK, actual, expected)
    return _sample(actual.shape, (ulp_distances(x, y) for x, y in pairs))


def difference_sample(values: Array, differences: Array) -> Sample:
    """Differences from the exact numbers, in units in the last place of the array's type at each of its elements.

    That unit is 2u·2^⌊log₂|x|⌋, of zeros and denormals the smallest normal number's. A difference may be a fraction of
    it.
    """
    entry = element_type_of(values.dtype)
    unit, least = 2 * unit_roundoff(entry), smallest_normal(entry)

    def distances(block: Array, errors: Array) -> Array:
        with np.errstate(all="ignore"):
            sizes = np.abs(wide(block))
            spacing = np.exp2(np.floor(np.log2(np.maximum(np.where(np.isfinite(sizes), sizes, 1), least)))) * unit
            sizes_in_ulps = np.abs(wide(errors)) / spacing
        return np.where(
            np.isfinite(sizes_in_ulps) & np.isfinite(sizes), sizes_in_ulps, np.where(np.abs(errors) == 0, 0.0, np.inf)
        )

    return _sample(values.shape, (distances(x, y) for x, y in blocks(_BLOCK, values, differences)))


def _sizes(array: Array) -> Iterator[Array]:
    """Absolute values in f64, block by block."""
    for (block,) in blocks(_BLOCK, array):
        values = wide(block)
        with np.errstate(all="ignore"):
            yield np.abs(values.astype(np.float64) if values.dtype.kind in "iub" else values)


def _sample(dimensions: tuple[int, ...], sizes: Iterator[Array]) -> Sample:
    columns = dimensions[-1] if dimensions else 1
    rows = dimensions[-2] if len(dimensions) > 1 else 1
    shape = min(rows, _MOST_ROWS), min(columns, _MOST_COLUMNS)
    cells = np.zeros(shape)
    counts, zeros, infinite, largest, start = np.zeros(_EXPONENTS, np.int64), 0, 0, 0.0, 0
    for block in sizes:
        flat = np.ascontiguousarray(block).reshape(-1)
        is_finite = np.isfinite(flat)
        finite = flat[is_finite]
        positive = finite[finite > 0]
        zeros += finite.size - positive.size
        infinite += flat.size - finite.size
        if positive.size:
            largest = max(largest, float(positive.max()))
            exponents = np.frexp(positive)[1] - 1 + _OFFSET
            counts += np.bincount(np.clip(exponents, 0, _EXPONENTS - 1), minlength=_EXPONENTS)
        places = np.arange(start, start + flat.size)
        start += flat.size
        row, column = places // columns % rows, places % columns
        cell = (row * shape[0] // rows) * shape[1] + column * shape[1] // columns
        np.maximum.at(cells.reshape(-1), cell, np.where(is_finite, flat, math.inf))
    return Sample(Spectrum(counts, zeros, infinite), Grid(rows, columns, cells), dimensions, largest)


Key: TypeAlias = tuple[str, str]
"""The names of a computation and an instruction."""


@frozen
class Column:
    """A figure of each instruction."""

    label: str
    title: str
    """What it is, in a sentence."""
    is_number: bool = True


@frozen
class Ranked:
    """An instruction, and why it is singled out."""

    key: Key
    why: str
    is_bad: bool = False
    """Whether the verdict names it as the culprit."""


@frozen
class Seen:
    """What is drawn of an instruction's worst run, or of one that is nearly as bad."""

    sample: Sample
    name: str
    """Path and instruction of that run."""
    shape: str
    is_error: bool
    """Whether errors in units in the last place are drawn, or else absolute values."""
    score: float


@frozen(eq=False)
class Watched:
    """What is known of the values of all instructions."""

    columns: tuple[Column, ...] = ()
    figures: Mapping[Key, Sequence[Any]] = attrs.field(factory=dict)
    seen: Mapping[Key, Seen] = attrs.field(factory=dict)
    title: str = ""
    """Of the plot along the data flow; none where this is empty."""
    label: str = ""
    along: Mapping[Key, tuple[int, float]] = attrs.field(factory=dict)
    """When each instruction ran first, and what is plotted of it."""
    lost: str = "NaN or infinite elements"
    """What is said of instructions of which it is infinite."""
    note: str = ""
    ranking: tuple[Ranked, ...] = ()
    """Where the result itself singles out none."""


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

    def _look_at_error(
        self, event: Event, key: Key, measure: Measure, leaf: Array, error: float, sample: Callable[[], Sample]
    ) -> None:
        """The same of the error of a value."""
        measure.error = max(measure.error or 0.0, error)
        if key in self._wanted and self._has_room(key, error):
            self._keep(event, key, leaf, sample(), error, is_error=True)

    def _has_room(self, key: Key, score: float) -> bool:
        """Whether this run of an instruction is to be drawn: worse than others of it, and among the worst of all."""
        if key in self.seen:
            return score > _CLEARLY * self.seen[key].score
        if key in self._wanted:
            return True
        others = {other_key: seen.score for other_key, seen in self.seen.items() if other_key not in self._wanted}
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
        self._look_at_error(event, key, measure, leaf, error, lambda: error_sample(leaf, expected))


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


_LOST = "NaN or infinities that should not be, or errors where all should be zero"
RUNS = Column("runs", "how often it ran")
LARGEST = Column("max |x|", "the largest absolute value of its finite elements, in any run")
_INFINITE = Column("NaN, inf", "how many elements are NaN or infinite, in the run with most of them")
ERROR = Column("error", "the root of the mean squared error, relative to the size of the values, in the worst run")


def watched(watch: Callable[..., Watched], *given: Any, is_tried: bool = True) -> Watched:
    """What `watch` finds in another run, of the result, its module, inputs, options, the instructions that are wanted,
    and of how many others there may be plots.

    Raises InputError where inputs or options are wrong, unless it `is_tried` that they are right.
    """
    with unwarned():  # the first run has warned of it
        try:
            return watch(*given)
        except HloError as error:
            if isinstance(error, InputError) and not is_tried:
                raise
            return Watched(note=f"There are no plots of values: the run for them failed ({error.message}).")


def watch_values(
    result: object,
    module: Module,
    inputs: Sequence[Sequence[Value]],
    options: Sequence[Options],
    wanted: Sequence[Key],
    most: int,
) -> Watched:
    """The sizes of values; of a module by itself, with its results in the first place."""
    results = _results(module, options[0].computation)[:most] if isinstance(result, Module) else []
    recorder = ValueRecorder([*wanted, *results], most - len(results) if isinstance(result, Module) else 0)
    run_with(module, inputs, options[0], [recorder])
    figures = {key: (measure.runs, measure.largest, measure.infinite) for key, measure in recorder.measures.items()}
    is_search = not isinstance(result, Module)
    along = {key: (measure.order, _size(measure, is_search)) for key, measure in recorder.measures.items()}
    others = sorted((seen.score, key) for key, seen in recorder.seen.items() if key not in results)
    ranking = [Ranked(key, "the result" if len(results) == 1 else "of the result") for key in results]
    ranking += [Ranked(key, _why(key, seen_score, recorder)) for seen_score, key in reversed(others)]
    return Watched(
        (RUNS, LARGEST, _INFINITE),
        figures,
        recorder.seen,
        "Sizes of values along the data flow",
        "largest |x|",
        along,
        ranking=tuple(ranking),
    )


def _size(measure: Measure, is_search: bool) -> float:
    """The largest absolute value; in a search for them, NaN and infinities are larger than all others."""
    is_lost = measure.infinite and (is_search or measure.largest is None)
    return math.inf if is_lost else measure.largest or 0.0


def _results(module: Module, computation: str | None) -> list[Key]:
    """The instructions that give the arrays of the result."""
    entry = module.entry if computation is None else module.by_name[computation.removeprefix("%")]
    names = (
        entry.root.operands if isinstance(entry.root.shape, TupleShape) and entry.root.operands else (entry.root_name,)
    )
    return [(entry.name, name) for name in dict.fromkeys(names)]


def _why(key: Key, score: float, recorder: ValueRecorder) -> str:
    measure = recorder.measures[key]
    if score >= 1e300:
        return f"{plural(measure.infinite, 'element')} NaN or infinite"
    return f"largest |x| {number_text(measure.largest, 3)}"


def of_errors(
    recorder: ValueRecorder, columns: tuple[Column, ...], figures: Mapping[Key, Sequence[Any]], note: str = ""
) -> Watched:
    """What is known of a run whose values were compared with what they should be."""
    along = {
        key: (measure.order, measure.error) for key, measure in recorder.measures.items() if measure.error is not None
    }
    title, label = "Error along the data flow", "relative error"
    return Watched(columns, figures, recorder.seen, title, label, along, _LOST, note)
