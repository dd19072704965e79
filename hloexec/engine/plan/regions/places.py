"""The places of a block: the arrays that its calls read and write, and the scratch memory that they share.

A place is an array: rows of an input or output, scratch, the result of a function, or a view of another place. Scratch
is reused once its contents are dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from typing import Any

import attrs

from hloexec.core.dtypes import DType
from hloexec.core.structs import define, frozen
from hloexec.engine.plan.regions.packing import packed
from hloexec.engine.plan.steps import Step


@frozen
class Value:
    """The contents of a place."""

    row: tuple[int, ...]
    dtype: DType

    @property
    def row_bytes(self) -> int:
        return prod(self.row) * self.dtype.itemsize


@define(eq=False)
class Operation:
    """One call within a block."""

    function: Callable[..., Any]
    operands: tuple[int, ...]
    target: int
    has_out: bool
    """Whether the function writes into the target's array, given as its last argument, instead of making one."""
    step: Step
    overwrites: tuple[int, ...] = ()
    """The numbers of operands whose memory the target may take, where it has the same place in all of them."""
    fetch: Callable[[list[Any]], Any] = attrs.field(init=False)
    dead: tuple[int, ...] = ()
    """Made arrays that are not needed any more."""

    def __attrs_post_init__(self) -> None:
        places = (*self.operands, self.target) if self.has_out else self.operands
        getter = itemgetter(*places)
        self.fetch = getter if len(places) > 1 else lambda values: (getter(values),)


class Places:
    """Numbered places."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._owner: dict[int, int] = {}
        """Of places that show the memory of another."""
        self._scratch: set[int] = set()
        self._made: set[int] = set()
        self.buffers: list[int] = []
        """What a row of each buffer of scratch takes."""
        self._spans: list[tuple[int, int]] = []
        """The first and the last operation that uses each buffer."""
        self.in_buffers: list[tuple[int, int, Value]] = []
        """The places in scratch memory, and the buffer of each."""

    def add(self, value: Any) -> int:
        """A place for an input, an output, or a value that is known before the blocks run."""
        self.values.append(value)
        return len(self.values) - 1

    def add_scratch(self, value: Value) -> int:
        """A place in scratch."""
        place = self.add(value)
        self._scratch.add(place)
        return place

    def add_made(self, value: Value) -> int:
        """A place for an array that a function makes."""
        place = self.add(value)
        self._made.add(place)
        return place

    def add_view(self, value: Value, owner: int) -> int:
        """A place that shows the memory of another."""
        place = self.add(value)
        self._owner[place] = owner
        return place

    def is_scratch(self, place: int) -> bool:
        return place in self._scratch

    def is_made(self, place: int) -> bool:
        return place in self._made

    def root(self, place: int) -> int:
        """The place whose memory this one shows."""
        while place in self._owner:
            place = self._owner[place]
        return place

    def may_take(self, operation: Operation, place: int) -> bool:
        """Whether an operation's target may take the memory of one of its operands, which it reads in place."""
        return all(
            operand == place and number in operation.overwrites
            for number, operand in enumerate(operation.operands)
            if self.root(operand) == place
        )

    def shows_scratch(self, place: int) -> bool:
        """Whether a place is a view of scratch, which is the same for all blocks."""
        return place in self._owner and self.root(place) in self._scratch

    def allocate(self, operations: Sequence[Operation]) -> None:
        """Give each place in scratch a buffer, and let each operation know which made arrays die with it."""
        last: dict[int, int] = {}
        for number, operation in enumerate(operations):
            for place in (*operation.operands, operation.target):
                last[self.root(place)] = number
        buffer_of: dict[int, int] = {}
        for number, operation in enumerate(operations):
            early = [
                root
                for root in map(self.root, operation.operands)
                if last[root] == number
                and root in buffer_of
                and self.may_take(operation, root)
                and self.values[root].row == self.values[operation.target].row
                and self.values[root].row_bytes == self.values[operation.target].row_bytes
            ]
            if operation.target in self._scratch:
                if early:
                    buffer = buffer_of[early[0]]
                else:
                    buffer = len(self.buffers)
                    self.buffers.append(self.values[operation.target].row_bytes)
                    self._spans.append((number, number))
                self._spans[buffer] = self._spans[buffer][0], last[operation.target]
                buffer_of[operation.target] = buffer
                self.in_buffers.append((operation.target, buffer, self.values[operation.target]))
            operation.dead = tuple(
                {
                    place
                    for place in (*operation.operands, operation.target)
                    if last[self.root(place)] == number and self.root(place) in self._made
                }
            )

    def packed(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """Where each buffer begins, given what each takes, and where the last one ends."""
        return packed(sizes, self._spans)
