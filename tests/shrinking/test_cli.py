"""`hloexec shrink` and `hloexec run --shrink`."""

from __future__ import annotations

from pathlib import Path

import pytest

import hloexec
from hloexec.cli import main
from tests.records import read_record
from tests.shrinking.test_shrink import PERCEPTRON


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("module.hlo").write_text(PERCEPTRON)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], words: str, code: int = 0) -> str:
    assert main(words.split()) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_the_smaller_module_is_printed_or_written(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "shrink module.hlo --dim 1024=8 --dim 4096=16 --keep 512")
    module = hloexec.parse(text)
    assert [shape.dimensions for shape in module.entry.parameter_shapes] == [(512, 8), (8, 16), (16, 8)]
    report = run(capsys, "shrink module.hlo --dim 1024=8 --dim 4096=16 --keep 512 -o small.hlo")
    assert Path("small.hlo").read_text() == text
    for words in ("3 sizes changed" if "3 sizes" in report else "2 sizes changed", "written to small.hlo", "x[1]"):
        assert words in report
    assert "follows the size" in report


def test_a_report_alone_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, "shrink module.hlo --max-bytes 1M --report")
    assert "inputs" in report and "HloModule" not in report
    assert [path.name for path in Path().iterdir()] == ["module.hlo"]


def test_a_record_holds_all(capsys: pytest.CaptureFixture[str]) -> None:
    record = read_record(run(capsys, "shrink module.hlo --max-bytes 1M --json"))
    assert record["argument_bytes"] < 1 << 20 < record["argument_bytes_before"]
    assert {change["size"] for change in record["size_changes"]} >= {4096}


def test_what_is_no_size_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'a=b' is not of the form 8192=64" in run(capsys, "shrink module.hlo --dim a=b", 2)
    assert "dims makes 64 larger" in run(capsys, "shrink module.hlo --dim 64=128", 2)
    assert "cannot shrink to 10 bytes" in run(capsys, "shrink module.hlo --max-bytes 10", 1)


def test_run_shrinks_a_module_first(capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, "run module.hlo --shrink 1M")
    assert "peak memory" in report and "f32[1024,4096]" not in report
    assert "shrunken: inputs take" in report and "instead of 35.7 MB" in report
    assert "shrunken" not in run(capsys, "run module.hlo --shrink 1G")


def test_a_module_that_is_too_large_is_offered_to_shrink(capsys: pytest.CaptureFixture[str]) -> None:
    Path("module.hlo").write_text(PERCEPTRON.replace("512", "51200000"))
    assert "hloexec run module.hlo --shrink" in run(capsys, "run module.hlo", 1)
