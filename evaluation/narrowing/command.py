"""`python -m evaluation precision`: how much of training steps is narrowed, and whether XLA:CPU then trains alike.

For each step, the search runs on five inputs over 20 steps, within 1 % of the loss. XLA:CPU then trains with the
original and with the module that was found, from inputs that neither the search nor its last check have seen: a
permission is false for an input if the losses of a step are more than 1 % apart there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from hloexec.tools.narrowing import Standing

if TYPE_CHECKING:
    from evaluation.narrowing.programs import Step


def _line(step: Step, steps: int, inputs: int, fresh: int, options: Mapping[str, Any]) -> str:
    from evaluation.narrowing.training import TOLERANCE, narrowed, worst_of_xla

    found = narrowed(step, steps=steps, seeds=inputs, **options)
    worst = worst_of_xla(step, found.module, steps, fresh)
    counts = Counter(each.standing for each in found.instructions)
    of_contractions = sum(found.contraction_flops_by_type.values()) / found.contraction_flops
    (output,) = found.outputs
    held_back = 0.0 if output.held_back is None else output.held_back.error
    return (
        f"{step.name}: {100 * found.narrowed_share:.1f} % of FLOPs narrowed ({100 * of_contractions:.1f} % of "
        f"contractions), {100 * found.byte_share:.1f} % of bytes; worst loss {output.worst.error:.2%} in the search, "
        f"{held_back:.2%} held back ({found.held_back_count}); on XLA:CPU, over {fresh} fresh inputs, "
        f"{np.median(worst):.2%} in the median, {worst.max():.2%} at most, {int((worst > TOLERANCE).sum())} beyond "
        f"{TOLERANCE:.0%}; {', '.join(f'{counts[each]} {each.value}' for each in Standing if counts[each])}; "
        f"{found.rejections} rejections, {found.trials} trials, {found.seconds:.0f} s"
    )


@click.command()
@click.argument("programs", nargs=-1, required=True, metavar="STEP...")
@click.option("--steps", type=click.IntRange(2), default=20, show_default=True, help="Of the training.")
@click.option("--inputs", type=click.IntRange(1), default=5, show_default=True, help="Which the search runs on.")
@click.option("--fresh", type=click.IntRange(1), default=20, show_default=True, help="Inputs that XLA:CPU trains from.")
@click.option("--types", default="bf16", show_default=True, metavar="TYPE,...", help="To narrow to.")
@click.option("--held-back", type=click.IntRange(0), default=60, show_default=True, help="Which it is checked on then.")
@click.option("--max-trials", type=click.IntRange(1), default=200, show_default=True, help="Of the search.")
def precision(
    programs: tuple[str, ...],
    steps: int,
    inputs: int,
    fresh: int,
    types: str,
    held_back: int,
    max_trials: int,
) -> None:
    """How much of a training step `precision` narrows, and how safely.

    XLA:CPU then trains with what was found, from fresh inputs. A STEP is transformer or convnet; or one of those that
    are held back: lstm, unet, pinn.
    """
    from evaluation.narrowing.programs import HELD_BACK, SEEN

    known = {step.name: step for step in (*SEEN, *HELD_BACK)}
    for name in programs:
        if name not in known:
            raise click.UsageError(f"there is no step {name!r}; there are {', '.join(known)}")
    options = {"types": types.split(","), "held_back": held_back, "max_trials": max_trials}
    for name in programs:
        click.echo(_line(known[name], steps, inputs, fresh, options))
