"""Whether what `minify` has left fails for the reason for which the given module fails."""

from __future__ import annotations

import hloexec
from evaluation.diffing.dataflow import DataFlow
from evaluation.pairs.drawing import Drawn
from evaluation.processes import Record
from hloexec.core.ir import Module
from hloexec.engine.options import Options
from hloexec.tools.minifying.case import Case
from hloexec.tools.minifying.oracles import blame_of, found_by_diff


def has_the_same_reason(drawn: Drawn, small: Module, other: Module | None, found: hloexec.Minified) -> Record:
    """What `diff` blames before and after, and whether it was told that this is not known to be the same.

    Of two modules, the opcode and the kind that `diff` blames have to stay, and the planted instruction, or one that it
    takes from or gives to. What was recorded is for the given module only: there the planted instruction has to stay.
    """
    left = {each.name for computation in small for each in computation}
    near = DataFlow(drawn.after.module).neighbours(drawn.planted, drawn.elements) | drawn.planted
    record: Record = {"is_told": bool(found.notes), "is_near": bool(near & left)}
    if other is None:
        return record | {"is_kept": bool(drawn.planted & left)}
    inputs = [list(row) for row in drawn.inputs_per_device]
    given, _ = blame_of(found_by_diff(Case(drawn.after.module, inputs, drawn.before), _OPTIONS))
    now, is_certain = blame_of(found_by_diff(Case(small, found.inputs, other), _OPTIONS))
    is_same = given is not None and given.is_kept_by(now)
    return record | {
        "is_kept": is_same and record["is_near"],
        "blame": [str(given), f"{now}{'' if is_certain else ' (perhaps)'}"],
    }


_OPTIONS = Options()
