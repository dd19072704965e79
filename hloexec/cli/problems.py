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

_ARGUMENTS = (
    "atol check_error computation contraction_length depth elided iteration max_iterations memory_limit numerics "
    "partitions replicas rtol seed timeout ulp unknown"
).split()
"""Arguments of functions that are options of the same names."""
_ARGUMENT = re.compile(rf"\b({'|'.join(_ARGUMENTS)})(?:=(?=[\w…])|(?= must (?:be|not)\b))")
_NEXT_VALUE = r"\[…\](\}?), values or a function that gives the next one"
_OTHERS = {
    r"(?:a function )?with hloexec\.register_custom_call(?:\(target, function\))?": (
        "with --custom-call TARGET=MODULE:FUNCTION"
    ),
    r"\(run_devices\)": "(--replicas, --partitions)",
    r"\breplace=True\b": "--force",
    r"\bgive its sharding\b": "give --result-sharding",
    r"\bas before (?=(?:a|the) module\b)": "as --before ",
    r"\bstatistics_only=True\b": "--stats-only",
    r"\bselect=(?=PATTERN)": "--select ",
    r"; give against(?= to compare)": "; give --against",
    r"\baround=(?=NAME)": "--around ",
    rf"\binfeed={_NEXT_VALUE}": "--infeed FILE.npz",
    rf"\bhost_transfers=\{{(\d+): {_NEXT_VALUE}": r"--recv \1=FILE.npz",
    r"\boutfeed=\[\]": "--outfeed FILE.npz",
    r"\bhost_transfers=\{(\d+): \[\]\}": r"--send \1=FILE.npz",
    r"\bhost_transfers names\b": "--recv or --send names",
    r"^selects(?= names)": "--selects",
    r"\bdims and keep ask\b": "--dim and --keep ask",
    r"^dims makes (\d+) larger, (\d+);": r"--dim \1=\2 makes a size larger;",
    r"^(a size in|what) dims\b": r"\1 --dim",
    r"^a size in keep\b": "a size in --keep",
    r"\(keep, --keep\)": "(--keep)",
    r"^devices (?=is \d)": "--devices ",
    r"^(the size of an axis in )?devices(?= must be)": r"\1--devices",
    r"^selects\['([^']*)'\]": r"--selects \1",
    r"^(carry|margin|samples|tolerance)(?= (?:names|hands|must|says)\b)": r"--\1",
    r"^output_tolerances(?= (?:names|has)\b)": "--output-tolerance",
    r"\bonly_outputs(?= names\b)": "--only-output",
    r"^each of types(?= must\b)": "--type",
    r"^command(?= (?:is empty|names|'|\\\"))": "--check",
    r"; outcome says what": "; --outcome says what",
    r"^says is\b": "--says is",
    r", but nan is about\b": ", but --nan is about",
    r"; give steps, too$": "; give --steps, too",
    r"; carry says which": "; --carry says which",
}
"""What messages say of other arguments and functions, as patterns, and what options say instead."""
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?!\w)")
_COMMAND = re.compile(r"\bhloexec [a-z]")
_CLAUSE = re.compile(
    r"(?P<delimiter> \(|; |, |^|(?<=\. ))(?P<clause>[^;,()\n]*?--[^;,()\n]*)(?P<end>\))?", re.MULTILINE
)
"""What gives advice: in parentheses, after a semicolon or a comma, or at the beginning of a sentence."""
_PLACE = re.compile(r"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): ", re.MULTILINE)


def as_options(message: str, at_hand: Sequence[click.Command] = ()) -> str:
    """What errors say about arguments of functions, as options of the command line. Of options that the command `at
    hand` lacks, which comes last, after the groups that it is in, advice does not speak."""
    for pattern, text in _OTHERS.items():
        message = re.sub(pattern, text, message)
    message = _ARGUMENT.sub(lambda found: f"--{found[1].replace('_', '-')}{' ' * found[0].endswith('=')}", message)
    return _of_command(message, at_hand) if at_hand else message


def commands_at_hand() -> list[click.Command]:
    """The command that runs, after the groups that it is in."""
    context = click.get_current_context(silent=True)
    found: list[click.Command] = []
    while context is not None:
        found.insert(0, context.command)
        context = context.parent
    return found


def _of_command(message: str, at_hand: Sequence[click.Command]) -> str:
    """A message without advice that the last of these commands cannot follow."""
    root, command = at_hand[0], at_hand[-1]
    own = _options_of(command)

    def lacking(text: str) -> set[str]:
        return set() if _COMMAND.search(text) else set(_OPTION.findall(text)) - own

    def advice(found: re.Match[str]) -> str:
        options, delimiter, end = lacking(found["clause"]), found["delimiter"], found["end"] or ""
        if not options:
            return found[0]
        if delimiter == " (" and end:
            return ""
        if delimiter == ", ":
            return end
        names = " ".join(str(each.name) for each in at_hand[1:])
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
        found = root.get_command(context, name)
        if found is not None and options <= _options_of(found):
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
        text = as_options(str(message), commands_at_hand())
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
    place = _PLACE.search(message)
    details = {
        "kind": kind,
        "message": message,
        "file": place and place["file"],
        "line": place and int(place["line"]),
        "column": place and int(place["column"]),
    }
    echo_json("error", {"error": details}, warnings)


def kind_of(error: HloError) -> str:
    """What kind of error it is: the name of its class, without `Error`."""
    return type(error).__name__.removesuffix("Error").lower()
