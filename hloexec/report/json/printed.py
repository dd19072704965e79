"""What records that are printed hold beside the results of tools: what was run, and what was written."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from hloexec.analysis.numerics.leaves import LeafStatistics
from hloexec.core.structs import frozen


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
class Arrays:
    """The arrays of a file."""

    file: str
    arrays: tuple[Leaf, ...]
    """The arrays."""


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
