"""Values that correspond where two modules compute one value in different steps.

The steps of either side are those since values that both have. A value among `after`'s steps corresponds to one among
`before`'s if what follows it gives the right value once it is replaced by that one. If it differs from it, the cause
lies there, or behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import narrow, wide
from hloexec.ops.registry import Role, role_of
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.relations import (
    NodePair,
    Relation,
    Relations,
    is_filled,
    is_narrower,
    transparent_chain,
    type_rounded_to,
)
from hloexec.tools.diffing.matching import aligned, arranged, comes_near, is_near, is_same, permuted
from hloexec.tools.diffing.replaying.replay import Replay
from hloexec.tools.diffing.replaying.rerun import Rerun

_Key = tuple[int, int]


@frozen(eq=False)
class Misuse:
    """What computes from a wrong value in a region, and how."""

    pair: NodePair
    reason: str
    is_end: bool = False
    """Whether it may be what computes that value: `after` has it elsewhere as well."""


@frozen(eq=False)
class Region:
    """The steps from values that are right to one that is wrong."""

    nodes: tuple[Node, ...] = ()
    """Those of `after`; none if they are too many."""
    causes: tuple[NodePair, ...] = ()
    is_guessed: bool = False
    """Whether nothing but the place of the causes says that they are pairs."""
    misuses: tuple[Misuse, ...] = ()
    misplaced: tuple[NodePair, NodePair, Node] | None = None
    """What uses a value that another one should be, where that is right in itself; the two values; and what the first
    one is in `before`."""


@frozen(eq=False)
class _Steps:
    """What one side computes a value by, since values that both have."""

    nodes: tuple[Node, ...]
    """In data-flow order, the value itself last."""
    nodes_beyond: tuple[Node, ...]
    """These, and some more of what they are computed from, though both sides have it."""
    distance: dict[int, int]
    """How many of these are nearer to the value."""
    leaves: dict[int, frozenset[_Key]]
    """The values that both have, constants aside, from which each node is computed; in terms of `before`."""


class Regions:
    """The regions of one state of a replay."""

    def __init__(self, replay: Replay, relations: Relations, is_over: Callable[[], bool]) -> None:
        self._replay = replay
        self._is_over = is_over
        self._relations = relations
        self._state = relations.state

    def of(self, pair: NodePair) -> Region:
        """The region in which a pair differs that different steps computed."""
        ours, theirs = self._steps(pair)
        nodes = self._around(ours.nodes) if len(ours.nodes) <= LIMITS.largest_region else ()
        corresponding = self._corresponding(pair, ours, theirs)
        if corresponding is not None:
            misplaced = self._misplaced(corresponding, pair, ours)
            return Region(nodes, () if misplaced else (corresponding,), misplaced=misplaced)
        misuses = tuple(self._misused(pair, ours, theirs)) if nodes else ()
        guesses = [*_in_place(pair, self._relations), *self.frontier(pair)[: LIMITS.region_guesses]]
        return Region(nodes, tuple(entry for entry in guesses if entry.numbers != pair.numbers), True, misuses)

    def _misplaced(self, operand: NodePair, pair: NodePair, steps: _Steps) -> tuple[NodePair, NodePair, Node] | None:
        """The step that uses a value which `before` has as well, but not there; that value as it takes it."""
        place = self._relations.place_of(operand.ours)
        if place is None:
            return None
        for node in steps.nodes:
            for entry in node.instance.inputs:
                if operand.ours in transparent_chain(entry):
                    return NodePair(node, pair.theirs), NodePair(entry, operand.theirs), place
        return None

    def _around(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Some nodes, and what they are computed from, as far as it may be right by accident, in the largest region."""
        region = {node.number: node for node in nodes}
        pending = list(nodes)
        for node in pending:
            for entry in node.instance.inputs:
                is_open = not (entry.instance.is_source or is_filled(entry) or self._relations.is_confirmed(entry))
                if is_open and entry.number not in region and len(region) < LIMITS.largest_region:
                    region[entry.number] = entry
                    pending.append(entry)
        return tuple(region[number] for number in sorted(region))

    def inside(self, pair: NodePair) -> NodePair | None:
        """Values behind a pair that correspond and differ, where it is computed from the same values in other steps."""
        ours, theirs = self._steps(pair)
        leaves = ours.leaves[pair.ours.number], theirs.leaves[pair.theirs.number]
        if leaves[0] != leaves[1] and not any(self._key_of(entry) in leaves[1] for entry in pair.ours.instance.inputs):
            return None
        return self._corresponding(pair, ours, theirs)

    def corresponding(self, pair: NodePair) -> NodePair | None:
        """Values behind a pair that correspond and differ, unless the one of `after` is right in itself."""
        corresponding = self._corresponding(pair, *self._steps(pair))
        return (
            None if corresponding is None or self._relations.place_of(corresponding.ours) is not None else corresponding
        )

    def rearranged(self, pair: NodePair, operands: Sequence[NodePair]) -> tuple[Node, NodePair] | None:
        """What moves an operand into another order than it should, and that operand, if the pair is right where it has
        another one: the numbers of the operand are those of its counterpart, but the instructions read their dimensions
        otherwise."""
        rerun = Rerun(self._replay, self._state, pair.ours)
        before = self._state.raw[pair.ours.number]
        for operand in operands:
            chain = transparent_chain(operand.ours)
            value = self._state.values[operand.ours.number]
            if max(value.ndim, operand.theirs.value.ndim) < 2 or not self._is_moved(chain, operand):
                continue
            for other in permuted(operand.theirs.value, value):
                now = rerun.value({operand.ours.number: other})
                if now is not None and comes_near(now, before, pair.theirs.value):
                    return _mover(chain), operand
        return None

    def narrowed(self, pair: NodePair, operands: Sequence[NodePair]) -> list[NodePair]:
        """The operands that were rounded to fewer bits than their counterparts, where the pair is right with the values
        of these: such an operand is as near as its bits allow, and what follows is not."""
        narrowed, changes = [], {}
        for operand in operands if not is_narrower(pair) else ():
            value = self._before_rounding(operand)
            if value is not None and not is_same(value, self._state.values[operand.ours.number]):
                narrowed.append(operand)
                changes[operand.ours.number] = value
        if not narrowed:
            return []
        now = Rerun(self._replay, self._state, pair.ours).value(changes)
        is_right = now is not None and comes_near(now, self._state.raw[pair.ours.number], pair.theirs.value)
        return narrowed if is_right else []

    def _before_rounding(self, operand: NodePair) -> Array | None:
        """What an operand would be with the bits of its counterpart; None where it has as many, or is none such."""
        entry = type_rounded_to(transparent_chain(operand.theirs), transparent_chain(operand.ours))
        if entry is None:
            return None
        ours = self._state.values[operand.ours.number]
        ways = islice(aligned(operand.theirs.value, operand.ours.shape), LIMITS.permutations)
        return next((value for value in ways if is_near(narrow(wide(value), entry), ours)), None)

    def _is_moved(self, chain: Sequence[Node], operand: NodePair) -> bool:
        """Whether an operand is its counterpart before it is moved, dimensions perhaps permuted."""
        others = transparent_chain(operand.theirs)
        return any(node.instance.is_movement for node in chain[:-1]) and any(
            self._relations.of(chain[-1], other) in (Relation.EQUAL, Relation.REARRANGED) for other in others
        )

    def steps(self, pair: NodePair) -> tuple[list[Node], list[Node]]:
        """What `after` computes a pair by, since values that both have and some steps more, the nearest first; and the
        values that `before` computes it from."""
        ours, theirs = self._steps(pair)
        nearest = sorted(ours.nodes_beyond, key=lambda node: ours.distance[node.number])
        counted = [entry for node in nearest for entry in node.instance.inputs if _is_computed_from_nothing(entry)]
        taken = [entry for node in theirs.nodes for entry in node.instance.inputs if entry.number not in theirs.leaves]
        return list(dict.fromkeys([*nearest, *counted])), list(dict.fromkeys(taken))

    def _steps(self, pair: NodePair) -> tuple[_Steps, _Steps]:
        def known(node: Node) -> _Key | None:
            place = self._relations.place_of(node)
            return None if place is None else _key(place)

        matched = self._state.matched
        most = LIMITS.region_steps * len(self._replay.graph.outputs)
        ours = _steps_of(pair.ours, known, most)
        theirs = _steps_of(
            pair.theirs,
            lambda node: _key(node) if node.number in matched and not node.digest.is_uniform else None,
            most,
        )
        return ours, theirs

    def _corresponding(self, pair: NodePair, ours: _Steps, theirs: _Steps) -> NodePair | None:
        """A pair of steps that differ, of which the first one, put right, makes the value right; if none does so in
        all of its elements, the first that does in most."""
        partly = None
        rerun = Rerun(self._replay, self._state, pair.ours)
        before = self._state.raw[pair.ours.number]
        for candidate, values in islice(self._replacements(pair, ours, theirs), LIMITS.region_tries):
            if self._is_over():
                break
            now = rerun.value(values)
            if now is None:
                continue
            if comes_near(now, before, pair.theirs.value, 0.0):
                return candidate
            if partly is None and comes_near(now, before, pair.theirs.value):
                partly = candidate
        return partly

    def _replacements(
        self, pair: NodePair, ours: _Steps, theirs: _Steps
    ) -> Iterator[tuple[NodePair, Mapping[int, Array]]]:
        """Candidates, and the arrays by node that they are replaced by, on all devices."""
        for candidate in self._candidates(pair, ours, theirs):
            pairs = self._on_all_devices(candidate)
            orders = [
                arranged(device_pair.theirs.value, self._state.raw[device_pair.ours.number]) for device_pair in pairs
            ]
            for values in zip(*orders, strict=True):
                yield (
                    candidate,
                    {device_pair.ours.number: value for device_pair, value in zip(pairs, values, strict=True)},
                )

    def _on_all_devices(self, pair: NodePair) -> list[NodePair]:
        """A pair, and what its instructions gave at the same time on other devices."""
        sides = []
        for node, graph in ((pair.ours, self._replay.graph), (pair.theirs, self._replay.index.graph)):
            own = node.instance
            if len(graph.outputs) == 1:
                return [pair]
            runs = (run for run in graph.runs[own.static] if run.scope == own.scope and len(run.results) > node.leaf)
            sides.append({run.device: run.results[node.leaf] for run in runs})
        others = [NodePair(node, sides[1][device]) for device, node in sides[0].items() if device in sides[1]]
        return [pair, *(entry for entry in others if entry.numbers != pair.numbers)]

    def frontier(self, pair: NodePair) -> list[NodePair]:
        """Pairs of the first values behind a pair that the other side does not have, though it has what they are
        computed from; the likeliest first."""
        state, relations = self._state, self._relations
        ours = _first_ones(pair.ours, lambda node: relations.place_of(node) is not None or is_filled(node))
        theirs = _first_ones(
            pair.theirs, lambda node: (node.number in state.matched and not node.digest.is_uniform) or is_filled(node)
        )
        ranked = []
        for node in ours:
            places = {_key(place) for entry in node.instance.inputs if (place := relations.place_of(entry)) is not None}
            for other in theirs:
                if not could_be(node, other) or not relations.differ(node, other) or _are_apart(node, other):
                    continue
                keys = {_key(entry) for entry in other.instance.inputs if not is_filled(entry)}
                common = len(places & keys) / max(1, len(places | keys))
                is_alike = node.instance.opcode == other.instance.opcode
                if common or is_alike:
                    ranked.append((-common - is_alike, node.number, NodePair(node, other)))
        return [entry for *_, entry in sorted(ranked, key=lambda entry: entry[:2])]

    def _candidates(self, pair: NodePair, ours: _Steps, theirs: _Steps) -> list[NodePair]:
        others = self._other_operands(pair)
        candidates = [
            NodePair(node, other)
            for node in ours.nodes_beyond[:-1]
            for other in theirs.nodes_beyond[:-1]
            if could_be(node, other) and self._is_wrong(node, other) and not self._is_accident(node, other)
        ]
        candidates = [entry for entry in candidates if entry.numbers not in others]
        # On all devices at once, one of them stands for all.
        candidates = list(
            {(_run_of(entry.ours), _run_of(entry.theirs)): entry for entry in reversed(candidates)}.values()
        )

        def likelihood(entry: NodePair) -> tuple[bool, bool, bool, int, int]:
            is_known = entry.ours.number not in ours.leaves or entry.theirs.number not in theirs.leaves
            is_alike = entry.ours.instance.opcode == entry.theirs.instance.opcode
            keys = ours.leaves.get(entry.ours.number), theirs.leaves.get(entry.theirs.number)
            same = keys[0] is not None and keys[0] == keys[1]
            distance = ours.distance[entry.ours.number] + theirs.distance[entry.theirs.number]
            likeness = self._relations.likeness(entry.ours, entry.theirs)
            return not (is_alike and same), is_known, not (is_alike or same), -likeness, distance

        return sorted(candidates, key=likelihood)

    def _other_operands(self, pair: NodePair) -> set[tuple[int, int]]:
        """The numbers of operands of a pair that belong to others than each other."""
        operand_pairs = self._relations.operand_pairs(pair.ours, pair.theirs)
        if operand_pairs is None:
            return set()
        crossed = {(entry.ours.number, other.theirs.number) for entry in operand_pairs for other in operand_pairs}
        return crossed - {entry.numbers for entry in operand_pairs}

    def _is_wrong(self, ours: Node, theirs: Node) -> bool:
        """Whether a value has other numbers than the one that it should be, or the same in an order that no permutation
        of dimensions explains."""
        return self._relations.of(ours, theirs) in (Relation.DIFFERENT, Relation.SHUFFLED)

    def _is_accident(self, ours: Node, theirs: Node) -> bool:
        """Whether two values of other iterations could easily correspond by accident."""
        return _are_apart(ours, theirs) and not self._relations.is_evidence(ours)

    def _misused(self, pair: NodePair, ours: _Steps, theirs: _Steps) -> Iterator[Misuse]:
        """Steps that compute from another value of `before` than they should, take a step too many, or one too few."""
        extra = ours.leaves[pair.ours.number] - theirs.leaves[pair.theirs.number]
        for node in ours.nodes:
            wrong = [entry for entry in node.instance.inputs if self._key_of(entry) in extra]
            if wrong:
                name = wrong[0].instance.instruction.name
                place = self._relations.place_of(wrong[0])
                is_end = place is not None and len(self._relations.holders(place)) > 1
                yield Misuse(NodePair(node, pair.theirs), f"it computes from %{name}, which before does not", is_end)
        right = [node for node in ours.nodes[:-1] if not self._relations.differ(node, pair.theirs)]
        right += [node for node in pair.ours.instance.inputs if not self._relations.differ(node, pair.theirs)]
        is_number = pair.theirs.digest.is_uniform and pair.theirs.digest.family in ("integer", "pred")
        if right and not is_filled(right[0]) and not is_number:
            name = right[0].instance.instruction.name
            yield Misuse(pair, f"its operand %{name} is what it should be")

    def _key_of(self, node: Node) -> _Key | None:
        place = self._relations.place_of(node)
        return None if place is None or is_filled(node) else _key(place)


def could_be(ours: Node, theirs: Node) -> bool:
    """Whether one value could be the other, by its device, its size and the kind of its numbers."""
    is_alike = ours.digest.count == theirs.digest.count and ours.digest.family == theirs.digest.family
    return is_alike and ours.device == theirs.device


def _mover(chain: Sequence[Node]) -> Node:
    """What first puts elements into another order on the way from the last node of a chain, or else into other
    dimensions."""
    moving = [node for node in reversed(chain[:-1]) if node.instance.is_movement]
    reordering = [node for node in moving if node.digest.in_order != node.instance.inputs[0].digest.in_order]
    reshaping = [node for node in moving if node.shape != node.instance.inputs[0].shape]
    return next(iter([*reordering, *reshaping, *moving]))


def _run_of(node: Node) -> tuple[str, int]:
    return node.instance.name, node.leaf


def _are_apart(ours: Node, theirs: Node) -> bool:
    """Whether two values were computed in other iterations."""
    first, second = ours.instance.iterations, theirs.instance.iterations
    return len(first) == len(second) and first != second


def _is_computed_from_nothing(node: Node) -> bool:
    """Whether a value is an iota or the like."""
    return node.instance.is_source and role_of(node.instance.instruction) is Role.KERNEL


def _in_place(pair: NodePair, relations: Relations) -> Iterator[NodePair]:
    """Operands in the same place that one opcode gave and that differ."""
    for ours, theirs in zip(pair.ours.instance.inputs, pair.theirs.instance.inputs, strict=False):
        first, second = transparent_chain(ours)[-1], transparent_chain(theirs)[-1]
        if (
            first.instance.opcode == second.instance.opcode
            and could_be(first, second)
            and relations.differ(first, second)
        ):
            yield NodePair(first, second)


def _first_ones(node: Node, is_known: Callable[[Node], bool]) -> list[Node]:
    """The values behind one that are not known, but computed from known ones alone."""
    first = []
    seen = {node.number}
    pending = [node]
    while pending:
        current = pending.pop()
        inputs = [entry for entry in current.instance.inputs if not is_known(entry)]
        if not inputs:
            first.append(current)
        pending += [entry for entry in inputs if entry.number not in seen]
        seen.update(entry.number for entry in inputs)
    return sorted(first, key=lambda entry: entry.number)


def _key(node: Node) -> _Key:
    return node.device, node.digest.in_any_order


def _steps_of(node: Node, key_of: Callable[[Node], _Key | None], most: int) -> _Steps:
    inside = {node.number: node}
    keys: dict[int, _Key] = {}
    beyond: dict[int, Node] = {}
    pending = [node]
    for current in pending:
        is_inside = current.number in inside
        for entry in current.instance.inputs:
            if entry.number in inside or entry.number in beyond or is_filled(entry):
                continue
            key = key_of(entry)
            is_step = not entry.instance.is_source and len(pending) < most
            if is_inside and (key is not None or not is_step):
                keys[entry.number] = _key(entry) if key is None else key
            if is_step:
                (inside if is_inside and key is None else beyond)[entry.number] = entry
                pending.append(entry)
    leaves: dict[int, frozenset[_Key]] = {}
    nodes = [inside[number] for number in sorted(inside)]
    for current in nodes:
        own = {keys[entry.number] for entry in current.instance.inputs if entry.number in keys}
        inner = (leaves.get(entry.number, frozenset()) for entry in current.instance.inputs)
        leaves[current.number] = frozenset(own.union(*inner))
    beyond |= inside
    distance = {entry.number: place for place, entry in enumerate(pending)}
    return _Steps(tuple(nodes), tuple(beyond[number] for number in sorted(beyond)), distance, leaves)
