"""What bisecting has found."""

from __future__ import annotations

from hloexec.core.structs import frozen, told
from hloexec.core.values import Described
from hloexec.core.wording import counted, listing
from hloexec.tools.diffing import Diff


@frozen
class VersionTrial:
    """What came of a version."""

    against: str
    """Its SPEC."""
    outcome: str
    """How its result compares with hloexec's, as a verdict of `compare`; or why there is none: `refused`, `crashed`,
    `timed out`, `out of memory`, `mismatched`."""
    text: str
    """The same in a sentence."""


@frozen(eq=False)
class VersionChange:
    """Two neighbours in the order of versions, whose results differ."""

    before: str
    """The SPEC of the first of the two."""
    after: str
    """The SPEC of the second."""
    has_same_text: bool | None
    """Whether both make the same text of the module; None where a text is not known."""
    right: str | None
    """The SPEC of the one whose optimized module `diff` takes as right; None where they were not compared."""
    diff: Diff | None
    """Their optimized modules, run by hloexec; None where they were not compared."""
    reason: str = ""
    """Why they were not, as a sentence."""


@frozen(eq=False)
class VersionBisection(Described):
    """The first of several versions whose result differs from that of the one before it."""

    versions: tuple[str, ...]
    """The SPECs, in their order."""
    trials: tuple[VersionTrial, ...]
    """What came of those that were tried, in their order."""
    changes: tuple[VersionChange, ...]
    """Neighbours whose results differ: the first alone, unless all versions were tried."""
    is_monotone: bool
    """Whether no result that was seen comes back after another."""

    @property
    @told
    def first(self) -> str | None:
        """The first version whose result is seen to differ from that of the one before it."""
        return self.changes[0].after if self.changes else None

    def __str__(self) -> str:
        tried = f"{len(self.trials)} of {counted(len(self.versions), 'version')} tried"
        return f"{tried}: {f'{self.first} is the first that differs' if self.first else 'no change seen'}"


@frozen(eq=False)
class PassBisection(Described):
    """The passes without which a compiler's result comes right."""

    against: str
    """The SPEC of the compiler."""
    outcome: str
    """How its result with all passes compares with hloexec's, as a verdict of `compare`."""
    text: str
    """The same in a sentence."""
    candidates: tuple[str, ...] = ()
    """The passes that change the module, in the order in which they first do."""
    required: tuple[str, ...] = ()
    """Those of them without which there was no result."""
    passes: tuple[str, ...] = ()
    """The smallest set that was found without which the result comes right; empty where there is none."""
    trials: int = 0
    """How often the module was compiled."""
    step: str | None = None
    """The first step of the compilation after which the module gives another result, run by hloexec; None where there
    is none."""
    pass_name: str | None = None
    """The pass of that step, if it is one."""
    diff: Diff | None = None
    """The modules before and after that step."""
    dump: str | None = None
    """The folder that has the module after each pass; None where it was not kept."""

    @property
    @told
    def is_confirmed(self) -> bool:
        """Whether that step is of the pass without which the result comes right."""
        return self.pass_name is not None and self.passes == (self.pass_name,)

    def __str__(self) -> str:
        if self.passes:
            return f"{self.outcome}; right without {listing(self.passes, 4)}"
        return f"{self.outcome}; no pass found without which it is right" if self.candidates else self.outcome
