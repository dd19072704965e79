"""Modules that are too large on all of their devices: fewer devices without being asked, else what holds them up."""

from pathlib import Path
from typing import Any

import pytest

import hloexec
from hloexec.core.ir import flat_shapes
from hloexec.tools.shrinking import running
from tests.command_line import CommandLine
from tests.records import read_record
from tests.shrinking.smallest import assert_valid
from tests.text.building import ADD, module

pytest.importorskip("scipy", reason="scipy is not installed, which finds smaller dimensions")

LIST = ", ".join(str(number * number % 251) for number in range(256))
LAYER = f"""
    x = f32[256,256] parameter(0)
    w = f32[64,256] parameter(1)
    list = f32[256] constant({{{LIST}}})
    lists = f32[256,256] broadcast(list), dimensions={{0}}
    columns = f32[256,256] broadcast(list), dimensions={{1}}
    scaled = f32[256,256] multiply(x, lists)
    y = f32[256,256] multiply(scaled, columns)
    whole = f32[512,256] all-gather(w), channel_id=1, replica_groups=[8,8]<=[64], dimensions={{0}}, use_global_device_ids=true
    z = f32[512,256] dot(whole, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
    next = f32[512,256] collective-permute(z), channel_id=2, source_target_pairs={{{{PAIRS}}}}
    ROOT r = f32[512,256] all-reduce(next), channel_id=3, replica_groups=[8,8]<=[8,8]T(1,0), use_global_device_ids=true, to_apply=add_f32
"""
PAIRS = ",".join(f"{{{device},{(device + 8) % 64}}}" for device in range(64))
"""Arrays of 256 kB whose sizes a constant lists, on each of 8 × 8 devices."""


def layer(pairs: str = PAIRS) -> str:
    return module(LAYER.replace("{PAIRS}", pairs), ADD).replace("HloModule m", "HloModule m, num_partitions=64", 1)


def test_there_are_fewer_devices_where_it_takes_that() -> None:
    shrinkage = hloexec.shrink(hloexec.parse(layer()), max_bytes="12M")
    assert (shrinkage.devices, shrinkage.devices_before) == (8, 64)
    assert [(axis.before, axis.after, axis.stride) for axis in shrinkage.axes] == [(8, 4, 8), (8, 2, 1)]
    assert shrinkage.total_bytes is not None and shrinkage.total_bytes <= 12 << 20
    assert not shrinkage.holding
    assert_valid(shrinkage.module)
    assert shrinkage.module.num_partitions == 8
    inputs = [hloexec.random_inputs(shrinkage.module, seed=device) for device in range(8)]
    assert len(hloexec.run_devices(shrinkage.module, inputs)) == 8


def test_what_fits_keeps_its_devices() -> None:
    shrinkage = hloexec.shrink(hloexec.parse(layer()), max_bytes="200M")
    assert (shrinkage.devices, shrinkage.axes) == (64, ())


def test_the_number_that_was_asked_for_stays() -> None:
    with pytest.raises(hloexec.ResourceError, match=r"with its smallest sizes, on 16 of 64 devices, its inputs take"):
        hloexec.shrink(hloexec.parse(layer()), max_bytes="12M", devices=16)


def test_a_number_that_is_refused_is_passed_over() -> None:
    """Pairs that exchange two axes need these to be as long as one another, which they are on 4 and on 16 devices."""
    exchange = ",".join(f"{{{device},{device % 8 * 8 + device // 8}}}" for device in range(64))
    shrinkage = hloexec.shrink(hloexec.parse(layer(exchange)), max_bytes="12M")
    assert [(axis.before, axis.after) for axis in shrinkage.axes] == [(8, 2), (8, 2)]


def test_where_nothing_fits_the_smallest_is_told() -> None:
    with pytest.raises(hloexec.ResourceError) as caught:
        hloexec.shrink(hloexec.parse(layer()), max_bytes="1M")
    smallest = caught.value.smallest
    assert smallest.devices == 2 and smallest.total_bytes > 1 << 20
    assert_valid(smallest.module)
    first = smallest.holding[0]
    assert (first.before, first.after, first.reason) == (256, 256, "a constant lists its elements")
    assert first.instruction == "list" and first.bytes > 1 << 18
    message = str(caught.value)
    assert "module m cannot shrink to 1048576 bytes: with its smallest sizes, on 2 of 64 devices" in message
    assert "256: a constant lists its elements (%list in main); no dims releases it" in message


def test_sizes_that_should_stay_do_so_on_fewer_devices_too() -> None:
    with pytest.raises(hloexec.ResourceError, match="the number of devices: size 512 cannot stay on 4 devices"):
        hloexec.shrink(hloexec.parse(layer()), max_bytes="12M", keep=[512])
    shrinkage = hloexec.shrink(hloexec.parse(layer()), max_bytes="12M", keep=[256])
    assert shrinkage.devices == 8
    with pytest.raises(hloexec.InputError, match="the module has no dimension of that size"):
        hloexec.shrink(hloexec.parse(layer()), max_bytes="12M", keep=[7])


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("replica_count=2, num_partitions=32", "the number of devices can change of one kind alone"),
        ("num_partitions=48", "%whole names 64 devices, but there are 48"),
    ],
)
def test_why_there_cannot_be_fewer_devices_is_told(header: str, reason: str) -> None:
    text = layer().replace("num_partitions=64", header)
    with pytest.raises(hloexec.HloError, match=reason):
        hloexec.shrink(hloexec.parse(text), max_bytes="1M")


PROPORTION = """
    x = f32[8192,4096] parameter(0)
    rows = f32[8,4096] slice(x), slice={[0:8192:1024], [0:4096]}
    y = f32[8192,4096] negate(x)
    ROOT t = (f32[8,4096], f32[8192,4096]) tuple(rows, y)
"""


def test_sizes_become_1_only_where_nothing_fits_else() -> None:
    large, small = (hloexec.shrink(hloexec.parse(module(PROPORTION)), max_bytes=limit) for limit in ("64k", "16k"))
    assert min(min(shape.dimensions) for shape in flat_shapes(large.module.entry.result_shape)) >= 2
    assert 1 in flat_shapes(small.module.entry.result_shape)[0].dimensions
    assert small.total_bytes is not None and small.total_bytes <= 1 << 14
    assert_valid(small.module)
    asked = hloexec.shrink(hloexec.parse(module(PROPORTION)), max_bytes="16M", dims={8192: 1024})
    assert asked.total_bytes is not None
    with pytest.raises(hloexec.ResourceError, match="8192, which becomes 1024: "):
        hloexec.shrink(hloexec.parse(module(PROPORTION)), max_bytes="4k")


def test_of_the_smallest_sizes_those_of_the_least_bytes_are_taken() -> None:
    """The lowest bound makes small what can be small, at the cost of what cannot."""
    text = """
    x = f32[256,16,64,64] parameter(0)
    y = f32[256,1024,64] reshape(x)
    z = f32[64,64] parameter(1)
    w = f32[1024] parameter(2)
    ROOT t = (f32[256,1024,64], f32[64,64], f32[1024]) tuple(y, z, w)
    """
    assert hloexec.shrink(hloexec.parse(module(text)), max_bytes="2k").total_bytes <= 2048


@pytest.fixture
def folder(empty_folder: Path) -> Path:
    Path("module.hlo").write_text(layer())
    return empty_folder


def run(cli: CommandLine, words: str, code: int = 0) -> Any:
    return cli.ended(words, code=code)


@pytest.mark.usefixtures("folder")
def test_reports_say_how_many_devices_there_are(cli: CommandLine) -> None:
    report = run(cli, "shrink module.hlo --max-bytes 12M -o small.hlo").out
    assert "for 8 devices of 64 (4 × 2 of 8 × 8), written to small.hlo" in report
    record = read_record(run(cli, "shrink module.hlo --max-bytes 12M --json").out)
    assert (record["devices"], record["devices_before"], record["holding"]) == (8, 64, [])
    told = run(cli, "run module.hlo --shrink 12M --random-inputs").err
    assert "on 8 devices of 64 (4 × 2 of 8 × 8)" in told


@pytest.mark.usefixtures("folder")
def test_the_smallest_is_written_and_never_run(cli: CommandLine) -> None:
    ended = run(cli, "shrink module.hlo --max-bytes 1M -o small.hlo", 1)
    assert hloexec.load("small.hlo").num_partitions == 2
    assert "for 2 devices of 64" in ended.out and "written to small.hlo" in ended.out
    assert "cannot shrink to 1048576 bytes" in ended.err and "no --dim releases it" in ended.err
    record = read_record(run(cli, "shrink module.hlo --max-bytes 1M --json", 1).out)
    assert record["holding"][0]["before"] == 256
    Path("small.hlo").unlink()
    assert "cannot shrink" in run(cli, "shrink module.hlo --max-bytes 1M", 1).err
    ended = run(cli, "run module.hlo --shrink 1M", 1)
    assert "cannot shrink to 1048576 bytes" in ended.err and "%list in main" in ended.err
    assert "ran in" not in ended.out and not Path("small.hlo").exists()


def test_what_takes_long_at_its_smallest_sizes_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_MOST_OPERATIONS", 1000)
    text = module(
        "x = f32[4096,64] parameter(0)\n y = f32[64,64] parameter(1)\n ROOT z = f32[4096,64] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    found = hloexec.shrink(hloexec.parse(text), max_bytes="2M")
    assert max(found.module.entry.result_shape.dimensions) < 64  # type: ignore[union-attr]
