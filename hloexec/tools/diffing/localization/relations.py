"""Whether a value of `after` is what a particular value of `before` is, perhaps but for a rounding that one side lacks.

A value of `after` may equal some value of `before` by accident: zeros, a slice of another iteration, a bound that a
clamp reached. What counts here is therefore always a pair, a value and the one that it should be. A suspect is such a
pair, with what it may be to blame for.

A compiler may compute more precisely than the text says: it drops a conversion to a narrow type and back. Then a value
is what it is in `before` but for that rounding, which can be told exactly: each element, rounded, is that of `before`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import islice

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of, unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import narrow, wide
from hloexec.ops.registry import exchanges, is_elementwise, traits_of
from hloexec.tools.diffing.findings import InstructionRun
from hloexec.tools.diffing.graph import Graph, Instance, Node, Users
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.matching import aligned, is_near
from hloexec.tools.diffing.replaying.replay import Replay, State


class Relation(Enum):
    """What a value is to the one that it should be."""

    EQUAL = "equal"
    REARRANGED = "rearranged"
    """The same, up to rounding, with dimensions permuted."""
    SHUFFLED = "shuffled"
    """The same numbers, up to rounding, in some other order."""
    DIFFERENT = "different"


@frozen
class NodePair:
    """A value of `after`, and the one of `before` that it should be."""

    ours: Node
    theirs: Node

    @property
    def numbers(self) -> tuple[int, int]:
        return self.ours.number, self.theirs.number


@frozen(eq=False)
class Suspect:
    """An instruction that may be to blame."""

    pair: NodePair
    reason: str = ""
    trial: NodePair | None = None
    """What to put right to see whether the results come right, where it is not the pair itself."""
    region: tuple[Node, ...] = ()
    """What was computed since values that are right, where it is more than the one instruction."""
    is_more_precise: bool = False
    """Whether it is right, and has only not been rounded as `before` rounds it."""
    is_less_precise: bool = False
    """Whether it only rounds to fewer bits than `before` has, and nothing else does there."""
    is_rounding: bool = False
    """Whether it rounds to fewer bits than `before` has."""
    has_wrong_operands: bool = False
    """Whether some of its operands are wrong themselves."""
    decision: NodePair | None = None
    """What decided how a loop or a conditional ran, if it is to blame for that."""
    is_certain: bool = False
    """Whether nothing else can be to blame."""
    is_proven: bool = False
    """Whether it is to blame, or what else its region lists: rounding is not."""
    place: InstructionRun | None = None
    """What is to blame where it computes no value of its own: a conditional, or what hands on the values of a loop."""
    is_restructured: bool = False
    """Whether it was found among steps that do not correspond."""
    is_end: bool = False
    """Whether it may be any of the steps before it as well, too many to list."""
    is_repair: bool = False
    """Whether a change of it was found that makes the value right."""


class Relations:
    """The relations of one state of a replay."""

    def __init__(self, replay: Replay, state: State) -> None:
        self._replay = replay
        self.state = state
        self._permuted: dict[tuple[int, int], bool] = {}
        self._holders: dict[tuple[int, int], set[tuple[str, str]]] | None = None
        self._places: dict[int, Node | None] = {}

    def of(self, ours: Node, theirs: Node) -> Relation:
        """What a value of `after`, computed from values of `before` as far as both have them, is to one of `before`."""
        digest, other = self.state.raw.digest(ours.number), theirs.digest
        if digest.count != other.count or digest.family != other.family:
            return Relation.DIFFERENT
        if digest.in_order == other.in_order:
            return Relation.EQUAL
        match = self.state.matches[ours.number]
        if match is not None and match.is_in_order and match.node.digest.in_order == other.in_order:
            return Relation.EQUAL
        matched_digest = digest.in_any_order if match is None else match.node.digest.in_any_order
        if other.is_uniform or other.in_any_order not in (digest.in_any_order, matched_digest):
            return Relation.DIFFERENT
        key = (ours.number, theirs.number)
        if key not in self._permuted:
            raw = self.state.raw[ours.number]
            self._permuted[key] = any(is_near(raw, value) for value in aligned(theirs.value, raw.shape))
        return Relation.REARRANGED if self._permuted[key] else Relation.SHUFFLED

    def differ(self, ours: Node, theirs: Node) -> bool:
        """Whether the numbers are others."""
        return self.of(ours, theirs) is Relation.DIFFERENT

    def is_only_rearranged(self, ours: Node, theirs: Node) -> bool:
        """Whether an instruction computes the right numbers in other dimensions, as before and after layout assignment,
        or element by element in another order: then it is not wrong in itself. What only moves them may be."""
        if ours.instance.is_movement:
            return False
        relation = self.of(ours, theirs)
        if relation is Relation.SHUFFLED:
            return is_elementwise(ours.instance.instruction) and self.is_evidence(ours)
        sizes = [[size for size in node.shape if size != 1] for node in (ours, theirs)]
        return sizes[0] != sizes[1] and relation is Relation.REARRANGED

    def runs_before(self, node: Node) -> list[Instance]:
        """The last few runs, before it, of what computed a value of either side, in the same loops on its device; the
        last one first."""
        return list(islice(self._graph_of(node).runs.before(node.instance), LIMITS.runs_compared))

    def nodes_between(self, first: Node, last: Node) -> Iterator[Node]:
        """The values of `after` that were computed between two others."""
        return map(self._replay.graph.node, range(first.number + 1, last.number))

    def _graph_of(self, node: Node) -> Graph:
        """The graph of the side that computed a value."""
        own, ours = node.instance, self._replay.graph
        is_ours = own.number < len(ours.instances) and ours.instances[own.number] is own
        return ours if is_ours else self._replay.index.graph

    def _are_same(self, ours: Node, theirs: Node) -> bool:
        """Whether a value is what it should be, its dimensions perhaps permuted."""
        return self.of(ours, theirs) in (Relation.EQUAL, Relation.REARRANGED)

    def place_of(self, ours: Node) -> Node | None:
        """The node of `before` that a node of `after` is, so that no accident explains it; None where there is none.

        Where equal numbers are little evidence, their operands have to correspond, too.
        """
        if ours.number not in self._places:
            self._places[ours.number] = self._found_place(ours)
        return self._places[ours.number]

    def _found_place(self, ours: Node) -> Node | None:
        match = self.state.matches[ours.number]
        if match is None:
            return None
        is_evident = self.is_evidence(ours) and match.is_in_order
        return match.node if is_evident or self.corresponds(ours, match.node) else None

    def corresponds(self, ours: Node, theirs: Node) -> bool:
        """Whether two values are the same, and so are their operands, as far back as equal numbers are little
        evidence."""
        return self._corresponds(ours, theirs, LIMITS.operands_deep)

    def is_computed_alike(self, ours: Node, theirs: Node) -> bool:
        """Whether two values correspond, and one opcode computed them from several operands. Numbers that count
        something do so by accident."""
        if not (is_varied(ours) or ours.digest.family == "pred"):
            return False
        one, other = (transparent_chain(node)[-1].instance for node in (ours, theirs))
        return one.opcode == other.opcode and len(one.inputs) > 1 and self.corresponds(ours, theirs)

    def is_confirmed(self, ours: Node) -> bool:
        """Whether `before` computes what a value of `after` is from operands that are the same."""
        match = self.state.matches[ours.number]
        return match is not None and self._corresponds(ours, match.node, 1)

    def is_another(self, ours: Node, theirs: Node) -> Node | None:
        """The node of `before` that a value of `after` evidently is, computed as that is, if it is not `theirs`."""
        source = transparent_chain(ours)[-1]
        match = self.state.matches[source.number]
        if match is None or source.instance.is_constant:
            return None
        is_meant = match.node.digest.in_any_order == theirs.digest.in_any_order
        return match.node if not is_meant and self._corresponds(source, match.node, 1) else None

    def holders(self, theirs: Node) -> set[tuple[str, str]]:
        """The instructions of `after` that compute a value of `before`; what only passes it on aside."""
        if self._holders is None:
            self._holders = defaultdict(set)
            for number, match in self.state.matches.found():
                node = self._replay.graph.node(number)
                if not _passes_on(node.instance):
                    self._holders[match.node.device, match.node.digest.in_any_order].add(node.instance.static)
        return self._holders[theirs.device, theirs.digest.in_any_order]

    def operand_pairs(self, ours: Node, theirs: Node) -> list[NodePair] | None:
        """The operands of two values by one opcode, or two contractions, pair by pair; None where they do not pair up.

        The last two operands change places if that makes more pairs alike: operands of what commutes, the sides of a
        comparison or of a product, and the branches of a select whose predicate is negated.
        """
        pairs = self._replay.index.operands(ours, theirs, self.state.raw)
        if pairs is not None:
            return [NodePair(*entry) for entry in pairs]
        one, other = ours.instance, theirs.instance
        if not _is_alike(one, other) or (ours.leaf != theirs.leaf and not _is_leafwise(one)):
            return None
        first, second = _operands_of(one, ours.leaf), _operands_of(other, theirs.leaf)
        if len(first) != len(second):
            return None
        if len(first) in (2, 3) and not one.others and self._is_crossed(ours, theirs):
            second[-2:] = second[:-3:-1]
            if len(first) == 3:
                first[0], second[0] = _without_negation(first[0], second[0])
        return [NodePair(*entry) for entry in zip(first, second, strict=True)]

    def unknown_operands(self, ours: Node, theirs: Node) -> list[Node]:
        """The operands of a value of which nothing says that they are right: those without counterparts or, if operands
        do not pair up, those that `before` does not have.

        What moves elements between devices, or out of a larger part, is paired with what it takes in several steps; of
        its operands, those count that say where the elements lie.
        """
        pairs, instruction = self.operand_pairs(ours, theirs), ours.instance.instruction
        inputs, moves = ours.instance.inputs, traits_of(instruction).moves
        if pairs is None:
            settled = {entry.number for entry in inputs if self.state.has(entry)}
        elif exchanges(instruction):
            return []
        elif moves is not None:
            places = [part for number, part in enumerate(ours.instance.operands) if number not in moves]
            inputs = tuple(entry for part in places for entry in part)
            settled = {entry.number for entry in inputs if self.state.has(entry)}
        else:
            settled = {pair.ours.number for pair in pairs}
        return [
            entry for entry in inputs if not (entry.instance.is_source or is_filled(entry) or entry.number in settled)
        ]

    def has_right_operands(self, pair: NodePair) -> bool:
        """Whether all that a value is computed from is, as far as was looked, what its counterpart takes."""
        operands = self.operand_pairs(pair.ours, pair.theirs)
        if operands is None:
            # Another instruction than its counterpart may be right for other operands.
            return not self.unknown_operands(pair.ours, pair.theirs)
        return not any(self.differ(operand.ours, operand.theirs) for operand in operands)

    def _is_crossed(self, ours: Node, theirs: Node) -> bool:
        """Whether more of the last two operands are those of the other side where these change places; in a loop that
        may show in the first iteration only. If as many are, those of a select whose predicate is negated do."""
        score = 0
        for one, other in self._runs_alike(ours, theirs):
            score = score or self._crossing(
                one, _operands_of(one, ours.leaf)[-2:], _operands_of(other, theirs.leaf)[-2:]
            )
        if score or len(ours.instance.inputs) != 3:
            return score > 0
        return _is_negation(ours.instance.inputs[0]) != _is_negation(theirs.instance.inputs[0])

    def starts_alike(self, node: Node) -> bool:
        """Whether the two operands of what gave a value were the same in the first iteration, and are not now."""
        first = self._graph_of(node).runs.first(node.instance)
        if first is node.instance or len(first.inputs) != 2 or len(node.instance.inputs) != 2:
            return False
        start, now = ([entry.digest.in_order for entry in instance.inputs] for instance in (first, node.instance))
        return start[0] == start[1] and now[0] != now[1]

    def _runs_alike(self, ours: Node, theirs: Node) -> Iterator[tuple[Instance, Instance]]:
        """What computed two values, and the first runs of their instructions, if these are in the same iteration."""
        yield ours.instance, theirs.instance
        first, other = (self._graph_of(node).runs.first(node.instance) for node in (ours, theirs))
        if first is not ours.instance and first.iterations == other.iterations:
            yield first, other

    def _crossing(self, instance: Instance, first: list[Node], second: list[Node]) -> int:
        """How many more of two operands are those of the other side where these change places."""
        order = list(zip(first, second, strict=True)), list(zip(first, reversed(second), strict=True))
        equal = [[pair for pair in pairs if not self.differ(*pair)] for pairs in order]
        if not traits_of(instance.instruction).commutes:
            # A value may be the number that it is compared with.
            filled = [sum(is_filled(ours) and is_filled(theirs) for ours, theirs in pairs) for pairs in order]
            return len(equal[1]) - len(equal[0]) or filled[1] - filled[0]
        evident = [sum(self.is_evidence(ours) for ours, _ in pairs) for pairs in equal]
        if evident[0] != evident[1]:
            return evident[1] - evident[0]
        # Equal by accident, or wrong both: what looks alike belongs together.
        alike = [sum(self.likeness(*pair) for pair in pairs) for pairs in order]
        return len(equal[1]) + alike[1] - len(equal[0]) - alike[0]

    def likeness(self, ours: Node, theirs: Node) -> int:
        """How much two values look as if they were computed alike."""
        ours, theirs = transparent_chain(ours)[-1], transparent_chain(theirs)[-1]
        one, other = ours.instance, theirs.instance
        if one.opcode != other.opcode:
            return 0
        is_as_deep = len(one.iterations) == len(other.iterations)
        has_same_attributes = bool(one.instruction.attributes == other.instruction.attributes)
        pairs = zip(one.inputs, other.inputs, strict=False)
        operands = sum((first.dtype == second.dtype) + (not self.differ(first, second)) for first, second in pairs)
        return 1 + (ours.shape == theirs.shape) + is_as_deep + has_same_attributes + operands

    def is_evidence(self, node: Node) -> bool:
        """Whether it is no accident that `before` has the same numbers."""
        digest = self.state.raw.digest(node.number)
        if traits_of(node.instance.instruction).moves is not None and not _passes_on(node.instance):
            # Of a value that chooses among others, all elements are in `before`, if perhaps not the right ones.
            return False
        if digest.family == "integer" and digest.root_mean_square < LIMITS.large_integers:
            return False
        if digest.family == "integer" and digest.count == 1:
            # Limits of a type, and masks.
            return abs(digest.magnitude - 2.0 ** round(math.log2(digest.magnitude))) > 1
        return digest.count >= LIMITS.few_equal and not digest.is_uniform and digest.family != "pred"

    def have_same_operands(self, ours: Instance, theirs: Instance) -> bool:
        """Whether two instructions are given the same, constants aside, in whatever order, and that is no accident."""
        first, second = ([entry for entry in side.inputs if not is_filled(entry)] for side in (ours, theirs))
        matches = [self.state.matches[entry.number] for entry in first]
        digests = [
            self.state.raw.digest(entry.number) if match is None else match.node.digest
            for entry, match in zip(first, matches, strict=True)
        ]
        orders = [
            Counter(digest.in_any_order for digest in side) for side in (digests, (each.digest for each in second))
        ]
        # Of one operand, no other can be meant.
        is_evident = len(first) == 1 or any(
            entry.instance.is_source or is_varied(entry) or self.is_evidence(entry) for entry in first
        )
        return orders[0] == orders[1] and is_evident

    def _corresponds(self, ours: Node, theirs: Node, depth: int) -> bool:
        """Whether two values are computed alike, from operands that are the same."""
        ours, theirs = transparent_chain(ours)[-1], transparent_chain(theirs)[-1]
        if not self._are_same(ours, theirs):
            return False
        one, other = ours.instance, theirs.instance
        if one.is_source or other.is_source:
            return one.opcode == other.opcode and (one.is_constant or ours.digest.in_order == theirs.digest.in_order)
        pairs = self.operand_pairs(ours, theirs)
        if pairs is None:
            return self.have_same_operands(one, other)
        return all(
            self._are_same(pair.ours, pair.theirs)
            and (depth <= 1 or self.is_evidence(pair.ours) or self._corresponds(pair.ours, pair.theirs, depth - 1))
            for pair in pairs
        )


def _without_negation(ours: Node, theirs: Node) -> tuple[Node, Node]:
    """Two predicates of which one is the other's negation, both without it."""
    sides = [transparent_chain(node)[-1] for node in (ours, theirs)]
    for place, node in enumerate(sides):
        if _is_negation(node):
            sides[place] = node.instance.inputs[0]
            return sides[0], sides[1]
    return ours, theirs


def _is_negation(node: Node) -> bool:
    return traits_of(transparent_chain(node)[-1].instance.instruction).is_involution and node.digest.family == "pred"


def _operands_of(instance: Instance, leaf: int) -> list[Node]:
    """The arrays that a leaf of an instance's result is computed from, in their order; of what exchanges values, those
    of every device."""
    devices = (
        [instance.others[device] for device in sorted(instance.others)] if instance.others else [instance.operands]
    )
    if _is_leafwise(instance):
        return [operands[leaf][0] for operands in devices]
    return [node for operands in devices for part in operands for node in part]


def _is_alike(one: Instance, other: Instance) -> bool:
    """Whether two instructions take their operands alike: compilers for TPUs make convolutions of dots."""
    if one.opcode == other.opcode:
        return True
    return not (one.is_source or other.is_source) and all(
        traits_of(instance.instruction).contraction is not None for instance in (one, other)
    )


def _is_leafwise(instance: Instance) -> bool:
    """Whether leaf k of the result is made of operand k."""
    parts = [len(part) for part in instance.operands]
    return traits_of(instance.instruction).is_leafwise and parts == [1] * len(instance.results)


def _passes_on(instance: Instance) -> bool:
    """Whether the result is the operand's elements, perhaps in another order or in another format."""
    if not instance.inputs:
        return False
    return instance.is_movement or (
        traits_of(instance.instruction).converts
        and len(instance.operands) == 1
        and instance.inputs[0].digest.family == instance.results[0].digest.family
    )


def is_varied(node: Node) -> bool:
    """Whether a value holds several numbers that are not all the same."""
    return node.digest.count >= LIMITS.few_equal and not node.digest.is_uniform


def transparent_chain(node: Node) -> list[Node]:
    """A node, and those before it whose elements it passes on, back to where they were computed."""
    chain = [node]
    while _passes_on(chain[-1].instance):
        chain.append(chain[-1].instance.inputs[0])
    return chain


def constant_of(node: Node) -> Node | None:
    """The constant that a value is, repeated or converted; None where it is none."""
    while node.instance.inputs:
        traits = traits_of(node.instance.instruction)
        if len(node.instance.inputs) != 1 or not (traits.converts or traits.moves == (0,)):
            return None
        node = node.instance.inputs[0]
    return node if node.instance.is_constant else None


def is_filled(node: Node) -> bool:
    """Whether a value is a constant, perhaps repeated or converted."""
    return constant_of(node) is not None


def type_rounded_to(ours: Sequence[Node], theirs: Sequence[Node]) -> ElementType | None:
    """The type to which `before` rounds a value on its way, and `after` does not; None where there is none."""
    types = [[element_type_of(node.dtype) for node in chain] for chain in (ours, theirs)]
    if not all(entry.is_floating for side in types for entry in side):
        return None
    coarsest = [max(side, key=unit_roundoff) for side in types]
    return coarsest[1] if unit_roundoff(coarsest[0]) < unit_roundoff(coarsest[1]) else None


def reason_of_lost(entry: ElementType) -> str:
    """What `before` does with a value that `after` leaves out."""
    return f"before rounds it to {entry.name}, and after does not"


def reason_of_narrowing(entry: ElementType) -> str:
    """What `after` does with a value that `before` does not."""
    return f"after rounds it to {entry.name}, and before does not"


def is_narrower(pair: NodePair) -> bool:
    """Whether a value has fewer bits than the one that it should be."""
    ours, theirs = (element_type_of(node.dtype) for node in (pair.ours, pair.theirs))
    if ours.is_floating and theirs.is_floating:
        return unit_roundoff(ours) > unit_roundoff(theirs)
    return ours.is_integral and theirs.is_integral and ours.bits < theirs.bits


def where_narrowed(node: Node) -> Node:
    """What first gives a value the few bits it has: what only takes elements of one array comes after it."""
    while True:
        instance = node.instance
        moves = traits_of(instance.instruction).moves
        place = min(node.leaf, len(instance.operands) - 1) if instance.others or moves is None else moves[0]
        if not (instance.is_movement or instance.others or (moves is not None and len(moves) == 1)):
            return node
        sources = instance.operands[place] if place < len(instance.operands) else ()
        if len(sources) != 1 or sources[0].dtype != node.dtype:
            return node
        node = sources[0]


def _only_chooses(node: Node) -> bool:
    """Whether a value only takes elements of several others of its type."""
    moves = traits_of(node.instance.instruction).moves or ()
    operands = [part[0] for place, part in enumerate(node.instance.operands) if place in moves and part]
    return len(operands) > 1 and all(entry.dtype == node.dtype for entry in operands)


def roundings_taken_back(replay: Replay, state: State) -> Iterator[tuple[Node, str]]:
    """What rounds the values that a state without roundings holds as `before` has them; each instruction once."""
    named: set[tuple[str, str]] = set()
    for node in replay.graph.nodes:
        is_as_it_is = state.values.of(node.number).dtype == node.dtype
        if is_as_it_is or where_narrowed(node) is not node or _only_chooses(node):
            continue
        if node.instance.static not in named:
            named.add(node.instance.static)
            yield node, reason_of_narrowing(element_type_of(node.dtype))


def is_only_unrounded(actual: Array, expected: Array, entry: ElementType) -> bool:
    """Whether an array is another one, in other dimensions perhaps, once it is rounded to a type, and not before."""
    rounded = narrow(wide(actual), entry)
    return not np.array_equal(wide(rounded), wide(actual), equal_nan=True) and any(
        np.array_equal(wide(rounded), wide(narrow(wide(value), entry)), equal_nan=True)
        for value in aligned(expected, actual.shape)
    )


def lost_roundings(replay: Replay, state: State) -> Iterator[tuple[Node, str]]:
    """The values of `after` that it does not round as `before` does, on the way to values that agree up to rounding and
    to results, and to what `before` rounds them; each instruction once."""
    if max(_units(replay.index.graph), default=0.0) <= min(_units(replay.graph), default=0.0):
        return
    named: set[tuple[str, str]] = set()
    for node, entry in (*_unrounded_values(replay, state), *_unrounded_operands(replay, state)):
        if node.instance.static not in named:
            named.add(node.instance.static)
            yield node, reason_of_lost(entry)


def _units(graph: Graph) -> list[float]:
    """The units of roundoff of the floating types of its values."""
    return [unit_roundoff(entry) for entry in map(element_type_of, graph.types) if entry.is_floating]


def _unrounded_values(replay: Replay, state: State) -> Iterator[tuple[Node, ElementType]]:
    """What `before` has in a narrower type, and something else than a conversion to that uses in `after`."""
    users = replay.users
    for number, match in state.matches.found():
        node = replay.graph.node(number)
        entry = type_rounded_to([node], [match.node])
        if entry is None or match.is_exact or not match.is_in_order or node.instance.is_movement:
            continue
        is_used = any(not _rounds(user, node, entry, users) for user in users[number])
        if is_used and is_only_unrounded(state.raw[number], match.node.value, entry):
            yield node, entry


def _rounds(user: Instance, node: Node, entry: ElementType, users: Users) -> bool:
    """Whether all that an instruction does with a value is to move it, and to round it to a type."""
    if not user.is_movement:
        return traits_of(user.instruction).converts and element_type_of(user.results[0].dtype) is entry
    return all(_rounds(next_user, node, entry, users) for next_user in users[user.results[0].number])


def _unrounded_operands(replay: Replay, state: State) -> Iterator[tuple[Node, ElementType]]:
    """What `before` converts to a narrower type and back before it uses it, and `after` does not."""
    relations = Relations(replay, state)
    inexact = [(replay.graph.node(number), match.node) for number, match in state.matches.found() if not match.is_exact]
    results = [
        pair
        for device, nodes in replay.graph.outputs.items()
        for pair in zip(nodes, replay.index.graph.outputs[device], strict=True)
    ]
    pending = [NodePair(*pair) for pair in (*results, *inexact)]
    seen: set[tuple[int, int]] = set()
    for pair in pending:
        ours, theirs = transparent_chain(pair.ours)[-1], transparent_chain(pair.theirs)[-1]
        for operand_pair in relations.operand_pairs(ours, theirs) or []:
            if operand_pair.numbers in seen or not relations.differ(operand_pair.ours, operand_pair.theirs):
                continue
            seen.add(operand_pair.numbers)
            chain = transparent_chain(operand_pair.ours)
            entry = type_rounded_to(chain, transparent_chain(operand_pair.theirs))
            if entry is not None and is_only_unrounded(
                state.raw[operand_pair.ours.number], operand_pair.theirs.value, entry
            ):
                yield chain[-1], entry
            else:
                pending.append(operand_pair)
