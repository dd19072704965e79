"""The kinds of plots of pages and notebooks: errors along the data flow, spectra, heat maps, bars, memory in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.core.wording import byte_text, count_text, number_text, plural
from hloexec.report.html.content import Figure
from hloexec.report.html.drawing import ACCENT, BAD, GRID, INK, MUTED, Canvas, drawing, end_of
from hloexec.tools.watching.recording import Grid, Spectrum

_MOST_BINS = 36
_MOST_COLUMNS = 640
"""Points along the data flow, of which more are drawn as the largest of each column."""
_SMALLEST = 1e-60
"""Of the largest value: what is smaller is drawn at the bottom."""
_LEAST, _MOST = 1e-280, 1e290
"""What is beyond these is drawn there: scales need room in f64."""


@frozen
class Point:
    """An instruction along the data flow."""

    order: int
    value: float


@frozen
class Mark(Point):
    """One with a name of its own, which may lead somewhere."""

    label: str
    link: str | None
    is_bad: bool = False


def along(
    title: str, points: Sequence[Point], marks: Sequence[Mark], label: str, lost_text: str, note: str = ""
) -> Figure | None:
    """A quantity of all instructions in the order in which they first ran, on a logarithmic scale; None of nothing."""
    shown = [Point(p.order, min(p.value, _MOST)) for p in points if p.value > 0 and math.isfinite(p.value)]
    lost = [point for point in points if math.isinf(point.value)]
    positive_marks = [mark for mark in marks if mark.value > 0]
    if not shown and not positive_marks and not lost:
        return None
    top = max((point.value for point in (*shown, *positive_marks) if math.isfinite(point.value)), default=1.0)
    top = min(max(top, _LEAST), _MOST)
    floor = max(10.0 ** math.floor(math.log10(min((p.value for p in shown), default=top))), top * _SMALLEST, _LEAST)
    last = max(point.order for point in (*points, *marks))
    with drawing(10.4, 2.7, left=0.82) as canvas:
        axes = canvas.axes
        columns = _columns(shown, last)
        axes.vlines([p.order for p in columns], floor / 2, [p.value for p in columns], color=GRID, linewidth=1.1)
        axes.scatter(
            [p.order for p in columns],
            [p.value for p in columns],
            s=5 if len(columns) > 200 else 12,
            color=ACCENT,
            linewidths=0,
        )
        above = top * 10
        axes.scatter(
            [p.order for p in _columns(lost, last)],
            [above] * len(_columns(lost, last)),
            s=6,
            color=BAD,
            marker="^",
            linewidths=0,
        )
        _draw_marks(canvas, positive_marks, above, last)
        axes.set_yscale("log")
        axes.set_ylim(floor / 2, above * 3 if lost else top * 6)
        axes.set_xlim(-0.02 * last - 0.5, 1.02 * last + 0.5)
        axes.yaxis.set_major_formatter(lambda value, _: _decimal(value))
        axes.minorticks_off()
        axes.xaxis.set_major_locator(_integers())
        axes.set_xlabel("instructions in the order in which they first ran")
        axes.set_ylabel(label)
    if lost:
        many = plural(len(lost), "instruction")
        note = f"{note}{note and ' '}At the top, in red: {many} with {lost_text}."
    first = f"; marked: {', '.join(f'%{mark.label}' for mark in positive_marks[:6])}" if positive_marks else ""
    description = f"{label} of {plural(len(points), 'instruction')}, at most {number_text(top, 3)}{first}"
    return Figure(title, description, canvas.svg, note, is_wide=True)


def _draw_marks(canvas: Canvas, marks: Sequence[Mark], above: float, last: int) -> None:
    """A larger dot for each, with a link, and the names of the foremost that do not stand on one another."""
    axes = canvas.axes
    for mark in marks:
        color = BAD if mark.is_bad else INK
        dot = axes.scatter([mark.order], [min(mark.value, above)], s=34, color=color, linewidths=0, zorder=3)
        if mark.link:
            dot.set_urls([mark.link])
            canvas.labels[mark.link] = f"%{mark.label}"
    for mark in _apart(marks, 0.13 * last):
        is_left = mark.order > 0.8 * last
        axes.annotate(
            end_of(mark.label, 28),
            (mark.order, min(mark.value, above)),
            (-6 if is_left else 6, 4),
            textcoords="offset points",
            ha="right" if is_left else "left",
            fontsize=8.5,
            color=BAD if mark.is_bad else INK,
        )


def _apart(marks: Sequence[Mark], distance: float) -> list[Mark]:
    """Those whose names do not stand on one another, the foremost first."""
    spaced_marks: list[Mark] = []
    for mark in marks:
        if all(abs(mark.order - other.order) > distance for other in spaced_marks):
            spaced_marks.append(mark)
    return spaced_marks


def _columns(points: Sequence[Point], last: int) -> list[Point]:
    """The largest of each column, where there are more points than columns."""
    if len(points) <= _MOST_COLUMNS:
        return list(points)
    largest: dict[int, Point] = {}
    for point in points:
        column = point.order * _MOST_COLUMNS // (last + 1)
        if column not in largest or point.value > largest[column].value:
            largest[column] = point
    return list(largest.values())


def _decimal(value: float) -> str:
    if value <= 0:
        return "0"
    exponent = math.log10(value)
    if abs(exponent - round(exponent)) > 1e-6:
        return ""
    return f"{value:g}" if -3 <= round(exponent) <= 4 else f"1e{round(exponent)}"


def spectrum(title: str, spectrum: Spectrum, label: str) -> Figure | None:
    """How many elements there are of each size, by powers of two; None of one element or none."""
    if spectrum.total < 2:
        return None
    exponents = np.flatnonzero(spectrum.counts)
    rest = [
        f"{share} {name}"
        for name, many in (("zero", spectrum.zeros), ("NaN or infinite", spectrum.infinite))
        if many and (share := count_text(many))
    ]
    note = f"of {plural(spectrum.total, 'element')}" + (f", {' and '.join(rest)}" if rest else "")
    if not exponents.size:
        return Figure(title, f"{label}: {note}", "", note)
    low, high = int(exponents[0]), int(exponents[-1]) + 1
    width = -(-(high - low) // _MOST_BINS)
    edges = np.arange(low, high + width, width)
    counts = np.add.reduceat(np.append(spectrum.counts, np.zeros(edges[-1])), edges[:-1])[: len(edges) - 1]
    with drawing(4.9, 2.3) as canvas:
        axes = canvas.axes
        axes.bar(edges[:-1] + width / 2, counts, width * 0.86, color=ACCENT, linewidth=0)
        axes.xaxis.set_major_locator(_integers())
        axes.xaxis.set_major_formatter(lambda value, _: _power(spectrum.exponent(round(value))))
        axes.yaxis.set_major_locator(_integers())
        axes.yaxis.set_major_formatter(lambda value, _: _short(value))
        axes.grid(axis="y")
        axes.set_xlim(low - width * 0.6, max(edges[-1], low + 4) + width * 0.6)
        axes.set_xlabel(label)
        axes.set_ylabel("elements")
    most = _power(spectrum.exponent(high))
    return Figure(title, f"{label}, {note}; the largest is below {most}", canvas.svg, note)


def _integers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(6, integer=True)


def _power(exponent: int) -> str:
    return f"{2.0**exponent:g}" if -3 <= exponent <= 13 else f"2^{exponent}"


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 10 * size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def heat_map(title: str, grid: Grid, label: str, note: str) -> Figure | None:
    """The largest of each block of an array, on a logarithmic scale; None of an array of one element or none."""
    if grid.cells.size < 2:
        return None
    cells = np.where(np.isfinite(grid.cells), np.minimum(grid.cells, _MOST), grid.cells)
    finite = cells[np.isfinite(cells) & (cells > 0)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.1, 1.0)
    high = max(high, _LEAST)
    low = max(low, high * 1e-12)
    if high <= low:
        low = high / 10
    rows, columns = cells.shape
    height = min(2.9, max(0.95, 0.55 + 4.0 * rows / max(columns, rows) * 0.62))
    with drawing(4.9, height, left=0.4, right=0.74) as canvas:
        axes = canvas.axes
        extent = (-0.5, max(grid.columns, 1) - 0.5, max(grid.rows, 1) - 0.5, -0.5)
        places = _places(cells, low, high)
        image = axes.imshow(places, aspect="auto", interpolation="nearest", extent=extent, vmin=0, vmax=1, cmap=_map())
        if finite.size:
            place = axes.get_position()
            side = axes.figure.add_axes((place.x1 + 0.015, place.y0, 0.017, place.height))
            bar = axes.figure.colorbar(image, cax=side)
            bar.outline.set_visible(False)
            side.minorticks_off()
            side.set_yticks([0, 1], [number_text(end, 2) for end in (low, high)])
            side.tick_params(length=0)
        axes.xaxis.set_major_locator(_integers())
        axes.yaxis.set_major_locator(_integers())
        if grid.rows == 1:
            axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_xlabel("last dimension")
    many = int(np.isinf(cells).sum() + np.isnan(cells).sum())
    words = f"{label}: the largest of each block, from {number_text(low, 2)} to {number_text(high, 2)}"
    if many:
        note = f"{note}{note and '; '}NaN or infinite in {plural(many, 'block')}, in red"
    return Figure(
        title, words if finite.size else f"{label}: nothing but zeros or what is not finite", canvas.svg, note
    )


def _places(cells: Array, low: float, high: float) -> Array:
    """Where cells are on the logarithmic scale, from 0 to 1; below it what is smaller, above it what is not finite."""
    with np.errstate(all="ignore"):
        places = np.clip(np.log(cells / low) / np.log(high / low), 0, 1)
    return np.where(np.isfinite(cells), np.where(cells < low, -1.0, places), 2.0)


def _map() -> Any:
    """From what is behind it to the page's accent, in any theme; red for what is not finite."""
    from matplotlib.colors import LinearSegmentedColormap

    color_map = LinearSegmentedColormap.from_list("accent", ["#4b7bec1f", "#4b7bec8f", "#3d6be0ff", "#5a2fc2ff"])
    return color_map.with_extremes(under="#80808014", over=BAD, bad=BAD)


def bars(
    title: str,
    rows: Sequence[tuple[str, float, str]],
    label: str,
    links: Sequence[str | None] = (),
    *,
    is_percent: bool = False,
) -> Figure | None:
    """A bar for each row of a name, a number and its text; an axis of percent ends at 100."""
    if not rows:
        return None
    with drawing(
        6.6, 0.62 + 0.24 * len(rows), left=0.3 + 0.078 * max(len(end_of(name)) for name, _, _ in rows)
    ) as canvas:
        axes = canvas.axes
        places = range(len(rows), 0, -1)
        lengths = [max(value, 0.0) if math.isfinite(value) else 0.0 for _, value, _ in rows]
        axes.barh(list(places), lengths, 0.62, color=ACCENT, linewidth=0)
        axes.set_yticks(list(places), [end_of(name) for name, _, _ in rows])
        for text, link in zip(axes.get_yticklabels(), links, strict=False):
            text.set_color(INK)
            if link:
                text.set_url(link)
        for place, length, (_, _, words) in zip(places, lengths, rows, strict=True):
            axes.annotate(words, (max(length, 0), place), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(0.4, len(rows) + 0.6)
        axes.set_xlim(0, 1.3 * max(*lengths, 1e-300))
        if is_percent:
            axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 100])
            axes.spines["bottom"].set_bounds(0, min(100, axes.get_xlim()[1]))
        axes.set_xlabel(label)
    told = "; ".join(f"{name}: {words}" for name, _, words in rows[:12])
    return Figure(title, f"{label}: {told}", canvas.svg)


def memory_curve(title: str, alive: Sequence[int], peak: int, name: str, link: str | None) -> Figure | None:
    """The bytes that are alive at each position of a schedule."""
    if not alive or not max(alive):
        return None
    times = np.arange(len(alive))
    values = np.asarray(alive, float)
    if len(values) > 2 * _MOST_COLUMNS:
        starts = np.arange(_MOST_COLUMNS * 2) * len(values) // (_MOST_COLUMNS * 2)
        times, values = starts, np.maximum.reduceat(values, starts)
    with drawing(10.4, 2.5, left=0.8) as canvas:
        axes = canvas.axes
        axes.fill_between(times, values, step="post", color=ACCENT, linewidth=0, alpha=0.28)
        axes.step(times, values, where="post", color=ACCENT, linewidth=1)
        dot = axes.scatter([peak], [alive[peak]], s=34, color=BAD, linewidths=0, zorder=3)
        if link:
            dot.set_urls([link])
            canvas.labels[link] = f"%{end_of(name, 200)}"
        is_left = peak > 0.7 * len(alive)
        axes.annotate(
            f"{end_of(name)}  {byte_text(alive[peak])}",
            (peak, alive[peak]),
            (-7 if is_left else 7, 4),
            textcoords="offset points",
            ha="right" if is_left else "left",
            fontsize=8.5,
        )
        axes.yaxis.set_major_formatter(lambda value, _: byte_text(round(value)))
        axes.set_ylim(0, max(alive) * 1.18)
        axes.set_xlim(0, max(1, len(alive) - 1))
        axes.xaxis.set_major_locator(_integers())
        axes.set_xlabel("position in the schedule")
        axes.tick_params(colors=MUTED)
    words = f"bytes alive at {plural(len(alive), 'position')}, at most {byte_text(alive[peak])} at %{name}"
    return Figure(title, words, canvas.svg, is_wide=True)
