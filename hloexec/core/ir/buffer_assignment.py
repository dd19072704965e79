"""XLA's buffer assignment: the allocation and offset of each value, and its live range.

XLA dumps it in parts, of which a file may contain one or several: the allocations with the values in them, the values
with their positions and uses, the live ranges over the flattened schedule, and the memory usage report. A part that is
missing is None. A *value* is what an instruction defines at one index of its shape: the array itself or, at an inner
node of a tuple, the table of pointers. Sizes and offsets are in bytes; times are positions in the instruction sequence,
both ends inclusive.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloexec.core.ir.shape import Shape
from hloexec.core.structs import frozen

Index = tuple[int, ...]


@frozen
class ValueLabel:
    """`<id instruction{index} (phi) @color>`: the name of a value.

    `index` is None if the instruction's shape is not a tuple. A phi represents one of several values, where control
    flow joins. `color` is the memory space that the value has to lie in, 0 the usual one.
    """

    id: int
    """The number that XLA gives it."""
    instruction: str
    index: Index | None
    is_phi: bool
    """Whether it stands for one of several values where control flow joins."""
    color: int | None
    """The memory space that it has to lie in."""

    @property
    def key(self) -> tuple[str, Index]:
        """Instruction and index, which name a value within a module."""
        return self.instruction, self.index or ()


@frozen
class AssignedValue:
    """A value in an allocation, `size` bytes from `offset` on."""

    label: ValueLabel
    """Which value it is."""
    size: int
    """How many bytes it takes."""
    offset: int
    """Where in the allocation it begins."""
    shape: Shape


@frozen
class EntryParameter:
    """The leaf of an entry parameter that an allocation holds; the shape is None where XLA does not know it."""

    number: int
    shape: Shape | None
    index: Index


@frozen(kw_only=True)
class Allocation:
    """A contiguous piece of memory of one color; values that are not alive at once may share its bytes."""

    index: int
    size: int
    """How many bytes it takes."""
    color: int = 0
    """The memory space."""
    page: int | None = None
    """The number that XLA gives since jaxlib 0.12; None where it gives none."""
    parameter: EntryParameter | None = None
    """The entry parameter that it holds."""
    output_shape: Shape | None = None
    """The shape of the result that it holds, as HLO text."""
    is_constant: bool = False
    """Whether it holds a constant."""
    is_thread_local: bool = False
    """Whether each thread has its own."""
    maybe_live_out: bool = False
    """Whether it may hold a part of the result."""
    is_preallocated_temp: bool = False
    """Whether it is for values in between."""
    other_flags: tuple[str, ...] = ()
    """Flags of a newer XLA, verbatim."""
    values: tuple[AssignedValue, ...] = ()
    """The values in it."""

    @property
    def kind(self) -> str:
        """What it is for, in a word or two."""
        if self.parameter is not None:
            return f"parameter {self.parameter.number}"
        if self.is_constant:
            return "constant"
        if self.is_thread_local:
            return "thread-local"
        if self.maybe_live_out:
            return "output"
        return "temporary" if self.is_preallocated_temp else "other"


@frozen
class Position:
    """A place in the program where a value shows: an instruction, and the index in its shape where that is a tuple."""

    instruction: str
    index: Index | None


@frozen
class Use:
    """An operand that reads a value, and where in the operand's shape the value lies if that is a tuple."""

    instruction: str
    operand_number: int
    operand_index: Index | None


@frozen
class UsedValue:
    """A value with all its positions, the defining one first, its uses, and its instruction, verbatim."""

    label: ValueLabel
    positions: tuple[Position, ...]
    uses: tuple[Use, ...]
    instruction_text: str


@frozen
class LiveRange:
    """A value is needed from `start` to `end`, both included; `end` may be one past the last instruction."""

    instruction: str
    index: Index
    start: int
    """The first position in the schedule at which it is needed."""
    end: int
    """The last one."""

    @property
    def key(self) -> tuple[str, Index]:
        return self.instruction, self.index


@frozen
class PeakValue:
    """A value in the list of those that are alive at the peak.

    Older XLA gives neither index nor running sum, and as bytes those of the instruction's whole shape, in which a tuple
    counts with its pointers only.
    """

    instruction: str
    index: Index | None
    bytes: int
    cumulative_bytes: int | None


@frozen
class BreakdownNode:
    """A line of the peak's breakdown by stack trace; `depth` 0 is the entry computation."""

    depth: int
    name: str
    percent: float
    total: int
    current: int
    remaining: int


@frozen
class LiveRanges:
    """`HloLiveRange`: the flattened schedule, and when each value lives.

    `peak_time` is None where XLA could not tell it, because of a shape without bounds.
    """

    end_time: int
    sequence: tuple[str, ...]
    ranges: tuple[LiveRange, ...]
    peak_time: int | None
    peak: tuple[PeakValue, ...] = ()
    breakdown_total: int | None = None
    breakdown: tuple[BreakdownNode, ...] = ()


@frozen
class Slot:
    """The values that begin at one offset of an allocation; the texts are XLA's rounded figures.

    `percent_text` is `-nan` where XLA divides by a size of zero.
    """

    cumulative_text: str
    percent_text: str
    size_text: str
    offset: int
    value_count: int
    shapes: tuple[tuple[int, str], ...]
    """How many values of which shape, as text."""


@frozen
class SlotTable:
    """The slots of one allocation, largest first; XLA leaves out the last `omitted` where they are small."""

    slots: tuple[Slot, ...]
    omitted: int = 0


@frozen
class MemorySpace:
    """What the memory usage report says of one color."""

    name: str
    color: int
    total_bytes: int
    allocations: tuple[SlotTable, ...]


@frozen(kw_only=True)
class BufferAssignment:
    """The parts of a buffer assignment; those that were not dumped are None."""

    allocations: tuple[Allocation, ...] | None = None
    total_bytes: int | None = None
    used_values: tuple[UsedValue, ...] | None = None
    live_ranges: LiveRanges | None = None
    spaces: tuple[MemorySpace, ...] | None = None
    """The memory usage report."""
    marks_unused: bool = False
    """Whether a value without uses says `(none)`, as newer XLA writes, or nothing."""

    @property
    def allocated_bytes(self) -> int | None:
        """The total that XLA states or, where only allocations or memory spaces are given, their sum."""
        if self.total_bytes is not None:
            return self.total_bytes
        if self.allocations is not None:
            return sum(allocation.size for allocation in self.allocations)
        return None if self.spaces is None else sum(space.total_bytes for space in self.spaces)

    @property
    def bytes_by_color(self) -> dict[int, int]:
        """Bytes of the allocations per memory space; empty where neither they nor the report are given."""
        sizes = [(space.color, space.total_bytes) for space in self.spaces or ()]
        if self.allocations is not None:
            sizes = [(allocation.color, allocation.size) for allocation in self.allocations]
        totals: dict[int, int] = {}
        for color, size in sizes:
            totals[color] = totals.get(color, 0) + size
        return dict(sorted(totals.items()))

    def assigned_values(self) -> Iterator[tuple[Allocation, AssignedValue]]:
        """Every value that has a place, with its allocation."""
        for allocation in self.allocations or ():
            for value in allocation.values:
                yield allocation, value
