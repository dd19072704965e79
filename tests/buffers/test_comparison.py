"""What differs between a module and a buffer assignment is said, whatever it is."""

import attrs
import pytest

import hloexec
from hloexec.analysis.buffers import MemoryComparison, compare_memory, memory_usage
from hloexec.errors import InputError

MODULE = """HloModule m, is_scheduled=true
ENTRY e { p = f32[16] parameter(0)
 a = f32[16] sine(p)
 b = f32[16] cosine(a)
 ROOT c = f32[16] add(a, b) }"""

ASSIGNMENT = """BufferAssignment:
allocation 0: size 64, parameter 0, shape |f32[16]| at ShapeIndex {}:
 value: <0 p @0> (size=64,offset=0): f32[16]{0}
allocation 1: size 64, output shape is |f32[16]|, maybe-live-out:
 value: <3 c @0> (size=64,offset=0): f32[16]{0}
allocation 2: size 192, preallocated-temp:
 value: <1 a @0> (size=64,offset=0): f32[16]{0}
 value: <2 b @0> (size=64,offset=128): f32[16]{0}

HloLiveRange (max 4):
  InstructionSequence:
    0:p
    1:a
    2:b
    3:c
  BufferLiveRange:
    p{}:0-4
    a{}:1-3
    b{}:2-3
    c{}:3-4
  Live ranges at 3 (peak):
    p: 64 bytes
    a: 64 bytes
    b: 64 bytes
    c: 64 bytes
"""


def compared(was: str = "", becomes: str = "") -> MemoryComparison:
    text = ASSIGNMENT.replace(was, becomes, 1) if was else ASSIGNMENT
    assert not was or text != ASSIGNMENT
    return compare_memory(memory_usage(hloexec.parse(MODULE)), hloexec.parse_buffer_assignment(text))


def test_what_agrees_agrees_and_the_room_between_values_is_counted() -> None:
    comparison = compared()
    assert comparison.agrees
    assert (comparison.range_agreements, comparison.range_count, comparison.size_count) == (4, 4, 4)
    assert comparison.assignment.allocated_bytes == 320
    assert [use.most.bytes for use in comparison.allocations] == [64, 64, 128]
    assert comparison.listed_peak_bytes == 256
    assert (comparison.occupied.bytes, comparison.occupied.time) == (256, 3)


def test_a_result_in_the_place_of_an_operand_that_dies_with_it_is_counted_once() -> None:
    # XLA lets c take the place of b, in the temporary allocation.
    moved = ASSIGNMENT.replace(" value: <3 c @0> (size=64,offset=0): f32[16]{0}\n", "", 1)
    moved = moved.replace(
        "offset=128): f32[16]{0}\n", "offset=128): f32[16]{0}\n value: <3 c @0> (size=64,offset=128): f32[16]{0}\n"
    )
    comparison = compare_memory(memory_usage(hloexec.parse(MODULE)), hloexec.parse_buffer_assignment(moved))
    assert comparison.agrees
    assert [use.most.bytes for use in comparison.allocations] == [64, 0, 128]
    assert comparison.occupied.bytes == 192 and comparison.usage.peak.bytes == 256


@pytest.mark.parametrize(
    ("was", "becomes", "differences"),
    [
        ("a{}:1-3", "a{}:1-2", [("live range", "a", "1-2", "1-3")]),
        ("    a{}:1-3\n", "", [("live range", "a", None, "1-3")]),
        ("b{}:2-3", "b{7}:2-3", [("live range", "b{7}", "2-3", None), ("live range", "b", None, "2-3")]),
        ("<1 a @0>", "<1 a @3>", [("memory space", "a", "3", "0")]),
        ("<1 a @0> (size=64", "<1 a @0> (size=60", [("size", "a", "60", "64")]),
        ("ranges at 3", "ranges at 2", [("peak instruction", "", "2", "3")]),
    ],
)
def test_every_kind_of_difference_is_shown(
    was: str, becomes: str, differences: list[tuple[str, str, str | None, str | None]]
) -> None:
    comparison = compared(was, becomes)
    assert not comparison.agrees
    assert [attrs.astuple(entry) for entry in comparison.differences] == differences


def test_more_room_than_a_shape_takes_is_shown_but_no_disagreement() -> None:
    comparison = compared("<1 a @0> (size=64", "<1 a @0> (size=128")
    assert comparison.agrees
    assert [attrs.astuple(entry) for entry in comparison.padded] == [("size", "a", "128", "64")]


def test_schedules_that_differ_are_said_to_from_where() -> None:
    swapped = compared("    1:a\n    2:b\n", "    1:b\n    2:a\n")
    assert (swapped.agrees, swapped.schedule_differs_at) == (False, 1)


def test_parts_that_are_not_there_are_not_compared() -> None:
    ranges = "HloLiveRange" + ASSIGNMENT.partition("HloLiveRange")[2]
    comparison = compare_memory(memory_usage(hloexec.parse(MODULE)), hloexec.parse_buffer_assignment(ranges))
    assert comparison.agrees and comparison.allocations == () and comparison.size_count == 0
    allocations = ASSIGNMENT.partition("HloLiveRange")[0]
    comparison = compare_memory(memory_usage(hloexec.parse(MODULE)), hloexec.parse_buffer_assignment(allocations))
    assert comparison.agrees and comparison.range_count == 0 and comparison.size_count == 4


def test_the_assignment_of_another_module_is_refused() -> None:
    other = hloexec.parse(
        MODULE.replace(" a =", " x =").replace("(a", "(x").replace(" b =", " y =").replace(", b", ", y")
    )
    usage = memory_usage(other)
    # Two of four names are known: that may be the same module before or after a change.
    assert not compare_memory(usage, hloexec.parse_buffer_assignment(ASSIGNMENT)).agrees
    text = MODULE.replace(" p =", " q =").replace("(p", "(q")
    other = hloexec.parse(
        text.replace(" a =", " x =").replace("(a", "(x").replace(" b =", " y =").replace(", b", ", y")
    )
    with pytest.raises(InputError, match=r"of another module: 3 of the 4 instructions it names, among them a,"):
        compare_memory(memory_usage(other), hloexec.parse_buffer_assignment(ASSIGNMENT))
