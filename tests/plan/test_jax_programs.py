"""Programs lowered by JAX give the same bits planned, by rows in small blocks, instruction by instruction, and watched."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from evaluation.programs import PROGRAMS
from evaluation.programs.lowering import lowered
from tests.plan.ways import bits, small_regions

pytest.importorskip("jax")


class _Watching:
    def on_instruction(self, event: hloexec.Event) -> None:
        """Nothing: that it is called is enough for a run that is watched."""


@pytest.mark.slow_cases(
    "layer_norm_mlp", "associative_scan", "event_machine", "lattice_boltzmann", "sparse_least_squares"
)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.devices == 1])
def test_programs_have_the_same_bits_in_every_way(name: str) -> None:
    program = lowered(name)
    for module in (program.before, program.optimized):
        with np.errstate(all="ignore"):
            planned = hloexec.run_devices(module, program.inputs_per_device)
            plain = hloexec.run_devices(module, program.inputs_per_device, planner=False)
            watched = hloexec.run_devices(module, program.inputs_per_device, observers=[_Watching()])
            with small_regions(1 << 14):
                by_rows = hloexec.run_devices(hloexec.parse(hloexec.format(module)), program.inputs_per_device)
        assert bits(planned) == bits(plain) == bits(watched) == bits(by_rows)
