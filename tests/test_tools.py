"""The row of each tool is complete, and what people read about all tools names it."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

import hloexec
from docs.hooks.readme import README, with_table
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


@pytest.mark.parametrize("name", TOOLS)
def test_the_page_that_its_row_names_is_there(name: str) -> None:
    guide = TOOLS[name].guide
    assert not guide or (ROOT / "docs" / f"{guide}.md").is_file()


def test_names_of_tools_are_of_packages_that_rows_name() -> None:
    packages = {tool.package for tool in TOOLS.values()} - {""}
    # What several tools take is none of them.
    shared = "hloexec.tools.counterparts."
    names = [f"{home}.{name}." for name, home in hloexec._HOMES.items() if f"{home}.".startswith("hloexec.tools.")]
    assert packages <= {name.removesuffix(".") for name in names}, "`hloexec` has each package, too"
    assert [name for name in names if not name.startswith((shared, *(f"{package}." for package in packages)))] == []


def test_the_readme_lists_all_in_the_order_of_the_help() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_table(text) == text, "`make format` lists the commands in README.md"
    assert re.findall(r"^\|[^|]*\| `(\w+)` \|", text, re.MULTILINE) == [
        tool.name for group in GROUPS for tool in TOOLS.values() if tool.group == group
    ]
