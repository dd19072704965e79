"""`hloexec diff --extract`, and the progress of `hloexec diff`."""

import io
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import hloexec
from hloexec.cli import reports
from hloexec.engine.exec.observers import Stage
from hloexec.report import layout
from tests.command_line import CommandLine

_MODULE = """HloModule small

ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[4,6] parameter(1)
  two = f32[] constant(2)
  twos = f32[4,6] broadcast(two), dimensions={}
  difference = f32[4,6] subtract(x, y)
  product = f32[4,6] multiply(difference, twos)
  ROOT both = (f32[4,6], f32[4,6]) tuple(product, difference)
}
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A module, and others by what is wrong with them."""
    texts = {
        "right": _MODULE,
        "wrong": _MODULE.replace("subtract(x, y)", "subtract(y, x)"),
        "number": _MODULE.replace("constant(2)", "constant(3)"),
        "moved": _MODULE.replace("tuple(product, difference)", "tuple(product, x)"),
        "other": _MODULE.replace("[4,6]", "[4,8]"),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.hlo").write_text(text)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    return {name: str(tmp_path / f"{name}.hlo") for name in texts} | {"folder": str(tmp_path)}


def test_two_modules_are_written_and_the_next_command_compares_them(files: dict[str, str], cli: CommandLine) -> None:
    part = f"{files['folder']}/part"
    lines = cli("diff", files["right"], files["wrong"], "--extract", part, code=1).splitlines()
    text = " ".join(lines)
    assert "extracted before.hlo with 1 instruction and after.hlo with 1 instruction on 2 inputs" in text
    assert "their results differ as well" in text
    words = shlex.split(lines[-1])
    assert words == ["hloexec", "diff", f"{part}/before.hlo", f"{part}/after.hlo", "--inputs", f"{part}/inputs.npz"]
    assert cli(*words[1:], code=1).startswith("%difference is to blame")


def test_policies_are_part_of_the_next_command(files: dict[str, str], cli: CommandLine) -> None:
    part = f"{files['folder']}/part"
    policies = "--numerics-before reference --numerics-after tf32".split()
    assert (
        cli("diff", files["right"], files["wrong"], *policies, "--extract", part, code=1)
        .splitlines()[-1]
        .endswith("--numerics-after tf32")
    )


def test_json_says_what_was_extracted(files: dict[str, str], cli: CommandLine) -> None:
    part = f"{files['folder']}/part"
    extraction = cli.record("diff", files["right"], files["wrong"], "--extract", part, code=1)["extraction"]
    assert extraction["folder"] == part
    assert (extraction["pair"]["before_path"], extraction["pair"]["after_path"]) == ("difference", "difference")
    assert (extraction["instructions_before"], extraction["instructions_after"]) == (1, 1)
    assert (extraction["verdict"], extraction["pair"]["notes"], extraction["device_count"]) == ("differ", [], 1)
    assert cli.record("diff", files["right"], files["wrong"], code=1)["extraction"] is None


def test_a_region_is_shown_as_a_graph(files: dict[str, str], cli: CommandLine) -> None:
    lines = cli("diff", files["right"], files["number"], code=1).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("It is one of these"))
    assert lines[start + 1 : start + 6] == [
        "  right %difference = f32[4,6] subtract(%x, %y)",
        "          as %difference in before, at difference",
        "        %two = f32[] constant(3)",
        "        %twos = f32[4,6] broadcast(%two), dimensions={}",
        "  wrong %product = f32[4,6] multiply(%difference, %twos)",
    ]
    (finding,) = cli.record("diff", files["right"], files["number"], code=1)["findings"]
    assert [(step["run"]["instruction"], step["role"]) for step in finding["graph"]] == [
        ("difference", "input"),
        ("two", "step"),
        ("twos", "step"),
        ("product", "output"),
    ]
    assert [each["path"] for each in finding["graph"][-1]["operands"]] == ["difference", "twos"]
    assert finding["graph"][0]["before"]["path"] == "difference"


def test_operands_are_named_where_the_text_of_a_step_names_parameters(files: dict[str, str], cli: CommandLine) -> None:
    fused = _MODULE.replace("ENTRY", _INNER + "ENTRY").replace("constant(2)", "constant(3)")
    fused = fused.replace("multiply(difference, twos)", "fusion(twos, difference), kind=kLoop, calls=inner")
    path = Path(files["folder"]) / "fused.hlo"
    path.write_text(fused)
    out = cli("diff", files["right"], path, code=1)
    assert "  wrong %r = f32[4,6] multiply(%q, %p)\n          takes %difference, %twos\n" in out


_INNER = """inner {
  p = f32[4,6] parameter(0)
  q = f32[4,6] parameter(1)
  ROOT r = f32[4,6] multiply(q, p)
}

"""


def test_what_cannot_be_extracted_is_said(files: dict[str, str], cli: CommandLine) -> None:
    part = f"{files['folder']}/part"
    assert "%x of after comes from outside, so that nothing computes it" in " ".join(
        cli("diff", files["right"], files["moved"], "--extract", part, code=1).splitlines()
    )
    assert Path(part, "before.hlo").exists()


def test_what_makes_no_module_is_a_warning_beside_the_report(
    files: dict[str, str], cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise hloexec.InputError("it makes none")

    monkeypatch.setattr("hloexec.tools.diffing.extracting.flat_module", refuse)
    part = f"{files['folder']}/part"
    printed = cli.ended("diff", files["right"], files["wrong"], "--extract", part, code=1)
    assert printed.out.startswith("%difference is to blame")
    assert "the first finding cannot be extracted: it makes none" in printed.err
    assert not Path(part).exists()


def test_modules_that_agree_leave_no_folder(files: dict[str, str], cli: CommandLine) -> None:
    part = f"{files['folder']}/part"
    assert "nothing is to blame, so nothing is extracted" in cli(
        "diff", files["right"], files["right"], "--extract", part
    )
    assert not Path(part).exists()


@pytest.mark.parametrize(
    ("before", "after", "arguments", "message"),
    [
        ("right", "wrong", ["--extract", "{folder}/full"], "full' is not empty; name a new folder"),
        ("right", "wrong", ["--extract", "{folder}/right.hlo"], "right.hlo' is a file, not a folder"),
        ("right", "wrong", ["--extract", "{folder}/right.hlo/part"], "right.hlo' cannot be written to"),
        ("right", "wrong", ["--extract", ""], "the name of the folder to write is empty"),
        ("right", "wrong", ["--extract"], "'--extract' requires an argument"),
        ("right", "other", ["--extract", "{folder}/part"], "the modules do not correspond"),
        ("right", "missing.hlo", ["--extract", "{folder}/part"], "missing.hlo"),
        ("right", "wrong", "--extract {folder}/part --budget 0".split(), "'--budget'"),
        ("right", "wrong", "--extract {folder}/part --inputs none.npz".split(), "none.npz"),
        ("right", "wrong", "--extract {folder}/part -o x".split(), "-o"),
        ("folder", "folder", ["--extract", "{folder}/part"], "--extract takes two modules, but these are folders"),
        ("right", "", ["--extract", "{folder}/part"], "give the module to compare it with"),
    ],
)
def test_wrong_uses_exit_with_2_say_why_and_write_nothing(
    files: dict[str, str],
    before: str,
    after: str,
    arguments: list[str],
    message: str,
    cli: CommandLine,
) -> None:
    names = [files.get(name, name) for name in (before, after) if name]
    words = [word.replace("{folder}", files["folder"]) for word in arguments]
    assert message in cli.complaint("diff", *names, *words)
    assert not Path(files["folder"], "part").exists()
    assert Path(files["folder"], "full", "file").read_text() == "kept"


def test_several_inputs_of_an_extraction_are_files_of_their_own(files: dict[str, str], cli: CommandLine) -> None:
    text = _MODULE.replace("HloModule small", "HloModule small, replica_count=2").replace("ENTRY", _SUM + "ENTRY")
    text = text.replace("tuple(product, difference)", "tuple(product, total)")
    text = text.replace("  ROOT both", "  total = f32[4,6] all-reduce(difference), to_apply=sum\n  ROOT both")
    for name, module in (
        ("two", text),
        ("one", text.replace("to_apply=sum", "replica_groups={{0},{1}}, to_apply=sum")),
    ):
        Path(files["folder"], f"{name}.hlo").write_text(module)
    part = f"{files['folder']}/part"
    sides = [f"{files['folder']}/{name}.hlo" for name in ("two", "one")]
    words = shlex.split(cli("diff", *sides, "--extract", part, code=1).splitlines()[-1])
    assert words[-4:] == ["--inputs", f"{part}/inputs.0.npz", "--inputs", f"{part}/inputs.1.npz"]
    cli(*words[1:], code=1)
    assert json.loads(Path(part, "origin.json").read_text())["devices"] == 2


_SUM = """sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

"""


def test_stages_are_shown_on_a_terminal_and_nowhere_else(
    files: dict[str, str], cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_PATIENCE_SECONDS", 0.0)
    assert cli.complaint("diff", files["right"], files["wrong"], code=1) == ""
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=100)

    class Shown(reports.ProgressBar):
        def _show(self, *given: Any) -> None:
            super()._show(*given)
            if self._bar is not None:
                self._bar.refresh()

    monkeypatch.setattr(layout, "console_for", lambda stderr=False: terminal)
    with Shown() as bar:
        hloexec.diff(hloexec.load(files["right"]), hloexec.load(files["wrong"]), observers=[bar])
    text = shown.getvalue()
    places = [text.find(name) for name in ("recording before", "recording after", "replay", "search")]
    assert -1 not in places and places == sorted(places)
    # Two parameters, a constant, a broadcast and two results.
    assert "/6" in text


def test_a_stage_of_known_length_shows_its_rate_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=100)
    monkeypatch.setattr(layout, "console_for", lambda stderr=False: terminal)
    seconds = [0.0]
    monkeypatch.setattr(reports, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    with reports.ProgressBar() as bar:
        for now, stage, text in (
            (100.0, Stage("modules", 0, 300), "0/300"),
            (110.0, Stage("modules", 25, 300), "25/300, 2.5/s, 0:01:50 left"),
            (180.0, Stage("modules", 300, 300), "300/300"),
            (200.0, Stage("minifying", 0, 4), "0/4"),
            (290.0, Stage("minifying", 1, 4), "1/4, 0.7/min, 0:04:30 left"),
            (300.0, Stage("search", 7), ""),
        ):
            seconds[0] = now
            bar.on_stage(stage)
            assert bar._bar.tasks[-1].fields["count"] == text
