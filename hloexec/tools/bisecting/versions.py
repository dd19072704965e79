"""`bisect --versions`: the first of several counterparts whose result differs from that of the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from hloexec.core.arguments import listed, require_flags
from hloexec.core.ir import Module
from hloexec.core.values import Inputs
from hloexec.core.wording import argument
from hloexec.engine.exec.observers import Attached, Observer, Stages
from hloexec.engine.exec.running import RunOptions
from hloexec.errors import HloError, InputError, unwarned
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.tools.bisecting.findings import VersionBisection, VersionChange, VersionTrial
from hloexec.tools.bisecting.judging import Judge, Judged
from hloexec.tools.counterparts.answers import Counterpart
from hloexec.tools.counterparts.elsewhere import Compilation
from hloexec.tools.counterparts.specs import counterpart_of
from hloexec.tools.diffing import diff

_TOLD = Compilation(is_told=True)


def bisect_versions(
    module: Module,
    inputs: Inputs | None = None,
    versions: Sequence[str | Counterpart] = (),
    *,
    try_all: bool = False,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> VersionBisection:
    """Find the first of several versions of a compiler whose result differs from that of the one before it.

    `versions` are counterparts that run modules (`hloexec.counterpart`), the oldest first, such as the Pythons of
    environments (`python:PATH`). Each result is judged by the bounds of its elements against hloexec's own. Results
    differ if one of them is right and the other is not, if both are wrong by other numbers, or if there is none for
    another reason. The first and the last are tried and, if they differ, one between them, by halves; `try_all` tries
    all of them, and finds each change. Of each change, `diff` says what differs in the optimized modules, taking as
    right the one whose result is, else the first. `inputs` are as for `run_devices`, or random by the seed.

    Raises InputError for fewer than two versions, or the same one twice, and whatever `run_devices` raises.
    """
    require_flags(try_all=try_all)
    watchers = listed("observers", observers, "observers")
    Attached(watchers)
    specs = listed("versions", versions, "two counterparts or more")
    instead = "a version runs the module, and a file does not"
    counterparts = [counterpart_of(spec, "versions", instead=instead) for spec in specs]
    names = [counterpart.name for counterpart in counterparts]
    if len(names) < 2:
        raise InputError(f"{argument('versions')} must be two counterparts or more, the oldest first, not {len(names)}")
    if twice := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise InputError(f"{argument('versions')} has {twice} twice")
    judge = Judge(module, inputs, "bisect_versions", options)
    stages = Stages(watchers)
    stages.begin("versions", len(names))
    judged: dict[int, Judged] = {}

    def run(number: int) -> Judged:
        if number not in judged:
            judged[number] = judge.judge(counterparts[number], _TOLD)
            stages.tick()
        return judged[number]

    low, high = 0, len(names) - 1
    is_changed = not judge.are_alike(run(low), run(high))
    while is_changed and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if judge.are_alike(run(0), run(middle)) else (low, middle)
    pairs = [(low, high)] if is_changed else []
    if try_all:
        pairs = [
            (number - 1, number) for number in range(1, len(names)) if not judge.are_alike(run(number - 1), run(number))
        ]
    order = sorted(judged)
    kinds: list[Judged] = []
    for number in order:
        if not kinds or not judge.are_alike(kinds[-1], judged[number]):
            kinds.append(judged[number])
    returns = any(judge.are_alike(one, other) for place, one in enumerate(kinds) for other in kinds[place + 2 :])
    trials = [VersionTrial(names[number], judged[number].outcome, judged[number].text) for number in order]
    changes = [_change(judge, *((names[number], judged[number]) for number in pair)) for pair in pairs]
    return VersionBisection(tuple(names), tuple(trials), tuple(changes), not returns)


def _change(judge: Judge, before: tuple[str, Judged], after: tuple[str, Judged]) -> VersionChange:
    """What differs in the optimized modules of two versions."""
    sides = [after, before] if after[1].is_right else [before, after]
    names = before[0], after[0]
    lacking = [name for name, judged in (before, after) if not judged.answer.compiled]
    if lacking:
        return VersionChange(*names, None, None, None, f"{lacking[0]} gives no optimized module")
    try:
        with unwarned():
            right, wrong = (parse(judged.answer.compiled[0]) for _, judged in sides)
            is_same = format_module(right, metadata=False) == format_module(wrong, metadata=False)
            result = diff(right, wrong, judge.inputs, **judge.options.of_parts)
    except HloError as error:
        return VersionChange(*names, None, None, None, str(error))
    return VersionChange(*names, is_same, sides[0][0], result)
