"""`hloexec shadow` as its users meet it."""

from pathlib import Path

import numpy as np
import pytest

import hloexec
from hloexec.language import literals
from tests.command_line import CommandLine
from tests.shadowing.test_truth import ADD, parsed


@pytest.fixture
def variance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    module = parsed(
        """x = T[4,256] parameter(0)
        z = T[] constant(0)
        part = T[4] constant({0.00390625,0.00390625,0.00390625,0.00390625})
        total = T[4] reduce(x, z), dimensions={1}, to_apply=add
        mean = T[4] multiply(total, part)
        square = T[4,256] multiply(x, x)
        squares = T[4] reduce(square, z), dimensions={1}, to_apply=add
        mean_square = T[4] multiply(squares, part)
        squared_mean = T[4] multiply(mean, mean)
        ROOT variance = T[4] subtract(mean_square, squared_mean), metadata={source_file="spread.py" source_line=7}""",
        "f32",
        computations=ADD,
    )
    (tmp_path / "variance.hlo").write_text(hloexec.format(module))
    x = 100 + np.random.default_rng(0).random((4, 256), np.float32)
    literals.save(tmp_path / "x.npz", (x,))
    monkeypatch.chdir(tmp_path)
    return ["variance.hlo", "--inputs", "x.npz"]


def test_the_culprit_is_one_line_then_digits_losses_and_the_next_command(variance: list[str], cli: CommandLine) -> None:
    lines = cli("shadow", *variance).splitlines()
    assert lines[0].startswith("%variance: cancellation, 100% of the error of the outputs")
    assert "  from spread.py:7" in lines
    assert any(line.split()[:2] == ["100.0%", "cancellation"] for line in lines)
    assert lines[-1].startswith("  hloexec extract variance.hlo --instruction variance")
    assert not any(line != line.rstrip() for line in lines)


def test_json_says_the_same(variance: list[str], cli: CommandLine) -> None:
    record = cli.record("shadow", *variance, "--samples", "4")
    (output,), first = record["outputs"], record["losses"][0]
    assert (first["kind"], first["name"], first["source"]) == ("cancellation", "variance", ["spread.py:7"])
    assert record["is_more_than_rounding"] and record["samples"] == 4
    assert output["digits"] < 4 < 7
    (sampled,) = record["digits"]
    assert sampled["index"] == output["index"] and sampled["low"] <= sampled["digits"] <= sampled["high"]


def test_samples_add_an_interval(variance: list[str], cli: CommandLine) -> None:
    printed = cli("shadow", *variance, "--samples", "3")
    assert "3 runs, 95%" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--samples 1", "at least 2"),
        ("--samples -3", "--samples"),
        ("--samples 2 --numerics random-rounding:4", "random"),
        ("--numerics exactly", "exactly"),
        ("--top x", "--top"),
        ("--sample 2", "--samples"),
    ],
)
def test_wrong_options_end_with_2(arguments: str, message: str, variance: list[str], cli: CommandLine) -> None:
    assert message in cli.complaint("shadow", *variance, *arguments.split())


def test_a_missing_file_ends_with_2(cli: CommandLine) -> None:
    assert "nothing.hlo" in cli.complaint("shadow nothing.hlo")


def test_notebooks_show_what_the_command_shows(variance: list[str]) -> None:
    module = hloexec.load(variance[0])
    found = hloexec.shadow(module, literals.load("x.npz"))
    html = found._repr_html_()
    assert html is not None and "cancellation" in html and "spread.py:7" in html
    assert repr(found) == "<ShadowRun %variance in e: cancellation, 100% of the error of the outputs>"
