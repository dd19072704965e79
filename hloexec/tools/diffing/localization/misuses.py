"""Instructions that compute from another value than they should, though that is right in itself."""

from __future__ import annotations

from hloexec.core.places import RunPlace
from hloexec.ops.registry import traits_of
from hloexec.tools.diffing.control import Decisions, carrying_loop
from hloexec.tools.diffing.findings import InstructionRun
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.relations import (
    NodePair,
    Relation,
    Relations,
    Suspect,
    constant_of,
    is_varied,
    transparent_chain,
)


class Misuses:
    """The misuses of one state of a replay; `decisions` are those of `after`."""

    def __init__(self, relations: Relations, decisions: Decisions) -> None:
        self._relations = relations
        self._decisions = decisions

    def already(self, user: NodePair, operand: NodePair) -> Suspect | None:
        """The user, if its operand is what the user should be, and no accident explains it."""
        if self._relations.of(operand.ours, user.theirs) is not Relation.EQUAL:
            return None
        is_evident = self._relations.is_evidence(operand.ours) or self._counts_alike(operand.ours, user.theirs)
        if not (is_evident or self._relations.is_computed_alike(operand.ours, user.theirs)):
            return None
        return Suspect(user, f"its operand %{_name(operand.ours)} is what it should be")

    def _counts_alike(self, ours: Node, theirs: Node) -> bool:
        """Whether two values were equal in the iterations before, too, and others in each."""
        sides = [[run.results[node.leaf] for run in self._relations.runs_before(node)] for node in (ours, theirs)]
        pairs = list(zip(*sides, strict=False))[: LIMITS.few_runs]
        values = {entry.digest.in_order for entry, _ in pairs} | {ours.digest.in_order}
        is_equal = all(self._relations.of(*pair) is Relation.EQUAL for pair in pairs)
        return is_equal and len(values) > len(pairs) == LIMITS.few_runs

    def constant(self, user: NodePair, operand: NodePair) -> Suspect | None:
        """The user of a constant that is another one than it should be, unless a loop carries that from elsewhere."""
        ours, theirs = constant_of(operand.ours), constant_of(operand.theirs)
        if ours is None or (theirs is not None and ours.instance.iterations != user.ours.instance.iterations):
            return None
        wanted = f"%{_name(operand.theirs)}" if theirs is None else _number(theirs)
        place = self.carrier(user, operand)
        region = () if place else _way_of(user.ours, operand.ours)
        # What should have been computed may have been computed elsewhere, and lost: the user may be right.
        return Suspect(user, _reason(place, _number(ours), wanted), region=region, place=place, is_end=theirs is None)

    def misplaced(self, user: NodePair, operand: NodePair, other: Node) -> Suspect:
        """What uses another value of `before` than it should: the user, or what moves the operand for it.

        If one instruction gave both in `before`, in another iteration, what says which iteration it is may be wrong:
        its operands then.
        """
        node = user.ours
        if operand.ours in node.instance.inputs and len(transparent_chain(operand.ours)) > 1:
            node = operand.ours
        place = self.carrier(user, operand)
        reason = _reason(place, f"%{_name(other)}", f"%{_name(operand.theirs)}")
        if _is_part_of_same(other, operand.theirs):
            reason = f"it takes another part of %{_name(other)} than it should"
        is_same_step = other.instance.static == transparent_chain(operand.theirs)[-1].instance.static
        is_evident = self.is_evident(operand, other)
        return Suspect(
            NodePair(node, user.theirs),
            reason,
            user,
            has_wrong_operands=is_same_step and place is None and not is_evident,
            place=place,
            is_end=(not is_evident and not is_varied(operand.ours))
            or (place is not None and self._is_there(user, operand))
            or self._may_be_computed_wrong(operand, other),
        )

    def _may_be_computed_wrong(self, operand: NodePair, other: Node) -> bool:
        """Whether an operand is a value that `after` has elsewhere as well, computed as its counterpart is but for
        attributes: another slice of the same array."""
        ours, theirs = transparent_chain(operand.ours)[-1].instance, transparent_chain(operand.theirs)[-1].instance
        is_alike = ours.opcode == theirs.opcode and self._relations.have_same_operands(ours, theirs)
        return is_alike and not ours.is_source and len(self._relations.holders(other)) > 1

    def _is_there(self, user: NodePair, operand: NodePair) -> bool:
        """Whether a loop hands on what a user should take as well: then the user may take the wrong one of both."""
        loop = carrying_loop(user.ours, transparent_chain(operand.ours)[-1])
        if loop is None:
            return False
        handings = self._decisions.handings(loop[0])
        if loop[1] < len(handings):
            nodes = handings[loop[1]].handed
            return any(self._relations.of(node, operand.theirs) is Relation.EQUAL for node in nodes)
        return bool(self._relations.holders(operand.theirs))

    def is_evident(self, operand: NodePair, other: Node) -> bool:
        """Whether an operand that is another value of `before` is so because it is used in the wrong place.

        If `after` has that value elsewhere as well, or if both are parts of what one instruction gives in one
        iteration, it is rather computed wrong; not if it lacks only the step that makes it what it should be.
        """
        ours, theirs = transparent_chain(operand.ours)[-1], transparent_chain(operand.theirs)[-1]
        is_a_step_short = any(is_varied(entry) and entry.digest == other.digest for entry in theirs.instance.inputs)
        if is_a_step_short and traits_of(theirs.instance.instruction).moves is None:
            return True
        is_evidence = ours.instance.is_source or self._relations.is_evidence(ours)
        if not is_evidence or len(self._relations.holders(other)) > 1:
            return False
        is_other_iteration = ours.instance.iterations != theirs.instance.iterations
        return is_other_iteration or not _is_part_of_same(other, theirs)

    def carrier(self, user: NodePair, operand: NodePair) -> InstructionRun | None:
        """What hands an operand on to the iteration in which it is used, if loops carry both it and what it should be,
        or if it was what it should be in an earlier iteration: then, the user was right."""
        ours, theirs = transparent_chain(operand.ours)[-1], transparent_chain(operand.theirs)[-1]
        loop = carrying_loop(user.ours, ours)
        if loop is None:
            return None
        if user.theirs is operand.theirs:
            # What moves the operand in `after` has no counterpart.
            is_carried = ours.instance.iterations == theirs.instance.iterations
        else:
            other = carrying_loop(user.theirs, theirs)
            is_carried = other is not None and (_is_inside(ours, loop[0]) or _is_inside(theirs, other[0]))
        if not (is_carried or self._was_right(user.ours, operand)):
            return None
        chain = transparent_chain(operand.ours)[:-1]
        passed = [node for node in chain if loop[0].iteration(node.instance.scope) == loop[1]]
        return passed[0].place if passed else self._decisions.handed_on(*loop)

    def _was_right(self, user: Node, operand: NodePair) -> bool:
        """Whether the user's instruction took what it should in an earlier iteration, if that is the same in each."""
        theirs = transparent_chain(operand.theirs)[-1]
        if any(run.results[theirs.leaf].digest != theirs.digest for run in self._relations.runs_before(theirs)):
            return False
        slots = [place for place, each in enumerate(_taken(user)) if operand.ours in transparent_chain(each)]
        runs = self._relations.runs_before(user)
        sources = [transparent_chain(_taken(run.results[user.leaf])[slot])[-1] for run in runs for slot in slots]
        right = [entry for entry in sources if self._relations.of(entry, operand.theirs) is Relation.EQUAL]
        return any(map(is_varied, right)) or len(right) >= LIMITS.few_runs


def _is_part_of_same(node: Node, other: Node) -> bool:
    """Whether two values of `before` are what one instruction gave in one iteration, or parts of it."""
    return transparent_chain(node)[-1].instance.name == transparent_chain(other)[-1].instance.name


def is_made_of(node: Node, other: Node) -> bool:
    """Whether a value is computed from another one in a few steps."""
    pending = [node]
    for current in pending:
        for entry in current.instance.inputs:
            if entry.digest.in_any_order == other.digest.in_any_order and entry.device == other.device:
                return True
            if len(pending) < LIMITS.missing_steps and entry not in pending:
                pending.append(entry)
    return False


def _taken(node: Node) -> list[Node]:
    """What an instruction takes on its device, in order."""
    return [entry for part in node.instance.operands for entry in part]


def _is_inside(node: Node, loop: RunPlace) -> bool:
    return loop.iteration(node.instance.scope) is not None


def _reason(place: InstructionRun | None, ours: str, theirs: str) -> str:
    verb = "uses" if place is None else "returns"
    return f"it {verb} {ours}, where the module before {verb} {theirs}"


def _name(node: Node) -> str:
    return node.instance.instruction.name


def _way_of(user: Node, operand: Node) -> tuple[Node, ...]:
    """A constant, what repeats, moves or converts it on the way to what uses it, and that; nothing if that is much, or
    only the constant."""
    found = [user, operand]
    while found[-1].instance.inputs:
        found.append(found[-1].instance.inputs[0])
    return tuple(reversed(found)) if 2 < len(found) <= LIMITS.largest_region else ()


def _number(node: Node) -> str:
    """The number that a constant is filled with."""
    return str(node.value.reshape(-1)[0]) if node.value.size else "nothing"
