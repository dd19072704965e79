"""What goes wrong, for people on standard error, and for programs as a record on standard output."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

import click

from hloexec.cli.options import echo_json
from hloexec.errors import HloError, HloWarning, printable

_OPTIONS = {
    **dict.fromkeys(
        "atol carry check_error command computation contraction_length depth devices elided executor iteration jobs "
        "keep margin max_iterations memory memory_limit module_timeout nan network numerics output partitions ranks "
        "replicas rtol says seed shard shared steps timeout tolerance ulp unknown against before around outcome select "
        "selects versions".split()
    ),
    "command": "--check",
    "dims": "--dim",
    "host_transfers": "--recv or --send",
    "hloexec.register_custom_call": "--custom-call TARGET=MODULE:FUNCTION",
    "infeed": "--infeed FILE.npz",
    "names": "--outputs",
    "only_outputs": "--only-output",
    "outfeed": "--outfeed FILE.npz",
    "output_tolerances": "--output-tolerance",
    "recv": "--recv {}=FILE.npz",
    "replace": "--force",
    "run_devices": "--replicas, --partitions",
    "send": "--send {}=FILE.npz",
    "sharding": "--result-sharding",
    "statistics_only": "--stats-only",
    "types": "--type",
}
"""The options that stand for arguments of functions; None for those of the same name."""
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?!\w)")
_COMMAND = re.compile(r"\bhloexec [a-z]")
_CLAUSE = re.compile(
    r"(?P<delimiter> \(|; |, |^|(?<=\. ))(?P<clause>[^;,()\n]*?--[^;,()\n]*)(?P<end>\))?", re.MULTILINE
)
"""What gives advice: in parentheses, after a semicolon or a comma, or at the beginning of a sentence."""
_PLACE = re.compile(r"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): ", re.MULTILINE)


def option(name: str, value: object, text: str | None) -> str:
    """An argument of a function as an option: `--seed`, `--seed 3`; what is no argument with an option, as it is."""
    if name not in _OPTIONS:
        return text or name
    template = _OPTIONS[name] or f"--{name.replace('_', '-')}"
    takes_none = value is None or value is True or " " in template
    return template.format(value) if takes_none else f"{template} {value}"


def commands_at_hand() -> list[click.Command]:
    """The command that runs, after the groups that it is in."""
    context = click.get_current_context(silent=True)
    commands: list[click.Command] = []
    while context is not None:
        commands.insert(0, context.command)
        context = context.parent
    return commands


def advice_for(message: str, at_hand: Sequence[click.Command]) -> str:
    """A message without advice that the command at hand cannot follow, which comes last, after its groups."""
    if not at_hand:
        return message
    root, command = at_hand[0], at_hand[-1]
    own = _options_of(command)

    def lacking(text: str) -> set[str]:
        return set() if _COMMAND.search(text) else set(_OPTION.findall(text)) - own

    def advice(match: re.Match[str]) -> str:
        options, delimiter, end = lacking(match["clause"]), match["delimiter"], match["end"] or ""
        if not options:
            return match[0]
        if delimiter == " (" and end:
            return ""
        if delimiter == ", ":
            return end
        names = " ".join(str(group.name) for group in at_hand[1:])
        other = _command_with(options, root)
        said = f"hloexec {names} has no option for that" + (f", but hloexec {other} has" if other else "")
        return f"{delimiter}{said}{end}"

    return _CLAUSE.sub(advice, message)


def _options_of(command: click.Command) -> set[str]:
    return {"--help", *(option for parameter in command.params for option in parameter.opts)}


def _command_with(options: set[str], root: click.Command) -> str | None:
    """The first command that has options."""
    if not isinstance(root, click.Group):
        return None
    context = click.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if command is not None and options <= _options_of(command):
            return name
    return None


class Warnings(list[str]):
    """Shows hloexec's warnings, and keeps them for the record that a command prints."""

    words: Sequence[str] = ()
    """The words of the command line."""
    has_verdict = False
    """Whether exit code 1 is a verdict of the command that runs, though it need not be one."""

    def show(self, message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        """Takes the place of `warnings.showwarning`; what several runs warn of is said once."""
        text = advice_for(str(message), commands_at_hand())
        if issubclass(category, HloWarning) and text not in self:
            self.append(text)
            show_problem("warning", text, "yellow")


def show_problem(label: str, message: str, color: str) -> None:
    """A block on standard error."""
    try:
        click.echo(click.style(f"{label}:", fg=color, bold=True) + " " + printable(message), err=True)
    except OSError:
        discard_output(sys.stderr)


def discard_output(stream: TextIO | None) -> None:
    """Discard what a stream still gets, and holds, so that Python does not report an error again when it flushes at
    exit."""
    if stream is not None:
        with suppress(OSError, ValueError):  # a stream that a caller put there may have no file below
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, be the rest of it right or wrong."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def echo_error(kind: str, message: str, warnings: Sequence[str]) -> None:
    """Print an error as JSON, with the first place that a line of the message begins with."""
    from hloexec.report.json.printed import Error, ErrorDetails

    place = _PLACE.search(message)
    line, column = (int(place[name]) if place else None for name in ("line", "column"))
    echo_json("error", Error(ErrorDetails(kind, message, place and place["file"], line, column)), warnings=warnings)


def kind_of(error: HloError) -> str:
    """What kind of error it is: the name of its class, without `Error`."""
    return type(error).__name__.removesuffix("Error").lower()
