"""Measure `hloexec.diff` on the drawn pairs: `python -m evaluation.diffing.command --help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from queue import Queue
from random import Random
from statistics import median, quantiles
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from threading import Timer
from typing import Any

from evaluation.pairs.drawing import NUMBERS, Pair, pairs
from evaluation.programs import PROGRAMS
from evaluation.programs.lowering import ENVIRONMENT

__all__ = ["chosen", "measure"]

_SECONDS = 300
"""What a process may take for one pair, drawing it included."""
_MEMORY = {"PYTHONMALLOC": "malloc", "MALLOC_ARENA_MAX": "1"}
"""Without pools of Python's own, what is freed goes back to the system, and the peak of each run can be told."""
_HALVES = ("seen", "held", "reserve", "fresh")
Record = dict[str, Any]


def chosen(
    only: str = "",
    half: str = "",
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
    found = [
        pair
        for pair in pairs(numbers)
        if only in pair.name and pair.half in halves and (clean if pair.is_clean else faults)
    ]
    if limit is None:
        return found
    ranks: dict[Pair, tuple[int, str]] = {}
    for program, group in groupby(found, lambda pair: pair.program):
        mixed = list(group)
        Random(program).shuffle(mixed)
        ranks |= {pair: (rank, program) for rank, pair in enumerate(mixed)}
    kept = set(sorted(found, key=ranks.__getitem__)[:limit])
    return [pair for pair in found if pair in kept]


def measure(wanted: Sequence[Pair], jobs: int = 1) -> Iterator[Record]:
    """What is found of each pair, as it comes; the pairs of a program share a process."""
    in_order = sorted(wanted, key=lambda pair: list(PROGRAMS).index(pair.program))
    chunks = [list(chunk) for _, chunk in groupby(in_order, lambda pair: pair.program)]
    records: Queue[Record] = Queue()
    with ThreadPoolExecutor(jobs) as pool:
        for chunk in chunks:
            pool.submit(_measure_chunk, chunk, records)
        for _ in wanted:
            yield records.get()


def _measure_chunk(left: list[Pair], records: Queue[Record]) -> None:
    """Measure pairs in a process; if it dies, the pair that it died of has failed, and another process goes on."""
    environment = os.environ | ENVIRONMENT | _MEMORY | {"PYTHONPATH": os.pathsep.join(sys.path)}
    while left:
        command = [sys.executable, "-m", "evaluation.diffing.measuring", *(pair.name for pair in left)]
        with (
            TemporaryFile() as complaints,
            Popen(command, stdout=PIPE, stderr=complaints, text=True, env=environment) as process,
        ):
            assert process.stdout is not None
            watch = Timer(_SECONDS * len(left), process.kill)
            watch.start()
            for line in process.stdout:
                if line.startswith("{"):
                    records.put(json.loads(line))
                    left = left[1:]
            process.wait()
            watch.cancel()
            complaints.seek(0)
            reason = complaints.read().decode(errors="replace").strip().splitlines()[-1:]
        if left:
            pair, *left = left
            failure = f"the process died: {''.join(reason)}"[:500]
            records.put({"name": pair.name, "half": pair.half, "is_clean": pair.is_clean, "failure": failure})


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
        f"cost {record['cost']:.0f}× ({record['seconds']:.2f} s), memory {record['memory']:.1f}×"
    )


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.1%})" if whole else "")


def _summary(records: Sequence[Record]) -> Iterator[str]:
    counted = [record for record in records if _is_counted(record)]
    faults = [record for record in counted if not record["is_clean"]]
    clean = [record for record in counted if record["is_clean"]]
    silent = [record for record in faults if record.get("verdict") in ("agree", "rounding only")]
    alarms = [record for record in clean if not _is_right(record)]
    yield f"faults: {_share(sum(map(_is_right, faults)), len(faults))} right by the first finding"
    yield f"        {_share(sum(r.get('rank') is not None for r in faults), len(faults))} right by some finding"
    yield f"        first: {dict(Counter(r.get('first') or 'wrong' for r in faults))}"
    certain = [record for record in faults if record.get("is_certain")]
    yield f"        {_share(sum(map(_is_right, certain)), len(certain))} right of those that are said to be to blame"
    yield f"        {len(silent)} faults with the verdict `agree` or `rounding only`"
    yield f"        {len({r['kind'] for r in faults if r.get('kind')})} kinds; by form: {_by(faults, 'form')}"
    yield f"        by inputs: {_by(faults, 'inputs')}"
    yield f"clean:  {len(alarms)} false alarms in {len(clean)} pairs, {_doubtful(alarms)} of them where compare differs"
    yield f"failed: {sum('failure' in record for record in counted)}; not drawn: {len(records) - len(counted)}"
    for name, unit in (("cost", "times the plain runs"), ("memory", "times their memory"), ("seconds", "seconds")):
        figures = [record[name] for record in counted if name in record]
        if len(figures) > 1:
            yield f"{name}: median {median(figures):.1f}, 95th percentile {quantiles(figures, n=20)[-1]:.1f} {unit}"


def _doubtful(records: Sequence[Record]) -> int:
    return sum(not record.get("compare_agrees", True) for record in records)


def _by(records: Sequence[Record], key: str) -> str:
    names = sorted({record.get(key, "") for record in records})
    groups = {name: [record for record in records if record.get(key, "") == name] for name in names}
    return ", ".join(f"{name} {sum(map(_is_right, group))}/{len(group)}" for name, group in groups.items())


def _range(text: str) -> range:
    """Numbers as `10-19`, or one alone; ValueError for anything else."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.diffing.command", description=__doc__)
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="pairs whose name contains it")
    parser.add_argument("--half", default="", choices=_HALVES, help="one half of the programs, or a later set")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--clean", action="store_true", help="pairs without a fault only")
    kinds.add_argument("--faults", action="store_true", help="pairs with a fault only")
    parser.add_argument("--numbers", type=_range, default=NUMBERS, metavar="FIRST-LAST", help="those of the pairs")
    parser.add_argument("--limit", type=int, metavar="N", help="at most so many, spread evenly")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many processes at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a line of JSON for each pair")
    parser.add_argument("--totals", action="store_true", help="the summary only, without a line for each pair")
    options = parser.parse_args()
    start = time.perf_counter()
    wanted = chosen(
        options.only,
        options.half,
        options.limit,
        clean=not options.faults,
        faults=not options.clean,
        numbers=options.numbers,
    )
    records = []
    for record in measure(wanted, options.jobs):
        records.append(record)
        if not options.totals:
            print(_line(record), flush=True)
    if options.json:
        options.json.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    print(f"\n{len(records)} pairs in {time.perf_counter() - start:.0f} s")
    for line in _summary(records):
        print(line)
    missed = [record for record in records if _is_counted(record) and not _is_right(record)]
    if missed and not options.totals:
        print("\nmissed:")
        for record in missed:
            print(_line(record))


if __name__ == "__main__":
    main()
