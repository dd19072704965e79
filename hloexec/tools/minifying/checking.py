"""Whether a module still shows the failure, judged by a command of the user's that may crash or hang.

The command is run without a shell on a file of its own, by whatever worker there is, and what came of it is told apart:
an exit code, the signal that ended it, or that it did not end in time.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Generator, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import attrs

from hloexec.core.structs import define
from hloexec.core.values import Value
from hloexec.core.wording import argument
from hloexec.errors import HloError, InputError, ResourceError
from hloexec.language import literals
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.tools.executing.engines import Engine
from hloexec.tools.executing.processes import Ended, signal_name
from hloexec.tools.executing.running import run_tasks
from hloexec.tools.executing.tasks import PLACE, Reply, Task
from hloexec.tools.minifying.case import Case

_Key = TypeVar("_Key")

OUTCOMES = ("pass", "fail", "crash", "hang")
"""What a check may have to do so that the module shows the failure: exit with 0, or with another code, be ended by a
signal, or not end in time."""
_MODULE = "module.hlo"


@define(eq=False)
class Check:
    """A command that is given a module's path, as its last word or wherever a word has `{}`.

    It is split as a POSIX shell splits words (`shlex`), and started without a shell. The folder of the module also has
    its inputs, in `inputs.npz`, where they are known.
    """

    command: str
    engine: Engine
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
        """InputError where there is nothing to run; whether other machines have a program shows when it is run."""
        words = self.argv
        if not words:
            raise InputError(f"{argument('command')} is empty; give what is to be run on each module")
        if self.engine.way == "here" and shutil.which(words[0]) is None:
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
        return any(shows for _, shows in self.judged([(None, case)]))

    def judged(self, cases: Iterable[tuple[_Key, Case]]) -> Generator[tuple[_Key, bool], None, None]:
        """Whether each of the cases, which have keys, shows the failure, in their order.

        Several run at once; those that have begun when the iterator is closed are not counted.
        """
        with closing(run_tasks(cases, lambda item: self._task(item[1]), self.engine, in_order=True)) as replies:
            for (key, _), reply in replies:
                yield key, isinstance(reply, Reply) and not reply.is_lost and self._shows(reply.ended)

    def _shows(self, ended: Ended) -> bool:
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
        if any(PLACE in word for word in words):
            return [word.replace(PLACE, path) for word in words]
        return [*words, path]

    def run(self, case: Case) -> Ended:
        """Run it on a module."""
        ((_, reply),) = run_tasks([case], self._task, self.engine)
        if isinstance(reply, HloError):
            raise reply
        if reply.is_lost:
            raise ResourceError(f"a worker ended that ran the command: {reply.ended.output}")
        return reply.ended

    def _task(self, case: Case) -> Task:
        contents = {_MODULE: format_module(case.module).encode()}
        with tempfile.TemporaryDirectory(prefix="hloexec-check-", ignore_cleanup_errors=True) as folder:
            for name, row in input_files(case):
                with suppress(HloError):
                    literals.save(Path(folder, name), tuple(row))
                    contents[name] = Path(folder, name).read_bytes()
        words = tuple(self.words_on(f"{PLACE}{os.sep}{_MODULE}"))
        return Task("", {}, (), self.timeout, -1, words, contents)


_TRIVIAL = "HloModule trivial\nENTRY main { ROOT x = f32[] parameter(0) }\n"
_MUST = {"pass": "exit with 0", "fail": "exit with a code other than 0", "crash": "crash", "hang": "hang"}


def input_files(case: Case) -> list[tuple[str, list[Value]]]:
    """The names of files of inputs, one for all devices or one for each, and what is in them."""
    rows = case.inputs or []
    return list(zip(literals.input_files(len(rows)), rows, strict=True))
