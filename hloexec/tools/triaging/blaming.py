"""The instruction to blame for a difference, and the policy that explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, TupleShape, flat_shapes
from hloexec.core.places import split_name
from hloexec.core.tree import flat
from hloexec.core.values import Array, Inputs, Value, join_values
from hloexec.engine.exec.running import run_with
from hloexec.errors import HloError
from hloexec.language.origins import hlo_line, source_lines
from hloexec.ops.policies.policy import POLICIES, NumericsPolicy
from hloexec.tools.diffing import Diff, diff
from hloexec.tools.explaining import Explained, Explanation, explain
from hloexec.tools.minifying.case import Case, assembled, is_glue, outputs_of
from hloexec.tools.minifying.opening import without_calls
from hloexec.tools.nan_search import find_nan
from hloexec.tools.triaging.collecting import Settings
from hloexec.tools.triaging.findings import Blamed, PolicyFound

_MOST_VALUES = 500
"""Results of instructions that a counterpart is asked for at once."""


def blamed_by_diff(result: Diff) -> Blamed | None:
    """The first finding of a diff; None where there is none."""
    if not result.findings:
        return None
    first = result.findings[0]
    return _blamed(
        result.after,
        result.after.by_name[first.after.computation],
        first.after.of(result.after),
        path=first.after.path,
        instead_of=None if first.before is None else first.before.line(result.before),
        is_certain=first.is_certain,
        reason=first.reason,
    )


def blamed_between_policies(
    module: Module, inputs: list[list[Value]], policies: tuple[NumericsPolicy, NumericsPolicy], settings: Settings
) -> Blamed | None:
    """The first instruction that the second policy makes differ from the first."""
    budget = settings.search_seconds
    return blamed_by_diff(
        diff(module, module, inputs, numerics=policies, top=1, budget=budget, **settings.trial_options)
    )


def blamed_named(module: Module, name: str) -> Blamed | None:
    """An instruction by the name that policies have for it, `body/dot.3`; None where there is none."""
    computation, instruction = split_name(name)
    home = module.by_name.get(computation) if computation else module.entry
    target = None if home is None else home.by_name.get(instruction)
    return None if home is None or target is None else _blamed(module, home, target)


def blamed_by_nan(module: Module, inputs: list[list[Value]], settings: Settings) -> Blamed | None:
    """The instruction that makes NaN or infinities of finite numbers; None where none does."""
    finding = find_nan(module, inputs, elements=0, **settings.options).finding
    if finding is None:
        return None
    home = module.by_name[finding.computation]
    return _blamed(module, home, home.by_name[finding.instruction], path=finding.name, reason=finding.reason)


def blamed_elsewhere(module: Module, inputs: list[list[Value]], settings: Settings) -> Blamed | None:
    """The first instruction whose value on a counterpart no policy explains, from the operands that it has there.

    The counterpart runs the module once more, with the values of the entry computation's instructions as its results,
    and its calls and fusions opened. That may change how it is compiled; then nothing may be found.
    """
    case = Case(module, inputs)
    if settings.counterpart is None or case.devices > 1:
        return None
    case = without_calls(case) or case
    entry = case.module.entry
    names = [
        instruction.name
        for instruction in entry
        if isinstance(instruction.shape, ArrayShape) and not is_glue(instruction)
    ][:_MOST_VALUES]
    shapes = {instruction.name: instruction.shape for instruction in entry}
    outputs = list(dict.fromkeys([*names, *(name for name in outputs_of(case.module) if shapes[name].is_array)]))
    open_case = assembled(case, entry.instructions, outputs, None, shapes)
    result = settings.counterpart.run(open_case.module, inputs, **settings.options).value()
    leaves = flat(result)
    arrays = {name: leaf for name, leaf in zip(outputs, leaves, strict=True) if isinstance(leaf, np.ndarray)}
    unexplained = explain(
        open_case.module,
        open_case.inputs,
        result,
        values=_values(arrays, names),
        budget=settings.search_seconds,
        **settings.trial_options,
    ).first_unexplained
    return None if unexplained is None else _blamed(case.module, entry, entry.by_name[unexplained.name])


def _values(arrays: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    return {name: arrays[name] for name in names if name in arrays}


def _blamed(
    module: Module,
    home: Computation,
    instruction: Instruction,
    *,
    path: str = "",
    instead_of: str | None = None,
    is_certain: bool = True,
    reason: str = "",
) -> Blamed:
    shapes = [instruction.shape, *(operand.shape for operand in home.operands_of(instruction))]
    types = dict.fromkeys(str(leaf.element_type) for leaf in flat_shapes(*shapes) if isinstance(leaf, ArrayShape))
    return Blamed(
        opcode=instruction.opcode,
        element_types=tuple(types),
        shape=str(instruction.shape),
        shape_class=_class_of(instruction.shape),
        instruction=instruction.name,
        computation=home.name,
        path=path or instruction.name,
        hlo=hlo_line(instruction),
        op_name=instruction.op_name or None,
        source=tuple(map(str, source_lines(module, instruction))),
        instead_of=instead_of,
        is_certain=is_certain,
        reason=reason,
    )


def _class_of(shape: Shape) -> str:
    """What sets shapes apart for a compiler: arrays without elements take other ways than those with some."""
    if isinstance(shape, TupleShape):
        return "tuple"
    return "empty" if isinstance(shape, ArrayShape) and 0 in shape.dimensions else "array"


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
    names = {plain.name for part in policy.parts for plain in part.plain_parts}
    order = [name for name in POLICIES if name in names]
    return "+".join([*order, *sorted(names - {*order})]) or policy.name.partition(",")[0]


def policy_words(names: str) -> str:
    """A policy in words: `TF32`, `flushed denormals and bf16 operands`."""
    return " and ".join(_WORDS.get(name, name) for name in names.split("+"))


def explained_module(
    module: Module, inputs: Inputs, expected: Value | dict[str, Array], settings: Settings
) -> tuple[PolicyFound | None, Explanation | None]:
    """The policy under which a module gives what is expected of it, and all that `explain` says; None where none
    does."""
    try:
        explanation = explain(module, inputs, expected, budget=settings.search_seconds, **settings.trial_options)
    except HloError:
        return None, None
    return policy_found(explanation, is_whole=True), explanation


def explained_pair(result: Diff, inputs: list[list[Value]], settings: Settings) -> PolicyFound | None:
    """The policy under which `before` gives what `after` gives: all of it, or what is blamed if that is all there is.

    `before` is only asked for all of it where both have the same parameters and results.
    """
    before, after = result.before, result.after
    if _take_and_give_the_same(before, after):
        with suppress(HloError):
            expected = join_values(run_with(after, inputs, settings.options))
            whole, _ = explained_module(before, inputs, expected, settings)
            if whole is not None:
                return whole
    if len(result.findings) != 1:
        return None
    with suppress(HloError):
        part = result.extract()
        if part.before is not None and part.is_comparable:
            expected = join_values(run_with(part.after, part.inputs, settings.options))
            budget = settings.search_seconds
            told = explain(part.before, part.inputs, expected, budget=budget, **settings.trial_options)
            return policy_found(told, is_whole=False)
    return None


def _take_and_give_the_same(before: Module, after: Module) -> bool:
    counts = [(module.replica_count, module.num_partitions) for module in (before, after)]
    shapes = [(*module.entry.parameter_shapes, module.entry.result_shape) for module in (before, after)]
    return (
        counts[0] == counts[1]
        and len(shapes[0]) == len(shapes[1])
        and all(ours.compatible(theirs) for ours, theirs in zip(*shapes, strict=True))
    )


def policy_found(explanation: Explanation, *, is_whole: bool) -> PolicyFound | None:
    """The policy that explains what is expected, all of it or what is to blame; None where none does."""
    if explanation.verdict is not Explained.POLICY:
        return None
    names = without_names(explanation.best.policy)
    return PolicyFound(
        policy=explanation.best.name,
        words=policy_words(names),
        alike=tuple(trial.name for trial in explanation.alike),
        bits_explained=explanation.best.bits,
        equal_share=explanation.best.equal_share,
        is_whole=is_whole,
    )
