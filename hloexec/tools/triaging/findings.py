"""What triage finds: an outcome for each module with what is to blame, and groups of those that have the same cause.

All of it is plain data, as it is kept in JSON files from one call to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from hloexec.analysis.numerics.comparison import OutputDifference
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import Described

OUTCOMES = ("differ", "crashed", "timed out", "out of memory", "not compared", "not decided", "rounding only", "agree")
"""What may come of a module, from worst to best."""
_AGREEING = ("agree", "rounding only")


def _words(value: Sequence[str]) -> tuple[str, ...]:
    return tuple(value)


@frozen
class Blamed:
    """The instruction that makes a module differ."""

    opcode: str
    element_types: tuple[str, ...] = attrs.field(converter=_words)
    """Of its result, then those of its operands that are others."""
    shape: str
    shape_class: str
    """`array`, `empty` (one without elements) or `tuple`."""
    instruction: str
    computation: str
    path: str
    """Which run of it, through loops, calls and fusions."""
    hlo: str
    op_name: str | None = None
    source: tuple[str, ...] = attrs.field(default=(), converter=_words)
    """Source lines, the innermost call first."""
    instead_of: str | None = None
    """What gives the right value, as HLO text."""
    is_certain: bool = True
    """Whether the result is right once its value is replaced."""
    reason: str = ""


@frozen
class PolicyFound:
    """The numerics policy that explains a difference."""

    policy: str
    """As `--numerics` takes it."""
    words: str
    """The same in words: `TF32`, `flushed denormals`."""
    alike: tuple[str, ...] = attrs.field(default=(), converter=_words)
    """Policies that the values cannot tell from it."""
    bits_explained: float = attrs.field(default=0.0, converter=float)
    """Minus the binary logarithm of the share of the difference that remains."""
    equal_share: float = 0.0
    """The share of elements that have the expected bits under it."""
    is_whole: bool = True
    """Whether it explains all results; else only what the instruction to blame gives, the only one there is."""


@frozen
class TriagedModule:
    """What came of a module, or a pair."""

    name: str
    """Its path in the folder, without suffixes."""
    kind: str
    """`module`, `pair` or `stages`."""
    files: tuple[str, ...] = attrs.field(converter=_words)
    """What was judged: of a pair or of stages in their order."""
    against: str
    """What it was compared with."""
    outcome: str = attrs.field(validator=attrs.validators.in_(OUTCOMES))
    """One of `OUTCOMES`."""
    reason: str = ""
    """Why there is no verdict, in words."""
    difference: str = ""
    """`numbers`; `NaN or infinities`, where that is all that differs; `shapes`."""
    outputs: tuple[OutputDifference, ...] = ()
    """Those that differ."""
    blamed: Blamed | None = None
    """The instruction to blame; None where none was found."""
    explained: PolicyFound | None = None
    """The policy that explains the difference; None where none does."""
    step: str | None = None
    """The first compiler pass that changed the result."""
    instruction_count: int = 0
    """How many instructions there are."""
    notes: tuple[str, ...] = attrs.field(default=(), converter=_words)
    is_cut: bool = False
    """Whether its limits ended it: with more time or memory it may come to more."""
    seconds: float = attrs.field(default=0.0, eq=False)
    is_reused: bool = attrs.field(default=False, eq=False)
    """Whether the output folder had it already."""

    @property
    def agrees(self) -> bool:
        """Whether nothing but rounding differs."""
        return self.outcome in _AGREEING

    @property
    def is_judged(self) -> bool:
        """Whether it was compared at all."""
        return self.agrees or self.outcome in ("differ", "not decided")


@frozen
class MinifiedModule:
    """The smallest module that shows what a group has in common."""

    module_name: str
    """The module of the group that was minified."""
    folder: str | None
    """The folder with all that shows it; None where nothing was written."""
    failure: str = ""
    """What the small module shows."""
    instruction_count: int = 0
    """How many instructions are left."""
    given_instruction_count: int = 0
    """How many there were that compute something."""
    largest_dimension: int = 0
    """The largest size of a dimension that is left."""
    is_complete: bool = False
    """Whether nothing was found that could still go."""
    is_confirmed: bool = False
    """Whether the small module shows the failure, read from its text."""
    hlo_text: str = ""
    """The small module."""
    command: str = ""
    """What shows it in the folder."""
    reason: str = ""
    """Why there is none."""
    seconds: float = attrs.field(default=0.0, eq=False)


@frozen
class CauseGroup:
    """Modules that differ, or could not be judged, for the same cause."""

    number: int
    """From 1: what differs and no policy explains comes first, the largest group of each rank first."""
    outcome: str
    """What came of its modules."""
    cause: str
    """In words."""
    opcode: str | None
    """The opcode to blame; None where a policy explains it, or none is known."""
    element_types: tuple[str, ...]
    """Of what is to blame and of its operands."""
    shape_class: str | None
    """Of what is to blame."""
    difference: str
    """What differs."""
    policy: str | None
    """The policy that explains it, without the names of instructions."""
    members: tuple[TriagedModule, ...] = attrs.field(metadata=UNTOLD)
    representative: str
    """The name of the smallest member."""
    minified: MinifiedModule | None = None
    """The smallest module that shows the cause; None where none was made."""

    @property
    @told
    def member_names(self) -> tuple[str, ...]:
        """The modules of the group."""
        return tuple(member.name for member in self.members)

    @property
    @told
    def opcodes(self) -> dict[str, int]:
        """How often each opcode is to blame."""
        return dict(Counter(member.blamed.opcode for member in self.members if member.blamed is not None).most_common())


@frozen(eq=False)
class Triage(Described):
    """What came of all modules of a folder."""

    folder: str
    """The folder that was given."""
    other: str | None
    """The second folder, where there are two."""
    output: str | None
    """The folder in which it is kept."""
    modules: tuple[TriagedModule, ...]
    """In the order of their names."""
    groups: tuple[CauseGroup, ...]
    """Modules with the same cause, those that differ first, the largest group first."""
    case_count: int
    """How many there are in the folder; more than `modules` where it was interrupted."""
    seconds: float
    """How long all of it took."""
    is_complete: bool
    """Whether all were looked at, and a representative of each group minified."""
    distribution: str = "normal"
    """What random inputs are like."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        causes = sum(group.outcome == "differ" for group in self.groups)
        more = f" for {causes} causes" if causes else ""
        left = "" if self.is_complete else "; interrupted"
        return f"{len(self.modules)} of {self.case_count} modules: {counts or 'none looked at'}{more}{left}"

    @property
    @told
    def counts(self) -> dict[str, int]:
        """How many modules have each outcome, the worst first."""
        outcome_counts = Counter(module.outcome for module in self.modules)
        return {outcome: outcome_counts[outcome] for outcome in OUTCOMES if outcome_counts[outcome]}

    @property
    def differing(self) -> tuple[TriagedModule, ...]:
        """The modules whose results differ, in order."""
        return tuple(module for module in self.modules if module.outcome == "differ")

    @property
    def outcome(self) -> str:
        """The worst one; `differ`, if there is any difference."""
        return next(iter(self.counts), "agree")

    @property
    def agrees(self) -> bool:
        """Whether all were looked at, and nothing but rounding differs."""
        return self.is_complete and all(module.agrees for module in self.modules)
