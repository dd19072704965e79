"""A Dask scheduler with two workers on this machine's loopback, and how MPI is started; each once, when first asked for."""

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from evaluation.executing.modules import Farm
from evaluation.executing.running import HLOEXEC, Cluster, farm_environment, mpiexec_words, plain, start

TRIAGE = "triage farm --timeout 100 --memory 1G --no-minify"
SMALL = Farm(clean=4, faulty=2, crashing=1, endless=0, large=1)
KINDS = {"differ": 2, "crashed": 1, "out of memory": 1, "agree": 4}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH."""
    return tmp_path_factory.mktemp("cluster") / "site"


@pytest.fixture(scope="session")
def environment(site: Path) -> dict[str, str]:
    """That of processes in which some modules crash."""
    return farm_environment(site)


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
    if not (words := mpiexec_words()):
        pytest.skip("mpi4py or mpiexec is not installed")
    return words


@pytest.fixture
def farm(tmp_path: Path, site: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
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
