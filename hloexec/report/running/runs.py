"""Records of `hloexec run`."""

from __future__ import annotations

from hloexec.analysis.numerics.comparison import Comparison
from hloexec.core.structs import frozen
from hloexec.report.json.printed import Leaf


@frozen
class Printed:
    """A value as text."""

    label: str
    """The place of the array."""
    literal: str
    """The value, as a literal of HLO."""


@frozen
class Timing:
    """How long several runs took."""

    iteration_count: int
    """How many runs there were."""
    shortest: float
    """The shortest time in seconds."""
    median: float
    """The median time in seconds."""
    longest: float
    """The longest time in seconds."""


@frozen
class RunResult:
    """What a run gave."""

    instruction_count: int
    """How many instructions there are."""
    computation_count: int
    """How many computations there are."""
    inputs: tuple[Leaf, ...]
    """The arrays of the inputs."""
    result: tuple[Leaf, ...]
    """The arrays of the result."""
    against: str | None
    """What the result was compared with."""
    comparison: Comparison | None
    printed: tuple[Printed, ...]
    """What --print asks for."""
    seconds: float
    """How long the first run took."""
    warm_seconds: Timing | None
    """How long the runs of --iterations took."""
    peak_bytes: int
    """The most that a run holds at once, beyond its inputs."""
    device_peak_bytes: int
    """The most that one device holds at once, beyond its inputs."""
