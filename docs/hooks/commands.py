"""The command reference: help texts and options, taken from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click
from prose import escaped

from hloexec.cli import _hloexec
from hloexec.cli.help import HelpGroup
from hloexec.tools.registration import TOOLS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

__all__ = ["completed", "on_config", "on_page_markdown"]

_CODE = re.compile(r"`([^`]+)`|(?<![\w-])(--?[a-z][\w=.*-]*\w)")


def on_config(config: MkDocsConfig) -> None:
    """Add the pages about tools to the guides, but for those that mkdocs.yml has a place for."""
    assert config.nav is not None
    (guides,) = (entry["Guides"] for entry in config.nav if "Guides" in entry)
    pages = dict.fromkeys(f"{tool.guide}.md" for tool in TOOLS.values() if tool.guide)
    guides += [page for page in pages if f"'{page}'" not in str(config.nav)]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Complete commands.md."""
    return completed(markdown) if page.file.src_uri == "commands.md" else markdown


def completed(markdown: str) -> str:
    """The introduction in commands.md with all commands below it."""
    context = click.Context(_hloexec, info_name="hloexec")
    return "\n\n".join([_with_lists(markdown), *_sections(_hloexec, context)])


def _with_lists(markdown: str) -> str:
    """The introduction, in which the names of commands stand for "most" and "many"."""
    without_json = _listed(tool.name for tool in TOOLS.values() if not tool.records)
    with_pages = _listed(name for name in TOOLS if "--html" in _options(name))
    for words, names in (("Most print", f"All but {without_json} print"), ("Many write", f"{with_pages} write")):
        assert words in markdown, words
        markdown = markdown.replace(words, names)
    return markdown


def _options(name: str) -> set[str]:
    command = _hloexec.get_command(click.Context(_hloexec), name)
    commands = [command, *getattr(command, "commands", {}).values()]
    return {option for entry in commands if entry for parameter in entry.params for option in parameter.opts}


def _listed(names: Iterable[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}"


def _sections(group: HelpGroup, context: click.Context) -> Iterator[str]:
    for heading, names in group.sections(context).items():
        if context.parent is None:
            yield f"## {heading}"
        for name in names:
            command = group.get_command(context, name)
            assert command is not None
            inner = click.Context(command, info_name=name, parent=context)
            yield _section(command, inner)
            if isinstance(command, HelpGroup):
                yield from _sections(command, inner)


def _section(command: click.Command, context: click.Context) -> str:
    title = context.command_path.removeprefix("hloexec ")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"### {title} {{ #{title.replace(' ', '-')} }}", f"```text\n{usage}\n```"]
    parts += _paragraphs(command.help or "")
    guide = TOOLS[title].guide if title in TOOLS else ""
    parts += [f"[More about `{title}`]({guide}.md)."] if guide else []
    records = [parameter.get_help_record(context) for parameter in command.params]
    parts += [f"`{names}`\n:   {_escaped(text)}" for names, text in filter(None, records) if text]
    parts += _paragraphs(command.epilog or "")
    return "\n\n".join(parts)


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text; those that click does not rewrap (after `\\b`) become code blocks."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield f"```text\n{paragraph[2:]}\n```"
        else:
            yield _escaped(" ".join(paragraph.split()))


def _escaped(text: str) -> str:
    """Prose in which options and text between backticks are code."""
    marked = _CODE.sub(lambda match: f"`{match[1] or match[2]}`", text)
    return escaped(marked)
