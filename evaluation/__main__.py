"""`python -m evaluation MEASUREMENT`: how often the tools are right, on programs whose faults and numerics are known.

`--help` lists the measurements; README.md beside this file says what each of them counts.
"""

from __future__ import annotations

import os
import warnings

import click

from evaluation.diffing.command import diff
from evaluation.edits.command import measure_edits
from evaluation.executing.command import farm
from evaluation.explaining.command import explain
from evaluation.fuzzing.command import mutants
from evaluation.minifying.command import minify
from evaluation.narrowing.command import precision
from evaluation.pages import page
from evaluation.partitioned.collectives import collectives
from evaluation.partitioned.command import partitioned
from evaluation.processes import ENVIRONMENT
from evaluation.shadowing.command import shadow
from evaluation.shrinking.command import shrink
from evaluation.triaging.command import triage
from evaluation.verdicts.command import verdicts

MEASUREMENTS = (
    diff,
    partitioned,
    collectives,
    measure_edits,
    verdicts,
    explain,
    shadow,
    minify,
    shrink,
    triage,
    precision,
    farm,
    mutants,
    page,
)


@click.group(commands=MEASUREMENTS)
def main() -> None:
    """Measure the tools on programs whose faults and numerics are known."""
    os.environ.update(ENVIRONMENT)
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    main()
