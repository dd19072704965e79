"""What is known of the values of all instructions, beside a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from hloexec.core.structs import frozen

if TYPE_CHECKING:
    from hloexec.tools.watching.sampling import Sample

Key: TypeAlias = tuple[str, str]
"""The names of a computation and an instruction."""


@frozen
class Column:
    """A figure of each instruction."""

    label: str
    title: str
    """What it is, in a sentence."""
    is_number: bool = True


@frozen
class Ranked:
    """An instruction, and why it is singled out."""

    key: Key
    why: str
    is_bad: bool = False
    """Whether the verdict names it as the culprit."""


@frozen
class Seen:
    """What is drawn of an instruction's worst run, or of one that is nearly as bad."""

    sample: Sample
    name: str
    """Path and instruction of that run."""
    shape: str
    is_error: bool
    """Whether errors in units in the last place are drawn, or else absolute values."""
    score: float


@frozen(eq=False)
class Watched:
    """What is known of the values of all instructions."""

    columns: tuple[Column, ...] = ()
    figures: Mapping[Key, Sequence[Any]] = attrs.field(factory=dict)
    seen: Mapping[Key, Seen] = attrs.field(factory=dict)
    title: str = ""
    """Of the plot along the data flow; none where this is empty."""
    label: str = ""
    along: Mapping[Key, tuple[int, float]] = attrs.field(factory=dict)
    """When each instruction ran first, and what is plotted of it."""
    lost: str = "NaN or infinite elements"
    """What is said of instructions of which it is infinite."""
    note: str = ""
    ranking: tuple[Ranked, ...] = ()
    """Where the result itself singles out none."""
