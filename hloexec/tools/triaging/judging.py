"""Judging one case: run it, compare it, and say what is to blame for a difference and which policy explains it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs

from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import Comparison, OutputDifference, Verdict
from hloexec.core.ir import Module
from hloexec.core.values import Value, join_values, labelled_arrays
from hloexec.engine.exec.running import run_with
from hloexec.engine.inputs import random_inputs
from hloexec.errors import HloError, HloWarning, InputError, ResourceError
from hloexec.language import literals
from hloexec.language.interop import Snapshot
from hloexec.language.loading import load, load_with_values
from hloexec.tools.diffing import Diff, diff
from hloexec.tools.diffing.dumps import dumped_modules
from hloexec.tools.diffing.folders import diff_stages
from hloexec.tools.minifying.oracles import has_numbers, on_xla_cpu
from hloexec.tools.results import read_result, result_shapes
from hloexec.tools.triaging.blaming import (
    blamed_between_policies,
    blamed_by_diff,
    blamed_by_nan,
    blamed_named,
    blamed_on_xla,
)
from hloexec.tools.triaging.collecting import Case
from hloexec.tools.triaging.explaining import explained_module, explained_pair
from hloexec.tools.triaging.findings import TriagedModule
from hloexec.tools.triaging.settings import Settings

_OUTCOMES = {Verdict.EQUAL: "agree", Verdict.NOT_DECIDED: "not decided", Verdict.DIFFERENT: "differ"}
"""What comes of a module with such a verdict; others are a matter of rounding."""

Tell = Callable[[TriagedModule], None]
"""Takes what is known so far: it counts if what follows takes too much."""


def judged(case: Case, settings: Settings, tell: Tell) -> TriagedModule:
    """What comes of a case; whatever is wrong with it is an outcome, too."""
    judge = {"module": _judged_module, "pair": _judged_pair, "stages": _judged_stages}[case.kind]
    try:
        with warnings.catch_warnings(action="ignore", category=HloWarning):
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
    return [_random(module, settings)]


def _random(module: Module, settings: Settings) -> list[Value]:
    return random_inputs(module, settings.seed, settings.distribution)


def _judged_pair(case: Case, settings: Settings, tell: Tell) -> TriagedModule:
    before, after = map(load, case.files)
    inputs = inputs_of(case, before, settings)
    return _judged_diff(_blank(case, settings), _diffed(before, after, inputs, settings), inputs, settings, tell)


def _diffed(before: Module, after: Module, inputs: list[list[Value]], settings: Settings) -> Diff:
    return diff(before, after, inputs, budget=settings.search_seconds, **settings.options)


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
    (module,) = (each for each in dumped_modules(case.dump) if each.stages[0].path == case.files[0])
    options = {"budget": settings.search_seconds, **settings.options}
    steps = diff_stages(module.stages, lambda first: inputs_of(case, first, settings), lambda _: None, options)
    outcomes = [step.outcome for step in steps]
    worst = next(
        (each for each in ("differ", "not compared", "not decided", "rounding only") if each in outcomes), "agree"
    )
    return worst, next((step for step in steps if step.outcome == "differ"), None), steps


def _judged_stages(case: Case, settings: Settings, tell: Tell) -> TriagedModule:
    outcome, blamed, steps = stages_to_blame(case, settings)
    blank = _blank(case, settings)
    notes = tuple(step.reason for step in steps if step.outcome == "not compared")
    if blamed is not None and blamed.diff is not None:
        blank = attrs.evolve(blank, step=str(blamed), notes=notes)
        return _judged_diff(blank, blamed.diff, [_random(blamed.diff.before, settings)], settings, tell)
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
            and (found := blamed_by_nan(module, inputs, settings))
        ):
            seen = "" if _has_own(comparison, 2) else "; the results that it is seen in are finite on the other side"
            return attrs.evolve(result, blamed=attrs.evolve(found, reason=found.reason + seen))
        if settings.is_against_xla and not is_recorded:
            return attrs.evolve(result, blamed=blamed_on_xla(module, inputs, settings))
    return result


def _has_own(comparison: Comparison, side: int) -> bool:
    """Whether a side, 1 or 2, has NaN or infinities where the other has other values."""
    measured = [leaf.measured for leaf in comparison.different if leaf.measured is not None]
    return any(each.nans[side] or each.infinities[side] for each in measured)


def _differences(comparison: Comparison) -> Mapping[str, Any]:
    """The fields of a module that a comparison has."""
    different = comparison.different
    if not different:
        return {}
    has_other_shapes = any(leaf.measured is None for leaf in different)
    kind = "shapes" if has_other_shapes else "numbers" if has_numbers(comparison) else "NaN or infinities"
    return {"difference": kind, "outputs": tuple(map(OutputDifference.of, different))}
