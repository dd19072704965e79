"""`hloexec step`: a debugger for runs."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from hloexec.cli.help import examples
from hloexec.cli.inputs.loading import prepared
from hloexec.cli.options import ByteCount, echo_json, file_argument, json_option
from hloexec.cli.run_options import Given, run_options

if TYPE_CHECKING:
    from hloexec.cli.stepping.shell import Shell


@click.command(
    "step",
    epilog=examples(
        "hloexec step module.hlo -x 'break opcode:dot' \\\n  -x run -x operands",
        "hloexec step module.hlo --post-mortem -x where",
    ),
)
@file_argument
@click.option(
    "-x",
    "--command",
    "commands",
    metavar="COMMAND",
    multiple=True,
    help="Carry out a command, as if it had been typed. May be repeated; they come before those of --script.",
)
@click.option("--script", metavar="FILE", help="Carry out the commands of a file, one a line; # begins a comment.")
@click.option("--interactive", is_flag=True, help="Go on in the terminal after the commands of -x and --script.")
@click.option("--post-mortem", is_flag=True, help="Run at once, and stop only where the run fails, or --nan says.")
@click.option("--nan", is_flag=True, help="Stop at NaN: breakpoint 1 is `if any nan`.")
@click.option("--check", is_flag=True, help="Check the type and shape of every result; one that is wrong is a failure.")
@click.option(
    "--keep",
    type=ByteCount(),
    default="1G",
    show_default=True,
    help="Keep so many bytes of values to be looked at; the oldest go first.",
)
@run_options
@json_option
def command(
    file: str,
    commands: tuple[str, ...],
    script: str | None,
    interactive: bool,
    post_mortem: bool,
    nan: bool,
    check: bool,
    keep: int,
    as_json: bool,
    given: Given,
) -> int:
    """Run a module step by step: stop at instructions, look at values, and replace them.

    Stops after an instruction, when its value is known; `help` lists the commands. Without -x and --script, they are
    read from the terminal, or from standard input if that is none. Exits with 0, with 1 if the run has failed, and with
    2 if a command is wrong.
    """
    from hloexec.cli.stepping.shell import Line, Shell, lines_of_file, lines_of_input, run_lines
    from hloexec.tools.stepping import step

    is_scripted = bool(commands) or script is not None
    if file == "-" and (interactive or not is_scripted):
        raise click.UsageError("standard input has the module, so give the commands with --script or -x")
    if interactive and not sys.stdin.isatty():
        raise click.UsageError("--interactive needs a terminal; standard input is none")
    if as_json and (interactive or not (is_scripted or post_mortem)):
        raise click.UsageError("--json is for commands that are not typed; give them with --script or -x")
    lines = [Line(text, f"-x {text!r}") for text in commands]
    lines += [] if script is None else lines_of_file(script)
    run = prepared(file, given)
    with step(run.module, run.inputs, keep=keep, **run.options, check=check) as stepper:
        printed: list[str] = []
        shell = Shell(stepper, printed.append if as_json else click.echo)
        if nan:
            stepper.break_at(condition="any nan")
        if post_mortem:
            with _Interruptible(shell):
                shell.execute("run")
        if not (post_mortem and stepper.has_ended):
            is_typed = not is_scripted and sys.stdin.isatty()
            has_quit = not is_typed and run_lines(shell, lines if is_scripted else lines_of_input())
            if not has_quit and (is_typed or interactive):
                _talk(shell)
            elif not has_quit and stepper.stop is not None and not shell.has_failed:
                shell.echo(f"no more commands; the run is left after %{stepper.stop.instruction.name}")
        if as_json:
            from hloexec.report.running.stepping import Stepping

            stepping = Stepping(tuple(shell.stops), stepper.results is not None, stepper.has_failed, tuple(printed))
            echo_json("stepping", run.facts(), stepping)
    return int(shell.has_failed)


def _talk(shell: Shell) -> None:
    """Read commands from the terminal until one of them is to quit."""
    with suppress(ImportError):
        import readline

        # Names have dots, dashes and percent signs.
        readline.set_completer_delims(" \t\n[{")
    while True:
        try:
            with _Interruptible(shell):
                shell.cmdloop()
        except KeyboardInterrupt:
            # At the prompt, it takes back what has been typed.
            click.echo()
            continue
        return


class _Interruptible:
    """Ctrl-C stops a run that is under way, as a breakpoint does."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, self._stop)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _stop(self, number: int, frame: object) -> None:
        if not self._shell.is_going:
            raise KeyboardInterrupt
        self._shell.stepper.interrupt()
