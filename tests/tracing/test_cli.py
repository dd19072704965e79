"""`hloexec trace` as its users meet it."""

import os
import shlex
from pathlib import Path

import numpy as np
import pytest

import hloexec
from tests.command_line import CommandLine
from tests.exec.programs import COUNTING_LOOP
from tests.text.building import op


@pytest.fixture
def loop(tmp_path: Path) -> str:
    (tmp_path / "loop.hlo").write_text(COUNTING_LOOP)
    np.savez(tmp_path / "x.npz", x=np.arange(4, dtype=np.float32))
    return str(tmp_path / "loop.hlo")


def test_the_verdict_comes_first_then_what_stands_out_then_the_next_command(
    loop: str, tmp_path: Path, cli: CommandLine
) -> None:
    folder = str(tmp_path / "t")
    lines = cli("trace", loop, "-o", folder, "--inputs", tmp_path / "x.npz", "--top", "1").splitlines()
    assert lines[0].startswith("traced counting: 63 values of 15 instructions, ") and lines[0].endswith(folder)
    rows = [line for line in lines if "f32[4]" in line]
    assert len(rows) == 1 and " 96 " in rows[0]  # the largest: 3 · 2^5
    assert "next:" in lines
    (command,) = [shlex.split(line) for line in lines if line.startswith("  hloexec extract")]
    assert command[2:4] == [loop, "--instruction"] and "--inputs" in command
    assert len(list(hloexec.read_trace(folder))) == 63


def test_the_command_that_is_suggested_works(loop: str, empty_folder: Path, cli: CommandLine) -> None:
    (command,) = [line for line in cli("trace", loop, "-o", "t").splitlines() if line.startswith("  hloexec extract")]
    assert "it gives the same bits" in cli(*shlex.split(command)[1:])


def test_json_holds_the_same(loop: str, tmp_path: Path, cli: CommandLine) -> None:
    record = cli.record("trace", loop, "-o", tmp_path / "t", "--select", "doubled", "--stats-only")
    assert record["events"] == 5 and record["instructions"] == 1 and record["statistics_only"]
    assert record["remarkable"][0]["name"] == "loop[4]:body/doubled"


def test_values_that_are_not_finite_come_first_and_lead_to_nan(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "m.hlo").write_text(op("f32[2] divide(x, x)", x="f32[2]"))
    np.savez(tmp_path / "x.npz", x=np.array([0, 1e30], np.float32))
    out = cli("trace", tmp_path / "m.hlo", "-o", tmp_path / "t", "--inputs", tmp_path / "x.npz")
    rows = [line.split()[0] for line in out.splitlines() if "f32[2]" in line]
    assert rows == ["root"] and "hloexec nan" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{loop}"], 2, "Missing option '-o'"),
        (["{missing}", "-o", "{new}"], 2, "cannot read"),
        (["-o", "{new}"], 2, "Missing argument 'FILE'"),
        (["{loop}", "-o", "{full}"], 2, "is not empty"),
        (["{loop}", "-o", "{loop}"], 2, "is a file, not a folder"),
        (["{loop}", "-o", "{loop}/below"], 2, "cannot be written to"),
        (["{loop}", "-o", ""], 2, "is empty"),
        ("{loop} -o {new} --select doubeld".split(), 2, "did you mean 'doubled'"),
        ("{loop} -o {new} --select name:".split(), 2, "selects nothing"),
        ("{loop} -o {new} --disk-limit much".split(), 2, "is not a number of bytes"),
        ("{loop} -o {new} --disk-limit 3".split(), 1, "the limit that was given"),
        ("{loop} -o {new} --inputs {wrong}".split(), 2, "f32[4] is expected"),
        ("{loop} -o {new} --inputs {cut}".split(), 2, "not a complete .npz file"),
        ("{loop} -o {new} --inputs {wrong} --inputs {wrong}".split(), 2, "once for all devices"),
        ("{loop} -o {new} --numerics best".split(), 2, "unknown numerics policy"),
        ("{loop} -o {new} --input y={wrong}".split(), 2, "no parameter 'y'"),
        (["{text}", "-o", "{new}"], 2, "error:"),
    ],
)
def test_wrong_uses_say_what_is_wrong_and_leave_no_folder(
    arguments: list[str], code: int, message: str, loop: str, tmp_path: Path, cli: CommandLine
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    (tmp_path / "text").write_text("this is no module")
    np.savez(tmp_path / "wrong.npz", x=np.ones(3, np.float32))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:40])
    places = {name: str(tmp_path / name) for name in "missing new full text".split()}
    places |= {"loop": loop, "wrong": str(tmp_path / "wrong.npz"), "cut": str(tmp_path / "cut.npz")}
    captured = cli.ended("trace", *(argument.format(**places) for argument in arguments), code=code)
    assert message in captured.err and "Traceback" not in captured.err and not captured.out
    assert not os.path.exists(tmp_path / "new") and os.listdir(tmp_path / "full") == ["note"]
