"""What isolation finds: an outcome for each unit, and groups of those that differ, or did not run, for one cause."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import attrs

from hloexec.analysis.numerics.comparison import OutputDifference
from hloexec.core.ir import Module
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import Described
from hloexec.tools.triaging.findings import PolicyFound

AGREEING = ("explained", "rounding only", "equal")
DIFFERENT = ("different", "mismatched")
OUTCOMES = (
    *(*DIFFERENT, "crashed", "timed out", "out of memory", "refused", "not isolated", "not decided"),
    *AGREEING,
)
"""What may come of a unit, from worst to best; `explained`: it differs as a numerics policy makes it."""


@frozen
class IsolatedUnit:
    """What came of a unit."""

    name: str
    """Which run of the instruction it was, through loops and calls."""
    computation: str
    instruction: str
    """The one that gives its value."""
    hlo: str
    source: tuple[str, ...]
    devices: tuple[int, ...]
    """Those that hold these values."""
    iteration: int | None
    outcome: str = attrs.field(validator=attrs.validators.in_(OUTCOMES))
    """One of `OUTCOMES`."""
    reason: str = ""
    """Why it was not run or compared, or what leaves open what differs."""
    outputs: tuple[OutputDifference, ...] = ()
    """The arrays that are further off than rounding explains."""
    explained: PolicyFound | None = None
    """The policy that explains the difference; None where none does, or none has to."""
    same_as: str | None = None
    """The unit that was run in its place: equal but for names, with equal operands."""
    folder: str | None = None
    """The folder with what reproduces it."""
    text: str = attrs.field(default="", metadata=UNTOLD)
    """That of the unit without names."""

    @property
    @told
    def cause(self) -> str:
        """The policy, or the reason, in words; empty where nothing is known."""
        return self.reason if self.explained is None else self.explained.words


@frozen(slots=False, eq=False)
class Isolation(Described):
    """What came of the units of a module."""

    module: Module
    against: str
    """The SPEC of the counterpart."""
    units: tuple[IsolatedUnit, ...]
    """The worst first."""
    unmet: tuple[str, ...]
    """The instructions of units that the run did not come to."""
    is_complete: bool
    """Whether it was not interrupted."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        left = "" if self.is_complete else "; interrupted"
        return f"{len(self.units)} units of {self.module.name} on {self.against}: {counts or 'none was run'}{left}"

    @property
    @told
    def counts(self) -> dict[str, int]:
        """How many units have each outcome, the worst first."""
        return dict(Counter(unit.outcome for unit in self.units))

    @cached_property
    def groups(self) -> list[list[IsolatedUnit]]:
        """Those that are not equal but for rounding, by what they came to and why, the worst first."""
        groups: dict[tuple[str, str], list[IsolatedUnit]] = {}
        for unit in self.units:
            if unit.outcome not in AGREEING[1:]:
                groups.setdefault((unit.outcome, unit.cause or unit.text), []).append(unit)
        return list(groups.values())

    @property
    @told
    def unit_names(self) -> tuple[tuple[str, ...], ...]:
        """The names of the same, a list for each cause."""
        return tuple(tuple(unit.name for unit in group) for group in self.groups)

    @property
    def different(self) -> tuple[IsolatedUnit, ...]:
        """The units that differ as no policy explains, the worst first."""
        return tuple(unit for unit in self.units if unit.outcome in DIFFERENT)


def severity(unit: IsolatedUnit) -> tuple[int, float]:
    """Worse units have less."""
    return OUTCOMES.index(unit.outcome), -max((output.max_relative_error or 0.0 for output in unit.outputs), default=0)
