"""The result of `hloexec.shadow`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from hloexec.core.structs import frozen, told
from hloexec.core.values import Described
from hloexec.language.origins import SourceLine
from hloexec.tools.shadowing.digits import SampledDigits
from hloexec.tools.shadowing.outputs import LeafError


@frozen
class Loss:
    """An instruction that part of the error of the outputs comes from."""

    share: float
    """Its share of the error of the outputs, from 0 to 1."""
    lost_share: float
    """Its share of the elements of outputs that are infinite or NaN and should not be."""
    kind: str
    """`rounding`, `cancellation`, `absorption`, `lost updates`, `overflow` or `underflow`
    (`shadowing.kinds`)."""
    instruction: str
    computation: str
    opcode: str
    hlo: str
    op_name: str | None
    source: tuple[SourceLine, ...]
    """Its source lines, the innermost call first; if it has none, those of the innermost instruction that calls it."""
    name: str
    """Path and instruction in its worst run, e.g. `loop[6]:body/fusion.2/divide.7`."""
    iteration: int | None
    """Of the innermost loop around it in that run, counted from 0."""
    devices: tuple[int, ...]
    inherited: float
    """Of its result in that run, what is inherited: the root of the mean square, relative to the exact result."""
    added: float
    """The same of what it added itself."""
    runs: int
    """How often it ran and gave a result with an error."""
    affected: int
    """How many elements show the kind of loss, of those that were looked at; 0 for rounding."""
    outputs: tuple[int, ...]
    """The outputs, by number, whose error it is part of, the one with the largest share first."""
    alone: float | None = None
    """The relative error of the outputs, of the one that has the largest, where only this instruction rounds its result
    and all else is in f64; None where no such run was made."""
    is_measured: bool = False
    """Whether its share is measured: by rounding it alone, or its operands; else it is an estimate, or its part of what
    a group of instructions does together is."""
    digits: SampledDigits | None = None
    """Where random rounding was asked for, what it says of the last run of the instruction."""


@frozen
class Decision:
    """An instruction whose integers or preds the shadows would make otherwise: a comparison, a conversion, a sort."""

    count: int
    """How many elements."""
    total: int
    """How many elements there are."""
    instruction: str
    computation: str
    opcode: str
    hlo: str
    source: tuple[SourceLine, ...]


@frozen
class Untold:
    """An instruction whose results count as exact, since they cannot be computed in f64."""

    instruction: str
    computation: str
    opcode: str
    reason: str


@frozen
class InstructionError:
    """The error of an instruction in its worst run."""

    computation: str
    instruction: str
    inherited: float
    """What is inherited, relative to the exact result."""
    added: float
    """What the instruction adds itself, relative to the exact result."""


@frozen
class ShadowRun(Described):
    """What `shadow` found."""

    outputs: tuple[LeafError, ...]
    """The error of each leaf of the result, for each group of devices that hold the same."""
    losses: tuple[Loss, ...]
    """Where the errors of the outputs come from, the largest share first."""
    decisions: tuple[Decision, ...]
    """Where the shadows would have decided otherwise."""
    untold: tuple[Untold, ...]
    """What cannot be computed in f64, so that its results count as exact."""
    events: int
    """How many values were looked at."""
    samples: int = 0
    """How many runs with random rounding were made besides."""
    digits: tuple[SampledDigits, ...] = ()
    """What they say of each output."""
    share_runs: int = 0
    """How many runs in f64 were made for the shares."""
    estimates_reason: str = ""
    """Why the shares are estimates, as a clause; empty where they are measured."""
    estimated_count: int = 0
    """Beside measured shares, how many instructions that round did not run alone: the share of their group is divided
    among them, or theirs are estimates."""
    errors: Mapping[tuple[str, str], tuple[float, float]] = attrs.field(factory=dict)
    """By the names of computation and instruction, of each that made an error or computed with one: what it inherits
    and what it adds in its worst run, relative to its exact result, also where little of it reaches an output."""

    @property
    def culprit(self) -> Loss | None:
        """The instruction that most of the error comes from; None where there is no error."""
        return self.losses[0] if self.losses else None

    @property
    @told
    def instruction_errors(self) -> tuple[InstructionError, ...]:
        """The errors of all instructions, each in its worst run."""
        return tuple(InstructionError(*place, *errors) for place, errors in self.errors.items())

    @property
    @told
    def is_more_than_rounding(self) -> bool:
        """Whether the error of an output, as a whole, exceeds eight units of roundoff of the types that it was made in,
        or elements are infinite or NaN and should not be. Single elements may have lost more."""
        return any(output.is_more_than_rounding for output in self.outputs)

    def __str__(self) -> str:
        if not self.losses:
            return f"no rounding error in {len(self.outputs)} outputs"
        if not self.is_more_than_rounding:
            return f"nothing but rounding in {len(self.outputs)} outputs"
        first = self.losses[0]
        share = max(first.share, first.lost_share)
        return f"%{first.instruction} in {first.computation}: {first.kind}, {share:.0%} of the error of the outputs"
