"""What kernels require of the integers that operands hold, where sizes bound them: the vocabulary of `requires` rules.

A rule gives these in an order in which what one says of its operand holds for those after it. All are of operands in
row-major order.
"""

from __future__ import annotations

from typing import TypeAlias

from hloexec.core.structs import frozen


@frozen
class Within:
    """Each element lies in [low, high]: lengths, and numbers of blocks."""

    operand: int
    low: int
    high: int

    def __str__(self) -> str:
        return f"each from {self.low} to {self.high}"


@frozen
class RunningSums:
    """None of the first `count` elements after the first one is larger than the one before it by more than `most`."""

    operand: int
    count: int
    most: int

    def __str__(self) -> str:
        return f"running sums of lengths of at most {self.most}"


@frozen
class GroupSizes:
    """No element is negative, and the sum of those along the last dimension is at most `room`."""

    operand: int
    room: int

    def __str__(self) -> str:
        return f"sizes of groups of {self.room} in all"


@frozen
class Starts:
    """Of `count` pieces, which start at the elements of one operand and are as long as another one says, each lies in
    [0, room)."""

    operand: int
    lengths: int
    """The number of the other operand."""
    are_sums: bool
    """Whether that holds the running sums of the lengths, or these."""
    count: int
    room: int
    unit: int = 1
    """What starts are multiples of: one of lengths is so many of them."""
    may_be_empty: bool = True
    """Whether a piece of no length may start anywhere."""

    def __str__(self) -> str:
        return f"starts of pieces of {self.room * self.unit} in all"


Requirement: TypeAlias = Within | RunningSums | GroupSizes | Starts
