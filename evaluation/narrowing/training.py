"""What may be narrowed in a training step, and how XLA:CPU trains with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import hloexec
from conformance import xla
from evaluation.narrowing.programs import Step
from hloexec.core.ir import Module
from hloexec.tools.narrowing import Narrowing

TOLERANCE = 0.01
_FRESH = 2000
"""The first seed of the inputs that nothing else uses."""


def narrowed(step: Step, *, steps: int, seeds: int, **options: Any) -> Narrowing:
    """What may be narrowed in a training step."""
    return hloexec.narrow(
        step.module(), step.inputs, tolerance=TOLERANCE, steps=steps, seeds=seeds, portable=True, **options
    )


def losses_of_xla(module: Module, inputs: Sequence[Sequence[Any]], steps: int) -> np.ndarray[Any, Any]:
    """The losses at each step as XLA:CPU computes them, a row for each of several inputs, which begin with the state."""
    compiled = xla.compile_hlo(hloexec.format(module))
    rows = []
    for given in inputs:
        values, losses = list(given), []
        for _ in range(steps):
            loss, *state = compiled.run(*values)
            losses.append(float(loss))
            values[: len(state)] = state
        rows.append(losses)
    return np.array(rows)


def worst_of_xla(step: Step, found: Module, steps: int, fresh: int) -> np.ndarray[Any, Any]:
    """The largest relative difference of the losses over all steps, for each of so many fresh inputs."""
    inputs = [step.inputs(seed) for seed in range(_FRESH, _FRESH + fresh)]
    before, after = (losses_of_xla(module, inputs, steps) for module in (step.module(), found))
    return np.asarray(np.max(np.abs(after - before) / np.abs(before), axis=1))
