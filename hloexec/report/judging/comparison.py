"""Reports of comparisons as text and as records: the verdict, a row per differing leaf, and the worst elements."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hloexec.analysis.numerics.comparison import Comparison, LeafComparison, Verdict
from hloexec.analysis.numerics.measuring import ElementDifference, Measured, tolerates_nothing
from hloexec.core.dtypes import element_type
from hloexec.core.wording import count_text, listing, natural_number, number_runs, number_text, plural
from hloexec.report.layout import Parts, TerminalOnly, captured, plain_table, with_rest
from hloexec.report.registry import Figures, Linker, Report

_STYLES = {
    Verdict.EQUAL: "bold green",
    Verdict.ROUNDING: "bold cyan",
    Verdict.WITHIN: "bold cyan",
    Verdict.P99: "bold yellow",
    Verdict.MEDIAN: "bold yellow",
    Verdict.MEAN: "bold yellow",
    Verdict.NOT_DECIDED: "bold yellow",
    Verdict.DIFFERENT: "bold red",
}
_WORST_SHOWN = 5
_MOST_LABELS = 12


def verdict_line(comparison: Comparison) -> Text:
    """The verdict, how many leaves it is about, and how many NaNs, which say nothing about numbers."""
    verdict = comparison.verdict
    count = len(comparison.leaves)
    bad = sum(leaf.verdict is verdict for leaf in comparison.leaves)
    if not verdict.agrees:
        rest = f"{count_text(bad)} of {plural(count, 'array')}"
    else:
        equal = sum(leaf.verdict is Verdict.EQUAL for leaf in comparison.leaves)
        rest = plural(count, "array") + (f", {equal} of them bit for bit" if equal < count and count > 1 else "")
        rest += f", {comparison.nan_text}" if comparison.nan_text else ""
    return Text.assemble((verdict.value, _STYLES[verdict]), (f"  {rest}", "dim"))


def furthest_line(comparison: Comparison, devices: int = 1) -> str:
    """How many leaves are not equal, and by how much the one that is furthest off is; empty where all are equal."""
    leaf = comparison.furthest
    if leaf is None:
        return ""
    count = len(comparison.leaves)
    off = sum(each.verdict is not Verdict.EQUAL for each in comparison.leaves)
    where = "result: off" if count == 1 else f"results: {count_text(off)} of {count_text(count)} off"
    if count > 1:
        where += f"; {_output_name(leaf.label, devices)}{' the furthest' if off > 1 else ''}"
    if leaf.measured is None:
        return f"{where}: {leaf.note}"
    errors = _largest_errors(leaf, leaf.measured)
    by = f"{',' if off > 1 and count > 1 else ''} by up to {', '.join(errors)}" if errors else ""
    return f"{where}{by}: {', '.join(_elements_off(leaf, leaf.measured))}"


def _output_name(label: str, devices: int) -> str:
    """What a leaf is called, whose label begins with the number of one of `devices`."""
    device, _, rest = label.partition(".")
    if devices == 1 or natural_number(device) is None:
        return f"output {label}"
    return f"output {rest} on device {device}" if rest else f"that on device {device}"


def _largest_errors(leaf: LeafComparison, measured: Measured) -> list[str]:
    """The largest errors of finite elements, those that say something of their type."""
    if not measured.max_absolute_error or leaf.ulp_type == "pred":
        return []
    ulps = measured.ulp_percentiles.get(100)
    is_inexact = element_type(leaf.ulp_type).is_inexact
    errors = [f"{number_text(measured.max_absolute_error, 3)} absolute"]
    if measured.max_relative_error is not None:
        errors.insert(0, f"{number_text(measured.max_relative_error, 3)} relative")
    return [*errors, f"{_ulp_text(ulps)} ULP of {leaf.ulp_type}"] if is_inexact and ulps is not None else errors


def _elements_off(leaf: LeafComparison, measured: Measured) -> list[str]:
    """How many elements are not equal, and how many of them are so in a way that errors do not say."""
    parts = [f"{count_text(measured.unequal)} of {plural(leaf.count, 'element')} not bit for bit"]
    for name, (_, ours, theirs) in (("NaN", measured.nans), ("infinite", measured.infinities)):
        parts += [f"{count_text(ours + theirs)} {name} on one side only"] if ours + theirs else []
    if measured.unlike_zeros:
        parts.append(f"{plural(measured.unlike_zeros, 'zero')} of the other sign")
    if measured.mismatches and not tolerates_nothing(leaf.tolerance):
        parts.append(f"{count_text(measured.mismatches)} beyond what rounding explains")
    return parts


def comparison_view(
    comparison: Comparison, top: int = 10, *, hints: Sequence[str] = (), devices: int = 1
) -> RenderableType:
    """The verdict, a table of the leaves that are not equal (the worst first, `top` at most, 0 for all), and the first
    different leaf in detail; `hints` are the commands to go on with. Labels begin with the number of one of `devices`.
    """
    parts: Parts = [verdict_line(comparison)]
    off = sorted(
        (leaf for leaf in comparison.leaves if leaf.verdict is not Verdict.EQUAL),
        key=lambda leaf: (leaf.verdict.agrees, leaf.verdict is not Verdict.DIFFERENT),
    )
    if off:
        rows = _one_for_all_devices(off) if devices > 1 else [(leaf.label, leaf) for leaf in off]
        shown = rows[: top or None]
        parts += ["", with_rest(_table(shown), len(rows), top)]
        parts += [f"{listing(labels, _MOST_LABELS)}: {line}" for line, labels in _remarks(shown).items()]
        worst = next((leaf for _, leaf in shown if leaf.measured is not None), None)
        if worst is not None:
            parts += ["", _details(worst)]
    if hints:
        parts += ["", Text("\n".join(hints), style="dim", no_wrap=True, overflow="ignore")]
    return Group(*parts)


def comparison_text(comparison: Comparison) -> str:
    """`comparison_view` as plain text."""
    console = Console(width=160, highlight=False, markup=False, emoji=False, no_color=True, force_terminal=False)
    return captured(console, comparison_view(comparison))


def _one_for_all_devices(leaves: Sequence[LeafComparison]) -> list[tuple[str, LeafComparison]]:
    """Leaves with their labels; one for those of several devices, whose numbers labels begin with, that read alike."""
    alike: dict[tuple[object, ...], tuple[list[int], LeafComparison]] = {}
    for leaf in leaves:
        device, dot, rest = leaf.label.partition(".")
        number = natural_number(device)
        said = (leaf.label,) if number is None else (dot + rest, _shape(leaf), leaf.verdict, *_figures(leaf))
        numbers, _ = alike.setdefault((*said, *_remark_lines(leaf)), ([], leaf))
        numbers.append(0 if number is None else number)
    return [
        (f"{number_runs(numbers)}{first.label[len(str(numbers[0])) :]}" if len(numbers) > 1 else first.label, first)
        for numbers, first in alike.values()
    ]


def _table(leaves: Sequence[tuple[str, LeafComparison]]) -> Table:
    table = plain_table("shape", names=("",))
    table.add_column("verdict", no_wrap=True)
    for name in ("beyond", "off", "max abs", "max rel", "ULP 50", "99", "max", "cosine"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, leaf in leaves:
        table.add_row(label, _shape(leaf), Text(leaf.verdict.value, style=_STYLES[leaf.verdict]), *_figures(leaf))
    return table


def _shape(leaf: LeafComparison) -> str:
    if leaf.actual_shape == leaf.expected_shape:
        return leaf.actual_shape
    return f"{leaf.actual_shape}, expected {leaf.expected_shape}"


def _figures(leaf: LeafComparison) -> list[str]:
    measured = leaf.measured
    if measured is None:
        return []
    cosine = "–" if measured.cosine is None else f"{measured.cosine:.7f}"
    return [
        count_text(measured.mismatches),
        count_text(measured.unequal),
        number_text(measured.max_absolute_error, 3),
        number_text(measured.max_relative_error, 3),
        *(_ulp_text(measured.ulp_percentiles.get(percentile)) for percentile in (50, 99, 100)),
        cosine,
    ]


def _ulp_text(ulps: float | None) -> str:
    if ulps is None:
        return "–"
    return count_text(int(ulps)) if ulps < 1e6 and ulps == int(ulps) else f"{ulps:.3g}"


def _remarks(rows: Sequence[tuple[str, LeafComparison]]) -> dict[str, list[str]]:
    """What there is to say of leaves, each with the labels of those that it is said of."""
    labels_by_remark: dict[str, list[str]] = {}
    for label, leaf in rows:
        for line in _remark_lines(leaf):
            labels_by_remark.setdefault(line, []).append(label)
    return labels_by_remark


def _remark_lines(leaf: LeafComparison) -> list[str]:
    """What a row of numbers does not say: notes, and where NaNs, infinities and signs of zeros differ."""
    lines = [line for line in (leaf.undecided_text, leaf.note, leaf.statistic_text) if line]
    if leaf.measured is None:
        return lines
    for name, (_, ours, theirs) in (("NaN", leaf.measured.nans), ("infinity", leaf.measured.infinities)):
        if ours or theirs:
            lines.append(
                f"{name} at {plural(ours, 'place')} of the actual value only, {count_text(theirs)} of the expected"
            )
    if leaf.measured.unlike_zeros:
        lines.append(f"{plural(leaf.measured.unlike_zeros, 'zero')} of the other sign")
    return lines


def _details(leaf: LeafComparison) -> RenderableType:
    """The worst elements of a leaf, their tolerance, and the error map."""
    table = plain_table()
    for name in ("index", "actual", "expected", "error", f"ULP of {leaf.ulp_type}"):
        table.add_column(name, justify="left" if name == "index" else "right", no_wrap=True)
    elements = (leaf.worst if leaf.verdict.agrees or not (leaf.note and leaf.first) else leaf.first)[:_WORST_SHOWN]
    for element in elements:
        table.add_row(*_cells(element))
    heading = Text.assemble((f"leaf {leaf.label}", "bold"), ("  worst elements", "dim"))
    parts: Parts = [heading, table, Text(_tolerance_text(leaf), style="dim")]
    if leaf.mismatches and leaf.error_map is not None and leaf.count > 1:
        parts.append(TerminalOnly(_map(leaf)))
    if elements and elements[0].index != (first := (leaf.first or elements)[0].index):
        parts.insert(2, Text(f"the first one beyond the tolerance is at {list(first)}", style="dim"))
    return Group(*parts)


def _cells(element: ElementDifference) -> list[str]:
    values = [repr(value) for value in (element.actual, element.expected)]
    return [str(list(element.index)), *values, number_text(element.absolute_error, 3), _ulp_text(element.ulps)]


def _tolerance_text(leaf: LeafComparison) -> str:
    tolerance = leaf.tolerance
    if not (tolerance.rtol or tolerance.atol or tolerance.ulp or tolerance.factor):
        return f"tolerance: none ({tolerance.derivation})"
    if tolerance.is_given:
        return f"tolerance {tolerance.derivation}"
    if not (tolerance.rtol or tolerance.atol):
        return f"tolerance: {tolerance.derivation}"
    bounds = f"{tolerance.atol:.3g} + {tolerance.rtol:.3g}·|expected|"
    if tolerance.factor:
        bounds = f"{tolerance.factor:.1f}·spread + {bounds}"
    return f"tolerance: {bounds}, what rounding explains ({tolerance.derivation})"


def _map(leaf: LeafComparison) -> Text:
    assert leaf.error_map is not None
    error_map = leaf.error_map
    frame = f"[{error_map.rows}, {error_map.columns}], · within tolerance, ░▒▓█ up to 10, 100, 1000 times, beyond"
    return Text("\n".join([f"where: {frame}", *(f"|{line}|" for line in error_map.lines())]))


def _plots(comparison: Comparison, _: Linker) -> Figures:
    from hloexec.report.html.figures import error_maps

    return error_maps(comparison.leaves)


REPORTS = {Comparison: Report(lambda found, top, _: comparison_view(found, top), _plots)}
