"""Every number that `hloexec diff` was given and did not measure, and how much work a search has done.

Whether results differ follows from the comparison of the results, and from bounds on rounding errors, into which only
`moves`, `draws`, `chain_steps`, `narrow_unit` and `more_roundings` go. The others decide how much is searched for, and
how much alike two values have to be before one counts as the other while the fault is looked for. What crosses a limit
is never guessed about: a finding that would need more is reported as less certain, or as a region.
The work of a search is counted, not timed: the same modules and inputs have the same verdict on a fast machine and on a
slow or busy one. The unit is a run of one instruction on small arrays, which takes some 60 µs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hloexec.core.ir import ArrayShape, Computation, Instruction, flat_shapes
from hloexec.core.structs import frozen
from hloexec.ops.costs import contraction_of


@frozen
class Limits:
    """The limits of a diff; see docs/diff.md for what each step does."""

    # How much is evidence.

    few_numbers: int = 8
    """Fewer numbers than this, in another order, are no evidence that two values are one."""
    few_equal: int = 5
    """Arrays of fewer elements, of small integers or of one number are easily equal by accident."""
    large_integers: float = 2.0**16
    """Integers whose root mean square is smaller are."""
    few_runs: int = 3
    """So are numbers in fewer iterations."""
    few_results: int = 2
    """Having fewer numbers than this of another branch is no evidence that it was taken."""
    fewest_flags: int = 16
    fewest_integers: int = 4
    """A value of fewer preds, or fewer integers, is easily right by accident: no repair is judged by it alone."""
    sample: int = 256
    """So many elements are looked at to see whether a value holds enough different numbers."""

    # What counts as right again once an instruction has been replaced.

    roundings: float = 64.0
    """Up to so many units of roundoff from the expected value, relative to the larger of the two."""
    narrow_roundings: float = 8.0
    """The same of a narrow type, in which 64 would be a quarter of a number. It rounds what f32 has added up, not each
    step."""
    few_roundings: float = 2.0
    """What is that near is right, not merely near."""
    narrow_unit: float = 2.0**-12
    """The unit roundoff from which on a type counts as narrow: f16 has 2⁻¹¹, bf16 2⁻⁸."""
    share_off: float = 0.05
    """Of a value that came right, so many elements may be off: those in which cancellation amplifies roundings."""
    share_left: float = 0.25
    """Of the elements that were off, no more may still be where a value has come right."""
    more_roundings: float = 1.3
    """A chain of roundings has to be so many times longer to count as another one: four are told from three; of more,
    one less is not told."""
    proof: float = 4.0
    """Where rounding, as it was measured, explains the results, something has to be so many times beyond its own bound
    to be to blame all the same: a bound counts the roundings on the way, not what an identity makes of them."""
    many_right: int = 20
    """If so many more values come right behind a suspect, it is to blame, though results do not."""

    # Bounds by perturbation.

    moves: float = 8.0
    """By how many bounds an operand is changed to measure the effect; half an ULP would be lost in rounding."""
    draws: int = 4
    """How often it is changed."""
    known_bounds: int = 1 << 10
    """So many bounds of recorded values are kept."""
    chain_steps: int = 500
    """Chains of more elementwise steps than this are not followed for their roundings. Values from which two others are
    computed are not looked for behind more steps, either; where rounding explains the results, nothing is certain then.
    """

    # Decisions that rounding lets go either way.

    jump: float = 2.0**-10
    """By so much of the larger one, two floats are further apart than by rounding errors that were carried on."""
    tie_runs: int = 4
    """So often `after` is run again with decisions of `before`, if these lead to further ones."""
    tie_tries: int = 64
    """So many pairs of instructions that decide, and that do not match, are compared for it."""
    notes_on_ties: int = 5
    """So many instructions that decide are named."""

    # The search for what corresponds.

    candidates: int = 16
    """So many values of `before` are tried for one of `after`."""
    equal_values: int = 64
    """So many equal values are compared for which of them is meant."""
    chosen_once: int = 8
    """Which of more nodes than this is meant is decided once."""
    steps_ahead: int = 32
    """A value more steps behind all that `after` has is not what comes next there; bounds on its error would take long,
    and allow much. What the values lost that an instruction takes is not looked for behind more steps, either, where
    the results differ."""
    operands_deep: int = 3
    """So many levels of operands are compared to see whether two nodes do the same."""
    runs_compared: int = 8
    """So many runs of an instruction are compared to see whether it is the same one."""
    permutations: int = 24
    """So many orders of dimensions are tried for two values that may be one."""
    other_branches: int = 8
    """The other branches of more conditionals than this are not run."""

    # The search for the instruction.

    runs: int = 500_000
    """Runs of single instructions that it takes at most, if nothing else is asked for: half a minute."""
    tries: int = 20
    """More suspects than this are not tried for one fault, nor more pairs behind which no suspect was proven."""
    fewest_pairs: int = 64
    """So many pairs are looked at even if a replay has left no work for them."""
    known_runs: int = 1 << 14
    """So many runs are kept in memory, and those of two instructions more."""
    patience: int = 60
    """So many different instructions are computed again without one of them coming right, then a replacement is given
    up: what is wrong stays wrong then. Those that repair the faults of `python -m evaluation diff` need 24 at most."""
    patience_in_loops: int = 400
    """The same for their runs on each device; loops may run millions."""
    haste_with_moved: int = 4
    """So many times fewer where elements are only moved otherwise: they lie as they should a few steps behind, or
    never."""
    edits: int = 500
    """So many changes of one instruction are tried."""
    more_edits: int = 100
    """So many more are tried once one has made the value right: others may do so, too."""
    exchanged_operands: int = 4
    """The operands of instructions with more than this are not exchanged."""
    permuted_dimensions: int = 5
    """The orders of more dimensions than this are not tried."""
    rewirings: int = 24
    """So many changes of what only hands values on are tried, each by a run of the module."""
    other_exchanges: int = 48
    """So many changes of collectives are, too."""
    more_iterations: int = 2
    """Loops may go round so many times as often then as they did."""
    reserve: float = 0.15
    """This part of the work is kept for that."""
    rewired_steps: int = 64
    """They are looked for on the ways to the operands of so many instructions that differ, the first ones."""
    movements: int = 48
    """So many ways to move elements otherwise are tried around what takes them by their places."""
    twins: int = 4
    """So many other values with the numbers of a suspect are tried: they may be meant as well."""
    steps_between: int = 1000
    """So many steps are looked at to see whether one of two values is computed from the other."""
    compensating_steps: int = 32
    """So many steps behind a suspect are looked at for one that makes up for it."""
    nudge: float = 2.0**-8
    """By this part a suspect is changed to see whether a later value tells so."""
    missing_steps: int = 12
    """Behind more values than this no step is looked for that is missing, or one too many."""
    rerun_steps: int = 400
    """More steps than this before a value on each device are not computed again under the other module's names."""

    notes_on_precision: int = 5
    """So many values that are not rounded as before are named."""

    cost_of_module: float = 20.0
    """What it costs to make a module of one instruction ready to run, in runs of an instruction."""
    cost_of_search: float = 2.0
    """What it costs to look for a value in the other run that has none of the same numbers, in the same unit."""
    runs_unplanned: int = 4
    """A module that ran its instructions fewer times than this, each in the mean, is run again as it is written."""
    large: int = 1 << 16
    """Where loops may compute values of so many bytes again and again, modules are optimized before they run."""

    # Regions.

    region_steps: int = 40
    """More steps than this on each device are not looked at on either side."""
    region_tries: int = 32
    """So many replacements are tried."""
    region_guesses: int = 8
    """So many values of the frontier are tried as where the wrong value comes from."""
    largest_region: int = 5
    """A region of more instructions than this tells little."""

    steps_to_sums: int = 16
    """So many values, the nearest first, of what a suspect is computed from are looked at as parts of a sum."""
    # Whole arrays beside shards.

    shard_steps: int = 64
    """Steps between values that correspond, on one device."""
    shard_equal: int = 8
    """Of equal values, so many are tried."""
    shard_sources: int = 24
    """Ways to put a value together from others'."""
    shard_levels: int = 4
    """How often parts are put together of parts."""
    shard_failures: int = 3
    """After so many that did not fit, a way is given up."""
    shard_kept: int = 1 << 10
    """The numbers of parts of so many elements are kept in order and sorted."""
    places: int = 256
    """Where a device's part may begin."""
    arrangements: int = 3
    """In how many ways parts are laid side by side."""
    divisions: int = 12
    """In how many ways one dimension is divided."""
    layouts: int = 48
    """In how many ways one shape is."""
    partial_sums: int = 24
    """How many sums over devices are tried for one instruction."""

    # What is written by `--extract`.

    part_steps: int = 12
    """Instructions of `before` in the part, constants not counted."""
    part_near: int = 3
    """So many steps behind a value that both modules have, another one may be that `after` starts from."""
    literal_steps: int = 3
    """So many steps may make a parameter of constants alone."""
    way_steps: int = 12
    """So many steps may lie between what is looked at and a value that both modules have."""


LIMITS = Limits()


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
    """The work of one search, and its time where that is limited, too.

    A search ends after so much work, which is counted, not timed: the same modules and inputs have the same verdict on
    a fast machine and on a slow or busy one. The unit is a run of one instruction on small arrays, which takes some
    60 µs.
    """

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
