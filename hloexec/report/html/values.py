"""A second run for a page: the figures of all instructions, and plots of those that the result singles out.

The first run has given the result, and nothing here can change it; where this one fails, the page has no values, and
says why.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from hloexec.analysis.buffers import MemoryComparison, MemoryUsage
from hloexec.core.ir import Module, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Value
from hloexec.engine.devices.topology import Topology, topology_of
from hloexec.engine.exec.running import run_devices
from hloexec.errors import HloError, HloWarning, InputError
from hloexec.language.origins import hlo_line
from hloexec.report.html.instructions import Column
from hloexec.report.html.ranking import Ranked
from hloexec.report.html.recording import (
    DifferenceRecorder,
    Key,
    Measure,
    Seen,
    ShadowRecorder,
    ValueRecorder,
    ValueStore,
)
from hloexec.report.units import number_text, plural
from hloexec.tools.diffing import Diff, InstructionRun
from hloexec.tools.diffing.correspondence import correspondence_of
from hloexec.tools.diffing.partitioned.correspondence import partitioning_of
from hloexec.tools.nan_search import NanSearch
from hloexec.tools.shadowing import ShadowRun

_LOST = "NaN or infinities that should not be, or errors where all should be zero"
_RUNS = Column("runs", "how often it ran")
_LARGEST = Column("max |x|", "the largest absolute value of its finite elements, in any run")
_INFINITE = Column("NaN, inf", "how many elements are NaN or infinite, in the run with most of them")
_ERROR = Column("error", "the root of the mean squared error, relative to the size of the values, in the worst run")


@frozen(eq=False)
class Recording:
    """What is known of the values of all instructions."""

    columns: tuple[Column, ...] = ()
    figures: Mapping[Key, Sequence[Any]] = attrs.field(factory=dict)
    seen: Mapping[Key, Seen] = attrs.field(factory=dict)
    title: str = ""
    """Of the plot along the data flow; none where this is empty."""
    label: str = ""
    along: Mapping[Key, tuple[int, float]] = attrs.field(factory=dict)
    """When each instruction ran first, and what is plotted of it."""
    lost: str = "NaN or infinite elements"
    """What is said of instructions of which it is infinite."""
    note: str = ""
    ranking: tuple[Ranked, ...] = ()
    """Where the result itself singles out none."""


def recorded(
    result: object,
    module: Module | None,
    inputs: Sequence[Sequence[Value]] | None,
    options: Mapping[str, Any],
    ranking: Sequence[Ranked],
    most: int,
    *,
    is_tried: bool = True,
) -> Recording:
    """What a page shows of values: from the result where it has it, else of another run on the same inputs.

    Raises InputError where inputs or options are wrong, unless it `is_tried` that they are right.
    """
    wanted = [each.key for each in ranking]
    if isinstance(result, MemoryComparison):
        result = result.usage
    if isinstance(result, MemoryUsage):
        return _of_memory(result)
    if module is None or inputs is None:
        return Recording()
    with warnings.catch_warnings(action="ignore", category=HloWarning):  # the first run has warned of it
        try:
            if isinstance(result, Diff):
                return _of_diff(result, inputs, options, wanted)
            if isinstance(result, ShadowRun):
                return _of_shadow(module, inputs, options, wanted)
            if isinstance(result, (NanSearch, Module)):
                return _of_values(result, module, inputs, options, wanted, most)
        except HloError as error:
            if isinstance(error, InputError) and not is_tried:
                raise
            return Recording(note=f"There are no plots of values: the run for them failed ({error.message}).")
    return Recording()


def _of_memory(found: MemoryUsage) -> Recording:
    figures: dict[Key, tuple[int, int, int]] = {}
    for value in found.values:
        key = value.computation, value.instruction
        size, start, end = figures.get(key, (0, value.start, value.end))
        figures[key] = size + value.byte_size, min(start, value.start), max(end, value.end)
    columns = (
        Column("bytes", "the bytes of all values that it defines"),
        Column("alive from", "the position in the schedule from which one of them is alive"),
        Column("to", "the last position at which one of them is alive"),
    )
    along = {key: (start, float(size)) for key, (size, start, _) in figures.items()}
    return Recording(columns, figures, label="bytes", along=along)


def _of_values(
    result: object,
    module: Module,
    inputs: Sequence[Sequence[Value]],
    options: Mapping[str, Any],
    wanted: Sequence[Key],
    most: int,
) -> Recording:
    results = _results(module, options.get("computation"))[:most] if isinstance(result, Module) else []
    recorder = ValueRecorder([*wanted, *results], most - len(results) if isinstance(result, Module) else 0)
    run_devices(module, inputs, observers=[recorder], **options)
    figures = {key: (each.runs, each.largest, each.infinite) for key, each in recorder.measures.items()}
    is_search = isinstance(result, NanSearch)
    along = {key: (each.order, _size(each, is_search)) for key, each in recorder.measures.items()}
    others = sorted((seen.score, key) for key, seen in recorder.seen.items() if key not in results)
    ranking = [Ranked(key, "the result" if len(results) == 1 else "of the result") for key in results]
    ranking += [Ranked(key, _why(key, seen_score, recorder)) for seen_score, key in reversed(others)]
    return Recording(
        (_RUNS, _LARGEST, _INFINITE),
        figures,
        recorder.seen,
        "Sizes of values along the data flow",
        "largest |x|",
        along,
        ranking=tuple(ranking),
    )


def _size(measure: Measure, is_search: bool) -> float:
    """The largest absolute value; in a search for them, NaN and infinities are larger than all others."""
    is_lost = measure.infinite and (is_search or measure.largest is None)
    return math.inf if is_lost else measure.largest or 0.0


def _results(module: Module, computation: str | None) -> list[Key]:
    """The instructions that give the arrays of the result."""
    entry = module.entry if computation is None else module.by_name[computation.removeprefix("%")]
    names = (
        entry.root.operands if isinstance(entry.root.shape, TupleShape) and entry.root.operands else (entry.root_name,)
    )
    return [(entry.name, name) for name in dict.fromkeys(names)]


def _why(key: Key, score: float, recorder: ValueRecorder) -> str:
    measure = recorder.measures[key]
    if score >= 1e300:
        return f"{plural(measure.infinite, 'element')} NaN or infinite"
    return f"largest |x| {number_text(measure.largest, 3)}"


def _of_shadow(
    module: Module, inputs: Sequence[Sequence[Value]], options: Mapping[str, Any], wanted: Sequence[Key]
) -> Recording:
    topology = topology_of(module, options.get("replicas"), options.get("partitions"))
    recorder = ShadowRecorder(module, options.get("computation"), topology, wanted)
    run_devices(module, inputs, observers=[recorder], **options)
    figures = {key: (each.error, each.largest, each.runs) for key, each in recorder.measures.items()}
    return _of_errors(recorder, (_ERROR, _LARGEST, _RUNS), figures)


def _of_errors(
    recorder: ValueRecorder, columns: tuple[Column, ...], figures: Mapping[Key, Sequence[Any]], note: str = ""
) -> Recording:
    """What is shown of a run whose values were compared with what they should be."""
    along = {key: (each.order, each.error) for key, each in recorder.measures.items() if each.error is not None}
    title, label = "Error along the data flow", "relative error"
    return Recording(columns, figures, recorder.seen, title, label, along, _LOST, note)


def _of_diff(
    found: Diff, inputs: Sequence[Sequence[Value]], options: Mapping[str, Any], wanted: Sequence[Key]
) -> Recording:
    """Runs both modules, and compares the values that the diff has paired, and what has the same line of HLO."""
    options = dict(options)
    sizes = options.pop("replicas", None), options.pop("partitions", None)
    policies = options.pop("numerics", "reference")
    before, after = policies if isinstance(policies, tuple) else (policies, policies)
    topologies = [topology_of(module, *sizes) for module in (found.before, found.after)]
    if partitioning_of(found.before, found.after, topologies) is not None:
        return Recording(note="There are no plots of values where one module is partitioned and the other is not.")
    ours = correspondence_of(found.before, found.after, topologies).inputs_by_device(inputs)
    pairs, standing = _paired(found)
    alike = _alike(found, standing)
    store = ValueStore({place for place in pairs.values() if place is not None}, alike)
    run_devices(found.before, inputs, observers=[store], numerics=before, **_on(topologies[0]), **options)
    recorder = DifferenceRecorder(wanted, pairs, alike, store)
    run_devices(found.after, ours, observers=[recorder], numerics=after, **_on(topologies[1]), **options)
    columns = (
        Column("agrees", "whether diff has found its values in the module before", is_number=False),
        Column("error", f"{_ERROR.title}, where it is known what they should be"),
        _RUNS,
    )
    note = (
        "Values are compared with their counterparts that diff has found and, where it has found none, with what has "
        "the same line of HLO in the module before. The verdict does not rest on the latter."
    )
    figures = {key: (standing.get(key, ""), each.error, each.runs) for key, each in recorder.measures.items()}
    return _of_errors(recorder, columns, figures, note)


def _on(topology: Topology) -> dict[str, Any]:
    return {"replicas": topology.replicas, "partitions": topology.partitions}


_Place = tuple[str, int]
_ORDER = ("to blame", "otherwise", "rounding", "the same")
"""How an instruction stands, the worst of its runs counting."""


def _paired(found: Diff) -> tuple[dict[_Place, _Place | None], dict[Key, str]]:
    """For values of `after`, by path and device, those of `before`, or None where they are the same; and how each
    instruction stands."""
    pairs: dict[_Place, _Place | None] = {}
    standing: dict[Key, str] = {}
    for pair in found.matches:
        word = "the same" if pair.is_exact else "rounding"
        key = pair.after.computation, pair.after.instruction
        standing[key] = min(standing.get(key, word), word, key=_ORDER.index)
        if pair.is_exact or pair.is_in_order:
            pairs[_place(pair.after)] = None if pair.is_exact else _place(pair.before)
    for finding in found.findings:
        standing[finding.after.computation, finding.after.instruction] = "to blame"
        if finding.before is not None:
            pairs[_place(finding.after)] = _place(finding.before)
    return pairs, standing


def _alike(found: Diff, standing: Mapping[Key, str]) -> set[Key]:
    """Instructions of `after` that diff has found no values of, and whose line of HLO stands in `before` as well."""
    lines = {(each.name, hlo_line(instruction)) for each in found.before for instruction in each}
    return {
        (each.name, instruction.name)
        for each in found.after
        for instruction in each
        if (each.name, instruction.name) not in standing and (each.name, hlo_line(instruction)) in lines
    }


def _place(run: InstructionRun) -> _Place:
    return run.path, run.device
