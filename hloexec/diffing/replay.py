"""Going through `after` once more, instruction by instruction, on the values of `before` where it has them.

Rounding adds up, and what follows from it may be far apart in two runs of which neither is wrong. So a value of `after`
that agrees with one of `before` is replaced by that one before anything else is computed with it: every instruction is
judged by what it does itself. A *state* is what such a replay came to; overriding a value gives another state, in which
only what depends on it was computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import attrs

from hloexec.diffing.bounds import Bounds
from hloexec.diffing.chains import NO_CHAIN, InstructionChains
from hloexec.diffing.digests import Digest, digest_of
from hloexec.diffing.evaluation import Evaluator
from hloexec.diffing.graph import Graph, Instance, Node
from hloexec.diffing.matching import Index, Match
from hloexec.numerics.error_budget import Chain, worst
from hloexec.tracing.known import KnownArrays
from hloexec.values import Array

__all__ = ["Overrides", "Replay", "State", "is_movement", "source_of"]


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
    """By how much elements may be off for it; None until somebody asks (`Replay.bounds`)."""
    matched: set[int]
    """The nodes of `before` that `after` has."""

    def copy(self) -> State:
        return State(
            list(self.raw),
            list(self.values),
            list(self.matches),
            list(self.chains),
            list(self.bounds),
            set(self.matched),
        )


class Overrides(Protocol):
    """What instances are to hold instead of what they compute."""

    @property
    def first(self) -> Instance:
        """The first instance that holds something else; later ones have the same opcode."""

    def given(self, instance: Instance, state: State) -> Mapping[int, Array]:
        """The arrays of an instance, by node, once it has been computed; empty where it is left as it is."""


class Replay:
    """Replays of one graph against another."""

    def __init__(
        self, graph: Graph, index: Index, evaluator: Evaluator, chains: InstructionChains, bounds: Bounds
    ) -> None:
        self.graph = graph
        self.index = index
        self._evaluator = evaluator
        self._own_chains = chains
        self._bounds = bounds
        self._digest: KnownArrays[Digest] = KnownArrays(digest_of)
        self._by_input: list[list[Instance]] = graph.users()

    def digest(self, node: Node, value: Array) -> Digest:
        return node.digest if value is node.value else self._digest(value)

    def start(self) -> State:
        """The state without overrides."""
        nodes = self.graph.nodes
        recorded = [node.value for node in nodes]
        count = len(nodes)
        state = State(list(recorded), list(recorded), [None] * count, [NO_CHAIN] * count, [None] * count, set())
        self.index.matched = state.matched
        for instance in self.graph.instances:
            self._take(state, instance)
        return state

    def override(
        self,
        base: State,
        overrides: Overrides,
        keep_going: Callable[[Instance, State, int], bool] = lambda *_: True,
    ) -> State | None:
        """The state in which instances hold something else than they compute.

        `keep_going` is told of each instance that was computed again, and how many were; None where it says no.
        """
        state = base.copy()
        self.index.matched = state.matched
        try:
            return self._override(state, overrides, keep_going)
        finally:
            self.index.matched = base.matched

    def adopt(self, state: State) -> State:
        """Go on from a state."""
        self.index.matched = state.matched
        return state

    def _override(
        self, state: State, overrides: Overrides, keep_going: Callable[[Instance, State, int], bool]
    ) -> State | None:
        first = overrides.first
        pending: set[int] = set()
        count = 0
        for instance in self.graph.instances[first.number :]:
            is_pending = instance.number in pending
            if not is_pending and instance.opcode != first.opcode:
                continue
            before = [state.values[node.number] for node in instance.results]
            if is_pending:
                self._take(state, instance)
            given = overrides.given(instance, state)
            for number, array in given.items():
                self._settle(state, self.graph.nodes[number], array, NO_CHAIN)
            if not given and not is_pending:
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
        arrays: list[Array] | None = None
        if any(state.values[node.number] is not node.value for node in instance.inputs):
            arrays = self._evaluator.results(instance, state.values)
        if arrays is None:
            arrays = [node.value for node in instance.results]
        carried = worst(self._carried(state, node) for node in instance.inputs)
        for node, array in zip(instance.results, arrays, strict=True):
            if array is not node.value and digest_same(self._digest(array), node.digest):
                array = node.value
            self._settle(state, node, array, carried.then(self._own_chains.of(node)))

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
        state.matches[number] = match
        is_replaced = (
            match is not None and not match.is_exact and match.value is not array and match.value.dtype == array.dtype
        )
        value = match.value if match is not None and is_replaced else array
        if value is not node.value and digest_same(self._digest(value), node.digest):
            value = node.value
        state.values[number] = value
        # What is wider than `before`'s value has yet to be rounded to it.
        if match is not None and match.is_in_order and (match.is_exact or match.value.dtype == array.dtype):
            self.index.note(match.node)


def digest_same(first: Digest, second: Digest) -> bool:
    """Whether two arrays of one shape hold the same numbers."""
    return first.in_order == second.in_order and first.count == second.count


def is_movement(node: Node) -> bool:
    """Whether a node only holds its operand's numbers."""
    return node.instance.is_movement


def source_of(node: Node) -> Node:
    """The node whose elements another one has moved."""
    while is_movement(node) and node.instance.inputs:
        node = node.instance.inputs[0]
    return node
