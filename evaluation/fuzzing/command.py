"""`python -m evaluation.fuzzing FIRST LAST`: mutants of these seeds, in processes of 4 GB, each mutant in 20 s of the processor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from evaluation.fuzzing.corpus import corpus
from evaluation.fuzzing.trying import mutant_of

_CHUNK = 2000


def _tried(first: int, last: int, folders: tuple[str, ...]) -> tuple[Counter[str], list[tuple[int, str, str]]]:
    """How the mutants of some seeds end, and the faults: seed, where, what."""
    command = [sys.executable, "-m", "evaluation.fuzzing.trying", str(first), str(last), *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [(record["seed"], record["where"], record["what"]) for record in records if "where" in record]
    counts = Counter(records[-1].get("counts")) if records else Counter()
    begun = next((record["begin"] for record in reversed(records) if "begin" in record), first)
    if not counts or done.returncode:
        faults.append((begun, f"the process ended with {done.returncode}", done.stderr[-300:]))
        if begun + 1 < last:
            more, other = _tried(begun + 1, last, folders)
            return counts + more, faults + other
    return counts, faults


@click.command()
@click.argument("first", type=int)
@click.argument("last", type=int)
@click.option("--corpus", "folders", multiple=True, help="A folder of further .hlo texts.")
@click.option("--show", is_flag=True, help="Print the mutants of the seeds instead.")
@click.option("--workers", default=2)
def _main(first: int, last: int, folders: tuple[str, ...], show: bool, workers: int) -> None:
    if show:
        texts = corpus([Path(folder) for folder in folders])
        for seed in range(first, last):
            click.echo(mutant_of(seed, texts))
        return
    counts: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    with ThreadPoolExecutor(workers) as pool:
        chunks = [(start, min(start + _CHUNK, last), folders) for start in range(first, last, _CHUNK)]
        for found, faults in pool.map(lambda chunk: _tried(*chunk), chunks):
            counts += found
            for seed, where, what in faults:
                seen[where] += 1
                if seen[where] <= 3:
                    click.echo(f"{seed}  {where}\n    {what}")
    click.echo(f"{dict(counts)}; {sum(seen.values())} faults at {len(seen)} places")
    sys.exit(bool(seen))


if __name__ == "__main__":
    _main()
