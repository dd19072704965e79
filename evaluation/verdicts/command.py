"""`python -m evaluation verdicts`: verdicts about training steps in which rounding chooses between values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

from evaluation.options import EXECUTOR, JSON, LIMIT, ONLY, half_option, share, spread, taken
from evaluation.processes import Record, measure_apart
from evaluation.verdicts.steps import Case, cases

_SECONDS = 120
_XLA = {"XLA_FLAGS": "--xla_allow_excess_precision=true"}
"""XLA's default, which is stated as modules that are run otherwise would not have it."""


def _is_clean(record: Record) -> bool:
    return not Case.of(record["name"]).fault


def _is_right(record: Record) -> bool:
    return "verdict" in record and (record["verdict"] == "different") != _is_clean(record)


def _is_certain(record: Record) -> bool:
    """Whether it says something; *not decided* does not."""
    return "verdict" in record and record["verdict"] != "not decided"


def _line(record: Record) -> str:
    if "verdict" not in record:
        return f"{record['name']:44} {record.get('failure') or record['not_drawn']}"
    word = "" if _is_right(record) else "FALSE ALARM" if _is_clean(record) else "MISSED"
    leaves = ", ".join(f"{label}: {off} of {count}" for label, _, off, count, _ in record["leaves"][:4])
    return f"{record['name']:44} {record['verdict']:14} {word:11} {record['seconds']:5.1f} s  {record['what']} {leaves}"


def _summary(records: Sequence[Record]) -> Iterator[str]:
    drawn = [record for record in records if "not_drawn" not in record]
    clean = [record for record in drawn if _is_clean(record)]
    faulty = [record for record in drawn if not _is_clean(record)]
    wrong = [record for record in drawn if not _is_right(record)]
    failed = [record for record in drawn if "failure" in record]
    yield f"{len(clean)} clean and {len(faulty)} faulty steps, {len(records) - len(drawn)} not drawn, {len(failed)} failed"
    yield f"right:             {share(len(drawn) - len(wrong), len(drawn))}"
    yield f"certain and wrong: {share(sum(map(_is_certain, wrong)), len(drawn))}"
    yield f"false alarms:      {share(sum(map(_is_clean, wrong)), len(clean))}"
    yield f"not decided:       {share(sum(each.get('verdict') == 'not decided' for each in clean), len(clean))} clean"


@click.command()
@half_option("seen", "held", "library", "choices", "reserve")
@ONLY
@LIMIT
@EXECUTOR
@JSON
def verdicts(half: str, only: str, limit: int | None, executor: str | None, jobs: int, target: Path | None) -> None:
    """How often `compare` is right about training steps that XLA:CPU runs, with a fault and without."""
    names = spread([case.name for case in cases(half) if only in case.name], limit)
    chunks = [[*chunk] for _, chunk in groupby(names, lambda name: name.rpartition("/")[0])]
    measured = measure_apart(
        "evaluation.verdicts.measuring:measured", chunks, seconds=_SECONDS, jobs=jobs, executor=executor, variables=_XLA
    )
    records = taken(measured, _line, target)
    click.echo("\n" + "\n".join(_summary(records)))
