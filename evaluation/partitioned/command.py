"""`python -m evaluation partitioned`: how often the first finding is a planted fault of the partitioner's kinds.

Most of those that are missed lie among steps of which `diff` names the end: borders that a convolution needs, masks of a
lookup.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

import hloexec
from evaluation.options import JSON, LIMIT, ONLY, share, spread, taken
from evaluation.partitioned.faults import Fault, faults, is_near
from evaluation.partitioned.programs import PROGRAMS, arguments_of, module_of, write_programs
from evaluation.processes import Record
from hloexec.core.ir import Module

_PER_KIND = 2
"""How many faults of each kind are planted in a program."""


def _sampled(module: Module) -> list[Fault]:
    kinds = defaultdict(list)
    for fault in faults(module):
        kinds[fault.kind].append(fault)
    chance = Random(0)
    return [fault for kind in kinds.values() for fault in chance.sample(kind, min(_PER_KIND, len(kind)))]


def _outputs(module: Module, arguments: Sequence[Any], before: Module) -> list[Any]:
    shards = hloexec.shard_inputs(module, arguments, before=before, partitions=8)
    found: list[Any] = []
    for output in hloexec.run_devices(module, shards):
        found += output if isinstance(output, tuple) else [output]
    return found


def _measured(names: Sequence[str], limit: int | None) -> Iterator[Record]:
    with TemporaryDirectory() as written:
        folder = Path(written)
        write_programs(folder, names)
        for name in names:
            before, after = (module_of(folder, name, stage) for stage in ("before", "after"))
            arguments = arguments_of(folder, name)
            right = _outputs(after, arguments, before)
            for fault in spread(_sampled(after), limit):
                found = hloexec.diff(before, fault.module, arguments)
                pairs = zip(_outputs(fault.module, arguments, before), right, strict=True)
                yield {
                    "name": f"{name}: {fault}",
                    "verdict": found.verdict,
                    "is_effective": not all(np.allclose(one, other, rtol=1e-3, atol=1e-4) for one, other in pairs),
                    "is_right": bool(found.findings) and is_near(fault, found.findings[0].after),
                    "named": str(found.findings[0].after.path) if found.findings else None,
                }


def _line(record: Record) -> str:
    word = "right" if record["is_right"] else "WRONG" if record["is_effective"] else "without effect"
    return f"{record['name']:50} {record['verdict']:13} {word}: named {record['named'] or '–'}"


@click.command()
@ONLY
@LIMIT
@JSON
def partitioned(only: str, limit: int | None, target: Path | None) -> None:
    """How often `diff` names a fault of a partitioner first; --limit is of each program."""
    records = taken(_measured([name for name in PROGRAMS if only in name], limit), _line, target)
    effective = [record for record in records if record["is_effective"]]
    different = [record for record in effective if record["verdict"] == "differ"]
    click.echo(f"\nfaults: {share(len(different), len(effective))} are different")
    click.echo(
        f"        {share(sum(record['is_right'] for record in effective), len(effective))} right by the first finding"
    )
