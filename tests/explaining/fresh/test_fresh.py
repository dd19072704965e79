"""The fresh half's truths, held against runs under the policies that they are said to have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import hloexec
from conformance import xla
from tests.explaining.fresh.cases import Made, made
from tests.explaining.fresh.lowered import lowered

pytestmark = pytest.mark.skipif(not xla.available(), reason="jaxlib is not installed")


def _distance(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The root mean square of what the leaves differ by."""
    return max(
        float(np.sqrt(np.mean(np.square(x.astype(np.float64) - y.astype(np.float64)))))
        for x, y in zip(ours, theirs, strict=True)
    )


def _run(case: Made, policy: str) -> list[Any]:
    result = hloexec.run(case.module, *case.inputs, numerics=policy)
    return list(result) if isinstance(result, tuple) else [result]


def test_each_operation_of_a_program_has_an_instruction_of_its_own() -> None:
    found = lowered("narrow_head")
    assert [kind for kind, _ in found.sites.values()].count("product") == 1
    assert len({site for _, site in found.sites.values()}) == len(found.sites)
    assert not found.uncovered


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("low_rank_adapter", "pair 0=bf16 1=bf16x3"),
        ("smoother", "one 1=bf16"),
        ("column_statistics", "pair 0=narrow-sums 4=tf32"),
        ("horner", "excess"),
    ],
)
def test_truth_is_nearer_to_its_policy_than_to_any_simpler_one(name: str, kind: str) -> None:
    case = made(name, kind)
    assert case is not None and case.policy is not None
    off = _distance(_run(case, case.policy), case.expected)
    # Sums in another order are what is left: a tenth of what one operation in its policy changes, or less.
    assert 10 * off < min(_distance(each, case.expected) for each in (case.right, *case.simpler))


def test_fault_changes_the_truth_and_has_no_policy() -> None:
    case = made("smoother", "fault one_late")
    assert case is not None and case.policy is None
    assert _distance(case.expected, case.right) > 0.01
