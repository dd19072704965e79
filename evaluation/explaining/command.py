"""`python -m evaluation explain`: how often the policy that made a truth is named, and none where there is a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

import hloexec
from evaluation.explaining.cases import Case, cases
from evaluation.explaining.judging import judged
from evaluation.explaining.operations.halves import HALVES
from evaluation.options import JSON, LIMIT, ONLY, half_option, share, spread, taken
from evaluation.processes import Record


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


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / max(1, len(numbers))


def _summary(records: Sequence[Record]) -> list[str]:
    policies = [record for record in records if record["policy"] is not None]
    shown = [record for record in policies if record["is_visible"]]
    faults = [record for record in records if record["policy"] is None]
    # Of a policy, "none of them" is an answer that is missing; one that is named is what somebody would believe.
    certain = sum(r["names"] > 0 and not r["is_right"] for r in policies)
    wrong = Counter(record["kind"] for record in records if not record["is_right"])
    return [
        f"policies: {share(sum(r['is_right'] for r in policies), len(policies))} right; "
        f"{share(sum(r['is_alone'] for r in policies), len(policies))} named first; "
        f"{share(sum(r['is_right'] and not r['alike'] for r in policies), len(policies))} named alone, "
        f"{share(sum(r['is_right'] and bool(r['untold']) for r in policies), len(policies))} with what cannot be told",
        f"of those whose effect rounding does not hide: {share(sum(r['is_right'] for r in shown), len(shown))} right",
        f"policies that an answer names: {_mean([r['names'] for r in policies]):.1f}, with instructions: "
        f"{_mean([r['names'] + len(r['untold']) for r in policies]):.1f}",
        f"runs: {_mean([r['runs'] for r in policies]):.0f} where a policy is right, "
        f"{_mean([r['runs'] for r in faults]):.0f} for faults",
        f"faults: {share(sum(r['is_right'] for r in faults), len(faults))} explained by none",
        f"certain and wrong: {share(certain, len(policies))} of the policies",
        f"by kind: {dict(Counter(r['kind'] for r in records))}; wrong: {dict(wrong)}",
    ]


def _measured(wanted: Sequence[Case]) -> Iterator[Record]:
    """What is found of the cases that count."""
    for case in wanted:
        try:
            record = judged(case)
        except hloexec.HloError as error:
            click.echo(f"none  {case.name}: {str(error)[:150]}")
            continue
        if record is not None:
            yield record


@click.command()
@half_option("seen", "held", "reserve", *HALVES)
@click.option(
    "--set",
    "which",
    type=click.Choice(("floats", "integers")),
    default="floats",
    show_default=True,
    help="Programs with results of floats, or of integers and preds alone; `integers` has seen and held.",
)
@ONLY
@LIMIT
@JSON
def explain(half: str, which: str, only: str, limit: int | None, target: Path | None) -> None:
    """How often `explain` names the policy that made a result.

    XLA:CPU or NumPy computed the results, some of them with a fault, of which no policy is to be named.
    """
    wanted = spread([case for case in cases(half, which) if only in case.name], limit)
    click.echo("\n".join(_summary(taken(_measured(wanted), _line, target))))
