"""`python -m evaluation diff`: how often the first finding is the planted fault, and what is found where there is none."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from random import Random
from statistics import median, quantiles

import click

from evaluation.options import EXECUTOR, JSON, LIMIT, ONLY, half_option, share, taken
from evaluation.pairs.drawing import NUMBERS, TABLE, Pair, pairs, pairs_of_ordinary, pairs_of_table
from evaluation.processes import Record, measure_apart
from evaluation.programs import PROGRAMS

_SECONDS = 300
"""What a process may take for one pair, drawing it included."""
_MEMORY = {"PYTHONMALLOC": "malloc", "MALLOC_ARENA_MAX": "1"}
"""Without pools of Python's own, what is freed goes back to the system, and the peak of each run can be told."""


def chosen(
    only: str = "",
    half: str | None = None,
    limit: int | None = None,
    *,
    clean: bool = True,
    faults: bool = True,
    numbers: range = NUMBERS,
) -> list[Pair]:
    """The pairs whose names have `only` in them, of one half or both; `limit` of them, spread evenly.

    Those of later sets are chosen only where `half` asks for them, so that nobody sees them by chance.
    """
    halves = (half,) if half else ("seen", "held")
    whole = {TABLE: pairs_of_table, "ordinary": pairs_of_ordinary}
    drawn = whole[half]() if half in whole else [pair for pair in pairs(numbers) if pair.half in halves]
    found = [pair for pair in drawn if only in pair.name and (clean if pair.is_clean else faults)]
    if limit is None:
        return found
    ranks: dict[Pair, tuple[int, str]] = {}
    for program, group in groupby(found, lambda pair: pair.program):
        mixed = list(group)
        Random(program).shuffle(mixed)
        ranks |= {pair: (rank, program) for rank, pair in enumerate(mixed)}
    kept = set(sorted(found, key=ranks.__getitem__)[:limit])
    return [pair for pair in found if pair in kept]


def measure(wanted: Sequence[Pair], jobs: int = 1, executor: str | None = None) -> Iterator[Record]:
    """What is found of each pair, as it comes; the pairs of a program share a process."""
    in_order = sorted(wanted, key=lambda pair: [*PROGRAMS, TABLE].index(pair.program))
    chunks = [[pair.name for pair in chunk] for _, chunk in groupby(in_order, lambda pair: pair.program)]
    function = "evaluation.diffing.measuring:measured"
    for record in measure_apart(function, chunks, seconds=_SECONDS, jobs=jobs, executor=executor, variables=_MEMORY):
        pair = Pair.of(record["name"])
        yield {"half": pair.half, "form": pair.form, "is_clean": pair.is_clean, **record}


def _is_counted(record: Record) -> bool:
    """Whether there is a pair at all."""
    return bool(record.get("is_drawn", True))


def _is_right(record: Record) -> bool:
    return bool(record.get("first"))


def _line(record: Record) -> str:
    if "failure" in record:
        return f"{record['name']:28} FAILED {record.get('kind', '')}: {record['failure']}"
    word = "right" if _is_right(record) else "WRONG"
    word += " and certain" if record["is_certain"] and not _is_right(record) else ""
    how = record["first"] or ("" if record["rank"] is None else f"as number {record['rank']}")
    named, planted = record["named"][:1], record["planted"]
    doubt = "" if record["compare_agrees"] or not record["is_clean"] else " (compare says different)"
    return (
        f"{record['name']:28} {record['verdict']:13} {word} {how:12} {record['form']:9} {record['inputs']:14} "
        f"{record['kind'] or 'clean'}{doubt}: named {''.join(named) or '–'}; planted {' | '.join(planted) or '–'}; "
        f"cost {record['cost']:.0f}×, {record['warm_cost']:.0f}× warm ({record['seconds']:.2f} s), "
        f"memory {record['memory']:.1f}×"
    )


def _summary(records: Sequence[Record]) -> Iterator[str]:
    counted = [record for record in records if _is_counted(record)]
    faults = [record for record in counted if not record["is_clean"]]
    clean = [record for record in counted if record["is_clean"]]
    silent = [record for record in faults if record.get("verdict") in ("agree", "rounding only")]
    alarms = [record for record in clean if not _is_right(record)]
    yield f"faults: {share(sum(map(_is_right, faults)), len(faults))} right by the first finding"
    yield f"        {share(sum(r.get('rank') is not None for r in faults), len(faults))} right by some finding"
    yield f"        first: {dict(Counter(r.get('first') or 'wrong' for r in faults))}"
    certain = [record for record in faults if record.get("is_certain")]
    yield f"        {share(sum(map(_is_right, certain)), len(certain))} right of those that are said to be to blame"
    yield f"        {len(silent)} faults with the verdict `agree` or `rounding only`"
    yield f"        {len({r['kind'] for r in faults if r.get('kind')})} kinds; by form: {_by(faults, 'form')}"
    yield f"        by inputs: {_by(faults, 'inputs')}"
    yield f"clean:  {len(alarms)} false alarms in {len(clean)} pairs, {_doubtful(alarms)} of them where compare differs"
    yield f"failed: {sum('failure' in record for record in counted)}; not drawn: {len(records) - len(counted)}"
    units = {"cost": "times the plain runs", "warm_cost": "times warm runs", "memory": "times their memory"}
    for name, unit in {**units, "seconds": "seconds"}.items():
        figures = [record[name] for record in counted if name in record]
        if len(figures) > 1:
            marks = quantiles(figures, n=20)
            said = f"median {median(figures):.1f}, 90th percentile {marks[17]:.1f}, 95th {marks[18]:.1f}"
            yield f"{name}: {said}, at most {max(figures):.1f} {unit}"


def _doubtful(records: Sequence[Record]) -> int:
    return sum(not record.get("compare_agrees", True) for record in records)


def _by(records: Sequence[Record], key: str) -> str:
    names = sorted({record.get(key, "") for record in records})
    groups = {name: [record for record in records if record.get(key, "") == name] for name in names}
    return ", ".join(f"{name} {sum(map(_is_right, group))}/{len(group)}" for name, group in groups.items())


def _range(context: click.Context, parameter: click.Parameter, text: str | None) -> range:
    """Numbers as `10-19`, or one alone."""
    if text is None:
        return NUMBERS
    first, _, last = text.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a number nor two, as in 10-19") from None


@click.command()
@ONLY
@half_option("seen", "held", "reserve", "fresh", "ordinary", TABLE, default=None)
@click.option("--clean", "which", flag_value="clean", help="Pairs without a fault only.")
@click.option("--faults", "which", flag_value="faults", help="Pairs with a fault only.")
@click.option("--numbers", callback=_range, metavar="FIRST-LAST", help="Those of the drawn pairs; 0-9 by default.")
@LIMIT
@EXECUTOR
@JSON
@click.option("--totals", is_flag=True, help="The summary only, without a line for each pair.")
def diff(
    only: str,
    half: str | None,
    which: str | None,
    numbers: range,
    limit: int | None,
    executor: str | None,
    jobs: int,
    target: Path | None,
    totals: bool,
) -> None:
    """How often `diff` names a planted fault first, and false alarms."""
    start = time.perf_counter()
    wanted = chosen(only, half, limit, clean=which != "faults", faults=which != "clean", numbers=numbers)
    records = taken(measure(wanted, jobs, executor), (lambda record: "") if totals else _line, target)
    click.echo(f"\n{len(records)} pairs in {time.perf_counter() - start:.0f} s")
    click.echo("\n".join(_summary(records)))
    missed = [record for record in records if _is_counted(record) and not _is_right(record)]
    if missed and not totals:
        click.echo("\nmissed:")
        click.echo("\n".join(map(_line, missed)))
