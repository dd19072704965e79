"""Values of two modules side by side, watched in another run of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hloexec.core.values import Value
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.language.origins import hlo_line
from hloexec.tools.diffing.correspondence import correspondence_of
from hloexec.tools.diffing.findings import Diff, InstructionRun
from hloexec.tools.diffing.partitioned.tiles import partitioning_of
from hloexec.tools.watching.recording import (
    ERROR,
    RUNS,
    Column,
    DifferenceRecorder,
    Key,
    ValueStore,
    Watched,
    of_errors,
)


def watch(
    result: Diff,
    _: object,
    inputs: Sequence[Sequence[Value]],
    options: Sequence[Options],
    wanted: Sequence[Key],
    most: int,
) -> Watched:
    """Runs both modules, and compares the values that the diff has paired, and what has the same line of HLO."""
    before, after = options[0], options[-1]
    topologies = [topology_of(module, before.replicas, before.partitions) for module in (result.before, result.after)]
    if partitioning_of(result.before, result.after, topologies) is not None:
        return Watched(note="There are no plots of values where one module is partitioned and the other is not.")
    ours = correspondence_of(result.before, result.after, topologies).inputs_by_device(inputs)
    pairs, standing = _paired(result)
    alike = _alike(result, standing)
    store = ValueStore({place for place in pairs.values() if place is not None}, alike)
    run_with(result.before, inputs, before.on(topologies[0]), [store])
    recorder = DifferenceRecorder(wanted, pairs, alike, store)
    run_with(result.after, ours, after.on(topologies[1]), [recorder])
    columns = (
        Column("agrees", "whether diff has found its values in the module before", is_number=False),
        Column("error", f"{ERROR.title}, where it is known what they should be"),
        RUNS,
    )
    note = (
        "Values are compared with their counterparts that diff has found and, where it has found none, with what has "
        "the same line of HLO in the module before. The verdict does not rest on the latter."
    )
    figures = {key: (standing.get(key, ""), measure.error, measure.runs) for key, measure in recorder.measures.items()}
    return of_errors(recorder, columns, figures, note)


_Place = tuple[str, int]
_ORDER = ("to blame", "otherwise", "rounding", "the same")
"""How an instruction stands, the worst of its runs counting."""


def _paired(result: Diff) -> tuple[dict[_Place, _Place | None], dict[Key, str]]:
    """For values of `after`, by path and device, those of `before`, or None where they are the same; and how each
    instruction stands."""
    pairs: dict[_Place, _Place | None] = {}
    standing: dict[Key, str] = {}
    for pair in result.matches:
        word = "the same" if pair.is_exact else "rounding"
        key = pair.after.computation, pair.after.instruction
        standing[key] = min(standing.get(key, word), word, key=_ORDER.index)
        if pair.is_exact or pair.is_in_order:
            pairs[_place(pair.after)] = None if pair.is_exact else _place(pair.before)
    for finding in result.findings:
        standing[finding.after.computation, finding.after.instruction] = "to blame"
        if finding.before is not None:
            pairs[_place(finding.after)] = _place(finding.before)
    return pairs, standing


def _alike(result: Diff, standing: Mapping[Key, str]) -> set[Key]:
    """Instructions of `after` that diff has found no values of, and whose line of HLO stands in `before` as well."""
    lines = {(computation.name, hlo_line(instruction)) for computation in result.before for instruction in computation}
    return {
        (computation.name, instruction.name)
        for computation in result.after
        for instruction in computation
        if (computation.name, instruction.name) not in standing and (computation.name, hlo_line(instruction)) in lines
    }


def _place(run: InstructionRun) -> _Place:
    return run.path, run.device
