"""`python -m evaluation minify`: how small failing modules become, and whether what is left still fails.

Planted faults are pairs of `diff`'s measurement; crashes are modules of its programs, minified by a command that aborts
where it sees a pattern (`crashing`). In small programs, some of them beside recorded results instead of a second module,
it is judged whether what is left fails for the same reason (`reasons`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median

import click

from evaluation.minifying.deep_programs import DEEP
from evaluation.minifying.small_programs import SMALL, SMALL_SEEN
from evaluation.options import EXECUTOR, JSON, LIMIT, ONLY, half_option, share, spread, taken
from evaluation.pairs.drawing import TABLE
from evaluation.pairs.table import FAULTY
from evaluation.processes import Record, measure_apart
from evaluation.programs import HELD, LATER, PROGRAMS

_SECONDS = 600
"""What a case may take, with the time to draw it."""
_ROUNDS = 3
"""Pairs of a program, for the faults: there are some that nothing can be planted in."""
_REASONS = 20
_RECORDED = 4
"""Every so many-th of these cases has recorded results instead of a second module."""
_AT_ONCE = 5
"""They are small, and share processes."""
_MANY = "tensor_parallel ring_attention data_parallel_step".split()
"""Models of the table for four devices."""


def _half(program: str) -> str:
    return "held" if program in HELD or program in DEEP[1::2] else "seen"


def _names(half: str) -> list[str]:
    """The cases of a half: 30 faults, 6 or so of them on four devices, 10 crashes, and 20 reasons."""
    programs = [name for name in PROGRAMS if name not in LATER and _half(name) == half]
    single = [name for name in programs if PROGRAMS[name].devices == 1]
    eight = [name for name in programs if PROGRAMS[name].devices > 1]
    four = [case for case in FAULTY if case.model in _MANY][0 if half == "seen" else 1 :: 2]
    faults = [f"fault {name}/{number:02d}" for number in range(_ROUNDS) for name in (*eight, *single)]
    several = [f"devices {TABLE}/{FAULTY.index(case):02d}" for case in four]
    crashes = [f"crash {name} {number}" for number in range(2) for name in single]
    Random(half).shuffle(crashes)
    deep = [name for name in DEEP if _half(name) == half]
    many = [f"crash @{name} {number}" for number, name in enumerate(_MANY[half == "held" :: 2])]
    count = 10 - len(deep) - len(many)
    small = [*SMALL][: len(SMALL_SEEN)] if half == "seen" else [*SMALL][len(SMALL_SEEN) :]
    reasons = [
        f"reason {small[number % len(small)]}/{number}{' recorded' * (number % _RECORDED == _RECORDED - 1)}"
        for number in range(_REASONS)
    ]
    deep_crashes = [f"crash {name} 0" for name in deep]
    return [*faults[: 30 - len(several)], *several, *many, *crashes[:count], *deep_crashes, *reasons]


def _line(record: Record) -> str:
    if "failure" in record or "not_drawn" in record:
        return f"{record['name']:28} {record.get('failure') or record['not_drawn']}"
    what = record.get("pattern") or f"{record['fault']}{'' if record['has_planted'] else ' (ANOTHER INSTRUCTION)'}"
    state = "fails" if record["fails"] else "DOES NOT FAIL"
    if record["kind"] == "reason":
        reason = "the same reason" if record["is_kept"] else "not the same"
        state += f", {reason}{', told' if record['is_told'] else ''}{'' if _is_right(record) else ' (WRONG)'}"
    return (
        f"{record['name']:28} {state}: {record['instructions']:3} of {record['instructions_before']:4} instructions, "
        f"dimensions ≤ {record['largest_dimension']:3}, devices {record['devices']} of {record['devices_before']}, "
        f"{record['trials']:4} trials, {record['seconds']:6.1f} s ({record['own_cpu_seconds']:.1f} s of its own): {what}"
    )


def _is_right(record: Record) -> bool:
    """Whether it fails for the same reason, or is said to fail for one that may be another."""
    return bool(record["fails"] and (record["is_kept"] or record["is_told"]))


def _summary(records: Sequence[Record]) -> Iterator[str]:
    done = [record for record in records if "fails" in record]
    absent, failed = (sum(word in each for each in records) for word in ("not_drawn", "failure"))
    yield f"{len(done)} cases, {absent} not drawn, {failed} failed"
    for kind in ("fault", "devices", "crash", "reason", ""):
        of_kind = [each for each in done if kind in ("", each["kind"])]
        if of_kind:
            fails, counts = sum(each["fails"] for each in of_kind), [each["instructions"] for each in of_kind]
            sizes, seconds = [each["largest_dimension"] for each in of_kind], [each["seconds"] for each in of_kind]
            yield (
                f"{kind or 'all':8} {fails} of {len(of_kind)} still fail; instructions: median {median(counts)}, at most "
                f"{max(counts)}; largest dimension: median {median(sizes)}, at most {max(sizes)}; seconds: median "
                f"{median(seconds):.1f}, at most {max(seconds):.1f}"
            )
    planted = [each["has_planted"] for each in done if "has_planted" in each]
    yield f"the planted instruction is there in {sum(planted)} of {len(planted)}"
    reasons = [each for each in done if each["kind"] == "reason"]
    if reasons:
        right, certain = (sum(map(rule, reasons)) for rule in (_is_right, lambda each: not each["is_told"]))
        wrong = sum(not each["is_told"] and not _is_right(each) for each in reasons)
        yield f"the reason: {share(right, len(reasons))} right; {certain} certain, {wrong} of them wrong"
    large = [each["instructions_before"] for each in done]
    if large:
        yield f"before: median {median(large)} instructions, at most {max(large)}"


@click.command()
@half_option("seen", "held")
@ONLY
@LIMIT
@EXECUTOR
@JSON
@click.option("--list", "lists", is_flag=True, help="List the cases only.")
def minify(
    half: str, only: str, limit: int | None, executor: str | None, jobs: int, target: Path | None, lists: bool
) -> None:
    """How small `minify` makes modules that fail.

    They have a planted fault, or a pattern of instructions on which a command crashes.
    """
    names = spread([name for name in _names(half) if only in name], limit)
    if lists:
        click.echo("\n".join(names))
        return
    chunks = [[name] for name in names if not name.startswith("reason")]
    reasons = [name for name in names if name.startswith("reason")]
    chunks += [reasons[start : start + _AT_ONCE] for start in range(0, len(reasons), _AT_ONCE)]
    function = "evaluation.minifying.measuring:measured"
    records = taken(measure_apart(function, chunks, seconds=_SECONDS, jobs=jobs, executor=executor), _line, target)
    click.echo("\n" + "\n".join(_summary(records)))
