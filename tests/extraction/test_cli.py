"""`hloexec extract` as its users meet it."""

import os
import shlex
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.command_line import CommandLine
from tests.exec.programs import COUNTING_LOOP
from tests.extraction.test_extract import SUMMED


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "loop.hlo").write_text(COUNTING_LOOP)
    (tmp_path / "summed.hlo").write_text(SUMMED)
    np.savez(tmp_path / "x.npz", x=np.arange(4, dtype=np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_verdict_comes_first_and_the_next_command_works(cli: CommandLine) -> None:
    lines = cli("extract loop.hlo --instruction doubled --iteration 3 --inputs x.npz -o s").splitlines()
    assert lines[0] == "extracted loop[3]:body/doubled: 1 instruction, 1 input, in s; it gives the same bits"
    assert lines[2] == "  %doubled = f32[4] add(%x, %x)"
    assert sorted(os.listdir("s")) == "expected.npz inputs.npz module.hlo origin.json".split()
    with np.load("s/inputs.npz") as inputs, np.load("s/expected.npz") as expected:
        assert_array_equal(inputs["0"], np.arange(4) * 8)
        assert_array_equal(expected["value"], np.arange(4) * 16)
    (command,) = [line for line in lines if line.startswith("  hloexec run")]
    cli(*shlex.split(command)[1:], "--save", "again.npz")
    assert Path("again.npz").read_bytes() == Path("s/expected.npz").read_bytes()


def test_json_holds_the_same(cli: CommandLine) -> None:
    record = cli.record("extract loop.hlo --instruction loop[1]:body/doubled -o s")
    assert record["has_same_bits"] and record["iteration"] == 1 and record["instruction_count"] == 1
    assert record["parameters"] == [{"number": 0, "name": "x", "shape": "f32[4]", "byte_size": 16}]


def test_slices_of_several_devices_have_inputs_for_each(cli: CommandLine) -> None:
    (command,) = [
        line
        for line in cli("extract summed.hlo --instruction r --different-inputs -o s").splitlines()
        if line.startswith("  hloexec run")
    ]
    assert command.count("--inputs") == 2
    cli(*shlex.split(command)[1:], "--save", "again.npz")
    with np.load("again.npz") as again, np.load("s/expected.npz") as expected:
        assert sorted(again) == sorted(expected) == ["0", "1"]
        for key in again:
            assert_array_equal(again[key], expected[key])


def test_depth_and_cuts_shorten_the_slice(cli: CommandLine) -> None:
    assert "1 instruction, 2 inputs" in cli("extract summed.hlo --instruction r --depth 1 --device 1 -o a")
    assert "1 instruction, 2 inputs" in cli("extract summed.hlo --instruction r --cut h --device 1 -o b")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["loop.hlo", "-o", "s"], 2, "Missing option '--instruction'"),
        (["loop.hlo", "--instruction", "doubled"], 2, "Missing option '-o'"),
        ("missing.hlo --instruction doubled -o s".split(), 2, "cannot read"),
        ("loop.hlo --instruction doubeld -o s".split(), 2, "did you mean doubled"),
        ("loop.hlo --instruction i -o s".split(), 2, "2 computations have an instruction 'i'"),
        ("loop.hlo --instruction i --in main -o s".split(), 2, "computation main has no instruction 'i'"),
        ("loop.hlo --instruction doubled --iteration 7 -o s".split(), 2, "in the iterations 0 to 4"),
        ("loop.hlo --instruction doubled --iteration -1 -o s".split(), 2, "is not in the range"),
        ("loop.hlo --instruction doubled --depth 0 -o s".split(), 2, "is not in the range"),
        ("loop.hlo --instruction doubled --cut again -o s".split(), 2, "has no instruction 'again'"),
        ("loop.hlo --instruction loop --iteration 2 -o s".split(), 2, "ran outside of loops"),
        ("loop.hlo --instruction doubled --device 3 -o s".split(), 2, "has no device 3: it runs on one"),
        ("x.npz --instruction doubled -o s".split(), 2, "x.npz is not a module: it holds arrays of NumPy"),
        ("loop.hlo --instruction doubled -o .".split(), 2, "is not empty"),
        ("loop.hlo --instruction doubled -o loop.hlo".split(), 2, "is a file"),
        (
            "loop.hlo --instruction doubled --inputs loop.hlo -o s".split(),
            2,
            "holds no values: it is no .npz or .npy file",
        ),
        (["loop.hlo", "--instruction", "", "-o", "s"], 2, "has no instruction ''"),
    ],
)
def test_wrong_uses_say_what_is_wrong_and_leave_no_folder(
    arguments: list[str], code: int, message: str, cli: CommandLine
) -> None:
    captured = cli.ended("extract", *arguments, code=code)
    assert message in captured.err and "Traceback" not in captured.err and not captured.out
    assert not os.path.exists("s")
