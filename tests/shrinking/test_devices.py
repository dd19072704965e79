"""Fewer devices: what is left computes what the program does that JAX lowers for so few devices."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from evaluation.processes import ENVIRONMENT
from evaluation.shrinking.judging import dimensions_of_inputs
from evaluation.shrinking.meshes import PROGRAMS, Mesh, file_name
from hloexec.core.ir import IotaTiles
from hloexec.core.tree import flat
from tests.shrinking.smallest import assert_valid
from tests.text.building import ADD, module

ROOT = Path(__file__).resolve().parents[2]
CASES = [
    (name, mesh, stage) for name in PROGRAMS for mesh in PROGRAMS[name].small for stage in ("partitioned", "optimized")
]
UNCLEAR = {
    ("data_parallel_step", (4, 1), "optimized"),
    ("data_parallel_step", (2, 1), "optimized"),
    ("data_and_tensor_parallel_step", (1, 4), "partitioned"),
    ("data_and_tensor_parallel_step", (1, 4), "optimized"),
    ("data_and_tensor_parallel_step", (1, 2), "optimized"),
}
"""Where a constant is the product of a mean's fraction and another number, or may encode two different sizes: shrink says
so, except where another version of XLA leaves such a constant apart."""

REFUSED = {
    ("expert_parallel_layer", "optimized"): "%all-to-all.* has one operand for each of 8 devices",
    ("heads_by_all_to_all", "optimized"): "%all-to-all.* has one operand for each of 8 devices",
    ("sharded_parameters", "optimized"): "8 devices cannot become .: size 36 depends on their number, and stays|"
    "an axis of 4 devices, 1 apart, cannot become 2, as a size that depends on it stays",
}
"""XLA:CPU makes many slices of an all-to-all, and adds up rows in windows of 32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("jax")
    found = tmp_path_factory.mktemp("mesh_programs")
    command = [sys.executable, "-W", "ignore", "-m", "evaluation.shrinking.meshes", str(found)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **ENVIRONMENT})
    return found


def sizes_of(name: str, mesh: Mesh) -> tuple[int, ...]:
    """The sizes of the axes that the large mesh has."""
    return tuple(size for size, large in zip(mesh, PROGRAMS[name].large, strict=True) if large > 1)


def in_f64(module: hloexec.Module) -> hloexec.Module:
    """The module with f64 for f32, so that differences of rounding are far smaller than any other."""
    return hloexec.parse(hloexec.format(module).replace("f32[", "f64["))


def results(found: Any, inputs: Any) -> list[np.ndarray]:
    return flat(tuple(hloexec.run_devices(in_f64(found), inputs)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh", "stage"), CASES)
def test_fewer_devices_compute_what_a_program_for_few_does(folder: Path, name: str, mesh: Mesh, stage: str) -> None:
    large = hloexec.load(folder / file_name(name, PROGRAMS[name].large, stage))
    small = hloexec.load(folder / file_name(name, mesh, stage))
    if (name, stage) in REFUSED and (name, mesh) != ("sharded_parameters", (1, 4)):
        with pytest.raises(hloexec.InputError, match=REFUSED[name, stage]):
            hloexec.shrink(large, devices=sizes_of(name, mesh))
        return
    found = hloexec.shrink(large, devices=sizes_of(name, mesh))
    assert_valid(found.module)
    assert found.devices == found.module.num_partitions == mesh[0] * mesh[1]
    assert dimensions_of_inputs(found.module) == dimensions_of_inputs(small)
    inputs = [hloexec.random_inputs(in_f64(small), seed=device) for device in range(found.devices)]
    pairs = list(zip(results(found.module, inputs), results(small, inputs), strict=True))
    assert [ours.shape for ours, _ in pairs] == [theirs.shape for _, theirs in pairs]
    is_unclear = any(not change.is_certain and change.before == change.after for change in found.constants)
    if is_unclear and (name, mesh, stage) in UNCLEAR:
        return
    if stage == "optimized":
        # XLA:CPU optimizes the two differently; each element may be off by what rounding does to it.
        actual, expected = (tuple(hloexec.run_devices(in_f64(each), inputs)) for each in (found.module, small))
        compared = hloexec.compare(actual, expected, module=in_f64(small), inputs=inputs)
        assert compared.agrees, str(compared)
        return
    for ours, theirs in pairs:
        assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_the_axis_that_is_left_longest_is_shortened(folder: Path) -> None:
    large = hloexec.load(folder / file_name("gathers_over_both_axes", (2, 4), "partitioned"))
    found = hloexec.shrink(large, devices=4)
    assert [(axis.before, axis.after, axis.stride) for axis in found.axes] == [(2, 2, 4), (4, 2, 1)]
    assert (found.devices, found.devices_before) == (4, 8)


GATHER = """
    x = f32[3,5] parameter(0)
    ROOT g = f32[48,5] all-gather(x), dimensions={0}, channel_id=1, use_global_device_ids=true, replica_groups=GROUPS"""


def for_devices(text: str, count: int = 16, *more: str) -> hloexec.Module:
    text = module(text, *more).replace("HloModule m", f"HloModule m, num_partitions={count}", 1)
    found = hloexec.parse(text)
    assert found.num_partitions == count
    return found


def groups_of(found: Any, name: str) -> Any:
    return found.module.entry.by_name[name].attributes.replica_groups


def test_groups_stay_in_the_form_that_they_have() -> None:
    text = GATHER.replace("48", "12")
    iota = hloexec.shrink(for_devices(text.replace("GROUPS", "[4,4]<=[4,4]T(1,0)")), devices=(2, 4))
    assert groups_of(iota, "g").iota == IotaTiles((4, 2), (2, 4), (1, 0))
    listed = "{{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}"
    found = hloexec.shrink(for_devices(text.replace("GROUPS", listed)), devices=(2, 4))
    assert groups_of(found, "g").groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert found.module.entry.result_shape.dimensions == (6, 5)
    other = hloexec.shrink(for_devices(text.replace("GROUPS", listed)), devices=(4, 2))
    assert groups_of(other, "g").groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert other.module.entry.result_shape.dimensions == (12, 5)


@pytest.mark.parametrize(
    ("before", "sizes", "after"),
    [
        ("{{0,1},{1,2},{2,3},{3,0}}", (2,), ((0, 1), (1, 0))),
        ("{{0,3},{1,0},{2,1},{3,2}}", (2,), ((0, 1), (1, 0))),
        ("{{0,1},{1,2},{2,3}}", (2,), ((0, 1),)),
        ("{{3,0}}", (2,), ((1, 0),)),
        ("{{0,3},{1,2},{2,1},{3,0}}", (2,), ((0, 1), (1, 0))),
        ("{{0,1},{1,2},{2,3}}", (1,), ()),
        ("{{0,0},{1,4},{2,1},{3,5},{4,2},{5,6},{6,3},{7,7}}", (2, 2), ((0, 0), (1, 2), (2, 1), (3, 3))),
    ],
)
def test_pairs_keep_their_pattern(before: str, sizes: tuple[int, ...], after: object) -> None:
    text = (
        f"x = f32[3] parameter(0)\n ROOT y = f32[3] collective-permute(x), channel_id=1, source_target_pairs={before}"
    )
    count = 1 + max(map(int, re.findall(r"\d+", before)))
    found = hloexec.shrink(for_devices(text, count), devices=sizes)
    assert found.module.entry.by_name["y"].attributes.source_target_pairs == after


TABLE = """
    x = f32[48] parameter(0)
    id = u32[] partition-id()
    table = s32[16] constant({ROWS})
    row = s32[1] dynamic-slice(table, id), dynamic_slice_sizes={1}
    start = s32[] reshape(row)
    part = f32[3] dynamic-slice(x, start), dynamic_slice_sizes={3}
    ROOT all = f32[3] all-reduce(part), channel_id=1, use_global_device_ids=true, replica_groups=[4,4]<=[16], to_apply=add_f32
"""


def test_a_table_of_offsets_loses_rows_and_counts_along_what_is_left() -> None:
    rows = ",".join(str(3 * device) for device in range(16))
    found = hloexec.shrink(for_devices(TABLE.replace("ROWS", rows), 16, ADD), devices=(2, 2))
    table = found.module.entry.by_name["table"].attributes.literal.value
    assert table.tolist() == [0, 3, 6, 9]
    assert found.module.entry.parameter_shapes[0].dimensions == (12,)
    turned = ",".join(str(3 * (4 * (device % 4) + device // 4)) for device in range(16))
    found = hloexec.shrink(for_devices(TABLE.replace("ROWS", turned), 16, ADD), devices=(2, 4))
    assert found.module.entry.by_name["table"].attributes.literal.value.tolist() == [0, 6, 12, 18, 3, 9, 15, 21]


def test_parts_may_get_smaller_as_well() -> None:
    rows = ",".join(str(6 * device) for device in range(16))
    text = TABLE.replace("ROWS", rows).replace("f32[48]", "f32[96]").replace("f32[3]", "f32[6]").replace("{3}", "{6}")
    found = hloexec.shrink(for_devices(text, 16, ADD), devices=(2, 2), dims={96: 8})
    assert found.module.entry.by_name["part"].shape.dimensions == (2,)
    assert found.module.entry.by_name["table"].attributes.literal.value.tolist() == [0, 2, 4, 6]
    product = text.replace(f"table = s32[16] constant({{{rows}}})", "six = u32[] constant(6)")
    product = product.replace(
        "row = s32[1] dynamic-slice(table, id), dynamic_slice_sizes={1}", "row = u32[] multiply(id, six)"
    )
    product = product.replace("start = s32[] reshape", "start = s32[] convert")
    found = hloexec.shrink(for_devices(product, 16, ADD), devices=(2, 2), dims={96: 8})
    assert found.module.entry.by_name["part"].shape.dimensions == (2,)
    assert found.module.entry.by_name["six"].attributes.literal.value == 2


def test_what_is_unclear_is_listed() -> None:
    text = """
    x = f32[16] parameter(0)
    id = u32[] partition-id()
    five = u32[] constant(5)
    sixteen = u32[] constant(16)
    product = u32[] multiply(id, five)
    partner = u32[] remainder(product, sixteen)
    part = f32[1] dynamic-slice(x, partner), dynamic_slice_sizes={1}
    ROOT all = f32[1] all-reduce(part), channel_id=1, use_global_device_ids=true, replica_groups=[1,16]<=[16], to_apply=add_f32
    """
    found = hloexec.shrink(for_devices(text, 16, ADD), devices=2)
    unclear = [each for each in found.constants if not each.is_certain]
    assert [(each.instruction, each.before, each.after) for each in unclear] == [("sixteen", 16, 16)]


def test_the_first_half_of_the_devices_is_half_of_them_still() -> None:
    text = """
    x = f32[3] parameter(0)
    id = u32[] partition-id()
    eight = u32[] constant(8)
    is_first = pred[] compare(id, eight), direction=LT
    choices = pred[3] broadcast(is_first), dimensions={}
    y = f32[3] negate(x)
    z = f32[3] select(choices, x, y)
    ROOT all = f32[3] all-reduce(z), channel_id=1, use_global_device_ids=true, replica_groups=[1,16]<=[16], to_apply=add_f32
    """
    found = hloexec.shrink(for_devices(text, 16, ADD), devices=4)
    assert [(each.before, each.after, each.is_certain) for each in found.constants] == [(8, 2, False)]
    last = hloexec.shrink(for_devices(text.replace("constant(8)", "constant(15)"), 16, ADD), devices=4)
    assert [(each.before, each.after, each.is_certain) for each in last.constants] == [(15, 3, True)]


def test_a_partner_at_half_the_way_stays_there() -> None:
    text = """
    x = f32[16] parameter(0)
    id = u32[] partition-id()
    eight = u32[] constant(8)
    partner = u32[] xor(id, eight)
    part = f32[1] dynamic-slice(x, partner), dynamic_slice_sizes={1}
    ROOT all = f32[1] all-reduce(part), channel_id=1, use_global_device_ids=true, replica_groups=[1,16]<=[16], to_apply=add_f32
    """
    found = hloexec.shrink(for_devices(text, 16, ADD), devices=(2, 2))
    assert found.module.entry.by_name["eight"].attributes.literal.value == 2
    assert found.module.entry.parameter_shapes[0].dimensions == (4,)


def test_shardings_of_inputs_follow() -> None:
    text = GATHER.replace("GROUPS", "[1,16]<=[16]").replace(
        "parameter(0)", "parameter(0), sharding={devices=[16,1]<=[16]}"
    )
    found = hloexec.shrink(for_devices(text), devices=4)
    whole = np.arange(60, dtype=np.float32).reshape(12, 5)
    shards = hloexec.shard_inputs(found.module, [whole])
    for result in hloexec.run_devices(found.module, shards):
        assert_array_equal(result, whole)


WRONG = [
    (GATHER.replace("GROUPS", "[1,16]<=[16]"), 3, "16 devices, a grid of 16, cannot become 3: possible are 8, 4, 2, 1"),
    (GATHER.replace("GROUPS", "[1,16]<=[16]"), 0, "devices must be at least 1, but is 0"),
    (GATHER.replace("GROUPS", "[1,16]<=[16]"), 16, "devices is 16, but module m has 16, and can only have fewer"),
    (GATHER.replace("GROUPS", "[1,16]<=[16]"), 32, "devices is 32, but module m has 16"),
    (GATHER.replace("GROUPS", "[1,16]<=[16]"), "four", "devices must be a list of a number"),
    (GATHER.replace("GROUPS", "[1,16]<=[16]"), (2, 2), "form a grid of 16, which cannot become 2 × 2: each axis needs"),
    (GATHER.replace("GROUPS", "[1,16]<=[16]"), (3,), "form a grid of 16, which cannot become 3: each axis needs"),
    (
        GATHER.replace("48", "6").replace("GROUPS", "{{0,1},{2,3},{4,6},{5,7},{8,9},{10,11},{12,13},{14,15}}"),
        4,
        "the groups of %g in main do not lie along axes of a grid of devices",
    ),
    (
        TABLE.replace("ROWS", "0,3,9,6,12,15,18,21,24,27,30,33,36,39,42,45"),
        4,
        "the table %table in main lists numbers for",
    ),
    (
        "x = f32[3] parameter(0)\n ROOT y = f32[3] collective-permute(x), channel_id=1, "
        "source_target_pairs={{0,5},{5,9},{9,2},{2,0},{1,1}}",
        4,
        "what %y in main sends along 16 devices has no counterpart along 4",
    ),
]


@pytest.mark.parametrize(("text", "devices", "message"), WRONG)
def test_what_cannot_be_is_refused(text: str, devices: Any, message: str) -> None:
    with pytest.raises(hloexec.InputError) as error:
        hloexec.shrink(for_devices(text, 16, ADD), devices=devices)
    assert message in str(error.value)


def test_a_gathered_array_that_a_constant_lists_is_in_the_way() -> None:
    pytest.importorskip("scipy", reason="scipy is not installed, which finds smaller dimensions")
    constant = (
        "c = f32[48] constant({" + ",".join(map(str, range(48))) + "})\n cs = f32[48,5] broadcast(c), dimensions={0}\n"
    )
    text = GATHER.replace("GROUPS", "[1,16]<=[16]").replace("ROOT g", "g")
    text += f"\n {constant} ROOT r = f32[48,5] multiply(g, cs)"
    with pytest.raises(
        hloexec.HloError, match=r"48 depends on their number, and stays: a constant lists its elements \(%c in main\)"
    ):
        hloexec.shrink(for_devices(text), devices=4)


def test_a_module_that_is_not_divided_among_devices_is_refused() -> None:
    text = module("x = f32[3] parameter(0)\n ROOT y = f32[3] negate(x)")
    with pytest.raises(hloexec.InputError, match="module m is for one device, and cannot have fewer"):
        hloexec.shrink(hloexec.parse(text), devices=1)
    text = 'x = f32[48] parameter(0)\n ROOT y = f32[48] custom-call(x), custom_call_target="Sharding", sharding={devices=[16]<=[16]}'
    with pytest.raises(hloexec.InputError, match=r"%y in main \(Sharding\) is for XLA's partitioner"):
        hloexec.shrink(for_devices(text), devices=4)
    both = hloexec.parse(
        module(GATHER.replace("GROUPS", "[1,16]<=[16]")).replace(
            "HloModule m", "HloModule m, replica_count=2, num_partitions=8", 1
        )
    )
    with pytest.raises(
        hloexec.InputError, match="2 replicas × 8 partitions; the number of devices can change of one kind"
    ):
        hloexec.shrink(both, devices=4)


OFFSETS = """
    x = f32[WHOLE,3] parameter(0)
    id = u32[] partition-id()
    part = u32[] constant(PART)
    start = u32[] multiply(id, part)
    zero = u32[] constant(0)
    mine = f32[PART,3] dynamic-slice(x, start, zero), dynamic_slice_sizes={PART,3}
    table = u32[128] constant({OFFSETS})
    row = u32[1] dynamic-slice(table, id), dynamic_slice_sizes={1}
    offset = u32[] reshape(row)
    other = f32[PART,3] dynamic-slice(x, offset, zero), dynamic_slice_sizes={PART,3}
    third = f32[PART,3] slice(x), slice={[FROM:TO], [0:3]}
    all = f32[PART,3] add(mine, other)
    sum = f32[PART,3] add(all, third)
    ROOT whole = f32[WHOLE,3] all-gather(sum), channel_id=1, replica_groups=[1,128]<=[128], dimensions={0}, use_global_device_ids=true
"""


def offsets_for(part: int) -> hloexec.Module:
    offsets = ",".join(str(part * (127 - device)) for device in range(128))
    text = OFFSETS.replace("OFFSETS", offsets).replace("WHOLE", str(128 * part)).replace("PART", str(part))
    return for_devices(text.replace("FROM", str(3 * part)).replace("TO", str(4 * part)), 128)


@pytest.mark.parametrize("part", [16, 4, 2])
def test_the_part_of_one_of_many_devices_shrinks_and_offsets_follow(part: int) -> None:
    """All devices stay, so the part of each gets smaller."""
    pytest.importorskip("scipy", reason="scipy is not installed, which finds smaller dimensions")
    shrinkage = hloexec.shrink(offsets_for(32), dims={128 * 32: 128 * part})
    assert shrinkage.module == offsets_for(part)
    assert all(change.is_certain for change in shrinkage.constants)


def test_what_goes_round_both_ways_begins_half_the_way_round_still() -> None:
    text = """
    x = f32[16,4] parameter(0)
    step = u32[] parameter(1)
    id = u32[] partition-id()
    moved = u32[] add(step, id)
    nine = u32[] constant(9)
    opposite = u32[] add(moved, nine)
    fifteen = u32[] constant(15)
    start = u32[] and(opposite, fifteen)
    zero = u32[] constant(0)
    part = f32[1,4] dynamic-slice(x, start, zero), dynamic_slice_sizes={1,4}
    ROOT all = f32[1,4] all-reduce(part), channel_id=1, use_global_device_ids=true, replica_groups=[1,16]<=[16], to_apply=add_f32
    """
    found = hloexec.shrink(for_devices(text, 16, ADD), devices=8)
    assert {(each.before, each.after) for each in found.constants} == {(9, 5), (15, 7)}


def flat_layer(d: int, f: int, b: int) -> str:
    """A gain and two matrices in one array that devices share: gathered, taken apart, and their gradients put together
    again."""
    whole = d + 2 * d * f
    share = whole // 16
    return f"""
  flat = f32[{share}] parameter(0)
  x = f32[{b},{d}] parameter(1)
  all = f32[{whole}] all-gather(flat), channel_id=1, replica_groups={{}}, dimensions={{0}}
  gain = f32[{d}] slice(all), slice={{[0:{d}]}}
  first = f32[{d * f}] slice(all), slice={{[{d}:{d + d * f}]}}
  second = f32[{d * f}] slice(all), slice={{[{d + d * f}:{whole}]}}
  up = f32[{d},{f}] reshape(first)
  down = f32[{f},{d}] reshape(second)
  gains = f32[{b},{d}] broadcast(gain), dimensions={{1}}
  scaled = f32[{b},{d}] multiply(x, gains)
  hidden = f32[{b},{f}] dot(scaled, up), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  out = f32[{b},{d}] dot(hidden, down), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  of_down = f32[{f},{d}] dot(hidden, out), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  of_up = f32[{d},{f}] dot(scaled, hidden), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  zero = f32[] constant(0)
  of_gain = f32[{d}] reduce(out, zero), dimensions={{0}}, to_apply=add_f32
  flat_down = f32[{d * f}] reshape(of_down)
  flat_up = f32[{d * f}] reshape(of_up)
  last = f32[{whole}] pad(flat_down, zero), padding={d + d * f}_0
  middle = f32[{whole}] pad(flat_up, zero), padding={d}_{d * f}
  start = f32[{whole}] pad(of_gain, zero), padding=0_{2 * d * f}
  both = f32[{whole}] add(last, middle)
  gradients = f32[{whole}] add(both, start)
  ROOT own = f32[{share}] reduce-scatter(gradients), channel_id=2, replica_groups={{}}, dimensions={{0}}, to_apply=add_f32"""


def test_parameters_in_one_array_that_devices_share_shrink_one_by_one() -> None:
    found = hloexec.shrink(for_devices(flat_layer(64, 96, 24), 16, ADD), dims={64: 16, 96: 32, 24: 8})
    assert hloexec.format(found.module) == hloexec.format(for_devices(flat_layer(16, 32, 8), 16, ADD))
    with pytest.raises(
        hloexec.InputError, match="size 772 cannot become 65: it is the sum of 4 and 384 and 384, and follows"
    ):
        hloexec.shrink(for_devices(flat_layer(64, 96, 24), 16, ADD), dims={772: 65})
