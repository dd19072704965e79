"""Whether what `explain` says of a case is right."""

from __future__ import annotations

import time

import hloexec
from evaluation.explaining.cases import Case, Truth, same, truth
from evaluation.processes import Record
from hloexec.ops.policies.policy import numerics_policy
from hloexec.tools.explaining.trying import single_units


def judged(case: Case) -> Record | None:
    """What `explain` says of a case, and whether that is right; None where the case does not count."""
    made = truth(case)
    return None if made is None else judged_truth(case, made)


def judged_truth(case: Case, made: Truth) -> Record:
    """The same of a truth that is there."""
    start = time.perf_counter()
    found = hloexec.explain(made.module, made.inputs, made.expected)
    named = [found.best, *found.alike] if found.is_explained else []
    return {
        "name": case.name,
        "kind": case.kind,
        "half": case.half,
        "policy": made.policy,
        "note": made.note,
        "visibility": made.visibility,
        "is_visible": made.visibility is None or made.visibility >= 1,
        "verdict": found.verdict.value,
        "best": found.best.name,
        "alike": [trial.name for trial in found.alike],
        "bits": found.best.bits,
        "ratio": found.best.spread_ratio,
        "mismatches": found.best.mismatches,
        "effect": [found.best.effect, found.best.effect_error],
        "undecided": [policy.name for policy in found.undecided],
        "untold": [f"{untold.instruction}={untold.policy}" for untold in found.untold],
        "names": _names(found),
        "is_complete": found.is_complete,
        "is_right": not named if made.policy is None else _is_right(made, found),
        "is_alone": made.policy is not None and bool(named) and _is_same(made, found.best.name),
        "runs": found.runs,
        "seconds": round(time.perf_counter() - start, 2),
    }


def _is_right(made: Truth, found: hloexec.Explanation) -> bool:
    """Whether the policy is among those that are named; or its effect is said to be hidden besides those of XLA:CPU,
    which are there in any case: it was XLA:CPU that ran."""
    if not found.is_explained:
        return False
    if any(_is_same(made, trial.name) for trial in (found.best, *found.alike)):
        return True
    if found.untold and _differs_where_untold(made, found) and _explains(made):
        return True
    own = found.best.name in ("xla-cpu", "ftz")
    return own and any(_is_same(made, policy.name) for policy in found.undecided)


def _differs_where_untold(made: Truth, found: hloexec.Explanation) -> bool:
    """Whether the policy that is named is the right one but for what is said to be untold: that very policy of that
    very instruction."""
    policies = [numerics_policy(made.policy), found.best.policy]
    parts = {part for policy in policies for part in policy.chosen_parts}
    differing = {
        (unit, part.name)
        for part in parts
        for unit in single_units(made.module, part)
        if len({part in policy.of(*unit.split("/", 1)).plain_parts for policy in policies}) > 1
    }
    return differing <= {(untold.instruction, untold.policy) for untold in found.untold}


def _explains(made: Truth) -> bool:
    """Whether a run under the right policy lies within what rounding leaves."""
    assert made.policy is not None
    found = hloexec.explain(made.module, made.inputs, made.expected, policies=[made.policy], runs=30)
    return any(trial.is_explained for trial in found.trials if trial.policy == numerics_policy(made.policy))


def _names(found: hloexec.Explanation) -> int:
    """How many policies an answer names: one for all instructions of which it cannot be told."""
    if not found.is_explained:
        return 0
    named = {trial.name for trial in (found.best, *found.alike)}
    return len(named | {policy.name for policy in found.undecided} | {each.policy for each in found.untold})


def _is_same(made: Truth, policy: str) -> bool:
    """Whether a policy gives the same bits as the one that is right, as no values could tell it from that; or is what
    ran: XLA:CPU, which flushes denormals."""
    assert made.policy is not None
    if policy == made.policy or (made.policy in ("reference", "ftz") and policy == "xla-cpu"):
        return True
    return same(made.module, made.inputs, policy, made.policy)
