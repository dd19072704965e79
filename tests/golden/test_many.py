"""Many goldens: the same checks from every engine, and what goes wrong in one of them is said of that one."""

import re
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.language import literals
from hloexec.tools.executing.codec import coded
from hloexec.tools.golden import GoldenCheck
from hloexec.tools.golden.checking import Outcome
from tests.command_line import CommandLine
from tests.executing import faults
from tests.executing.faults import CALL
from tests.text.building import op

DOT = op("f32[4,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x="f32[4,50]", y="f32[50,3]")
STRANGE = DOT.replace("rhs_contracting_dims={0}", "rhs_contracting_dims={0}, strange={1}")
POOL = "tests.executing.faults:pool"


@pytest.fixture
def goldens(empty_folder: Path) -> Iterator[Path]:
    """One that passes, one that calls `twice`, one with another result, and one that lacks a file, in the working
    folder."""
    hloexec.register_custom_call("mine", faults.twice)
    folder = Path("goldens")
    hloexec.record_golden(hloexec.parse(DOT), None, folder / "deep" / "dot.golden")
    hloexec.record_golden(hloexec.parse(CALL), None, folder / "call.golden")
    for name in ("lacks", "wrong"):
        shutil.copytree(folder / "deep" / "dot.golden", folder / f"{name}.golden")
    (folder / "lacks.golden" / "inputs.npz").unlink()
    literals.save(folder / "wrong.golden" / "expected.npz", np.full((4, 3), np.float32(np.nan)))
    yield folder
    hloexec.unregister_custom_call("mine")


def _told(checks: tuple[GoldenCheck, ...]) -> list[Any]:
    return [coded(attrs.evolve(check, seconds=0.0), GoldenCheck) for check in checks]


@pytest.mark.slow_cases("pool", "shared")
@pytest.mark.parametrize("engine", ["processes", "thread", "shared", "pool"])
def test_every_engine_gives_the_checks_of_this_process(engine: str, goldens: Path) -> None:
    expected = hloexec.check_goldens([goldens])
    assert [check.outcome.word for check in expected] == ["passed", "passed", "broken", "failed"]
    with ThreadPoolExecutor(2) as threads:
        ways: dict[str, Any] = {
            "processes": {"jobs": 2},
            "thread": {"executor": threads},
            "shared": {"executor": threads, "shared": True},
            "pool": {"executor": POOL},
        }
        assert _told(hloexec.check_goldens([goldens], **ways[engine])) == _told(expected)


def test_the_command_prints_the_same_with_workers(goldens: Path, cli: CommandLine) -> None:
    def printed(*more: str) -> str:
        return re.sub(r" +[\d.]+ m?s$", "", cli("golden check", goldens, *more, code=2), flags=re.MULTILINE)

    assert printed("--jobs", "2") == printed()
    module = goldens / "deep" / "dot.golden" / "module.hlo"
    record = cli.record("golden check", goldens / "deep", "--module", module, "--executor", "processes:1")
    assert [check["outcome"] for check in record["checks"]] == ["passed"]


def test_a_golden_in_the_working_folder_travels(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(goldens / "deep" / "dot.golden")
    with ThreadPoolExecutor(1) as threads:
        (check,) = hloexec.check_goldens(["."], executor=threads)
    assert check.passed and check.folder == Path() and check.golden is not None and check.golden.folder == Path()


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
def test_another_module_travels_and_warnings_come_back(goldens: Path) -> None:
    hloexec.record_golden(hloexec.parse(STRANGE), None, goldens / "strange.golden")
    for module in (None, hloexec.parse(DOT)):
        with warnings.catch_warnings(record=True) as here:
            warnings.simplefilter("always")
            expected = hloexec.check_goldens([goldens / "strange.golden"], module=module)
        with warnings.catch_warnings(record=True) as there:
            warnings.simplefilter("always")
            checks = hloexec.check_goldens([goldens / "strange.golden"], module=module, jobs=1)
        assert _told(checks) == _told(expected) and checks[0].passed
        assert {str(said.message) for said in there} == {str(said.message) for said in here} != set()
        assert all(said.category is hloexec.HloWarning for said in there)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("crash", "it was ended by SIGKILL: it printed nothing"),
        ("hang", "it took more than 15 s"),
        ("take_much", r"(?s).*Unable to allocate 8\.00 GiB .*"),
    ],
)
def test_a_fault_of_one_golden_is_said_of_it_alone(fault: str, message: str, goldens: Path) -> None:
    hloexec.register_custom_call("mine", getattr(faults, fault))
    checks = hloexec.check_goldens([goldens / "call.golden", goldens / "deep"], jobs=2, timeout=15, memory="1G")
    assert [check.outcome for check in checks] == [Outcome.BROKEN, Outcome.PASSED]
    assert re.fullmatch(message, checks[0].message), checks[0].message


def test_what_cannot_travel_is_refused(goldens: Path) -> None:
    hloexec.register_custom_call("mine", lambda x: x * 2)
    with pytest.raises(hloexec.InputError, match=r"custom call 'mine' is a function that workers cannot import, so "):
        hloexec.check_goldens([goldens], jobs=1)
    assert hloexec.check_goldens([goldens / "call.golden"])[0].passed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"folders": "goldens"}, "folders must be "),
        ({"folders": []}, "folders must be paths of folders, but there is none"),
        ({"folders": ["missing"]}, "there is no folder 'missing'"),
        ({"jobs": 0}, "jobs must be "),
        ({"jobs": 2, "executor": "processes:2"}, "jobs are processes of this machine"),
        ({"executor": "processes:many"}, "executor processes:N has 1 to 256 processes, not 'many'"),
        ({"executor": "os:getcwd"}, "executor 'os:getcwd' gives str"),
        ({"executor": object()}, "executor must be "),
        ({"timeout": 5}, "timeout is for workers; give executor or jobs, too"),
        ({"memory": "1G"}, "memory is for workers; "),
        ({"shared": True}, "shared is for workers; "),
        ({"jobs": 1, "timeout": 0}, "timeout must be more than 0"),
        ({"jobs": 1, "memory": "much"}, "memory must be "),
        ({"module": "text"}, "module must be "),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(given: dict[str, Any], message: str, goldens: Path) -> None:
    with pytest.raises(hloexec.InputError, match=f"^{re.escape(message)}"):
        hloexec.check_goldens(**{"folders": [goldens], **given})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--update --jobs 2", "--update is for this process alone; leave out --executor and --jobs"),
        ("--result x.npz --executor processes:2", "--result is "),
        ("--timeout 5", "--timeout is for workers; give --executor or --jobs, too"),
        ("--shared", "--shared is for workers; "),
        ("--executor nowhere", "--executor 'nowhere' is none of processes:N"),
    ],
)
def test_wrong_options_are_refused(words: str, message: str, goldens: Path, cli: CommandLine) -> None:
    assert message in cli.complaint(f"golden check {goldens}/call.golden {words}")
