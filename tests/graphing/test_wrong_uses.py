"""Wrong uses of `hloexec graph`: each is refused with exit code 2 (or 1, if it cannot be drawn here) and a message that
says what to do."""

import json
import shlex
from pathlib import Path

import pytest

import hloexec
from tests.command_line import CommandLine
from tests.graphing.programs import LOOP, SHARED


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    Path("m.hlo").write_text(LOOP)
    Path("shared.hlo").write_text(SHARED)
    Path("broken.hlo").write_text("HloModule m\nENTRY e {\n")
    Path("wrong.hlo").write_text(LOOP.replace("multiply(a, b)", "multiply(a, nobody)"))
    Path("text.json").write_text("no JSON")
    Path("list.json").write_text("[1, 2]")
    Path("run.json").write_text('{"schema": "hloexec.run", "version": 1}')
    Path("cut.json").write_text('{"schema": "hloexec.shadow", "losses": [{"share": 1}]}')
    loss = {"computation": "main", "instruction": "z", "inherited": 1, "added": 1, "share": 1}
    losses = [{**loss, "lost_share": 0, "kind": "rounding"}]
    other = {"schema": "hloexec.shadow", "losses": losses, "instruction_errors": losses}
    Path("other.json").write_text(json.dumps(other))
    Path("negative.json").write_text('{"x": -1}')
    Path("words.json").write_text('{"size": "large"}')
    Path("unknown.json").write_text('{"nobody": 1}')
    Path("twice.json").write_text('{"x": 1}')
    Path("folder.svg").mkdir()
    return empty_folder


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no.hlo", "cannot read no.hlo: No such file"),
        ("broken.hlo", "broken.hlo:3:1: expected an instruction"),
        ("wrong.hlo", "nobody"),
        ("m.hlo --computation nobody", "module loop has no computation nobody; did you mean body?"),
        ("m.hlo --around prodct", "has no instruction 'prodct'; did you mean product"),
        ("m.hlo --around x", "2 computations have an instruction 'x': body, main"),
        ("m.hlo --around given --computation body", "computation body and what it calls have no instruction 'given'"),
        ("m.hlo --around size --distance -1", "-1 is not in the range"),
        ("m.hlo --distance 3", "--distance is about --around"),
        ("m.hlo --colour loudness", "'loudness' is not one of 'error', 'time', 'bytes'"),
        ("m.hlo --colour error --values other.json", "give --colour or --values, not both"),
        ("m.hlo --seed 3", "--seed is about a run, and only --colour error and --colour time run"),
        ("m.hlo --colour bytes --numerics bf16", "--numerics is about a run"),
        ("m.hlo --colour error --numerics nothing", "unknown numerics policy"),
        ("m.hlo -o m.png", "'m.png' must end in .dot, .svg or .json"),
        ("m.hlo -o nowhere/m.svg", "there is no folder 'nowhere'"),
        ("m.hlo -o folder.svg", "cannot write 'folder.svg'"),
        ("m.hlo --values no.json", "cannot read 'no.json': No such file or directory"),
        ("m.hlo --values text.json", "'text.json' is not JSON"),
        ("m.hlo --values list.json", "'list.json' must be a JSON object"),
        ("m.hlo --values run.json", "is 'hloexec.run', which has no colours; it must be one of hloexec.shadow"),
        ("m.hlo --values cut.json", "'cut.json' does not have what its schema hloexec.shadow says"),
        ("m.hlo --values other.json", "is of another module: loop has none of its instructions, such as %z in main"),
        ("m.hlo --values negative.json", "must have a number from 0 on for each instruction, but has -1 for 'x'"),
        ("m.hlo --values words.json", "but has 'large' for 'size'"),
        ("m.hlo --values unknown.json", "module loop has no instruction 'nobody'"),
        ("m.hlo --values twice.json", "2 computations have an instruction 'x'"),
    ],
)
def test_wrong_uses_are_refused(line: str, message: str, folder: Path, cli: CommandLine) -> None:
    before = sorted(folder.iterdir())
    assert message in " ".join(cli.complaint("graph", *shlex.split(line)).split())
    assert sorted(folder.iterdir()) == before


def test_a_missing_graphviz_is_said_before_the_module_runs(monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> None:
    monkeypatch.setenv("PATH", "")
    assert "install Graphviz" in cli.complaint("graph m.hlo --colour error --inputs missing.npz -o m.svg", code=1)


def test_a_graph_that_is_too_large_names_the_option(cli: CommandLine) -> None:
    lines = "\n".join(f"  v{number} = f32[] add(v{number - 1}, v{number - 1})" for number in range(1, 1200))
    Path("large.hlo").write_text(f"HloModule m\nENTRY e {{\n  v0 = f32[] parameter(0)\n{lines}\n}}")
    assert "draw what is around one instruction (--around NAME), or write a .json file" in cli.complaint(
        "graph large.hlo --colour time -o large.svg", code=1
    )


def test_the_command_prints_dot_writes_files_and_has_a_record(cli: CommandLine) -> None:
    assert cli("graph m.hlo") == hloexec.graph(hloexec.load("m.hlo")).dot()
    record = cli.record("graph m.hlo --around product --distance 1 --colour bytes")
    assert record["around"] == ["fused", "product"]
    assert record["node_count"] == 4
    assert record["dot"].startswith("digraph")
    record = cli.record("graph m.hlo --colour bytes -o g.json")
    assert record["files"] == ["g.json", "g.node-data.json"]
    assert record["dot"] is None
    amounts = {(each["computation"], each["instruction"]): each["amount"] for each in record["coloured"]}
    assert amounts["main", "size"] == 32
    assert any(each["is_marked"] for each in record["coloured"])
    assert json.loads(Path("g.node-data.json").read_text())["main"]["results"]["main/size"] == {"value": 32}
    assert "time in all runs of it" in cli("graph m.hlo --color time --seed 1 -o g.dot")
    assert Path("g.dot").read_text(encoding="utf-8").startswith("digraph")
