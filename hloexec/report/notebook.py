"""Notebook display: the views of the command line, as HTML.

Where what pages are made with is installed (`hloexec[report]`), the tables are tables, and there are plots; else it is
the text of the terminal.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, RenderableType

from hloexec.analysis.buffers import MemoryComparison, MemoryUsage
from hloexec.analysis.numerics.comparison import Comparison
from hloexec.core.ir import Module
from hloexec.errors import HloError, UnsupportedError
from hloexec.report.explaining.explanations import explanation_view
from hloexec.report.explaining.nan_search import nan_view
from hloexec.report.explaining.shadows import shadow_view
from hloexec.report.html.drawing import require_extra
from hloexec.report.inspecting.memory import memory_view
from hloexec.report.judging.comparison import comparison_view
from hloexec.report.judging.diffs import diff_view
from hloexec.report.judging.folder_diffs import folder_view
from hloexec.report.judging.triages import triage_page_view
from hloexec.report.layout import WithoutControls
from hloexec.report.running.golden import checks_view
from hloexec.report.tables import summary_view
from hloexec.tools.diffing import Diff, FolderDiff
from hloexec.tools.explaining import Explanation
from hloexec.tools.golden import GoldenCheck
from hloexec.tools.nan_search import NanSearch
from hloexec.tools.shadowing import ShadowRun
from hloexec.tools.summary import summarize
from hloexec.tools.triaging import Triage

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
    view = _VIEWS.get(type(value))
    if view is None:
        return None
    try:
        return view(value)
    except HloError:
        return None


def _text(renderable: RenderableType) -> str:
    console = Console(file=io.StringIO(), record=True, width=_WIDTH, highlight=False, markup=False, emoji=False)
    console.print(WithoutControls(renderable), crop=False)
    return console.export_html(inline_styles=True, code_format=_FORMAT)


def _device_count(found: NanSearch) -> int:
    return 1 + max(found.finding.devices, default=0) if found.finding is not None else 1


def _shadow_devices(found: ShadowRun) -> int:
    return 1 + max((device for output in found.outputs for device in output.devices), default=0)


def _command(name: str, *words: str) -> str:
    return shlex.join(["hloexec", name, "MODULE", *words])


_VIEWS: Mapping[type, Callable[[Any], RenderableType]] = {
    Comparison: lambda found: comparison_view(found, _TOP),
    Diff: lambda found: diff_view(found, _TOP, _command),
    Explanation: lambda found: explanation_view(found, _TOP, _command),
    FolderDiff: lambda found: folder_view(found, _TOP, _command),
    GoldenCheck: lambda found: checks_view([found], 1, _TOP),
    MemoryComparison: lambda found: memory_view(found.usage, found, None, _TOP),
    MemoryUsage: lambda found: memory_view(found, None, None, _TOP),
    Module: lambda found: summary_view(summarize(found)),
    ShadowRun: lambda found: shadow_view(found, "the module", _shadow_devices(found), _TOP, _command),
    Triage: lambda found: triage_page_view(found, _TOP),
    NanSearch: lambda found: nan_view(found, "the module", _device_count(found), _TOP, _command),
}
