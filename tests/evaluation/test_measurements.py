"""Each measurement measures: what it prints of a case or two whose answers are known. And what they share."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from evaluation.__main__ import main
from evaluation.options import spread, taken
from evaluation.processes import ENVIRONMENT, measure_apart

COMMANDS = {
    "diff --half table --only 00": ("1 of 1 (100.0%) right by the first", "0 false alarms in 1 pairs"),
    "diff --half ordinary --only mixture_fit/00": ("1 of 1 (100.0%) right by the first finding",),
    "partitioned --only mlp --limit 1": ("1 of 1 (100.0%) are different", "1 of 1 (100.0%) right"),
    "collectives --only gathered --limit 1": (
        "faults: 1 of 1 (100.0%) right",
        "0 wrong and certain",
        "0 false alarms in 3 pairs",
    ),
    "edits --only layer_norm --limit 1": (
        "3 of 3 (100.0%) right by the first finding; 0 wrong and certain",
        "1 of 1 (100.0%) noted",
    ),
    "explain --only three_layers/two": ("policies: 1 of 1 (100.0%) right",),
    "explain --set integers --only tokens_of_two_layers/two": (
        "policies: 1 of 1 (100.0%) right",
        "certain and wrong: 0",
    ),
    "shadow --only one_minus_cosine": ("one_minus_cosine: right; cancellation", "measured: 1 of 1 (100.0%)"),
    "minify --only 'crash @tensor'": ("1 cases, 0 not drawn, 0 failed", "1 of 1 still fail"),
    "minify --only small_convolved": ("reason   2 of 2 still fail", "the reason: 2 of 2 (100.0%) right"),
    "shrink --only sorting/lowered": ("sorting/lowered: right", "1 of 1 (100.0%)"),
    "triage . --only flushed --faults 1 --clean 0 --no-minify": ("1 faulty: 1 found, 0 false alarms, 0 not judged",),
    "precision convnet --steps 2 --inputs 1 --fresh 1 --held-back 1 --max-trials 1": ("convnet: ", "0 beyond 1%"),
    "verdicts --half library --only lion/gated/f32": ("1 clean and 1 faulty", "right:             2 of 2 (100.0%)"),
    "verdicts --half choices --only gumbel/1/f32": ("1 clean and 1 faulty", "right:             2 of 2 (100.0%)"),
    "farm --clean 1 --faulty 1 --bad 0 --only processes:2": (
        "2 modules: 1 differ, 1 agree; 1 cause",
        "1 of 1 (100.0%) give",
    ),
    "mutants 0 5": ("0 faults at 0 places",),
    "page 20": ("MB for 20 instructions",),
}
"""What is printed, among other things."""


def test_all_measurements_are_tried() -> None:
    assert {line.split()[0] for line in COMMANDS} == main.commands.keys()


@pytest.mark.slow_cases(*(line for line in COMMANDS if line.split()[0] != "explain"))
@pytest.mark.parametrize("line", COMMANDS)
def test_what_is_measured_is_printed(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, shlex.split(line), env=ENVIRONMENT, catch_exceptions=False)
    assert result.exit_code == 0
    assert [words for words in COMMANDS[line] if words not in result.output] == [], result.output


_DYING = """
import os, sys, time

def threads():
    from concurrent.futures import ThreadPoolExecutor
    return ThreadPoolExecutor(2)

def measured(name, *more):
    if name == "dies":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "sleeps":
        time.sleep(600)
    return {"length": len(name), "pool": os.environ["PYTHONMALLOC"], "more": more}
"""


def test_a_case_that_its_process_dies_of_has_failed_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying.py").write_text(_DYING)
    monkeypatch.syspath_prepend(tmp_path)
    chunks = [["one", "dies", "three"], ["four"]]
    for options in ({}, {"executor": "processes:2"}, {"executor": "dying:threads"}):
        records = measure_apart(
            "dying:measured", chunks, seconds=60, arguments=["m"], variables={"PYTHONMALLOC": "malloc"}, **options
        )
        assert sorted(records, key=lambda record: record["name"]) == [
            {"name": "dies", "failure": "it exited with 3: out of luck"},
            *(
                {"name": name, "length": len(name), "pool": "malloc", "more": ["m"]}
                for name in ("four", "one", "three")
            ),
        ]
    (late,) = measure_apart("dying:measured", [["sleeps"]], seconds=1)
    assert late == {"name": "sleeps", "failure": "it took more than 1 s"}


def test_a_limit_spreads_cases_evenly() -> None:
    assert spread("abcdefghij", 4) == "a c f h".split()
    assert spread("abc", 3) == spread("abc", None) == spread("abc", 9) == "abc"


def test_records_are_written_as_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"name": "one"}, {"name": "two"}]
    target = tmp_path / "records.json"
    assert taken(iter(records), lambda record: record["name"].replace("two", ""), target) == records
    assert capsys.readouterr().out == "one\n"
    assert [json.loads(line) for line in target.read_text().splitlines()] == records
