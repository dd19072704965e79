"""`python -m evaluation farm`: whether each engine gives the same report of a farm of modules, whatever is killed."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from random import Random
from signal import SIGINT, SIGKILL
from typing import Any, TypeAlias

import click

from evaluation.executing.modules import Farm
from evaluation.executing.running import (
    VICTIMS,
    Cluster,
    Runner,
    farm_environment,
    mpiexec_words,
    strike,
)
from evaluation.options import JSON, ONLY, share, taken
from evaluation.processes import Record
from hloexec.core.wording import counted

_Result: TypeAlias = "tuple[str, Any]"
_REFERENCE = "processes:1"
_STOPS = 10
_STOPPED_ENGINES = ("processes:2", "dask", "mpi", "processes:1")
"""In turn, those of runs that are stopped."""
_DAMAGED = Farm(clean=20, faulty=2, crashing=1, endless=1, large=1)
"""The farm in whose runs something is killed."""
_KNOWN = 5
"""How many of its modules are kept by then."""


def _needs(engine: str) -> str:
    """What is not installed for an engine; empty where all is."""
    if engine == "dask" and find_spec("distributed") is None:
        return "distributed"
    return "mpi4py or mpiexec" if engine == "mpi" and not mpiexec_words() else ""


def _stopped(runner: Runner, seed: int) -> _Result:
    """The result of a run that is stopped ten times, at random moments, and goes on with another engine each time."""
    random = Random(seed)
    count = len(list((runner.folder / "farm").rglob("*.hlo")))
    engines = [engine for engine in _STOPPED_ENGINES if not _needs(engine)]
    for number in range(_STOPS):
        process = runner.begin(engines[number % len(engines)])
        runner.stop_at(process, runner.known + random.randrange(1, max(2, count // 15)))
        process.send_signal((SIGKILL, SIGINT)[number // 2 % 2])
        process.communicate()
    return runner.result(engines[-1])


def _ways(seed: int) -> Mapping[str, tuple[str, Callable[[Runner], _Result]]]:
    """What gives the report, by its name, with the engine that it needs."""
    return {
        "processes:2": ("", lambda runner: runner.result("processes:2")),
        "dask, 2 workers": ("dask", lambda runner: runner.result("dask")),
        "mpi, 3 ranks": ("mpi", lambda runner: runner.result("mpi")),
        "3 shards, merged": ("", lambda runner: runner.merged(3)),
        f"stopped {_STOPS} times": ("", lambda runner: _stopped(runner, seed)),
    }


@contextmanager
def _runner(farm: Farm, options: Sequence[str], *, has_cluster: bool) -> Iterator[Runner]:
    """A folder with a farm, perhaps with a Dask cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="hloexec-farm-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        environment = farm_environment(folder / "site")
        farm.write(folder / "farm")
        cluster = Cluster(folder, environment) if has_cluster else None
        try:
            if cluster is not None:
                cluster.start()
            yield Runner(folder, environment, cluster, options)
        finally:
            if cluster is not None:
                cluster.stop()


def _compared(farm: Farm, options: Sequence[str], only: str, seed: int) -> Iterator[Record]:
    """How long each engine takes for a farm, and whether its report is that of one process after the other."""
    ways = {name: way for name, way in _ways(seed).items() if only in name}
    if not ways:
        return
    with _runner(farm, options, has_cluster=not _needs("dask")) as runner:
        start = time.monotonic()
        expected = runner.result(_REFERENCE)
        counts, causes = expected[1]["counts"], Counter(group["outcome"] for group in expected[1]["groups"])
        yield {
            "name": _REFERENCE,
            "seconds": time.monotonic() - start,
            "says": f"{len(expected[1]['modules'])} modules: {_listed(counts)}; {counted(causes['differ'], 'cause')}",
        }
        for name, (engine, way) in ways.items():
            if lacking := _needs(engine):
                yield {"name": name, "says": f"not tried: {lacking} is not installed"}
                continue
            runner.forget()
            start = time.monotonic()
            result = way(runner)
            yield {"name": name, "seconds": time.monotonic() - start, "is_same": result == expected}


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _damaged(options: Sequence[str], only: str) -> Iterator[Record]:
    """What is said where something is killed in the middle of a run, and whether another engine goes on from there."""
    expected: _Result | None = None
    for name, victim in VICTIMS.items():
        label = f"{name} dies" if victim.signal == SIGKILL else name
        if only not in label:
            continue
        if lacking := _needs(victim.engine):
            yield {"name": label, "says": f"not tried: {lacking} is not installed"}
            continue
        with _runner(_DAMAGED, options, has_cluster=victim.engine == "dask") as runner:
            start = time.monotonic()
            if expected is None:
                expected = runner.result("processes:2")
                runner.forget()
            said = strike(runner, victim, _KNOWN)
            kept = runner.known
            is_same = runner.result("processes:2") == expected
            is_sentence = said.count("\n") <= 1 and victim.sentence in said and "Traceback" not in said
            record = {"name": label, "seconds": time.monotonic() - start, "kept": kept, "says": said.strip()}
            yield {**record, "is_same": is_same and kept >= _KNOWN and is_sentence}


def _line(record: Record) -> str:
    seconds = f"{record['seconds']:8.1f} s" if "seconds" in record else " " * 10
    same = {None: "", True: "the same", False: "NOT the same"}[record.get("is_same")]
    kept = f"{record['kept']} kept" if "kept" in record else ""
    return "  ".join(filter(None, (f"{record['name']:30} {seconds}", same, kept, record.get("says", ""))))


@click.command()
@click.option(
    "--clean", type=click.IntRange(0), default=270, show_default=True, help="So many modules without a fault."
)
@click.option("--faulty", type=click.IntRange(0, 12), default=12, show_default=True, help="So many faulty ones.")
@click.option(
    "--bad", type=click.IntRange(0), default=6, show_default=True, help="So many crash, hang, and take too much."
)
@click.option("--timeout", type=click.IntRange(1), default=20, show_default=True, help="Seconds for each module.")
@click.option("--minify", is_flag=True, help="Minify a module of each group, too.")
@click.option("--seed", default=0, show_default=True, help="Stop at other moments.")
@ONLY
@JSON
def farm(
    clean: int, faulty: int, bad: int, timeout: int, minify: bool, seed: int, only: str, target: Path | None
) -> None:
    """Whether each engine gives the same report of many modules, whatever is killed.

    Modules are faulty, each for a cause of its own; crash, never end or take too much memory; or agree. Reports and
    records have to be those of one process after the other, but for times. What dies must cost nothing that was kept,
    be told in a line at most, and leave no process; the same command then goes on with two processes of this machine.
    """
    options = ["--timeout", str(timeout), "--memory", "1G", *([] if minify else ["--no-minify"])]
    whole = Farm(clean=clean, faulty=faulty, crashing=bad, endless=bad, large=bad)
    records = taken(chain(_compared(whole, options, only, seed), _damaged(options, only)), _line, target)
    for title, has_kept, words in ("engines", False, "give the same report"), ("faults", True, "lose nothing"):
        tried = [record["is_same"] for record in records if "is_same" in record and ("kept" in record) == has_kept]
        click.echo(f"{title}: {share(sum(tried), len(tried))} {words}")
