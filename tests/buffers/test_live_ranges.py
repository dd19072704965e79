"""Our values and live ranges are XLA's, over all that XLA:CPU dumps for the programs here and over a real TPU dump."""

from __future__ import annotations

from collections.abc import Iterator

import hloexec
from hloexec.analysis.buffers import compare_memory, memory_usage
from hloexec.analysis.buffers.dataflow import analyse
from hloexec.analysis.buffers.flattening import flatten
from hloexec.core.places import Place
from tests.buffers.dumps import Dump, seed_dump, xla_dumps

FEWEST_VALUES = 400
"""What the programs give at least, so that the tests cannot pass by comparing nothing."""


def all_dumps() -> Iterator[Dump]:
    yield from xla_dumps()


def test_live_ranges_sizes_and_peak_instruction_are_those_of_xla_for_every_cpu_dump() -> None:
    count = 0
    for dump in all_dumps():
        comparison = compare_memory(memory_usage(hloexec.load(dump.module)), dump.assignment())
        assert comparison.agrees, (dump.name, comparison.schedule_differs_at, comparison.differences)
        assert comparison.padded == (), dump.name
        assert comparison.range_agreements == comparison.range_count
        assert all(use.most.bytes <= use.allocation.size for use in comparison.allocations), dump.name
        assert comparison.occupied.bytes <= comparison.usage.peak.bytes, dump.name
        count += comparison.range_count
    assert count > FEWEST_VALUES


def test_values_show_where_xla_says_and_are_phis_where_xla_says() -> None:
    count = 0
    for dump in all_dumps():
        module = hloexec.load(dump.module)
        dataflow = analyse(module, flatten(module))
        places = dataflow.places()
        ours = {(value.place.instruction, value.place.index): value for value in dataflow.values}
        # Since jaxlib 0.12, the text names no elements of tuples that are operands.
        used_values = dump.assignment().used_values or ()
        names = {position.instruction for used in used_values for position in used.positions}
        for used in used_values:
            value = ours.get(used.label.key)
            if value is None:
                # Values of reducers, comparators and fusions are no part of the schedule.
                continue
            shown = {
                (place.instruction, place.index)
                for place in (value.place, *places[value.number])
                if place.instruction in names or not _is_element(module, place)
            }
            expected = {(position.instruction, position.index or ()) for position in used.positions}
            if "#" in dump.module.read_text():
                expected = {
                    place for place in expected if any(place[0] in each.by_name for each in module.computations)
                }
            assert shown == expected, used.label
            assert value.is_phi == used.label.is_phi
            count += 1
    assert count > FEWEST_VALUES


def _is_element(module: hloexec.ir.Module, place: Place) -> bool:
    return module.by_name[place.computation].by_name[place.instruction].opcode == "get-tuple-element"


def test_every_live_range_of_the_tpu_dump_agrees_and_the_peak_is_at_the_same_instruction() -> None:
    dump = seed_dump()
    usage = memory_usage(hloexec.load(dump.module))
    comparison = compare_memory(usage, dump.assignment())
    assert comparison.agrees
    assert (comparison.range_agreements, comparison.range_count) == (83, 83)
    assert comparison.assignment.allocated_bytes == 2_885_767_252
    assert comparison.assignment.bytes_by_color == {0: 2_827_042_848, 1: 58_720_256, 2: 52, 4: 4096}
    assert usage.peak.time == comparison.assignment.live_ranges.peak_time == 78  # type: ignore[union-attr]
    # XLA packs memory spaces 1 and 2 without a gap, so what it allocates there is what is alive at most.
    assert usage.peak_by_color[1].bytes == 58_720_256
    assert usage.peak_by_color[2].bytes == 52


def test_sizes_in_the_tpu_dump_differ_only_where_xla_pads_semaphores() -> None:
    dump = seed_dump()
    comparison = compare_memory(memory_usage(hloexec.load(dump.module)), dump.assignment())
    assert comparison.size_count == 83
    assert {(entry.xla, entry.ours) for entry in comparison.padded} == {("4096", "8")}
    assert len(comparison.padded) == 4
