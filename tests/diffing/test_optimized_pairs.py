"""What XLA:CPU makes of the benchmarks' programs: no false alarm, and values are found again through its optimizations.

The dumps are XLA's own, of every program that the benchmarks measure, at a fiftieth of its sizes. XLA may not compute
with more precision than the program says, as it may by default: rounding that is left out is what `diff` reports.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hloexec
from hloexec.diffing.dumps import dumped_modules

pytest.importorskip("jax")
pytest.importorskip("flax")

from benchmarks.programs import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
_SHARE = 0.8
_REWRITTEN = {
    "cumsum": "the window's sums become sums of blocks, and of their sums: six of seven values are new",
    "max-pool": "select-and-scatter becomes a reduce-window over values and indices, whose results are new",
}
"""Programs of a few instructions, of which XLA computes the greater part in other steps."""
_LONG = {"unet"}
"""Programs for which the search for causes takes minutes."""

_DUMPING = """
import jax
from benchmarks.programs import PROGRAMS

for name, program in PROGRAMS.items():
    function, arguments = program(0.02)

    def named(*given, function=function):
        return function(*given)

    named.__name__ = "program_" + name.replace("-", "_")
    jax.jit(named, keep_unused=True).lower(*arguments).compile()
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xla") / "dump"
    flags = [
        f"--xla_dump_to={folder}",
        "--xla_dump_hlo_as_text",
        "--xla_dump_large_constants",
        "--xla_dump_hlo_module_re=.*program.*",
        "--xla_allow_excess_precision=false",
        # LLVM's optimizations come after those of HLO.
        "--xla_backend_optimization_level=0",
    ]
    environment = {**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", _DUMPING], env=environment, check=True, timeout=600)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in _LONG])
def test_optimized_programs_agree_and_their_values_are_found(name: str, dump: Path) -> None:
    wanted = "jit_program_" + name.replace("-", "_")
    (module,) = (module for module in dumped_modules(dump) if module.name == wanted)
    before, after = (hloexec.load(stage.path) for stage in (module.stages[0], module.stages[-1]))
    assert len(module.stages) == 2 and hloexec.format(before) != hloexec.format(after)
    found = hloexec.diff(before, after)
    assert found.verdict in ("agree", "rounding only"), [str(finding) for finding in found.findings]
    assert found.values > 0
    print(f"{name}: {found.verdict}, {found.matched_values} of {found.values} values, {found.matched_share:.1%}")
    if name not in _REWRITTEN:
        assert found.matched_share >= _SHARE


def test_nearly_all_programs_are_held_to_the_share() -> None:
    assert len(PROGRAMS.keys() - _REWRITTEN.keys()) >= 15
