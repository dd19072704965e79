"""Processes of a triage that are killed or interrupted: nothing is lost, and nothing is left running."""

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.cluster.conftest import HLOEXEC, PATIENCE, Cluster, plain, start, wait_until
from tests.cluster.farm import Farm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc to find processes in"),
]
OPTIONS = ["--timeout", "20", "--memory", "1G", "-o", "out"]
"""No module but the endless ones comes near the limit of time."""


def marked(mark: str) -> list[int]:
    """The processes that have a mark in their environment, or have begun from one that has."""
    numbers = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"MARK={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                numbers.append(int(folder.name))
        except OSError:
            continue
    return sorted(numbers)


def _children(parent: int) -> list[int]:
    numbers = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                numbers.append(int(folder.name))
        except OSError:
            continue
    return numbers


@attrs.define(eq=False)
class Runner:
    """Runs the triage of a farm on an engine, as often as it is killed."""

    folder: Path
    environment: dict[str, str]
    mpiexec: Sequence[str]
    cluster: Cluster

    def begin(self, engine: str, *more: str) -> subprocess.Popen[str]:
        """A run that goes on with what is known."""
        words = [*(self.mpiexec if engine == "mpi" else []), *HLOEXEC, "triage", "farm", *OPTIONS, *more]
        executor = f"dask:{self.cluster.address}" if engine == "dask" else engine
        return start([*words, "--executor", executor], self.environment, self.folder)

    @property
    def known(self) -> int:
        """How many modules are kept."""
        return len(list(self.folder.glob("out/modules/*.json")))

    def result(self, engine: str, *more: str) -> tuple[str, Any]:
        """The report and the record of a run to the end."""
        report, _ = self.begin(engine, *more).communicate(timeout=PATIENCE)
        record, _ = self.begin(engine, "--json", *more).communicate(timeout=PATIENCE)
        return report, plain(json.loads(record))

    def forget(self) -> None:
        """Let the next run begin anew."""
        if (self.folder / "out").exists():
            (self.folder / "out").rename(self.folder / uuid.uuid4().hex)


@pytest.fixture
def runner(tmp_path: Path, environment: dict[str, str], mpiexec: Sequence[str], own_cluster: Cluster) -> Runner:
    return Runner(tmp_path, {**environment, "MARK": uuid.uuid4().hex}, mpiexec, own_cluster)


def _worker_of(nanny: int) -> int:
    """The process that a nanny watches over; its other child tracks what Python's processes share."""
    return max(_children(nanny), key=lambda pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]))


def _rank(runner: Runner) -> int:
    return next(
        pid
        for pid in reversed(marked(runner.environment["MARK"]))
        if "triage\0farm" in Path(f"/proc/{pid}/cmdline").read_text()
    )


VICTIMS: dict[str, tuple[str, Callable[[Runner, int], int], int, str]] = {
    "worker of Dask": ("dask", lambda runner, _: _worker_of(runner.cluster.processes[1].pid), signal.SIGKILL, ""),
    "scheduler of Dask": ("dask", lambda runner, _: runner.cluster.processes[0].pid, signal.SIGKILL, "is lost: "),
    "rank of MPI": ("mpi", lambda runner, _: _rank(runner), signal.SIGKILL, ""),
    "hloexec, Ctrl-C": ("processes:2", lambda _, pid: pid, signal.SIGINT, ""),
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_whatever_is_killed_nothing_is_lost_or_left(victim: str, runner: Runner) -> None:
    Farm(clean=8, faulty=2, crashing=1, endless=0, large=1).write(runner.folder / "farm")
    engine, find, number, sentence = VICTIMS[victim]
    process = runner.begin(engine, "--no-minify")
    wait_until(lambda: process.poll() is not None or runner.known >= 2)
    os.kill(find(runner, process.pid), number)
    _, complaint = process.communicate(timeout=PATIENCE)
    assert complaint.count("\n") <= 1 and sentence in complaint and "Traceback" not in complaint
    assert runner.known >= 2
    wait_until(lambda: not marked(runner.environment["MARK"]))
    goes_on = runner.result("processes:2", "--no-minify")
    runner.forget()
    assert runner.result("processes:2", "--no-minify") == goes_on
