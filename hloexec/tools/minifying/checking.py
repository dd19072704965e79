"""Whether a module still shows the failure, judged by a command of the user's that may crash or hang.

The command is run without a shell on a file of its own, and what came of it is told apart: an exit code, the signal
that ended it, or that it did not end in time.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Event

import attrs

from hloexec.core.structs import define
from hloexec.core.values import Value
from hloexec.core.wording import argument
from hloexec.errors import HloError, InputError
from hloexec.language import literals
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.tools.executing.processes import Ended, run_command, signal_name
from hloexec.tools.minifying.case import Case

OUTCOMES = ("pass", "fail", "crash", "hang")
"""What a check may have to do so that the module shows the failure: exit with 0, or with another code, be ended by a
signal, or not end in time."""
_PLACE = "{}"


@define(eq=False)
class Check:
    """A command that is given a module's path, as its last word or wherever a word has `{}`.

    It is split as a POSIX shell splits words (`shlex`), and started without a shell. The folder of the module also has
    its inputs, in `inputs.npz`, where they are known.
    """

    command: str
    outcome: str = "pass"
    says: str = ""
    """A text that must be in what it prints."""
    timeout: float = 60.0
    may_change_values: bool = True
    needs_values: bool = False
    counts: dict[str, int] = attrs.field(factory=dict)
    """How often it ended how."""
    _signal: int = 0

    @property
    def argv(self) -> list[str]:
        """The command's words."""
        try:
            return shlex.split(self.command)
        except ValueError as error:
            raise InputError(f"command {self.command!r} cannot be split into words: {error}") from error

    def require_runnable(self) -> None:
        """InputError where there is nothing to run."""
        words = self.argv
        if not words:
            raise InputError(f"{argument('command')} is empty; give what is to be run on each module")
        if shutil.which(words[0]) is None:
            raise InputError(f"{argument('command')} names {words[0]!r}, but there is no such program")

    def begin(self, case: Case) -> None:
        """Run it on the given module."""
        ended = self.run(case)
        if ended.outcome != self.outcome:
            printed = ended.output.strip().splitlines()
            more = f"; the last that it printed: {printed[-1]}" if printed else ""
            hint = f"; {argument('outcome')} says what it has to do" if self.outcome == "pass" else ""
            raise InputError(f"the command must {_MUST[self.outcome]} on the given module, but {ended}{hint}{more}")
        if self.says not in ended.output:
            raise InputError(
                f"{argument('says')} is {self.says!r}, which the command does not print on the given module"
            )
        self._signal = ended.signal
        if self.outcome != "hang":
            self._require_dependence(case)

    def _require_dependence(self, case: Case) -> None:
        """InputError where the command ends likewise on a module that computes nothing, as one does whose name is
        mistyped."""
        ended = self.run(attrs.evolve(case, module=parse(_TRIVIAL), inputs=None))
        if ended.outcome == self.outcome and ended.signal == self._signal and self.says in ended.output:
            printed = ended.output.strip().splitlines()
            more = f"; the last that it printed: {printed[-1]}" if printed else ""
            raise InputError(f"the command ends likewise on a module that only hands on its parameter{more}")

    def holds(self, case: Case) -> bool:
        return self.shows(self.run(case))

    def shows(self, ended: Ended) -> bool:
        """Whether a command that ended so shows the failure; it is counted."""
        self.counts[ended.outcome] = self.counts.get(ended.outcome, 0) + 1
        return ended.outcome == self.outcome and ended.signal == self._signal and self.says in ended.output

    def expected(self, case: Case) -> Value | None:
        return None

    def words(self, case: Case) -> str:
        verb = {"pass": "passes", "fail": "fails", "crash": "crashes", "hang": "hangs"}[self.outcome]
        by = f" with {signal_name(self._signal)}" if self._signal else ""
        says = f", saying {self.says!r}" if self.says else ""
        return f"the command {verb}{by}{says}"

    def notes(self, case: Case) -> tuple[str, ...]:
        return ()

    def words_on(self, path: str) -> list[str]:
        """The command on a module."""
        words = self.argv
        if any(_PLACE in word for word in words):
            return [word.replace(_PLACE, path) for word in words]
        return [*words, path]

    def run(self, case: Case, stop: Event | None = None) -> Ended:
        """Run it on a module; it ends early, too, once `stop` is set."""
        with tempfile.TemporaryDirectory(prefix="hloexec-check-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, "module.hlo")
            path.write_bytes(format_module(case.module).encode())
            for name, row in input_files(case):
                with suppress(HloError):
                    literals.save(Path(folder, name), tuple(row))
            return run_command(self.words_on(str(path)), Path(folder, "output"), self.timeout, stop)


_TRIVIAL = "HloModule trivial\nENTRY main { ROOT x = f32[] parameter(0) }\n"
_MUST = {"pass": "exit with 0", "fail": "exit with a code other than 0", "crash": "crash", "hang": "hang"}


def input_files(case: Case) -> list[tuple[str, list[Value]]]:
    """The names of files of inputs, one for all devices or one for each, and what is in them."""
    rows = case.inputs or []
    return list(zip(literals.input_files(len(rows)), rows, strict=True))
