"""Pallas kernels for GPUs, lowered without one, run from the text: against true values and Pallas' interpret mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hloexec
from tests.library_calls.mosaic.kernels import Case, require_expected, without_warnings
from tests.library_calls.triton import later  # noqa: F401  # fills CASES
from tests.library_calls.triton.kernels import CASES
from tests.library_calls.triton.lowering import interpreted, lowered, require_pallas


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def run(case: Case) -> tuple[Any, ...]:
    return without_warnings(lowered(case.build(False), *case.arguments), case)


@pytest.mark.parametrize("name", list(CASES))
def test_a_kernel_computes_what_its_author_meant(name: str) -> None:
    case = CASES[name]()
    require_expected(case, run(case))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", list(CASES))
def test_a_kernel_computes_what_interpret_mode_does(name: str) -> None:
    case = CASES[name]()
    if case.interpret is None:
        pytest.skip("Pallas' interpret mode computes something else")
    for number, (result, other) in enumerate(zip(run(case), interpreted(case), strict=True)):
        ours, theirs = result.astype(np.float64), np.asarray(other).astype(np.float64)
        # Both are within the bound of the true value.
        bound = 0 if case.bounds is None else 2 * case.bounds[number]
        assert (np.abs(ours - theirs) <= bound).all()


@pytest.mark.parametrize("name", list(CASES))
def test_the_bits_do_not_depend_on_how_many_instances_run_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]()
    text = hloexec.format(lowered(case.build(False), *case.arguments))
    outcomes = []
    for most in (1 << 20, 3000, 1):
        monkeypatch.setattr("hloexec.ops.library_calls.triton.calls._MOST_ELEMENTS", most)
        result = hloexec.run(hloexec.parse(text), *case.arguments)
        parts = result if isinstance(result, tuple) else (result,)
        outcomes.append([part.tobytes() for part in parts])
    assert outcomes[0] == outcomes[1] == outcomes[2]
