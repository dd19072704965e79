"""Whether a suspect that puts results right is to blame for certain.

A value that is put right puts the results right wherever it lies on the way to them. To blame is what computes it if
two things hold. It is wrong in itself: on what its counterpart takes, it does not give what that gives. And it is the
only one: no change of another step makes the value right as well.
"""

from __future__ import annotations

import attrs

from hloexec.diffing.agreement import arranged, is_near
from hloexec.diffing.graph import Node
from hloexec.diffing.limits import LIMITS
from hloexec.diffing.localization.patches import Patch
from hloexec.diffing.localization.regions import Regions
from hloexec.diffing.localization.relations import NodePair, Relation, Relations, is_filled, transparent_chain
from hloexec.diffing.localization.repairs import Repairs, tells_something
from hloexec.diffing.localization.suspects import Suspect
from hloexec.diffing.replaying.evaluation import Overlay
from hloexec.diffing.replaying.replay import Replay
from hloexec.operations import traits_of

__all__ = ["Guilt"]


class Guilt:
    """The guilt of suspects in one state of a replay."""

    def __init__(self, replay: Replay, relations: Relations, regions: Regions, repairs: Repairs) -> None:
        self._replay = replay
        self._relations = relations
        self._regions = regions
        self._repairs = repairs

    def is_innocent(self, pair: NodePair) -> bool:
        """Whether what computes a value gives the right one on what its counterpart takes."""
        operands = self._relations.operand_pairs(pair.ours, pair.theirs) or []
        values = self._relations.state.values
        changes = {
            each.ours.number: value
            for each in operands
            if self._relations.of(each.ours, each.theirs) is not Relation.EQUAL
            for value in [next(arranged(each.theirs.value, values[each.ours.number]), None)]
            if value is not None
        }
        if not changes:
            return False
        arrays = self._replay.evaluator.results(pair.ours.instance, Overlay(values, changes))
        expected = pair.theirs.value
        return arrays is not None and any(
            is_near(arrays[pair.ours.leaf], value) for value in arranged(expected, arrays[pair.ours.leaf])
        )

    def may_inherit(self, pair: NodePair) -> bool:
        """Whether what moves elements, and has another opcode than its counterpart, takes none of `before`'s values, or
        one whose elements lie elsewhere."""
        instance = pair.ours.instance
        if (
            traits_of(instance.instruction).moves is None
            or self._relations.operand_pairs(pair.ours, pair.theirs) is not None
        ):
            return False
        sources = [transparent_chain(entry)[-1] for entry in instance.inputs]
        matches = [self._relations.state.matches[entry.number] for entry in sources]
        return any(match is None or not match.is_in_order for match in matches)

    def may_be_innocent(self, pair: NodePair) -> bool:
        """Whether what computes a value is innocent, or what it moves may have lain wrong before."""
        return self.is_innocent(pair) or self.may_inherit(pair)

    def judged(self, suspect: Suspect, patch: Patch | None) -> Suspect:
        """A suspect, with whether it is certain, and with what else may be meant."""
        pair = suspect.pair
        is_proven = patch is not None and patch.is_proof and not suspect.is_end
        if suspect.is_certain or not is_proven or suspect.decision is not None or suspect.place is not None:
            is_certain = suspect.is_certain or is_proven
            return attrs.evolve(suspect, is_certain=is_certain, is_proven=is_certain)
        if self._relations.starts_alike(pair.ours):
            # A loop may hand its operands on exchanged.
            return suspect
        if self._is_wrong(pair):
            return attrs.evolve(suspect, is_certain=True, is_proven=True)
        if self._relations.is_confirmed(pair.ours):
            # It is right, and used in the wrong place.
            return suspect
        region = suspect.region or self._alternatives(suspect)
        # What takes another value would be right on the one that it should take; what computes otherwise would not.
        is_guilty = tells_something(pair.theirs) if suspect.reason else not self.may_be_innocent(pair)
        shown = region if len(region) <= LIMITS.largest_region else ()
        return attrs.evolve(suspect, region=shown, is_certain=is_guilty and len(region) <= 1, is_proven=is_guilty)

    def _is_wrong(self, pair: NodePair) -> bool:
        """Whether one opcode gives something else on the same operands, but for constants; or takes what it should
        give."""
        if any(self._relations.is_computed_alike(entry, pair.theirs) for entry in pair.ours.instance.inputs):
            return True
        operands = self._relations.operand_pairs(pair.ours, pair.theirs)
        return operands is not None and all(
            (is_filled(each.ours) and is_filled(each.theirs))
            or self._relations.of(each.ours, each.theirs) is Relation.EQUAL
            for each in operands
        )

    def _alternatives(self, suspect: Suspect) -> tuple[Node, ...]:
        """What is suspected, and the steps of which a change makes the value right as well; nothing if none does."""
        pair, node = suspect.trial or suspect.pair, suspect.pair.ours
        steps, others = self._regions.steps(pair)
        repair = self._repairs.of(pair, steps[: LIMITS.missing_steps], others)
        found = {each.number: each for each in (node, *(() if repair is None else repair.alike))}
        return tuple(found[number] for number in sorted(found)) if len(found) > 1 else ()
