"""The `exact` policy gives the same bits whatever code NumPy and BLAS choose for the processor."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.ops.policies.exact_module import digests

_FEATURES = getattr(getattr(np, "_core", None), "_multiarray_umath", None)
_DISPATCHED = getattr(_FEATURES, "__cpu_dispatch__", [])
_SURROUNDINGS = [
    {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"},
    {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_NUM_THREADS": "2", "NPY_DISABLE_CPU_FEATURES": " ".join(_DISPATCHED)},
]


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    return digests()


@pytest.mark.sampled(2)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels that are named are those of x86-64")
@pytest.mark.parametrize("surroundings", _SURROUNDINGS, ids=lambda chosen: chosen["OPENBLAS_CORETYPE"])
def test_results_do_not_depend_on_the_processor(surroundings: dict[str, str], expected: dict[str, str]) -> None:
    root = Path(__file__).resolve().parents[3]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.ops.policies.exact_module"],
        cwd=root,
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = (line.split(" ", 1) for line in finished.stdout.splitlines())
    actual = {what: digest for digest, what in lines}
    assert {what for what in expected if actual.get(what) != expected[what]} == set()
