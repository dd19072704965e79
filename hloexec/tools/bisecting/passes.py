"""`bisect --passes`: the passes of a compiler without which its result comes right."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Unpack

import attrs

from hloexec.core.arguments import listed, require_path
from hloexec.core.files import require_new_folder
from hloexec.core.ir import Module
from hloexec.core.values import Inputs
from hloexec.core.wording import argument
from hloexec.engine.exec.observers import Attached, Observer, Stages
from hloexec.engine.exec.running import RunOptions
from hloexec.errors import InputError, unwarned
from hloexec.tools.bisecting.findings import PassBisection
from hloexec.tools.bisecting.judging import Judge
from hloexec.tools.counterparts.answers import Counterpart
from hloexec.tools.counterparts.elsewhere import Compilation, Elsewhere
from hloexec.tools.counterparts.specs import counterpart_of
from hloexec.tools.diffing.folders import DumpedModule, StageDiff, diff_folders, dumped_modules
from hloexec.tools.subsets import parts_of, reduced

_LEAST_SECONDS = 10.0
_MOST_RATIO = 5.0
"""What a trial may take, as a multiple of the run with all passes: without some, what XLA makes may not end."""


def bisect_passes(
    module: Module,
    inputs: Inputs | None = None,
    against: str | Counterpart = "xla",
    *,
    output: str | os.PathLike[str] | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> PassBisection:
    """Find the passes of a compiler without which its result comes right.

    `against` is XLA, here or in another environment (`hloexec.counterpart`). Its result is judged by the bounds of its
    elements against hloexec's own. If it is wrong, XLA compiles the module without some of the passes that change it,
    by halves, until those are left which all have to be switched off. Passes without which there is no result stay.
    Then `diff` runs the module as it is after each pass, and names the step that first gives another result, and its
    first wrong instruction. If the pass of that step alone, switched off, makes the result right, it is the one that is
    named. `output` is a new folder that keeps what XLA dumps after each pass. `inputs` are as for `run_devices`, or
    random by the seed.

    Raises InputError if `against` compiles nothing, its error if it gives no result, and whatever `run_devices` raises.
    """
    watchers = listed("observers", observers, "observers")
    Attached(watchers)
    compiler = counterpart_of(against, instead="only XLA has passes that can be switched off")
    if not isinstance(compiler, Elsewhere) or compiler.function is not None:
        raise InputError(
            f"{argument('against')} is {compiler.name}, which has no passes to switch off; it must be "
            "xla[:PLATFORM[:COUNT]] or python:PATH[:PLATFORM]"
        )
    if output is not None:
        require_path("output", output)
        require_new_folder(output)
    judge = Judge(module, inputs, "bisect_passes", options)
    stages = Stages(watchers)
    stages.begin("passes")
    with ExitStack() as kept:
        folder = output or kept.enter_context(tempfile.TemporaryDirectory(prefix="hloexec-bisect-"))
        dump = os.path.abspath(folder)
        start = time.perf_counter()
        whole = judge.judge(compiler, Compilation(dump=dump))
        seconds = max(_LEAST_SECONDS, _MOST_RATIO * (time.perf_counter() - start))
        whole.answer.value()
        kept_in = None if output is None else os.fspath(output)
        result = PassBisection(compiler.name, whole.outcome, whole.text, dump=kept_in, trials=1)
        if whole.is_right is not False:
            return result

        def comes_right(without: Sequence[str]) -> bool | None:
            stages.tick()
            return judge.judge(compiler, Compilation(without), seconds).is_right

        candidates = _passes(dumped_modules(dump))
        search = Search(comes_right)
        passes = search.smallest(candidates)
        stages.begin("diff")
        step = _first_wrong(dump, judge, watchers)
        name = None if step is None else step.pass_name
        if name in candidates and passes != [name] and search.comes_right([name]):
            passes = [name]
    return attrs.evolve(
        result,
        candidates=candidates,
        required=search.required,
        passes=tuple(passes),
        trials=1 + len(search.known),
        step=None if step is None else str(step),
        pass_name=name,
        diff=None if step is None else step.diff,
    )


def _passes(modules: Iterable[DumpedModule]) -> tuple[str, ...]:
    """The passes that change modules, in their order: what is in pipelines, which all have a start."""
    stages = [stage for module in modules for stage in module.passes]
    pipelines = {stage.pipeline for stage in stages if not stage.is_pass}
    passes = (stage.name for stage in stages if stage.is_pass and stage.pipeline in pipelines)
    return tuple(name for name in dict.fromkeys(passes) if name not in pipelines)


def _first_wrong(dump: str, judge: Judge, observers: Sequence[Observer]) -> StageDiff | None:
    """The step of a compilation after which the module first gives another result."""
    with unwarned():
        folder = diff_folders(dump, inputs=judge.inputs, observers=observers, **judge.options.of_parts)
    return next((module.to_blame for module in folder.modules if module.to_blame is not None), None)


class Search:
    """A search by halves for the passes without which a result comes right."""

    def __init__(self, judge: Callable[[Sequence[str]], bool | None]) -> None:
        self._judge = judge
        self.known: dict[frozenset[str], bool | None] = {}
        """What came of leaving passes out: a right result, a wrong one, or none."""

    def comes_right(self, without: Sequence[str]) -> bool | None:
        """Whether the result is right without these; None where there is none."""
        key = frozenset(without)
        if key not in self.known:
            self.known[key] = self._judge(without)
        return self.known[key]

    def smallest(self, names: Sequence[str]) -> list[str]:
        """Passes without which the result is right, and wrong with one of them; none where there are none."""
        return self._reduced(names) or self._reduced([name for name in names if name not in self.required])

    def _reduced(self, names: Sequence[str]) -> list[str]:
        """The same of names that all may go, or not: where that gives no right result, of a part with which it does."""
        whole: Sequence[str] | None = names if self.comes_right(names) else None
        count = 1
        while whole is None and count < len(names):
            count = min(2 * count, len(names))
            whole = next((part for part in parts_of(names, count) if self.comes_right(part)), None)
        return [] if whole is None else reduced(whole, self._first, least=1)

    def _first(self, tried: Sequence[list[str]]) -> int | None:
        return next((number for number, names in enumerate(tried) if self.comes_right(names)), None)

    @property
    def required(self) -> tuple[str, ...]:
        """The passes without which alone there is no result, as far as they were tried."""
        return tuple(
            name for tried, is_right in self.known.items() if is_right is None and len(tried) == 1 for name in tried
        )
