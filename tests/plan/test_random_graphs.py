"""Graphs that provoke circular fusion plan and run, with the bits of their plain evaluation."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from hloexec.engine.exec import plan_of
from hloexec.engine.plan.regions.region import RegionKernel
from tests.plan.random_graphs import INPUT_COUNT, random_graph
from tests.plan.ways import bits

SIDE = 128


def _inputs(seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal((SIDE, SIDE), dtype=np.float32) for _ in range(INPUT_COUNT)]


@pytest.mark.slow_cases("0")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_have_the_bits_of_their_plain_evaluation(seed: int) -> None:
    steps = (30, 100, 300, 900)[seed % 4] if seed else 2000
    module = hloexec.parse(random_graph(seed, steps, SIDE))
    inputs = _inputs(seed)
    expected = bits(hloexec.run(module, *inputs, planner=False))
    assert bits(hloexec.run(module, *inputs)) == expected


def test_the_graphs_are_made_of_regions() -> None:
    plan = plan_of(hloexec.parse(random_graph(1, 900, SIDE)))
    regions = [step for step in plan.steps if isinstance(step.kernel, RegionKernel)]
    assert len(regions) > 30
