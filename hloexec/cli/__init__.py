"""The command line: `hloexec COMMAND FILE …`. One file per command, each a thin layer over a public function.

Commands are imported when they are called. Whatever goes wrong comes out as one block on standard error: exit code 1
where the module (or a file) is at fault, 2 where the command line is, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from hloexec.errors import HloError, HloWarning

__all__ = ["main"]

_COMMANDS = ("run", "trace", "nan", "extract", "compare", "golden", "info", "plan", "memory", "fmt", "ops")
_RUNNING = ("run", "trace", "nan", "extract")
"""The commands that run modules, and should do so with the same matrix kernels."""


class _Commands(click.Group):
    """The commands, each in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"hloexec.cli.{cmd_name}").command
        return command


def _print_version(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        from importlib import metadata  # which is slow to import

        try:
            version = metadata.version("hloexec")
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        click.echo(f"hloexec {version}")
        ctx.exit()


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="FILE may be gzipped; - reads standard input.",
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

    Takes any HLO text dump, from before or after optimization, for CPU, GPU or TPU.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if arguments is None and sys.argv[1:2] and sys.argv[1] in _RUNNING:
        from hloexec.cli.kernels import start_over_with_better_kernels

        start_over_with_better_kernels()
    with warnings.catch_warnings():
        warnings.simplefilter("always", HloWarning)
        warnings.showwarning = _show_warning
        try:
            result = _hloexec.main(args=arguments, prog_name="hloexec", standalone_mode=False)
            sys.stdout.flush()
        except click.exceptions.Exit as stop:
            return stop.exit_code
        except click.UsageError as error:
            error.show()
            return 2
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except HloError as error:
            _show("error", str(error), "red")
            return 1
        except MemoryError:
            _show("error", "there is not enough memory", "red")
            return 1
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)
            return 130
        except BrokenPipeError:
            # Whoever read our output has gone; Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
    return result if isinstance(result, int) else 0


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, HloWarning):
        _show("warning", str(message), "yellow")


def _show(kind: str, message: str, color: str) -> None:
    """A block on standard error; what a file smuggles into it cannot steer the terminal."""
    printable = "".join(character if character.isprintable() or character == "\n" else "·" for character in message)
    click.echo(click.style(f"{kind}:", fg=color, bold=True) + " " + printable, err=True)
