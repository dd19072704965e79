"""A Dask scheduler with two workers on this machine's loopback, and how MPI is started; each once, when first asked for."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.cluster.farm import Farm, write_site

PATIENCE = 200.0
"""Seconds that something which takes one may take on a busy machine."""
HLOEXEC = [sys.executable, "-m", "hloexec"]
TRIAGE = "triage farm --timeout 100 --memory 1G --no-minify"
SMALL = Farm(clean=4, faulty=2, crashing=1, endless=0, large=1)
KINDS = {"differ": 2, "crashed": 1, "out of memory": 1, "agree": 4}


def plain(record: Any) -> Any:
    """A record without times, and what was known before."""
    if isinstance(record, dict):
        return {key: plain(value) for key, value in record.items() if key not in ("seconds", "is_reused")}
    return [plain(value) for value in record] if isinstance(record, list) else record


def start(words: Sequence[str], environment: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    """A command of hloexec's in a process of its own."""
    return subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until(is_so: Callable[[], object]) -> None:
    """Ask again and again; AssertionError where it does not come."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@attrs.define(eq=False)
class Cluster:
    """A Dask scheduler and workers, each in a process of a nanny's."""

    folder: Path
    environment: dict[str, str]
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


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("cluster") / "site"
    write_site(folder)
    return folder


@pytest.fixture(scope="session")
def environment(site: Path) -> dict[str, str]:
    """That of processes in which some modules crash."""
    root = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, root)))}


@pytest.fixture(scope="session")
def dask_cluster(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Cluster]:
    """One that tests share."""
    yield from _started(tmp_path_factory.mktemp("dask"), environment)


@pytest.fixture
def own_cluster(tmp_path: Path, environment: dict[str, str]) -> Iterator[Cluster]:
    """One that a test may damage."""
    folder = tmp_path / "dask"
    folder.mkdir()
    yield from _started(folder, environment)


def _started(folder: Path, environment: dict[str, str]) -> Iterator[Cluster]:
    if find_spec("distributed") is None:
        pytest.skip("distributed is not installed")
    cluster = Cluster(folder, environment)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def mpiexec() -> Sequence[str]:
    """The words that start three ranks."""
    beside = Path(sys.executable).parent / "mpiexec"
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    if find_spec("mpi4py") is None or program is None:
        pytest.skip("mpi4py or mpiexec is not installed")
    return [program, "-n", "3"]


@pytest.fixture
def farm(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small farm in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(site))
    SMALL.write(tmp_path / "farm")
    return tmp_path


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> tuple[str, Any]:
    """The report and the record of the small farm, from one process of this machine after the other."""
    folder = tmp_path_factory.mktemp("expected")
    SMALL.write(folder / "farm")
    printed = [
        start([*HLOEXEC, *TRIAGE.split(), "-o", "out", *more], environment, folder).communicate()
        for more in ([], ["--json"])
    ]
    assert printed[0][1] == "" and printed[1][1] == "8 of 8 modules were known from before\n"
    record = plain(json.loads(printed[1][0]))
    assert record["counts"] == KINDS
    return printed[0][0], {**record, "output": None}
