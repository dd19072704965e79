"""The policy that explains a difference, in the words that people use for it."""

from __future__ import annotations

from contextlib import suppress

from hloexec.core.ir import Module
from hloexec.core.values import Array, Inputs, Value, join_values
from hloexec.engine.exec.running import run_with
from hloexec.errors import HloError
from hloexec.ops.policies.policy import POLICIES, NumericsPolicy
from hloexec.tools.diffing import Diff
from hloexec.tools.explaining import Explained, Explanation, explain
from hloexec.tools.triaging.findings import PolicyFound
from hloexec.tools.triaging.settings import Settings

_WORDS = {
    "exact": "sums without rounding",
    "ftz": "flushed denormals",
    "xla-cpu": "XLA:CPU's flushed denormals and functions",
    "tf32": "TF32",
    "tf32-cut": "TF32 by truncation",
    "tf32x3": "TF32 in three passes",
    "bf16": "bf16 operands",
    "bf16x3": "bf16 in three passes",
    "bf16x6": "bf16 in six passes",
    "excess": "excess precision",
    "narrow-sums": "sums rounded at each step",
    "fast-functions": "fast functions",
}


def without_names(policy: NumericsPolicy) -> str:
    """A policy without the names of the instructions that have it: `tf32`, `ftz+bf16`."""
    found = {plain.name for part in policy.parts for plain in part.plain_parts}
    order = [name for name in POLICIES if name in found]
    return "+".join([*order, *sorted(found - {*order})]) or policy.name.partition(",")[0]


def policy_words(names: str) -> str:
    """A policy in words: `TF32`, `flushed denormals and bf16 operands`."""
    return " and ".join(_WORDS.get(name, name) for name in names.split("+"))


def explained_module(
    module: Module, inputs: Inputs, expected: Value | dict[str, Array], settings: Settings
) -> tuple[PolicyFound | None, Explanation | None]:
    """The policy under which a module gives what is expected of it, and all that `explain` says; None where none
    does."""
    try:
        found = explain(module, inputs, expected, budget=settings.search_seconds, **settings.trial_options)
    except HloError:
        return None, None
    return _found(found, is_whole=True), found


def explained_pair(found: Diff, inputs: list[list[Value]], settings: Settings) -> PolicyFound | None:
    """The policy under which `before` gives what `after` gives: all of it, or what is blamed if that is all there is.

    `before` is only asked for all of it where both have the same parameters and results.
    """
    before, after = found.before, found.after
    if _take_and_give_the_same(before, after):
        with suppress(HloError):
            expected = join_values(run_with(after, inputs, settings.options))
            whole, _ = explained_module(before, inputs, expected, settings)
            if whole is not None:
                return whole
    if len(found.findings) != 1:
        return None
    with suppress(HloError):
        part = found.extract()
        if part.before is not None and part.is_comparable:
            expected = join_values(run_with(part.after, part.inputs, settings.options))
            budget = settings.search_seconds
            told = explain(part.before, part.inputs, expected, budget=budget, **settings.trial_options)
            return _found(told, is_whole=False)
    return None


def _take_and_give_the_same(before: Module, after: Module) -> bool:
    counts = [(each.replica_count, each.num_partitions) for each in (before, after)]
    shapes = [(*each.entry.parameter_shapes, each.entry.result_shape) for each in (before, after)]
    return (
        counts[0] == counts[1]
        and len(shapes[0]) == len(shapes[1])
        and all(ours.compatible(theirs) for ours, theirs in zip(*shapes, strict=True))
    )


def _found(found: Explanation, *, is_whole: bool) -> PolicyFound | None:
    if found.verdict is not Explained.POLICY:
        return None
    names = without_names(found.best.policy)
    return PolicyFound(
        policy=found.best.name,
        words=policy_words(names),
        alike=tuple(trial.name for trial in found.alike),
        bits_explained=found.best.bits,
        equal_share=found.best.equal_share,
        is_whole=is_whole,
    )
