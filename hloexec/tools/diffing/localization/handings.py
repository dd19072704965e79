"""What loops hand on, and what two instructions were given and gave in all of their runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from hloexec.core.places import RunPlace
from hloexec.ops.registry import traits_of
from hloexec.tools.diffing.control import Decisions, Handing, is_unrolled
from hloexec.tools.diffing.graph import Graph, Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.relations import (
    NodePair,
    Relation,
    Relations,
    Suspect,
    is_filled,
    is_varied,
    transparent_chain,
)
from hloexec.tools.diffing.recording.arrays import Digest

_Loop: TypeAlias = tuple[RunPlace | None, Sequence[Node]]
"""A loop, and what its condition gave."""


class PairedRuns:
    """The runs of instructions of both modules, in one state of a replay."""

    def __init__(self, relations: Relations, graphs: tuple[Graph, Graph]) -> None:
        self._relations = relations
        self._graphs = graphs
        self._known_runs: dict[tuple[int, tuple[str, str], int, str], dict[tuple[int, ...], Instance]] = {}

    def first_of_its_kind(self, pair: NodePair) -> NodePair:
        """The first pair that differs of those that the same two instructions gave in the same loops."""
        ours = self._runs(0, pair.ours.instance)
        theirs = self._runs(1, pair.theirs.instance)
        if len(ours) == 1 or len(theirs) == 1 or pair.ours.instance.iterations != pair.theirs.instance.iterations:
            return pair
        for iterations, one in ours.items():
            if one.number >= pair.ours.instance.number:
                break
            other = theirs.get(iterations)
            if other is not None and len(one.results) > pair.ours.leaf and len(other.results) > pair.theirs.leaf:
                first = NodePair(one.results[pair.ours.leaf], other.results[pair.theirs.leaf])
                if self.is_wrong(first):
                    return first
        return pair

    def as_far_as_both_ran(self, ours: _Loop, theirs: _Loop, pair: tuple[Node, Node]) -> NodePair | None:
        """What two values that leave loops were in the last iteration that both had, if one of the loops went round
        more often than the other; None where nothing says so."""
        last = min(len(ours[1]), len(theirs[1])) - 2
        if len(ours[1]) == len(theirs[1]) or last < 0:
            return None
        early = [
            self._at(side, node, loop, last)
            for side, (node, (loop, _)) in enumerate(zip(pair, (ours, theirs), strict=True))
        ]
        return None if early[0] is None or early[1] is None else NodePair(early[0], early[1])

    def _at(self, side: int, node: Node, loop: RunPlace | None, iteration: int) -> Node | None:
        """What a value was after an iteration of a loop; None where nothing says so."""
        instance = node.instance
        own = None if loop is None else loop.iteration(instance.scope)
        if loop is None or own is None:
            return None
        if own <= iteration:
            return node
        iterations, depth = instance.iterations, len(loop.path.iterations)
        run = self._runs(side, instance).get((*iterations[:depth], iteration, *iterations[depth + 1 :]))
        return None if run is None or len(run.results) <= node.leaf else run.results[node.leaf]

    def is_wrong(self, pair: NodePair) -> bool:
        """Whether a pair differs, or has the same numbers in the same dimensions elsewhere."""
        relation = self._relations.of(pair.ours, pair.theirs)
        return relation is Relation.DIFFERENT or (
            relation is Relation.SHUFFLED and pair.ours.shape == pair.theirs.shape
        )

    def _runs(self, side: int, instance: Instance) -> dict[tuple[int, ...], Instance]:
        """The runs of an instruction on a device in the same loops, by their iterations, in the order of the run."""
        key = (side, instance.static, instance.device, instance.loops)
        if key not in self._known_runs:
            if sum(map(len, self._known_runs.values())) > LIMITS.known_runs:
                self._known_runs.clear()
            self._known_runs[key] = {
                entry.iterations: entry
                for entry in self._graphs[side].runs[instance.static]
                if entry.device == instance.device and entry.loops == instance.loops
            }
        return self._known_runs[key]


_Key: TypeAlias = tuple[str, int, int]
"""A value in terms of `before`: its family, how many elements it has, and their digest in any order."""
_Slots: TypeAlias = dict[_Key, list[Node]]
"""By a value that was given, what was handed on in its place."""


class Handings:
    """What the loops of one state of a replay hand on; `decisions` are those of either side."""

    def __init__(self, relations: Relations, decisions: tuple[Decisions, Decisions]) -> None:
        self._relations = relations
        self._ours, self._theirs = decisions

    def suspects(self) -> Iterator[Suspect]:
        """The roots of bodies that hand on another right value than they should, though they were given right values
        and the right one is at hand; the earliest first.

        Values that loops carry have no names that both sides know. They pair up by what a loop is given at first: if
        several were given the same, by all that is handed on in their places.
        """
        found = [suspect for loop in self._ours.loops() for suspect in self._of_loop(loop)]
        yield from sorted(found, key=lambda suspect: suspect.pair.ours.number)

    def _of_loop(self, loop: RunPlace) -> Iterator[Suspect]:
        other = self._theirs.like(loop, self._ours)
        if other is None or is_unrolled(self._ours.of(loop), self._theirs.of(other)):
            return
        pairs = zip(self._ours.handings(loop), self._theirs.handings(other), strict=False)
        for iteration, (ours, theirs) in enumerate(pairs):
            if not self._are_right(ours, theirs):
                return
            wrong = self._wrong(ours, theirs)
            if wrong and (place := self._ours.handed_on(loop, iteration)) is not None:
                next_ones = self._keys_of_body(loop, iteration + 1)
                known = self._keys_of_body(loop, iteration) | {self._key(node) for node in ours.given}
                for pair in wrong:
                    if _is_chosen(pair.ours, loop, iteration) or _is_chosen(pair.theirs, other, iteration):
                        # To blame may be what decided which branch gives it.
                        continue
                    # A value that nothing uses any more is not computed.
                    if _is_passed_on(pair.ours, ours) and _key_of(pair.theirs.digest) in next_ones - known:
                        # What `before` carries is computed anew in each iteration.
                        continue
                    if _is_passed_on(pair.ours, ours) or _key_of(pair.theirs.digest) in known:
                        first, second = (
                            node.instance.instruction.name for node in (self._source(pair.ours), pair.theirs)
                        )
                        reason = f"it returns %{first}, where the module before returns %{second}"
                        is_moved = _is_passed_on(pair.ours, ours) and pair.ours not in ours.given
                        # What moves a value that was given may stand where something else should.
                        yield Suspect(pair, reason, place=pair.ours.place if is_moved else place)
                return

    def _are_right(self, ours: Handing, theirs: Handing) -> bool:
        """Whether all that an iteration is given is in `before`."""
        rights = {_key_of(node.digest) for node in theirs.given}
        return all(self._is_right(node, rights) for node in ours.given)

    def _is_right(self, node: Node, rights: set[_Key]) -> bool:
        """Whether `before` has a value: among the given ones, or anywhere."""
        return self._key(node) in rights or self._relations.state.matches.is_any(node.number)

    def _wrong(self, ours: Handing, theirs: Handing) -> list[NodePair]:
        """What is handed on, and what should be, where what is handed on is right in itself."""
        sides = self._slots(ours), self._slots(theirs, is_theirs=True)
        rights = {_key_of(node.digest) for node in (*theirs.given, *theirs.handed)}
        pairs = []
        for key, nodes in sides[0].items():
            pair = self._only_difference(nodes, sides[1].get(key, []), ours.given)
            if pair is None or not self._is_right(pair.ours, rights):
                continue
            is_passed_on = _is_passed_on(pair.ours, ours)
            is_evident = _is_evidence(pair.theirs) and (is_passed_on or self._is_as_computed(pair.ours))
            if is_evident or (is_passed_on and len(nodes) == 1):
                pairs.append(pair)
        return pairs

    def _only_difference(self, nodes: list[Node], others: list[Node], operands: tuple[Node, ...]) -> NodePair | None:
        """What is handed on in the places of equal values, and what should be, if that is all but one the same; None if
        a choice gave that value, too: it may have chosen the wrong one."""
        if len(nodes) != len(others):
            return None
        # Of equal ones, what the body has not changed is rather the wrong one.
        left, missing = sorted(nodes, key=operands.__contains__), []
        for other in others:
            equal = next((node for node in left if self._key(node) == _key_of(other.digest)), None)
            if equal is None:
                missing.append(other)
            else:
                left.remove(equal)
        if len(missing) != 1 or any(_chooses(node) and self._key(node) == self._key(left[0]) for node in nodes):
            return None
        return NodePair(left[0], missing[0])

    def _slots(self, handing: Handing, *, is_theirs: bool = False) -> _Slots:
        slots: _Slots = defaultdict(list)
        for given_node, handed in zip(handing.given, handing.handed, strict=False):
            slots[_key_of(given_node.digest) if is_theirs else self._key(given_node)].append(handed)
        return slots

    def _is_as_computed(self, node: Node) -> bool:
        """Whether `before` computes a value alike."""
        source = transparent_chain(node)[-1]
        match = self._relations.state.matches[source.number]
        return source.instance.is_source or (match is not None and self._relations.corresponds(source, match.node))

    def _source(self, node: Node) -> Node:
        match = self._relations.state.matches[node.number]
        return node if match is None else match.node

    def _key(self, node: Node) -> _Key:
        """What a value of `after` is in `before`."""
        match = self._relations.state.matches[node.number]
        return _key_of(self._relations.state.raw.digest(node.number) if match is None else match.node.digest)

    def _keys_of_body(self, loop: RunPlace, iteration: int) -> set[_Key]:
        """The values that the body of a loop computes in an iteration."""
        conditions = self._ours.of(loop)
        if iteration + 1 >= len(conditions):
            return set()
        return {
            self._key(node)
            for node in self._relations.nodes_between(conditions[iteration], conditions[iteration + 1])
            if node.device == loop.device
        }


def _key_of(digest: Digest) -> _Key:
    return digest.family, digest.count, digest.in_any_order


def _is_chosen(node: Node, loop: RunPlace, iteration: int) -> bool:
    """Whether a conditional in an iteration of a loop gives a value."""
    scope = transparent_chain(node)[-1].instance.scope
    inner = scope.calls[len(loop.path.calls) + 1 :] if loop.iteration(scope) == iteration else ()
    return any(call.is_choice and call.iteration is None for call in inner)


def _is_passed_on(node: Node, handing: Handing) -> bool:
    """Whether a value is one that the iteration was given, perhaps moved."""
    return any(entry in handing.given for entry in transparent_chain(node))


def _chooses(node: Node) -> bool:
    """Whether a value was chosen among others, as by a select."""
    instance = transparent_chain(node)[-1].instance
    return not (instance.is_source or is_filled(node)) and traits_of(instance.instruction).moves is not None


def _is_evidence(node: Node) -> bool:
    """Whether having this value is no accident."""
    if node.digest.count == 1:
        return node.digest.family not in ("integer", "pred") and not float(node.digest.total).is_integer()
    return is_varied(node) and (node.digest.family != "integer" or node.digest.count >= LIMITS.few_numbers)
