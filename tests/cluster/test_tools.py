"""What else takes an executor: goldens, folders of dumps and commands that check modules, as on one process here."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from evaluation.executing.running import HLOEXEC, PATIENCE, Cluster, plain, start
from tests.command_line import CommandLine

TEXT = """HloModule m
ENTRY e {
  x = f32[4,3] parameter(0)
  t = f32[4,3] tanh(x)
  ROOT z = f32[4,3] add(t, x)
}
"""
COMMANDS = {
    "golden check goldens": 1,
    "diff dump --module-timeout 100": 1,
    "minify module.hlo --check 'grep -q tanh' -o OUT": 0,
}
"""What is run, and the exit code."""


@pytest.fixture
def material(empty_folder: Path) -> Path:
    """Two goldens of which one does not agree, a dump in which a pass is wrong, and a module."""
    module = hloexec.parse(TEXT)
    inputs = hloexec.random_inputs(module)
    hloexec.record_golden(module, inputs, "goldens/right.golden")
    hloexec.record_golden(module, inputs, "goldens/wrong.golden", expected=np.ones((4, 3), np.float32))
    Path("dump").mkdir()
    stages = {"before_optimizations": TEXT, "cpu_after_optimizations": TEXT.replace("add(t", "subtract(t")}
    for name, text in stages.items():
        Path(f"dump/module_0001.m.{name}.txt").write_text(text)
    Path("module.hlo").write_text(TEXT)
    return empty_folder


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_dask_and_ranks_give_what_one_process_gives(
    line: str,
    material: Path,
    dask_cluster: Cluster,
    mpiexec: Sequence[str],
    environment: dict[str, str],
    cli: CommandLine,
) -> None:
    code = COMMANDS[line]
    words = shlex.split(line)

    def words_with(output: str) -> list[str]:
        return [word.replace("OUT", output) for word in words]

    report = cli("", *words_with("small"), "--executor", "processes:1", code=code)
    record = plain(cli.record("", *words_with("other"), "--executor", "processes:1", code=code))
    dask = cli.record("", *words_with("dask"), "--executor", f"dask:{dask_cluster.address}", code=code)
    assert _placed(plain(dask), "dask") == _placed(record, "other")
    ranks = start([*mpiexec, *HLOEXEC, *words_with("ranks"), "--executor", "mpi"], environment, material)
    printed, complaint = ranks.communicate(timeout=PATIENCE)
    assert (_placed(printed, "ranks"), complaint, ranks.returncode) == (_placed(report, "small"), "", code)
    for path in material.glob("small/*"):
        assert all((material / engine / path.name).read_bytes() == path.read_bytes() for engine in ("dask", "ranks"))


def _placed(record: Any, folder: str) -> Any:
    """A report with one name of the folder that is written, and without times."""
    if isinstance(record, str):
        return re.sub(r"\b\d[\d.]* (?:µs|ms|s)\b", "TIME", record.replace(folder, "FOLDER"))
    if isinstance(record, dict):
        return {key: _placed(value, folder) for key, value in record.items()}
    return [_placed(value, folder) for value in record] if isinstance(record, list) else record
