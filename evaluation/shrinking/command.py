"""`python -m evaluation shrink`: whether large programs, shrunken, compute what small ones do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from evaluation.options import JSON, LIMIT, ONLY, half_option, share, spread, taken
from evaluation.processes import Record


def _line(record: Record) -> str:
    verdict = "right" if record["is_same"] else "listed" if record["unclear"] else "WRONG"
    unclear = f"; not sure of {', '.join(map(str, record['unclear']))}" if record["unclear"] else ""
    return f"{record['name']}: {verdict}{unclear}"


@click.command()
@half_option("seen", "reserve")
@ONLY
@LIMIT
@JSON
def shrink(half: str, only: str, limit: int | None, target: Path | None) -> None:
    """Programs at two sizes: the large one, shrunken, beside the small one, as JAX lowers and as XLA:CPU optimizes them."""
    from evaluation.shrinking.judging import SETS, measured

    stages = {f"{name}/{stage}": (name, stage) for name in SETS[half] for stage in ("lowered", "optimized")}

    def records() -> Iterator[Record]:
        for name in spread([name for name in stages if only in name], limit):
            program, stage = stages[name]
            yield {"name": name, **measured(SETS[half][program], optimized=stage == "optimized")}

    found = taken(records(), _line, target)
    click.echo(f"right:  {share(sum(record['is_same'] for record in found), len(found))}")
    wrong = [record for record in found if not record["is_same"]]
    click.echo(f"listed: {share(sum(bool(record['unclear']) for record in wrong), len(wrong))} of the others")
