"""Measure `hloexec.triage`: `python -m evaluation.triaging.command --help`.

A farm of 300 modules, 30 of them faulty by 6 causes, is built in a folder, and triaged. There are two, of different
programs: `seen` is what triage was made with, `held` was held back.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import hloexec
from evaluation.processes import ENVIRONMENT

__all__ = ["summary"]


def summary(found: hloexec.Triage, truth: Mapping[str, str]) -> Iterator[str]:
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


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.triaging.command", description=__doc__)
    parser.add_argument("folder", type=Path, help="where it is built, unless it is there; modules are in modules/")
    parser.add_argument("--half", choices=("seen", "held"), default="seen", help="which of the two farms")
    parser.add_argument("--seed", type=int, default=0, help="draw other faults and networks")
    parser.add_argument("--jobs", type=int, default=2, help="so many processes at once")
    parser.add_argument("--clean", type=int, default=270, help="how many modules without a fault")
    parser.add_argument("--build", action="store_true", help="build it only")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    warnings.simplefilter("ignore")
    from evaluation.triaging.building import CAUSES, Farm, build

    place = options.folder / "truth.json"
    if not place.exists():
        start = time.monotonic()
        pairs, recorded = options.clean * 10 // 27, options.clean * 6 // 27
        farm = Farm(
            options.half,
            CAUSES[options.half],
            options.seed,
            pairs=pairs,
            recorded=recorded,
            functions=options.clean - pairs - recorded,
        )
        truth = build(farm, options.folder / "modules")
        place.write_text(json.dumps(truth, indent=1))
        print(f"built in {time.monotonic() - start:.0f} s")
    truth = json.loads(place.read_text())
    if options.build:
        return
    found = hloexec.triage(
        options.folder / "modules", output=options.folder / "out", against="xla-cpu", jobs=options.jobs
    )
    print("\n".join(summary(found, truth)))


if __name__ == "__main__":
    main()
