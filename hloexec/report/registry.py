"""How results are shown: what a tool's own module of reports says of the classes of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import RenderableType

from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.tools.registration import TOOLS

if TYPE_CHECKING:
    from hloexec.report.html.content import Figure
    from hloexec.tools.watching.recording import Ranked, Watched

Linker: TypeAlias = Callable[[str], str | None]
"""What gives the link to an instruction on a page, by its name or its path; None where there is none."""
Figures: TypeAlias = "Iterator[Figure | None]"


@frozen(eq=False)
class Report:
    """How the results of a class are shown. Functions take the result first."""

    view: Callable[[Any, int, Callable[..., str]], RenderableType]
    """What the terminal shows: so many rows of each table, and commands to go on with, which the last one writes."""
    figures: Callable[[Any, Linker], Figures] = lambda *_: iter(())
    """Plots of what the result itself holds."""
    ranking: Callable[[Any, Module], Iterator[Ranked]] = lambda *_: iter(())
    """The instructions of the module that it singles out, the foremost first: those that pages have details of."""
    module: Callable[[Any], Module | None] = lambda _: None
    """The module that it is about, if it has it."""
    values: Callable[[Any], Watched] | None = None
    """What the result itself says of all instructions."""
    watch: str = ""
    """Else, the function that says it after another run, by its name (`tools.watching`)."""


def report_of(result: object) -> Report | None:
    """How a result is shown; None where there is nothing to show of its class."""
    cls = type(result)
    for tool in TOOLS.values():
        for name in tool.results:
            package, _, last = name.rpartition(".")
            if last == cls.__name__ and f"{cls.__module__}.".startswith(f"{package}."):
                reports: dict[type, Report] = import_module(tool.report).REPORTS
                return reports.get(cls)
    return None


def module_of(result: object) -> Module | None:
    """The module that a result is about, if it has it."""
    report = report_of(result)
    return None if report is None else report.module(result)


def ranked(result: object, module: Module | None, most: int) -> list[Ranked]:
    """At most so many instructions of the module that a result singles out, each once."""
    report = report_of(result)
    if report is None or module is None:
        return []
    entries: dict[tuple[str, str], Ranked] = {}
    for entry in report.ranking(result, module):
        computation = module.by_name.get(entry.key[0])
        if computation is not None and entry.key[1] in computation.by_name:
            entries.setdefault(entry.key, entry)
    return list(entries.values())[:most]
