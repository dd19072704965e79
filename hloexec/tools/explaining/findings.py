"""What `explain` found: the policies that were tried, which of them gives the expected values, and what is left."""

from __future__ import annotations

import enum

from hloexec.analysis.numerics.comparison import LeafComparison
from hloexec.core.structs import frozen, told
from hloexec.core.values import Described
from hloexec.ops.policies.policy import NumericsPolicy


class Explained(enum.Enum):
    """The verdict, from best to worst."""

    EQUAL = "equal"
    """The reference gives the same bits: there is nothing to explain."""
    ROUNDING = "rounding alone explains it"
    """What differs from the reference is what rounding of sums and functions may do to it."""
    POLICY = "explained"
    """What differs from the reference does so under a policy, but for rounding."""
    NOT_DECIDED = "not decided"
    """What rounding does not explain depends on what HLO, or the text, leaves open."""
    NONE = "none of them explains it"
    """Under every policy some elements are off by more than rounding explains."""


@frozen(eq=False)
class Trial:
    """A policy that was tried, and how near it comes to what is expected."""

    policy: NumericsPolicy
    """The policy, as `--numerics` takes it."""
    remaining: float
    """The size of what remains, element by element in units of what rounding does to the element:
    √(exp(mean(ln(1 + x²))) − 1), which a few huge ones hardly move."""
    bits: float
    """Bits explained: −log₂ of what remains, as a share of what the reference leaves; infinite where nothing does."""
    equal_share: float
    """The share of elements that have the expected bits."""
    max_ulps: float
    """The largest distance of an element from the expected one; infinite where only one of the two is a number."""
    mismatches: int | None = None
    """How many elements are off by more than rounding explains; None where that was not looked at."""
    spread_ratio: float | None = None
    """What remains in units of what random rounding leaves under the policy; None where that was not looked at."""
    is_explained: bool | None = None
    """Whether rounding explains what remains; None where that was not looked at."""
    has_effect: bool = True
    """Whether it changes any bit of the results."""
    effect: float | None = None
    """How much of the policy's effect is in what is expected: 0 for none of it, 1 for all of it; and its error."""
    effect_error: float | None = None
    """The error of that."""

    @property
    def name(self) -> str:
        """The name of the policy."""
        return self.policy.name

    @property
    @told
    def instructions(self) -> tuple[str, ...]:
        """Which instructions have policies of their own, as policies name them: `body/dot.3`."""
        return tuple(name for name, _ in self.policy.overrides)


@frozen
class Untold:
    """An instruction of which the values cannot tell whether it has a policy."""

    instruction: str
    """As policies name it: `body/dot.3`."""
    policy: str
    """The policy that it may have."""


@frozen(eq=False)
class InstructionExplanation:
    """What explains the value that an instruction has on the other side, from the operands that it has there."""

    name: str
    """As policies name it: `body/dot.3`."""
    opcode: str
    hlo: str
    verdict: Explained
    """What explains its value."""
    best: Trial
    """The policy that comes nearest."""
    alike: tuple[Trial, ...]
    """Policies that the value cannot tell from it."""
    source: tuple[str, ...] = ()
    runs: int = 1
    """In how many of its runs, in loops and on several devices, it was looked at."""
    is_complete: bool = True
    """Whether the search ended by itself: if not, another policy may explain it."""


@frozen(slots=False, eq=False)
class Explanation(Described):
    """The result of `explain`."""

    verdict: Explained
    """What explains what is expected."""
    best: Trial
    """The policy that comes nearest; of those that cannot be told apart the simplest."""
    alike: tuple[Trial, ...]
    """Others that explain it as well: the values cannot tell them from `best`."""
    trials: tuple[Trial, ...]
    """All that were tried, the nearest first."""
    reference: Trial
    """What the reference comes to."""
    leaves: tuple[LeafComparison, ...]
    """What the best one leaves, output by output."""
    runs: int
    """How often the module ran."""
    undecided: tuple[NumericsPolicy, ...] = ()
    """Policies that may hold besides the best one: rounding hides what they would change."""
    untold: tuple[Untold, ...] = ()
    """Instructions of which the values cannot tell whether they have a policy, one that the best one has for others or
    another besides: it explains what is expected with and without these."""
    instructions: tuple[InstructionExplanation, ...] = ()
    """With values of the other side: every instruction that rounding alone does not explain, in data-flow order."""
    checked_instructions: int = 0
    """With values of the other side: how many instructions were looked at."""
    is_complete: bool = True
    """Whether the search ended by itself, not by its budget."""
    left_open: tuple[str, ...] = ()
    """By leaf, what HLO, or the text, leaves open in it, where no policy explains what is expected there: that is not
    looked at."""

    @property
    def is_explained(self) -> bool:
        """Whether rounding or a policy explains what is expected."""
        return self.verdict not in (Explained.NOT_DECIDED, Explained.NONE)

    @property
    def first_unexplained(self) -> InstructionExplanation | None:
        """The first instruction whose value no policy explains from its own operands."""
        return next((explanation for explanation in self.instructions if explanation.verdict is Explained.NONE), None)

    def __str__(self) -> str:
        """The verdict in a line."""
        others = f" (as well as {', '.join(trial.name for trial in self.alike)})" if self.alike else ""
        if self.verdict is Explained.POLICY:
            return f"{self.best.name} explains it{others}"
        if self.verdict is Explained.NONE:
            return f"{self.verdict.value}; {self.best.name} comes nearest"
        return f"{self.verdict.value}{others}"
