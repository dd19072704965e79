"""Judging one case, as a task of its own: what is to blame for a difference, and which policy explains it.

What is known before the last of its steps is told, and counts if the task's process does not come to its end.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import Comparison, OutputDifference, Verdict
from hloexec.core.ir import Module
from hloexec.core.values import Value, join_values, labelled_arrays
from hloexec.engine.exec.running import run_with
from hloexec.engine.inputs import random_inputs
from hloexec.errors import HloError, InputError, ResourceError, unwarned
from hloexec.language import literals
from hloexec.language.interop import Snapshot
from hloexec.language.loading import load, load_with_values
from hloexec.language.text import format as format_module
from hloexec.tools.diffing import Diff, diff
from hloexec.tools.diffing.folders import diff_stages, dumped_modules
from hloexec.tools.executing.codec import coded, decoded
from hloexec.tools.executing.tasks import Reply, Task, Tell
from hloexec.tools.minifying import Minified, minify
from hloexec.tools.minifying.oracles import has_numbers
from hloexec.tools.results import read_result, result_shapes
from hloexec.tools.triaging.blaming import (
    blamed_between_policies,
    blamed_by_diff,
    blamed_by_nan,
    blamed_elsewhere,
    blamed_named,
    explained_module,
    explained_pair,
)
from hloexec.tools.triaging.collecting import Case, Settings
from hloexec.tools.triaging.findings import MinifiedModule, TriagedModule

_OUTCOMES = {Verdict.EQUAL: "agree", Verdict.NOT_DECIDED: "not decided", Verdict.DIFFERENT: "differ"}
"""What comes of a module with such a verdict; others are a matter of rounding."""

Told = Callable[[TriagedModule], None]
"""Takes what is known so far: it counts if what follows takes too much."""


def judged(case: Case, settings: Settings, tell: Told) -> TriagedModule:
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


def _judged_pair(case: Case, settings: Settings, tell: Told) -> TriagedModule:
    before, after = map(load, case.files)
    inputs = inputs_of(case, before, settings)
    difference = diff(before, after, inputs, budget=settings.search_seconds, **settings.options)
    return _judged_diff(_blank(case, settings), difference, inputs, settings, tell)


def _judged_diff(
    blank: TriagedModule, difference: Diff, inputs: list[list[Value]], settings: Settings, tell: Told
) -> TriagedModule:
    """What a diff says, and the policy that explains it."""
    result = attrs.evolve(
        blank,
        outcome=difference.verdict,
        blamed=blamed_by_diff(difference),
        instruction_count=difference.after.instruction_count,
        notes=(*blank.notes, *difference.notes),
        **_differences(difference.outputs),
    )
    if difference.verdict != "differ":
        return result
    tell(result)
    return attrs.evolve(result, explained=explained_pair(difference, inputs, settings))


def stages_to_blame(case: Case, settings: Settings) -> tuple[str, Any, Sequence[Any]]:
    """The outcome of a chain of stages, the step to blame if there is one, and all steps."""
    assert case.dump is not None
    (module,) = (candidate for candidate in dumped_modules(case.dump) if candidate.stages[0].path == case.files[0])
    options = {"budget": settings.search_seconds, **settings.options}
    steps = list(diff_stages(module.stages, lambda first: inputs_of(case, first, settings), lambda _: None, options))
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


def _judged_stages(case: Case, settings: Settings, tell: Told) -> TriagedModule:
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


def _judged_module(case: Case, settings: Settings, tell: Told) -> TriagedModule:
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
        same_choices=not has_results(case, snapshot) and not settings.is_elsewhere,
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
    if settings.counterpart is None:
        raise InputError(f"{case.files[0]} has no results to compare with, and against is not given")
    return settings.counterpart.run(module, inputs, **settings.options).value()  # type: ignore[no-any-return]


def _with_cause(
    result: TriagedModule,
    module: Module,
    inputs: list[list[Value]],
    expected: Value | dict[str, Any],
    comparison: Comparison,
    settings: Settings,
    tell: Told,
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
        if settings.is_elsewhere and not is_recorded:
            return attrs.evolve(result, blamed=blamed_elsewhere(module, inputs, settings))
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


_BUDGET_SHARE = 0.8
"""Of the time that minifying may take: what it has found by then counts."""


def judging_task(case: Case, settings: Settings) -> Task:
    """The task of judging a case."""
    return _task("judge_alone", case, settings)


def minifying_task(case: Case, module: TriagedModule, settings: Settings) -> Task:
    """The task of minifying a case."""
    return _task("minify_alone", case, settings, {"module": coded(module, TriagedModule)})


def _task(function: str, case: Case, settings: Settings, more: Mapping[str, Any] | None = None) -> Task:
    request = {"case": coded(case, Case), "settings": coded(settings, Settings), **(more or {})}
    files = tuple(map(os.fspath, case.all_files))
    return Task(f"{__name__}:{function}", request, files, settings.timeout, settings.memory, located=("case",))


def judged_module(case: Case, settings: Settings, reply: Reply | HloError) -> TriagedModule:
    """What came of a case's task."""
    if isinstance(reply, HloError):
        return failed(case, settings, "not compared", str(reply))
    ended, module = reply.ended, None if reply.answer is None else decoded(reply.answer, TriagedModule)
    if module is not None and not reply.is_partial:
        # A search that took its share of the time may have been cut.
        is_cut = module.outcome == "out of memory" or reply.working_seconds > settings.search_seconds
        result = attrs.evolve(module, is_cut=is_cut)
    elif module is not None:
        how = f"more than {settings.timeout:g} s" if ended.code is None else str(ended)
        note = f"what is to blame was not found to the end: {how}"
        result = attrs.evolve(module, notes=(*module.notes, note), is_cut=True)
    else:
        outcome = "timed out" if ended.code is None else "crashed"
        result = failed(case, settings, outcome, reply.failure(settings.timeout))
    is_cut = result.is_cut or result.outcome in ("timed out", "crashed")
    return attrs.evolve(result, seconds=reply.seconds, is_cut=is_cut)


def minified_module(case: Case, settings: Settings, reply: Reply | HloError, folder: Path) -> MinifiedModule:
    """What came of the task of minifying a case; its files are written to a folder."""
    if isinstance(reply, HloError):
        return MinifiedModule(case.name, None, reason=str(reply))
    if reply.answer is None:
        reason = f"it took more than {settings.timeout:g} s" if reply.ended.code is None else str(reply.ended)
        return MinifiedModule(case.name, None, reason=reason, seconds=reply.seconds)
    minified = attrs.evolve(decoded(reply.answer, MinifiedModule), seconds=reply.seconds)
    if not reply.made:
        return minified
    reply.save(folder)
    return attrs.evolve(minified, folder=os.fspath(folder.resolve()))


def judge_alone(request: Mapping[str, Any], tell: Tell, _: Path) -> Mapping[str, Any]:
    """Judge the case of a task, in its process."""
    case, settings = _requested(request)
    module = judged(case, settings, lambda partial: tell(coded(partial, TriagedModule)))
    return coded(module, TriagedModule)  # type: ignore[no-any-return]


def minify_alone(request: Mapping[str, Any], _: Tell, folder: Path) -> Mapping[str, Any]:
    """Minify the case of a task, in its process."""
    module = decoded(request["module"], TriagedModule)
    return coded(_minified(*_requested(request), module, folder), MinifiedModule)  # type: ignore[no-any-return]


def _requested(request: Mapping[str, Any]) -> tuple[Case, Settings]:
    return decoded(request["case"], Case), decoded(request["settings"], Settings)


def _minified(case: Case, settings: Settings, module: TriagedModule, folder: Path) -> MinifiedModule:
    try:
        with unwarned():
            result = _smallest(case, module, settings)
        result.save(folder)
    except (HloError, MemoryError) as error:
        return MinifiedModule(case.name, None, reason=str(error) or "there is not enough memory")
    return MinifiedModule(
        module_name=case.name,
        folder=None,
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
