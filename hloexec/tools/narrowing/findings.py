"""What a search for narrower types found."""

from __future__ import annotations

import enum

from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.values import Described
from hloexec.tools.narrowing.carrying import Carried


class Standing(enum.Enum):
    """What a search says of an instruction."""

    NARROWED = "narrowed"
    """It is narrower in the module that was found."""
    ALONE = "not even alone"
    """With this instruction narrowed and no other, an output leaves its tolerance."""
    TOGETHER = "not with the others"
    """It may be narrower by itself, but the outputs' tolerance is used up by what is narrowed already."""
    RANGE = "out of range"
    """Its operands or its result do not lie within the finite numbers of the narrow type."""
    SMALL = "too little work"
    """It does less than a hundred-thousandth of the work: to narrow it saves nothing, and might cost accuracy."""
    UNTRIED = "not tried"
    """No trials were left for it, or the run never reached it."""


@frozen
class Deviation:
    """The worst element of some runs: where an output of the narrowed module lies farthest from the original's, in
    units of its tolerance."""

    output: str
    """The place of the output."""
    index: tuple[int, ...]
    inputs: int
    """The number of the inputs, from 0."""
    step: int
    """The step, from 0."""
    device: int
    original: float | int | complex | bool
    """The element in the original module."""
    changed: float | int | complex | bool
    """The element in the narrowed module."""
    error: float
    """Relative, as `narrowing.measuring` defines it."""
    tolerance: float
    """The relative error that an element may have."""

    @property
    def severity(self) -> float:
        """The error in units of the tolerance."""
        return self.error / self.tolerance


@frozen
class InstructionVerdict:
    """An instruction that could be narrowed, and whether it may."""

    computation: str
    instruction: str
    opcode: str
    kind: str
    """`contraction` or `elementwise`."""
    element_type: str
    narrow_type: str | None
    """The type that it has in the narrowed module; None where it keeps its own."""
    standing: Standing
    """Whether it may be narrower, or why not."""
    reason: str
    alone: Deviation | None
    """The worst element with it alone narrowed, where that was measured."""
    runs: int
    """How often it ran on the first inputs."""
    flops: int
    """In all these runs."""
    hlo: str
    op_name: str | None
    source: str | None


@frozen
class OutputDeviation:
    """An output that was held to a tolerance."""

    output: str
    """The place of the output."""
    tolerance: float
    """The relative error that an element may have."""
    worst: Deviation
    """Over the inputs of the search."""
    held_back: Deviation | None
    """Over inputs that the search had not seen; None where there were none."""


@frozen
class Narrowing(Described):
    """A narrowed module, and what was found out about each of its instructions.

    FLOPs and bytes are those of the first inputs' run: two FLOPs per product of a contraction, one per element of an
    elementwise operation and per term of a reduction; bytes are what contractions and elementwise operations on floats
    read and write.
    """

    module: Module
    instructions: tuple[InstructionVerdict, ...]
    """Those that could be narrowed, in the order of the text."""
    outputs: tuple[OutputDeviation, ...]
    """The outputs that were held to a tolerance."""
    carried: Carried | None
    """The outputs that are parameters of the next step."""
    steps: int
    """How often the module runs, what it carries becoming parameters again."""
    flops: int
    """Operations of contractions, elementwise instructions and reductions."""
    flops_by_type: dict[str, int]
    """Of the FLOPs, those in each narrow type."""
    contraction_flops: int
    """Operations of contractions that could be narrowed."""
    contraction_flops_by_type: dict[str, int]
    """Of these, those in each narrow type."""
    byte_count: int
    """Bytes that contractions and elementwise instructions on floats read and write."""
    bytes_by_type: dict[str, int]
    """Of the bytes, those in each narrow type, counted as they were in the wide one."""
    margin: float
    """The share of the tolerances that the search may use."""
    input_count: int
    """How many inputs the search ran on."""
    held_back_count: int
    """How many other inputs the final module was run on."""
    rejections: int
    """How often inputs that were held back went beyond the tolerance, so that the search went back."""
    trials: int
    """How many modules were run."""
    seconds: float

    @property
    def narrowed_share(self) -> float:
        """The share of the FLOPs that is narrowed."""
        return sum(self.flops_by_type.values()) / self.flops if self.flops else 0.0

    @property
    def byte_share(self) -> float:
        """The share of the bytes that is narrowed."""
        return sum(self.bytes_by_type.values()) / self.byte_count if self.byte_count else 0.0

    def __str__(self) -> str:
        count = sum(each.narrow_type is not None for each in self.instructions)
        return (
            f"{self.module.name}: {count} of {len(self.instructions)} instructions narrowed, "
            f"{100 * self.narrowed_share:.0f} % of the FLOPs"
        )
