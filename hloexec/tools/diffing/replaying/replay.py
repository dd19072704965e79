"""Replaying `after`, instruction by instruction, on the values of `before` where they are known.

Rounding errors accumulate, so values may be far apart in two runs although neither is wrong. A value of `after` that
agrees with one of `before` is therefore replaced by it before anything else is computed from it, so that each
instruction shows only its own error. A *state* is the outcome of such a replay; overriding a value gives another state,
in which only what depends on it has been recomputed.

Most nodes hold what was recorded, and match in one of few ways. What a state says of a node is a few numbers, so that a
state of a million nodes is small, and soon copied.
"""

from __future__ import annotations

from array import array as column
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.analysis.numerics.tolerances import Chain, worst
from hloexec.core.dtypes import element_type_of, largest_number, unit_roundoff
from hloexec.core.structs import define
from hloexec.core.values import Array
from hloexec.ops.common import narrow, wide
from hloexec.ops.registry import traits_of
from hloexec.tools.diffing.bounds import NO_CHAIN, Bound, Bounds, InstructionChains, path_chain, whole
from hloexec.tools.diffing.graph import Graph, Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.matching import Index, Match, agrees, is_same, rounds_alike, says_much
from hloexec.tools.diffing.recording.held import Held, Holding, Kept, Numbers, Overwritten, Windowed, own
from hloexec.tools.diffing.replaying.evaluation import Evaluator, moved_operands, window_of
from hloexec.tools.diffing.replaying.origins import allowed_from_common

_IN_ORDER, _EXACT, _TAKEN = 1, 2, 4
_MOST_BYTES = 1 << 30


class Matches:
    """What the nodes of one graph are in another."""

    def __init__(self, theirs: Graph, values: Holding, count: int) -> None:
        self._theirs = theirs
        self._values = values
        """What the nodes hold."""
        self._node = column("i", [-1]) * count
        self._kind = column("b", [0]) * count
        self._others: dict[int, Match] = {}
        """Those whose value the node does not hold."""

    def __len__(self) -> int:
        return len(self._node)

    def __iter__(self) -> Iterator[Match | None]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, node: int) -> Match | None:
        number = self._node[node]
        if number < 0:
            return self._others.get(node)
        kind = self._kind[node]
        return Match(self._theirs.node(number), bool(kind & _IN_ORDER), bool(kind & _EXACT), self._values.of(node))

    def __setitem__(self, node: int, match: Match | None) -> None:
        """Set what a node is which does not hold the match's value."""
        self._node[node] = -1
        self._others.pop(node, None)
        if match is not None:
            self._others[node] = match

    def take(self, node: int, other: int, is_in_order: bool, is_exact: bool, is_taken: bool = True) -> None:
        """Set what a node is that holds the match's value, or the same numbers."""
        self._others.pop(node, None)
        self._node[node] = other
        self._kind[node] = _IN_ORDER * is_in_order | _EXACT * is_exact | _TAKEN * is_taken

    def is_any(self, node: int) -> bool:
        """Whether it is one of the other graph."""
        return self._node[node] >= 0 or node in self._others

    def has(self, node: int) -> bool:
        """Whether it is one of the other graph, in one order."""
        if self._node[node] < 0:
            match = self._others.get(node)
            return match is not None and match.is_in_order
        return bool(self._kind[node] & _IN_ORDER)

    def is_known(self, node: int) -> bool:
        """Whether what a node holds is what the other run has, without an error of its own."""
        if self._node[node] < 0:
            match = self._others.get(node)
            return match is not None and match.is_exact
        return bool(self._kind[node] & (_EXACT | _TAKEN))

    def found(self) -> Iterator[tuple[int, Match]]:
        """The nodes that match, and what they are."""
        for node in range(len(self)):
            match = self[node]
            if match is not None:
                yield node, match

    def copy(self, values: Holding) -> Matches:
        made = Matches(self._theirs, values, 0)
        made._node, made._kind, made._others = self._node[:], self._kind[:], dict(self._others)
        return made


class Chains:
    """What has rounded on the way to each node; few chains differ."""

    def __init__(self, count: int) -> None:
        self._number = column("i", [0]) * count
        self._chains = [NO_CHAIN]
        self._numbers = {NO_CHAIN: 0}

    def __getitem__(self, node: int) -> Chain:
        return self._chains[self._number[node]]

    def __setitem__(self, node: int, chain: Chain) -> None:
        number = self._numbers.setdefault(chain, len(self._chains))
        if number == len(self._chains):
            self._chains.append(chain)
        self._number[node] = number

    def copy(self) -> Chains:
        made = Chains(0)
        made._number = self._number[:]
        made._chains, made._numbers = self._chains, self._numbers
        return made


class KnownBounds(dict[int, Bound]):
    """The error bounds of nodes' elements, which are found again where they are not kept."""

    byte_size = 0
    """What they take; of those that two states share, each counts all."""

    def __setitem__(self, node: int, bound: Bound) -> None:
        self.leave_out(node)
        super().__setitem__(node, bound)
        self.byte_size += _byte_size(bound)

    def leave_out(self, node: int) -> None:
        """Forget those of a node, if they are known."""
        bound = self.pop(node, None)
        if bound is not None:
            self.byte_size -= _byte_size(bound)

    def copy(self) -> KnownBounds:
        made = KnownBounds(self)
        made.byte_size = self.byte_size
        return made

    def keep(self, most: int) -> None:
        """Leave all out where they take more than so many bytes."""
        if self.byte_size > most:
            self.clear()
            self.byte_size = 0


def _byte_size(bound: Bound) -> int:
    return bound.value.nbytes if isinstance(bound, Windowed) else bound.nbytes


@define(eq=False)
class State:
    """What each node of `after` holds in a replay."""

    raw: Holding
    """As computed."""
    values: Holding
    """What others compute with: `before`'s value, where it agrees."""
    matches: Matches
    chains: Chains
    """What has rounded on the way from values of `before`."""
    bounds: KnownBounds
    """The error bounds of its elements, once they have been used (`Replay.bounds`)."""
    matched: Numbers
    """The nodes of `before` that `after` has."""
    changed: bytearray
    """By node, whether it has been computed again since the state was copied from another one."""
    takes_roundings_back: bool = False
    """Whether what is a value of `before`, rounded to fewer bits, is held as `before` has it."""

    @classmethod
    def recorded(cls, ours: Graph, theirs: Graph) -> State:
        """That in which each node holds what was recorded, and matches nothing."""
        raw, values = (Holding(ours.arrays, ours.columns.array[:]) for _ in range(2))
        count = len(ours.nodes)
        return cls(
            raw, values, Matches(theirs, values, count), Chains(count), KnownBounds(), Numbers(), bytearray(count)
        )

    def has(self, node: Node) -> bool:
        """Whether `before` has what a node of `after` holds, in one order."""
        return self.matches.has(node.number)

    def copy(self) -> State:
        values = self.values.copy()
        return State(
            self.raw.copy(),
            values,
            self.matches.copy(values),
            self.chains.copy(),
            self.bounds.copy(),
            self.matched.copy(),
            bytearray(len(self.changed)),
            self.takes_roundings_back,
        )


Given: TypeAlias = Callable[[Instance, State], Mapping[int, Array]]
"""The arrays, by node, that an instance is to hold once it has been computed; none where it is left as it is."""


class Replay:
    """Replays of one graph against another."""

    def __init__(
        self, graph: Graph, index: Index, evaluator: Evaluator, chains: InstructionChains, bounds: Bounds
    ) -> None:
        self.graph = graph
        self.index = index
        self.evaluator = evaluator
        self._own_chains = chains
        self._bounds = bounds
        self.was_interrupted = False
        """Whether Ctrl-C ended its start."""
        self.is_complete = False
        """Whether its start has reached every instruction."""
        self.users = graph.users()
        self._numbers = graph.columns.array
        """Of the arrays that were recorded, by node."""
        most_bytes = graph.arrays.most_bytes
        self._most_bytes = _MOST_BYTES if most_bytes is None else min(_MOST_BYTES, most_bytes // 8)
        """What the bounds that one state knows may take. To find them again is work, which depends on no machine."""

    def _recorded(self, node: Node, held: Held) -> Held:
        """What the node had in the run, where another array of its shape holds the same numbers."""
        recorded = node.held
        return recorded if held.in_order == recorded.in_order else held

    def is_recorded(self, held: Holding, node: int) -> bool:
        """Whether a node holds what it had in the run."""
        return held.number(node) == self._numbers[node]

    def start(self, is_over: Callable[[], bool]) -> State:
        """The state without overrides; of what is not reached before `is_over`, as it was recorded, unmatched."""
        state = State.recorded(self.graph, self.index.graph)
        self.index.matched = state.matched
        try:
            for number in range(len(self.graph.instances)):
                if is_over():
                    return state
                self._take(state, number)
            self.is_complete = True
        except KeyboardInterrupt:
            self.was_interrupted = True
        return state

    def without_roundings(self, is_over: Callable[[], bool]) -> State | None:
        """The state in which `before`'s values take the place of those that are rounded to fewer bits, where that is
        all that differs; None if there is no time for it."""
        state = State.recorded(self.graph, self.index.graph)
        state.takes_roundings_back = True
        self.adopt(state)
        for number in range(len(self.graph.instances)):
            if is_over():
                return None
            self._take(state, number)
        return state

    def override(
        self,
        base: State,
        first: Instance,
        given: Given,
        keep_going: Callable[[Instance, State, int], bool] = lambda *_: True,
    ) -> State | None:
        """The state in which an instance, and later ones of the same opcode, hold what is given, not what they compute.

        `keep_going` is told of each instance that was computed again, and how many were; None where it says no.
        """
        state = self.adopt(base.copy())
        try:
            return self._override(state, first, given, keep_going)
        finally:
            self.adopt(base)

    def adopt(self, state: State) -> State:
        """Go on from a state."""
        self.index.matched = state.matched
        return state

    def _override(
        self, state: State, first: Instance, given: Given, keep_going: Callable[[Instance, State, int], bool]
    ) -> State | None:
        later = self.graph.of_opcode(first.opcode, first.number)
        heap, pending = later, set[int]()
        number, count = -1, 0
        while heap:
            last, number = number, heappop(heap)
            if number == last:
                continue
            instance = self.graph.instance(number)
            is_pending = number in pending
            nodes = [node.number for node in instance.results]
            was_recorded = [self.is_recorded(state.values, node) for node in nodes]
            if is_pending:
                self._take(state, number)
            arrays = given(instance, state)
            made_of = self._made_of(state, number) if arrays else frozenset[int]()
            for node, array in arrays.items():
                self._settle(state, self.graph.node(node), own(array), NO_CHAIN, made_of)
            if not arrays and not is_pending:
                continue
            for node, was in zip(nodes, was_recorded, strict=True):
                if not (was and self.is_recorded(state.values, node)):
                    for user in self.users.numbers(node):
                        if user not in pending:
                            pending.add(user)
                            heappush(heap, user)
            count += 1
            if instance is not first and not keep_going(instance, state, count):
                return None
        return state

    def _take(self, state: State, number: int) -> None:
        """Compute an instance on the values that hold, and replace what it gives by what `before` has."""
        columns = self.graph.columns
        inputs = columns.inputs(number)
        nodes = list(map(self.graph.node, columns.results(number)))
        carried = worst([self._carried(state, node) for node in inputs]) if inputs else NO_CHAIN
        made_of = frozenset(map(state.values.in_any_order, inputs))
        found, chains = None, list(map(self._own_chains.of, nodes))
        if carried is not NO_CHAIN:
            chains = [carried.then(chain) for chain in chains]
        if state.takes_roundings_back and (unrounded := self._unrounded(state, self.graph.instance(number))):
            found, chains = unrounded, [carried] * len(nodes)
        elif not all(self.is_recorded(state.values, node) for node in inputs):
            found = self._computed(state, self.graph.instance(number))
        found = [node.held for node in nodes] if found is None else list(map(self._recorded, nodes, found))
        for node, held, chain in zip(nodes, found, chains, strict=True):
            self._settle(state, node, held, chain, made_of)

    def _unrounded(self, state: State, instance: Instance) -> Sequence[Held] | None:
        """What an instance gives that moves operands of a wider type, or converts one to a type that `before` has
        nowhere, without the rounding; None where it does neither."""
        if _rounds_what_it_moves(instance):
            arrays = self.evaluator.results(instance, state.values, rounds=False)
            return None if arrays is None else list(map(own, arrays))
        if not traits_of(instance.instruction).converts or instance.results[0].dtype in self.index.graph.types:
            return None
        held = state.values.of(instance.inputs[0].number)
        return [held] if _holds(held.dtype, instance.results[0].dtype) else None

    def _made_of(self, state: State, instance: int) -> frozenset[int]:
        """The digests of what an instance's results are made of."""
        return frozenset(map(state.values.in_any_order, self.graph.columns.inputs(instance)))

    def _computed(self, state: State, instance: Instance) -> Sequence[Held] | None:
        """What an instance gives on the values that hold; None where it cannot be computed again."""
        window = window_of(instance, state.values)
        if window is not None:
            operand, update = (part[0].number for part in instance.operands[:2])
            made = Overwritten.of(state.values.of(operand), window, state.values[update])
            if made is not None:
                return [made]
        arrays = self.evaluator.results(instance, state.values)
        return None if arrays is None else list(map(own, arrays))

    def _carried(self, state: State, node: int) -> Chain:
        """What of a value's rounding the next instruction inherits."""
        return NO_CHAIN if state.matches.is_known(node) else state.chains[node]

    def bounds(self, state: State, node: Node) -> Array:
        """By how much each element of what a node computed may be off, for what rounded on the way to it."""
        state.bounds.keep(self._most_bytes)
        stack = [node]
        while True:
            current = stack[-1]
            node_bounds = state.bounds.get(current.number)
            if node_bounds is None:
                inputs = [entry for entry in current.instance.inputs if self._carried(state, entry.number).linear]
                input_bounds = {entry.number: state.bounds.get(entry.number) for entry in inputs}
                inherited = {number: bounds for number, bounds in input_bounds.items() if bounds is not None}
                if len(inherited) < len(input_bounds):
                    stack += [entry for entry in inputs if input_bounds[entry.number] is None]
                    continue
                node_bounds = self._bounds.of(current, state.raw, state.values, inherited)
                state.bounds[current.number] = node_bounds
            stack.pop()
            if not stack:
                return whole(node_bounds)

    def wrong_outputs(self, state: State, known: Collection[tuple[int, int]] = ()) -> list[tuple[Node, Node]]:
        """The results that differ: the node of `after`, and what `before` has in its place.

        Those in `known`, pairs of the nodes' numbers, do as long as they are not computed from something else.
        """
        pairs = {}
        for device, nodes in self.graph.outputs.items():
            for ours, counterpart in zip(nodes, self.index.graph.outputs[device], strict=True):
                numbers = (ours.number, counterpart.number)
                is_known = numbers in known and self.is_recorded(state.raw, ours.number)
                if numbers not in pairs and (is_known or not self.is_right(state, ours, counterpart)):
                    pairs[numbers] = (ours, counterpart)
        return list(pairs.values())

    def is_right(self, state: State, ours: Node, counterpart: Node) -> bool:
        """Whether a node holds what a node of `before` does, but for rounding."""
        held = state.raw.of(ours.number)
        if held.shape != counterpart.shape:
            return False
        digest = held.digest
        if (digest.in_order, digest.family) == (counterpart.digest.in_order, counterpart.digest.family):
            return True
        match = state.matches[ours.number]
        if match is not None and match.is_in_order and match.node.digest.in_order == counterpart.digest.in_order:
            return True
        raw, expected = held.array(), counterpart.value
        if digest.family != counterpart.digest.family or not any(
            (allowed is None or says_much(allowed, expected)) and agrees(raw, expected, allowed)
            for allowed in self.allowed(state, ours, counterpart)
        ):
            return False
        return rounds_alike(raw, expected, state.chains[ours.number], self._chain_of(state, counterpart))

    def allowed(self, state: State, ours: Node, counterpart: Node) -> Iterator[Array | None]:
        """By how much rounding may put the elements of a node off those of a node of `before`, of its dimensions, since
        values that both sides have: what is soon known first, then all; None where nothing rounds."""
        chain, other = state.chains[ours.number], self._chain_of(state, counterpart)
        if not other.linear or counterpart.digest.family not in ("float", "complex"):
            yield None
            return
        if not chain.linear:
            # √x · √x may be x. A rounding to a narrower type than either's own is another matter.
            unit = min(unit_roundoff(element_type_of(node.dtype)) for node in (ours, counterpart))
            yield self.index.own_bounds(counterpart) if other.is_as_fine_as(unit) else None
            return
        bounds = self.bounds(state, ours)
        for allowance in self.index.allowances(chain, bounds, other, counterpart):
            yield allowance.of(bounds.shape)

    def allowed_from_common(
        self, state: State, ours: Node, counterpart: Node, expected: Array, most: int
    ) -> Array | None:
        """By how much rounding may put the elements of a node off those of a node of `before`, arranged as `expected`,
        since values from which both are computed; None where nothing rounds, and infinite where these lie more than so
        many steps back."""
        bounds = self._bounds, self._own_chains
        return allowed_from_common(state, (ours, counterpart), expected, self.index, bounds, most)

    def _chain_of(self, state: State, counterpart: Node) -> Chain:
        """What has rounded on the way to a node of `before` itself, since values that both sides have."""
        return path_chain(counterpart, state.matched, self.index.chains)

    def _settle(self, state: State, node: Node, held: Held, chain: Chain, made_of: frozenset[int]) -> None:
        number = node.number
        state.chains[number] = chain
        state.bounds.leave_out(number)
        if isinstance(held, Kept) and self.is_recorded(state.raw, number):
            same = None if state.takes_roundings_back else self.index.likeliest_of(held.digest, node, made_of)
            if same is not None and held.number == self._numbers[number] and self.is_recorded(state.values, number):
                # As most values are: the one that was recorded, which `before` has to the bit.
                state.matches.take(number, same.number, is_in_order=True, is_exact=True)
                self.index.note(same)
                return
        else:
            state.changed[number] = True
        state.raw[number] = held
        match = self.index.find(held, chain, node, made_of, partial(self.bounds, state, node))
        if match is None or not match.is_exact:
            self.evaluator.work.add(LIMITS.cost_of_search)
        if state.takes_roundings_back:
            match = self._rounded(state, node, held) or match
        if match is None:
            state.values[number], state.matches[number] = held, None
            return
        replacement = match.held
        if match.is_exact:
            if match.is_in_order and (match.node.shape, match.node.dtype) == (held.shape, held.dtype):
                # The same numbers are kept once.
                replacement = state.raw[number] = self._recorded(node, match.node.held)
        elif _holds(held.dtype, replacement.dtype):
            # What `after` has not rounded, or not yet, is taken as `before` has rounded it.
            replacement = own(replacement.array().astype(held.dtype))
            match = attrs.evolve(match, held=replacement)
        if replacement.dtype == held.dtype or (state.takes_roundings_back and _holds(replacement.dtype, held.dtype)):
            is_kept = replacement is held
            held = self._recorded(node, replacement)
            is_taken = is_kept or held is replacement
            state.matches.take(number, match.node.number, match.is_in_order, match.is_exact, is_taken)
        else:
            state.matches[number] = match
        state.values[number] = held
        if state.matches.is_known(number):
            # Nothing inherits them.
            state.bounds.leave_out(number)
        if match.is_in_order and replacement.dtype == held.dtype:
            self.index.note(match.node)

    def _rounded(self, state: State, node: Node, held: Held) -> Match | None:
        """The match of what only rounds an operand that `before` has; None of anything else."""
        inputs = node.instance.inputs
        if len(inputs) != 1 or not state.matches.is_known(inputs[0].number):
            return None
        operand_match, value = state.matches[inputs[0].number], state.values.of(inputs[0].number)
        if (
            operand_match is None
            or not operand_match.is_in_order
            or value.shape != held.shape
            or not _holds(value.dtype, held.dtype)
        ):
            return None
        is_rounded = is_same(narrow(wide(value.array()), element_type_of(held.dtype)), held.array())
        return Match(operand_match.node, True, False, value) if is_rounded else None


def _rounds_what_it_moves(instance: Instance) -> bool:
    """Whether an instance takes elements of operands of a wider type, as copies and slices of TPUs may."""
    operands = [node for place in moved_operands(instance) for node in instance.operands[place]]
    return any(_holds(node.dtype, instance.results[0].dtype) for node in operands)


def _holds(wider: np.dtype[Any], narrower: np.dtype[Any]) -> bool:
    """Whether a type of floats has all numbers of another, narrower one."""
    first, second = element_type_of(wider), element_type_of(narrower)
    if not (first.is_floating and second.is_floating) or first is second:
        return False
    return unit_roundoff(first) < unit_roundoff(second) and largest_number(first) >= largest_number(second)


def match_through_rounding(graph: Graph, state: State) -> None:
    """Match each value that is used by nothing but converts to a narrower type, of which each result is matched.

    XLA's float normalization makes a multiply in bf16 one in f32 and a convert, where a backend cannot compute in bf16.
    The f32 numbers in between are nowhere in the other module, and need not be: rounded, they are. What only moves them
    on the way to the converts is looked through. Changes `state.matches` alone.
    """
    users = graph.users()
    outputs = {node.number for nodes in graph.outputs.values() for node in nodes}
    widened: dict[int, Match] = {}
    for node in reversed(graph.nodes):
        if state.matches.is_any(node.number) or node.number in outputs or not (using := users[node.number]):
            continue
        matches = [_rounded_by(user, node, state, widened) for user in using]
        first = matches[0]
        if first is not None and None not in matches:
            widened[node.number] = attrs.evolve(first, is_exact=False)
    for number, match in widened.items():
        state.matches[number] = match


def _rounded_by(user: Instance, node: Node, state: State, widened: dict[int, Match]) -> Match | None:
    """The match of what an instance makes of a node, where it rounds it and does nothing else."""
    if len(user.results) != 1:
        return None
    (result,) = user.results
    if user.is_movement:
        return widened.get(result.number)
    if not traits_of(user.instruction).converts:
        return None
    before, after = element_type_of(node.dtype), element_type_of(result.dtype)
    if not (before.is_floating and after.is_floating) or unit_roundoff(after) <= unit_roundoff(before):
        return None
    return state.matches[result.number]
