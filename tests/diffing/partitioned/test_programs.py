"""Programs that XLA partitions: nothing but rounding between both modules, and a planted fault is found."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.ir import Module
from tests.diffing.partitioned.faults import Fault, faults, is_near
from tests.diffing.partitioned.programs import ENVIRONMENT, PROGRAMS

ROOT = Path(__file__).resolve().parents[3]
_PER_KIND = 2
_FOUND = 0.85
"""The share of faults whose instruction, or one next to it, must be named first. Of those that are not, most lie among
steps of which diff names the end: borders that a convolution needs, masks of a lookup."""
_WITH_OWN_STEPS = frozenset({"reshard", "convolution", "embedding"})
"""What XLA partitions in many steps that the whole module lacks: padding, borders, masks, exchanges piece by piece."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("jax")
    found = tmp_path_factory.mktemp("partitioned")
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.diffing.partitioned.programs", str(found)]
    subprocess.run(command, env=environment, check=True, timeout=600)
    return found


def _module(folder: Path, name: str, stage: str) -> Module:
    return hloexec.load(folder / f"{name}.{stage}.hlo")


def _arguments(folder: Path, name: str) -> list[Any]:
    with np.load(folder / f"{name}.npz") as arrays:
        return list(arrays.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("before", "after"),
        pytest.param("lowered", "after", marks=pytest.mark.slow),
        pytest.param("before", "optimized", marks=pytest.mark.slow),
    ],
)
def test_nothing_but_rounding_differs(name: str, first: str, second: str, folder: Path) -> None:
    before, after = (_module(folder, name, stage) for stage in (first, second))
    found = hloexec.diff(before, after, _arguments(folder, name))
    print(f"{name}, {first} and {second}: {found}")
    assert found.verdict in ("agree", "rounding only"), [str(finding) for finding in found.findings]
    assert found.matched_share >= (0.6 if name in _WITH_OWN_STEPS else 0.95)


def _outputs(module: Module, arguments: list[Any], before: Module) -> list[Any]:
    shards = hloexec.shard_inputs(module, arguments, before=before, partitions=8)
    found: list[Any] = []
    for output in hloexec.run_devices(module, shards):
        found += output if isinstance(output, tuple) else [output]
    return found


def _sampled(module: Module) -> list[Fault]:
    kinds = defaultdict(list)
    for fault in faults(module):
        kinds[fault.kind].append(fault)
    chance = random.Random(0)
    return [fault for kind in kinds.values() for fault in chance.sample(kind, min(_PER_KIND, len(kind)))]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_planted_faults_are_found(folder: Path) -> None:
    total, failures = 0, []
    for name in PROGRAMS:
        before, after = (_module(folder, name, stage) for stage in ("before", "after"))
        arguments = _arguments(folder, name)
        right = _outputs(after, arguments, before)
        for fault in _sampled(after):
            found = hloexec.diff(before, fault.module, arguments)
            pairs = zip(_outputs(fault.module, arguments, before), right, strict=True)
            is_effective = not all(np.allclose(one, other, rtol=1e-3, atol=1e-4) for one, other in pairs)
            assert found.verdict == "differ" or not is_effective, f"{name}: {fault}"
            if found.verdict != "differ":
                continue
            total += 1
            if not is_near(fault, found.findings[0].after):
                failures.append(f"{name}: {fault}: {found.findings[0].after.path}")
    print(f"{total} faults", *failures, sep="\n")
    assert total >= 60
    assert len(failures) <= (1 - _FOUND) * total


@pytest.mark.slow
def test_a_dump_is_compared_through_the_partitioner(folder: Path, tmp_path: Path) -> None:
    stages = {
        "before": "before_optimizations",
        "after": "0001.spmd.after_spmd-partitioning",
        "optimized": "cpu_after_optimizations",
    }
    for stage, name in stages.items():
        (tmp_path / f"module_0000.jit_recurrence.{name}.txt").write_text(
            (folder / f"recurrence.{stage}.hlo").read_text()
        )
    (module,) = hloexec.diff_folders(tmp_path).modules
    assert len(module.steps) == 2 and {step.outcome for step in module.steps} <= {"agree", "rounding only"}
