"""The verdict on a case: what the process of a chunk of cases does."""

from __future__ import annotations

import time

import hloexec
from evaluation.processes import Record
from evaluation.verdicts.steps import Case, made


def measured(name: str) -> Record:
    """The verdict of `compare` about hloexec's results and XLA:CPU's."""
    try:
        step = made(Case.of(name))
    except LookupError as error:
        return {"not_drawn": str(error)}
    ours = hloexec.run(step.module, *step.inputs)
    start = time.process_time()
    found = hloexec.compare(ours, tuple(step.theirs), module=step.module, inputs=step.inputs)
    return {
        "verdict": found.verdict.value,
        "what": step.what,
        "leaves": [
            (leaf.label, leaf.verdict.value, leaf.mismatches, leaf.count, leaf.tolerance.samples)
            for leaf in (*found.different, *found.not_decided)
        ],
        "seconds": time.process_time() - start,
    }
