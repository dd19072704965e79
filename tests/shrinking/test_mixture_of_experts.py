"""The training step for sixteen GPUs, shrunken: each of its computations agrees with XLA:CPU, and so does the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.analysis.numerics.comparison import Comparison
from hloexec.analysis.numerics.sampling.decided import settled
from hloexec.analysis.numerics.sampling.runs import Sampled, sampled_in_stages
from hloexec.core.ir import Module
from tests.dumps import test_mixture_of_experts as at_full_size
from tests.dumps.devices import flat
from tests.dumps.mixture_of_experts import alone, load_dump
from tests.plan.ways import bits
from tests.shrinking.whole_step import filled, first_step_inputs, results_of_xla

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FIRST_MOMENTS, SECOND_MOMENTS = range(25, 48), range(48, 71)
"""Results of the optimizer, in the order of the parameters."""


def shrunken(limit: str) -> Module:
    return hloexec.shrink(load_dump(), max_bytes=limit).module


@at_full_size.needs_xla
def test_computations_agree_with_xla() -> None:
    """All but those in which devices communicate."""
    module = shrunken("200M")
    names = [part.name for part in at_full_size.parts(module) if not part.name.startswith("async_computation")]
    assert len(names) == 548
    for kind in at_full_size.distinct(alone(module, name) for name in names):
        at_full_size.require_agreement(kind)


@at_full_size.needs_xla
def test_the_whole_step_agrees_with_xla_on_sixteen_devices(tmp_path: Path) -> None:
    """What rounding does to each element, as runs that round at random show, is all that hloexec and XLA:CPU differ by on
    any device: in the loss, the gradients (the first moments are a tenth of them), the counts and the parameters.

    Second moments are squares of gradients. Samples say little of squares of what may be 0, but first moments all.
    """
    module = filled(shrunken("20M"))
    path = tmp_path / "small.hlo"
    path.write_text(hloexec.format(module))
    whole = first_step_inputs(module)
    inputs = hloexec.shard_inputs(module, whole)
    actual = tuple(hloexec.run_devices(module, inputs, check=True))
    at_full_size.require_a_step(module, whole, list(actual))
    assert bits(actual) == bits(tuple(hloexec.run_devices(module, inputs, planner=False)))
    expected = results_of_xla(path, actual)
    for outputs in (*actual, *expected):
        require_consistent_moments(flat(outputs))

    def judge(found: Sampled) -> Comparison:
        whole = hloexec.compare(actual, expected, module=module, spreads=found.spreads)
        leaves = (leaf for leaf in whole.leaves if int(leaf.label.split(".")[1]) not in SECOND_MOMENTS)
        return Comparison(tuple(leaves))

    comparison = settled(sampled_in_stages(module, inputs), judge)
    assert comparison.agrees, comparison


def require_consistent_moments(outputs: list[Any]) -> None:
    """m = a · g and v = b · g², each rounded to bf16 once, so that v / m² is b / a² but for three roundings."""
    for first, second in zip(FIRST_MOMENTS, SECOND_MOMENTS, strict=True):
        m, v = (outputs[number].astype(np.float64) for number in (first, second))
        assert m.any()
        np.testing.assert_allclose(v, m * m * (0.050048828125 / 0.10009765625**2), rtol=3 * 2**-8 / (1 - 2**-8) ** 2)
