"""Comparison of our live ranges with those of XLA's buffer assignment, value by value.

Values are matched by instruction and tuple index. If both schedules are equal, the live ranges must be equal, too.

XLA since jaxlib 0.12 writes an element of a tuple as an operand (`p#1`), without the get-tuple-element that its
schedule has. The text does not say when that runs: instructions that one side alone has and that define no value are
left out of both schedules. The peak is not compared then, nor the end of a live range at such an instruction.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property
from itertools import accumulate, compress, pairwise, zip_longest
from typing import TypeAlias

import attrs

from hloexec.analysis.buffers.usage import LiveValue, MemoryUsage, Peak
from hloexec.core.arguments import require_path, wrong
from hloexec.core.ir import Shape, TupleShape
from hloexec.core.ir.buffer_assignment import Allocation, BufferAssignment, LiveRange
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import Described
from hloexec.errors import InputError
from hloexec.language.interop.content import decoded, unpacked
from hloexec.language.loading import file_contents
from hloexec.language.text.dumps.buffer_assignment import merge_buffer_assignments, parse_buffer_assignment
from hloexec.language.text.dumps.lines import index_text


def load_buffer_assignment(*paths: str | os.PathLike[str]) -> BufferAssignment:
    """Read a buffer assignment from one file that contains all of it, or from the several files that newer XLA writes.

    These are `…-buffer-assignment.txt`, `…-buffer-assignment-values.txt`, `…-live-range.txt` and
    `…-memory-usage-report.txt`; any subset will do. Files may be gzipped; `-` reads standard input. Raises InputError
    if a file cannot be read or the files do not belong together, and ParseError if one is not a buffer assignment.
    """
    if not paths:
        raise InputError("load_buffer_assignment needs the path of a file, but none was given")
    for path in paths:
        require_path("path", path)
    return merge_buffer_assignments([_read(path) for path in paths])


def _read(path: str | os.PathLike[str]) -> BufferAssignment:
    packed, filename = file_contents(path, "hloexec.parse_buffer_assignment")
    data = unpacked(packed, filename)
    if not data.strip():
        raise InputError(f"{filename} is empty; expected a buffer assignment")
    return parse_buffer_assignment(decoded(data, filename), filename=filename)


_Key: TypeAlias = tuple[str, tuple[int, ...]]
"""`LiveValue.key`."""
_POINTER_BYTES = 8


@frozen
class Difference:
    """One thing that XLA says and the module does not, or the other way round; None where one says nothing."""

    what: str
    """What differs."""
    label: str
    """Of which value."""
    xla: str | None
    """What XLA says."""
    ours: str | None
    """What hloexec says."""


@frozen
class AllocationUse:
    """An allocation, and how many of its bytes hold something alive at once, by XLA's places and our live ranges.

    `most` is 0 bytes where none of its values is in the schedule: those of reducers and comparators are not.
    """

    allocation: Allocation
    """What XLA sets aside."""
    most: Peak
    """The most that is in use at once."""


@frozen(slots=False)
class MemoryComparison(Described):
    """The result of `compare_memory`.

    `schedule_differs_at` is the first position at which the schedules differ, or None if they are equal or XLA's is not
    given; positions do not count elements of tuples that one side alone names. XLA states `range_count` live ranges, of
    which `range_agreements` equal ours (where the end is not known, their starts do), and `size_count` sizes of values
    that we know. `differences` lists everything that differs; `padded` lists values for which XLA allocates more bytes
    than their shape needs.
    """

    usage: MemoryUsage = attrs.field(metadata=UNTOLD)
    assignment: BufferAssignment = attrs.field(metadata=UNTOLD)
    schedule_differs_at: int | None
    """The first position where the schedules differ."""
    range_count: int
    """How many live ranges XLA gives."""
    range_agreements: int
    """How many of them are equal to ours; of those whose end is not known, the starts."""
    size_count: int
    """How many sizes were compared."""
    differences: tuple[Difference, ...]
    """What differs."""
    padded: tuple[Difference, ...]
    """Values for which XLA sets aside more than their shape takes."""
    allocations: tuple[AllocationUse, ...]
    """XLA's allocations."""
    occupied: Peak
    """How many bytes of all allocations hold something alive at once; where a result takes the place of an operand that
    dies with it, its bytes count once."""

    def __str__(self) -> str:
        verdict = "agrees" if self.agrees else f"{len(self.differences)} differences"
        return f"{self.usage.module_name}: {verdict}, {self.range_agreements} of {self.range_count} live ranges alike"

    @property
    @told
    def agrees(self) -> bool:
        """Whether nothing differs but padding."""
        return self.schedule_differs_at is None and not self.differences

    @cached_property
    def differing(self) -> Counter[str]:
        """How many differences there are of each kind."""
        return Counter(difference.what for difference in self.differences)

    @property
    @told
    def allocated_bytes(self) -> int | None:
        """What XLA allocates."""
        return self.assignment.allocated_bytes

    @property
    @told
    def allocated_bytes_by_color(self) -> dict[int, int]:
        """What XLA allocates in each memory space."""
        return self.assignment.bytes_by_color

    @property
    @told
    def peak_time(self) -> int | None:
        """Where XLA has its peak."""
        return None if self.assignment.live_ranges is None else self.assignment.live_ranges.peak_time

    @property
    @told
    def listed_ranges(self) -> tuple[LiveRange, ...]:
        """When values live, as XLA says."""
        return () if self.assignment.live_ranges is None else tuple(self.assignment.live_ranges.ranges)

    @property
    @told
    def listed_peak_bytes(self) -> int | None:
        """The sum of what XLA lists as alive at its peak."""
        live = self.assignment.live_ranges
        return None if live is None or live.peak_time is None else sum(entry.bytes for entry in live.peak)


def compare_memory(usage: MemoryUsage, assignment: BufferAssignment) -> MemoryComparison:
    """Compare a module's memory usage with XLA's buffer assignment for it.

    Raises InputError if the assignment belongs to another module: none, or less than half, of the instructions that it
    names exist in this one.
    """
    if not isinstance(usage, MemoryUsage):
        raise wrong("usage", "what hloexec.memory_usage(module) gives", usage)
    if not isinstance(assignment, BufferAssignment):
        raise wrong("assignment", "what hloexec.load_buffer_assignment(path) gives", assignment)
    _require_same_module(usage, assignment)
    ours = {value.key: value for value in usage.values}
    live = assignment.live_ranges
    differences: list[Difference] = []
    differs_at = None
    agreements = 0
    if live is not None:
        own = _Schedule.of(
            [name for _, name in usage.sequence], live.sequence, {value.instruction for value in usage.values}
        )
        other = _Schedule.of(live.sequence, own.names, {entry.key[0] for entry in live.ranges})
        pairs = zip_longest(own.compared, other.compared)
        differs_at = next((position for position, (one, two) in enumerate(pairs) if one != two), None)
        theirs = {entry.key: (entry.start, entry.end) for entry in live.ranges}
        differences += _range_differences(theirs, other, ours, own)
        agreements = len(theirs) - sum(difference.xla is not None for difference in differences)
        is_known = all(own.is_compared) and all(other.is_compared)
        if differs_at is None and is_known and live.peak_time is not None and live.peak_time != _peak_moment(usage):
            differences.append(Difference("peak instruction", "", str(live.peak_time), str(_peak_moment(usage))))
    uses, occupied = _occupancy(usage, assignment, ours)
    padded: list[Difference] = []
    size_count = 0
    for _, assigned in assignment.assigned_values():
        value = ours.get(assigned.label.key)
        if value is None:
            continue
        size_count += 1
        if assigned.size != value.byte_size:
            difference = Difference("size", value.label, str(assigned.size), str(value.byte_size))
            (padded if assigned.size > value.byte_size else differences).append(difference)
        if assigned.label.color is not None and assigned.label.color != value.color:
            differences.append(Difference("memory space", value.label, str(assigned.label.color), str(value.color)))
    return MemoryComparison(
        usage=usage,
        assignment=assignment,
        schedule_differs_at=differs_at,
        range_count=0 if live is None else len(live.ranges),
        range_agreements=agreements,
        size_count=size_count,
        differences=tuple(differences),
        padded=tuple(padded),
        allocations=uses,
        occupied=occupied,
    )


def _require_same_module(usage: MemoryUsage, assignment: BufferAssignment) -> None:
    sequence_names = {name for _, name in usage.sequence}
    live = assignment.live_ranges
    named = set(live.sequence) if live is not None else set()
    named |= {
        value.label.instruction
        for allocation, value in assignment.assigned_values()
        if not allocation.is_thread_local and not allocation.is_constant
    }
    missing = sorted(named - sequence_names)
    if named and 2 * len(missing) > len(named):
        raise InputError(
            f"the buffer assignment is of another module: {len(missing)} of the {len(named)} instructions it names, "
            f"among them {missing[0]}, are not in the schedule of {usage.module_name}"
        )


@frozen
class _Schedule:
    """The names of instructions in order, and which of them are compared."""

    names: Sequence[str]
    is_compared: Sequence[bool]
    numbers: Sequence[int]
    """By position, how many of those before it are compared."""

    @classmethod
    def of(cls, names: Sequence[str], others: Sequence[str], defining: Set[str]) -> _Schedule:
        other_names = {*others, *defining}
        is_compared = [name in other_names for name in names]
        return cls(names, is_compared, list(accumulate(is_compared, initial=0)))

    @property
    def compared(self) -> Iterable[str]:
        return compress(self.names, self.is_compared)

    def number(self, position: int) -> int:
        """Where a position is among those that are compared; what lies beyond the end stays there."""
        return self.numbers[position] if position < len(self.numbers) else position

    def span(self, start: int, end: int) -> tuple[int, int | None]:
        """A live range among those that are compared, without its end where that is none of them."""
        is_known = end >= len(self.names) or self.is_compared[end]
        return self.number(start), self.number(end) if is_known else None


def _range_differences(
    theirs: Mapping[_Key, tuple[int, int]], other: _Schedule, ours: Mapping[_Key, LiveValue], own: _Schedule
) -> Iterable[Difference]:
    for key in dict.fromkeys([*theirs, *ours]):
        value = ours.get(key)
        span = other.span(*theirs[key]) if key in theirs else None
        own_span = None if value is None else own.span(value.start, value.end)
        if span is not None and own_span is not None and None in (span[1], own_span[1]):
            span, own_span = (span[0], None), (own_span[0], None)
        if span != own_span:
            label = value.label if value is not None else f"{key[0]}{index_text(key[1])}"
            yield Difference("live range", label, _written(span), _written(own_span))


def _written(span: tuple[int, int | None] | None) -> str | None:
    return None if span is None else f"{span[0]}-{'?' if span[1] is None else span[1]}"


def _occupancy(
    usage: MemoryUsage, assignment: BufferAssignment, ours: Mapping[_Key, LiveValue]
) -> tuple[tuple[AllocationUse, ...], Peak]:
    """How full each allocation gets, and all of them together."""
    together = [0] * (len(usage.sequence) + 1)
    uses = []
    for allocation in assignment.allocations or ():
        placed = [
            (ours[value.label.key], value.offset, value.offset + value.size)
            for value in allocation.values
            if value.label.key in ours
        ]
        most = Peak(0, 0)
        for (time, level), (following, _) in pairwise([*_levels(placed), (len(together), 0)]):
            if level > most.bytes:
                most = Peak(level, time)
            for position in range(time, following):
                together[position] += level
        uses.append(AllocationUse(allocation, most))
    highest = max(together)
    return tuple(uses), Peak(highest, together.index(highest))


def _levels(placed: Sequence[tuple[LiveValue, int, int]]) -> list[tuple[int, int]]:
    """Times at which the bytes in use change, and how many are then; values lie from one offset to another."""
    times = sorted({value.start for value, _, _ in placed} | {value.end + 1 for value, _, _ in placed})
    levels = []
    for time in times:
        level = reached = 0
        for begin, end in sorted((begin, end) for value, begin, end in placed if value.start <= time <= value.end):
            level += max(0, end - max(begin, reached))
            reached = max(reached, end)
        levels.append((time, level))
    return levels


def _peak_moment(usage: MemoryUsage) -> int:
    """Where XLA sees the peak.

    It adds up values, shared or not, each with the bytes of its instruction's whole shape, without padding, in which a
    tuple counts as its pointers; and where a value begins, those that ended just before still count. Source: XLA,
    HloLiveRange::ComputePeakMemoryMoment.
    """
    begins = [0] * (len(usage.sequence) + 2)
    ends = [0] * (len(usage.sequence) + 2)
    for value in usage.values:
        weight = _unpadded(value.instruction_shape)
        begins[value.start] += weight
        ends[value.end + 1] += weight
    live = most = moment = 0
    for time, (begun, ended) in enumerate(zip(begins, ends, strict=True)):
        live += begun
        if live > most:
            most, moment = live, time
        live -= ended
    return moment


def _unpadded(shape: Shape) -> int:
    if isinstance(shape, TupleShape):
        return _POINTER_BYTES * len(shape.elements)
    array = shape.array_shape
    if not array.is_array:
        return 0
    bits = (array.layout.element_size_in_bits if array.layout else 0) or max(8, array.element_type.bits)
    return -(-array.element_count * bits // 8)
