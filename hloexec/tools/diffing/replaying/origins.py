"""How far apart rounding may put two values that are computed from different values of `before`.

A replay computes a value of `after` from the nearest values that `before` has, and holds these as `before` has them.
Its counterpart may be computed from other ones. Say f and g are the two formulas, and C are values of `before` from
which both can be computed. On paper, f(C) = g(C). As computed, the first one is off f(C) by at most

    Σ over the steps of f of what the step adds + Σ over the values v that f starts from of e(v),

each passed on by the steps behind it. Here, e(v) bounds the error of v itself: it is zero if v is one of C, and else
the bound of v in the run of `before`, from C on. The same holds for g, so the two are apart by no more than both
together.

The bounds of `diffing.bounds` leave out e(v), as each starts from the nearest values that both runs have. That
is the same if f and g start from the same values. It is not if `after` has g − m where `before` has g · (1 − z), with
m = fl(g · z) in both runs: m is off g · z by u |g · z|, which is far more than the bound of a difference that is small.

C is found by going back in `before`. Of the values from which one side is computed and the other is not, the last one
is replaced by its operands, until both sides are computed from the same values. If that ends at a parameter that only
one side has, what both have is replaced as well where it is computed from a value that only one has: f may take v where
g has a formula of p and v, if v is computed from p. Parameters have no error, and neither has what is computed from
constants alone. The equality of the formulas is taken to hold whatever numbers C are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from hloexec.analysis.numerics.tolerances import Chain, worst
from hloexec.core.dtypes import element_type_of, unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.registry import traits_of
from hloexec.tools.diffing.bounds import NO_CHAIN, Bound, Bounds, InstructionChains, on_the_way, relative_bound, whole
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.matching import Index, Match, aligned, is_same

if TYPE_CHECKING:
    from hloexec.tools.diffing.replaying.replay import State


@frozen(eq=False)
class _Error:
    """By how much each element of a value may be off, and what has rounded on the way to it."""

    bound: Bound
    chain: Chain


def allowed_from_common(
    state: State,
    pair: tuple[Node, Node],
    expected: Array,
    index: Index,
    ours: tuple[Bounds, InstructionChains],
    most: int,
) -> Array | None:
    """By how much rounding may put the elements of a node of `after` off those of a node of `before`, arranged as
    `expected`, since values from which both are computed; None where nothing rounds, and infinite where these values
    lie more than so many steps back.

    `ours` are what bounds, and rounds, in `after`. What one side rounds to fewer bits than the other counts as far as
    the other side rounds so, too.
    """
    node, counterpart = pair
    if not element_type_of(counterpart.dtype).is_inexact:
        return None
    back = _Back(index)
    starts = dict(_starts_of(node, state))
    steps = back.steps_to_common([match.node.number for match in starts.values()], counterpart.number, most)
    if steps is None:
        return np.full(expected.shape, np.inf)
    errors = _errors_of(steps, index, back.first)
    inherited = {
        number: _Error(_arranged(error, match.node, match.value), error.chain)
        for number, match in starts.items()
        if (error := errors.get(back.first(match.node.number))) is not None
    }
    sides = [_error_behind(node, state, inherited, *ours)]
    if (theirs := errors.get(back.first(counterpart.number))) is not None:
        sides.append(_Error(_arranged(theirs, counterpart, expected), theirs.chain))
    return _both(sides, min(unit_roundoff(element_type_of(entry.dtype)) for entry in pair), expected.shape)


def _both(sides: Sequence[_Error], unit: float, dimensions: tuple[int, ...]) -> Array | None:
    """What the errors of both sides allow together; one that is left out has none."""
    chains = [entry.chain for entry in sides] + [NO_CHAIN] * (2 - len(sides))
    total = None
    for entry, other in zip(sides, reversed(chains), strict=False):
        if not entry.chain.linear:
            continue
        part = 1.0
        if unit >= LIMITS.narrow_unit or not entry.chain.is_as_fine_as(unit):
            part = min(1.0, relative_bound(other) / relative_bound(entry.chain))
        limit = part * whole(entry.bound).reshape(dimensions)
        total = limit if total is None else total + limit
    return total


def _starts_of(node: Node, state: State) -> Iterator[tuple[int, Match]]:
    """The nearest nodes behind one of `after` that hold what `before` has, and what they are there."""
    known_numbers = _Known(state)
    for current, _ in on_the_way(node, known_numbers):
        for entry in current.instance.inputs:
            match = state.matches[entry.number]
            if match is not None and entry.number in known_numbers:
                yield entry.number, match


class _Known:
    """The nodes of `after` that hold what `before` has, but for those that match once their elements are sorted: these
    hold what they have computed."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[int, bool] = {}

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        is_known = self._known.get(number)
        if is_known is None:
            is_known = self._known[number] = self._holds_theirs(number)
        return is_known

    def _holds_theirs(self, number: int) -> bool:
        match = self._state.matches[number]
        if match is None or not self._state.matches.is_known(number):
            return False
        if match.is_exact or match.is_in_order:
            return True
        value = match.value
        return any(is_same(candidate, value) for candidate in aligned(match.node.value, value.shape))


def _error_behind(
    node: Node, state: State, starts: Mapping[int, _Error], bounds: Bounds, chains: InstructionChains
) -> _Error:
    """The error of a node of `after`, where those that it is computed from have some."""
    errors: dict[int, _Error] = {}
    for current, inputs in on_the_way(node, _Known(state)):
        behind = {entry.number: errors[entry.number] for entry in inputs}
        behind |= {entry.number: starts[entry.number] for entry in current.instance.inputs if entry.number in starts}
        inherited = {number: error.bound for number, error in behind.items()}
        chain = worst(error.chain for error in behind.values()).then(chains.of(current))
        errors[current.number] = _Error(bounds.of(current, state.raw, state.values, inherited), chain)
    return errors[node.number]


def _errors_of(steps: Sequence[int], index: Index, first: Callable[[int], int]) -> dict[int, _Error]:
    """The errors of nodes of `before`, each behind those that it is computed from; all else has none."""
    errors: dict[int, _Error] = {}
    for number in steps:
        node = index.graph.node(number)
        behind = {
            entry.number: error
            for entry in node.instance.inputs
            if (error := errors.get(first(entry.number))) is not None
        }
        inherited = {entry: _shaped(error.bound, index.graph.node(entry).shape) for entry, error in behind.items()}
        chain = worst(error.chain for error in behind.values()).then(index.chains.of(node))
        errors[number] = _Error(index.bound(node, inherited), chain)
    return errors


def _shaped(bound: Bound, dimensions: tuple[int, ...]) -> Bound:
    return bound if bound.shape == dimensions else whole(bound).reshape(dimensions)


def _arranged(error: _Error, node: Node, value: Array) -> Bound:
    """The bound of a node's elements as an array arranges them; the largest one for all where nothing shows how."""
    if node.shape == value.shape and is_same(node.value, value):
        return _shaped(error.bound, value.shape)
    bound = whole(error.bound).reshape(node.shape)
    for elements, limits in zip(aligned(node.value, value.shape), aligned(bound, value.shape), strict=True):
        if is_same(elements, value):
            return np.ascontiguousarray(limits)
    return np.full(value.shape, bound.max(initial=0.0))


class _Back:
    """The way back in `before` from two sides to values from which both are computed."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._graph = index.graph
        self._first: dict[int, int] = {}
        self._operands: dict[int, list[int]] = {}

    def first(self, number: int) -> int:
        """The first node with the numbers of one; what has the same numbers everywhere has them by accident."""
        first_number = self._first.get(number)
        if first_number is None:
            first_number = self._first[number] = self._index.first_equal(self._graph.node(number))
        return first_number

    def steps_to_common(self, ours: Iterable[int], theirs: int, most: int) -> list[int] | None:
        """The nodes that lie between two sides and values from which both are computed, each behind its operands; None
        where there are more than `most`."""
        sides = self._counted(ours), self._counted([theirs])
        steps, is_alike = self._steps(*sides, most, replaces_common=False)
        if not is_alike:
            steps, is_alike = self._steps(*sides, most, replaces_common=True)
        return sorted(steps) if is_alike else None

    def _steps(
        self, ours: Sequence[int], theirs: Sequence[int], most: int, *, replaces_common: bool
    ) -> tuple[set[int], bool]:
        """The nodes that are replaced by their operands, and whether both sides are computed from the same values then.

        Without `replaces_common`, what both sides have stays, and a value that only one has has to be computed from
        others; with it, what both have is replaced if it is computed from such a value.
        """
        sides = set(ours), set(theirs)
        reached: dict[int, _Reached] = {}
        steps, fixed_numbers = set[int](), set[int]()
        while different := (sides[0] ^ sides[1]) - fixed_numbers:
            step = last = max(different)
            for number in sorted(sides[0] & sides[1], reverse=True) if replaces_common else ():
                if number > last and reached.setdefault(number, _Reached(number, self._operands_of)).has(last):
                    step = number
                    break
            if not self._is_computed(step):
                if not replaces_common:
                    return steps, False
                fixed_numbers.add(step)
                continue
            steps.add(step)
            if len(steps) > most:
                return steps, False
            for side in sides:
                if step in side:
                    side.remove(step)
                    side.update(self._operands_of(step))
        return steps, True

    def _is_computed(self, number: int) -> bool:
        instance = self._graph.node(number).instance
        return bool(instance.inputs) and not instance.is_source

    def _operands_of(self, number: int) -> list[int]:
        """The first nodes with the numbers of a node's operands that may have an error."""
        operands = self._operands.get(number)
        if operands is None:
            operands = self._operands[number] = self._counted(self._graph.inputs_of(number))
        return operands

    def _counted(self, numbers: Iterable[int]) -> list[int]:
        nodes = map(self._graph.node, numbers)
        return [self.first(node.number) for node in nodes if _may_err(node)]


class _Reached:
    """What a node is computed from, as far back as it is asked for."""

    def __init__(self, number: int, operands_of: Callable[[int], list[int]]) -> None:
        self._operands_of = operands_of
        self._seen = {number}
        self._pending = [-number]

    def has(self, number: int) -> bool:
        """Whether it is computed from a node, or that is far to see."""
        while self._pending and -self._pending[0] > number:
            for entry in self._operands_of(-heappop(self._pending)):
                if entry not in self._seen:
                    self._seen.add(entry)
                    heappush(self._pending, -entry)
            if len(self._seen) > LIMITS.steps_between:
                return True
        return number in self._seen


def _may_err(node: Node) -> bool:
    """Whether a value is neither whole numbers nor made of constants alone."""
    if not element_type_of(node.dtype).is_inexact:
        return False
    while len(node.instance.inputs) == 1:
        traits = traits_of(node.instance.instruction)
        if not (traits.converts or traits.moves == (0,)):
            break
        node = node.instance.inputs[0]
    return not node.instance.is_constant
