"""How help texts stand on the screen: as wide as the terminal, with examples of each command at the end."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import click

from hloexec.wording import quoted, suggestion

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
    """A group whose help has the first sentence on each command, uncut, and which suggests one for a mistyped name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {quoted(args[0])}{suggestion(args[0], self.list_commands(ctx), 3)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        commands = [command for name in names if (command := self.get_command(ctx, name)) is not None]
        with formatter.section("Commands"):
            formatter.write_dl([(str(each.name), each.get_short_help_str(_ANY_LENGTH)) for each in commands])


class HelpContext(click.Context):
    """A context whose help fits terminals that are narrower than 50 columns, too, as click's does not."""

    formatter_class = _HelpFormatter
