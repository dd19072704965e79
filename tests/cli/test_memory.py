"""`hloexec memory` as its users meet it: verdict, tables, JSON, exit codes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hloexec.cli import main
from tests.buffers.dumps import seed_dump, xla_dumps
from tests.buffers.test_comparison import ASSIGNMENT, MODULE
from tests.records import read_record


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "m.hlo").write_text(MODULE)
    return str(tmp_path / "m.hlo")


def write(tmp_path: Path, content: str | bytes) -> str:
    path = tmp_path / "assignment.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_the_tpu_dump_agrees_and_shows_every_live_range_beside_xlas(capsys: pytest.CaptureFixture[str]) -> None:
    dump = seed_dump()
    assert main(["memory", str(dump.module), "--assignment", str(dump.parts[0]), "--top", "0"]) == 0
    out = capsys.readouterr().out
    first = out.splitlines()[0]
    assert first.startswith("agrees  XLA allocates 2.9 GB (2 885 767 252 bytes); at most ")
    assert first.endswith("83 of 83 live ranges agree")
    ranges = out.partition("\nlive ranges")[2].partition("\nalive at")[0].strip().splitlines()[2:]
    assert len(ranges) == 83
    assert all(row.split()[-1] == row.split()[-2] for row in ranges)
    assert not any(line != line.rstrip() for line in out.splitlines())


@pytest.mark.slow
def test_the_files_that_xla_cpu_writes_are_given_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    dump = next(dump for dump in xla_dumps() if "carried" in dump.name)
    options = [text for part in dump.parts for text in ("--assignment", str(part))]
    assert main(["memory", str(dump.module), *options, "--json"]) == 0
    record = read_record(capsys.readouterr().out)
    found = record["assignment"]
    assert found["agrees"] and found["range_count"] == found["range_agreements"] > 20
    ranges = {(each["instruction"], *each["index"]): (each["start"], each["end"]) for each in record["values"]}
    listed = {(each["instruction"], *each["index"]): (each["start"], each["end"]) for each in found["listed_ranges"]}
    assert all(listed[key] == live for key, live in ranges.items())
    assert found["peak_time"] == record["peak"]["time"] or found["listed_peak_bytes"]


def test_a_module_alone_shows_its_largest_buffers(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", module, "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "m  at most 256 B are alive at once, at %c"
    assert "alive at 3 (our peak)  4 buffers, 256 bytes" in out
    assert "… and 2 more (--top 0 shows all)" in out
    # sin, cos and their sum, 64 bytes each; p is the caller's.
    assert [line.split()[4:6] for line in out.splitlines() if line.startswith("hloexec's own run")] == [["192", "192"]]


def test_a_module_that_hloexec_cannot_run_is_looked_at_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] custom-call(x), custom_call_target="?" }'
    (tmp_path / "m.hlo").write_text(text)
    assert main(["memory", str(tmp_path / "m.hlo")]) == 0
    out = capsys.readouterr().out
    assert "at most 32 B are alive at once" in out and "own run" not in out


def test_an_unscheduled_module_says_whose_order_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.hlo").write_text(MODULE.replace(", is_scheduled=true", ""))
    assert main(["memory", str(tmp_path / "m.hlo")]) == 0
    assert "not scheduled: the order is the one hloexec runs in" in capsys.readouterr().out


def test_a_difference_is_shown_and_exits_with_1(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = write(tmp_path, ASSIGNMENT.replace("a{}:1-3", "a{}:1-2"))
    assert main(["memory", module, "--assignment", wrong]) == 1
    out = capsys.readouterr().out
    assert out.startswith("differs  XLA allocates 320 B (320 bytes); ")
    assert out.splitlines()[0].endswith("3 of 4 live ranges agree")
    differing = [line.split() for line in out.splitlines() if line.startswith("live range ")]
    assert differing == [["live", "range", "a", "1-2", "1-3"]]


def test_what_xla_allocates_is_taken_apart_without_a_rest(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", module, "--assignment", write(tmp_path, ASSIGNMENT)]) == 0
    out = capsys.readouterr().out
    # 320 bytes: 64 between a and b are never used; the rest is alive at the addition.
    rows = {line[:26].strip(): line[26:].split()[0] for line in out.splitlines()[3:8]}
    assert rows == {
        "allocated by XLA": "320",
        "gaps and padding": "64",
        "at different times": "0",
        "in use at once, at most": "256",
        "alive at once, at most": "256",
    }


def test_totals_alone_are_shown_as_not_compared(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", module, "--assignment", write(tmp_path, "Total bytes used: 320 (320B)\n")]) == 0
    assert capsys.readouterr().out.startswith("not compared  XLA allocates 320 B")


def test_an_assignment_may_be_gzipped(module: str, tmp_path: Path) -> None:
    assert main(["memory", module, "--assignment", write(tmp_path, gzip.compress(ASSIGNMENT.encode()))]) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; expected a buffer assignment"),
        (b" \n\n", "is empty; expected a buffer assignment"),
        (b"\x7fELF\x00\x01\xff\xfe", "is not text"),
        (b"\x1f\x8b\x08\x00broken", "cannot unpack"),
        (MODULE.encode(), "expected a buffer assignment, which begins with"),
        (ASSIGNMENT[:400].encode(), "expected"),
        (ASSIGNMENT.replace("size=64", "size=" + "9" * 30).encode(), "does not fit 63 bits"),
        (ASSIGNMENT.replace("f32[16]{0}", "f32[16]{1}").encode(), "assignment.txt:3:"),
        (ASSIGNMENT.replace(" a ", " other ").replace("a{}", "x{}").encode() + b"more\n", "found 'more'"),
        (ASSIGNMENT.replace("(max 4)", "(max 5)").encode(), "expected 5 instructions in the sequence, found 4"),
    ],
)
def test_files_that_are_no_assignment_are_refused_with_a_reason(
    content: bytes, message: str, module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", module, "--assignment", write(tmp_path, content)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error:") and message in error and "Traceback" not in error


def test_the_assignment_of_another_module_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.hlo").write_text("HloModule other\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] sine(x) }")
    assert main(["memory", str(tmp_path / "m.hlo"), "--assignment", write(tmp_path, ASSIGNMENT)]) == 2
    assert "the buffer assignment is of another module: 4 of the 4 instructions" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-", "--assignment", "-"], "cannot both come from standard input"),
        (["m", "--top", "-1"], "-1 is not in the range"),
        (["m", "--top", "many"], "is not a valid integer"),
        (["m", "--assignments", "x"], "No such option"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", module, "--assignment", str(tmp_path / "nothing")]) == 2
    assert f"cannot read {tmp_path / 'nothing'}" in capsys.readouterr().err
