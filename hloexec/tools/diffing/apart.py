"""Comparing the stages of many modules, those of each in a process of its own.

What comes back is a whole `Diff` but for two things: the caller reads the modules of stages again from their files, and
what shows a finding is not extracted, as it may hold the values of all inputs.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from hloexec.core.ir import Module
from hloexec.core.values import Inputs
from hloexec.core.wording import byte_text, plural
from hloexec.engine.exec.observers import Stages
from hloexec.errors import HloError, InputError, unwarned
from hloexec.language.loading import load
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy
from hloexec.tools.diffing.folders import Stage, StageDiff, diff_stages
from hloexec.tools.diffing.running import diff
from hloexec.tools.executing.codec import coded, coded_inputs, decoded, decoded_inputs
from hloexec.tools.executing.engines import Workers
from hloexec.tools.executing.functions import NamedFunction, custom_calls_by_name, named_function, register_by_name
from hloexec.tools.executing.running import run_tasks
from hloexec.tools.executing.tasks import Reply, Task, Tell


def diff_apart(
    chains: Sequence[Sequence[Stage]],
    inputs: Inputs | Callable[[Module], Inputs] | None,
    options: Mapping[str, Any],
    workers: Workers,
    stages: Stages,
    tell: Callable[[int], None],
) -> list[list[StageDiff] | None]:
    """`diff_stages` of each chain of stages; `tell` is called with the number of one that has come.

    KeyboardInterrupt gives those that have come, and None in place of the others; it is raised where none has.
    """
    request = _request(inputs, options, workers)
    function = request.pop("function")

    def task_of(number: int) -> Task:
        chain = chains[number]
        files = (*(os.fspath(stage.path) for stage in chain), *([] if function is None else function.files))
        own = {"stages": coded(tuple(chain), tuple[Stage, ...])}
        return Task(
            f"{__name__}:diff_alone",
            request | own,
            files,
            workers.seconds,
            workers.memory,
            located=("stages", "made_by"),
        )

    replies: dict[int, Reply | HloError] = {}
    stages.begin("modules", len(chains))
    try:
        with workers.opened() as engine:
            for number, reply in run_tasks(range(len(chains)), task_of, engine):
                replies[number] = reply
                tell(number)
                stages.tick()
    except KeyboardInterrupt:
        if not replies:
            raise
    return [
        _steps_of(chain, replies[number], workers.seconds) if number in replies else None
        for number, chain in enumerate(chains)
    ]


def _request(
    inputs: Inputs | Callable[[Module], Inputs] | None, options: Mapping[str, Any], workers: Workers
) -> dict[str, Any]:
    """What all tasks have in common; InputError for what cannot travel."""
    inspect.signature(diff).bind(None, None, **options)
    policies = options.get("numerics", "reference")
    names = [numerics_policy(policy).name for policy in (policies if isinstance(policies, tuple) else (policies,))]
    rest = {name: value for name, value in options.items() if name != "numerics"}
    rest["memory_limit"] = workers.memory if rest.get("memory_limit") is None else rest["memory_limit"]
    function = named_function("inputs", inputs) if callable(inputs) else None
    return {
        "function": function,
        "made_by": None if function is None else [function.place, function.arguments],
        "inputs": None if callable(inputs) else coded_inputs(inputs),
        "options": coded_inputs(rest),
        "numerics": names,
        "memory": workers.memory,
        "custom_calls": custom_calls_by_name(),
    }


def _steps_of(chain: Sequence[Stage], reply: Reply | HloError, seconds: float) -> list[StageDiff]:
    """What came of the task of a chain: what it had told before it failed, and why it went no further."""
    if isinstance(reply, HloError):
        return [StageDiff(chain[0], chain[1], "not compared", reason=str(reply))]
    reply.warn()
    read = cache(load)
    answer = reply.answer or {"steps": [], "at": 1}
    steps = []
    for record in answer["steps"]:
        try:
            with unwarned():
                steps.append(_step_of(record, read))
        except HloError as error:
            before, after = (decoded(record[side], Stage) for side in ("before", "after"))
            steps.append(StageDiff(before, after, "not compared", reason=f"{after}: {error}"))
    if reply.answer is None or reply.is_partial:
        at = answer["at"]
        left = len(chain) - at - 1
        more = f"; {plural(left, 'stage')} after it {'was' if left == 1 else 'were'} not compared" if left else ""
        why = f"{chain[at]}: {reply.failure(seconds)}{more}"
        steps.append(StageDiff(chain[at - 1], chain[at], "not compared", reason=why))
    return steps


def _step_of(record: Mapping[str, Any], read: Callable[[Path], Module]) -> StageDiff:
    if record["diff"] is None:
        return decoded(record, StageDiff)
    modules = [read(decoded(record[side], Stage).path) for side in ("before", "after")]
    return decoded(record, StageDiff, modules)


def diff_alone(request: Mapping[str, Any], tell: Tell, _: Path) -> Mapping[str, Any]:
    """Compare the stages of a task, in its process."""
    register_by_name(request["custom_calls"])
    chain = decoded(request["stages"], tuple[Stage, ...])
    policies: list[NumericsPolicy] = list(map(numerics_policy, request["numerics"]))
    options = {**decoded_inputs(request["options"]), "numerics": policies[0] if len(policies) == 1 else tuple(policies)}
    made_by, memory = request["made_by"], byte_text(request["memory"])
    inputs = decoded_inputs(request["inputs"]) if made_by is None else NamedFunction(*made_by)
    steps: list[Any] = []
    at = [1]

    def begin(stage: Stage) -> None:
        at[0] = chain.index(stage)
        tell({"steps": steps, "at": at[0]})

    try:
        for step in _each_step(chain, inputs, begin, options):
            steps.append(step)
    except (HloError, MemoryError) as error:
        reason = str(error) if isinstance(error, HloError) else f"there is not enough memory: it may take {memory}"
        failed = StageDiff(chain[at[0] - 1], chain[at[0]], "not compared", reason=f"{chain[at[0]]}: {reason}")
        steps.append(coded(failed, StageDiff))
    return {"steps": steps}


def _each_step(
    chain: Sequence[Stage], inputs: Any, begin: Callable[[Stage], None], options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """What JSON holds of each step."""
    for step in diff_stages(chain, inputs, begin, options):
        result = step.diff
        if result is None:
            yield coded(step, StageDiff)
            continue
        if result.findings:
            advice = f"diff {step.before.path} and {step.after.path} by themselves to extract what is to blame"
            step = attrs.evolve(step, diff=attrs.evolve(result, extracted=InputError(f"a worker found it; {advice}")))
        yield coded(step, StageDiff, (result.before, result.after))
