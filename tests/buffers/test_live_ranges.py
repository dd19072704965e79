"""Our values and live ranges are XLA's, over all that XLA:CPU dumps for the programs here and over a real TPU dump."""

from collections.abc import Iterator

import pytest

import hloexec
from hloexec.analysis.buffers import compare_memory, memory_usage
from hloexec.analysis.buffers.dataflow import analyse, flatten
from hloexec.analysis.buffers.usage import PLAIN, TPU, byte_size, memory_space, target_of
from hloexec.core.ir import Shape
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


def shape_of(text: str) -> Shape:
    return hloexec.parse(f"HloModule m\nENTRY e {{ ROOT p = {text} parameter(0) }}").entry.root.shape


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[3,5]{1,0}", 60),
        ("f32[3,5]", 60),
        ("pred[7]{0}", 7),
        ("c128[2]{0}", 32),
        ("f32[]", 4),
        ("f32[0,5]{1,0}", 0),
        ("token[]", 0),
        # "Tiled layout": f32[3,5] in tiles of (2,2) is padded to [4,6].
        ("f32[3,5]{1,0:T(2,2)}", 4 * 6 * 4),
        # The minor dimension comes first in the layout: f32[3,5]{0,1} is stored as [5,3], padded to [6,4].
        ("f32[3,5]{0,1:T(2,2)}", 6 * 4 * 4),
        ("f32[3,5]{0,1:T(3,2)}", 6 * 4 * 4),
        # The same page: [2,7,8,11,10] with (*,*,2,*,3) is [112,110] in tiles of (2,3), 56 by 37 of them.
        ("f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}", 56 * 37 * 6 * 4),
        # A scalar is padded to a whole tile too.
        ("f32[]{:T(128)}", 512),
        ("bf16[5,100]{1,0:T(8,128)(2,1)}", 8 * 128 * 2),
        ("bf16[3584,4096]{1,0:T(8,128)(2,1)S(1)}", 29_360_128),
        # Two elements of four bits per byte, or one where the layout does not pack them (XLA:CPU's dumps).
        ("s4[7,5]{1,0:E(4)}", 18),
        ("s4[7,5]{1,0}", 35),
        ("f32[5]{0:L(8)}", 32),
        ("f32[5]{0:M(64)}", 84),
        # A dynamic array is followed by four bytes per dimension.
        ("f32[<=64]{0}", 260),
    ],
)
def test_the_size_of_an_array_counts_padding_and_packing(text: str, size: int) -> None:
    assert byte_size(shape_of(text), PLAIN) == size


@pytest.mark.parametrize(("elements", "plain", "tpu"), [(1, 8, 32), (3, 24, 32), (15, 120, 64), (17, 136, 96)])
def test_a_tuple_takes_its_table_of_pointers(elements: int, plain: int, tpu: int) -> None:
    shape = shape_of(f"({', '.join(['f32[9]'] * elements)})")
    assert (byte_size(shape, PLAIN), byte_size(shape, TPU)) == (plain, tpu)


def test_the_color_of_a_value_is_its_memory_space() -> None:
    assert memory_space(shape_of("f32[8]{0:S(5)}")) == 5
    assert memory_space(shape_of("f32[8]")) == memory_space(shape_of("(f32[8]{0:S(5)})")) == 0


def test_tiles_of_two_dimensions_mean_a_tpu() -> None:
    module = "HloModule m\nENTRY e {{ ROOT p = f32[8,128]{{1,0{tile}}} parameter(0) }}"
    assert target_of(hloexec.parse(module.format(tile=":T(8,128)"))) is TPU
    assert target_of(hloexec.parse(module.format(tile=""))) is PLAIN
