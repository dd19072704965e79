"""How help texts stand on the screen: as wide as the terminal, with examples of each command at the end."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import click

__all__ = ["HelpContext", "HelpGroup", "examples"]

_MOST_COLUMNS, _FEWEST_COLUMNS = 80, 24
_ANY_LENGTH = 1000
_NARROW = 60
"""Where there are fewer columns, what an option means stands below its name, not beside it."""


def examples(*commands: str) -> str:
    """The end of a command's help: commands that one may type, each as it stands; they are run by tests."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for command in commands for line in command.split("\n"))])


class _HelpFormatter(click.HelpFormatter):
    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        columns = shutil.get_terminal_size().columns if width is None else width
        super().__init__(indent_increment, max(_FEWEST_COLUMNS, min(columns, max_width or _MOST_COLUMNS)) - 2)

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl(rows, col_max if self.width >= _NARROW - 2 else 4, col_spacing)


class HelpGroup(click.Group):
    """A group whose help has the first sentence on each command, uncut."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        commands = [command for name in names if (command := self.get_command(ctx, name)) is not None]
        with formatter.section("Commands"):
            formatter.write_dl([(str(each.name), each.get_short_help_str(_ANY_LENGTH)) for each in commands])


class HelpContext(click.Context):
    """A context whose help fits terminals that are narrower than 50 columns, too, as click's does not."""

    formatter_class = _HelpFormatter
