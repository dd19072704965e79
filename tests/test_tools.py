"""The row of each tool is complete, and what people read about all tools names it."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from hloexec.cli import _hloexec
from hloexec.core.values import Described
from hloexec.report.json.schemas import classes_of
from hloexec.report.registry import report_of
from hloexec.tools.registration import GROUPS, TOOLS, Tool

ROOT = Path(__file__).resolve().parents[1]


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _options(inner, context)


def _options_of(tool: Tool) -> set[str]:
    context = click.Context(_hloexec)
    command = _hloexec.get_command(context, tool.name)
    assert command is not None
    return {*_options(command, context)}


@pytest.mark.parametrize("name", TOOLS)
def test_its_row_names_what_there_is(name: str) -> None:
    tool = TOOLS[name]
    assert tool.group in GROUPS
    options = _options_of(tool)
    assert bool(tool.records) == ("--json" in options)
    for record in tool.records:
        assert classes_of(record), record
    if not tool.results:
        assert not tool.report and ("--html" not in options or name == "run"), "a page shows a class of `results`"
        return
    reports = import_module(tool.report).REPORTS
    assert {cls.__name__ for cls in reports} == {place.rpartition(".")[2] for place in tool.results}
    for cls, report in reports.items():
        assert report_of(object.__new__(cls)) is report, f"`results` of the row has {cls.__name__} in another module"
        assert issubclass(cls, Described), "notebooks show what is Described"


def test_the_readme_has_a_row_for_each_in_the_order_of_the_help() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The commands")[2].partition("\n\nEvery")[0]
    assert re.findall(r"^\|[^|]*\| `(\w+)` \|", section, re.MULTILINE) == [
        tool.name for group in GROUPS for tool in TOOLS.values() if tool.group == group
    ]


def test_the_page_on_html_names_each_command_that_writes_a_page() -> None:
    text = (ROOT / "docs" / "html.md").read_text(encoding="utf-8")
    listed = re.search(r"((?:`\w+`(?:,| and)\s)+`\w+`) have it\.", text)
    assert listed is not None
    assert {*re.findall(r"`(\w+)`", listed[1])} == {
        name for name, tool in TOOLS.items() if "--html" in _options_of(tool)
    }
