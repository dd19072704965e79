"""Groups of modules that have the same cause.

Modules whose difference a policy explains are in one group per policy: the rounding is the cause, whichever instruction
shows it first. Others are together if the same opcode is to blame, for the same element types and class of shapes, and
differs in the same way: it uses another operand, it is right as another operation. What could not be judged is
grouped by what kept it from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from hloexec.core.wording import first_line
from hloexec.ops.policies.policy import numerics_policy
from hloexec.tools.triaging.explaining import policy_words, without_names
from hloexec.tools.triaging.findings import OUTCOMES, CauseGroup, TriagedModule

_Key: TypeAlias = tuple[str, str, tuple[str, ...], str, str, str]
_NAMES = re.compile(r"[%'\"][^\s'\"]+['\"]?|-?\b\d[\d.]*(?:e[-+]?\d+)?|-?\binf\b|\S*/\S*")
"""What messages have that is of one module only: names, numbers and paths."""
_MOST_REASON = 160
_USUAL = "array"
"""A class of shapes that goes without saying."""


def groups_of(modules: Iterable[TriagedModule]) -> list[CauseGroup]:
    """The groups of those that differ or could not be judged, the worst outcome and the largest group first.

    Those that a policy explains come after others that differ.
    """
    found: dict[_Key, list[TriagedModule]] = {}
    for module in modules:
        if not module.agrees:
            found.setdefault(_key(module), []).append(module)
    ranked = sorted(found.items(), key=lambda pair: (*_rank(pair[1][0]), -len(pair[1]), pair[0]))
    return [_group(number, members) for number, (_, members) in enumerate(ranked, 1)]


def _rank(module: TriagedModule) -> tuple[int, bool]:
    """What a policy explains is no fault of a compiler, so it comes after what none does."""
    return OUTCOMES.index(module.outcome), module.explained is not None


def representative_of(members: Sequence[TriagedModule]) -> TriagedModule:
    """The smallest one, if possible of those whose results differ; others have only come to them in another way."""
    return min(members, key=lambda module: (not module.difference, module.instruction_count, module.name))


def _difference(module: TriagedModule) -> str:
    """How results differ, or would on other inputs."""
    return module.difference or "numbers"


def _key(module: TriagedModule) -> _Key:
    if module.outcome != "differ":
        return module.outcome, _without_names(module.reason), (), "", "", ""
    if module.explained is not None:
        return module.outcome, "", (), "", "", _policy(module)
    if module.blamed is None:
        types = () if module.difference == "shapes" else _types(module)
        return module.outcome, "", types, "", _difference(module), ""
    blamed = module.blamed
    how = _without_names(blamed.reason)
    return module.outcome, blamed.opcode, blamed.element_types, blamed.shape_class, _difference(module), how


def _policy(module: TriagedModule) -> str:
    assert module.explained is not None
    return without_names(numerics_policy(module.explained.policy))


def _types(module: TriagedModule) -> tuple[str, ...]:
    """Element types of the outputs that differ."""
    return tuple(dict.fromkeys(output.actual_shape.partition("[")[0] for output in module.outputs))


def _without_names(reason: str) -> str:
    """A reason without what is of one module only."""
    return " ".join(_NAMES.sub("…", first_line(reason)).split())[:_MOST_REASON]


def _group(number: int, members: Sequence[TriagedModule]) -> CauseGroup:
    first = members[0]
    is_blamed = first.outcome == "differ" and first.explained is None and first.blamed is not None
    blamed = first.blamed if is_blamed else None
    types = dict.fromkeys(each for module in members if module.blamed for each in module.blamed.element_types)
    return CauseGroup(
        number=number,
        outcome=first.outcome,
        cause=_cause(members),
        opcode=None if blamed is None else blamed.opcode,
        element_types=tuple(types) or _types(first),
        shape_class=None if blamed is None else blamed.shape_class,
        difference=_difference(first) if first.outcome == "differ" else first.difference,
        policy=_policy(first) if first.explained is not None else None,
        members=tuple(members),
        representative=representative_of(members).name,
    )


def _cause(members: Sequence[TriagedModule]) -> str:
    module = members[0]
    if module.outcome != "differ":
        return _common([each.reason for each in members])
    if module.explained is not None:
        return policy_words(_policy(module))
    if module.difference == "shapes" and module.blamed is None:
        return "results of other shapes than expected"
    how = "" if _difference(module) == "numbers" else f", {module.difference}"
    if module.blamed is None:
        return f"results of {', '.join(_types(module))}{how}"
    shapes = "" if module.blamed.shape_class == _USUAL else f" ({module.blamed.shape_class})"
    reason = _common([each.blamed.reason for each in members if each.blamed is not None])
    why = f": {reason}" if reason else ""
    return f"{module.blamed.opcode} of {', '.join(module.blamed.element_types)}{shapes}{how}{why}"


def _common(reasons: Sequence[str]) -> str:
    """What reasons have in common that are the same but for names."""
    lines = {first_line(reason) for reason in reasons}
    return lines.pop() if len(lines) == 1 else _without_names(reasons[0])
