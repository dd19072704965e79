"""The `exact` policy gives the same bits whatever code NumPy and BLAS choose for the processor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machines import MACHINES
from tests.ops.policies.exact_module import digests


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    return digests()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["haswell", "prescott", "sandybridge"])
def test_results_do_not_depend_on_the_processor(name: str, expected: dict[str, str]) -> None:
    machine = MACHINES[name]
    if reason := machine.reason():
        pytest.skip(reason)
    root = Path(__file__).resolve().parents[3]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.ops.policies.exact_module"],
        cwd=root,
        env={**os.environ, **machine.environment()},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = (line.split(" ", 1) for line in finished.stdout.splitlines())
    actual = {what: digest for digest, what in lines}
    assert {what for what in expected if actual.get(what) != expected[what]} == set()
