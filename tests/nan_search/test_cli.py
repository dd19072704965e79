"""`hloexec nan` as its users meet it."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from hloexec.language import literals
from tests.command_line import CommandLine
from tests.nan_search.programs import OVERFLOWING_LINE, batches, train
from tests.text.building import op

jax = pytest.importorskip("jax", reason="JAX lowers the programs")


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    values = batches(7)
    (tmp_path / "train.hlo").write_text(jax.jit(train).lower(*values).as_text("hlo", debug_info=True))
    literals.save(tmp_path / "batches.npz", tuple(values))
    monkeypatch.chdir(tmp_path)
    return ["train.hlo", "--inputs", "batches.npz"]


def test_a_finding_is_one_line_then_its_parts_then_the_next_command(training: list[str], cli: CommandLine) -> None:
    lines = cli("nan", *training, code=1).splitlines()
    assert lines[0].endswith("overflows in iteration 7: overflow of f32, 1 of 8 elements")
    assert " = f32[8]{0} multiply(" in lines[2]
    assert any(f"programs.py:{OVERFLOWING_LINE} in loss" in line for line in lines)
    assert any(line.split()[:2] == ["[3]", "inf"] for line in lines)
    assert any(line.startswith("what led to it") for line in lines)
    assert not any(line != line.rstrip() for line in lines)
    # The command that is suggested works as it is.
    (command,) = [line for line in lines if line.startswith("  hloexec extract")]
    assert "it gives the same bits" in cli(*shlex.split(command)[1:])


def test_json_holds_the_same(training: list[str], cli: CommandLine) -> None:
    record = cli.record("nan", *training, code=1)
    finding = record["finding"]
    assert record["found"] and finding["kind"] == "overflow" and finding["iteration"] == 7
    assert finding["source"][0].endswith(f"programs.py:{OVERFLOWING_LINE} in loss")
    assert finding["elements"][0]["value"] == "inf" and finding["elements"][0]["index"] == [3]
    assert [link["maximum"] for link in finding["chain"]] == pytest.approx([1e25, 4e25], rel=1e-6)


def test_nothing_found_exits_with_0_and_names_what_was_thrown_away(tmp_path: Path, cli: CommandLine) -> None:
    text = """HloModule m
ENTRY e { x = f32[2] parameter(0)
  l = f32[2] log(x)
  ok = pred[2] compare(x, l), direction=GT
  ROOT r = f32[2] select(ok, x, x) }"""
    (tmp_path / "m.hlo").write_text(text)
    np.savez(tmp_path / "x.npz", x=np.array([1, -1], np.float32))
    given = [str(tmp_path / "m.hlo"), "--inputs", str(tmp_path / "x.npz")]
    out = cli("nan", *given)
    assert (
        out.startswith("nothing found")
        and "1 instruction produced NaN or infinities that did not reach the result; first: l, logarithm of a" in out
        and "NaN were compared, and are neither equal to anything nor smaller nor larger: ok" in out
    )
    (command,) = [line for line in out.splitlines() if line.startswith("  hloexec nan")]
    assert cli(*shlex.split(command)[1:], code=1).startswith(
        "%l makes NaN of finite numbers: logarithm of a negative number"
    )


def test_an_overflow_that_a_quotient_has_made_zero_is_mentioned_beside_the_finding(
    tmp_path: Path, cli: CommandLine
) -> None:
    text = """HloModule m
ENTRY e { x = f32[2] parameter(0)
  big = f32[2] exponential(x)
  small = f32[2] divide(x, big)
  ROOT r = f32[2] divide(small, small) }"""
    (tmp_path / "m.hlo").write_text(text)
    np.savez(tmp_path / "x.npz", x=np.array([1, 1000], np.float32))
    out = cli("nan", tmp_path / "m.hlo", "--inputs", tmp_path / "x.npz", code=1)
    assert out.startswith("%r makes NaN of finite numbers: zero divided by zero")
    assert "that did not reach the result; first: big, overflow of f32" in out


def test_nan_in_the_inputs_is_a_finding_of_its_own(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "m.hlo").write_text(op("f32[2] negate(x)", x="f32[2]"))
    np.savez(tmp_path / "x.npz", x=np.array([1, np.nan], np.float32))
    assert cli("nan", tmp_path / "m.hlo", "--inputs", tmp_path / "x.npz", code=1).startswith(
        "the inputs hold NaN that reach the result: %x"
    )


def test_top_limits_the_elements(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "m.hlo").write_text(op("f32[100] log(x)", x="f32[100]"))
    given = ["nan", str(tmp_path / "m.hlo"), "--distribution", "zeros", "--top", "3"]
    out = cli(*given, code=1)
    assert "the first 3 of 100" in out and out.count("-inf") == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("", 2, "Missing argument 'FILE'"),
        ("missing.hlo", 2, "cannot read"),
        ("train.hlo --also nonsense", 2, "'nonsense' is not one of"),
        ("train.hlo --share 2 --also underflow", 2, "is not in the range"),
        ("train.hlo --share 0.5", 2, "--share applies to --also"),
        ("train.hlo --top -1", 2, "is not in the range"),
        ("train.hlo --inputs missing.npz", 2, "cannot read 'missing.npz'"),
        ("train.hlo --inputs wrong.npz", 2, "belongs to no parameter"),
        ("train.hlo --inputs train.hlo", 2, "holds no values: it is no .npz or .npy file"),
        ("train.hlo --numerics best", 2, "unknown numerics policy"),
        ("train.hlo --elided ones", 2, "is not one of zeros, random, error"),
        ("train.hlo --memory-limit 1", 2, "the limit that was given"),
        ("train.hlo --nonsense", 2, "No such option"),
        ("wrong.npz", 2, "error:"),
    ],
)
def test_wrong_uses_say_what_is_wrong(
    arguments: str, code: int, message: str, training: list[str], cli: CommandLine
) -> None:
    np.savez("wrong.npz", nonsense=np.ones(3, np.float32))
    captured = cli.ended(f"nan {arguments}", code=code)
    assert message in captured.err and "Traceback" not in captured.err and not captured.out


def test_nan_of_the_inputs_that_only_a_comparison_saw_are_said_beside_what_they_led_to(
    tmp_path: Path, cli: CommandLine
) -> None:
    (tmp_path / "m.hlo").write_text("""HloModule m
ENTRY e {
  x = f32[3] parameter(0)
  y = f32[3] parameter(1)
  is_same = pred[3] compare(x, y), direction=EQ
  ones = f32[3] convert(is_same)
  ROOT r = f32[3] divide(ones, ones)
}
""")
    np.savez(tmp_path / "in.npz", **{"0": np.array([1, np.nan, 2], np.float32), "1": np.array([1, 1, 2], np.float32)})
    lines = cli("nan", tmp_path / "m.hlo", "--inputs", tmp_path / "in.npz", code=1).splitlines()
    assert lines[0] == "%r makes NaN of finite numbers: zero divided by zero, 1 of 3 elements"
    assert lines[1] == "the inputs hold NaN: %x[1], 1 of 3 elements"
    assert lines[2].endswith(": is_same")
