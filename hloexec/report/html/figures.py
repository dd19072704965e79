"""Plots of what a result itself holds, for pages and notebooks: no module has to run again for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hloexec.analysis.buffers import MemoryComparison, MemoryUsage
from hloexec.analysis.numerics.comparison import Comparison, LeafComparison
from hloexec.core.values import Array
from hloexec.report.html.content import Figure
from hloexec.report.html.plots import bars, heat_map, memory_curve, spectrum
from hloexec.report.html.ranking import first_diff
from hloexec.report.html.renderables import Linker
from hloexec.report.html.sampling import Grid, error_sample
from hloexec.report.units import plural
from hloexec.tools.diffing import Diff, FolderDiff
from hloexec.tools.explaining import Explanation
from hloexec.tools.golden import GoldenCheck
from hloexec.tools.shadowing import ShadowRun
from hloexec.tools.triaging import Triage

_MOST_LEAVES = 4
_MOST_BARS = 12


def figures_of(result: object, link: Linker) -> list[Figure]:
    """The plots of a result, if its type has any."""
    draw = _DRAWN.get(type(result))
    return [] if draw is None else [figure for figure in draw(result, link) if figure is not None]


def _furthest(leaves: Sequence[LeafComparison]) -> list[LeafComparison]:
    """A few leaves that are not equal, the differing ones first."""
    return sorted((leaf for leaf in leaves if leaf.unequal), key=lambda leaf: leaf.verdict.agrees)[:_MOST_LEAVES]


def _error_maps(leaves: Sequence[LeafComparison], where: str = "") -> Iterator[Figure | None]:
    """Where the errors of leaves are that are not equal, the differing ones first."""
    for leaf in _furthest(leaves):
        if leaf.error_map is None:
            continue
        found = leaf.error_map
        title = where or "Errors in units of the tolerance" + (f", {leaf.label}" if len(leaves) > 1 else "")
        note = f"{leaf.actual_shape}, leading dimensions overlaid" if leaf.actual_shape.count(",") > 1 else ""
        yield heat_map(title, Grid(found.rows, found.columns, found.cells), "error in units of the tolerance", note)


def figures_of_pairs(found: Comparison, pairs: Mapping[str, tuple[Array, Array]]) -> list[Figure]:
    """The errors of the differing leaves, of those whose values are at hand: how many there are, and where they are."""
    figures: list[Figure | None] = []
    for leaf in _furthest(found.leaves):
        actual, expected = pairs.get(leaf.label, (None, None))
        if actual is None or expected is None or actual.shape != expected.shape:
            continue
        sample = error_sample(actual, expected)
        label = f"error in units in the last place of {leaf.ulp_type}"
        name = f", {leaf.label}" if len(found.leaves) > 1 else ""
        figures.append(spectrum(f"How many errors there are{name}", sample.spectrum, label))
        figures.append(heat_map(f"Where the errors are{name}", sample.grid, label, leaf.actual_shape))
    return [figure for figure in figures if figure is not None]


def _of_diff(found: Diff, _: Linker) -> Iterator[Figure | None]:
    for finding in found.findings[:1]:
        if finding.comparison is not None:
            yield from _error_maps(finding.comparison.leaves, f"Errors that %{finding.after.instruction} makes")
    yield from _error_maps(found.outputs.leaves, "" if len(found.outputs.leaves) > 1 else "Errors of the result")


def _of_folders(found: FolderDiff, link: Linker) -> Iterator[Figure | None]:
    first = first_diff(found)
    return iter(()) if first is None else _of_diff(first, link)


def _of_explanation(found: Explanation, _: Linker) -> Iterator[Figure | None]:
    trials = [trial for trial in found.trials if trial.policy.name != "reference"][:_MOST_BARS]
    largest = max((trial.bits for trial in trials if math.isfinite(trial.bits)), default=1.0)
    rows = [
        (trial.name, trial.bits if math.isfinite(trial.bits) else 1.15 * max(largest, 1.0), _bits_text(trial.bits))
        for trial in trials
    ]
    yield bars("Bits that each policy explains", rows, "bits explained")
    yield from _error_maps(found.leaves)


def _bits_text(bits: float) -> str:
    return "all of them" if math.isinf(bits) else f"{bits if abs(bits) >= 0.05 else 0.0:.1f}"


def _of_shadow(found: ShadowRun, link: Linker) -> Iterator[Figure | None]:
    rows, links = [], []
    for loss in found.losses[:_MOST_BARS]:
        share = loss.lost_share or loss.share
        rows.append((loss.instruction, 100 * share, f"{share:.1%}  {loss.kind}"))
        links.append(link(f"{loss.computation}/{loss.instruction}"))
    yield bars("Where the error of the outputs comes from", rows, "share in %", links, is_percent=True)


def _of_triage(found: Triage, _: Linker) -> Iterator[Figure | None]:
    rows = [
        (f"cause {group.number}", len(group.members), f"{len(group.members)}  {group.cause}")
        for group in found.groups[:_MOST_BARS]
    ]
    yield bars("How many modules each cause has", rows, "modules")


def _of_memory(found: MemoryUsage, link: Linker) -> Iterator[Figure | None]:
    alive = [0] * (len(found.sequence) + 2)
    buffers: dict[int, list[tuple[int, int, int]]] = {}
    for value in found.values:
        buffers.setdefault(value.buffer, []).append((value.start, value.end, value.byte_size))
    for members in buffers.values():
        # A buffer takes at any time what its largest value takes that is alive.
        before = 0
        for time in sorted({start for start, _, _ in members} | {end + 1 for _, end, _ in members}):
            now = max((size for start, end, size in members if start <= time <= end), default=0)
            alive[min(time, len(alive) - 1)] += now - before
            before = now
    for time in range(1, len(alive)):
        alive[time] += alive[time - 1]
    peak = found.peak.time
    place = found.sequence[min(peak, len(found.sequence) - 1)] if found.sequence else ("", "")
    yield memory_curve("Bytes alive along the schedule", alive[:-1], peak, place[1], link("/".join(place)))
    colors = {value.color for value in found.values}
    if len(colors) > 1:
        rows = [
            (f"color {color}", at.bytes, f"{plural(at.bytes, 'byte')}")
            for color, at in sorted(found.peak_by_color.items())
        ]
        yield bars("Most alive in each memory space", rows, "bytes")


_DRAWN: Mapping[type, Callable[[Any, Linker], Iterator[Figure | None]]] = {
    Comparison: lambda found, _: _error_maps(found.leaves),
    Diff: _of_diff,
    Explanation: _of_explanation,
    FolderDiff: _of_folders,
    GoldenCheck: lambda found, _: _error_maps(() if found.comparison is None else found.comparison.leaves),
    MemoryComparison: lambda found, link: _of_memory(found.usage, link),
    MemoryUsage: _of_memory,
    ShadowRun: _of_shadow,
    Triage: _of_triage,
}
