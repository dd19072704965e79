"""A module on whole arrays, and the same partitioned: what corresponds is found, and so is what is wrong."""

import re

import ml_dtypes
import numpy as np
import pytest

import hloexec
from tests.diffing.texts import diff_texts

BEFORE = """HloModule layer, num_partitions=4

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}

ENTRY main {
  x = f32[8,6] parameter(0), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
  up = f32[6,12] parameter(1), sharding={devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  down = f32[12,4] parameter(2), sharding={devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  hidden = f32[8,12] dot(x, up), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  active = f32[8,12] tanh(hidden)
  out = f32[8,4] dot(active, down), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  two = f32[] constant(2)
  twos = f32[8,4] broadcast(two), dimensions={}
  scaled = f32[8,4] multiply(out, twos)
  zero = f32[] constant(0)
  totals = f32[4] reduce(scaled, zero), dimensions={0}, to_apply=sum
  turned = f32[4,8] transpose(scaled), dimensions={1,0}
  ROOT result = (f32[8,4], f32[4], f32[4,8]) tuple(scaled, totals, turned), sharding={{devices=[2,1,2]<=[4] last_tile_dim_replicate}, {replicated}, {devices=[2,2]<=[4]}}
}
"""

AFTER = """HloModule layer_spmd, num_partitions=4

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}

largest {
  a.1 = f32[] parameter(0)
  b.1 = f32[] parameter(1)
  ROOT total.1 = f32[] maximum(a.1, b.1)
}

ENTRY main_spmd {
  x = f32[4,6] parameter(0)
  up = f32[6,6] parameter(1)
  down = f32[6,4] parameter(2)
  hidden = f32[4,6] dot(x, up), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  active = f32[4,6] tanh(hidden)
  part = f32[4,4] dot(active, down), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  out = f32[4,4] all-reduce(part), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=sum
  two = f32[] constant(2)
  twos = f32[4,4] broadcast(two), dimensions={}
  scaled = f32[4,4] multiply(out, twos)
  zero = f32[] constant(0)
  partial = f32[4] reduce(scaled, zero), dimensions={0}, to_apply=sum
  totals = f32[4] all-reduce(partial), channel_id=2, replica_groups={{0,2},{1,3}}, use_global_device_ids=true, to_apply=sum
  turned = f32[4,4] transpose(scaled), dimensions={1,0}
  whole = f32[4,8] all-gather(turned), channel_id=3, replica_groups={{0,2},{1,3}}, dimensions={1}, use_global_device_ids=true
  none = s32[] constant(0)
  place = s32[4] constant({0, 0, 1, 1})
  columns = s32[4] constant({0, 1, 0, 1})
  own = u32[] partition-id()
  row_of = s32[1] dynamic-slice(place, own), dynamic_slice_sizes={1}
  row = s32[] reshape(row_of)
  rows = s32[] constant(2)
  first_row = s32[] multiply(row, rows)
  column_of = s32[1] dynamic-slice(columns, own), dynamic_slice_sizes={1}
  column = s32[] reshape(column_of)
  width = s32[] constant(4)
  first_column = s32[] multiply(column, width)
  cut = f32[2,4] dynamic-slice(whole, first_row, first_column), dynamic_slice_sizes={2,4}
  ROOT result = (f32[4,4], f32[4], f32[2,4]) tuple(scaled, totals, cut)
}
"""


def _diff(before: str = BEFORE, after: str = AFTER) -> hloexec.Diff:
    return diff_texts(before, after)


def test_every_value_of_a_partitioned_module_is_found_among_the_parts_of_whole_values() -> None:
    found = _diff()
    assert found.verdict == "rounding only"
    unknown = {node.after.instruction for node in found.matches}
    assert {"hidden", "active", "part", "out", "scaled", "partial", "totals", "turned", "whole", "cut"} <= unknown
    assert "partitioned over 4 devices" in found.notes[0]


def test_results_are_compared_shard_by_shard() -> None:
    found = _diff()
    assert [leaf.actual_shape for leaf in found.outputs.leaves[:3]] == ["f32[4,4]", "f32[4]", "f32[2,4]"]
    assert len(found.outputs.leaves) == 12


def test_inputs_are_whole_arrays_and_are_cut_for_each_device() -> None:
    arrays = [np.ones(shape, np.float32) for shape in ((8, 6), (6, 12), (12, 4))]
    found = diff_texts(BEFORE, AFTER, arrays)
    assert found.agrees
    with pytest.raises(hloexec.InputError, match="one list for all devices"):
        diff_texts(BEFORE, AFTER, [arrays] * 4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("right", "wrong", "instruction"),
    [
        ("channel_id=1, replica_groups={{0,1},{2,3}}", "channel_id=1, replica_groups={{0,2},{1,3}}", "out"),
        ("channel_id=2, replica_groups={{0,2},{1,3}}", "channel_id=2, replica_groups={{0,1},{2,3}}", "totals"),
        ("channel_id=3, replica_groups={{0,2},{1,3}}", "channel_id=3, replica_groups={{0,1},{2,3}}", "whole"),
        ("channel_id=3, replica_groups={{0,2},{1,3}}", "channel_id=3, replica_groups={{2,0},{3,1}}", "whole"),
        ("to_apply=sum\n  two", "to_apply=largest\n  two", "out"),
        (r"all-reduce\(partial\).*", "copy(partial)", "partial"),
        ("tanh", "sine", "active"),
        (r"multiply\(out, twos\)", "add(out, twos)", "scaled"),
        (r"dimensions=\{0\}, to_apply=sum\n  totals", "dimensions={1}, to_apply=sum\n  totals", "partial"),
    ],
)
def test_the_wrong_instruction_is_named(right: str, wrong: str, instruction: str) -> None:
    pattern = right if "\\" in right else re.escape(right)
    after, count = re.subn(pattern, wrong.replace("\\", r"\\"), AFTER, count=1)
    assert count
    found = _diff(after=after)
    assert found.verdict == "differ"
    assert found.findings[0].after.instruction == instruction


@pytest.mark.slow_cases("constant({0, 1, 0, 1})-constant({0, 0, 1, 1})")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("constant({0, 1, 0, 1})", "constant({0, 0, 1, 1})"), ("constant({0, 0, 1, 1})", "constant({0, 1, 0, 1})")],
)
def test_a_slice_from_the_wrong_place_is_named(right: str, wrong: str) -> None:
    found = _diff(after=AFTER.replace(right, wrong, 1))
    assert found.verdict == "differ"
    assert found.findings[0].after.instruction == "cut"


def test_the_layout_of_a_result_is_found_where_nothing_says_it() -> None:
    before = re.sub(r"tuple\((.*?)\), sharding=.*", r"tuple(\1)", BEFORE)
    found = _diff(before)
    assert found.verdict == "rounding only"


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (
            r"x = f32\[8,6\] parameter\(0\), sharding=\{.*?\}",
            "x = f32[8,6] parameter(0), sharding={devices=[1,2,2]<=[4] last_tile_dim_replicate}",
            r"parameter 0 .* is f32\[8,6\] in layer, f32\[8,3\] on each device by .*, but f32\[4,6\] in layer_spmd",
        ),
        (
            r"x = f32\[8,6\] parameter\(0\), sharding=\{.*?\}",
            "x = f32[8,6] parameter(0), sharding={devices=[1,4]<=[4]}",
            r"parameter 0 .* is f32\[8,6\] in layer, not divided evenly by .*, but f32\[4,6\]",
        ),
        (
            r"x = f32\[8,6\] parameter\(0\), sharding=\{.*?\}",
            "x = f32[8,6] parameter(0)",
            r"parameter 0 .* without a sharding that says how it is divided",
        ),
        (
            r"\{replicated\}",
            "{devices=[2,2]<=[4] last_tile_dim_replicate}",
            r"result 1 .* is f32\[4\] in layer, f32\[2\] on each device by .*, but f32\[4\] in layer_spmd",
        ),
        (r"f32\[12,4\] parameter", "bf16[12,4] parameter", r"do not correspond: parameter 0"),
    ],
)
def test_what_is_no_shard_is_refused_with_the_reason(pattern: str, replacement: str, message: str) -> None:
    before, count = re.subn(pattern, replacement, BEFORE, count=1)
    assert count
    with pytest.raises(hloexec.InputError, match=message):
        _diff(before)


def test_shardings_are_also_those_of_sharding_calls_on_parameters() -> None:
    sharding = "sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}"
    declared = f"x = f32[8,6] parameter(0), {sharding}\n"
    assert declared in BEFORE
    call = f'x = f32[8,6] parameter(0)\n  placed = f32[8,6] custom-call(x), custom_call_target="Sharding", {sharding}\n'
    before = BEFORE.replace(declared, call).replace("dot(x, up)", "dot(placed, up)")
    assert diff_texts(before, AFTER).verdict != "differ"


_NARROW = """HloModule narrow, num_partitions=4
add {
  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT s = bf16[] add(a, b)
}
ENTRY mainSUFFIX {
  x = bf16[SIZE,64] parameter(0), sharding={devices=[4,1]<=[4]}
  y = bf16[SIZE,32] parameter(1), sharding={devices=[4,1]<=[4]}
  d = bf16[64,32] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  all = bf16[64,32] SUM
  ROOT r = f32[64,32] convert(all), sharding={replicated}
}
"""


def test_what_adds_parts_that_were_rounded_to_few_bits_is_not_to_blame_for_that():
    before = _NARROW.replace("SIZE", "64").replace("SUFFIX", "").replace("SUM", "copy(d)")
    how = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add"
    after = _NARROW.replace("SIZE", "16").replace("SUFFIX", "_spmd").replace("SUM", f"all-reduce(d), {how}")
    random = np.random.default_rng(0)
    inputs = [random.normal(size=size).astype(ml_dtypes.bfloat16) for size in ((64, 64), (64, 32))]
    found = diff_texts(before, after, inputs)
    assert found.verdict == "differ"
    assert not any(finding.is_certain for finding in found.findings)


@pytest.mark.parametrize(
    ("tiles", "devices", "names"),
    [
        ("[1,4]<=[4]", 4, "0, 1, 2, 3"),
        ("[1,2,2]<=[4] last_tile_dim_replicate", 2, "0, 2"),
        ("[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate", 2, "0, 1"),
    ],
)
def test_parts_of_a_sum_that_nothing_adds_up_are_told(tiles: str, devices: int, names: str) -> None:
    """A contraction is divided, and each device keeps its part."""
    rows = tiles.replace("[1,4]", "[4,1]").replace("[1,2,2]", "[2,1,2]")
    before = f"""HloModule whole, num_partitions=4
ENTRY main {{
  x = f32[8,16] parameter(0), sharding={{devices={tiles}}}
  w = f32[16,12] parameter(1), sharding={{devices={rows}}}
  ROOT g = f32[8,12] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, sharding={{replicated}}
}}"""
    after = f"""HloModule parts_spmd, num_partitions=4
ENTRY main_spmd {{
  x = f32[8,{16 // devices}] parameter(0)
  w = f32[{16 // devices},12] parameter(1)
  ROOT d = f32[8,12] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}"""
    found = diff_texts(before, after)
    first = found.findings[0]
    assert first.after.instruction == "d"
    assert (
        first.reason == f"devices {names} have parts of a sum that nothing adds up: an all-reduce over them is missing"
    )


def test_parts_of_a_sum_are_told_behind_steps_that_a_sum_passes_through() -> None:
    """What takes a part in the place of the sum may be named instead of what gives it, but not for another reason."""
    steps = """  t = f32[12,8] transpose({sum}), dimensions={{1,0}}
  half = f32[] constant(0.5)
  halves = f32[12,8] broadcast(half), dimensions={{}}
  m = f32[12,8] multiply(t, halves)
  ROOT r = f32[12,8] subtract(v, m){sharding}
}}"""
    before = """HloModule whole, num_partitions=4
ENTRY main {
  x = f32[8,16] parameter(0), sharding={devices=[1,4]<=[4]}
  w = f32[16,12] parameter(1), sharding={devices=[4,1]<=[4]}
  v = f32[12,8] parameter(2), sharding={replicated}
  g = f32[8,12] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={replicated}
""" + steps.format(sum="g", sharding=", sharding={replicated}")
    after = """HloModule parts_spmd, num_partitions=4
ENTRY main_spmd {
  x = f32[8,4] parameter(0)
  w = f32[4,12] parameter(1)
  v = f32[12,8] parameter(2)
  d = f32[8,12] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[8,12] copy(d)
""" + steps.format(sum="c", sharding="")
    found = diff_texts(before, after)
    first = found.findings[0]
    assert first.after.instruction in ("d", "c", "t")
    assert first.reason == (
        "devices 0, 1, 2, 3 have parts of a sum that nothing adds up: an all-reduce over them is missing"
    )
