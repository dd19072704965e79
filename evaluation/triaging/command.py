"""`python -m evaluation triage`: how many faulty modules of a folder are found, false alarms, and groups by cause."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

import hloexec
from evaluation.options import EXECUTOR, half_option
from evaluation.triaging.building import CAUSES, Mixture, build


def _summary(found: hloexec.Triage, truth: Mapping[str, str]) -> Iterator[str]:
    """What was found, line by line."""
    outcomes = {module.name: module for module in found.modules}
    faulty = [name for name, cause in truth.items() if cause]
    clean = [name for name, cause in truth.items() if not cause]
    hits = [name for name in faulty if outcomes[name].outcome == "differ"]
    false = [name for name in clean if outcomes[name].outcome == "differ"]
    failed = [name for name in truth if not outcomes[name].is_judged]
    yield f"{len(truth)} modules, {len(faulty)} faulty: {len(hits)} found, {len(false)} false alarms, {len(failed)} not judged"
    for name in [*(each for each in faulty if each not in hits), *false, *failed]:
        module = outcomes[name]
        blamed = module.blamed.hlo if module.blamed else ""
        yield f"  {truth[name] or 'clean':20} {name}: {module.outcome}, {module.reason[:200]} {module.explained} {blamed}"
    groups = [group for group in found.groups if group.outcome == "differ"]
    yield f"{len(groups)} groups of those that differ"
    for group in groups:
        causes = Counter(truth[member.name] or "clean" for member in group.members)
        minified = group.minified
        small = "" if minified is None else f"; {minified.instruction_count} instructions left {minified.reason}"
        yield f"  {len(group.members):3} {group.cause}: {dict(causes)}, {group.opcodes}{small}"
    yield f"{found.seconds:.0f} s, {100 * found.seconds / len(found.modules):.0f} s for 100 modules"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@half_option("seen", "held")
@click.option("--only", default="", metavar="SUBSTRING", help="Causes of faults whose name contains it.")
@click.option("--faults", type=click.IntRange(1), default=5, show_default=True, help="So many modules of each cause.")
@click.option("--clean", type=click.IntRange(0), default=270, show_default=True, help="So many without a fault.")
@click.option("--seed", default=0, show_default=True, help="Draw other faults and networks.")
@EXECUTOR
@click.option("--no-minify", is_flag=True, help="Leave out how far one module of each group can be minified.")
@click.option("--build", "builds_only", is_flag=True, help="Build the folder only.")
def triage(
    folder: Path,
    half: str,
    only: str,
    faults: int,
    clean: int,
    seed: int,
    executor: str | None,
    jobs: int,
    no_minify: bool,
    builds_only: bool,
) -> None:
    """How many faulty modules `triage` finds, and how it groups them.

    Modules are built in FOLDER/modules, unless they are there: faulty ones by six causes, and others.
    """
    place = folder / "truth.json"
    if not place.exists():
        start = time.monotonic()
        pairs, recorded = clean * 10 // 27, clean * 6 // 27
        causes = tuple(cause for cause in CAUSES[half] if only in cause)
        mixture = Mixture(half, causes, seed, faults, pairs, recorded, clean - pairs - recorded)
        place.write_text(json.dumps(build(mixture, folder / "modules"), indent=1))
        click.echo(f"built in {time.monotonic() - start:.0f} s")
    if builds_only:
        return
    truth = json.loads(place.read_text())
    found = hloexec.triage(
        folder / "modules",
        output=folder / "out",
        against="xla-cpu",
        jobs=jobs,
        executor=executor,
        minify=not no_minify,
    )
    click.echo("\n".join(_summary(found, truth)))
