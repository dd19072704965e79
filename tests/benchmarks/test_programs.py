"""Every program that the benchmarks measure, at a fiftieth of each size, agrees with XLA:CPU.

The bound is the benchmarks' own, derived in `benchmarks.agreement`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from benchmarks.agreement import agreement, relative_roundings
from benchmarks.arrays import read_arrays
from hloexec.engine.exec.statistics import Statistics

pytest.importorskip("jax")
pytest.importorskip("flax")

from benchmarks import programs, subjects
from conformance import xla

_SCALE = 0.02


def _leaves(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


@pytest.mark.slow_cases("transformer", "experts", "cumsum", "kalman")
@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_a_program_cut_small_agrees_with_xla(name: str, tmp_path: Path) -> None:
    files = subjects.subject(name, tmp_path, _SCALE)
    statistics = Statistics()
    actual = _leaves(hloexec.run(hloexec.load(files.hlo), *read_arrays(files.inputs), statistics=statistics))
    # LLVM's own optimizations are most of the compilation, and change no more than roundings.
    flags = {"xla_backend_optimization_level": 0, "xla_allow_excess_precision": False}
    compiled = xla.compile_hlo(files.hlo.read_text(), 1, xla_flags=flags)
    expected = compiled.run(*read_arrays(files.inputs))
    moved = compiled.run(*read_arrays(files.stirred_inputs))
    roundings = relative_roundings(files.unit, statistics.steps, files.elements)
    found = agreement(actual, expected, moved, files.unit, roundings)
    assert found.holds, found
    assert roundings < 0.5, "a bound that no result could exceed"
    assert all(np.isfinite(leaf.astype(np.complex64)).all() for leaf in actual)


@pytest.mark.parametrize("name", ["sort", "chain", "fft"])
def test_a_scale_cuts_every_size(name: str) -> None:
    whole, part = (hloexec.parse(programs.hlo_text(name, scale)).entry.parameter_shapes for scale in (1, 0.1))
    for large, small in zip(whole, part, strict=True):
        assert small.dimensions == tuple(round(size / 10) for size in large.dimensions)


def test_sizes_are_those_of_the_benchmark_at_scale_1() -> None:
    shapes = {
        name: [str(parameter.dimensions) for parameter in hloexec.parse(programs.hlo_text(name)).entry.parameter_shapes]
        for name in "sort embedding depthwise mlp-bf16 max-pool newton fft cumsum".split()
    }
    assert shapes == {
        "sort": ["(64, 16384)"] * 2,
        "embedding": ["(8192,)", "(8192, 256)"],
        "depthwise": ["(8, 56, 56, 192)", "(3, 3, 1, 192)"],
        "mlp-bf16": ["(1024, 1024)", "(1024, 4096)", "(4096, 1024)"],
        "max-pool": ["(8, 112, 112, 64)", "(8, 56, 56, 64)"],
        "newton": ["(64,)"],
        "fft": ["(256, 4096)"],
        "cumsum": ["(1024, 4096)"],
    }
