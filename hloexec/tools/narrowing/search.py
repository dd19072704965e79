"""The search for the instructions that may be narrower together, by runs that are compared.

Running a module, over several steps where outputs are carried to inputs, and comparing what two modules give.

How far the outputs of a narrowed module lie from those of the original, element by element.

The error of an element is |changed - original| / max(|original|, m), where m is the median of the magnitudes of the
array's elements that are finite and not zero. An element of at least the typical size is thus held to its own size, and
a smaller one to the typical: a relative error alone would never allow an element near zero to change, and a norm of the
array would let a small one change by any factor where a few are large. Of a scalar it is the relative error. An element
that is not finite has to stay what it is, and so have integers and booleans; where all elements are zero, all have to
stay zero.

The search for the instructions that may be narrower together.

First everything is tried at once. Where that is too much, instructions that do the same, as in layers of a network,
form a group. Each group is narrowed alone, which tells how much it changes the outputs; groups are then added in the
order of that error per FLOP, the longest prefix of this order by bisecting, and of the rest whatever still fits, by
splitting what does not into halves. If one instruction does more than all that was found so, and fits alone, the search
begins again with it. This is the search of Precimonious (Rubio-González et al., 2013) with an order to
start from. Every set that is accepted was run as a whole, on all inputs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of, largest_number
from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Inputs, Value, labelled_arrays
from hloexec.engine.exec.arguments import inputs_by_device
from hloexec.engine.exec.observers import Event, Stages
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.errors import (
    EvaluationError,
    HloError,
    ResourceError,
    ShapeError,
    UnsupportedError,
    VerificationError,
)
from hloexec.ops.common import is_inexact, widen
from hloexec.ops.relations import Place
from hloexec.tools.narrowing.findings import Carried, Deviation, Standing, with_leaves
from hloexec.tools.narrowing.rewriting import Candidate, rewritten


@frozen(eq=False)
class Expected:
    """An array of the original's outputs, and what the errors of its elements are relative to."""

    array: Array
    sizes: Array | None
    """None where elements have to stay as they are."""

    @classmethod
    def of(cls, array: Array) -> Expected:
        if not is_inexact(array):
            return cls(array, None)
        magnitudes = np.abs(_in_double(array))
        numbers = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
        typical = float(np.median(numbers)) if numbers.size else 0.0
        return cls(array, np.maximum(magnitudes, typical))


def worst_element(expected: Expected, changed: Array) -> tuple[float, tuple[int, ...]]:
    """The largest error of an element and where it is; infinity where an element changed that has to stay, or extents
    did."""
    if changed.shape != expected.array.shape:
        return math.inf, ()
    if not changed.size:
        return 0.0, ()
    with np.errstate(all="ignore"):
        if expected.sizes is None:
            errors = np.where(expected.array != changed, math.inf, 0.0)
        else:
            before, after = _in_double(expected.array), _in_double(changed)
            errors = np.abs(after - before) / expected.sizes
            same = (before == after) | (np.isnan(before) & np.isnan(after))
            errors = np.where(same, 0.0, np.where(np.isfinite(before) & np.isfinite(after), errors, math.inf))
    place = int(errors.argmax())
    index = tuple(int(number) for number in np.unravel_index(place, errors.shape))
    return float(errors.reshape(-1)[place]), index


def _in_double(array: Array) -> Array:
    """The array in f64, or in c128."""
    element_type: ElementType = element_type_of(array.dtype)
    return widen(array).astype(np.complex128 if element_type.is_complex else np.float64)


@define
class _Range:
    runs: float = 0.0
    largest: float = 0.0
    """The largest finite magnitude of its operands and its result."""
    infinities: int = 0
    """How many elements of operands and result are infinite."""
    not_finite: int = 0
    """How many elements of its result are infinite or NaN."""


class Ranges:
    """An observer of the magnitudes of values: of instructions in `closely`, of their operands, too."""

    def __init__(self, closely: Collection[Place] = ()) -> None:
        self._closely = frozenset(closely)
        self.found: dict[Place, _Range] = {}
        self.longest_loop = 0
        """The number of iterations of the longest loop."""

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        place = (event.computation.name, event.instruction.name)
        measured = self.found.setdefault(place, _Range())
        count = len(event.devices)
        measured.runs += count
        self.longest_loop = max(self.longest_loop, (event.iteration or 0) + 1)
        if not isinstance(event.value, np.ndarray) or not _is_float(event.value):
            return
        largest, infinities, nans = _extent(event.value)
        measured.not_finite += count * (infinities + nans)
        if place in self._closely:
            arrays = [operand for operand in event.operands if isinstance(operand, np.ndarray)]
            extents = [_extent(operand) for operand in arrays if _is_float(operand)]
            measured.largest = max(measured.largest, largest, *(extent[0] for extent in extents))
            measured.infinities += infinities + sum(extent[1] for extent in extents)


@frozen(eq=False)
class Reference:
    """What the original gives for some inputs."""

    number: int
    """Of the inputs, from 0."""
    inputs: Sequence[Sequence[Value]]
    """A list for all devices, or one for each."""
    expected: Sequence[Sequence[Mapping[str, Expected]]]
    """By step and device, the outputs that are held to a tolerance."""


@frozen(eq=False)
class Measurer:
    """Runs modules that have the same parameters and results."""

    module: Module
    steps: int
    carried: Carried | None
    tolerances: Mapping[str, float]
    """Of the outputs that are compared."""
    options: Options
    """Of runs."""

    def reference(self, number: int, inputs: Inputs, observers: Sequence[Any] = ()) -> Reference:
        """Run the original."""
        values = inputs_by_device(self.module.entry, inputs)
        expected = [
            [{label: Expected.of(outputs[label]) for label in self.tolerances} for outputs in devices]
            for devices in self._outputs(self.module, values, self.options, observers)
        ]
        return Reference(number, values, expected)

    def deviations(
        self,
        module: Module,
        reference: Reference,
        *,
        stop_beyond: float = math.inf,
        observers: Sequence[Any] = (),
        **limits: Any,
    ) -> dict[str, Deviation]:
        """The worst element of each output of another module; the run ends where a severity is beyond a limit."""
        worst: dict[str, Deviation] = {}
        run = self._outputs(module, reference.inputs, attrs.evolve(self.options, **limits), observers)
        for step, (devices, expected) in enumerate(zip(run, reference.expected, strict=True)):
            for device, (outputs, wanted) in enumerate(zip(devices, expected, strict=True)):
                for label, tolerance in self.tolerances.items():
                    error, index = worst_element(wanted[label], outputs[label])
                    deviation = worst.get(label)
                    if deviation is None or error > deviation.error:
                        ends = _element(wanted[label].array, index), _element(outputs[label], index)
                        place = (label, index, reference.number, step, device)
                        worst[label] = Deviation(*place, *ends, error, tolerance)
                    if error > stop_beyond * tolerance:
                        return worst
        return worst

    def _outputs(
        self, module: Module, inputs: Sequence[Sequence[Value]], options: Options, observers: Sequence[Any]
    ) -> Iterator[list[dict[str, Array]]]:
        """The arrays of the result on each device, by label, step by step."""
        carried = list(inputs)
        for step in range(self.steps):
            results = run_with(module, carried, options, observers)
            outputs_by_device = list(map(labelled_arrays, results))
            yield outputs_by_device
            if self.carried is not None and step + 1 < self.steps:
                rows = carried if len(carried) == len(outputs_by_device) else carried * len(outputs_by_device)
                carried = [
                    with_leaves(row, {parameter: outputs[output] for output, parameter in self.carried.pairs})
                    for row, outputs in zip(rows, outputs_by_device, strict=True)
                ]


def worst_of(deviations: Mapping[str, Deviation]) -> Deviation:
    """The one of the greatest severity."""
    return max(deviations.values(), key=lambda each: each.severity)


def _is_float(array: Array) -> bool:
    return element_type_of(array.dtype).is_floating


def _extent(array: Array) -> tuple[float, int, int]:
    """The largest finite magnitude, and how many elements are infinite and NaN."""
    magnitudes = np.abs(widen(array))
    finite = np.isfinite(magnitudes)
    if finite.all():
        return float(magnitudes.max(initial=0)), 0, 0
    nans = int(np.count_nonzero(np.isnan(magnitudes)))
    infinities = int(magnitudes.size - np.count_nonzero(finite)) - nans
    return float(magnitudes.max(initial=0, where=finite)), infinities, nans


def _element(array: Array, index: tuple[int, ...]) -> Any:
    return widen(array)[index].item() if array.size and len(index) == array.ndim else 0


_LEAST_SHARE = 1e-5
"""Of the FLOPs of all candidates: what does less stays as it is. The last division of a mean would spend half of the
tolerance of a loss, and save nothing."""
_TIGHTER = 0.7
"""By what the share of the tolerances that the search may use shrinks when inputs held back have shown it too large."""
FAILURES = (EvaluationError, ResourceError, UnsupportedError, ShapeError, VerificationError)
"""What a narrowed module may come to that the original did not."""


@define
class _Group:
    members: list[Candidate]
    weight: float
    severity: float = 0.0

    def halves(self) -> list[_Group]:
        middle = len(self.members) // 2
        parts = (self.members[:middle], self.members[middle:])
        return [_Group(part, self.weight * len(part) / len(self.members)) for part in parts]


class Search:
    """What has been tried, and what was accepted."""

    def __init__(
        self,
        module: Module,
        candidates: Sequence[Candidate],
        measurer: Measurer,
        references: Sequence[Reference],
        ranges: Sequence[Ranges],
        shares: tuple[float, int],
        limits: Mapping[str, Any],
        stages: Stages,
    ) -> None:
        self._module = module
        self.candidates = candidates
        self._measurer = measurer
        self.references = list(references)
        self.joined: list[Reference] = []
        """Of inputs that were held back, those on which a module failed that had passed on the others."""
        self._ranges = ranges
        self._margin, self._max_trials = shares
        self._limits = limits
        self._stages = stages
        self._least_work = _LEAST_SHARE * sum(_work(candidate, ranges[0]) for candidate in candidates)
        self.trials = 0
        self.accepted: dict[Place, ElementType] = {}
        """What is narrowed, in the order in which it was accepted."""
        self.alone: dict[tuple[Place, ElementType], Deviation | HloError] = {}
        """What came of narrowing one instruction to a type and no other, where that was tried."""
        self.refused: dict[Place, tuple[Standing, str]] = {}

    def narrow_to(self, narrow: ElementType) -> None:
        """Narrow as much as possible of what is wider than this type."""
        usable = [candidate for candidate in self.candidates if self._is_usable(candidate, narrow)]
        if not usable or self._is_over:
            return
        self._stages.begin(f"trying {narrow.name}", None)
        if self._extends([_Group(usable, 1.0)], narrow):
            return
        base = dict(self.accepted)
        groups = self._ranked(usable, narrow)
        count = self._longest_prefix(groups, narrow)
        rest = groups[count:]
        pending = [rest[1:]] if len(rest) > 1 else []
        if rest:
            parts = self._parts([rest[0]])
            if not parts and not self._is_over:
                # It was the first that did not fit.
                self._refuse_candidate(rest[0].members[0])
            pending += parts
        self._add_rest(pending, narrow)
        self._begin_with_largest(base, groups, narrow)

    def _begin_with_largest(
        self, base: dict[Place, ElementType], groups: Sequence[_Group], narrow: ElementType
    ) -> None:
        """Narrow an instruction that does more than all together that were narrowed since `base`, and what fits beside
        it; if none of these can be narrowed, all stays as it is."""
        work = {each.place: _work(each, self._ranges[0]) for each in self.candidates}
        gained = sum(work[place] for place in self.accepted.keys() - base.keys())
        members = [member for group in groups for member in group.members if work[member.place] > gained]
        for candidate in sorted(members, key=lambda each: -work[each.place]):
            previous = self.accepted
            self.accepted = dict(base)
            if not self._is_over and self._extends([_Group([candidate], 1.0)], narrow):
                others = [[each for each in group.members if each is not candidate] for group in groups]
                self._add_rest([[_Group(each, 1.0) for each in others if each]], narrow)
                return
            self.accepted = previous

    @property
    def check_share(self) -> float:
        """The share of a tolerance that is allowed on inputs that the search has not seen: half-way, in logarithms,
        between what the search may use and all of it."""
        return math.sqrt(self._margin)

    def go_back(self, joined: Reference | None) -> None:
        """Keep as much of what was accepted, in that order, as all references allow; less than before where inputs that
        were held back have joined them, as what is chosen by few inputs looks better on these than it is."""
        if joined is not None:
            self.joined.append(joined)
            self._margin *= _TIGHTER
        if self._passes(self.accepted):
            return
        order = list(self.accepted.items())
        low, high = 0, len(order)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._passes(dict(order[:middle])) else (low, middle)
        self.accepted = dict(order[:low])
        self.refuse((place for place, _ in order[low:]), Standing.TOGETHER, "beyond the tolerance on inputs held back")

    def refuse(self, places: Any, standing: Standing, reason: str) -> None:
        """These instructions keep their types."""
        for place in places:
            self.accepted.pop(place, None)
            self.refused[place] = (standing, reason)

    def measure_alone(self, narrow: ElementType) -> None:
        """Narrow by itself each instruction that was refused beside others, the costly first, while trials are left."""
        pending = [each for each in self.candidates if self.refused.get(each.place, (None,))[0] is Standing.TOGETHER]
        pending = [each for each in pending if (each.place, narrow) not in self.alone and each.can_be(narrow)]
        self._stages.begin("narrowing instructions one by one", len(pending))
        for candidate in sorted(pending, key=lambda each: -each.flops):
            if self._is_over:
                return
            self._measure([candidate], narrow)
            self._stages.tick()

    @property
    def _is_over(self) -> bool:
        return self.trials >= self._max_trials

    def _is_usable(self, candidate: Candidate, narrow: ElementType) -> bool:
        """Whether an instruction is wide enough, ran, and had only numbers that the type has."""
        current = self.accepted.get(candidate.place, candidate.element_type)
        ranges_of_runs = [ranges.found.get(candidate.place) for ranges in self._ranges]
        seen = [entry for entry in ranges_of_runs if entry is not None]
        if narrow.bits >= current.bits or not seen:
            return False
        if _work(candidate, self._ranges[0]) < self._least_work:
            self.refused[candidate.place] = (Standing.SMALL, "does too little work for its type to matter")
            return False
        largest = max(entry.largest for entry in seen)
        if largest > largest_number(narrow):
            why = f"has numbers up to {largest:.3g}, and {narrow.name} up to {largest_number(narrow):g}"
        elif any(entry.infinities for entry in seen) and not narrow.has_inf:
            why = f"has infinities, and {narrow.name} has none"
        else:
            return True
        if candidate.place not in self.accepted:
            self.refused[candidate.place] = (Standing.RANGE, why)
        return False

    def _ranked(self, usable: Sequence[Candidate], narrow: ElementType) -> list[_Group]:
        """Groups in the order in which they are added: the least error per FLOP first."""
        groups = _groups(usable, self._ranges[0], max(4, (self._max_trials - self.trials) // 3))
        self._stages.begin(f"narrowing parts to {narrow.name}, one by one", len(groups))
        for group in groups:
            group.severity = self._measure(group.members, narrow)
            self._stages.tick()
        groups.sort(key=lambda group: (group.severity / group.weight, -group.weight))
        hopeless = [group for group in groups if len(group.members) == 1 and group.severity > self._margin]
        for group in hopeless:
            self._refuse_candidate(group.members[0])
        return [group for group in groups if group not in hopeless]

    def _longest_prefix(self, groups: Sequence[_Group], narrow: ElementType) -> int:
        """How many groups can be added; they are."""
        self._stages.begin(f"adding parts in {narrow.name}", None)
        low, high = 0, len(groups) + 1
        base = dict(self.accepted)
        while high - low > 1 and not self._is_over:
            middle = (low + high) // 2
            self.accepted = dict(base)
            low, high = (middle, high) if self._extends(groups[:middle], narrow) else (low, middle)
        self.accepted = base
        self._accept(groups[:low], narrow)
        return low

    def _add_rest(self, pending: list[list[_Group]], narrow: ElementType) -> None:
        """Add what can still be added; `pending` are rows of groups, the last of which is tried first."""
        while pending:
            row = pending.pop()
            if self._is_over:
                for each in (member for group in row for member in group.members):
                    if each.place not in self.accepted:
                        self.refused.setdefault(each.place, (Standing.UNTRIED, "no trials were left for it"))
            elif not self._extends(row, narrow):
                parts = self._parts(row)
                if not parts:
                    self._refuse_candidate(row[0].members[0])
                pending += parts
            self._stages.tick()

    @staticmethod
    def _parts(row: list[_Group]) -> list[list[_Group]]:
        """Halves of a row of groups, the first one last; of one group, halves of that; of one instruction nothing."""
        if len(row) > 1:
            middle = len(row) // 2
            return [row[middle:], row[:middle]]
        if len(row[0].members) > 1:
            first, second = row[0].halves()
            return [[second], [first]]
        return []

    def _refuse_candidate(self, candidate: Candidate) -> None:
        if candidate.place not in self.accepted:
            self.refused[candidate.place] = (Standing.TOGETHER, "it would take too much of the tolerance")

    def _accept(self, groups: Sequence[_Group], narrow: ElementType) -> None:
        for group in groups:
            for candidate in group.members:
                self.accepted.pop(candidate.place, None)
                self.accepted[candidate.place] = narrow
                self.refused.pop(candidate.place, None)

    def _extends(self, groups: Sequence[_Group], narrow: ElementType) -> bool:
        """Whether groups can be narrowed besides what is; then they are."""
        chosen = {candidate.place: narrow for group in groups for candidate in group.members}
        if not self._passes({**self.accepted, **chosen}):
            return False
        self._accept(groups, narrow)
        return True

    def _passes(self, chosen: Mapping[Place, ElementType]) -> bool:
        """Whether all outputs stay within the search's share of their tolerances, on all inputs of the search."""
        self.trials += 1
        module = rewritten(self._module, chosen).module
        for references, share in ((self.references, self._margin), (self.joined, self.check_share)):
            for number, reference in enumerate(references):
                deviation = self._tried(module, reference, share)
                if not isinstance(deviation, Deviation) or deviation.severity > share:
                    # What tells most is tried first the next time.
                    references.insert(0, references.pop(number))
                    return False
        return True

    def _measure(self, members: Sequence[Candidate], narrow: ElementType) -> float:
        """The severity of narrowing these and no others, on the first inputs."""
        self.trials += 1
        module = rewritten(self._module, {candidate.place: narrow for candidate in members}).module
        first = min(self.references, key=lambda reference: reference.number)
        deviation = self._tried(module, first, math.inf)
        if len(members) == 1:
            self.alone[members[0].place, narrow] = deviation
        return deviation.severity if isinstance(deviation, Deviation) else math.inf

    def _tried(self, module: Module, reference: Reference, stop_beyond: float) -> Deviation | HloError:
        try:
            return worst_of(self._measurer.deviations(module, reference, stop_beyond=stop_beyond, **self._limits))
        except FAILURES as error:
            return error


def _groups(usable: Sequence[Candidate], ranges: Ranges, most: int) -> list[_Group]:
    """Instructions that do the same, in at most so many groups: the lightest are put together."""
    alike: dict[Any, list[Candidate]] = defaultdict(list)
    for candidate in usable:
        alike[candidate.likeness].append(candidate)
    total = sum(_work(candidate, ranges) for candidate in usable) or 1.0
    groups = [_Group(members, sum(_work(member, ranges) for member in members) / total) for members in alike.values()]
    for group in groups:
        group.weight = max(group.weight, 1e-12)
    if len(groups) <= most:
        return groups
    heavy = set(map(id, sorted(groups, key=lambda group: -group.weight)[: most // 2]))
    light = [group for group in groups if id(group) not in heavy]
    size = math.ceil(len(light) / (most - most // 2))
    rows = [light[start : start + size] for start in range(0, len(light), size)]
    joined = [
        _Group([member for group in row for member in group.members], sum(group.weight for group in row))
        for row in rows
    ]
    return [group for group in groups if id(group) in heavy] + joined


def _work(candidate: Candidate, ranges: Ranges) -> float:
    return candidate.flops * ranges.found[candidate.place].runs if candidate.place in ranges.found else 0.0
