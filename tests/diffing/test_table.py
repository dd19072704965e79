"""`diff` on the bug farm: it names the planted instruction first, and cries no wolf."""

from __future__ import annotations

from typing import Any

import pytest

import hloexec
from evaluation.pairs.table import CLEAN, FAULTY, Case

pytest.importorskip("jax")

_NAMED_FIRST = 0.95
"""The share of faults whose instruction must be the first finding."""
_MOST_OF_THEM = 60
"""So many pairs need no dump that may not be here."""


def _difference(case: Case) -> Any:
    return hloexec.diff(case.before, case.after.module, case.inputs_per_device)


def _failure(case: Case) -> str | None:
    """What is wrong with the diagnosis of a fault, or None."""
    found = _difference(case)
    if found.verdict != "differ":
        return f"{case}: {found.verdict}"
    if not found.findings:
        return f"{case}: no finding"
    first = found.findings[0].after
    if case.after.holds(first.instruction, case.blamed):
        return None
    planted = sorted(name for name, origin in case.after.origins.items() if origin in case.blamed)
    rank = next((n for n, f in enumerate(found.findings) if case.after.holds(f.after.instruction, case.blamed)), None)
    place = "not at all" if rank is None else f"as number {rank + 1}"
    return f"{case}: {first.path} was named first; planted are {planted}, which come {place}"


@pytest.mark.slow
def test_the_planted_instruction_is_named_first() -> None:
    failures, absent = [], []
    for case in FAULTY:
        try:
            failure = _failure(case)
        except pytest.skip.Exception as reason:
            absent.append(f"{case}: {reason}")
            continue
        if failure is not None:
            failures.append(failure)
    for line in (*absent, *failures):
        print(line)
    count = len(FAULTY) - len(absent)
    assert count >= _MOST_OF_THEM
    assert len(failures) <= (1 - _NAMED_FIRST) * count, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.parametrize("case", CLEAN, ids=str)
def test_a_pair_without_a_fault_is_clean(case: Case) -> None:
    found = _difference(case)
    assert found.verdict in ("agree", "rounding only")
    assert not found.findings
