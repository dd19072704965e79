"""Plots as SVG, drawn by Matplotlib: inline in a page, without a script, with the page's own colours.

A page's content security policy forbids styles in attributes, so they become attributes of SVG's own and classes,
which the style sheet of the page gives the colours of its theme; the attributes alone are the light theme's. Names from
a module are drawn as they are (no TeX).
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from hloexec.errors import UnsupportedError, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, GRID = "#1c2024", "#60676f", "#e3e6e9"
ACCENT, BAD, NEAR = "#2f5fd0", "#c0271d", "#1b7f79"
_CLASSES = {INK: "ink", MUTED: "muted", GRID: "grid", ACCENT: "accent", BAD: "bad", NEAR: "near"}
"""Colours that follow the theme, and the classes of what has them."""
_SETTINGS: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hloexec",
    "text.parse_math": False,
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.formatter.use_mathtext": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
}
_BELOW, _ABOVE = 0.46, 0.08
"""Margins in inches: for the numbers and the label of an axis, and for half a number."""
_DROPPED = ("font-family", "font")
_STYLE_ONLY = re.compile(r"(?:^|;)\s*([\w-]+)\s*:\s*([^;]+)")


def require_extra() -> None:
    """UnsupportedError where what pages are made with is not installed."""
    missing = []
    for name, package in (("jinja2", "Jinja2"), ("matplotlib", "Matplotlib")):
        try:
            __import__(name)
        except ImportError:
            missing.append(package)
    if missing:
        needs = " and ".join(missing)
        verb = "are" if len(missing) > 1 else "is"
        raise UnsupportedError(
            f"a report in HTML needs {needs}, which {verb} not installed: pip install 'hloexec[report]'"
        )


class Canvas:
    """A plot while it is drawn, and its markup afterwards."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.svg = ""
        self.labels: dict[str, str] = {}
        """What each link says to those who do not see where it is, by its URL."""


@contextmanager
def drawing(width: float, height: float, left: float = 0.62, right: float = 0.1) -> Iterator[Canvas]:
    """A plot of a size in inches, at 72 pixels each, with margins for what stands beside its axes; `svg` of what is
    yielded is there once the block ends."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(dict(_SETTINGS)):
        figure = Figure(figsize=(width, height))
        edges = left / width, _BELOW / height, 1 - (left + right) / width, 1 - (_BELOW + _ABOVE) / height
        canvas = Canvas(figure.add_axes(edges))
        yield canvas
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    canvas.svg = _inline(written.getvalue(), canvas.labels)


def end_of(text: str, most: int = 34) -> str:
    """A text that fits beside an axis: its end, which tells more of a path than its start."""
    text = printable(text)
    return text if len(text) <= most else "…" + text[1 - most :]


def _inline(svg: str, labels: Mapping[str, str]) -> str:
    """What Matplotlib writes as an element of a page: no styles, no metadata, identifiers of its own."""
    root = ElementTree.fromstring(svg)
    prefix = f"plot-{hashlib.blake2b(svg.encode(), digest_size=4).hexdigest()}-"
    names = {element.get("id"): "" for element in root.iter() if element.get("id")}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = dict(element.attrib)
        element.attrib.clear()
        for key, value in attributes.items():
            _set(element, key.rpartition("}")[2], value, names, prefix)
        if element.tag == "a" and element.get("href") in labels:
            element.set("aria-label", labels[element.get("href", "")])
        if element.tag == "g" and not element.get("clip-path"):
            element.attrib.pop("id", None)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("metadata", "style"):
                parent.remove(child)
    root.attrib = {
        "viewBox": root.get("viewBox", ""),
        "width": (root.get("width") or "").removesuffix("pt"),
        "focusable": "false",
    }
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _set(element: ElementTree.Element, key: str, value: str, names: Mapping[str | None, str], prefix: str) -> None:
    """An attribute, with what it refers to renamed, or with the styles that it holds as attributes and classes."""
    if key == "id":
        element.set("id", prefix + value)
    elif key == "href":
        is_own = value.startswith("#") and value[1:] in names
        element.set("href", f"#{prefix}{value[1:]}" if is_own else "".join(value.split()))
    elif key == "style":
        classes = []
        for name, setting in _STYLE_ONLY.findall(value):
            setting = setting.strip()
            if name in _DROPPED:
                continue
            element.set(name, setting)
            if name in ("fill", "stroke") and setting in _CLASSES:
                classes.append(f"{name}-{_CLASSES[setting]}")
        if classes:
            element.set("class", " ".join(classes))
    elif key != "target":
        element.set(key, re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", value))
