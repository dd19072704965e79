"""Goldens of 22 modules under `exact` come out in the same bits, whatever code NumPy and BLAS choose.

Three sets of OpenBLAS kernels, three settings of NumPy's processor features, one or two threads: nine processes, each of
which checks all goldens. Each two settings meet in one of them. That the settings matter shows in the same program under
`reference`.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.process import _processor_flags, openblas_kernels
from tests.golden.modules import modules

ROOT = Path(__file__).resolve().parents[2]
_DISPATCHED: list[str] = list(getattr(np, "_core", np)._multiarray_umath.__cpu_dispatch__)
FEATURES = ("", " ".join(_DISPATCHED[1:]), " ".join(_DISPATCHED))
"""What NumPy is kept from using: nothing, all but the oldest extension, everything."""
WIDEST = "SkylakeX" if "avx512vl" in _processor_flags() else "Sandybridge"
KERNELS = ("Prescott", "Haswell", WIDEST)
THREADS = ("1", "2")
SETTINGS = [
    (kernels, THREADS[(row + column) % 2], features)
    for row, kernels in enumerate(KERNELS)
    for column, features in enumerate(FEATURES)
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels that are named are those of x86-64"),
    pytest.mark.skipif(not openblas_kernels(), reason="NumPy's BLAS is not OpenBLAS"),
]


def _reports(folder: Path) -> dict[tuple[str, str, str], Any]:
    """What each process said, by kernels, threads and features that are kept from NumPy."""
    for name, module, inputs in modules():
        hloexec.record_golden(module, inputs, folder / f"{name}.golden", numerics="exact")
    return {setting: _report(folder, *setting) for setting in SETTINGS}


def _report(folder: Path, kernels: str, threads: str, features: str) -> Any:
    surroundings = {
        "OPENBLAS_CORETYPE": kernels,
        "OPENBLAS_NUM_THREADS": threads,
        "NPY_DISABLE_CPU_FEATURES": features,
    }
    finished = subprocess.run(
        [sys.executable, "-m", "tests.golden.surroundings", str(folder)],
        cwd=ROOT,
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(finished.stdout)


def test_every_golden_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    """One test, as two that share the processes' reports may run in two workers, each of which would start them all."""
    reports = _reports(tmp_path)
    _require_settings_in_force(reports)
    assert len(reports) == 9
    for one, other in ((0, 1), (0, 2), (1, 2)):
        ways = (KERNELS, THREADS, FEATURES)
        assert len({(setting[one], setting[other]) for setting in reports}) == len(ways[one]) * len(ways[other])
    for setting, report in reports.items():
        assert len(report["messages"]) == 22
        assert set(report["messages"].values()) == {"equal"}, (setting, report["messages"])


def _require_settings_in_force(reports: dict[tuple[str, str, str], Any]) -> None:
    """Each set of kernels was chosen, and kernels and features matter to plain NumPy."""
    # OpenBLAS may know a set of kernels by another name than the one that it is asked for by.
    chosen = {
        kernels: {report["kernels"] for setting, report in reports.items() if setting[0] == kernels}
        for kernels in KERNELS
    }
    assert all(len(names) == 1 for names in chosen.values()), chosen
    assert len(set.union(*chosen.values())) == 3, chosen
    by_kernels = {reports[kernels, "1", ""]["plain"] for kernels in ("Prescott", WIDEST)}
    by_features = {reports["Haswell", "2", features]["plain"] for features in ("", FEATURES[-1])}
    assert len(by_kernels) > 1 and len(by_features) > 1
