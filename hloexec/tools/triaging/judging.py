"""Judging one case, in a process of its own: what is to blame for a difference, and which policy explains it.

It may crash, hang or run out of memory, and nothing else is lost. What is known before the last of its steps is
written, too, and counts if the process does not come to its end.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import attrs

from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import Comparison, OutputDifference, Verdict
from hloexec.core.ir import Module
from hloexec.core.values import Value, join_values, labelled_arrays
from hloexec.core.wording import byte_text
from hloexec.engine.exec.running import run_with
from hloexec.engine.inputs import random_inputs
from hloexec.errors import HloError, InputError, ResourceError, os_errors_named, unwarned, warn
from hloexec.language import literals
from hloexec.language.interop import Snapshot
from hloexec.language.loading import load, load_with_values
from hloexec.language.text import format as format_module
from hloexec.tools.diffing import Diff, diff
from hloexec.tools.diffing.folders import diff_stages, dumped_modules
from hloexec.tools.minifying import Minified, minify
from hloexec.tools.minifying.checking import Ended, run_command
from hloexec.tools.minifying.oracles import has_numbers, on_xla_cpu
from hloexec.tools.results import read_result, result_shapes
from hloexec.tools.triaging.blaming import (
    blamed_between_policies,
    blamed_by_diff,
    blamed_by_nan,
    blamed_named,
    blamed_on_xla,
    explained_module,
    explained_pair,
)
from hloexec.tools.triaging.collecting import Case, Settings, Store, read_json, write_json
from hloexec.tools.triaging.findings import MinifiedModule, TriagedModule

_OUTCOMES = {Verdict.EQUAL: "agree", Verdict.NOT_DECIDED: "not decided", Verdict.DIFFERENT: "differ"}
"""What comes of a module with such a verdict; others are a matter of rounding."""

Tell = Callable[[TriagedModule], None]
"""Takes what is known so far: it counts if what follows takes too much."""


def judged(case: Case, settings: Settings, tell: Tell) -> TriagedModule:
    """What comes of a case; whatever is wrong with it is an outcome, too."""
    judge = {"module": _judged_module, "pair": _judged_pair, "stages": _judged_stages}[case.kind]
    try:
        with unwarned():
            return judge(case, settings, tell)
    except HloError as error:
        outcome = "out of memory" if isinstance(error, ResourceError) else "not compared"
        return failed(case, settings, outcome, str(error))
    except MemoryError:
        return failed(case, settings, "out of memory", "there is not enough memory")


def failed(case: Case, settings: Settings, outcome: str, reason: str) -> TriagedModule:
    """A case without a verdict."""
    return attrs.evolve(_blank(case, settings), outcome=outcome, reason=reason)


def _against(case: Case, settings: Settings) -> str:
    """What a case is compared with, in words."""
    if case.kind == "pair":
        return os.fspath(case.files[0])
    if case.kind == "stages":
        return "the stage before"
    if case.expected is not None:
        return os.fspath(case.expected)
    return settings.against or "recorded results"


def _blank(case: Case, settings: Settings) -> TriagedModule:
    files = tuple(map(os.fspath, case.files))
    return TriagedModule(case.name, case.kind, files, _against(case, settings), "not compared")


def inputs_of(case: Case, module: Module, settings: Settings, snapshot: Snapshot | None = None) -> list[list[Value]]:
    """The inputs beside a module, those in a snapshot, or random ones."""
    if case.inputs:
        parameters = module.entry.parameters
        rows = [literals.load_inputs(path, parameters) for path in case.inputs]
        return [[row[number] for number in range(len(parameters))] for row in rows]
    if snapshot is not None and snapshot.inputs_per_device:
        return [list(row) for row in snapshot.inputs_per_device]
    return [random_inputs(module, settings.seed, settings.distribution)]


def _judged_pair(case: Case, settings: Settings, tell: Tell) -> TriagedModule:
    before, after = map(load, case.files)
    inputs = inputs_of(case, before, settings)
    found = diff(before, after, inputs, budget=settings.search_seconds, **settings.options)
    return _judged_diff(_blank(case, settings), found, inputs, settings, tell)


def _judged_diff(
    blank: TriagedModule, found: Diff, inputs: list[list[Value]], settings: Settings, tell: Tell
) -> TriagedModule:
    """What a diff says, and the policy that explains it."""
    result = attrs.evolve(
        blank,
        outcome=found.verdict,
        blamed=blamed_by_diff(found),
        instruction_count=found.after.instruction_count,
        notes=(*blank.notes, *found.notes),
        **_differences(found.outputs),
    )
    if found.verdict != "differ":
        return result
    tell(result)
    return attrs.evolve(result, explained=explained_pair(found, inputs, settings))


def stages_to_blame(case: Case, settings: Settings) -> tuple[str, Any, Sequence[Any]]:
    """The outcome of a chain of stages, the step to blame if there is one, and all steps."""
    assert case.dump is not None
    (module,) = (candidate for candidate in dumped_modules(case.dump) if candidate.stages[0].path == case.files[0])
    options = {"budget": settings.search_seconds, **settings.options}
    steps = diff_stages(module.stages, lambda first: inputs_of(case, first, settings), lambda _: None, options)
    outcomes = [step.outcome for step in steps]
    worst = next(
        (
            candidate
            for candidate in ("differ", "not compared", "not decided", "rounding only")
            if candidate in outcomes
        ),
        "agree",
    )
    return worst, next((step for step in steps if step.outcome == "differ"), None), steps


def _judged_stages(case: Case, settings: Settings, tell: Tell) -> TriagedModule:
    outcome, blamed, steps = stages_to_blame(case, settings)
    blank = _blank(case, settings)
    notes = tuple(step.reason for step in steps if step.outcome == "not compared")
    if blamed is not None and blamed.diff is not None:
        blank = attrs.evolve(blank, step=str(blamed), notes=notes)
        inputs = [random_inputs(blamed.diff.before, settings.seed, settings.distribution)]
        return _judged_diff(blank, blamed.diff, inputs, settings, tell)
    count = next((step.diff.after.instruction_count for step in reversed(steps) if step.diff is not None), 0)
    reason = notes[0] if outcome == "not compared" else ""
    return attrs.evolve(blank, outcome=outcome, reason=reason, notes=notes, instruction_count=count)


def _judged_module(case: Case, settings: Settings, tell: Tell) -> TriagedModule:
    snapshot = load_with_values(case.files[0])
    module = snapshot.module
    inputs = inputs_of(case, module, settings, snapshot)
    options = settings.options
    results = run_with(module, inputs, options)
    actual = join_values(results)
    expected = _expected(case, snapshot, inputs, settings)
    comparison = compare(
        labelled_arrays(actual) if isinstance(expected, dict) else actual,
        expected,
        module=module,
        inputs=inputs if len(inputs) in (1, len(results)) else None,
        numerics=options.numerics,
        same_choices=not has_results(case, snapshot) and not settings.is_against_xla,
    )
    result = attrs.evolve(
        _blank(case, settings),
        outcome=_OUTCOMES.get(comparison.verdict, "rounding only"),
        reason=comparison.not_decided[0].undecided_text if comparison.verdict is Verdict.NOT_DECIDED else "",
        instruction_count=module.instruction_count,
        **_differences(comparison),
    )
    if comparison.verdict is not Verdict.DIFFERENT:
        return result
    tell(result)
    if result.difference == "shapes":
        return result
    is_recorded = has_results(case, snapshot)
    return _with_cause(result, module, inputs, expected, comparison, settings, tell, is_recorded=is_recorded)


def has_results(case: Case, snapshot: Snapshot) -> bool:
    """Whether a module is compared with recorded results."""
    return case.expected is not None or (snapshot.result is not None and not case.inputs)


def _expected(case: Case, snapshot: Snapshot, inputs: list[list[Value]], settings: Settings) -> Value | dict[str, Any]:
    module = snapshot.module
    if case.expected is not None:
        return read_result(case.expected, result_shapes(module))
    if has_results(case, snapshot):
        assert snapshot.result is not None
        return snapshot.result
    if settings.is_against_xla:
        return on_xla_cpu(module, inputs[0])
    policy = settings.policy
    if policy is None:
        raise InputError(f"{case.files[0]} has no results to compare with, and against is not given")
    return join_values(run_with(module, inputs, attrs.evolve(settings.options, numerics=policy)))


def _with_cause(
    result: TriagedModule,
    module: Module,
    inputs: list[list[Value]],
    expected: Value | dict[str, Any],
    comparison: Comparison,
    settings: Settings,
    tell: Tell,
    *,
    is_recorded: bool,
) -> TriagedModule:
    """The policy that explains what differs from expected results, and the instruction to blame."""
    ours = settings.options.numerics
    if not is_recorded and settings.policy is not None:
        with suppress(HloError):
            return attrs.evolve(
                result, blamed=blamed_between_policies(module, inputs, (settings.policy, ours), settings)
            )
        return result
    policy, explanation = explained_module(module, inputs, expected, settings)
    result = attrs.evolve(result, explained=policy)
    tell(result)
    with suppress(HloError):
        if policy is not None and explanation is not None:
            names = [name for name, _ in explanation.best.policy.overrides]
            named = blamed_named(module, names[0]) if names else None
            policies = (ours, explanation.best.policy)
            return attrs.evolve(result, blamed=named or blamed_between_policies(module, inputs, policies, settings))
        if (
            result.difference == "NaN or infinities"
            and _has_own(comparison, 1)
            and (blamed := blamed_by_nan(module, inputs, settings))
        ):
            seen = "" if _has_own(comparison, 2) else "; the results that it is seen in are finite on the other side"
            return attrs.evolve(result, blamed=attrs.evolve(blamed, reason=blamed.reason + seen))
        if settings.is_against_xla and not is_recorded:
            return attrs.evolve(result, blamed=blamed_on_xla(module, inputs, settings))
    return result


def _has_own(comparison: Comparison, side: int) -> bool:
    """Whether a side, 1 or 2, has NaN or infinities where the other has other values."""
    measured = [leaf.measured for leaf in comparison.different if leaf.measured is not None]
    return any(measurement.nans[side] or measurement.infinities[side] for measurement in measured)


def _differences(comparison: Comparison) -> Mapping[str, Any]:
    """The fields of a module that a comparison has."""
    different = comparison.different
    if not different:
        return {}
    has_other_shapes = any(leaf.measured is None for leaf in different)
    kind = "shapes" if has_other_shapes else "numbers" if has_numbers(comparison) else "NaN or infinities"
    return {"difference": kind, "outputs": tuple(map(OutputDifference.of, different))}


_COMMAND = "from hloexec.tools.triaging.judging import work; work()"
_BUDGET_SHARE = 0.8
"""Of the time that minifying may take: what it has found by then counts."""
_STARTING_SECONDS = 10.0
"""What the start of a process may take besides, on a busy machine; the process itself counts the time from then on."""


def judge_apart(case: Case, key: str, store: Store, stop: Event) -> TriagedModule | None:
    """Judge a case in a process of its own; None once `stop` is set."""
    start = time.monotonic()
    ended, record = _apart("judge", case, key, store, stop)
    if stop.is_set():
        return None
    seconds = time.monotonic() - start
    limit = f"{store.settings.timeout:g} s"
    module = None if record is None else TriagedModule.of_record(record["module"])
    if module is not None and record is not None and not record["is_partial"]:
        # A search that took its share of the time may have been cut.
        is_cut = module.outcome == "out of memory" or seconds > store.settings.search_seconds
        result = attrs.evolve(module, is_cut=is_cut)
    elif module is not None:
        how = f"more than {limit}" if ended.code is None else str(ended)
        note = f"what is to blame was not found to the end: {how}"
        result = attrs.evolve(module, notes=(*module.notes, note), is_cut=True)
    elif ended.code is None:
        result = failed(case, store.settings, "timed out", f"it took more than {limit}")
    else:
        last = (ended.output.strip().splitlines() or ["it printed nothing"])[-1]
        result = failed(case, store.settings, "crashed", f"{ended}: {last}")
    is_cut = result.is_cut or result.outcome in ("timed out", "crashed")
    return attrs.evolve(result, seconds=seconds, is_cut=is_cut)


def minify_apart(case: Case, module: TriagedModule, name: str, store: Store, stop: Event) -> MinifiedModule | None:
    """Minify a case in a process of its own, into a folder of this name; None once `stop` is set."""
    start = time.monotonic()
    ended, record = _apart("minify", case, name, store, stop, {"module": attrs.asdict(module)})
    if stop.is_set():
        return None
    if record is None:
        reason = f"it took more than {store.settings.timeout:g} s" if ended.code is None else str(ended)
        return MinifiedModule(case.name, None, reason=reason, seconds=time.monotonic() - start)
    return attrs.evolve(MinifiedModule(**record), seconds=time.monotonic() - start)


def _apart(
    subject: str, case: Case, name: str, store: Store, stop: Event, more: Mapping[str, Any] | None = None
) -> tuple[Ended, dict[str, Any] | None]:
    """How a process ended, and what it has written."""
    folder = store.work / f"{subject}-{name}"
    with os_errors_named(f"write {os.fspath(folder)!r}"):
        folder.mkdir(parents=True, exist_ok=True)
    asked, answered = folder / "request.json", folder / "answer.json"
    answered.unlink(missing_ok=True)
    record = {
        "what": subject,
        "case": _case_record(case),
        "settings": attrs.asdict(store.settings),
        "folder": os.fspath((store.minified / name).resolve()),
        **(more or {}),
    }
    write_json(asked, record)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": os.fspath(folder.resolve())}
    words = [sys.executable, "-c", _COMMAND, os.fspath(asked), os.fspath(answered)]
    seconds = store.settings.timeout + _STARTING_SECONDS
    ended = run_command(words, folder / "printed.txt", seconds, stop, environment)
    if hasattr(signal, "SIGALRM") and ended.code == -signal.SIGALRM:
        ended = Ended(None, ended.output)
    return ended, read_json(answered) if answered.exists() else None


def _case_record(case: Case) -> dict[str, Any]:
    def path_text(_: Any, __: Any, value: Any) -> Any:
        return os.fspath(value) if isinstance(value, Path) else value

    return attrs.asdict(case, value_serializer=path_text)


def _case_of(record: Mapping[str, Any]) -> Case:
    optional = {name: None if record[name] is None else Path(record[name]) for name in ("expected", "dump")}
    return Case(
        name=record["name"],
        kind=record["kind"],
        files=tuple(map(Path, record["files"])),
        inputs=tuple(map(Path, record["inputs"])),
        **optional,
    )


def work(arguments: Sequence[str] | None = None) -> None:
    """What the process does."""
    asked, answered = map(Path, sys.argv[1:] if arguments is None else arguments)
    request = read_json(asked)
    case, settings = _case_of(request["case"]), Settings(**request["settings"])
    _limit(settings)
    if request["what"] == "judge":

        def tell(module: TriagedModule, *, is_partial: bool = True) -> None:
            write_json(answered, {"module": attrs.asdict(module), "is_partial": is_partial})

        tell(judged(case, settings, tell), is_partial=False)
        return
    module = TriagedModule.of_record(request["module"])
    write_json(answered, attrs.asdict(_minified(case, module, settings, Path(request["folder"]))))


def warn_of_unlimited_memory(size: int) -> None:
    """Warn where `_limit` does not hold: elsewhere the limit is of a heap in which no large array lies."""
    if sys.platform != "linux":
        warn(
            "only on Linux can the memory of a process be limited: a module is refused if its run is estimated to take "
            f"more than {byte_text(size)}, but nothing ends one that takes more"
        )


def _limit(settings: Settings) -> None:
    """No process may take more memory or time from now on; what the system does not limit so is as it was."""
    if hasattr(signal, "setitimer"):
        # What ends the process by default waits for no kernel.
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (settings.memory, settings.memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _minified(case: Case, module: TriagedModule, settings: Settings, folder: Path) -> MinifiedModule:
    try:
        with unwarned():
            result = _smallest(case, module, settings)
        result.save(folder)
    except (HloError, MemoryError) as error:
        return MinifiedModule(case.name, None, reason=str(error) or "there is not enough memory")
    return MinifiedModule(
        module_name=case.name,
        folder=os.fspath(folder),
        failure=result.failure,
        instruction_count=result.instruction_count,
        given_instruction_count=result.instruction_count_before,
        largest_dimension=result.largest_dimension,
        is_complete=result.is_complete,
        is_confirmed=result.is_confirmed,
        hlo_text=format_module(result.module),
        command=shlex.join(result.command),
    )


def _smallest(case: Case, module: TriagedModule, settings: Settings) -> Minified:
    """What `minify` makes of a case that differs."""
    options = {"budget": _BUDGET_SHARE * settings.timeout, **settings.options}
    if case.kind == "stages":
        _, step, _ = stages_to_blame(case, settings)
        if step is None:
            raise InputError("no stage differs any more")
        return minify(load(step.after.path), differs_from=load(step.before.path), **options)
    if case.kind == "pair":
        before, after = map(load, case.files)
        return minify(after, inputs_of(case, before, settings), differs_from=before, **options)
    snapshot = load_with_values(case.files[0])
    inputs = inputs_of(case, snapshot.module, settings, snapshot)
    if module.explained is not None:
        # A smaller module computes something else, for which nothing was recorded; the policy gives it, and in no time.
        return minify(snapshot.module, inputs, against=f"policy:{module.explained.policy}", **options)
    if not has_results(case, snapshot):
        return minify(snapshot.module, inputs, against=settings.against, **options)
    if module.difference == "NaN or infinities" and module.blamed is not None:
        return minify(snapshot.module, inputs, nan=True, **options)
    expected = snapshot.result if case.expected is None else read_result(case.expected, result_shapes(snapshot.module))
    return minify(snapshot.module, inputs, expected=expected, **options)
