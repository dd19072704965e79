"""The result of a search for NaN."""

from __future__ import annotations

from hloexec.analysis.numerics.leaves import LeafStatistics
from hloexec.core.structs import frozen, told
from hloexec.core.values import Described
from hloexec.core.wording import listing
from hloexec.language.origins import SourceLine
from hloexec.ops.traits import Index


@frozen
class Element:
    """One affected element."""

    index: Index
    value: float | int | complex | bool
    """What the element is."""
    operands: tuple[float | int | complex | bool, ...] | None
    """The operands' elements at the same place; None where the instruction is not elementwise."""


@frozen
class Operand:
    """One operand of the instruction, as it was."""

    name: str
    leaves: tuple[LeafStatistics, ...]
    """Empty where the run no longer holds it (collectives)."""


@frozen
class Link:
    """One instruction on the path to an affected element, with the range of its result."""

    name: str
    """Path and instruction."""
    hlo: str
    source: str | None
    minimum: float
    maximum: float


@frozen
class Finding:
    """An instruction that produces NaN, infinities or another symptom."""

    kind: str
    """`overflow`, `pole`, `invalid`, `nan`, `literal`, `saturation`, `underflow` or `cancellation`."""
    reason: str
    """The same in words, e.g. `division by zero`."""
    name: str
    """Path and instruction, e.g. `loop[6]:body/fusion.2/divide.7`."""
    instruction: str
    computation: str
    opcode: str
    iteration: int | None
    """Of the innermost loop around it, counted from 0."""
    devices: tuple[int, ...]
    hlo: str
    op_name: str | None
    source: tuple[SourceLine, ...]
    """Its source lines, the innermost call first; if it has none, those of the innermost instruction that calls it."""
    bad: int
    """How many elements have the symptom that its operands do not have."""
    bad_nan: int
    """How many of these are NaN."""
    count: int
    """How many elements there are."""
    value: LeafStatistics
    """What the instruction gave."""
    operands: tuple[Operand, ...]
    """What it took."""
    elements: tuple[Element, ...]
    """The first elements that went bad."""
    chain: tuple[Link, ...]
    """The chain that led to it, from the earliest instruction to the operand."""


@frozen
class NanInput:
    """NaN in an array of the inputs."""

    parameter: str
    """The name of the parameter."""
    leaf: Index
    """Its place in the parameter, if that is a tuple."""
    devices: tuple[int, ...]
    index: Index
    """Of the first NaN."""
    bad: int
    """How many elements are NaN."""
    count: int
    """How many elements there are."""


@frozen
class NanSearch(Described):
    """What `find_nan` found, and how far it looked."""

    finding: Finding | None
    """The first instruction at which numbers go bad."""
    later: tuple[Finding, ...]
    """Other instructions that contributed, in the order in which they ran."""
    discarded: tuple[Finding, ...]
    """Where NaN or infinities appeared that did not reach the result: a select threw them away, or they turned finite
    again (1/∞), or were only compared; one per instruction, the first run of each."""
    nan_inputs: tuple[str, ...]
    """Parameters that held NaN before anything ran."""
    nan_input_elements: tuple[NanInput, ...]
    """Where in them, by array and devices."""
    nan_from_inputs: bool
    """Whether NaN reach the result that no instruction was found to make: those of inputs or constants."""
    made_integers: tuple[str, ...]
    """Converts, by path, that made integers of NaN (XLA makes 0); of each the first run."""
    compared: tuple[str, ...]
    """Comparisons, by path, that took NaN, which is unequal to all numbers and neither smaller nor larger; of each the
    first run. Not those of a value with itself by = or ≠, which test for NaN."""
    nan_constants: tuple[str, ...]
    """Constants that hold NaN."""
    events: int
    """How many instructions were checked."""

    @property
    @told
    def found(self) -> bool:
        """Whether NaN or infinities were found."""
        return self.finding is not None or self.nan_from_inputs

    def __str__(self) -> str:
        if self.finding is not None:
            return f"%{self.finding.instruction} in {self.finding.computation}: {self.finding.reason}"
        if self.nan_from_inputs:
            return f"NaN come from {listing((f'%{name}' for name in self.nan_inputs), 8)}"
        return f"nothing found in {self.events} values"
