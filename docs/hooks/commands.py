"""The command reference: help texts and options, taken from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from prose import escaped

from hloexec.cli import _hloexec
from hloexec.cli.help import HelpGroup

__all__ = ["on_page_markdown"]

_CODE = re.compile(r"`([^`]+)`|(?<![\w-])(--?[a-z][\w=.*-]*\w)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Append the commands to the introduction in commands.md."""
    if page.file.src_uri != "commands.md":
        return markdown
    context = click.Context(_hloexec, info_name="hloexec")
    return "\n\n".join([markdown, *_sections(_hloexec, context)])


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
