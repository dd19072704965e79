"""`hloexec shrink` and `hloexec run --shrink`."""

from pathlib import Path

import pytest

import hloexec
from tests.command_line import CommandLine
from tests.records import read_record
from tests.shrinking.test_shrink import PERCEPTRON

pytest.importorskip("scipy", reason="scipy is not installed, which finds smaller dimensions")


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    Path("module.hlo").write_text(PERCEPTRON)
    return empty_folder


def run(cli: CommandLine, words: str, code: int = 0) -> str:
    captured = cli.ended(words, code=code)
    return captured.out + captured.err


def test_the_smaller_module_is_printed_or_written(cli: CommandLine) -> None:
    text = run(cli, "shrink module.hlo --dim 1024=8 --dim 4096=16 --keep 512")
    module = hloexec.parse(text)
    assert [shape.dimensions for shape in module.entry.parameter_shapes] == [(512, 8), (8, 16), (16, 8)]
    report = run(cli, "shrink module.hlo --dim 1024=8 --dim 4096=16 --keep 512 -o small.hlo")
    assert Path("small.hlo").read_text() == text
    for words in ("3 sizes changed" if "3 sizes" in report else "2 sizes changed", "written to small.hlo", "x[1]"):
        assert words in report
    assert "follows the size" in report


def test_a_report_alone_writes_nothing(cli: CommandLine) -> None:
    report = run(cli, "shrink module.hlo --max-bytes 1M --report")
    assert "inputs" in report and "HloModule" not in report
    assert "every size stays; --max-bytes and --dim ask" in run(cli, "shrink module.hlo --report")
    assert [path.name for path in Path().iterdir()] == ["module.hlo"]


def test_a_record_holds_all(cli: CommandLine) -> None:
    record = read_record(run(cli, "shrink module.hlo --max-bytes 1M --json"))
    assert record["argument_bytes"] < 1 << 20 < record["argument_bytes_before"]
    assert {change["before"] for change in record["changes"]} >= {4096}


def test_what_is_no_size_is_refused(cli: CommandLine) -> None:
    assert "'a=b' is not of the form 8192=64" in run(cli, "shrink module.hlo --dim a=b", 2)
    assert "--dim 64=128 makes a size larger" in run(cli, "shrink module.hlo --dim 64=128", 2)
    assert "cannot shrink to 10 bytes" in run(cli, "shrink module.hlo --max-bytes 10", 1)
    assert "no dimension of that size" in run(cli, "shrink module.hlo --keep 7777 --max-bytes 1M", 2)
    assert "cannot both stay and become 8" in run(cli, "shrink module.hlo --dim 512=8 --keep 512", 2)


def test_run_shrinks_a_module_first(cli: CommandLine) -> None:
    report = run(cli, "run module.hlo --shrink 1M")
    assert "peak memory" in report and "f32[1024,4096]" not in report
    assert "shrunken: inputs take" in report and "instead of 35.7 MB" in report
    assert "shrunken" not in run(cli, "run module.hlo --shrink 1G")


def test_a_module_that_is_too_large_is_offered_to_shrink(cli: CommandLine) -> None:
    Path("module.hlo").write_text(PERCEPTRON.replace("512", "51200000"))
    assert "hloexec run module.hlo --shrink" in run(cli, "run module.hlo", 1)


GATHER = """HloModule gather, num_partitions=16

ENTRY main {
  x = f32[4,3] parameter(0)
  ROOT whole = f32[64,3] all-gather(x), channel_id=1, replica_groups=[1,16]<=[16], dimensions={0}, use_global_device_ids=true
}
"""


def test_fewer_devices(cli: CommandLine) -> None:
    Path("module.hlo").write_text(GATHER)
    report = run(cli, "shrink module.hlo --devices 4 -o small.hlo")
    assert "1 size changed, for 4 devices of 16, written to small.hlo" in report
    assert hloexec.load("small.hlo").entry.result_shape.dimensions == (16, 3)
    record = read_record(run(cli, "shrink module.hlo --devices 4 --json"))
    assert (record["devices"], record["devices_before"]) == (4, 16)
    assert record["axes"] == [{"before": 16, "after": 4, "stride": 1}]
    assert read_record(run(cli, "shrink module.hlo --json"))["axes"] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0", "devices must be at least 1, but is 0"),
        ("3", "16 devices, a grid of 16, cannot become 3: possible are 8, 4, 2, 1"),
        ("16", "devices is 16, but module gather has 16, and can only have fewer"),
        ("2x2", "the devices form a grid of 16, which cannot become 2 × 2: each axis needs a size that divides it"),
        ("-4", "'-4' is not a number, or of the form 2x2"),
        ("four", "'four' is not a number, or of the form 2x2"),
        ("2x", "'2x' is not a number, or of the form 2x2"),
        ("2x" + "9" * 5000, "is not a number, or of the form 2x2"),
        ("4 --dim 64=32", "size 64 cannot become 32: it is the product of 4 and 16, and follows them"),
    ],
)
def test_a_wrong_number_of_devices_is_refused(cli: CommandLine, given: str, message: str) -> None:
    Path("module.hlo").write_text(GATHER)
    assert message in run(cli, f"shrink module.hlo --devices {given}", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--dim 1024=2048", "--dim 1024=2048 makes a size larger"),
        ("--dim 1024=8 --dim 1024=16", "1024 becomes 8 and 16"),
        ("--dim 0=1", "a size in --dim must be at least 1, but is 0"),
        ("--dim 8=0", "what --dim says of 8 must be at least 1, but is 0"),
        ("--dim 1024=8 --keep 1024", "size 1024 cannot both stay and become 8"),
        ("--keep 7", "size 7 cannot stay: the module has no dimension of that size"),
        ("--dim 7=3", "size 7 cannot become 3: the module has no dimension of that size"),
        ("--devices 0", "--devices must be at least 1, but is 0"),
        ("--devices 2", "is for one device, and cannot have fewer"),
    ],
)
def test_messages_say_what_was_typed(options: str, message: str, cli: CommandLine) -> None:
    assert message in run(cli, f"shrink module.hlo {options}", 2)
