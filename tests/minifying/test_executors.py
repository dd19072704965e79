"""`minify` gives the same whatever runs its command, and whatever becomes of the workers."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hloexec
from hloexec.errors import HloWarning
from hloexec.tools.executing import tasks
from hloexec.tools.executing.engines import opened_engine
from hloexec.tools.executing.running import run_tasks
from hloexec.tools.executing.tasks import Reply, Task
from hloexec.tools.minifying import Minified
from tests.command_line import CommandLine

MODULE = """HloModule m

ENTRY e {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  sum = f32[4] add(x, y)
  wave = f32[4] sine(sum)
  root = f32[4] sqrt(x)
  bounded = f32[4] tanh(wave)
  ROOT result = (f32[4], f32[4]) tuple(bounded, root)
}
"""
CHECK = """
import os, pathlib, re, signal, sys, time

text = pathlib.Path(sys.argv[-1]).read_text()
if re.search(r"tanh\\(%(wave|p)", text) and "sine" in text:
    {failure}
"""
FAILURES = {
    "crash": "os.abort()",
    "fail": "print('no tanh'); sys.exit(3)",
    "hang": "time.sleep(60)",
}
DYING = """
marker = pathlib.Path(sys.argv[1])
    if not marker.exists():
        marker.write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    os.abort()
"""
POOLS = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

def two():
    return ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
"""


@pytest.fixture(autouse=True)
def folder(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Path("m.hlo").write_text(MODULE)
    Path("pools.py").write_text(POOLS)
    monkeypatch.delitem(sys.modules, "pools", raising=False)
    return empty_folder


def _command(failure: str, *arguments: str) -> str:
    Path("check.py").write_text(CHECK.format(failure=failure))
    return shlex.join([sys.executable, "-I", "-S", "check.py", *arguments])


def _minified(command: str, outcome: str, **options: Any) -> Minified:
    return hloexec.minify(hloexec.parse(MODULE), command=command, outcome=outcome, **options)


def _facts(found: Minified) -> tuple[Any, ...]:
    text = hloexec.format(found.module)
    return text, found.outcomes, found.trial_count, found.step_count, found.is_complete, found.is_confirmed


@pytest.mark.parametrize(
    ("outcome", "executors"), [("crash", ("processes:2", "pools:two")), ("hang", ("processes:3",))]
)
def test_any_executor_gives_what_one_job_gives(outcome: str, executors: Sequence[str]) -> None:
    command, options = _command(FAILURES[outcome]), {"command_timeout": 0.5 if outcome == "hang" else 60.0}
    expected = _facts(_minified(command, outcome, **options))
    assert "tanh" in expected[0] and "sqrt" not in expected[0] and expected[-2:] == (True, True)
    with ThreadPoolExecutor(3) as threads:
        for executor in (threads, *executors):
            assert _facts(_minified(command, outcome, executor=executor, **options)) == expected


def test_the_command_line_takes_an_executor(cli: CommandLine) -> None:
    command = ("minify", "m.hlo", "--check", _command(FAILURES["crash"]), "--outcome", "crash")
    assert cli(*command, "--executor", "pools:two") == cli(*command)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no signals")
def test_a_worker_that_is_killed_costs_one_retry_and_leaves_no_command() -> None:
    marker = Path("marker").resolve()
    expected = _facts(_minified(_command(FAILURES["crash"]), "crash"))
    found = _minified(_command(DYING.strip(), str(marker)), "crash", executor="pools:two")
    assert _facts(found) == expected
    _require_gone(int(marker.read_text()))


def _require_gone(pid: int) -> None:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the command goes on")


class _Losing(ThreadPoolExecutor):
    """Threads, of which some die with their tasks."""

    def __init__(self, is_lost: Callable[[int], bool]) -> None:
        super().__init__(2)
        self._is_lost = is_lost
        self._count = 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        if function is not tasks.answer:
            return super().submit(function, *arguments, **named)
        self._count += 1
        if self._is_lost(self._count):
            return super().submit(_die)
        return super().submit(function, *arguments, **named)


def _die() -> None:
    raise RuntimeError("the worker was killed")


def test_lost_workers_cost_one_retry_each() -> None:
    command = _command(FAILURES["fail"])
    found = _minified(command, "fail", executor=_Losing(lambda number: number % 3 == 0))
    assert _facts(found) == _facts(_minified(command, "fail"))


def test_a_candidate_whose_workers_die_shows_no_failure() -> None:
    # Of the first candidates after the given module and the trivial one, none comes back, nor when it is tried again.
    found = _minified(_command(FAILURES["fail"]), "fail", executor=_Losing(lambda number: number in (3, 4, 5, 6)))
    assert found.is_confirmed and "tanh" in hloexec.format(found.module)
    with pytest.raises(hloexec.ResourceError, match="a worker ended that ran the command: RuntimeError: the worker"):
        _minified(_command(FAILURES["fail"]), "fail", executor=_Losing(lambda number: True))


class _Breaking(ThreadPoolExecutor):
    """Threads that are gone after some tasks."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.left = getattr(self, "left", 6) - 1
        if self.left < 0:
            raise RuntimeError("cannot schedule new futures after shutdown")
        return super().submit(function, *arguments, **named)


def test_the_best_so_far_stays_where_the_executor_is_lost() -> None:
    with pytest.warns(HloWarning, match=r"the search ends early: executor _Breaking is lost: .* after shutdown"):
        found = _minified(_command(FAILURES["fail"]), "fail", executor=_Breaking(1))
    assert not found.is_complete and not found.is_confirmed and "tanh" in hloexec.format(found.module)


def test_a_program_that_no_worker_has_is_named() -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(hloexec.InputError, match="cannot run 'nobody': No such file"):
        _minified("nobody", "fail", executor=threads)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tasks_in_order_come_in_order_and_no_more_are_taken_than_there_are_workers(count: int) -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(6):
            taken.append(number)
            yield number

    def task_of(number: int) -> Task:
        seconds = 60 if number == 3 else 0.2 * (number % 2 == 0)
        script = f"import sys, time; time.sleep({seconds}); sys.exit({number})"
        return Task("", {}, (), 100.0, -1, (sys.executable, "-I", "-S", "-c", script))

    began = time.monotonic()
    with opened_engine(None, count) as engine, closing(run_tasks(numbers(), task_of, engine, in_order=True)) as replies:
        for number, (item, reply) in enumerate(replies):
            assert isinstance(reply, Reply) and item == number == reply.ended.code
            assert len(taken) <= number + count
            if number == 2:
                break
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "nobody"}, "is none of processes:N, dask:ADDRESS, mpi or MODULE:FUNCTION"),
        ({"executor": "processes:0"}, "has 1 to 256 processes, not '0'"),
        ({"executor": "pools:nothing"}, "cannot be imported"),
        ({"executor": "processes:2", "jobs": 2}, "leave it out, as the executor has workers"),
        ({"executor": 2}, "must be a concurrent.futures.Executor"),
        ({"executor": Executor}, "must be a concurrent.futures.Executor"),
        ({"jobs": 0}, "jobs"),
        ({"command": None, "nan": True, "executor": "processes:2"}, "executor runs a command; give command, too"),
    ],
)
def test_wrong_executors_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(hloexec.InputError) as caught:
        hloexec.minify(hloexec.parse(MODULE), **{"command": "true", **options})
    assert message in str(caught.value)
