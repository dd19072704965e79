"""Pallas kernels for TPUs, lowered without one, run from the text: against true values and Pallas' interpret mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.library_calls.mosaic import blocks, later, more, movement  # noqa: F401  # fill CASES
from tests.library_calls.mosaic.kernels import CASES, Case, require_expected, without_warnings
from tests.library_calls.mosaic.lowering import interpreted, lowered, require_pallas

LEAST_CASES = 60


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def run(case: Case) -> tuple[Any, ...]:
    return without_warnings(lowered(case), case)


def test_there_are_many_kernels() -> None:
    assert len(CASES) >= LEAST_CASES


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_what_its_author_meant(name: str) -> None:
    case = CASES[name]()
    require_expected(case, run(case))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", list(CASES))
def test_a_kernel_computes_what_interpret_mode_does(name: str) -> None:
    case = CASES[name]()
    if case.interpret is None:
        pytest.skip("Pallas' interpret modes do not run it on a CPU")
    for number, (result, other) in enumerate(zip(run(case), interpreted(case), strict=True)):
        ours, theirs = result.astype(np.float64), np.asarray(other).astype(np.float64)
        # Both are within the bound of the true value.
        bound = 0 if case.bounds is None else 2 * case.bounds[number]
        assert ((np.abs(ours - theirs) <= bound) | (np.isnan(ours) & np.isnan(theirs))).all()
