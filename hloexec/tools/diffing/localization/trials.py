"""Trying suspects: the first one that proves to be to blame for the results of one state that differ.

A value that is put right puts the results right wherever it lies on the way to them. To blame is what computes it if
two things hold. It is wrong in itself: on what its counterpart takes, it does not give what that gives. And it is the
only one: no change of another step makes the value right as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

import attrs

from hloexec.core.dtypes import element_type_of, unit_roundoff
from hloexec.core.structs import define
from hloexec.ops.registry import Role, exchanges, role_of, traits_of
from hloexec.tools.diffing.control import Decisions
from hloexec.tools.diffing.findings import InstructionRun
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.causes import Causes, Misuses
from hloexec.tools.diffing.localization.compensations import Compensations, is_computed_from, only_moved
from hloexec.tools.diffing.localization.edits import Repair, Repairs, tells_something
from hloexec.tools.diffing.localization.handings import Handings
from hloexec.tools.diffing.localization.patches import Patch, corrects_alone, patched, replaced, replacements
from hloexec.tools.diffing.localization.regions import Regions, could_be
from hloexec.tools.diffing.localization.relations import (
    NodePair,
    Relation,
    Relations,
    Suspect,
    is_filled,
    is_narrower,
    is_varied,
    reason_of_narrowing,
    transparent_chain,
    where_narrowed,
)
from hloexec.tools.diffing.matching import arranged, is_near
from hloexec.tools.diffing.replaying.evaluation import Overlay
from hloexec.tools.diffing.replaying.replay import Replay, State


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
            operand_pair.ours.number: value
            for operand_pair in operands
            if self._relations.of(operand_pair.ours, operand_pair.theirs) is not Relation.EQUAL
            for value in [next(arranged(operand_pair.theirs.value, values[operand_pair.ours.number]), None)]
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
        judged_suspect = self._by_itself(suspect, patch)
        if not judged_suspect.is_certain or patch is None or patch.pair.ours is not suspect.pair.ours:
            return judged_suspect
        twins = [node for node in self._twins(patch.pair.ours) if corrects(NodePair(node, patch.pair.theirs))]
        if not twins:
            return judged_suspect
        region = sorted([suspect.pair.ours, *twins], key=lambda node: node.number)
        return attrs.evolve(judged_suspect, is_certain=False, region=tuple(region[: LIMITS.largest_region]))

    def _twins(self, node: Node) -> list[Node]:
        """What gave the same numbers on its device, and is neither computed from it nor the other way round: it may be
        meant as well."""
        twins = [
            entry
            for entry in self._replay.graph.has_digest(node.digest)
            if entry.instance.static != node.instance.static
            and entry.device == node.device
            and entry.shape == node.shape
            and entry.instance.iterations == node.instance.iterations
            and not (is_computed_from(entry, node) or is_computed_from(node, entry))
        ]
        return twins[: LIMITS.twins]

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
        different = [
            operand_pair
            for operand_pair in operands
            if self._relations.of(operand_pair.ours, operand_pair.theirs) is not Relation.EQUAL
        ]
        return len(different) <= 1 and all(self._is_sound(operand_pair.ours) for operand_pair in different)

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
        placed = {
            operand_pair.ours.number
            for operand_pair in pairs
            if self._relations.of(operand_pair.ours, operand_pair.theirs) is Relation.EQUAL
        }
        operands = [entry for entry in pair.ours.instance.inputs if entry.number not in placed and not is_filled(entry)]
        movers = {node.number: node for entry in operands for node in transparent_chain(entry)[:-1]}
        return (*(movers[number] for number in sorted(movers)), pair.ours) if movers else ()

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
                (is_filled(operand_pair.ours) and is_filled(operand_pair.theirs)) or self._is_no_accident(operand_pair)
                for operand_pair in operands
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
        filled = [
            operand_pair for operand_pair in pairs if is_filled(operand_pair.ours) and is_filled(operand_pair.theirs)
        ]
        if not all(could_be(operand_pair.ours, operand_pair.theirs) for operand_pair in pairs) or any(
            self._relations.of(operand_pair.ours, operand_pair.theirs) is Relation.EQUAL
            and not self._is_no_accident(operand_pair)
            for operand_pair in pairs
            if operand_pair not in filled
        ):
            # One opcode computes both, but perhaps not from the same.
            return False
        is_ordered = all(
            self._relations.of(operand_pair.ours, operand_pair.theirs) is not Relation.SHUFFLED
            for operand_pair in pairs
        )
        return is_ordered and not self._relations.unknown_operands(pair.ours, pair.theirs)

    def _alternatives(self, suspect: Suspect) -> tuple[Node, ...]:
        """What is suspected, and the steps of which a change makes the value right as well; nothing if none does."""
        pair, node = suspect.trial or suspect.pair, suspect.pair.ours
        steps, others = self._regions.steps(pair)
        repair = self._repairs.of(pair, steps[: LIMITS.missing_steps], others)
        alternatives = {
            alternative.number: alternative for alternative in (node, *(() if repair is None else repair.alike))
        }
        return tuple(alternatives[number] for number in sorted(alternatives)) if len(alternatives) > 1 else ()


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


@define(eq=False)
class _Seen:
    """What is left of suspects that nothing has proven."""

    first: Suspect | None = None
    evident: Suspect | None = None
    """The first one whose operands are right."""
    apparent: Suspect | None = None
    """The first one of these that was not found among steps that do not correspond."""
    carried: Suspect | None = None
    """The first one that blames what a loop hands on: exchanged values show only if both are put right."""
    deciding: Suspect | None = None
    """The first one whose operands are right that decided how a loop or a conditional ran."""
    misused: Suspect | None = None
    """The first one that takes a value which is right for another use."""
    narrowed: Suspect | None = None
    """The first one that has too few bits for what it should be: what was lost in rounding is lost, even if the right
    value is put in its place, as long as its type is the same."""

    def note(self, suspect: Suspect, *, is_narrower: bool) -> None:
        self.first = self.first or suspect
        if self.narrowed is None and is_narrower:
            self.narrowed = suspect
        if not suspect.has_wrong_operands:
            self.evident = self.evident or suspect
            if suspect.decision is not None:
                self.deciding = self.deciding or suspect
            if suspect.place is not None:
                self.carried = self.carried or suspect
            if not suspect.is_restructured:
                self.apparent = self.apparent or suspect


class Trials:
    """The search for one instruction to blame."""

    def __init__(
        self,
        replay: Replay,
        state: State,
        wrong: Sequence[NodePair],
        decisions: tuple[Decisions, Decisions],
        places: Collection[tuple[str, str]],
        is_over: Callable[[], bool],
    ) -> None:
        self._replay = replay
        self._state = state
        self._wrong = wrong
        self._known = places
        """The instructions that are to blame already."""
        self._is_over = is_over
        self._relations = relations = Relations(replay, state)
        self._regions = Regions(replay, relations, is_over)
        self._causes = Causes(relations, self._regions, (replay.graph, replay.index.graph), decisions, is_over)
        self._handings = Handings(relations, decisions)
        self._misuses = Misuses(relations, decisions[0])
        self._repairs = Repairs(replay, relations, is_over)
        self._compensations = Compensations(replay, relations)
        self._guilt = Guilt(replay, relations, self._regions, self._repairs)
        self._tried: set[tuple[int, int]] = set()
        self._partly_tried: set[tuple[int, int]] = set()
        self._left = LIMITS.tries
        self._seen = _Seen()
        self._around: list[NodePair] = []
        """The pairs that are proven, each behind the one before it."""

    def next(self) -> tuple[Suspect | None, Patch | None]:
        """The next instruction to blame, and the patch that proves it, if there is one; of what decides how a loop goes
        round, the patch puts the decision right, and the results still differ."""
        suspect, patch = self._next()
        if suspect is None:
            return None, None
        wrong = self._wrong if suspect.decision is None else [suspect.decision]
        corrects = partial(corrects_alone, self._replay, self._state, wrong=wrong, is_over=self._is_over)
        judged = self._guilt.judged(suspect, patch, corrects)
        if patch is not None and patch.is_proof:
            judged = only_moved(judged, patch.pair, self._replay, self._state, wrong, self._is_over)
        return _named(judged), patch

    def _next(self) -> tuple[Suspect | None, Patch | None]:
        suspects = (entry for entry in self._handings.suspects() if entry.place and not self._is_known(entry.place))
        if (handing := next(suspects, None)) is not None:
            return handing, None
        proven = self._proven(self._causes.of(self._wrong))
        deciding = self._seen.deciding
        if proven is None and deciding is not None:
            is_partly = self._partly(deciding.trial or deciding.pair) is not None
            proven = (None if is_partly else self._deepest()) or (deciding, None)
        proven = proven or self._apparent()
        if proven is None and self._seen.narrowed is None:
            proven, misused = self._deepest(), self._seen.misused
            if misused is not None and (proven is None or (proven[0].is_end and not proven[0].is_repair)):
                patch = self._partly(misused.pair)
                proven = proven if patch is None else (misused, patch)
        if proven is not None:
            return proven
        suspect = self._seen.narrowed or self._seen.evident or self._seen.first
        if suspect is None:
            return None, None
        return suspect, self._partly(suspect.trial or suspect.pair)

    def _is_narrowed_anyway(self, pair: NodePair) -> bool:
        """Whether `before` has no use of a value but for rounding it to as few bits as `after` has of it."""
        users = self._replay.index.graph.users()[pair.theirs.number]
        rounded = [
            NodePair(pair.ours, node) for user in users for node in user.results if traits_of(user.instruction).converts
        ]
        return len(users) == len(rounded) > 0 and not any(map(is_narrower, rounded))

    def _is_known(self, place: InstructionRun) -> bool:
        return (place.computation, place.instruction) in self._known

    def _proven(self, suspects: Iterable[Suspect]) -> tuple[Suspect, Patch | None] | None:
        """The first of some suspects that is proven, or needs no proof."""
        for suspect in self._movers_last(suspects):
            if suspect.pair.ours.instance.static in self._known:
                continue
            if not suspect.reason and self._guilt.is_innocent(suspect.pair):
                misused = self._misused(suspect)
                self._seen.misused = self._seen.misused or misused
                suspect = misused or attrs.evolve(suspect, has_wrong_operands=True)
            elif self._is_made_up_for(suspect):
                suspect = attrs.evolve(suspect, has_wrong_operands=True)
            # What moves an operand of a value has the operand's type.
            is_mover = suspect.trial is not None and suspect.trial.theirs is not suspect.pair.theirs
            loses_bits = not is_mover and is_narrower(suspect.pair) and not self._is_narrowed_anyway(suspect.pair)
            self._seen.note(suspect, is_narrower=loses_bits)
            if suspect.has_wrong_operands:
                # Putting it right would show only that the culprit lies behind it.
                continue
            if suspect.decision is not None and suspect.place is not None:
                # No value shows it.
                return suspect, None
            trial = suspect.trial or suspect.pair
            is_new = trial.numbers not in self._tried
            shows_in_part = not suspect.is_restructured and trial is suspect.pair
            if not is_new and (not shows_in_part or trial.numbers in self._partly_tried):
                continue
            if len(self._tried) >= LIMITS.tries or self._is_over():
                break
            patch = self._patched(trial) if is_new else None
            if patch is None and shows_in_part:
                # In what loops that end otherwise give, it can show only in part.
                self._partly_tried.add(trial.numbers)
                patch = self._partly(trial, LIMITS.many_right)
            if patch is not None:
                if self._seen.narrowed is not None:
                    return self._seen.narrowed, patch
                return (suspect.is_restructured and self._inside(trial, patch)) or (suspect, patch)
        return None

    def _is_made_up_for(self, suspect: Suspect) -> bool:
        """Whether a later step tells that the value of a suspect is right, if another one than in `before`."""
        is_other = suspect.place is not None or suspect.decision is not None
        is_rounding = suspect.is_rounding or suspect.is_less_precise or suspect.is_more_precise
        pair, is_guessed = suspect.trial or suspect.pair, suspect.is_restructured
        return not (is_other or is_rounding) and self._compensations.has(pair, is_guessed=is_guessed)

    def _misused(self, suspect: Suspect) -> Suspect | None:
        """What uses one value that differs, and is right for another use: a later step makes up for it there."""
        operands = self._relations.operand_pairs(suspect.pair.ours, suspect.pair.theirs) or []
        different = [operand for operand in operands if self._relations.differ(operand.ours, operand.theirs)]
        if len(different) != 1:
            return None
        match = self._state.matches[different[0].ours.number]
        if match is None or not self._compensations.has(different[0], is_guessed=True):
            return None
        misplaced = self._misuses.misplaced(suspect.pair, different[0], match.node)
        return attrs.evolve(misplaced, decision=suspect.decision, is_restructured=True, is_end=True)

    def _movers_last(self, suspects: Iterable[Suspect]) -> Iterator[Suspect]:
        """Suspects, behind all others those that may only move elements which lay elsewhere before."""
        movers = []
        for suspect in suspects:
            if not suspect.reason and self._guilt.may_inherit(suspect.pair):
                movers.append(suspect)
            else:
                yield suspect
        yield from movers

    def _apparent(self) -> tuple[Suspect, Patch | None] | None:
        """The first suspect of which the operands are right, step by step, if what follows it comes right with it, too:
        where several instructions are wrong, none puts results right alone."""
        if self._seen.carried is not None:
            return self._seen.carried, None
        suspect = self._seen.apparent
        patch = None if suspect is None else self._partly(suspect.trial or suspect.pair)
        return None if suspect is None or patch is None else (suspect, patch)

    def _deepest(self, end: NodePair | None = None) -> tuple[Suspect, Patch | None] | None:
        """What is to blame among the steps behind the first value that is proven, where no suspect is; of the values
        before `end`, if it is given."""
        for pair in sorted(self._causes.pairs, key=self._causes.order):
            is_behind = end is None or pair.ours.number < end.ours.number
            if pair.numbers in self._tried or not is_behind or _is_given(pair.ours):
                continue
            is_another = self._relations.is_another(pair.ours, pair.theirs) is not None
            is_right = is_another or self._compensations.has(pair)
            if is_right or self._relations.is_only_rearranged(pair.ours, pair.theirs):
                # It is right in itself, and only used in the wrong place or order.
                continue
            if self._left == 0 or self._is_over():
                break
            self._left -= 1
            patch = self._patched(pair)
            if patch is not None:
                nodes = () if self._guilt.may_be_innocent(pair) else self._regions.of(pair).nodes
                region = Suspect(
                    pair,
                    "" if nodes else "it, or one of the steps before it that before takes otherwise",
                    region=nodes,
                    decision=self._causes.decisions.get(pair.numbers),
                    is_end=not nodes,
                )
                return self._inside(pair, patch) or (region, patch)
        return None

    def _inside(self, pair: NodePair, patch: Patch) -> tuple[Suspect, Patch | None] | None:
        """What is to blame among the steps behind a pair that is proven."""
        self._around.append(pair)
        outer, self._seen = self._seen, _Seen(narrowed=self._seen.narrowed)
        inner = self._regions.corresponding(pair)
        decision = self._causes.decisions.get(pair.numbers)
        proven = None if inner is None else self._proven(self._causes.behind(inner, decision))
        proven = proven or self._deepest(pair)
        if proven is None and (repair := self._repaired(pair)) is not None:
            proven = self._of_repair(repair, pair, decision), patch
        if proven is None and self._seen.apparent is not None:
            proven = self._apparent()
        self._seen = outer
        self._around.pop()
        return proven

    def _of_repair(self, repair: Repair, pair: NodePair, decision: NodePair | None) -> Suspect:
        """What to blame where a repair makes a pair right: if it is on another value that a loop carries, rather what
        hands that on."""
        where = NodePair(repair.node, pair.theirs)
        if repair.operand is not None and (place := self._misuses.carrier(where, repair.operand)) is not None:
            ours, theirs = (node.instance.instruction.name for node in (repair.operand.ours, repair.operand.theirs))
            reason = f"it returns %{ours}, where the module before returns %{theirs}"
            return Suspect(where, reason, pair, decision=decision, place=place, is_end=True)
        region = repair.alike if len(repair.alike) <= LIMITS.largest_region else ()
        is_end = not repair.is_everywhere  # a change of an instruction changes it on all devices
        if repair.operand is not None and len(self._replay.graph.outputs) > 1:
            # What devices have nowhere else may be computed or exchanged otherwise than it should.
            is_end |= self._relations.holders(repair.operand.theirs) <= {repair.operand.ours.instance.static}
        return Suspect(where, repair.text, pair, region, decision=decision, is_repair=True, is_end=is_end)

    def _repaired(self, pair: NodePair) -> Repair | None:
        """A change of one of the steps behind a pair that makes it right, or a value around it that is proven, too: the
        pair may differ where that does not matter."""
        steps = self._regions.steps(pair)
        return next(filter(None, (self._repairs.of(entry, *steps) for entry in reversed(self._around))), None)

    def _patched(self, pair: NodePair) -> Patch | None:
        """The replacement of a pair that puts right the results, or what decided how a loop ran: replayed, a loop goes
        round as often as it did, so that its results do not show it."""
        self._tried.add(pair.numbers)
        decision = self._causes.decisions.get(pair.numbers)
        wrong = self._wrong if decision is None else [decision]
        return patched(self._replay, self._state, pair, wrong, self._is_over)

    def _partly(self, pair: NodePair, least: int = 1) -> Patch | None:
        """A replacement that makes at least so many more values right, if not the results: others may be wrong, too."""
        state = self._state
        counted = [node for node in self._replay.graph.nodes if _counts(node)]
        before = sum(map(state.has, counted))
        for value in replacements(state, pair):
            after = replaced(self._replay, state, pair, value, self._is_over)
            if after is not None and sum(map(after.has, counted)) >= before + least:
                return Patch(pair, value, after, is_proof=False)
        return None


def _named(suspect: Suspect) -> Suspect:
    """A suspect that has too few bits, by the rounding that took them."""
    ours, theirs = suspect.pair.ours, suspect.pair.theirs
    entry = element_type_of(ours.dtype)
    if suspect.reason or suspect.place or not (is_narrower(suspect.pair) and entry.is_floating):
        return suspect
    narrowed = attrs.evolve(suspect, reason=reason_of_narrowing(entry), is_rounding=True)
    node = where_narrowed(ours)
    if suspect.region or node is ours:
        return narrowed
    return attrs.evolve(narrowed, pair=NodePair(node, theirs), trial=suspect.trial or suspect.pair)


def _is_given(node: Node) -> bool:
    """Whether a value is an input, with which nothing can be wrong."""
    return role_of(node.instance.instruction) is Role.PARAMETER


def _counts(node: Node) -> bool:
    """Whether a value says something if it comes right."""
    return not node.instance.is_movement and (node.digest.count == 1 or not node.digest.is_uniform)
