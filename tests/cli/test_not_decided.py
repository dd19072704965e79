"""*Not decided* in each command that has a verdict: its exit code, what it says, and what it says as JSON."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from tests.command_line import CommandLine
from tests.here import triaging_here
from tests.text.building import module

ELIDED = module(
    """x = f32[4] parameter(0)
    c = f32[4] constant({...})
    y = f32[4] add(x, c)
    z = f32[4] multiply(x, x)
    ROOT t = (f32[4], f32[4]) tuple(y, z)"""
)
X = np.arange(4, dtype=np.float32)
C = np.array([1, 2, 3, 4], np.float32)


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> None:
    Path("m.hlo").write_text(ELIDED)
    np.savez("in.npz", X)
    np.savez("c.npz", c=C)
    np.savez("right.npz", X + C, X * X)
    np.savez("wrong.npz", X + C, X * X + 1)
    np.savez("zeros.npz", X, X * X)


def as_json(cli: CommandLine, line: str, code: int) -> Any:
    return cli.record(line, code=code)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--against right.npz", 3),
        ("--against wrong.npz", 1),
        ("--against zeros.npz", 0),
        ("--against right.npz --elided c.npz", 0),
        ("--against zeros.npz --elided c.npz", 1),
        ("--against tf32", 0),
        ("--against m.hlo", 0),
    ],
)
def test_run_against(options: str, code: int, cli: CommandLine) -> None:
    out = cli(f"run m.hlo --inputs in.npz {options}", code=code)
    assert ("\nnot decided  1 of 2 arrays\n" in out) == (code == 3)
    if code == 3:
        assert "0: no element is decided, since %c is elided in the text; a dump with --xla_dump_large_constants" in out


def test_against_another_text_constants_that_both_elide_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.hlo").write_text(ELIDED.replace("multiply", "add"))
    assert main("run m.hlo --inputs in.npz --against other.hlo".split()) == 1
    whole = ELIDED.replace("{...}", "{1,2,3,4}")
    Path("whole.hlo").write_text(whole)
    assert main("run m.hlo --inputs in.npz --against whole.hlo".split()) == 3
    assert main("run whole.hlo --inputs in.npz --against right.npz".split()) == 0


@pytest.mark.parametrize("options", ["", " --inputs in.npz"])
def test_compare(options: str, cli: CommandLine) -> None:
    record = as_json(cli, f"compare zeros.npz right.npz --module m.hlo{options}", 3)
    assert record["verdict"] == "not decided" and not record["agrees"]
    first, second = record["leaves"]
    assert first["undecided"] == {
        "element_count": 4,
        "first": [[0], [1], [2], [3]],
        "instructions": ["main/c"],
        "reason": first["undecided"]["reason"],
    }
    assert second["undecided"] is None and second["verdict"] == "equal"
    record = as_json(cli, f"compare zeros.npz wrong.npz --module m.hlo{options}", 1)
    assert [leaf["verdict"] for leaf in record["leaves"]] == ["not decided", "different"]


def test_golden_check(cli: CommandLine) -> None:
    cli("golden record m.hlo --inputs in.npz --expected right.npz -o g.golden", code=3)
    record = as_json(cli, "golden check g.golden", 3)
    assert record["checks"][0]["outcome"] == "not_decided"
    out = cli("golden check g.golden", code=3)
    assert out.startswith(
        "1 not decided  of 1 golden\n\nnot decided g.golden  not decided: 1 of 2 leaves; 0: no element"
    )
    cli("golden record m.hlo --inputs in.npz --expected wrong.npz -o w.golden", code=1)
    cli("golden check g.golden w.golden", code=1)
    # What hloexec has recorded, it has recorded with the same constants.
    cli("golden record m.hlo --inputs in.npz -o ours.golden")
    cli("golden check ours.golden")
    Path("other.hlo").write_text(ELIDED.replace("multiply", "add"))
    cli("golden check ours.golden --module other.hlo", code=1)


def test_triage(cli: CommandLine) -> None:
    Path("night").mkdir()
    for name, text in (("a", "right"), ("b", "zeros")):
        Path(f"night/{name}.hlo").write_text(ELIDED)
        Path(f"night/{name}.inputs.npz").write_bytes(Path("in.npz").read_bytes())
        Path(f"night/{name}.expected.npz").write_bytes(Path(f"{text}.npz").read_bytes())
    with triaging_here():
        record = as_json(cli, "triage night --jobs 1", 3)
        assert [each["outcome"] for each in record["modules"]] == ["not decided", "agree"]
        Path("night/b.expected.npz").write_bytes(Path("wrong.npz").read_bytes())
        assert main("triage night --jobs 1".split()) == 1


def test_explain(cli: CommandLine) -> None:
    record = as_json(cli, "explain m.hlo --inputs in.npz --expected right.npz", 3)
    assert record["verdict"] == "not decided" and record["left_open"][0].startswith("0: no element is decided")
    assert cli("explain m.hlo --inputs in.npz --expected right.npz", code=3).startswith(
        "not decided: what rounding does not explain is left open\n"
    )
    cli("explain m.hlo --inputs in.npz --expected wrong.npz", code=1)
    cli("explain m.hlo --inputs in.npz --expected right.npz --elided c.npz")


def test_a_result_of_an_unknown_library_call_is_not_decided() -> None:
    text = ELIDED.replace("constant({...})", 'custom-call(x), custom_call_target="nobody"')
    Path("u.hlo").write_text(text)
    assert main("run u.hlo --inputs in.npz --unknown zeros --against right.npz".split()) == 3
    assert main("run u.hlo --inputs in.npz --unknown zeros --against wrong.npz".split()) == 1


def test_a_test_of_a_golden_fails_where_nothing_can_be_said() -> None:
    folder = hloexec.record_golden(hloexec.load("m.hlo"), [X], "g.golden", expected=(X + C, X * X)).folder
    found = hloexec.check_golden(folder)
    assert not found.passed and found.message.startswith("not decided: 1 of 2 leaves; 0: no element is decided")
