"""Replaying `after`, instruction by instruction, on the values of `before` where they are known.

Rounding errors accumulate, so values may be far apart in two runs although neither is wrong. A value of `after` that
agrees with one of `before` is therefore replaced by it before anything else is computed from it, so that each
instruction shows only its own error. A *state* is the outcome of such a replay; overriding a value gives another state,
in which only what depends on it has been recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from functools import partial
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.diffing.agreement import agrees, rounds_alike
from hloexec.diffing.bounds import Bounds
from hloexec.diffing.chains import NO_CHAIN, InstructionChains, path_chain
from hloexec.diffing.digests import Digest, digest_of
from hloexec.diffing.evaluation import Evaluator
from hloexec.diffing.graph import Graph, Instance, Node
from hloexec.diffing.matching import Index, Match
from hloexec.dtypes import element_type_of
from hloexec.numerics.error_budget import Chain, worst
from hloexec.operations import traits_of
from hloexec.precision import largest_number, unit_roundoff
from hloexec.tracing.known import KnownArrays
from hloexec.values import Array

__all__ = ["Given", "Replay", "State", "match_through_rounding"]


@attrs.define(eq=False)
class State:
    """What each node of `after` holds in a replay."""

    raw: list[Array]
    """As computed."""
    values: list[Array]
    """What others compute with: `before`'s value, where it agrees."""
    matches: list[Match | None]
    chains: list[Chain]
    """What has rounded on the way from values of `before`."""
    bounds: list[Array | None]
    """The error bounds of its elements; None until first used (`Replay.bounds`)."""
    matched: set[int]
    """The nodes of `before` that `after` has."""

    def has(self, node: Node) -> bool:
        """Whether `before` has what a node of `after` holds, in one order."""
        match = self.matches[node.number]
        return match is not None and match.is_in_order

    def copy(self) -> State:
        return State(*map(copy, attrs.astuple(self, recurse=False)))


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
        self._digest: KnownArrays[Digest] = KnownArrays(digest_of)
        self.was_interrupted = False
        """Whether Ctrl-C ended its start."""
        self.is_complete = False
        """Whether its start has reached every instruction."""
        self._by_input: list[list[Instance]] = graph.users()

    def digest(self, node: Node, value: Array) -> Digest:
        return node.digest if value is node.value else self._digest(value)

    def _recorded(self, node: Node, array: Array) -> Array:
        """The array that the node had in the run, where another one of its shape holds the same numbers."""
        return node.value if self.digest(node, array).in_order == node.digest.in_order else array

    def start(self, is_over: Callable[[], bool]) -> State:
        """The state without overrides; of what is not reached before `is_over`, as it was recorded, unmatched."""
        recorded = [node.value for node in self.graph.nodes]
        count = len(recorded)
        state = State(list(recorded), list(recorded), [None] * count, [NO_CHAIN] * count, [None] * count, set())
        self.index.matched = state.matched
        try:
            for instance in self.graph.instances:
                if is_over():
                    return state
                self._take(state, instance)
            self.is_complete = True
        except KeyboardInterrupt:
            self.was_interrupted = True
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
        pending: set[int] = set()
        count = 0
        for instance in self.graph.instances[first.number :]:
            is_pending = instance.number in pending
            if not is_pending and instance.opcode != first.opcode:
                continue
            before = [state.values[node.number] for node in instance.results]
            if is_pending:
                self._take(state, instance)
            arrays = given(instance, state)
            for number, array in arrays.items():
                self._settle(state, self.graph.nodes[number], array, NO_CHAIN)
            if not arrays and not is_pending:
                continue
            for node, old in zip(instance.results, before, strict=True):
                if state.values[node.number] is not old:
                    pending.update(user.number for user in self._by_input[node.number])
            count += 1
            if instance is not first and not keep_going(instance, state, count):
                return None
        return state

    def _take(self, state: State, instance: Instance) -> None:
        """Compute an instance on the values that hold, and replace what it gives by what `before` has."""
        arrays = None
        if any(state.values[node.number] is not node.value for node in instance.inputs):
            arrays = self.evaluator.results(instance, state.values)
        if arrays is None:
            arrays = [node.value for node in instance.results]
        carried = worst(self._carried(state, node) for node in instance.inputs)
        for node, array in zip(instance.results, arrays, strict=True):
            self._settle(state, node, self._recorded(node, array), carried.then(self._own_chains.of(node)))

    def _carried(self, state: State, node: Node) -> Chain:
        """What of a value's rounding the next instruction inherits."""
        match = state.matches[node.number]
        if match is not None and (match.is_exact or match.value is state.values[node.number]):
            return NO_CHAIN
        return state.chains[node.number]

    def bounds(self, state: State, node: Node) -> Array:
        """By how much each element of what a node computed may be off, for what rounded on the way to it."""
        stack = [node]
        while True:
            current = stack[-1]
            found = state.bounds[current.number]
            if found is None:
                inputs = [entry for entry in current.instance.inputs if self._carried(state, entry).linear]
                known = {entry.number: state.bounds[entry.number] for entry in inputs}
                inherited = {number: bounds for number, bounds in known.items() if bounds is not None}
                if len(inherited) < len(known):
                    stack += [entry for entry in inputs if known[entry.number] is None]
                    continue
                found = self._bounds.of(current, state.raw[current.number], state.values, inherited)
                state.bounds[current.number] = found
            stack.pop()
            if not stack:
                return found

    def wrong_outputs(self, state: State, known: Collection[tuple[int, int]] = ()) -> list[tuple[Node, Node]]:
        """The results that differ: the node of `after`, and what `before` has in its place.

        Those in `known`, pairs of the nodes' numbers, do as long as they are not computed from something else.
        """
        pairs = {}
        for device, nodes in self.graph.outputs.items():
            for ours, counterpart in zip(nodes, self.index.graph.outputs[device], strict=True):
                numbers = (ours.number, counterpart.number)
                is_known = numbers in known and state.raw[ours.number] is ours.value
                if numbers not in pairs and (is_known or not self.is_right(state, ours, counterpart)):
                    pairs[numbers] = (ours, counterpart)
        return list(pairs.values())

    def is_right(self, state: State, ours: Node, counterpart: Node) -> bool:
        """Whether a node holds what a node of `before` does, but for rounding."""
        raw = state.raw[ours.number]
        if raw.shape != counterpart.value.shape:
            return False
        digest = self.digest(ours, raw)
        if (digest.in_order, digest.family) == (counterpart.digest.in_order, counterpart.digest.family):
            return True
        match = state.matches[ours.number]
        if match is not None and match.is_in_order and match.node.digest.in_order == counterpart.digest.in_order:
            return True
        if digest.family != counterpart.digest.family or not any(
            agrees(raw, counterpart.value, allowed) for allowed in self.allowed(state, ours, counterpart)
        ):
            return False
        return rounds_alike(raw, counterpart.value, state.chains[ours.number], self._chain_of(state, counterpart))

    def allowed(self, state: State, ours: Node, counterpart: Node) -> Iterator[Array | None]:
        """By how much rounding may put the elements of a node off those of a node of `before`, of its dimensions, since
        values that both sides have: what is soon known first, then all; None where nothing rounds."""
        chain, other = state.chains[ours.number], self._chain_of(state, counterpart)
        if not chain.linear or not other.linear or counterpart.digest.family not in ("float", "complex"):
            yield None
            return
        bounds = self.bounds(state, ours)
        for allowance in self.index.allowances(chain, bounds, other, counterpart):
            yield allowance.of(bounds.shape)

    def _chain_of(self, state: State, counterpart: Node) -> Chain:
        """What has rounded on the way to a node of `before` itself, since values that both sides have."""
        return path_chain(counterpart, state.matched - {counterpart.number}, self.index.chains)

    def _settle(self, state: State, node: Node, array: Array, chain: Chain) -> None:
        number = node.number
        made_of = frozenset(
            self.digest(entry, state.values[entry.number]).in_any_order for entry in node.instance.inputs
        )
        state.raw[number] = array
        state.chains[number] = chain
        state.bounds[number] = None
        bounds = partial(self.bounds, state, node)
        match = self.index.find(array, self.digest(node, array), chain, node, made_of, bounds)
        if match is not None and not match.is_exact and match.value is not array:
            # What `after` has not rounded, or not yet, is taken as `before` has rounded it.
            if _holds(array.dtype, match.value.dtype):
                match = attrs.evolve(match, value=match.value.astype(array.dtype))
            array = match.value if match.value.dtype == array.dtype else array
        state.matches[number] = match
        state.values[number] = self._recorded(node, array)
        if match is not None and match.is_in_order and (match.is_exact or match.value.dtype == array.dtype):
            self.index.note(match.node)


def _holds(wide: np.dtype[Any], narrow: np.dtype[Any]) -> bool:
    """Whether a type of floats has all numbers of another, narrower one."""
    first, second = element_type_of(wide), element_type_of(narrow)
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
        if state.matches[node.number] is not None or node.number in outputs or not users[node.number]:
            continue
        found = [_rounded(user, node, state, widened) for user in users[node.number]]
        first = found[0]
        if first is not None and None not in found:
            widened[node.number] = attrs.evolve(first, is_exact=False)
    for number, match in widened.items():
        state.matches[number] = match


def _rounded(user: Instance, node: Node, state: State, widened: dict[int, Match]) -> Match | None:
    """The match of what an instance makes of a node, where it rounds it and does nothing else."""
    if len(user.results) != 1:
        return None
    (result,) = user.results
    if user.is_movement:
        return widened.get(result.number)
    if not traits_of(user.instruction).converts:
        return None
    wide, narrow = element_type_of(node.value.dtype), element_type_of(result.value.dtype)
    if not (wide.is_floating and narrow.is_floating) or unit_roundoff(narrow) <= unit_roundoff(wide):
        return None
    return state.matches[result.number]
