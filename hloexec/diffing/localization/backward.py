"""From a replacement that corrects the results, back to the earliest that does.

The first replacement found may be of a value that only propagates an error. Its operands are therefore compared with
those of the value that replaced it, then their operands, and so on; wherever two corresponding operands differ, that
replacement is tried.
"""

from __future__ import annotations

from collections import deque

from hloexec.diffing.graph import Instance, Node
from hloexec.diffing.localization.counterparts import arranged
from hloexec.diffing.localization.patch_search import Pairs, Patch, PatchSearch
from hloexec.diffing.replay import Replay, State, source_of
from hloexec.operations import traits_of
from hloexec.ops.registry import Role, role_of

__all__ = ["earliest_patch"]

_MOST_PAIRS = 60
"""More pairs of operands than this are not looked at: a bound on time. The bug farm's faults lie within 27."""
_MOST_OPERANDS = 4
"""Of operands that correspond to none, each may go with each; of more than this, for the sake of time, the first."""
_FEW_STEPS = 12
"""A step that is missing, or one too many, is a few instructions: behind more values than this it is not looked for."""


def earliest_patch(search: PatchSearch, state: State, patch: Patch, wrong: Pairs) -> Patch:
    """The same patch, or the earliest of what it was made of that has another value than its counterpart and puts
    the results right, too."""
    best = patch
    queue = deque([(patch.node, patch.counterpart)])
    seen: set[tuple[int, int]] = set()
    while queue and len(seen) < _MOST_PAIRS:
        ours, counterpart = queue.popleft()
        if counterpart is None:
            continue
        for pair in _operand_pairs(state, ours, counterpart):
            if (pair[0].number, pair[1].number) in seen:
                continue
            seen.add((pair[0].number, pair[1].number))
            if pair[0].digest.count != pair[1].digest.count:
                # Perhaps one side computes in more steps.
                queue.append(pair)
                continue
            if not _may_be_wrong(search.replay, state, ours, *pair):
                continue
            queue.append(pair)
            if pair[0].number < best.node.number:
                values = arranged(pair[1].value, state.raw[pair[0].number])
                found = (search.patch(state, *pair, value, wrong) for value in values)
                best = next(filter(None, found), best)
    return best


def _operand_pairs(state: State, ours: Node, counterpart: Node) -> list[tuple[Node, Node]]:
    """Which operands of two values may correspond and differ; what only moves elements is passed over.

    Operands are paired by position if both instructions have the same opcode; those that are the same in any place
    belong together. Of unlike instructions, what is left may go with each that is left.
    """
    if ours.instance.is_movement and ours.instance.inputs:
        return [(ours.instance.inputs[0], counterpart)]
    if counterpart.instance.is_movement and counterpart.instance.inputs:
        return [(ours, counterpart.instance.inputs[0])]
    first, second = _operands(ours.instance), _operands(counterpart.instance)
    if ours.digest.count != counterpart.digest.count:
        return [(entry, counterpart) for entry in first[:1]] + [(ours, entry) for entry in second[:1]]
    is_alike = ours.instance.opcode == counterpart.instance.opcode and len(first) == len(second)
    if is_alike and not traits_of(ours.instance.instruction).commutes:
        return list(zip(first, second, strict=True))
    rest = list(second)
    left = []
    swapped = []
    for entry in first:
        same = next((other for other in rest if _same(state, entry, other)), None)
        if same is None:
            left.append(entry)
        else:
            rest.remove(same)
            swapped.append((entry, same))
    return swapped + [(one, other) for one in left[:_MOST_OPERANDS] for other in rest[:_MOST_OPERANDS]]


def _same(state: State, ours: Node, counterpart: Node) -> bool:
    """Whether an operand has its counterpart's elements."""
    match = state.matches[ours.number]
    known = {entry.digest.in_any_order for entry in ((ours,) if match is None else (ours, match.node))}
    return counterpart.digest.in_any_order in known and ours.digest.count == counterpart.digest.count


def _may_be_wrong(replay: Replay, state: State, user: Node, ours: Node, counterpart: Node) -> bool:
    """Whether an operand may be wrong, if it should have been `counterpart`."""
    if ours.digest.count != counterpart.digest.count or ours.digest.family != counterpart.digest.family:
        return False
    is_input = role_of(ours.instance.instruction) is Role.PARAMETER and not ours.instance.scope
    if is_input or replay.is_right(state, ours, counterpart) or _is_own(user, ours):
        return False
    match = state.matches[ours.number]
    if match is None or not match.is_in_order or ours.digest.is_uniform:
        return True
    if source_of(ours).instance.opcode != source_of(match.node).instance.opcode:
        return True
    if not user.instance.name.startswith(_loop_of(ours.instance)):
        return True
    # Where `before` goes on from the same value, or has come from it, the user lacks a step or has one too many.
    return not (_is_made_of(counterpart, match.node) or _is_made_of(match.node, counterpart))


def _operands(instance: Instance) -> list[Node]:
    return [node for part in instance.operands for node in part]


def _is_own(user: Node, operand: Node) -> bool:
    """Whether an operand is a scalar constant that no loop carries, so that it belongs to the instruction that uses
    it."""
    source = operand
    while source.instance.inputs:
        traits = traits_of(source.instance.instruction)
        if traits.moves != (0,) and not traits.converts:
            break
        source = source.instance.inputs[0]
    return (
        source.instance.is_constant
        and source.digest.is_uniform
        and _loop_of(source.instance) == _loop_of(user.instance)
    )


def _loop_of(instance: Instance) -> str:
    """The path to the innermost loop around an instruction, with the iteration; empty outside of loops."""
    return instance.name[: instance.name.rfind("[") + 1] and instance.name[: instance.name.rfind("]") + 1]


def _is_made_of(node: Node, other: Node) -> bool:
    """Whether a value is computed from another one in a few steps."""
    pending = deque([node])
    seen: set[int] = set()
    while pending and len(seen) < _FEW_STEPS:
        current = pending.popleft()
        for entry in current.instance.inputs:
            if entry.device != other.device:
                continue
            if entry.digest.in_any_order == other.digest.in_any_order and entry.digest.count == other.digest.count:
                return True
            if entry.number not in seen:
                seen.add(entry.number)
                pending.append(entry)
    return False
