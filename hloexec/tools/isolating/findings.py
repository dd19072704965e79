"""What isolation finds: an outcome for each unit, and groups of those that differ, or did not run, for one cause."""

from __future__ import annotations

from collections import Counter

import attrs

from hloexec.analysis.numerics.comparison import OutputDifference
from hloexec.core.ir import Module
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import Described
from hloexec.tools.triaging.findings import PolicyFound

OUTCOMES = (
    *("different", "mismatched", "crashed", "timed out", "out of memory", "refused", "not isolated"),
    *("not decided", "explained", "rounding only", "equal"),
)
"""What may come of a unit, from worst to best; `explained`: it differs as a numerics policy makes it."""
DIFFERENT = ("different", "mismatched")


@frozen
class IsolatedUnit:
    """What came of a unit."""

    name: str
    """Which run of the instruction it was, through loops and calls."""
    computation: str
    instruction: str
    """The one that gives its value."""
    opcode: str
    shape: str
    hlo: str
    outcome: str = attrs.field(validator=attrs.validators.in_(OUTCOMES))
    """One of `OUTCOMES`."""
    reason: str = ""
    """Why it was not run or compared, or what leaves open what differs."""
    source: tuple[str, ...] = ()
    devices: tuple[int, ...] = (0,)
    """Those that hold these values."""
    iteration: int | None = None
    """Of the innermost loop."""
    outputs: tuple[OutputDifference, ...] = ()
    """The arrays that are further off than rounding explains."""
    explained: PolicyFound | None = None
    """The policy that explains the difference; None where none does, or none has to."""
    same_as: str | None = None
    """The unit that was run in its place: equal but for names, with equal operands."""
    group: int | None = None
    """The number of its group."""
    folder: str | None = None
    """The folder with what reproduces it."""
    text: str = attrs.field(default="", metadata=UNTOLD)

    @property
    def severity(self) -> tuple[int, float]:
        """Worse ones have less."""
        errors = [output.max_relative_error or 0.0 for output in self.outputs]
        return OUTCOMES.index(self.outcome), -max(errors, default=0.0)

    @property
    def cause(self) -> str:
        """What it came to, in words."""
        if self.explained is not None:
            return self.explained.words
        return self.reason or f"{self.opcode} {self.shape}"


@frozen
class UnitGroup:
    """Units that differ, or did not run, for the same cause."""

    number: int
    """From 1, the worst first."""
    outcome: str
    """What came of its units."""
    cause: str
    """In words."""
    members: tuple[IsolatedUnit, ...] = attrs.field(metadata=UNTOLD)

    @property
    @told
    def unit_names(self) -> tuple[str, ...]:
        """Its units, the one that is furthest off first."""
        return tuple(member.name for member in self.members)


@frozen(slots=False, eq=False)
class Isolation(Described):
    """What came of the units of a module."""

    by: str
    """What a unit is: `fusion`, `instruction` or `computation`."""
    against: str
    """The SPEC of the counterpart."""
    units: tuple[IsolatedUnit, ...]
    """The worst first."""
    groups: tuple[UnitGroup, ...]
    """Those that are not equal but for rounding, by what they have in common, the worst first."""
    unit_count: int
    """How many units there are to look at."""
    unmet: tuple[str, ...]
    """Units that the run did not come to."""
    run_count: int
    """How many units the counterpart has run: equal ones run once."""
    seconds: float
    """How long all of it took."""
    is_complete: bool
    """Whether it was not interrupted."""
    module: Module = attrs.field(metadata=UNTOLD)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        left = "" if self.is_complete else "; interrupted"
        return f"{len(self.units)} units of {self.module.name} on {self.against}: {counts or 'none was run'}{left}"

    @property
    @told
    def counts(self) -> dict[str, int]:
        """How many units have each outcome, the worst first."""
        outcome_counts = Counter(unit.outcome for unit in self.units)
        return {outcome: outcome_counts[outcome] for outcome in OUTCOMES if outcome_counts[outcome]}

    @property
    def different(self) -> tuple[IsolatedUnit, ...]:
        """The units that differ as no policy explains, the worst first."""
        return tuple(unit for unit in self.units if unit.outcome in DIFFERENT)

    @property
    def exit_code(self) -> int:
        """1 if a unit differs as no policy explains, 2 if one was not compared, 3 if one is not decided, else 0."""
        ranks = [OUTCOMES.index(unit.outcome) for unit in self.units]
        worst = OUTCOMES[min(ranks, default=-1)]
        codes = {**dict.fromkeys(DIFFERENT, 1), **dict.fromkeys(("explained", "rounding only", "equal"), 0)}
        return 3 if worst == "not decided" else codes.get(worst, 2)


def grouped(units: list[IsolatedUnit]) -> tuple[tuple[IsolatedUnit, ...], tuple[UnitGroup, ...]]:
    """Units with the worst first, each with the number of its group, and the groups."""
    ordered = sorted(units, key=lambda unit: unit.severity)
    members: dict[tuple[str, str], list[IsolatedUnit]] = {}
    numbered = []
    for unit in ordered:
        if unit.outcome in ("rounding only", "equal"):
            numbered.append(unit)
            continue
        key = (unit.outcome, unit.cause if unit.explained is not None or unit.reason else unit.text)
        group = members.setdefault(key, [])
        number = list(members).index(key) + 1
        group.append(attrs.evolve(unit, group=number))
        numbered.append(group[-1])
    groups = (
        UnitGroup(number, outcome, group[0].cause, tuple(group))
        for number, ((outcome, _), group) in enumerate(members.items(), 1)
    )
    return tuple(numbered), tuple(groups)
