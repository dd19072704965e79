"""Measure `hloexec.explain` on the cases: `python -m evaluation.explaining.command --help`."""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hloexec
from evaluation.explaining.cases import Case, Truth, cases, same, truth
from evaluation.explaining.operations.halves import HALVES
from evaluation.processes import ENVIRONMENT
from hloexec.explaining.units import single_units
from hloexec.ops.policies.policy import numerics_policy

__all__ = ["judged"]

Record = dict[str, Any]


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


def _line(record: Record) -> str:
    word = "right" if record["is_right"] else "WRONG"
    said = record["best"] if record["verdict"] == "explained" else record["verdict"] + f" ({record['best']})"
    alike = f" or {', '.join(record['alike'])}" if record["alike"] else ""
    return (
        f"{word} {record['name']:32} {said[:90]}{alike[:90]}; truth {str(record['policy'])[:80]} {record['note']}{_visible(record)}; bits "
        f"{record['bits']:.1f}, ratio {record['ratio'] or 0:.2g}, off {record['mismatches']}, effect {record['effect']}, "
        f"{record['runs']} runs, {record['seconds']} s, untold {record['untold']}, {record['is_complete']}"
    )


def _visible(record: Record) -> str:
    if record["visibility"] is None:
        return ""
    return f" ({'visible' if record['is_visible'] else 'hidden'}: {record['visibility']:.2g} of rounding)"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.1%})" if whole else "")


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / max(1, len(numbers))


def _summary(records: Sequence[Record]) -> list[str]:
    policies = [record for record in records if record["policy"] is not None]
    shown = [record for record in policies if record["is_visible"]]
    faults = [record for record in records if record["policy"] is None]
    wrong = Counter(record["kind"] for record in records if not record["is_right"])
    return [
        f"policies: {_share(sum(r['is_right'] for r in policies), len(policies))} right; "
        f"{_share(sum(r['is_alone'] for r in policies), len(policies))} named first; "
        f"{_share(sum(r['is_right'] and not r['alike'] for r in policies), len(policies))} named alone, "
        f"{_share(sum(r['is_right'] and bool(r['untold']) for r in policies), len(policies))} with what cannot be told",
        f"of those whose effect rounding does not hide: {_share(sum(r['is_right'] for r in shown), len(shown))} right",
        f"policies that an answer names: {_mean([r['names'] for r in policies]):.1f}, with instructions: "
        f"{_mean([r['names'] + len(r['untold']) for r in policies]):.1f}",
        f"runs: {_mean([r['runs'] for r in policies]):.0f} where a policy is right, "
        f"{_mean([r['runs'] for r in faults]):.0f} for faults",
        f"faults: {_share(sum(r['is_right'] for r in faults), len(faults))} explained by none",
        f"by kind: {dict(Counter(r['kind'] for r in records))}; wrong: {dict(wrong)}",
    ]


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.explaining.command", description=__doc__)
    parser.add_argument(
        "--half",
        default="seen",
        choices=("seen", "held", "reserve", *HALVES),
        help="which half of the programs, or which other group of them",
    )
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="cases whose name contains it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a line of JSON for each case")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    warnings.simplefilter("ignore")
    records = []
    for case in cases(options.half):
        if options.only not in case.name:
            continue
        try:
            record = judged(case)
        except hloexec.HloError as error:
            print(f"none  {case.name}: {str(error)[:150]}", flush=True)
            continue
        if record is not None:
            records.append(record)
            print(_line(record), flush=True)
            if options.json:
                options.json.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    print("\n".join(_summary(records)))


if __name__ == "__main__":
    main()
