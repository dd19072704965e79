"""How many runs in f64 cost about as much as the run with shadows that they follow.

Both are estimated from what that run has done, never measured: the same module on the same inputs gets as many runs on
any machine. The factors are nanoseconds on one core.
"""

from __future__ import annotations

import attrs

from hloexec.core.ir import Computation, Instruction
from hloexec.core.structs import define
from hloexec.ops.costs import flops_of

_LEAST = 300e6
"""So much may runs take in any case."""


@define
class Work:
    """What a run has done."""

    events: int = 0
    """Instructions that have run one by one."""
    loop_events: int = 0
    """Those of iterations of loops that were computed together."""
    numbers: int = 0
    """Elements of results."""
    flops: int = 0
    """Of contractions, and terms of sums."""
    _known: dict[tuple[str, str], int] = attrs.field(factory=dict, init=False)
    """The FLOPs of one run of each instruction."""

    def note(self, computation: Computation, instruction: Instruction, numbers: int, times: int = 1) -> None:
        """Take some runs of an instruction, with so many numbers each, into account."""
        key = computation.name, instruction.name
        flops = self._known.get(key)
        if flops is None:
            flops = self._known[key] = flops_of(computation, instruction)
        self.numbers += times * numbers
        self.flops += times * flops


def affordable_runs(work: Work, places: int) -> int:
    """How many runs cost no more than the run with shadows, which has done this work at so many places."""
    shadowing = 300e3 * places + 30e3 * work.events + 1e3 * work.loop_events + 6.0 * work.numbers + 0.2 * work.flops
    planning = 200e3 * places
    running = 300e3 + 4e3 * work.events + 0.9e3 * work.loop_events + 0.7 * work.numbers + 0.3 * work.flops
    return int(max(0.0, max(shadowing, _LEAST) - planning) // running)
