"""`python -m evaluation mutants`: how far mutants of modules go, and where hloexec raises what is no HloError."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click

from evaluation.fuzzing.corpus import corpus
from evaluation.fuzzing.measuring import mutant_of
from evaluation.options import EXECUTOR
from evaluation.processes import measure_apart

_CHUNK = 500
_SECONDS = 400
"""Of one mutant, which ends itself before."""
_SHOWN = 3
"""Mutants that fail at the same place."""


@click.command()
@click.argument("first", type=click.IntRange(0))
@click.argument("last", type=click.IntRange(0))
@click.option("--corpus", "folders", multiple=True, metavar="FOLDER", help="A folder of further .hlo texts.")
@click.option("--show", is_flag=True, help="Print the mutants of the seeds instead.")
@EXECUTOR
def mutants(first: int, last: int, folders: tuple[str, ...], show: bool, executor: str | None, jobs: int) -> None:
    """How far mutants of modules go, and where hloexec fails.

    They are those of the seeds from FIRST up to LAST. All that is neither a result nor an HloError is a failure.
    """
    paths = [Path(folder).resolve() for folder in folders]
    if show:
        texts = corpus(paths)
        for seed in range(first, last):
            click.echo(mutant_of(seed, texts))
        return
    seeds = [str(seed) for seed in range(first, last)]
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for record in measure_apart(
        "evaluation.fuzzing.measuring:measured",
        chunks,
        seconds=_SECONDS,
        jobs=jobs,
        executor=executor,
        arguments=[*map(str, paths)],
    ):
        if "outcome" in record:
            counts[record["outcome"]] += 1
            continue
        where = record.get("where", "the process died")
        faults[where] += 1
        if faults[where] <= _SHOWN:
            click.echo(f"{record['name']}  {where}\n    {record['failure']}")
    click.echo(f"{dict(counts)}; {faults.total()} faults at {len(faults)} places")
    sys.exit(bool(faults))
