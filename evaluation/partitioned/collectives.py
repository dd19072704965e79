"""`python -m evaluation collectives`: how often `diff` names a collective that is missing, doubled or misplaced.

Faults are planted in a module after the partitioner, which is compared with the one before it, and in the optimized
module, which is compared with that after the partitioner. Clean are the same pairs without a fault, and the first with
the last.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

import hloexec
from evaluation.diffing.dataflow import DataFlow
from evaluation.options import JSON, LIMIT, ONLY, half_option, share, spread, taken
from evaluation.partitioned.dividing import DIVIDING
from evaluation.partitioned.exchanging import ONCE_HELD, SMALL
from evaluation.partitioned.faults import LOOKED_THROUGH
from evaluation.partitioned.misplacing import Misplaced, misplaced
from evaluation.partitioned.passing import PASSING
from evaluation.partitioned.programs import PROGRAMS, arguments_of, module_of, write_programs
from evaluation.processes import Record
from hloexec.core.ir import Module
from hloexec.errors import HloError
from hloexec.tools.diffing import Finding

_LARGEST_REGION = 5
_HALVES = {"seen": [*PROGRAMS, *SMALL, *ONCE_HELD, *PASSING], "held": [*DIVIDING]}
_STAGES = (("before", "after"), ("after", "optimized"), ("before", "optimized"))
_PER_KIND = 1
"""How many faults of each kind are planted in a module."""


def _flat(module: Module, shards: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for output in hloexec.run_devices(module, shards):
        found += output if isinstance(output, tuple) else [output]
    return found


def _measured(names: Sequence[str], count: int, limit: int | None) -> Iterator[Record]:
    with TemporaryDirectory() as written:
        folder = Path(written)
        write_programs(folder, names)
        for name in names:
            modules = {stage: module_of(folder, name, stage) for stage in ("before", "after", "optimized")}
            arguments = arguments_of(folder, name)
            shards = hloexec.shard_inputs(modules["after"], arguments, before=modules["before"], partitions=8)
            right = _flat(modules["after"], shards)
            for first, last in _STAGES:
                before, inputs = modules[first], arguments if first == "before" else shards
                yield {"name": f"{name}/{first}-{last} clean", **_judged(before, modules[last], inputs, frozenset())}

            def has_effect(fault: Misplaced, right: Any = right, shards: Any = shards) -> bool:
                try:
                    pairs = zip(_flat(fault.module, shards), right, strict=True)
                except HloError:
                    # What a group gathers twice is too large.
                    return False
                return not all(np.allclose(*pair, rtol=1e-3, atol=1e-4) for pair in pairs)

            cases = [
                (first, last, fault)
                for first, last in _STAGES[:2]
                for faults in misplaced(modules[last], f"{name} {last}").values()
                for fault in islice(filter(has_effect, faults), count)
            ]
            for first, last, fault in spread(cases, limit):
                before, inputs = modules[first], arguments if first == "before" else shards
                yield {"name": f"{name}/{last} {fault}", **_judged(before, fault.module, inputs, fault.planted)}


def _judged(before: Module, after: Module, inputs: Sequence[Any], planted: frozenset[str]) -> Record:
    start = time.process_time()
    try:
        found = hloexec.diff(before, after, inputs)
    except HloError as error:
        return {"planted": sorted(planted), "failure": str(error), "is_right": False, "is_certain": False}
    first = found.findings[0] if found.findings and found.verdict == "differ" else None
    return {
        "planted": sorted(planted),
        "verdict": found.verdict,
        "is_right": (first is not None and _is_near(after, planted, first)) if planted else found.verdict != "differ",
        "is_certain": first is not None and first.is_certain,
        "named": None if first is None else str(first.after.path),
        "reason": "" if first is None else first.reason,
        "seconds": time.process_time() - start,
    }


def _is_near(module: Module, planted: frozenset[str], first: Finding) -> bool:
    """Whether it is what was planted, gives to it or takes from it, perhaps by way of what only moves values; or has it
    in its region."""
    flow = DataFlow(module)
    near = flow.near(planted, LOOKED_THROUGH)
    name = first.after.instruction
    region = {run.instruction for run in first.region}
    return (
        name in near
        or (flow.opcode(name) in ("fusion", "get-tuple-element", "parameter") and bool(flow.sources(name) & near))
        or (len(region) <= _LARGEST_REGION and bool(region & planted))
    )


def _line(record: Record) -> str:
    if "failure" in record:
        return f"{record['name']:48} FAILED: {record['failure']}"
    word = "right" if record["is_right"] else "WRONG and certain" if record["is_certain"] else "WRONG"
    how = f"named {record['named'] or '–'} {record['reason']}" if record["verdict"] == "differ" else ""
    return f"{record['name']:48} {record['verdict']:13} {word:17} {how} ({record['seconds']:.1f} s)"


@click.command()
@ONLY
@half_option(*_HALVES)
@LIMIT
@JSON
def collectives(only: str, half: str, limit: int | None, target: Path | None) -> None:
    """How often `diff` names a collective that is missing, doubled or misplaced; --limit is of each program."""
    names = [name for name in _HALVES[half] if only in name]
    records = taken(_measured(names, _PER_KIND, limit), _line, target)
    faulty = [record for record in records if record["planted"]]
    clean = [record for record in records if not record["planted"]]
    right, certain = (
        sum(record["is_right"] for record in faulty),
        sum(record["is_certain"] and not record["is_right"] for record in faulty),
    )
    click.echo(f"\nfaults: {share(right, len(faulty))} right by the first finding; {certain} wrong and certain")
    click.echo(f"clean:  {sum(not record['is_right'] for record in clean)} false alarms in {len(clean)} pairs")
