"""The search for the instructions that may be narrower together.

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
from collections.abc import Mapping, Sequence
from typing import Any

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import Module
from hloexec.core.precision import largest_number
from hloexec.core.structs import define
from hloexec.engine.exec.observers import Stages
from hloexec.errors import (
    EvaluationError,
    HloError,
    ResourceError,
    ShapeError,
    UnsupportedError,
    VerificationError,
)
from hloexec.ops.relations import Place
from hloexec.tools.narrowing.candidates import Candidate
from hloexec.tools.narrowing.findings import Deviation, Standing
from hloexec.tools.narrowing.measuring import Measurer, Ranges, Reference, worst_of
from hloexec.tools.narrowing.rewriting import rewritten

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
            found = self.accepted
            self.accepted = dict(base)
            if not self._is_over and self._extends([_Group([candidate], 1.0)], narrow):
                others = [[each for each in group.members if each is not candidate] for group in groups]
                self._add_rest([[_Group(each, 1.0) for each in others if each]], narrow)
                return
            self.accepted = found

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
        found = [ranges.found.get(candidate.place) for ranges in self._ranges]
        seen = [entry for entry in found if entry is not None]
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
                found = self._tried(module, reference, share)
                if not isinstance(found, Deviation) or found.severity > share:
                    # What tells most is tried first the next time.
                    references.insert(0, references.pop(number))
                    return False
        return True

    def _measure(self, members: Sequence[Candidate], narrow: ElementType) -> float:
        """The severity of narrowing these and no others, on the first inputs."""
        self.trials += 1
        module = rewritten(self._module, {candidate.place: narrow for candidate in members}).module
        first = min(self.references, key=lambda reference: reference.number)
        found = self._tried(module, first, math.inf)
        if len(members) == 1:
            self.alone[members[0].place, narrow] = found
        return found.severity if isinstance(found, Deviation) else math.inf

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
    groups = [_Group(members, sum(_work(each, ranges) for each in members) / total) for members in alike.values()]
    for group in groups:
        group.weight = max(group.weight, 1e-12)
    if len(groups) <= most:
        return groups
    heavy = set(map(id, sorted(groups, key=lambda group: -group.weight)[: most // 2]))
    light = [group for group in groups if id(group) not in heavy]
    size = math.ceil(len(light) / (most - most // 2))
    rows = [light[start : start + size] for start in range(0, len(light), size)]
    joined = [
        _Group([each for group in row for each in group.members], sum(group.weight for group in row)) for row in rows
    ]
    return [group for group in groups if id(group) in heavy] + joined


def _work(candidate: Candidate, ranges: Ranges) -> float:
    return candidate.flops * ranges.found[candidate.place].runs if candidate.place in ranges.found else 0.0
