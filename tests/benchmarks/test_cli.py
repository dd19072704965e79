"""`python -m benchmarks` given what it cannot take: a sentence that says so, and nothing measured."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.policies import POLICIES
from tests.benchmarks.test_results import MODULE, measurement

pytest.importorskip("jax")
pytest.importorskip("flax")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["modules", "newtn"], "there is no module 'newtn'; there are transformer"),
        ("modules newton --scale 0".split(), "'--scale': 0.0 is not in the range"),
        ("modules newton --scale 2".split(), "'--scale': 2.0 is not in the range"),
        ("modules newton --turns 0".split(), "'--turns': 0 is not in the range"),
        ("modules newton --turns x".split(), "'x' is not a valid integer"),
        ("modules newton --cold-turns 0".split(), "'--cold-turns': 0 is not in the range"),
        (["modules", "newton", "--write", __file__], "is a file"),
        (["apart"], "Missing argument 'NAMES...'"),
        (["apart", "newtn"], "there is no module 'newtn'; there are transformer"),
        (["limits", "newtn"], "there is no module 'newtn'; there are transformer"),
        ("limits newton --scale 1.5".split(), "'--scale': 1.5 is not in the range"),
        ("limits newton --turns 0".split(), "'--turns': 0 is not in the range"),
        (["policies", "newtn"], "there is no program 'newtn'; there are transformer"),
        (["opcodes", "addd"], "there is no opcode 'addd' here"),
        (["parsing", "/nowhere"], "'/nowhere' does not exist"),
        (["compare", "/nowhere", "/nowhere"], "'/nowhere' does not exist"),
        (["compare", __file__], "Missing argument 'NEW'"),
        (["compare", __file__, __file__], "is not JSON"),
    ],
)
def test_a_wrong_call_is_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code != 0
    assert message in done.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "it has no modules"),
        ({"modules": 3}, "it has no modules"),
        ({"modules": {}, "schema": 99}, "is of schema 99"),
        (measurement(other=MODULE), "no module in common"),
    ],
)
def test_a_file_that_is_no_measurement_is_refused(content: object, message: str, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps(content))
    (tmp_path / "new.json").write_text(json.dumps(measurement(newton=MODULE)))
    done = CliRunner().invoke(main, ["compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")])
    assert done.exit_code == 1
    assert message in done.output


def test_a_dump_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HLOEXEC_SEEDS", str(tmp_path))
    done = CliRunner().invoke(main, ["modules", "dump-002"])
    assert done.exit_code == 2
    assert "dump-002 is a dump that is missing" in done.output


def test_modules_are_written_and_not_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["modules", "newton", "--scale", "0.1", "--write", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "newton.hlo").read_text().startswith("HloModule jit_cube_root")


def test_policies_are_timed_beside_reference() -> None:
    done = CliRunner().invoke(main, "policies norm-softmax --scale 0.02 --turns 1".split())
    assert done.exit_code == 0
    header, _, row = (line.strip("| ").split("|") for line in done.output.strip().splitlines())
    assert [cell.strip() for cell in header] == ["program", "reference ms", *POLICIES]
    assert row[0].strip() == "norm-softmax" and all(float(cell) > 0 for cell in row[1:])


@pytest.mark.slow
def test_modules_too_large_to_be_there_twice_are_run_one_after_the_other() -> None:
    done = CliRunner().invoke(main, "apart newton --scale 0.1".split())
    assert done.exit_code == 0, done.output
    lines = done.output.strip().splitlines()
    assert [what in line for what, line in zip(("first output", "warm", "grown by"), lines, strict=True)] == [True] * 3
