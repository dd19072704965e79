"""Measures the search on training steps: `python -m evaluation.narrowing.command transformer convnet`.

For each program, the search runs on five inputs over 20 steps, within 1 % of the loss. XLA:CPU then trains with the
original and with the module that was found, from inputs that neither the search nor its last check have seen: a
permission is false for an input if the losses of a step are more than 1 % apart there.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import hloexec
from conformance import xla
from evaluation.narrowing.programs import HELD_BACK, SEEN, Step
from hloexec.ir import Module
from hloexec.narrowing import Narrowing, Standing

__all__ = ["losses_of_xla", "narrowed", "worst_of_xla"]

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


def _line(step: Step, arguments: argparse.Namespace) -> str:
    found = narrowed(step, steps=arguments.steps, seeds=arguments.inputs, types=arguments.types.split(","))
    worst = worst_of_xla(step, found.module, arguments.steps, arguments.fresh)
    counts = Counter(each.standing for each in found.instructions)
    of_contractions = sum(found.contraction_flops_by_type.values()) / found.contraction_flops
    (output,) = found.outputs
    held_back = 0.0 if output.held_back is None else output.held_back.error
    return (
        f"{step.name}: {100 * found.narrowed_share:.1f} % of FLOPs narrowed ({100 * of_contractions:.1f} % of "
        f"contractions), {100 * found.byte_share:.1f} % of bytes; worst loss {output.worst.error:.2%} in the search, "
        f"{held_back:.2%} held back ({found.held_back_count}); on XLA:CPU, over {arguments.fresh} fresh inputs, "
        f"{np.median(worst):.2%} in the median, {worst.max():.2%} at most, {int((worst > TOLERANCE).sum())} beyond "
        f"{TOLERANCE:.0%}; {', '.join(f'{counts[each]} {each.value}' for each in Standing if counts[each])}; "
        f"{found.rejections} rejections, {found.trials} trials, {found.seconds:.0f} s"
    )


def _main() -> None:
    steps = {step.name: step for step in (*SEEN, *HELD_BACK)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="+", choices=sorted(steps))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--inputs", type=int, default=5)
    parser.add_argument("--fresh", type=int, default=20)
    parser.add_argument("--types", default="bf16")
    arguments = parser.parse_args()
    for name in arguments.programs:
        print(_line(steps[name], arguments), flush=True)


if __name__ == "__main__":
    _main()
