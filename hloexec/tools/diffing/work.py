"""How much a search may do.

The search of a diff ends after so much work, which is counted, not timed: the same modules and inputs have the same
verdict on a fast machine and on a slow or busy one. The unit is a run of one instruction on small arrays, which takes
some 60 µs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hloexec.core.ir import ArrayShape, Computation, Instruction, flat_shapes
from hloexec.ops.costs import contraction_of

_ELEMENTS = 1 << 14
"""So many elements are read or written in the time of a run on small arrays."""
BYTES = 4 * _ELEMENTS
"""They have so many bytes."""
_BEST = "this is the best that it had found"
_FLOPS = 1 << 19
"""A contraction does so many operations in it."""


def cost_of(instruction: Instruction, computation: Computation) -> float:
    """What a run of an instruction costs, by the elements that it reads and writes and, of a contraction, by FLOPs."""
    operands = [operand.shape for operand in computation.operands_of(instruction)]
    leaves = flat_shapes(*operands, instruction.shape)
    elements = sum(leaf.element_count for leaf in leaves if isinstance(leaf, ArrayShape))
    contraction = contraction_of(instruction, operands)
    return 1 + elements / _ELEMENTS + (0 if contraction is None else contraction.flops / _FLOPS)


class Work:
    """The work of one search, and its time where that is limited, too."""

    def __init__(self, runs: int | None = None, seconds: float | None = None, tick: Callable[[], None] | None = None):
        """`tick` is called whenever is asked whether it is over."""
        self._runs = runs
        self._seconds = seconds
        self._tick = tick
        self._start = 0.0
        self._done = 0.0
        self.kept = 0.0
        """The part of either that is kept for later."""
        self.end = ""
        """Why it was over; empty where it never was."""

    def begin(self) -> None:
        """Start the clock, and count from zero."""
        self._start = 0.0 if self._seconds is None else time.monotonic()
        self._done = 0.0

    def add(self, cost: float) -> None:
        self._done += cost

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Within, work is not counted: it is done to save other work, which is."""
        done = self._done
        try:
            yield
        finally:
            self._done = done

    def is_over(self) -> bool:
        """Whether no more is to be done; to ask is to take a step, which counts."""
        if self._tick is not None:
            self._tick()
        self._done += 1
        share = 1 - self.kept
        if self._runs is not None and self._done > share * self._runs:
            runs = f"{self._runs:,}".replace(",", " ")
            self.end = f"the search ended after the work of {runs} runs of an instruction; {_BEST}"
        elif self._seconds is not None and time.monotonic() >= self._start + share * self._seconds:
            self.end = f"the search ended after {self._seconds:g} s, its budget; {_BEST}"
        else:
            return False
        return True
