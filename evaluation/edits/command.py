"""`python -m evaluation edits`: whether `diff` names the only thing that was edited, or notes it where it changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

import hloexec
from evaluation.diffing.dataflow import DataFlow
from evaluation.edits.kinds import KINDS, Edit, edits
from evaluation.options import JSON, LIMIT, ONLY, half_option, share, spread, taken
from evaluation.partitioned.faults import LOOKED_THROUGH
from evaluation.processes import Record
from evaluation.programs import FRESH, HELD, LATER, MOVING, PROGRAMS, RESERVE

_PER_PROGRAM = 4
_HALVES = {
    "seen": [name for name in PROGRAMS if name not in HELD | LATER],
    "held": [name for name in PROGRAMS if name in HELD],
    "reserve": [name for name in PROGRAMS if name in RESERVE],
    "fresh": [name for name in PROGRAMS if name in FRESH],
    "moving": [name for name in PROGRAMS if name in MOVING],
}


def _measured(programs: Sequence[str], kind: str) -> Iterator[Record]:
    for program in programs:
        for edit in edits(program, kind, _PER_PROGRAM):
            yield {"name": edit.name, **_judged(edit)}


def _judged(edit: Edit) -> Record:
    start = time.process_time()
    found = hloexec.diff(edit.before, edit.fault.module, edit.inputs_per_device)
    seconds = time.process_time() - start
    first = found.findings[0] if found.findings else None
    is_named = first is not None and (_is_near(edit, first.after.instruction) or _says(edit, first.reason))
    is_noted = any(_says(edit, note) for note in found.notes)
    return {
        "verdict": found.verdict,
        "is_right": is_named if found.verdict == "differ" and first is not None else is_noted,
        "is_certain": first is not None and first.is_certain,
        "named": None if first is None else str(first.after.path),
        "planted": edit.fault.instruction,
        "notes": list(found.notes),
        "seconds": seconds,
    }


def _says(edit: Edit, text: str) -> bool:
    return any(word in text.replace(",", " ").split() for word in edit.words)


def _is_near(edit: Edit, name: str) -> bool:
    """Whether it is what was edited, or gives to or takes from that, perhaps by way of what only moves values."""
    return name in DataFlow(edit.fault.module).near([edit.fault.instruction], LOOKED_THROUGH)


def _line(record: Record) -> str:
    word = "right" if record["is_right"] else "WRONG and certain" if record["is_certain"] else "WRONG"
    return (
        f"{record['name']:44} {record['verdict']:13} {word:17} named {record['named'] or '–'}; "
        f"edited {record['planted']} ({record['seconds']:.1f} s)"
    )


@click.command("edits")
@ONLY
@half_option(*_HALVES)
@click.option("--kind", type=click.Choice([*KINDS]), default="constant", show_default=True, help="What is edited.")
@LIMIT
@JSON
def measure_edits(only: str, half: str, kind: str, limit: int | None, target: Path | None) -> None:
    """How often `diff` names, or notes, the only edit of a module; --limit is of programs."""
    programs = spread([name for name in _HALVES[half] if only in name], limit)
    records = taken(_measured(programs, kind), _line, target)
    # What has the same bits was edited where it does not count.
    different = [record for record in records if record["verdict"] == "differ"]
    others = [record for record in records if record["verdict"] != "differ"]
    right, noted = (sum(record["is_right"] for record in part) for part in (different, others))
    certain = sum(record["is_certain"] and not record["is_right"] for record in different)
    click.echo(f"\n{len(records)} edits")
    click.echo(
        f"results differ: {share(right, len(different))} right by the first finding; {certain} wrong and certain"
    )
    click.echo(f"they do not:    {share(noted, len(others))} noted")
