"""The candidates for blame: from a result that is wrong, back to where its wrong value comes from.

A result of `after` and the one of `before` that it should be are a pair of values that differ. Their operands are
paired in turn. Where a pair of operands differs, the cause lies behind it; where none does, the instruction is to
blame. Only values on the way from the wrong result are looked at, each beside the one that it should be.

- What only moves or converts elements is looked through.
- An operand that evidently is another value of `before`, computed from the same operands as that, is right in itself;
  what uses it in the wrong place is to blame.
- A value that leaves a loop or a conditional depends on what decided how it ran, too (`diffing.control`).
- In loops, the search goes on from the first iteration in which the pair differs.
- Where two values are computed by different steps, `regions` finds values in these steps that correspond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product, zip_longest

import attrs

from hloexec.core.dtypes import element_type_of, unit_roundoff
from hloexec.core.places import CallPath, RunPlace
from hloexec.core.structs import frozen
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.tools.diffing.control import Decisions, carrying_loop, exits, is_unrolled
from hloexec.tools.diffing.findings import InstructionRun
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.handings import PairedRuns
from hloexec.tools.diffing.localization.regions import Regions, could_be
from hloexec.tools.diffing.localization.relations import (
    NodePair,
    Relation,
    Relations,
    Suspect,
    constant_of,
    is_filled,
    is_only_unrounded,
    is_varied,
    reason_of_lost,
    reason_of_narrowing,
    transparent_chain,
    type_rounded_to,
    where_narrowed,
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
        slots = [
            place for place, input_node in enumerate(_taken(user)) if operand.ours in transparent_chain(input_node)
        ]
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
    chain = [user, operand]
    while chain[-1].instance.inputs:
        chain.append(chain[-1].instance.inputs[0])
    return tuple(reversed(chain)) if 2 < len(chain) <= LIMITS.largest_region else ()


def _number(node: Node) -> str:
    """The number that a constant is filled with."""
    return str(node.value.reshape(-1)[0]) if node.value.size else "nothing"


@frozen
class _Cause:
    """A pair that differs, and behind which the cause may lie."""

    pair: NodePair
    decision: NodePair | None = None
    """The pair behind which it lies that decided how a loop or a conditional ran."""
    is_guessed: bool = False
    """Whether nothing but its place says that it is a pair."""
    place: InstructionRun | None = None
    """What hands a value on that has never been in the loop, where the one that it should be comes out of it."""

    def marked(self, suspect: Suspect) -> Suspect:
        """A suspect that was found behind it."""
        return attrs.evolve(suspect, is_restructured=True) if self.is_guessed else suspect


@frozen(eq=False)
class _Explanation:
    """Why a pair differs."""

    suspects: tuple[Suspect, ...] = ()
    """What is to blame whatever lies behind."""
    causes: tuple[_Cause, ...] = ()
    """The pairs behind it that differ, the earliest first."""
    otherwise: Suspect | None = None
    """What is to blame if nothing behind it is."""


class Causes:
    """The search back from pairs that differ."""

    def __init__(
        self,
        relations: Relations,
        regions: Regions,
        graphs: tuple[Graph, Graph],
        decisions: tuple[Decisions, Decisions],
        is_over: Callable[[], bool],
    ) -> None:
        self._relations = relations
        self._is_over = is_over
        self._regions = regions
        self._runs = PairedRuns(relations, graphs)
        self._ours, self._theirs = decisions
        self._misuses = Misuses(relations, self._ours)
        self._seen: set[tuple[int, int]] = set()
        self._guessed: set[tuple[int, int]] = set()
        self.pairs: list[NodePair] = []
        """Those that were found to differ, results first."""
        self.decisions: dict[tuple[int, int], NodePair] = {}
        """What decided how a loop or a conditional ran, by the numbers of each pair behind it."""

    def of(self, results: Sequence[NodePair]) -> Iterator[Suspect]:
        """What may be to blame for results that differ, the likeliest first, each pair once."""
        yield from self._found([cause for pair in results for cause in self._behind(CallPath(), CallPath(), pair)])
        # Where the way back ends among steps that do not correspond: from the other end, the first that differ.
        for pair in results:
            yield from self._found([_Cause(entry, is_guessed=True) for entry in self._regions.frontier(pair)])

    def order(self, pair: NodePair) -> tuple[bool, int]:
        """By which pairs are sorted in the order of data flow, those last of which nothing but the place says that they
        are."""
        return pair.numbers in self._guessed, pair.ours.number

    def behind(self, pair: NodePair, decision: NodePair | None) -> Iterator[Suspect]:
        """What may be to blame for a pair that differs, behind what decided how a loop or a conditional ran, or not."""
        yield from self._found([_Cause(pair, decision)])

    def _found(self, causes: Sequence[_Cause]) -> Iterator[Suspect]:
        """What may be to blame for some causes, and what lies behind them."""
        stack: list[_Cause | Suspect] = [*reversed(causes)]
        while stack and (len(self.pairs) < LIMITS.fewest_pairs or not self._is_over()):
            entry = stack.pop()
            if isinstance(entry, Suspect):
                yield entry
                continue
            pair = self._runs.first_of_its_kind(entry.pair)
            if pair.numbers in self._seen:
                continue
            self._seen.add(pair.numbers)
            self.pairs.append(pair)
            if entry.is_guessed:
                self._guessed.add(pair.numbers)
            if (place := self._ours.other_branch(pair.ours, self._theirs, pair.theirs)) is not None:
                yield Suspect(pair, "another branch gives what it should", decision=pair, is_certain=True, place=place)
            if entry.place is not None:
                reason = "it returns what the loop was given, unchanged"
                yield Suspect(pair, reason, place=entry.place, decision=entry.decision, is_end=True)
            explanation = self._explained(pair)
            decision = entry.decision
            if decision is not None:
                # The first pair of its kind may be another one.
                decision = self.decisions[pair.numbers] = pair if decision is entry.pair else decision
            yield from (attrs.evolve(entry.marked(suspect), decision=decision) for suspect in explanation.suspects)
            if explanation.otherwise is not None:
                stack.append(attrs.evolve(entry.marked(explanation.otherwise), decision=decision))
            stack += [
                _Cause(cause.pair, cause.decision or decision, cause.is_guessed or entry.is_guessed)
                for cause in reversed(explanation.causes)
                if cause.pair.numbers not in self._seen
            ]

    def _explained(self, pair: NodePair) -> _Explanation:
        """Why a pair differs."""
        ours, theirs = transparent_chain(pair.ours), transparent_chain(pair.theirs)
        if len(ours) > 1 or len(theirs) > 1:
            return self._moved(pair, ours, theirs)
        instance = pair.ours.instance
        if instance.is_source and role_of(instance.instruction) not in (Role.CONSTANT, Role.KERNEL):
            return _handed_on(pair)
        repeated = NodePair(_unrepeated(pair.ours), _unrepeated(pair.theirs))
        if repeated.ours is not pair.ours and could_be(repeated.ours, repeated.theirs) and self._differs(repeated):
            return _handed_on(pair, self._behind_operand(pair, repeated))
        operands = self._relations.operand_pairs(pair.ours, pair.theirs)
        if operands is None:
            explanation = self._restructured(pair)
            if self._relations.have_same_operands(instance, pair.theirs.instance):
                return attrs.evolve(explanation, suspects=(Suspect(pair), *explanation.suspects))
            return explanation
        different = [entry for entry in operands if self._differs(entry)]
        if not different and not self._relations.unknown_operands(pair.ours, pair.theirs):
            return self._alone(pair, operands)
        # Without an operand that differs, the cause may lie behind one without a counterpart.
        if not different or any(not could_be(entry.ours, entry.theirs) for entry in different):
            return self._restructured(pair)
        narrowed = self._regions.narrowed(pair, operands)
        if {entry.numbers for entry in different} <= {entry.numbers for entry in narrowed if _is_rounded(entry.ours)}:
            return _Explanation(tuple(_narrowing(pair, narrowed)))
        inner = self._in_other_steps(pair, different)
        if inner is not None:
            return _handed_on(pair, self._behind_operand(pair, inner))
        return self._from_operands(pair, different)

    def _in_other_steps(self, pair: NodePair, different: Sequence[NodePair]) -> NodePair | None:
        """Values behind a pair that correspond and differ, where its operands may only look like each other's
        counterparts: several differ, or one of them is another value of `before`."""
        matched = [entry for entry in different if self._relations.place_of(entry.ours) is not None]
        others = [(entry, self._another(entry)) for entry in matched]
        if any(other is not None and self._misuses.is_evident(entry, other) for entry, other in others):
            return None
        if len(different) == 1:
            return self._regions.inside(pair) if matched else None
        # Where another constant is used on another value, the steps are others: x + (-1) may be (x - 1) * 1 + 0.
        has_other_constants = any(map(_are_filled, different))
        return self._regions.corresponding(pair) if has_other_constants else self._regions.inside(pair)

    def _from_operands(self, pair: NodePair, different: Sequence[NodePair]) -> _Explanation:
        """Why a pair differs some of whose operands do."""
        suspects = []
        causes: list[_Cause] = []
        otherwise = Suspect(pair, has_wrong_operands=True)
        for entry in sorted(different, key=lambda entry: entry.ours.number):
            if (suspect := self._misuses.already(pair, entry)) is not None:
                suspects.append(suspect)
            behind = self._behind_operand(pair, entry)
            is_decided = any(cause.decision for cause in behind)
            # What a loop that never went round was given may be a constant.
            if not is_decided and (suspect := self._misuses.constant(pair, entry)) is not None:
                if len(different) > 1 and _are_filled(entry):
                    otherwise = suspect
                else:
                    suspects.append(suspect)
                continue
            causes += behind
            other = self._another(entry)
            if other is None or is_decided:
                continue
            if len(different) > 1 and (is_made_of(entry.theirs, other) or is_made_of(other, entry.theirs)):
                # `after` takes its steps in another order.
                continue
            misplaced = self._misuses.misplaced(pair, entry, other)
            if self._misuses.is_evident(entry, other):
                suspects.append(misplaced)
            else:
                otherwise = misplaced
        return _Explanation(tuple(suspects), tuple(causes), otherwise)

    def _alone(self, pair: NodePair, operands: Sequence[NodePair]) -> _Explanation:
        """The operands of a pair are the same: what is to blame is the instruction, or the order of an operand."""
        rearranged = [
            _Cause(entry) for entry in operands if self._relations.of(entry.ours, entry.theirs) is not Relation.EQUAL
        ]
        moved = self._regions.rearranged(pair, operands)
        if moved is not None:
            mover, operand = moved
            return _Explanation((Suspect(NodePair(mover, pair.theirs), trial=operand),), tuple(rearranged))
        if narrowed := self._regions.narrowed(pair, operands):
            return _Explanation(tuple(_narrowing(pair, narrowed)))
        # In other dimensions, to blame is what moves or takes them as if they were not.
        is_right = self._relations.is_only_rearranged(pair.ours, pair.theirs)
        if rearranged or is_right:
            return _Explanation(causes=tuple(rearranged), otherwise=Suspect(pair, has_wrong_operands=is_right))
        return _Explanation((Suspect(pair),))

    def _moved(self, pair: NodePair, ours: Sequence[Node], theirs: Sequence[Node]) -> _Explanation:
        """Why values differ that other ones were moved or converted to."""
        source = NodePair(ours[-1], theirs[-1])
        relation = self._relations.of(source.ours, source.theirs)
        causes = () if relation is Relation.EQUAL else tuple(self._behind_operand(pair, source))
        if relation is Relation.DIFFERENT:
            other = self._another(source) if len(ours) > 1 else None
            if other is None or any(cause.decision for cause in causes):
                return _handed_on(pair, causes)
            misplaced = self._misuses.misplaced(pair, source, other)
            if self._misuses.is_evident(source, other):
                return attrs.evolve(_handed_on(pair, causes), suspects=(misplaced,))
            return _Explanation(causes=causes, otherwise=misplaced)
        rounded = type_rounded_to(ours, theirs)
        if rounded is not None and is_only_unrounded(
            self._relations.state.raw[pair.ours.number], pair.theirs.value, rounded
        ):
            return _Explanation((Suspect(pair, reason_of_lost(rounded), is_more_precise=True),))
        moved = next((node for node in reversed(ours) if self._is_shuffled(node, theirs)), source.ours)
        if relation is Relation.REARRANGED and moved is not source.ours:
            # Before it, elements are where they should be, if with dimensions permuted.
            return _Explanation((Suspect(NodePair(moved, pair.theirs), trial=pair),), causes)
        # What computes the right numbers in an order that it inherits is not to blame: some of what moves them is.
        is_inherited = self._relations.is_only_rearranged(source.ours, source.theirs)
        for node in () if is_inherited else reversed(ours):
            if all(self._relations.of(node, other) is not Relation.EQUAL for other in theirs):
                # Nothing can be wrong with an input, only with what moves it.
                is_given = role_of(node.instance.instruction) is Role.PARAMETER
                at = next(filter(_is_moved, reversed(ours[:-1])), ours[0]) if is_given else node
                guilty = Suspect(NodePair(at, pair.theirs), trial=pair, is_restructured=node is ours[-1])
                return _Explanation(causes=causes, otherwise=guilty) if causes else _Explanation((guilty,))
        if rounded is not None:
            return _Explanation((Suspect(pair, reason_of_lost(rounded), is_more_precise=True),))
        # It is what `before` has not moved yet: to blame is what moves it another way, or uses it so.
        moving = tuple(filter(_is_moved, reversed(ours[:-1])))
        moving = moving if len(moving) <= LIMITS.largest_region else ()
        guilty = Suspect(pair, region=moving, has_wrong_operands=len(ours) == 1, is_restructured=is_inherited)
        if len(moving) == 1:
            guilty = attrs.evolve(guilty, pair=NodePair(moving[0], pair.theirs), trial=pair)
        return _Explanation(causes=causes, otherwise=guilty)

    def _is_shuffled(self, node: Node, others: Sequence[Node]) -> bool:
        """Whether a movement has put elements into an order that no permutation of dimensions gives."""
        is_shuffled = all(self._relations.of(node, other) is Relation.SHUFFLED for other in others)
        return is_shuffled and node.instance.is_movement

    def _restructured(self, pair: NodePair) -> _Explanation:
        """Why values differ that different steps computed."""
        if self._another(pair) is not None:
            # It is right in itself: what uses it is to blame, or what decided that it is used.
            return _handed_on(pair, self._decisions_behind(pair))
        region = self._regions.of(pair)
        suspects = tuple(
            Suspect(entry.pair, entry.reason, pair, region.nodes, is_restructured=True, is_end=entry.is_end)
            for entry in region.misuses
        )
        causes: list[_Cause] = []
        for entry in region.causes:
            if self._another(entry) is None:
                behind = self._behind_operand(pair, entry)
                causes += (attrs.evolve(cause, is_guessed=region.is_guessed) for cause in behind)
        if region.misplaced is not None:
            user, operand, _ = region.misplaced
            causes = [cause for cause in self._behind_operand(user, operand) if cause.decision is not None]
            if not causes:
                misplaced = self._misuses.misplaced(*region.misplaced)
                nodes = () if misplaced.place else region.nodes
                suspects = (attrs.evolve(misplaced, trial=pair, region=nodes),)
        causes = causes or self._decisions_behind(pair)
        is_constant = is_filled(pair.ours) and not is_filled(pair.theirs)
        is_open = bool(causes) or not region.nodes or is_constant
        is_open |= self._relations.is_only_rearranged(pair.ours, pair.theirs)
        otherwise = Suspect(pair, region=region.nodes, has_wrong_operands=is_open, is_restructured=True)
        return _Explanation(suspects, tuple(causes), otherwise)

    def _decisions_behind(self, pair: NodePair) -> list[_Cause]:
        """What decided another way in loops and conditionals that could have given the operands of a pair."""
        inputs = product(pair.ours.instance.inputs, pair.theirs.instance.inputs)
        operands = [NodePair(*entry) for entry in inputs if could_be(*entry)]
        behind = [self._behind_operand(pair, entry) for entry in operands if self._runs.is_wrong(entry)]
        return [cause for causes in behind for cause in causes if cause.decision is not None]

    def _behind_operand(self, user: NodePair, operand: NodePair) -> list[_Cause]:
        return self._behind(user.ours.instance.scope, user.theirs.instance.scope, operand)

    def _behind(self, ours: CallPath, theirs: CallPath, pair: NodePair) -> list[_Cause]:
        """A pair of operands used in these scopes, or what decided another way in a loop or a conditional that both
        leave."""
        causes = []
        sources = transparent_chain(pair.ours)[-1], transparent_chain(pair.theirs)[-1]
        left = exits(ours, sources[0]), exits(theirs, sources[1])
        place = None
        for one, other in zip_longest(*left):
            # What a loop hands on that never went round, or carries unchanged, has not left it.
            loop = one or self._ours.like(attrs.evolve(other, device=pair.ours.device), self._theirs)
            counterpart = other or self._theirs.like(attrs.evolve(one, device=pair.theirs.device), self._ours)
            if one is None and sources[0].instance.is_source:
                place = self._ours.passed_on(loop)
            first, second = self._ours.of(loop), self._theirs.of(counterpart)
            early = self._runs.as_far_as_both_ran((loop, first), (counterpart, second), sources)
            is_wrong_early = early is not None and self._differs(early)
            if is_unrolled(first, second) and (early is None or is_wrong_early):
                # Several iterations of the one are one of the other, as far as can be told.
                continue
            if early is not None and is_wrong_early:
                # It is wrong whenever the loop ends; what was wrong then has to come right.
                causes.append(_Cause(early, attrs.evolve(early)))
                break
            for decision in map(NodePair, first, second):
                if self._differs(decision):
                    causes.append(_Cause(decision, decision))
                    break
        # What runs another way gives other values, whether or not what computes them is right.
        return causes or [_Cause(pair, place=place)]

    def _differs(self, pair: NodePair) -> bool:
        return self._relations.differ(pair.ours, pair.theirs)

    def _another(self, pair: NodePair) -> Node | None:
        """The other value of `before` that the first one of a pair is."""
        return self._relations.is_another(pair.ours, pair.theirs)


def _handed_on(pair: NodePair, causes: Iterable[_Cause] = ()) -> _Explanation:
    """A pair differs because its operands do; to blame is what lies behind, and the pair itself if nothing there is."""
    return _Explanation(causes=tuple(causes), otherwise=Suspect(pair, has_wrong_operands=True))


def _is_moved(node: Node) -> bool:
    """Whether a value has its operand's elements in another order, or in other dimensions."""
    instance = node.instance
    if not instance.is_movement:
        return False
    operand = instance.inputs[0]
    return node.shape != operand.shape or node.digest.in_order != operand.digest.in_order


def _narrowing(pair: NodePair, operands: Sequence[NodePair]) -> Iterator[Suspect]:
    """What gives some operands of a pair fewer bits than their counterparts have."""
    made = {node.number: (node, entry) for entry in operands for node in [where_narrowed(_coarsest(entry.ours))]}
    is_alone = len(made) == 1
    region = () if is_alone else tuple(node for node, _ in made.values())
    for node, entry in made.values():
        reason = reason_of_narrowing(element_type_of(node.dtype))
        where = NodePair(node, entry.theirs)
        yield Suspect(where, reason, trial=pair, region=region, is_less_precise=is_alone, is_rounding=True)


def _is_rounded(node: Node) -> bool:
    """Whether what gives a value the few bits that it has takes more."""
    origin = where_narrowed(_coarsest(node))
    types = [element_type_of(entry.dtype) for entry in origin.instance.inputs]
    unit = unit_roundoff(element_type_of(origin.dtype))
    return any(entry.is_floating and unit_roundoff(entry) < unit for entry in types)


def _coarsest(node: Node) -> Node:
    """The value of fewest bits among those whose elements a node passes on."""
    return max(transparent_chain(node), key=lambda entry: unit_roundoff(element_type_of(entry.dtype)))


def _are_filled(pair: NodePair) -> bool:
    return is_filled(pair.ours) and is_filled(pair.theirs)


def _unrepeated(node: Node) -> Node:
    """What a value repeats, if it does nothing else."""
    while len(node.instance.inputs) == 1:
        traits = traits_of(node.instance.instruction)
        if not (traits.converts or (traits.moves == (0,) and (traits.repeats or node.instance.is_movement))):
            break
        node = node.instance.inputs[0]
    return node
