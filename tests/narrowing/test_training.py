"""Training steps, as XLA:CPU trains with what was narrowed: a reduced form of `python -m evaluation precision`."""

import numpy as np
import pytest

import hloexec

pytest.importorskip("jax")

from evaluation.narrowing.programs import SEEN
from evaluation.narrowing.training import TOLERANCE, losses_of_xla, narrowed, worst_of_xla

TRANSFORMER, CONVNET = SEEN


@pytest.mark.slow
def test_contractions_of_a_convnet_step_are_narrowed_and_xla_agrees() -> None:
    found = narrowed(CONVNET, steps=3, seeds=2, held_back=2, max_trials=6, kinds=["contraction"])
    assert found.narrowed_share > 0.6
    assert worst_of_xla(CONVNET, found.module, 3, 3).max() <= TOLERANCE


@pytest.mark.slow
def test_hloexec_and_xla_train_alike_with_a_narrowed_module() -> None:
    found = narrowed(TRANSFORMER, steps=2, seeds=1, held_back=1, max_trials=3, kinds=["contraction"])
    assert found.narrowed_share > 0.6
    inputs = TRANSFORMER.inputs(7)
    values, ours = list(inputs), []
    for _ in range(3):
        loss, *state = hloexec.run(found.module, *values)  # type: ignore[misc]
        ours.append(float(loss))  # type: ignore[arg-type]
        values[: len(state)] = state
    (theirs,) = losses_of_xla(found.module, [inputs], 3)
    # Both round to bf16 at the same places; they differ where sums in another order round to another number of bf16,
    # by 2^-8 each, which the mean of 64 losses averages.
    assert np.max(np.abs(np.array(ours) - theirs) / theirs) < 2.0**-9


@pytest.mark.slow
def test_transformer_step_of_ten_steps_and_three_inputs() -> None:
    found = narrowed(TRANSFORMER, steps=10, seeds=3, held_back=10)
    assert found.narrowed_share > 0.6
    assert worst_of_xla(TRANSFORMER, found.module, 10, 3).max() <= TOLERANCE
