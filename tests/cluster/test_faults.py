"""Processes of a triage that are killed or interrupted: nothing is lost, and nothing is left running."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evaluation.executing.modules import Farm
from evaluation.executing.running import VICTIMS, Cluster, Runner, strike

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc to find processes in"),
]


FARM = Farm(clean=6, faulty=2, crashing=1, endless=0, large=1)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> tuple[str, Any]:
    """The report and the record of a run in which nothing is killed."""
    folder = tmp_path_factory.mktemp("whole")
    FARM.write(folder / "farm")
    return Runner(folder, environment).result("processes:2")


@pytest.fixture
def runner(tmp_path: Path, environment: dict[str, str], mpiexec: Sequence[str], own_cluster: Cluster) -> Runner:
    FARM.write(tmp_path / "farm")
    return Runner(tmp_path, environment, own_cluster)


@pytest.mark.parametrize("name", ["worker of Dask", "scheduler of Dask", "rank of MPI", "hloexec, Ctrl-C"])
def test_whatever_is_killed_nothing_is_lost_or_left(name: str, runner: Runner, result: tuple[str, Any]) -> None:
    victim = VICTIMS[name]
    complaint = strike(runner, victim, 2)
    assert complaint.count("\n") <= 1 and victim.sentence in complaint and "Traceback" not in complaint
    assert runner.known >= 2
    assert runner.result("processes:2") == result
