"""How help texts stand on the screen: as wide as the terminal, with examples of each command at the end."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Sequence

import click

from hloexec.core.wording import quoted, suggestion

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
    """A group whose help has the first sentence on each command, uncut, and which suggests one for a mistyped name. Its
    commands take each option once."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {quoted(args[0])}{suggestion(args[0], self.list_commands(ctx), 3)}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group):
            require_once(command, HelpContext(command, parent=ctx, info_name=name), rest)
        return name, command, rest

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        """The names of the commands, by the titles under which they are listed."""
        return {"Commands": self.list_commands(ctx)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.sections(ctx).items():
            commands = [command for name in names if (command := self.get_command(ctx, name)) is not None]
            with formatter.section(title):
                formatter.write_dl(
                    [(str(subcommand.name), subcommand.get_short_help_str(_ANY_LENGTH)) for subcommand in commands]
                )


def require_once(command: click.Command, ctx: click.Context, arguments: Sequence[str]) -> None:
    """Raise click.UsageError where an option that has one value is given several, of which click takes the last."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    listed = [copy.copy(parameter) for parameter in options]
    for parameter in listed:
        parameter.multiple = True
    others = [parameter for parameter in command.params if not isinstance(parameter, click.Option)]
    try:
        parsed_values, _, _ = (
            click.Command(command.name, params=[*listed, *others]).make_parser(ctx).parse_args(list(arguments))
        )
    except click.UsageError:
        return  # which the command itself says better
    for option in options:
        values = parsed_values.get(str(option.name), [])
        if not option.multiple and any(value != values[0] for value in values):
            if option.secondary_opts:
                message = f"{option.opts[-1]} and {option.secondary_opts[-1]} cannot be combined"
            else:
                message = f"{option.opts[-1]} is given twice, as {' and '.join(dict.fromkeys(map(str, values)))}"
            raise click.UsageError(message, ctx)


class HelpContext(click.Context):
    """A context whose help fits terminals that are narrower than 50 columns, too, as click's does not."""

    formatter_class = _HelpFormatter
