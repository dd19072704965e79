"""`hloexec run` with inputs of a script or from ranges, values printed as literals, and times of further runs."""

from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import hloexec
from hloexec.cli.run_options import _OPTIONS, Given, resolve_given, run_options
from hloexec.engine.exec import running
from hloexec.engine.options import DEFAULTS
from tests.command_line import CommandLine
from tests.text.building import op

ADD = op("f32[3] add(x, y)", x="f32[3]", y="f32[3]")
LOOP = """HloModule m
c { x = s32[] parameter(0)
  n = s32[] constant(4)
  ROOT l = pred[] compare(x, n), direction=LT }
b { x = s32[] parameter(0)
  o = s32[] constant(1)
  ROOT a = s32[] add(x, o) }
ENTRY e { z = s32[] parameter(0)
  ROOT w = s32[] while(z), condition=c, body=b }
"""
SCRIPT = """import numpy as np

def both(module):
    return [np.full(parameter.shape.dimensions, 3, np.float32) for parameter in module.entry.parameters]

def one(module):
    return {"y": np.arange(3, dtype=np.float32)}

def too_few(module):
    return [1]

def text(module):
    return "x"

def wide(module):
    return {0: np.zeros(3)}

def unknown(module):
    return {"q": np.zeros(3, np.float32)}

def fails(module):
    return module.nothing
"""


@pytest.fixture
def folder(empty_folder: Path) -> Path:
    Path("add.hlo").write_text(ADD)
    Path("loop.hlo").write_text(LOOP)
    Path("script.py").write_text(SCRIPT)
    return empty_folder


@pytest.mark.usefixtures("folder")
def test_a_function_of_a_script_gives_inputs(cli: CommandLine) -> None:
    assert cli.record("run add.hlo --inputs script.py:both")["result"][0]["mean"] == 6
    record = cli.record("run add.hlo --inputs script.py:one --range x=1:1")
    assert [row["mean"] for row in record["inputs"]] == [1, 1] and record["result"][0]["maximum"] == 3


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--inputs script.py:too_few", "script.py:too_few must return 2 values, one per parameter"),
        ("--inputs script.py:text", "must return a list with a value per parameter, or a dict"),
        ("--inputs script.py:wide", r"parameter 0 (x) must be"),
        ("--inputs script.py:unknown", "has no parameter 'q'"),
        ("--inputs script.py:fails", "script.py:fails raised AttributeError"),
        ("--inputs script.py:absent", "script.py has no function absent"),
        ("--inputs absent.py:both", "cannot read 'absent.py'"),
        ("--range x=2:1", "must not end below its start"),
        ("--range x=2", "expects PARAMETER=LOW:HIGH with two numbers"),
        ("--range x=a:b", "expects PARAMETER=LOW:HIGH with two numbers"),
        ("--range q=1:2", "has no parameter 'q', but"),
        ("--range x=1:2 --range 0=1:2", "parameter 0 is given twice"),
        ("--print absent", "module m has no instruction 'absent'"),
        ("--print rot", "module m has no instruction 'rot'; did you mean root?"),
    ],
)
def test_wrong_uses_are_named(words: str, message: str, cli: CommandLine) -> None:
    captured = cli.ended(f"run add.hlo {words}", code=2)
    assert message in captured.err and not captured.out


@pytest.mark.usefixtures("folder")
def test_values_are_printed_as_literals_that_hlo_reads(cli: CommandLine) -> None:
    printed = cli.record("run add.hlo --print --print x")["printed"]
    assert [entry["label"] for entry in printed] == ["result", "%x"]
    module = hloexec.load("add.hlo")
    x, y = hloexec.random_inputs(module)
    for entry, expected in zip(printed, (np.asarray(x) + np.asarray(y), x), strict=True):
        shape, _, values = entry["literal"].partition(" ")
        read = hloexec.parse(f"HloModule m\nENTRY e {{ ROOT c = {shape} constant({values}) }}")
        np.testing.assert_array_equal(hloexec.run(read), expected)
    assert "%x = f32[3] {" in cli("run add.hlo --print %x")


@pytest.mark.usefixtures("folder")
def test_an_instruction_of_a_loop_is_printed_where_it_runs_first(cli: CommandLine) -> None:
    printed = cli.record("run loop.hlo --range z=2:2 --print a --print")["printed"]
    assert printed == [{"label": "%a", "literal": "s32[] 3"}, {"label": "result", "literal": "s32[] 4"}]


@pytest.mark.usefixtures("folder")
def test_further_runs_are_timed(cli: CommandLine) -> None:
    warm = cli.record("run add.hlo --iterations 5")["warm_seconds"]
    assert warm["iteration_count"] == 5 and 0 < warm["shortest"] <= warm["median"] <= warm["longest"]
    assert cli.record("run add.hlo")["warm_seconds"] is None
    assert "\nthen 3 times in " in cli("run add.hlo --iterations 3")


@pytest.mark.usefixtures("folder")
def test_ctrl_c_in_further_runs_shows_what_has_run(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = running.run_with, []

    def interrupted(*given: Any, **options: Any) -> Any:
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run(*given, **options)

    monkeypatch.setattr(running, "run_with", interrupted)
    out, err = cli.ended("run add.hlo --iterations 9 --save kept.npz --against exact", code=130)
    assert "\nvalue  f32[3]" in out and "\nthen 2 times in " in out and "compared" not in out
    assert "interrupted" in err and Path("kept.npz").exists()


@pytest.mark.usefixtures("folder")
def test_info_shows_what_lies_beside_modules(cli: CommandLine) -> None:
    np.savez("v.npz", a=np.arange(4, dtype=np.float32), b=np.zeros((), np.int32))
    rows = cli.record("info v.npz")["arrays"]
    assert [(row["label"], row["shape"], row["maximum"]) for row in rows] == [("a", "f32[4]", 3), ("b", "s32[]", 0)]
    assert "arrays  2 arrays, 20 B" in cli("info v.npz")
    Path("a.txt").write_text(
        "BufferAssignment:\nallocation 0: size 16, maybe-live-out:\n value: <0 z @0> (size=16,offset=0): f32[4]{0}\n\n"
        "Total bytes used: 16 (16B)\n"
    )
    assert cli.record("info a.txt")["allocated_bytes"] == 16
    out = cli("info a.txt")
    assert out.startswith("a buffer assignment  1 allocation, 16 B (16 bytes) in all")
    assert "hloexec memory MODULE --assignment a.txt" in out
    for name, what in (("a.txt", "a buffer assignment, which `hloexec memory"), ("v.npz", "arrays of NumPy, which")):
        assert f"{name} is not a module: it holds {what}" in cli.complaint("run", name)


SAID = [
    {},
    {"seed": 3, "distribution": "iota", "different_inputs": True},
    {"inputs": ("a.npz", "b.npz"), "overrides": (("0", "x.npy"), ("w", "y=z.npy"))},
    {"custom_calls": (("scale", "json:loads"),), "ranges": (("x", "-1:2.5"),)},
    {"replicas": 2, "partitions": 4, "numerics": "exact", "elided": "random", "unknown": "zeros"},
]


def read(words: list[str]) -> Given:
    """What a command is given for these words."""
    found: list[Given] = []

    @click.command()
    @run_options
    def command(given: Given) -> None:
        found.append(given)

    command.main(words, standalone_mode=False)
    return found[0]


@pytest.mark.parametrize("said", SAID)
def test_the_words_for_options_are_read_as_these_options(said: dict[str, object]) -> None:
    options = resolve_given(**said)
    assert read(options.words()) == options


def test_every_option_is_said_where_it_matters() -> None:
    given = {name for said in SAID for name in said}
    assert {*_OPTIONS} - given == {"memory_limit", "max_iterations", "timeout"}
    assert resolve_given(memory_limit=5, max_iterations=7, timeout=1.5).words() == []


def test_the_defaults_of_the_command_line_are_those_of_the_options() -> None:
    assert resolve_given().options == DEFAULTS
    assert read([]) == resolve_given()
