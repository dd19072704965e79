"""Plots of what a result itself holds, for pages and notebooks: no module has to run again for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hloexec.analysis.numerics.comparison import Comparison, LeafComparison
from hloexec.core.values import Array
from hloexec.report.html.content import Figure, Linker
from hloexec.report.html.plots import heat_map, spectrum
from hloexec.report.registry import report_of
from hloexec.tools.watching.recording import Grid, error_sample

_MOST_LEAVES = 4


def figures_of(result: object, link: Linker) -> list[Figure]:
    """The plots of a result, if its type has any."""
    report = report_of(result)
    return [] if report is None else [figure for figure in report.figures(result, link) if figure is not None]


def _furthest(leaves: Sequence[LeafComparison]) -> list[LeafComparison]:
    """A few leaves that are not equal, the differing ones first."""
    return sorted((leaf for leaf in leaves if leaf.unequal), key=lambda leaf: leaf.verdict.agrees)[:_MOST_LEAVES]


def error_maps(leaves: Sequence[LeafComparison], where: str = "") -> Iterator[Figure | None]:
    """Where the errors of leaves are that are not equal, the differing ones first."""
    for leaf in _furthest(leaves):
        if leaf.error_map is None:
            continue
        error_map = leaf.error_map
        title = where or "Errors in units of the tolerance" + (f", {leaf.label}" if len(leaves) > 1 else "")
        note = f"{leaf.actual_shape}, leading dimensions overlaid" if leaf.actual_shape.count(",") > 1 else ""
        yield heat_map(
            title, Grid(error_map.rows, error_map.columns, error_map.cells), "error in units of the tolerance", note
        )


def figures_of_pairs(comparison: Comparison, pairs: Mapping[str, tuple[Array, Array]]) -> list[Figure]:
    """The errors of the differing leaves, of those whose values are at hand: how many there are, and where they are."""
    figures: list[Figure | None] = []
    for leaf in _furthest(comparison.leaves):
        actual, expected = pairs.get(leaf.label, (None, None))
        if actual is None or expected is None or actual.shape != expected.shape:
            continue
        sample = error_sample(actual, expected)
        label = f"error in units in the last place of {leaf.ulp_type}"
        name = f", {leaf.label}" if len(comparison.leaves) > 1 else ""
        figures.append(spectrum(f"How many errors there are{name}", sample.spectrum, label))
        figures.append(heat_map(f"Where the errors are{name}", sample.grid, label, leaf.actual_shape))
    return [figure for figure in figures if figure is not None]
