"""What XLA:CPU makes of the benchmarks' programs: no false alarm, and values are found again through its optimizations.

What is optimized is every program that the benchmarks measure, at a fiftieth of its sizes. XLA may not compute with
more precision than the program says, as it may by default: rounding that is left out is what `diff` reports.
"""

import pytest

import hloexec
from conformance.xla import canonical_text

pytest.importorskip("jax")
pytest.importorskip("flax")

import jax

from benchmarks.programs import PROGRAMS

_SHARE = 0.8
_REWRITTEN = {
    "cumsum": "the window's sums become sums of blocks, and of their sums: six of seven values are new",
    "max-pool": "select-and-scatter becomes a reduce-window over values and indices, whose results are new",
}
"""Programs of a few instructions, of which XLA computes the greater part in other steps."""
_LONG = {"unet"}
"""Programs for which the search for causes takes minutes."""

_FLAGS = {
    "xla_allow_excess_precision": False,
    # LLVM's optimizations come after those of HLO.
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in _LONG])
def test_optimized_programs_agree_and_their_values_are_found(name: str) -> None:
    function, arguments = PROGRAMS[name](0.02)
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    (optimized,) = lowered.compile(_FLAGS).runtime_executable().hlo_modules()
    before, after = hloexec.from_jax(lowered), hloexec.parse(canonical_text(optimized))
    assert after.is_scheduled and hloexec.format(before) != hloexec.format(after)
    found = hloexec.diff(before, after)
    assert found.verdict in ("agree", "rounding only"), [str(finding) for finding in found.findings]
    assert found.values > 0
    print(f"{name}: {found.verdict}, {found.matched_values} of {found.values} values, {found.matched_share:.1%}")
    if name not in _REWRITTEN:
        assert found.matched_share >= _SHARE


def test_nearly_all_programs_are_held_to_the_share() -> None:
    assert len(PROGRAMS.keys() - _REWRITTEN.keys()) >= 15
