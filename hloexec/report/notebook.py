"""Notebook display: the views of the command line, as HTML.

Where what pages are made with is installed (`hloexec[report]`), the tables are tables, and there are plots; else it is
the text of the terminal.
"""

from __future__ import annotations

import io
import shlex

from rich.console import Console, RenderableType

from hloexec.errors import HloError, UnsupportedError
from hloexec.report.html.drawing import require_extra
from hloexec.report.layout import WithoutControls
from hloexec.report.registry import report_of

_WIDTH = 120
_TOP = 10
_FORMAT = '<pre style="line-height:normal;overflow-x:auto">{code}</pre>'


def html(value: object) -> str | None:
    """A value's view as HTML; None where there is none, and the value's `repr` has to do."""
    renderable = view_of(value)
    if renderable is None:
        return None
    try:
        require_extra()
    except UnsupportedError:
        return _text(renderable)
    from hloexec.report.html.rendering import fragment

    return fragment(renderable, value)


def view_of(value: object) -> RenderableType | None:
    """What the terminal shows of a value; None where there is nothing."""
    report = report_of(value)
    if report is None:
        return None
    try:
        return report.view(value, _TOP, _command)
    except HloError:
        return None


def _text(renderable: RenderableType) -> str:
    console = Console(file=io.StringIO(), record=True, width=_WIDTH, highlight=False, markup=False, emoji=False)
    console.print(WithoutControls(renderable), crop=False)
    return console.export_html(inline_styles=True, code_format=_FORMAT)


def _command(name: str, *words: str) -> str:
    return shlex.join(["hloexec", name, "MODULE", *words])
