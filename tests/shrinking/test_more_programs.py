"""Programs that shrinking was not made with: the large one, shrunken, computes what the small one does, or it is said
which constant keeps it from doing so.
"""

from __future__ import annotations

from typing import Any

import pytest

import hloexec
from tests.shrinking.more_programs import MORE_PROGRAMS, Program
from tests.shrinking.smallest import assert_same_results, assert_valid

pytest.importorskip("jax")
pytestmark = pytest.mark.filterwarnings("ignore::hloexec.HloWarning")

LEFT = {("kalman_filter", False): 256, ("beam_search", False): 80, ("beam_search", True): 80}
"""What a sum is divided by that a loop within a loop adds to; the iterations of a loop whose counter is no index."""


def shrunken(program: Program, large: Any, small: Any) -> Any:
    """The large module with the sizes of the small one's inputs, and with those that the program has beside them."""
    dims = {size: program.small[name] for name, size in program.large.items()}
    for ours, theirs in zip(large.entry.parameter_shapes, small.entry.parameter_shapes, strict=True):
        dims |= dict(zip(ours.dimensions, theirs.dimensions, strict=True))
    changed = {before: after for before, after in dims.items() if before != after}
    kept = {size for name, size in program.large.items() if program.small[name] == size}
    present = {
        size
        for computation in large
        for instruction in computation.instructions
        for size in getattr(instruction.shape, "dimensions", ())
    }
    return hloexec.shrink(large, dims={size: changed[size] for size in changed if size in present}, keep=kept & present)


@pytest.mark.slow_cases("beam_search-False")
@pytest.mark.sampled(15)
@pytest.mark.parametrize("optimized", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MORE_PROGRAMS)
def test_another_program_computes_what_the_small_one_does(name: str, optimized: bool) -> None:
    program = MORE_PROGRAMS[name]
    large, small = (program.lowered(sizes, optimized=optimized) for sizes in (program.large, program.small))
    found = shrunken(program, large, small)
    assert_valid(found.module)
    assert [shape.dimensions for shape in found.module.entry.parameter_shapes] == [
        shape.dimensions for shape in small.entry.parameter_shapes
    ]
    if (name, optimized) in LEFT:
        left = [change.before for change in found.constants if change.after == change.before and not change.is_certain]
        assert LEFT[name, optimized] in left
        return
    assert_same_results(found.module, small, optimized=optimized)
