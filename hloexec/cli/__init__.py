"""The command line: `hloexec COMMAND FILE …`. One module per command, each a thin layer over a public function.

Commands are imported on first use. Every error is one block on standard error and, with --json, a record on standard
output.

The exit code is 0 on success, if everything compared agrees; 1 if a comparison found differences or a search found
something; 2 if the command line, a file that it names or a value in a file is invalid; 3 if a comparison found
differences only where the module leaves results open. A run that fails (an unknown library call, too little memory, a
deadlock) exits with 1, or with 2 in commands whose exit code 1 is a verdict, because they reached none. Ctrl-C exits
with 130, SIGTERM with 143, and a closed output pipe with 141, all without a traceback.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from typing import Any

import click

from hloexec.cli.help import HelpContext, HelpGroup
from hloexec.cli.problems import (
    Warnings,
    advice_for,
    discard_output,
    echo_error,
    kind_of,
    option,
    show_problem,
    wants_json,
)
from hloexec.core.version import __version__
from hloexec.core.wording import arguments_spelled
from hloexec.errors import HloError, HloWarning, InputError, ParseError, ShapeError, VerificationError
from hloexec.tools.registration import GROUPS, TOOLS, Tool

__all__ = ["main"]


_UNKNOWN = Tool("", "")
_FAULTS = (InputError, ParseError, ShapeError, VerificationError)
"""Errors about the input of a command, not about its run."""


class _ClosedPipeError(BaseException):
    """The output pipe was closed. Not a BrokenPipeError, which click reports as a failure."""


@contextmanager
def _translate_closed_pipes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise _ClosedPipeError from None


class _Commands(HelpGroup):
    """The commands, each in the module of its name."""

    context_class = HelpContext

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        with _translate_closed_pipes():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _translate_closed_pipes():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TOOLS)

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        return {title: [name for name, tool in TOOLS.items() if tool.group == group] for group, title in GROUPS.items()}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in TOOLS:
            return None
        command: click.Command = import_module(TOOLS[cmd_name].command).command
        for entry in (command, *getattr(command, "commands", {}).values()):
            entry.context_class = HelpContext
        return command


def _print_version(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        click.echo(f"hloexec {__version__}")
        ctx.exit()


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="FILE may be gzipped; - reads standard input. Exits with 0 on success, with 1 if something differs, was "
    "found, or failed to run, and with 2 if the input is invalid.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def _hloexec() -> None:
    """Run XLA HLO on NumPy.

    Runs any HLO text dump, from before or after optimization, for CPU, GPU or TPU.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    name = next((word for word in words if not word.startswith("-")), "")
    if arguments is None and TOOLS.get(name, _UNKNOWN).runs:
        from hloexec.cli.process import keep_freed_memory, restart_with_better_kernels

        restart_with_better_kernels()
        keep_freed_memory()
    if arguments is None and any(name.endswith("_SIZE") or name == "PMIX_RANK" for name in os.environ):
        from hloexec.cli.process import ending_all_ranks, is_for_all_ranks, is_worker

        if is_worker(words):
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                return _main(words, name, is_process=True)
        if is_for_all_ranks(words):
            with ending_all_ranks():
                from hloexec.cli.ranks import Ranks, carried_out

                ranks = Ranks()
            return carried_out(ranks, words, lambda: _main(words, name, is_process=True))
    return _main(words, name, is_process=arguments is None)


def _main(words: Sequence[str], name: str, *, is_process: bool) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("always", HloWarning)
        said = Warnings()
        said.words = words
        warnings.showwarning = said.show
        try:
            if is_process:
                _handle_signals()
                _encode_everything()
            if sys.stdout is None:
                raise OSError("standard output is closed")
            return _execute(words, name, said)
        except (_ClosedPipeError, BrokenPipeError):
            discard_output(sys.stdout)
            return 141
        except OSError as error:
            if error.filename is not None:
                raise
            discard_output(sys.stdout)
            show_problem("error", f"cannot write the output: {error.strerror or error}", "red")
            return 2


def _execute(arguments: Sequence[str], name: str, said: Warnings) -> int:
    """The exit code of a command; its errors are on standard error and, under --json, on standard output."""
    is_compared = any(word.partition("=")[0] == "--against" for word in arguments)
    said.has_verdict = is_compared or TOOLS.get(name, _UNKNOWN).has_verdict
    try:
        with _unwrapped_signals(), arguments_spelled(option):
            result = _hloexec.main(args=list(arguments), prog_name="hloexec", standalone_mode=False, obj=said)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        kind, message, code = "usage", error.format_message(), error.exit_code
    except HloError as error:
        kind, message = kind_of(error), advice_for(str(error), _commands_of(arguments))
        code = 2 if said.has_verdict or isinstance(error, _FAULTS) else 1
        show_problem("error", message, "red")
    except MemoryError:
        kind, message, code = "resource", "there is not enough memory", 2 if said.has_verdict else 1
        show_problem("error", message, "red")
    except (click.Abort, KeyboardInterrupt):
        kind, message, code = "interrupted", "interrupted", 130
        click.echo(message, err=True)
    if wants_json(arguments):
        echo_error(kind, message, said)
        sys.stdout.flush()
    return code


def _commands_of(arguments: Sequence[str]) -> list[click.Command]:
    """The command that a command line names, after the groups that it is in."""
    commands: list[click.Command] = [_hloexec]
    for word in arguments:
        group = commands[-1]
        if not isinstance(group, click.Group):
            break
        command = None if word.startswith("-") else group.get_command(click.Context(group), word)
        if command is not None:
            commands.append(command)
    return commands


@contextmanager
def _unwrapped_signals() -> Iterator[None]:
    """Python 3.11 wraps what a signal raises while a class is being made; let it through as it is."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, (KeyboardInterrupt, SystemExit)):
            raise error.__cause__ from None
        raise


def _handle_signals() -> None:
    """SIGTERM ends the process as Ctrl-C does, so that partially written files are removed.

    NumPy turns a Ctrl-C that interrupts its import into an ImportError, so it is imported while Ctrl-C still ends the
    process at once.
    """
    import numpy  # noqa: F401

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _encode_everything() -> None:
    """Bytes of file names that are no text are printed as they are, and `?` for what the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape" if "utf" in stream.encoding.lower() else "replace")
