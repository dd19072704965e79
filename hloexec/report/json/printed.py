"""What records that are printed hold beside the results of tools: what was run, and what was written."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from hloexec.analysis.buffers import MemoryComparison
from hloexec.analysis.buffers.running import RunEstimate
from hloexec.analysis.numerics.comparison import Comparison
from hloexec.analysis.numerics.statistics import LeafStatistics
from hloexec.core.dtypes import ElementType
from hloexec.core.structs import frozen
from hloexec.ops.registry import Opcode, Role
from hloexec.report.judging.pairs import SavedPair
from hloexec.tools.golden import GoldenCheck
from hloexec.tools.stepping import Stop
from hloexec.tools.summary import ComputationSummary


@frozen
class Run:
    """What every record says of a run."""

    file: str
    module: str
    device_count: int
    """How many devices the module runs on."""
    seed: int
    """Of random inputs, and of the random numbers that the module draws."""
    numerics: str
    """The numerics policy."""


@frozen
class File:
    """What was given."""

    file: str


@frozen
class Folder:
    """Where it was written."""

    folder: str | None


@frozen
class Output:
    """Where it was written."""

    output: str | None
    """The file that was written; null where none was."""


@frozen
class Leaf(LeafStatistics):
    """An array of a value."""

    label: str = ""
    """The place or the name, with the devices where they do not all hold the same."""


def leaves_of(rows: Iterable[tuple[str, LeafStatistics]]) -> tuple[Leaf, ...]:
    """Statistics of leaves, with their labels."""
    return tuple(Leaf(**attrs.asdict(leaf, recurse=False), label=label) for label, leaf in rows)


@frozen
class Expected:
    """What was compared with."""

    expected_file: str
    """The file EXPECTED."""


@frozen
class Compared(Expected):
    """What was compared."""

    actual_file: str
    """The file ACTUAL."""
    module: str | None
    numerics: str
    """The numerics policy."""


@frozen
class Sides:
    """What is compared, and how it is run."""

    before_file: str
    """The file or folder BEFORE."""
    after_file: str | None
    """The file or folder AFTER."""
    seed: int
    """Of random inputs, and of the random numbers that the module draws."""
    numerics_before: str
    """The numerics policy of BEFORE."""
    numerics_after: str
    """The numerics policy of AFTER."""


@frozen
class Pair:
    """What a diff was asked to write."""

    extraction: SavedPair | None
    """What --extract has written of the first finding."""


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


@frozen
class Files:
    """What was drawn, and how."""

    files: tuple[str, ...]
    """The files that were written."""
    dot: str | None
    """The graph in Graphviz's language; None where files were written."""


@frozen
class Recorded:
    """A golden that was recorded."""

    file: str
    folder: str
    module: str
    module_hash: str
    """SHA-256 of the module's text."""
    seed: int
    """Of random inputs, and of the random numbers that the module draws."""
    numerics: str
    disagreement: str | None
    """How the given result differs from the module's own; None where it does not."""


@frozen
class Checks:
    """What came of goldens."""

    checks: tuple[GoldenCheck, ...]
    """What came of each golden."""
    is_complete: bool
    """Whether all were checked."""
    advice: tuple[str, ...]
    """If another module fails: what is to blame, and the command that shows it."""


@frozen
class Computations:
    """The computations of a module."""

    called: tuple[ComputationSummary, ...] | None
    """The computations; None without --computations."""


@frozen
class Arrays:
    """The arrays of a file."""

    file: str
    arrays: tuple[Leaf, ...]
    """The arrays."""


@frozen
class Assignment:
    """A buffer assignment of XLA's."""

    file: str
    allocation_count: int | None
    """How many allocations there are."""
    value_count: int | None
    """How many values there are."""
    allocated_bytes: int | None
    """What XLA allocates."""


@frozen
class Stepping:
    """A run that was stopped."""

    stops: tuple[Stop, ...]
    """Where the run stopped, in order."""
    has_ended: bool
    """Whether the run came to its end."""
    has_failed: bool
    """Whether it has failed; if neither, it was left where it stopped."""
    printed_lines: tuple[str, ...]
    """The commands, each behind a prompt, and what they printed."""


@frozen
class Planned:
    """How a module would run."""

    file: str
    module: str
    numerics: str
    computation: str
    peak_bytes: int
    """The most that a run holds at once, beyond its inputs."""
    functions: tuple[str, ...]
    """The plan, as functions of Python."""


@frozen
class Memory:
    """What is known of a module's memory beside its values."""

    estimate: RunEstimate | None
    """What hloexec's own run allocates; None where it cannot run."""
    assignment: MemoryComparison | None
    """XLA's buffer assignment, compared; None where none was given."""


@frozen
class OpcodeFacts:
    """What is known of an opcode."""

    name: str
    minimum_operands: int
    """The fewest operands it takes."""
    maximum_operands: int | None
    """The most operands it takes; None for any number."""
    role: Role
    """What it is to a plan."""
    is_elementwise: bool
    """Whether it computes each element by itself."""
    is_supported: bool
    """Whether it runs on one device."""
    documentation: str
    """What it computes."""
    element_types: tuple[ElementType, ...] | None
    """The element types that it takes; None for all, and without --types."""

    @classmethod
    def of(cls, entry: Opcode, types: tuple[ElementType, ...] | None) -> OpcodeFacts:
        """What an entry says."""
        names = (field.name for field in attrs.fields(cls) if field.name != "element_types")
        return cls(**{name: getattr(entry, name) for name in names}, element_types=types)


@frozen
class Opcodes:
    """The opcodes."""

    opcodes: tuple[OpcodeFacts, ...]
    """The opcodes there are."""


@frozen
class ErrorDetails:
    """What is wrong, and where."""

    kind: str
    """Of which kind it is."""
    message: str
    """The same in words."""
    file: str | None
    """The file that it is in."""
    line: int | None
    """The line of the file, from 1."""
    column: int | None
    """The column of the line, from 1."""


@frozen
class Error:
    """What a command prints that has failed."""

    error: ErrorDetails
    """What is wrong."""
