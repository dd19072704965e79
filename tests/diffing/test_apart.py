"""Folders of dumps: the same report from every engine, and a fault of one module is said of it alone."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.tools.diffing.folders import FolderDiff, StageDiff, diff_folders
from hloexec.tools.executing.codec import coded
from hloexec.tools.executing.running import run_tasks
from tests.command_line import CommandLine
from tests.executing import faults

TEXT = """HloModule m
ENTRY e {
  x = f32[4,5] parameter(0)
  y = f32[5,3] parameter(1)
  d = f32[4,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[4,3] tanh(d)
  ROOT z = f32[4,3] add(t, d)
}
"""
CALLED = """HloModule c
ENTRY e {
  x = f32[4] parameter(0)
  a = f32[4] add(x, x)
  ROOT z = f32[4] multiply(a, x)
}
"""
CALLS = CALLED.replace("multiply(a, x)", 'custom-call(x), custom_call_target="mine"')
UNKNOWN = CALLED.replace("multiply(a, x)", "nonsense(a)")
STAGES = {
    "0001.good": [TEXT, TEXT.replace("add(t, d)", "add(d, t)"), TEXT.replace("ROOT z", "ROOT last")],
    "0002.bad": [TEXT, TEXT.replace("add(t, d)", "add(d, t)"), TEXT.replace("tanh", "logistic")],
    "0003.call": [CALLED.replace("multiply(a, x)", "add(x, x)"), CALLS, CALLED.replace("multiply(a, x)", "copy(a)")],
    "0004.unknown": [UNKNOWN, CALLED, CALLED.replace("multiply(a, x)", "multiply(x, a)")],
}
NAMES = ("before_optimizations", "0001.simplify.after_algsimp", "cpu_after_optimizations")
POOL = "tests.executing.faults:pool"


@pytest.fixture
def dump(empty_folder: Path) -> Iterator[Path]:
    """One module whose passes are right, one with a wrong one, one that calls `twice` in between, and one whose first
    stage cannot run."""
    hloexec.register_custom_call("mine", faults.twice)
    folder = Path("dump")
    folder.mkdir()
    for module, texts in STAGES.items():
        for name, text in zip(NAMES, texts, strict=True):
            (folder / f"module_{module}.{name}.txt").write_text(text)
    yield folder
    hloexec.unregister_custom_call("mine")


def _told(found: FolderDiff) -> list[Any]:
    """All that there is to say, but for what is to be extracted."""
    steps = []
    for module in found.modules:
        for step in module.steps:
            record = coded(step, StageDiff, () if step.diff is None else (step.diff.before, step.diff.after))
            if step.diff is not None:
                record["diff"]["_extracted"] = None
            steps.append([module.name, module.stages, record])
    return [steps, found.notes, found.unpaired]


def _here(folder: Path, **options: Any) -> FolderDiff:
    """In this process, and as it is without what shows a finding, of which nothing travels."""
    found = diff_folders(folder, **options)
    for module in found.modules:
        for step in module.steps:
            if step.diff is not None:
                object.__setattr__(step.diff, "_extracted", None)
    return found


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
@pytest.mark.slow_cases("pool", "shared")
@pytest.mark.parametrize("engine", ["processes", "threads", "shared", "pool"])
def test_every_engine_gives_the_diff_of_this_process(engine: str, dump: Path) -> None:
    expected = _here(dump)
    outcomes = [[step.outcome for step in module.steps] for module in expected.modules]
    assert outcomes == [["agree"] * 2, ["agree", "differ"], ["agree"] * 2, ["not compared"] * 2]
    with ThreadPoolExecutor(2) as threads:
        ways: dict[str, Any] = {
            "processes": {"jobs": 2},
            "threads": {"executor": threads},
            "shared": {"executor": threads, "shared": True},
            "pool": {"executor": POOL},
        }
        found = diff_folders(dump, **ways[engine])
    assert _told(found) == _told(expected)
    blamed = found.modules[1].to_blame
    assert blamed is not None and blamed.diff is not None and blamed.diff.findings[0].after_text is not None
    with pytest.raises(hloexec.InputError, match=r"a worker found it; diff dump/.*txt and dump/.*txt by themselves"):
        blamed.diff.extract()


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
def test_inputs_travel_as_arrays_as_a_function_and_as_files(dump: Path, cli: CommandLine) -> None:
    arrays = [np.ones((4, 5), np.float32), np.ones((5, 3), np.float32)]
    for inputs in (arrays, {"x": arrays[0], 1: arrays[1]}, faults.ones):
        found = diff_folders(dump, inputs=inputs, select=["bad"], jobs=1, numerics=("reference", "tf32"))
        expected = _here(dump, inputs=inputs, select=["bad"], numerics=("reference", "tf32"))
        assert _told(found) == _told(expected)
    np.savez("inputs.npz", *arrays)
    line = f"diff {dump} --module bad --inputs inputs.npz --input y=y.npy --seed 3"
    np.save("y.npy", arrays[1] * 2)
    printed = cli(line, code=1)
    assert cli(f"{line} --executor tests.executing.faults:pool", code=1) == printed
    assert cli(f"{line} --json --jobs 1", code=1) == cli(f"{line} --json", code=1)


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "crash",
            "algsimp in simplify: it was ended by SIGKILL: it printed nothing; 1 stage after it was not compared",
        ),
        ("hang", "algsimp in simplify: it took more than 20 s; 1 stage after it was not compared"),
        ("take_much", r"algsimp in simplify: (?s:.*)Unable to allocate 8\.00 GiB (?s:.*)"),
    ],
)
def test_a_fault_of_one_module_is_said_of_it_alone(fault: str, message: str, dump: Path) -> None:
    hloexec.register_custom_call("mine", getattr(faults, fault))
    found = diff_folders(dump, select=["call", "good"], jobs=2, module_timeout=20, memory="1G")
    good, call = found.modules
    assert good.outcome == "agree" and call.outcome == "not compared"
    assert re.fullmatch(message, call.steps[0].reason), call.steps[0].reason
    assert found.outcome == "not compared"


def test_ctrl_c_shows_the_modules_that_have_come(dump: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 1

    def interrupted(*given: Any) -> Iterator[Any]:
        yield from islice(run_tasks(*given), count)
        raise KeyboardInterrupt

    monkeypatch.setattr("hloexec.tools.diffing.apart.run_tasks", interrupted)
    printed = cli(f"diff {dump} --module good --module bad --jobs 1", code=130)
    assert printed.startswith("not compared  1 of 2 modules, 2 steps that changed the text\n")
    assert printed.endswith("\n\ninterrupted after 1 of 2 modules\n")
    record = cli.record(f"diff {dump} --jobs 1", code=130)
    assert [module["name"] for module in record["modules"]] == ["module_0001.good"]
    assert (record["left"], record["outcome"]) == (3, "not compared")
    count = 0
    assert cli(f"diff {dump} --jobs 1", code=130) == ""


def test_what_cannot_travel_is_refused(dump: Path, cli: CommandLine) -> None:
    for inputs, message in (
        (lambda _: [], "inputs is a function that workers cannot import, so it cannot travel to them; "),
        ([object()], "inputs hold a object, which cannot travel to workers; "),
    ):
        with pytest.raises(hloexec.InputError, match=message):
            diff_folders(dump, inputs=inputs, jobs=1)
    Path("mine.py").write_text("def f(module): return []\n")
    said = cli.complaint(f"diff {dump} --inputs mine.py:f --jobs 2")
    assert "--inputs mine.py:f is a function, which does not travel to workers; name a .npz file, or leave out" in said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"jobs": 0}, "jobs must be "),
        ({"jobs": 2, "executor": "processes:2"}, "jobs are processes of this machine"),
        ({"executor": "processes:0"}, "executor processes:N has 1 to 256 processes, not '0'"),
        ({"executor": "dask:"}, "executor dask:ADDRESS lacks "),
        ({"executor": ThreadPoolExecutor}, "executor must be "),
        ({"module_timeout": 5}, "module_timeout is for workers; give executor or jobs, too"),
        ({"memory": "1G"}, "memory is for workers; "),
        ({"shared": True}, "shared is for workers; "),
        ({"jobs": 1, "module_timeout": 0}, "module_timeout must be more than 0"),
        ({"jobs": 1, "shared": "yes"}, "shared must be "),
        ({"jobs": 1, "observers": 5}, "observers must be "),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(given: dict[str, Any], message: str, dump: Path) -> None:
    with pytest.raises(hloexec.InputError, match=f"^{re.escape(message)}"):
        diff_folders(dump, **given)
    with pytest.raises(TypeError, match="unheard_of"):
        diff_folders(dump, jobs=1, unheard_of=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("dump/module_0001.good.{0}.txt dump/module_0002.bad.{0}.txt --jobs 2", "--jobs is for the modules of folders"),
        ("dump --module-timeout 5", "--module-timeout is for workers; give --executor or --jobs, too"),
        ("dump --shared", "--shared is for workers; "),
        ("dump --executor nowhere", "--executor 'nowhere' is none of processes:N"),
    ],
)
def test_wrong_options_are_refused(words: str, message: str, dump: Path, cli: CommandLine) -> None:
    assert message in cli.complaint(f"diff {words.format(NAMES[0])}")
