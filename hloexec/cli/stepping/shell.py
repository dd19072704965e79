"""The debugger's commands, from a terminal, a script or the command line.

Commands that are not typed: of a script, of the command line, or piped to standard input. Each is printed behind the
prompt before what it prints, as it would stand in a terminal. One that is wrong ends the script with an error that
names its line.

The shell is Python's `cmd.Cmd`. What a command does is a method of `hloexec.stepping.Stepper`; here its words are read,
and what it found is printed.

The words behind a command of the debugger: numbers, names of values, and what is set.
"""

from __future__ import annotations

import cmd
import sys
from collections.abc import Callable, Iterable, Iterator

import click
import numpy as np

from hloexec.cli.problems import advice_for, commands_at_hand
from hloexec.core.files import opened
from hloexec.core.ir import ArrayShape, Instruction
from hloexec.core.structs import frozen
from hloexec.core.values import Value
from hloexec.core.wording import braced, counted, natural_number, quoted, suggestion
from hloexec.errors import HloError, InputError, os_errors_named, printable
from hloexec.language import literals
from hloexec.language.origins import hlo_line
from hloexec.report.running.stepping import level_line, listing, statistics_lines, stop_lines, value_lines
from hloexec.tools.stepping.breakpoints import parsed
from hloexec.tools.stepping.conditions import expression, value_of_text
from hloexec.tools.stepping.controlling import Level, Stop
from hloexec.tools.stepping.stepper import Stepper, found_instruction


@frozen
class Line:
    """A command and where it is from."""

    text: str
    place: str


def lines_of_file(path: str) -> list[Line]:
    """The lines of a script; InputError where it cannot be read."""
    with os_errors_named(f"read the script {path!r}"), opened(path, from_shell=True) as file:
        try:
            return _numbered(path, file.read().decode("utf-8-sig").splitlines())
        except UnicodeDecodeError as error:
            raise InputError(f"the script {path!r} is not text in UTF-8") from error


def lines_of_input() -> list[Line]:
    """The lines of standard input, which is no terminal."""
    return _numbered("<stdin>", sys.stdin.read().removeprefix("\ufeff").splitlines())


def _numbered(name: str, lines: Iterable[str]) -> list[Line]:
    return [Line(text, f"{name}:{number}") for number, text in enumerate(lines, 1)]


def run_lines(shell: Shell, lines: Iterable[Line]) -> bool:
    """Carry out commands; returns whether one was to quit. InputError, with its place, for one that is wrong."""
    for line in lines:
        text = line.text.strip()
        if not text or text.startswith("#"):
            continue
        shell.echo(printable(f"{PROMPT}{text}"))
        try:
            if shell.execute(text):
                return True
        except HloError as error:
            if shell.has_failed:
                raise
            raise type(error)(f"{line.place}: {error}") from error
    return False


def require_nothing(name: str, rest: str) -> None:
    """InputError where a command that takes nothing is given something."""
    if rest:
        raise InputError(f"{name} takes nothing more, but was given {quoted(rest)}")


def number_of(complaint: str, text: str) -> int:
    """A natural number; InputError with the complaint for any other text."""
    number = natural_number(text)
    if number is None:
        raise InputError(complaint)
    return number


def count_of(name: str, rest: str) -> int:
    """How often a command is to be done, at least once; once if nothing says so."""
    number = 1 if not rest else number_of(f"{name} takes a number, not {quoted(rest)}", rest)
    if not number:
        raise InputError(f"{name} takes a number from 1, not 0")
    return number


def split_expression(text: str, complaint: str) -> tuple[str, str]:
    """The expression at the start of a text, which may have blanks in brackets, and the rest; else InputError."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "[{") - (character in "]}")
        if character == " " and depth <= 0:
            return text[:position], text[position:].strip()
    raise InputError(complaint)


def scalar_of_text(text: str, shape: object, subject: str) -> Value:
    """A number for one element of an array of a shape; InputError where the shape is none, or the text no number."""
    if not isinstance(shape, ArrayShape):
        raise InputError(f"{subject} is no array")
    return value_of_text(text, ArrayShape(shape.element_type, ()), subject)


PROMPT = "(hlo) "
_SHORT = {
    "r": "run",
    "c": "run",
    "continue": "run",
    "s": "step",
    "n": "next",
    "finish": "out",
    "o": "out",
    "b": "break",
    "w": "where",
    "bt": "where",
    "backtrace": "where",
    "p": "print",
    "l": "list",
    "u": "up",
    "d": "down",
    "q": "quit",
    "exit": "quit",
    "h": "help",
    "?": "help",
}
"""Other names of commands."""
_AROUND = 5
_MOST_LINES = 1000


class Shell(cmd.Cmd):
    """The commands, and the computation that they look at."""

    prompt = PROMPT

    def __init__(self, stepper: Stepper, echo: Callable[[str], None] = click.echo) -> None:
        super().__init__()
        self.stepper = stepper
        self.echo = echo
        """Prints a line."""
        self.stops: list[Stop] = []
        """Where the run has stopped so far."""
        self._level = 0
        """Which of the computations that the run is in is looked at; 0: the innermost."""
        self._device: int | None = None
        """The device whose values are shown; None: the first of those that the run stands still for."""
        self.has_failed = False
        """Whether the run, where it stands or has ended, has failed."""
        self.is_going = False
        """Whether the run is under way."""

    # Reading commands

    def execute(self, line: str) -> bool:
        """Carry out one command; returns whether it was the last. InputError where it is none, or cannot be done."""
        words = line.strip()
        if not words or words.startswith("#"):
            return False
        name, _, rest = words.partition(" ")
        return bool(self._command(name)(rest.strip()))

    def _command(self, name: str) -> Callable[[str], bool | None]:
        full = _SHORT.get(name, name)
        starting = [command for command in self.names() if command.startswith(full)]
        if full not in starting and len(starting) != 1:
            if starting:
                raise InputError(f"{quoted(name)} may mean {' or '.join(starting)}")
            hint = suggestion(name, self.names(), text=repr) or f"; there are {', '.join(self.names())}"
            raise InputError(f"there is no command {quoted(name)}{hint}")
        method: Callable[[str], bool | None] = getattr(self, f"do_{full if full in starting else starting[0]}")
        return method

    @classmethod
    def names(cls) -> list[str]:
        """The commands, in the order of the help."""
        return [name.removeprefix("do_") for name in vars(cls) if name.startswith("do_")]

    # What cmd.Cmd asks for

    def onecmd(self, line: str) -> bool:
        """Carry out a line that was typed; errors are printed."""
        if line == "EOF":
            self._say([""])
            return True
        try:
            return self.execute(line)
        except HloError as error:
            self._say([f"error: {error}"])
            return False

    def completenames(self, text: str, *ignored: object) -> list[str]:
        return [name for name in self.names() if name.startswith(text)]

    def completedefault(self, text: str, *ignored: object) -> list[str]:
        """The instructions whose names begin with a text."""
        levels = self.stepper.levels
        computations = [levels[self._level].computation] if levels else list(self.stepper.module)
        wanted = text.removeprefix("%")
        return sorted(
            {instruction.name for home in computations for instruction in home if instruction.name.startswith(wanted)}
        )

    # Going on

    def do_run(self, rest: str) -> None:
        """run, continue: go on to the next breakpoint, failure or the end."""
        require_nothing("run", rest)
        self._go(self.stepper.continue_)

    def do_step(self, rest: str) -> None:
        """step [N]: go on for one instruction, or N; into calls, fusions, loops and branches."""
        count = count_of("step", rest)
        self._go(lambda: self.stepper.step(count))

    def do_next(self, rest: str) -> None:
        """next [N]: the same, over what instructions of this computation call."""
        count = count_of("next", rest)
        self._go(lambda: self.stepper.next(count))

    def do_out(self, rest: str) -> None:
        """out, finish: go on until this computation has ended, and the instruction that called it."""
        require_nothing("out", rest)
        self._go(self.stepper.out)

    def do_restart(self, rest: str) -> None:
        """restart: begin again, with the same breakpoints."""
        require_nothing("restart", rest)
        self.stepper.restart()
        self._level, self.has_failed = 0, False
        self._say(["the run begins again; `run` starts it"])

    def _go(self, go_on: Callable[[], Stop | None]) -> None:
        self._level, self.is_going = 0, True
        try:
            stop = go_on()
        except HloError as error:
            if not self.stepper.has_ended or self.stepper.results is not None:
                raise
            self.has_failed = True
            if not self.stepper.levels:
                raise
            self._say([f"the run has failed: {error}"])
            return
        finally:
            self.is_going = False
        if stop is None:
            self._say(["the run has ended"])
            self._say(f"  {line}" for line in self._result_lines())
            return
        self.stops.append(stop)
        self.has_failed = stop.error is not None
        self._say(stop_lines(stop, self.stepper.module, self.stepper.device_count))

    def _result_lines(self) -> Iterator[str]:
        from hloexec.cli.running import labelled_values

        def label(index: tuple[int, ...]) -> str:
            return f"result{braced(index)}" if index else "result"

        for name, _, value in labelled_values(self.stepper.results or [], label):
            yield from statistics_lines(name, value)

    # Breakpoints

    def do_break(self, rest: str) -> None:
        """break [WHERE] [iteration N] [device N] [if CONDITION]: stop there; WHERE is a pattern or FILE:LINE.

        A pattern is an instruction's name, opcode or op_name, with * and ?; `name:`, `opcode:`, `op_name:` or `path:`
        says which. A condition is of the value: any nan, inf, all zero, any > 1e4, max >= 3, mean < 0, [0, 2] == 1,
        with and, or, not and parentheses. Without arguments: list the breakpoints.
        """
        if not rest:
            self.do_breakpoints("")
            return
        added = self.stepper.break_at(**parsed(rest))
        count = "" if added.instructions is None else f", {counted(len(added.instructions), 'instruction')}"
        self._say([f"breakpoint {added.number}: {added}{count}"])

    def do_watch(self, rest: str) -> None:
        """watch NAME: stop where an instruction gives another value than the last time that it ran."""
        if not rest:
            raise InputError("watch takes an instruction's name")
        added = self.stepper.watch(rest)
        self._say([f"watch {added.number}: {added}"])

    def do_breakpoints(self, rest: str) -> None:
        """breakpoints: list breakpoints and watches, and how often the run has stopped at each."""
        require_nothing("breakpoints", rest)
        entries = self.stepper.breakpoints
        self._say(
            f"{entry.number}  {'watch ' if entry.is_watch else ''}{entry}  {counted(entry.hits, 'stop')}"
            for entry in entries
        )
        if not entries:
            self._say(["there are no breakpoints"])

    def do_delete(self, rest: str) -> None:
        """delete [N …]: delete breakpoints by number; all of them without one."""
        numbers = [number_of(f"delete takes numbers of breakpoints, not {quoted(word)}", word) for word in rest.split()]
        if not numbers:
            self.stepper.delete()
        for number in numbers:
            self.stepper.delete(number)

    # Values

    def do_print(self, rest: str) -> None:
        """print [NAME[{INDEX}][[SLICES]]]: the elements of a value, as in print dot.3[0, 2:5] or print tuple.1{0}."""
        text = rest or self._here().instruction.name
        self._say(value_lines(f"%{text.removeprefix('%')}", self._evaluated(text)))

    def do_stats(self, rest: str) -> None:
        """stats [NAME …]: shape, range, mean, deviation, NaN, infinities and hash of values."""
        for name in rest.split() or [self._here().instruction.name]:
            self._say(statistics_lines(f"%{name.removeprefix('%')}", self._evaluated(name)))

    def do_save(self, rest: str) -> None:
        """save NAME[{INDEX}][[SLICES]] FILE: write a value to FILE.npy or FILE.npz, which `set` and --input read."""
        name, path = split_expression(rest, "save takes a name and a file, as in `save dot.3 dot.npy`")
        literals.save(path, self._evaluated(name))
        self._say([f"wrote {path}"])

    def do_set(self, rest: str) -> None:
        """set NAME[[SLICES]] VALUE: replace a value, for all that use it; VALUE is a literal, a number or FILE.npy.

        NAME is the instruction that the run has stopped after, or one that is to run: it gives the value when it does,
        once. With slices, a number becomes elements of the value that the run has stopped after.
        """
        name, text = split_expression(rest, "set takes a name and a value, as in `set dot.3 0` or `set dot.3 dot.npy`")
        wanted = expression(name)
        instruction = self.stepper.target(wanted.name)
        subject = f"the value for %{instruction.name}"
        if wanted.index:
            raise InputError(f"set takes whole tuples, not elements of them; set what uses {name}")
        if wanted.slices is None:
            self.stepper.set(wanted.name, value_of_text(text, instruction.shape, subject))
        else:
            stop = self.stepper.stop
            if stop is None or stop.instruction is not instruction:
                raise InputError(f"elements can be set of what the run has stopped after; break at {instruction.name}")
            before = self.stepper.value(instruction.name)
            if not isinstance(before, np.ndarray):
                raise InputError(f"%{instruction.name} is no array")
            changed = before.copy()
            changed[wanted.within(changed)] = scalar_of_text(text, instruction.shape, subject)
            self.stepper.set(instruction.name, changed)
        stop = self.stepper.stop
        if stop is not None and stop.instruction is instruction:
            self._say(statistics_lines(f"%{instruction.name}", self.stepper.value(instruction.name)))
        else:
            self._say([f"%{instruction.name} gives this value when it runs next"])

    def do_device(self, rest: str) -> None:
        """device [N]: show the values of another device; without N, of the first for which the run has stopped."""
        number = None if not rest else number_of(f"device takes a number, not {quoted(rest)}", rest)
        count = self.stepper.device_count
        if number is not None and not number < count:
            raise InputError(
                f"there is no device {number}; there {f'are devices 0 to {count - 1}' if count > 1 else 'is one, 0'}"
            )
        self._device = number

    # Where the run is

    def do_list(self, rest: str) -> None:
        """list [N|NAME]: the text around where the run is, N lines to each side, or around an instruction."""
        here = self._here()
        around = natural_number(rest)
        centre = here.instruction if around is not None else self._named(rest, here)
        lines = _AROUND if around is None else min(around, _MOST_LINES)
        self._say(listing(here.computation, centre, here.instruction, lines))

    def do_where(self, rest: str) -> None:
        """where, backtrace: the computations that the run is in, the innermost first."""
        require_nothing("where", rest)
        self._here()
        for number, level in enumerate(self.stepper.levels):
            self._say([level_line(number, level, self.stepper.module, ">" if number == self._level else " ")])

    def do_up(self, rest: str) -> None:
        """up [N]: look at the computation that called this one, or N further."""
        self._move(count_of("up", rest))

    def do_down(self, rest: str) -> None:
        """down [N]: look further in again."""
        self._move(-count_of("down", rest))

    def _move(self, by: int) -> None:
        self._here()
        levels = self.stepper.levels
        wanted = self._level + by
        if not 0 <= wanted < len(levels):
            raise InputError("this is the innermost computation" if by < 0 else "this is the entry computation")
        self._level = wanted
        self._say([level_line(wanted, levels[wanted], self.stepper.module)])

    def do_operands(self, rest: str) -> None:
        """operands [NAME]: the operands of an instruction, and what they are."""
        instruction = self._named(rest, self._here())
        if not instruction.operands:
            self._say([f"%{instruction.name} has no operands"])
        for name in dict.fromkeys(instruction.operands):
            try:
                self._say(statistics_lines(f"%{name}", self._value(name)))
            except InputError as error:
                self._say([f"%{name}  {error.message}"])

    def do_users(self, rest: str) -> None:
        """users [NAME]: the instructions that use a value."""
        here = self._here()
        instruction = self._named(rest, here)
        users = here.computation.users[instruction.name]
        self._say(f"  {hlo_line(user)}" for user in users)
        if instruction.name == here.computation.root_name:
            self._say([f"%{instruction.name} is the result of {here.computation.name}"])
        elif not users:
            self._say([f"nothing uses %{instruction.name}"])

    # The shell

    def do_help(self, rest: str) -> None:
        """help [COMMAND]: this list, or what a command takes."""
        if rest:
            self._say(_documentation(self._command(rest)))
            return
        for name in self.names():
            self._say(_documentation(getattr(self, f"do_{name}"))[:1])

    def do_quit(self, rest: str) -> bool:
        """quit, exit: end the run where it is, and leave."""
        require_nothing("quit", rest)
        return True

    # Words

    def _named(self, name: str, here: Level) -> Instruction:
        """The instruction of a name, looked for in the computations that the run is in; where it is, without one."""
        if not name:
            return here.instruction
        return found_instruction(here.computation, name, [level.computation for level in self.stepper.levels])

    def _here(self) -> Level:
        """The computation that is looked at; InputError before the run has begun."""
        levels = self.stepper.levels
        if not levels:
            raise InputError("the run has not begun; `run` or `step` starts it")
        return levels[min(self._level, len(levels) - 1)]

    def _evaluated(self, text: str) -> Value:
        """What `NAME[{INDEX}][[SLICES]]` stands for."""
        wanted = expression(text)
        return wanted.of(self._value(wanted.name))

    def _value(self, name: str) -> Value:
        self._here()
        return self.stepper.value(name, level=self._level, device=self._device)

    def _say(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.echo(printable(advice_for(line, commands_at_hand())))


def _documentation(method: object) -> list[str]:
    return [line.strip() for line in (method.__doc__ or "").strip().split("\n")]
