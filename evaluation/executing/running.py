"""Triages of a farm in processes of their own, on each engine, and what can be killed of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from evaluation.executing.modules import write_site

PATIENCE = 200.0
"""Seconds that something which takes one may take on a busy machine."""
_WHOLE_PATIENCE = 7200.0
"""And all modules of a farm."""
HLOEXEC = [sys.executable, "-m", "hloexec"]
_MARK = "FARM_MARK"


def plain(record: Any) -> Any:
    """A record without times, and what was known before."""
    if isinstance(record, dict):
        return {key: plain(value) for key, value in record.items() if key not in ("seconds", "is_reused")}
    return [plain(value) for value in record] if isinstance(record, list) else record


def farm_environment(site: Path) -> dict[str, str]:
    """That of processes in which some modules crash, by what is written to a new folder."""
    write_site(site)
    root = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, root)))}


def start(words: Sequence[str], environment: Mapping[str, str], folder: Path) -> subprocess.Popen[str]:
    """A command of hloexec's in a process of its own."""
    return subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until(is_so: Callable[[], object], patience: float = PATIENCE) -> None:
    """Ask again and again; TimeoutError where it does not come."""
    deadline = time.monotonic() + patience
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"what takes a second or so took more than {patience:g} s")
        time.sleep(0.05)


def mpiexec_words(ranks: int = 3) -> list[str]:
    """The words that start so many ranks; none where MPI is not installed."""
    beside = Path(sys.executable).parent / "mpiexec"
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    return [] if find_spec("mpi4py") is None or program is None else [program, "-n", str(ranks)]


@attrs.define(eq=False)
class Cluster:
    """A Dask scheduler and workers on this machine's loopback, each in a process of a nanny's."""

    folder: Path
    environment: Mapping[str, str]
    address: str = ""
    processes: list[subprocess.Popen[bytes]] = attrs.Factory(list)
    """The scheduler, then the nannies."""

    def start(self, workers: int = 2) -> None:
        """Start all."""
        file = self.folder / "scheduler.json"
        self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))

        def is_told() -> bool:
            with suppress(OSError, ValueError):
                self.address = json.loads(file.read_text())["address"]
            return bool(self.address)

        wait_until(is_told)
        for _ in range(workers):
            self._start("worker", self.address, "--nthreads", "1", "--local-directory", str(self.folder))

    def _start(self, role: str, *words: str) -> None:
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", f"distributed.cli.dask_{role}", *words, "--no-dashboard"]
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.processes.append(process)

    def stop(self) -> None:
        """End all."""
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@attrs.define(eq=False)
class Runner:
    """Runs the triage of a farm on an engine, as often as it is killed, and goes on with what is kept."""

    folder: Path
    """Has the farm, and the results."""
    environment: Mapping[str, str]
    cluster: Cluster | None = None
    options: Sequence[str] = ("--timeout", "20", "--memory", "1G", "--no-minify")
    mark: str = attrs.Factory(lambda: uuid.uuid4().hex)
    """What all processes of its runs have in their environment."""

    def begin(self, engine: str, *more: str, output: str = "out") -> subprocess.Popen[str]:
        """A run that goes on with what is known."""
        words = [*HLOEXEC, "triage", "farm", *self.options, "-o", output, *more]
        if engine == "mpi":
            words = [*mpiexec_words(), *words]
        executor = f"dask:{self.cluster.address}" if engine == "dask" and self.cluster is not None else engine
        return self._start([*words, "--executor", executor])

    def _start(self, words: Sequence[str]) -> subprocess.Popen[str]:
        return start(words, {**self.environment, _MARK: self.mark}, self.folder)

    @property
    def known(self) -> int:
        """How many modules are kept."""
        return len(list(self.folder.glob("out/modules/*.json")))

    def result(self, engine: str) -> tuple[str, Any]:
        """The report and the record of a run to the end."""
        report, _ = self.begin(engine).communicate(timeout=_WHOLE_PATIENCE)
        return report, self.record()

    def record(self) -> Any:
        """The record of what is known."""
        printed, _ = self.begin("processes:1", "--json").communicate(timeout=_WHOLE_PATIENCE)
        return plain(json.loads(printed))

    def merged(self, shards: int) -> tuple[str, Any]:
        """The report and the record of shards, judged by two processes of this machine one after the other."""
        parts = [f"part{number}" for number in range(1, shards + 1)]
        for number, part in enumerate(parts, 1):
            shard = self.begin("processes:2", "--shard", f"{number}/{shards}", output=part)
            shard.communicate(timeout=_WHOLE_PATIENCE)
        words = [*HLOEXEC, "triage", "--merge", *parts, "-o", "out"]
        words += [option for option in self.options if option == "--no-minify"]
        report, _ = self._start(words).communicate(timeout=_WHOLE_PATIENCE)
        return report, self.record()

    def stop_at(self, process: subprocess.Popen[str], known: int) -> None:
        """Wait until a run has kept so many modules, or has ended."""
        wait_until(lambda: process.poll() is not None or self.known >= known, _WHOLE_PATIENCE)

    def forget(self) -> None:
        """Let the next run begin anew."""
        if (self.folder / "out").exists():
            (self.folder / "out").rename(self.folder / uuid.uuid4().hex)

    @property
    def running(self) -> list[int]:
        """The processes that the runs have started, and those which these have."""
        mark = f"{_MARK}={self.mark}".encode()
        return [pid for pid in _processes() if mark in _read(pid, "environ").split(b"\0")]

    def rank(self) -> int:
        """The process of the last rank of MPI."""
        return next(pid for pid in reversed(self.running) if b"triage\0farm" in _read(pid, "cmdline"))

    def nanny(self) -> int:
        """The process of a Dask worker's nanny."""
        assert self.cluster is not None, "there is no cluster"
        return self.cluster.processes[1].pid

    def worker(self) -> int:
        """The process of a Dask worker; the other child of its nanny tracks what Python's processes share."""
        children = [pid for pid in _processes() if _parent(pid) == self.nanny()]
        return max(children, key=lambda pid: [*map(int, _read(pid, "statm").split()), 0][1:2])

    def scheduler(self) -> int:
        """The process of Dask's scheduler."""
        assert self.cluster is not None
        return self.cluster.processes[0].pid


def _processes() -> list[int]:
    return sorted(int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())


def _read(pid: int, name: str) -> bytes:
    """A file of /proc; nothing of a process that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _parent(pid: int) -> int:
    stat = _read(pid, "stat").rpartition(b")")[2].split()
    return int(stat[1]) if stat else 0


@attrs.frozen
class Victim:
    """What ends in the middle of a run, and how."""

    engine: str
    pid: Callable[[Runner, subprocess.Popen[str]], int]
    signal: signal.Signals
    sentence: str = ""
    """What is said, among other things; what ends alone may say nothing."""


VICTIMS: Mapping[str, Victim] = {
    "worker of Dask": Victim("dask", lambda runner, _: runner.worker(), signal.SIGKILL),
    "nanny of Dask": Victim("dask", lambda runner, _: runner.nanny(), signal.SIGKILL),
    "scheduler of Dask": Victim("dask", lambda runner, _: runner.scheduler(), signal.SIGKILL, "is lost: "),
    "rank of MPI": Victim("mpi", lambda runner, _: runner.rank(), signal.SIGKILL),
    "mpiexec, Ctrl-C": Victim("mpi", lambda _, process: process.pid, signal.SIGINT),
    "hloexec on Dask": Victim("dask", lambda _, process: process.pid, signal.SIGKILL),
    "hloexec on Dask, Ctrl-C": Victim("dask", lambda _, process: process.pid, signal.SIGINT),
    "hloexec": Victim("processes:2", lambda _, process: process.pid, signal.SIGKILL),
    "hloexec, Ctrl-C": Victim("processes:2", lambda _, process: process.pid, signal.SIGINT),
}


def strike(runner: Runner, victim: Victim, known: int) -> str:
    """Begin a run, end the victim once so many modules are kept, and return what is said by the time all has ended."""
    process = runner.begin(victim.engine)
    runner.stop_at(process, known)
    os.kill(victim.pid(runner, process), victim.signal)
    _, complaint = process.communicate(timeout=_WHOLE_PATIENCE)
    wait_until(lambda: not runner.running)
    return complaint
