"""The truths of the fresh half and of the blind one, held against runs under the policies that they are said to have."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import hloexec
from conformance import xla
from evaluation.explaining import programs
from evaluation.explaining.operations.cases import Made, made
from evaluation.explaining.operations.halves import HALVES
from evaluation.explaining.operations.lowered import lowered
from evaluation.explaining.operations.visibility import beyond_rounding, visibility
from evaluation.explaining.reserve import cases as reserve_cases

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


def test_no_two_halves_share_a_program() -> None:
    halves = [*HALVES.values(), programs.NAMES, reserve_cases.NAMES]
    assert sum(map(len, halves)) == len({name for half in halves for name in half})


@pytest.mark.parametrize("name", ["narrow_head", "narrow_norm"])
def test_each_operation_of_a_program_has_an_instruction_of_its_own(name: str) -> None:
    found = lowered(name)
    assert [kind for kind, _ in found.sites.values()].count("product") == 1
    assert len({site for _, site in found.sites.values()}) == len(found.sites)
    assert not found.uncovered


@pytest.mark.slow_cases(
    "low_rank_adapter-pair 0=bf16 1=bf16x3",
    "column_statistics-pair 0=narrow-sums 4=tf32",
    "horner-excess",
    "weighted_votes-pair 0=narrow-sums 3=bf16x3",
    "compositing-excess",
)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("low_rank_adapter", "pair 0=bf16 1=bf16x3"),
        ("smoother", "one 1=bf16"),
        ("column_statistics", "pair 0=narrow-sums 4=tf32"),
        ("horner", "excess"),
        ("weighted_votes", "pair 0=narrow-sums 3=bf16x3"),
        ("compositing", "excess"),
    ],
)
def test_truth_is_nearer_to_its_policy_than_to_any_simpler_one(name: str, kind: str) -> None:
    case = made(name, kind)
    assert case is not None and case.policy is not None
    off = _distance(_run(case, case.policy), case.expected)
    # Sums in another order are what is left: a tenth of what one operation in its policy changes, or less.
    assert 10 * off < min(_distance(each, case.expected) for each in (case.right, *case.simpler))


@pytest.mark.slow_cases("filter_bank-fault taps_reversed")
@pytest.mark.parametrize(("name", "kind"), [("smoother", "fault one_late"), ("filter_bank", "fault taps_reversed")])
def test_fault_changes_the_truth_and_has_no_policy(name: str, kind: str) -> None:
    case = made(name, kind)
    assert case is not None and case.policy is None
    assert _distance(case.expected, case.right) > 0.01


@pytest.mark.slow
def test_visibility_is_of_policies_alone() -> None:
    case, plain = (made("weighted_votes", kind) for kind in ("pair 0=narrow-sums 3=bf16x3", "reference"))
    assert case is not None and plain is not None
    shown = visibility("weighted_votes", "pair 0=narrow-sums 3=bf16x3", case)
    assert shown is not None and shown > 10
    assert visibility("weighted_votes", "reference", plain) is None


def test_an_effect_is_what_is_left_beside_rounding() -> None:
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    assert beyond_rounding([zeros], [ones], [ones]) == 0
    assert beyond_rounding([zeros], [4 * ones], [5 * ones]) == 0.75
    assert beyond_rounding([zeros, zeros], [4 * ones, zeros], [5 * ones, zeros]) == 0.75
    assert beyond_rounding([zeros, zeros], [4 * ones, zeros], [5 * ones, ones]) == np.inf
