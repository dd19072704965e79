"""Whether a suspect that puts results right is to blame for certain.

A value that is put right puts the results right wherever it lies on the way to them. To blame is what computes it if
two things hold. It is wrong in itself: on what its counterpart takes, it does not give what that gives. And it is the
only one: no change of another step makes the value right as well.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hloexec.core.dtypes import element_type_of
from hloexec.core.precision import unit_roundoff
from hloexec.ops.registry import exchanges, traits_of
from hloexec.tools.diffing.agreement import arranged, is_near
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.compensations import is_computed_from
from hloexec.tools.diffing.localization.patches import Patch
from hloexec.tools.diffing.localization.regions import Regions, could_be
from hloexec.tools.diffing.localization.relations import (
    NodePair,
    Relation,
    Relations,
    Suspect,
    is_filled,
    is_varied,
    transparent_chain,
)
from hloexec.tools.diffing.localization.repairs import Repairs, tells_something
from hloexec.tools.diffing.replaying.evaluation import Overlay
from hloexec.tools.diffing.replaying.replay import Replay


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

    def judged(self, suspect: Suspect, patch: Patch | None, corrects: Callable[[NodePair], bool]) -> Suspect:
        """A suspect, with whether it is certain, and with what else may be meant; `corrects` says whether the results
        come right if one value alone is replaced by what it should be."""
        found = self._by_itself(suspect, patch)
        if not found.is_certain or patch is None or patch.pair.ours is not suspect.pair.ours:
            return found
        twins = [node for node in self._twins(patch.pair.ours) if corrects(NodePair(node, patch.pair.theirs))]
        if not twins:
            return found
        region = sorted([suspect.pair.ours, *twins], key=lambda node: node.number)
        return attrs.evolve(found, is_certain=False, region=tuple(region[: LIMITS.largest_region]))

    def _twins(self, node: Node) -> list[Node]:
        """What gave the same numbers on its device, and is neither computed from it nor the other way round: it may be
        meant as well."""
        found = [
            entry
            for entry in self._replay.graph.has_digest(node.digest)
            if entry.instance.static != node.instance.static
            and entry.device == node.device
            and entry.shape == node.shape
            and entry.instance.iterations == node.instance.iterations
            and not (is_computed_from(entry, node) or is_computed_from(node, entry))
        ]
        return found[: LIMITS.twins]

    def _by_itself(self, suspect: Suspect, patch: Patch | None) -> Suspect:
        """The same, whether or not other values are like its own."""
        pair = suspect.pair
        is_proven = patch is not None and patch.is_proof and not suspect.is_end
        if suspect.is_certain or not is_proven or suspect.place is not None:
            is_certain = suspect.is_certain or is_proven
            return attrs.evolve(suspect, is_certain=is_certain, is_proven=is_certain)
        if suspect.is_less_precise:
            return attrs.evolve(suspect, is_certain=True, is_proven=True)
        # What decides how a loop runs counts alike in all of them: if it takes what it should give, that is evidence.
        is_decision = suspect.decision is not None
        is_right = self._relations.is_confirmed(pair.ours) and not (is_decision and self._takes_its_own(pair))
        if is_right and is_decision:
            # Loops or conditionals that are not the same ones may have been compared.
            return attrs.evolve(suspect, is_proven=True)
        if self._relations.starts_alike(pair.ours) or _adds_rounded_parts(pair):
            # A loop may hand its operands on exchanged; and what parts of a sum lose in few bits is not lost by adding
            # them.
            return suspect
        if not suspect.is_restructured and self._is_wrong(pair):
            return attrs.evolve(suspect, is_certain=True, is_proven=True)
        if is_right:
            # It is used in the wrong place.
            return suspect
        region = suspect.region or self._alternatives(suspect)
        # What takes another value would be right on the one that it should take; what computes otherwise would not.
        is_guilty = tells_something(pair.theirs) if suspect.reason else not self.may_be_innocent(pair)
        is_guilty |= is_decision and not suspect.is_restructured
        is_certain = is_guilty and len(region) <= 1 and self._nothing_else_is_wrong(suspect)
        if not is_certain and len(region) <= 1:
            region = self._movements(pair)
        shown = region if len(region) <= LIMITS.largest_region else ()
        return attrs.evolve(suspect, region=shown, is_certain=is_certain, is_proven=is_guilty)

    def _nothing_else_is_wrong(self, suspect: Suspect) -> bool:
        """Whether all that a suspect takes is right, but for the one value that it should not take."""
        if suspect.is_repair:
            return True
        if not suspect.reason or suspect.is_restructured:
            is_right = self._relations.is_only_rearranged(suspect.pair.ours, suspect.pair.theirs)
            return self._knows_operands(suspect.pair) and not is_right
        pair = suspect.trial or suspect.pair
        if self._takes_its_own(pair):
            return True
        operands = self._relations.operand_pairs(pair.ours, pair.theirs) or []
        different = [each for each in operands if self._relations.of(each.ours, each.theirs) is not Relation.EQUAL]
        return len(different) <= 1 and all(self._is_sound(each.ours) for each in different)

    def _is_sound(self, node: Node) -> bool:
        """Whether a value that is another one of `before` is computed from values of `before`, too: else it may be so
        by accident, and be the one that is wrong."""
        pending = [transparent_chain(node)[-1]]
        for _ in range(LIMITS.operands_deep):
            if not all(map(self._relations.state.matches.is_any, (entry.number for entry in pending))):
                return False
            inputs = [transparent_chain(entry)[-1] for current in pending for entry in current.instance.inputs]
            pending = [entry for entry in inputs if not (entry.instance.is_source or is_filled(entry))]
        return True

    def _movements(self, pair: NodePair) -> tuple[Node, ...]:
        """A node, and what moves its operands that may lie otherwise than it takes them."""
        pairs = self._relations.operand_pairs(pair.ours, pair.theirs) or []
        placed = {each.ours.number for each in pairs if self._relations.of(each.ours, each.theirs) is Relation.EQUAL}
        operands = [entry for entry in pair.ours.instance.inputs if entry.number not in placed and not is_filled(entry)]
        found = {node.number: node for entry in operands for node in transparent_chain(entry)[:-1]}
        return (*(found[number] for number in sorted(found)), pair.ours) if found else ()

    def _takes_its_own(self, pair: NodePair) -> bool:
        """Whether an operand is what an instruction should give."""
        return any(self._relations.of(entry, pair.theirs) is Relation.EQUAL for entry in pair.ours.instance.inputs)

    def _is_wrong(self, pair: NodePair) -> bool:
        """Whether one opcode gives something else on the same operands, but for constants; or takes what it should
        give."""
        if self._relations.is_only_rearranged(pair.ours, pair.theirs) or self.may_inherit(pair):
            return False
        if any(self._is_right_already(entry, pair.theirs) for entry in pair.ours.instance.inputs):
            return True
        operands = self._relations.operand_pairs(pair.ours, pair.theirs)
        return (
            operands is not None
            and self._knows_operands(pair)
            and all(
                (is_filled(each.ours) and is_filled(each.theirs)) or self._is_no_accident(each) for each in operands
            )
        )

    def _is_no_accident(self, pair: NodePair) -> bool:
        """Whether two values are the same and, where equal numbers are little evidence, computed alike."""
        is_equal = self._relations.of(pair.ours, pair.theirs) is Relation.EQUAL
        return is_equal and (is_varied(pair.ours) or self._relations.corresponds(pair.ours, pair.theirs))

    def _is_right_already(self, entry: Node, theirs: Node) -> bool:
        """Whether an operand is computed as a value of `before` is, and nothing has disordered its elements since."""
        is_ordered = self._relations.of(entry, theirs) is not Relation.SHUFFLED
        return is_ordered and self._relations.is_computed_alike(entry, theirs)

    def _knows_operands(self, pair: NodePair) -> bool:
        """Whether `before` has all that an instruction takes, in an order of dimensions that was found, and it takes
        all that its counterpart does."""
        if _takes_a_part(pair):
            return False
        pairs = self._relations.operand_pairs(pair.ours, pair.theirs) or []
        filled = [each for each in pairs if is_filled(each.ours) and is_filled(each.theirs)]
        if not all(could_be(each.ours, each.theirs) for each in pairs) or any(
            self._relations.of(each.ours, each.theirs) is Relation.EQUAL and not self._is_no_accident(each)
            for each in pairs
            if each not in filled
        ):
            # One opcode computes both, but perhaps not from the same.
            return False
        is_ordered = all(self._relations.of(each.ours, each.theirs) is not Relation.SHUFFLED for each in pairs)
        return is_ordered and not self._relations.unknown_operands(pair.ours, pair.theirs)

    def _alternatives(self, suspect: Suspect) -> tuple[Node, ...]:
        """What is suspected, and the steps of which a change makes the value right as well; nothing if none does."""
        pair, node = suspect.trial or suspect.pair, suspect.pair.ours
        steps, others = self._regions.steps(pair)
        repair = self._repairs.of(pair, steps[: LIMITS.missing_steps], others)
        found = {each.number: each for each in (node, *(() if repair is None else repair.alike))}
        return tuple(found[number] for number in sorted(found)) if len(found) > 1 else ()


def _adds_rounded_parts(pair: NodePair) -> bool:
    """Whether devices add parts in a narrow type that `before`, which computes the whole on each, has not rounded."""
    ours, theirs = pair.ours.instance.instruction, pair.theirs.instance.instruction
    adds = exchanges(ours) and traits_of(ours).moves is None and not exchanges(theirs)
    entry = element_type_of(pair.ours.dtype)
    return adds and entry.is_floating and unit_roundoff(entry) >= LIMITS.narrow_unit


def _takes_a_part(pair: NodePair) -> bool:
    """Whether what moves elements, on one device, takes fewer of them than its counterpart."""
    ours, theirs = pair.ours.instance, pair.theirs.instance
    if traits_of(ours.instruction).moves is None or exchanges(ours.instruction) or not (ours.inputs and theirs.inputs):
        return False
    return ours.inputs[0].digest.count < theirs.inputs[0].digest.count
