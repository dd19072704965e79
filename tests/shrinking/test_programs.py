"""A large JAX program, shrunken, computes what the same program computes at the small size, or it is said which
constant keeps it from doing so."""

import pytest

from evaluation.shrinking.judging import SETS, dimensions_of_inputs, shrunken
from tests.shrinking.smallest import assert_same_results, assert_valid

pytest.importorskip("jax")

LEFT = {("kalman_filter", False): 256, ("beam_search", False): 80, ("beam_search", True): 80}
"""What a sum is divided by that a loop within a loop adds to; the iterations of a loop whose counter is no index."""


@pytest.mark.slow_cases("True-reserve-training_of_a_gated_recurrent_network", "True-reserve-heat_equation")
@pytest.mark.sampled(9)
@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
@pytest.mark.parametrize(("half", "name"), [(half, name) for half in SETS for name in SETS[half]])
@pytest.mark.parametrize("optimized", [False, True])
def test_a_shrunken_program_computes_what_the_small_one_does(half: str, name: str, optimized: bool) -> None:
    found, small = shrunken(SETS[half][name], optimized=optimized)
    assert_valid(found.module)
    assert dimensions_of_inputs(found.module) == dimensions_of_inputs(small)
    if (name, optimized) in LEFT:
        left = [change.before for change in found.constants if change.after == change.before and not change.is_certain]
        assert LEFT[name, optimized] in left
        return
    assert_same_results(found.module, small, optimized=optimized)
