"""The Python reference: the names of tools on the pages of their groups, and on the index the names of each page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

import hloexec
from hloexec.cli import _hloexec
from hloexec.tools.registration import TOOLS, Tool

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

__all__ = ["completed", "on_page_markdown", "shown_names"]

_ROW = re.compile(r"^(\| \[[^]]+\]\((\w+\.md)\) \| .+) \|$", re.MULTILINE)
_SHOWN = re.compile(r"^::: hloexec\.(\w+)$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Complete a page of api/, and add links to the documented names to the rows of api/index.md."""
    folder, _, name = page.file.src_uri.partition("/")
    if folder != "api":
        return markdown

    def with_names(row: re.Match[str]) -> str:
        file = files.get_file_from_path(f"api/{row[2]}")
        assert file is not None, row[2]
        names = shown_names(row[2], file.content_string)
        return f"{row[1]}<br>{' · '.join(f'[`{name}`]({row[2]}#hloexec.{name})' for name in names)} |"

    return _ROW.sub(with_names, markdown) if name == "index.md" else completed(name, markdown)


def shown_names(name: str, markdown: str) -> list[str]:
    """The public names that a page of api/ documents."""
    return _SHOWN.findall(completed(name, markdown))


def completed(name: str, markdown: str) -> str:
    """A page of api/ with all tools of its group below its own text, or, of packages.md, with all their packages."""
    if name == "packages.md":
        packages = [tool.package for tool in TOOLS.values() if tool.package]
        return "\n\n".join([markdown, *(f"::: hloexec.{package.rpartition('.')[2]}" for package in packages)])
    tools = [tool for tool in TOOLS.values() if f"{tool.group}.md" == name]
    return "\n\n".join([markdown, *(part for tool in tools for part in _section(tool))])


def _section(tool: Tool) -> Iterator[str]:
    """What a page has of a tool: nothing where its names are no package's own."""
    homes = {name: home for name, home in hloexec._HOMES.items() if f"{home}.".startswith(f"{tool.package}.")}
    homes |= {last: home for home, _, last in (name.rpartition(".") for name in tool.names)}
    if not homes:
        return
    command = _hloexec.get_command(click.Context(_hloexec), tool.name)
    assert command is not None
    yield f"## {tool.name} {{ #{tool.name} }}"
    yield f"As [`hloexec {tool.name}`](../commands.md#{tool.name}): {command.get_short_help_str(1000)}"
    for name in sorted(homes, key=lambda name: not name.islower()):
        yield f"::: hloexec.{name}\n    options:\n      heading_level: 3"
