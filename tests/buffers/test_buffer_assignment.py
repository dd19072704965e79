"""Dumps of buffer assignments are read to the last byte, and what is wrong with one is said at its place."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloexec.core.ir.buffer_assignment import BufferAssignment, Position, Use
from hloexec.errors import HloWarning, InputError, ParseError
from hloexec.language.text.dumps.buffer_assignment import (
    format_buffer_assignment,
    merge_buffer_assignments,
    parse_buffer_assignment,
)
from tests.buffers.dumps import seed_dump, xla_dumps
from tests.drawing import examples

WHOLE = """BufferAssignment:
allocation 0: size 64, parameter 0, shape |f32[16]| at ShapeIndex {}, maybe-live-out:
 value: <3 x @0> (size=64,offset=0): f32[16]{0}
allocation 1: size 24, color 2, preallocated-temp:
 value: <4 pair{} @2> (size=16,offset=0): (f32[1]{0}, f32[1]{0:S(2)})
 value: <5 pair{1} (phi) @2> (size=4,offset=16): f32[1]{0:S(2)}

Total bytes used: 88 (88B)

Used values:
<3 x @0>
 positions:
  x
 uses:
  pair, operand 0
 from instruction: %x = f32[16]{0} parameter(0)
<4 pair{} @2>
 positions:
  pair {}
  t {1}
 uses:
  g, operand 0 {}
 from instruction: %pair = (f32[1]{0}, f32[1]{0:S(2)}) fusion(%x), kind=kLoop, calls=%f
<5 pair{1} (phi) @2>
 positions:
  pair {1}
 uses:
 from instruction: %pair = (f32[1]{0}, f32[1]{0:S(2)}) fusion(%x), kind=kLoop, calls=%f


HloLiveRange (max 2):
  InstructionSequence:
    0:x
    1:pair
  BufferLiveRange:
    x{}:0-2
    pair{}:1-1
    pair{1}:1-2
  Live ranges at 1 (peak):
    x: 64 bytes
    pair: 16 bytes
"""


def read(text: str) -> BufferAssignment:
    return parse_buffer_assignment(text)


@pytest.mark.slow
def test_every_byte_of_what_xla_dumps_is_read() -> None:
    count = 0
    for dump in xla_dumps():
        for part in dump.parts:
            text = part.read_text(encoding="utf-8")
            assert format_buffer_assignment(read(text)) == text, part
            count += 1
    assert count > 80


def test_every_byte_of_the_tpu_dump_is_read() -> None:
    (path,) = seed_dump().parts
    text = path.read_text(encoding="utf-8")
    assert format_buffer_assignment(read(text)) == text


def test_the_tpu_dump_says_what_it_says() -> None:
    assignment = seed_dump().assignment()
    allocations, live = assignment.allocations, assignment.live_ranges
    assert allocations is not None and live is not None and assignment.used_values is not None
    assert [allocation.kind for allocation in allocations[:3]] == ["output", "output", "parameter 2"]
    assert [allocation.color for allocation in allocations] == [0] * 7 + [1, 2, 4]
    assert sum(len(allocation.values) for allocation in allocations) == len(assignment.used_values) == 83
    assert len(live.ranges) == 83 and live.end_time == len(live.sequence) == 80 and live.peak_time == 78
    assert assignment.total_bytes == 2_885_767_252


def test_the_files_of_one_dump_become_one_assignment_whose_totals_agree() -> None:
    for dump in xla_dumps():
        assignment = dump.assignment()
        assert assignment.allocations is not None and assignment.spaces is not None
        assert assignment.total_bytes == sum(allocation.size for allocation in assignment.allocations)
        for space in assignment.spaces:
            held = [allocation for allocation in assignment.allocations if allocation.color == space.color]
            assert len(space.allocations) == len(held)
            if not any(table.omitted for table in space.allocations):
                counted = sum(slot.value_count for table in space.allocations for slot in table.slots)
                assert counted == sum(len(allocation.values) for allocation in held)


def test_the_parts_of_a_value_are_told_apart() -> None:
    assignment = read(WHOLE)
    assert format_buffer_assignment(assignment) == WHOLE
    assert assignment.allocations is not None and assignment.used_values is not None
    table, element = assignment.allocations[1].values
    assert (table.label.index, table.label.is_phi) == ((), False)
    assert (element.label.index, element.label.is_phi, element.label.color) == ((1,), True, 2)
    assert (element.offset, element.size, str(element.shape)) == (16, 4, "f32[1]")
    assert assignment.used_values[1].positions == (Position("pair", ()), Position("t", (1,)))
    assert assignment.used_values[1].uses == (Use("g", 0, ()),)


def test_lines_may_end_as_on_windows() -> None:
    assert read(WHOLE.replace("\n", "\r\n")) == read(WHOLE)


def test_allocations_have_pages_since_jaxlib_0_12() -> None:
    text = "BufferAssignment:\nallocation 0: size 4, page 3, maybe-live-out:\nallocation 1: size 4, constant:\n"
    assignment = read(text)
    assert assignment.allocations is not None
    assert [(entry.page, entry.other_flags) for entry in assignment.allocations] == [(3, ()), (None, ())]
    assert format_buffer_assignment(assignment) == text
    with pytest.raises(ParseError, match="a second page"):
        read(text.replace("page 3", "page 3, page 4"))


def test_flags_of_a_newer_xla_are_kept_and_warned_about() -> None:
    text = WHOLE.replace("preallocated-temp", "preallocated-temp, pinned")
    with pytest.warns(HloWarning, match="the flag 'pinned'"):
        assignment = read(text)
    assert format_buffer_assignment(assignment) == text


@pytest.mark.parametrize(
    ("was", "becomes", "place", "message"),
    [
        (WHOLE, "", (1, 1), "expected a buffer assignment, which begins with"),
        (WHOLE, "HloModule m", (1, 1), "found 'HloModule m'"),
        ("size 64", "size 99999999999999999999", (2, 20), "the size 99999999999999999999 does not fit 63 bits"),
        ("size 64", "size -1", (2, 1), "expected the end of the buffer assignment"),
        ("f32[16]{0}\nalloc", "f99[16]{0}\nalloc", (3, 38), "f99"),
        ("f32[16]{0}\nalloc", "f32[16]{0}}\nalloc", (3, 48), "expected the end of the shape"),
        ("|f32[16]|", "|f32[16,|", (2, 51), "expected"),
        (", maybe-live-out", ", +", (2, 69), "expected a flag of the allocation"),
        (" (size=16,", " (size=,", (5, 2), "expected ' value: <…> (size=…,offset=…): shape'"),
        ("color 2, pre", "color 2, color 2, pre", (4, 33), "the allocation has a second color"),
        ("used: 88 (88B)", "used: 89 (89B)", (8, 19), "the allocations add up to 88 bytes, the total says 89"),
        ("(88B)", "(1.0KiB)", (8, 23), "88 bytes are 88B, not 1.0KiB"),
        (" positions:\n  x\n", "", (12, 2), "expected ' positions:', found 'uses:'"),
        ("  pair, operand 0", "  pair, operand x", (15, 3), "expected a use, or ' from instruction: …'"),
        ("(max 2)", "(max 3)", (31, 19), "expected 3 instructions in the sequence, found 2"),
        ("    1:pair", "    2:pair", (34, 5), "expected instruction 1 next, found 2"),
        ("pair{}:1-1", "pair{}:1-0", (37, 12), "expected start ≤ end ≤ 2, found 1-0"),
        ("pair{1}:1-2", "pair{1}:1-3", (38, 13), "expected start ≤ end ≤ 2, found 1-3"),
        ("    pair: 16 bytes", "    pair: many bytes", (41, 5), "expected the end of the buffer assignment"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(was: str, becomes: str, place: tuple[int, int], message: str) -> None:
    text = WHOLE.replace(was, becomes, 1)
    assert text != WHOLE
    with pytest.raises(ParseError, match=re.escape(message)) as caught:
        read(text)
    assert (caught.value.line, caught.value.column) == place


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hloexec.errors.HloWarning")
@settings(max_examples=examples(300), deadline=None)
@given(start=st.integers(0, len(WHOLE)), length=st.integers(1, 60), put=st.text(max_size=4))
def test_a_damaged_text_is_read_whole_or_refused_with_a_place(start: int, length: int, put: str) -> None:
    text = WHOLE[:start] + put + WHOLE[start + length :]
    try:
        assignment = read(text)
    except ParseError as error:
        assert 1 <= error.line <= text.count("\n") + 1
        return
    printed = format_buffer_assignment(assignment)
    assert read(printed) == assignment
    assert _filled_lines(printed) == _filled_lines(text)


def _filled_lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.split("\n"))


def test_files_that_do_not_belong_together_are_refused() -> None:
    parts = [read("BufferAssignment:\nallocation 0: size 4, constant:\n"), read("Total bytes used: 8 (8B)\n")]
    with pytest.raises(InputError, match="different buffer assignments: their totals are 4 and 8 bytes"):
        merge_buffer_assignments(parts)
    with pytest.raises(InputError, match="two of the files hold the allocations"):
        merge_buffer_assignments([parts[0], parts[0]])


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("(8B)", "(9B)", "8 bytes are 8B, not 9B"),
        ("  ---", "  ==-", "expected a line of dashes"),
        ("2; f32", "3; f32", "the shapes are of 2 values, not 3"),
        ("f32[], s32[]", "f32[], 3*s32[]", "expected a list of shapes"),
    ],
)
def test_a_wrong_memory_usage_report_is_refused(was: str, becomes: str, message: str) -> None:
    text = (
        "Memory Space: default (color=0)\nTotal bytes: 8 (8B)\n"
        "  cumulative_size;       size;       offset; used_by_n_values; shapes_list\n"
        "  ------------------------------------------------------------\n"
        "         8B(100%);         8B;            0;                2; f32[], s32[]\n\n\n"
    )
    assert format_buffer_assignment(read(text)) == text
    with pytest.raises(ParseError, match=re.escape(message)):
        read(text.replace(was, becomes, 1))


def test_a_memory_usage_report_may_list_nested_tuples_nothing_at_all_and_leave_out_what_is_small() -> None:
    text = (
        "Memory Space: default (color=0)\nTotal bytes: 24 (24B)\n"
        "  cumulative_size;       size;       offset; used_by_n_values; shapes_list\n"
        "  ------------------------------------------------------------\n"
        "        24B(100%);        24B;            0;                4; "
        "2×(s32[], (f32[2,3], f32[]), pred[]), f32[<=4], ()\n"
        "         0B(-nan%);         0B;            0;                1; ()\n"
        "  The rest 7 values are less than 5% of the total size and not shown.\n\n\n"
    )
    assignment = read(text)
    assert format_buffer_assignment(assignment) == text
    assert assignment.spaces is not None
    (table,) = assignment.spaces[0].allocations
    slot, empty = table.slots
    assert (table.omitted, empty.percent_text) == (7, "-nan")
    assert slot.shapes == ((2, "(s32[], (f32[2,3], f32[]), pred[])"), (1, "f32[<=4]"), (1, "()"))


def test_reading_takes_time_in_proportion_to_the_text() -> None:
    values = "\n".join(f" value: <{i} x.{i} @0> (size=4,offset={4 * i}): f32[1]{{0}}" for i in range(20_000))
    assignment = read(f"BufferAssignment:\nallocation 0: size 80000, preallocated-temp:\n{values}\n")
    assert assignment.allocations is not None and len(assignment.allocations[0].values) == 20_000
