"""Which instruction of `after` makes its result differ.

A value is to blame if the results come right once it is replaced by what it should be. So values that `before` does
not have, on the way to a result that differs, are replaced one by one, the earliest first, by values that `before`
does have, and what follows is computed again. The first replacement after which the results are as in `before` names
the instruction: all that it was given is right, or harmless, since what follows comes right without changing it.

First of all, values that `after` lacks are put in the place of what was made of the same operands (see `frontier`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice

import attrs
import numpy as np

from hloexec.diffing.agreement import agrees, lesser, local_tolerance, rounds_alike
from hloexec.diffing.counterparts import Counterparts, Repair, arranged, twins_of
from hloexec.diffing.frontier import partings
from hloexec.diffing.graph import Graph, Instance, Node
from hloexec.diffing.matching import path_chain
from hloexec.diffing.replay import Replay, State, is_movement, source_of
from hloexec.dtypes import element_type_of
from hloexec.numerics.error_budget import Chain
from hloexec.numerics.tolerances import Tolerance
from hloexec.numerics.ulps import wide
from hloexec.values import Array

__all__ = ["Blame", "Blamed"]

_MOST_SUSPECTS = 400
_MOST_TRIES = 600
_MOST_PAIRS = 60
_NEAR = 0.02
_FEW_STEPS = 12
_MOST_OPERANDS = 4
_COMMUTATIVE = frozenset("add multiply maximum minimum and or xor".split())
_PATIENCE = 60
"""So many instructions are computed again without one of them coming right, then a replacement is given up."""


@attrs.frozen(eq=False)
class Step:
    """A replacement that puts the results right."""

    node: Node
    its: Node | None
    value: Array
    after: State


@attrs.frozen(eq=False)
class Blamed:
    """An instruction, and what was found out about it."""

    node: Node
    counterpart: Node | None
    value: Array | None
    """What it should have given, arranged as its own value."""
    raw: Array
    """What it gave, on `before`'s operands."""
    tolerance: Tolerance | None
    is_certain: bool
    wrong: frozenset[int]
    """The nodes on the way from it to the results that differ."""


class Blame:
    """The search, from a replay on."""

    def __init__(self, replay: Replay, before: Graph) -> None:
        self._replay = replay
        self._before = before
        self._counterparts = Counterparts(replay.index)
        self._tries = 0

    def find(self, state: State, top: int) -> list[Blamed]:
        """What is to blame, in data-flow order; at most `top`."""
        found: list[Blamed] = []
        while len(found) < top:
            wrong = self.wrong_outputs(state)
            if not wrong:
                break
            blamed, after = self._next(state, wrong, found)
            if blamed is None:
                break
            found.append(blamed)
            if after is None:
                break
            state = self._replay.adopt(after)
        return found

    def wrong_outputs(self, state: State) -> list[tuple[Node, Node]]:
        """The results that differ: the node of `after`, and what `before` has in its place."""
        pairs = {}
        for device, nodes in self._replay.graph.outputs.items():
            for mine, its in zip(nodes, self._before.outputs[device], strict=True):
                if (mine.number, its.number) not in pairs and not self.is_right(state, mine, its):
                    pairs[mine.number, its.number] = (mine, its)
        return list(pairs.values())

    def is_right(self, state: State, mine: Node, its: Node) -> bool:
        """Whether a node holds what a node of `before` does, but for rounding."""
        raw = state.raw[mine.number]
        if raw.shape != its.value.shape:
            return False
        digest = self._replay.digest(mine, raw)
        if (digest.in_order, digest.family) == (its.digest.in_order, its.digest.family):
            return True
        match = state.matches[mine.number]
        if match is not None and match.is_in_order and match.node.digest.in_order == its.digest.in_order:
            return True
        if digest.family != its.digest.family or not agrees(raw, its.value, self.tolerance(state, mine, its)):
            return False
        return rounds_alike(raw, its.value, state.chains[mine.number], self._chain_of(state, its))

    def tolerance(self, state: State, mine: Node, its: Node) -> Tolerance:
        """What rounding explains between two nodes, since values that both sides have."""
        chain = lesser(state.chains[mine.number], self._chain_of(state, its))
        types = element_type_of(mine.value.dtype), element_type_of(its.value.dtype)
        return local_tolerance(*types, its.digest.root_mean_square, chain)

    def _chain_of(self, state: State, its: Node) -> Chain:
        """What has rounded on the way to a node of `before` itself, since values that both sides have."""
        return path_chain(its, state.matched - {its.number}, self._replay.index.chains)

    def _next(
        self, state: State, wrong: list[tuple[Node, Node]], found: list[Blamed]
    ) -> tuple[Blamed | None, State | None]:
        suspects = self._suspects(state, wrong, found)
        numbers = frozenset(node.number for node in suspects)
        for node, lacked, value in partings(state, self._before, self._replay.graph):
            after = self._tried(state, node, lacked, value, wrong)
            if after is not None:
                return self._blamed(state, node, lacked, value, True, numbers), after
        one_of_many = self._one_of_many(state, suspects, wrong, numbers)
        if one_of_many is not None:
            return one_of_many
        for good_only in (True, False):
            for node in islice(suspects, _MOST_SUSPECTS):
                for its, value in self._counterparts.of(node, state, good_only):
                    after = self._tried(state, node, its, value, wrong)
                    if after is not None:
                        return self._deepened(state, Step(node, its, value, after), wrong, numbers)
        return self._from_results(state, wrong, numbers)

    def _one_of_many(
        self, state: State, suspects: list[Node], wrong: list[tuple[Node, Node]], numbers: frozenset[int]
    ) -> tuple[Blamed, State] | None:
        """The first suspect that computes from the same operands by the same opcode as a value that `after` lacks,
        where putting it right makes more values right after it, if not the results: others may be wrong as well."""
        for node in islice(suspects, _MOST_SUSPECTS):
            if any(not self._is_known(state, entry) for entry in node.instance.inputs):
                continue
            for its, value in self._counterparts.of_the_same(node, state):
                after = self._tried(state, node, its, value, wrong)
                if after is not None:
                    return self._deepened(state, Step(node, its, value, after), wrong, numbers)
                repair = Repair(self._replay.graph, self._replay.index, node, its, value)
                after = self._replay.override(state, repair)
                if after is None:
                    continue
                # What comes close to the right value by the same way is less precise, and meant to be the same.
                if self._gain(state, after, repair.given_to) > 0 or are_near(state.raw[node.number], value):
                    return self._blamed(state, node, its, value, True, numbers), after
        return None

    def _is_known(self, state: State, node: Node) -> bool:
        match = state.matches[node.number]
        return node.digest.is_uniform or match is not None

    def _gain(self, state: State, after: State, given: Collection[int]) -> int:
        """How many more values are right after a replacement, those aside that were given."""
        gain = 0
        for entry in self._replay.graph.nodes[min(given) :]:
            if entry.number in given or is_movement(entry) or entry.digest.is_uniform:
                continue
            before, now = state.matches[entry.number], after.matches[entry.number]
            gain += (now is not None and now.is_in_order) - (before is not None and before.is_in_order)
        return gain

    def _deepened(
        self, state: State, step: Step, wrong: list[tuple[Node, Node]], numbers: frozenset[int]
    ) -> tuple[Blamed, State]:
        """The same, or the earliest of what it was made of that has another value than its counterpart and puts the
        results right, too."""
        best = step
        queue = deque([(step.node, step.its)])
        seen: set[tuple[int, int]] = set()
        while queue and len(seen) < _MOST_PAIRS:
            mine, its = queue.popleft()
            if its is None:
                continue
            for pair in self._operand_pairs(state, mine, its):
                if (pair[0].number, pair[1].number) in seen:
                    continue
                seen.add((pair[0].number, pair[1].number))
                if pair[0].digest.count != pair[1].digest.count:
                    # Perhaps one side computes in more steps.
                    queue.append(pair)
                    continue
                if not self._may_be_wrong(state, mine, *pair):
                    continue
                queue.append(pair)
                if pair[0].number < best.node.number:
                    best = self._as_good(state, *pair, wrong) or best
        return self._blamed(state, best.node, best.its, best.value, True, numbers), best.after

    def _operand_pairs(self, state: State, mine: Node, its: Node) -> list[tuple[Node, Node]]:
        """Which operands of two values may correspond and differ; what only moves elements is passed over.

        Operands go by their places, where both instructions are of one opcode; those that are the same in any place
        belong together. Of unlike instructions, what is left may go with each that is left.
        """
        if is_movement(mine) and mine.instance.inputs:
            return [(mine.instance.inputs[0], its)]
        if is_movement(its) and its.instance.inputs:
            return [(mine, its.instance.inputs[0])]
        first, second = _operands(mine.instance), _operands(its.instance)
        if mine.digest.count != its.digest.count:
            return [(entry, its) for entry in first[:1]] + [(mine, entry) for entry in second[:1]]
        is_alike = mine.instance.opcode == its.instance.opcode and len(first) == len(second)
        if is_alike and mine.instance.opcode not in _COMMUTATIVE:
            return list(zip(first, second, strict=True))
        rest = list(second)
        left = []
        turned = []
        for entry in first:
            same = next((other for other in rest if self._same(state, entry, other)), None)
            if same is None:
                left.append(entry)
            else:
                rest.remove(same)
                turned.append((entry, same))
        return turned + [(one, other) for one in left[:_MOST_OPERANDS] for other in rest[:_MOST_OPERANDS]]

    def _same(self, state: State, mine: Node, its: Node) -> bool:
        """Whether an operand has its counterpart's elements."""
        match = state.matches[mine.number]
        keys = {mine.digest.in_any_order, match.node.digest.in_any_order if match is not None else None}
        return mine.digest.count == its.digest.count and its.digest.in_any_order in keys

    def _may_be_wrong(self, state: State, user: Node, mine: Node, its: Node) -> bool:
        """Whether an operand may be wrong, if it should have been `its`."""
        if mine.digest.count != its.digest.count or mine.digest.family != its.digest.family:
            return False
        if self.is_right(state, mine, its) or self._is_own(user, mine) or is_given(mine):
            return False
        match = state.matches[mine.number]
        if match is None or not match.is_in_order or mine.digest.is_uniform:
            return True
        if source_of(mine).instance.opcode != source_of(match.node).instance.opcode:
            return True
        if not user.instance.name.startswith(loop_of(mine.instance)):
            return True
        # Where `before` goes on from the same value, or has come from it, the user lacks a step or has one too many.
        return not (is_made_of(its, match.node) or is_made_of(match.node, its))

    def _as_good(self, state: State, mine: Node, its: Node, wrong: list[tuple[Node, Node]]) -> Step | None:
        for value in arranged(its.value, state.raw[mine.number]):
            after = self._tried(state, mine, its, value, wrong)
            if after is not None:
                return Step(mine, its, value, after)
        return None

    def _is_own(self, user: Node, operand: Node) -> bool:
        """Whether an operand is a constant of one number that no loop hands on, so that it belongs to the user."""
        source = operand
        while (
            source.instance.opcode in ("broadcast", "reshape", "bitcast", "convert", "copy") and source.instance.inputs
        ):
            source = source.instance.inputs[0]
        return (
            source.instance.opcode == "constant"
            and source.digest.is_uniform
            and loop_of(source.instance) == loop_of(user.instance)
        )

    def _suspects(self, state: State, wrong: list[tuple[Node, Node]], found: list[Blamed]) -> list[Node]:
        """The nodes on the way to a wrong result that `before` does not have, the earliest first; each instruction
        once."""
        stack = [mine for mine, _ in wrong]
        seen = {node.number for node in stack}
        while stack:
            node = stack.pop()
            for entry in node.instance.inputs:
                match = state.matches[entry.number]
                if entry.number not in seen and (match is None or not match.is_in_order):
                    seen.add(entry.number)
                    stack.append(entry)
        blamed = {entry.node.instance.static for entry in found}
        suspects = []
        known = set()
        for number in sorted(seen):
            node = self._replay.graph.nodes[number]
            key = (*node.instance.static, node.leaf)
            is_constant = node.instance.opcode == "constant" and node.digest.is_uniform
            if key not in known and node.instance.static not in blamed and not is_constant:
                known.add(key)
                suspects.append(node)
        return suspects

    def _tried(
        self, state: State, node: Node, its: Node | None, value: Array, wrong: list[tuple[Node, Node]]
    ) -> State | None:
        """The state after a replacement that puts the results right, by itself or with all that gave the same wrong
        value; None where there is none."""
        after = self._tried_once(state, node, its, value, wrong, ())
        if after is None:
            twins = twins_of(self._replay.graph, node)
            if twins:
                after = self._tried_once(state, node, its, value, wrong, twins)
        return after

    def _tried_once(
        self,
        state: State,
        node: Node,
        its: Node | None,
        value: Array,
        wrong: list[tuple[Node, Node]],
        twins: Sequence[Node],
    ) -> State | None:
        if self._tries >= _MOST_TRIES:
            return None
        self._tries += 1
        matches = 0
        known = state.matches

        def keep_going(instance: Instance, now: State, count: int) -> bool:
            nonlocal matches
            for entry in instance.results:
                match, old = now.matches[entry.number], known[entry.number]
                is_new = match is not None and match.is_in_order and (old is None or not old.is_in_order)
                matches += is_new and not is_movement(entry)
            return count < _PATIENCE * (1 + matches)

        repair = Repair(self._replay.graph, self._replay.index, node, its, value, twins)
        after = self._replay.override(state, repair, keep_going)
        if after is None:
            return None
        self._replay.adopt(after)
        still = {(mine.number, its.number) for mine, its in self.wrong_outputs(after)}
        self._replay.adopt(state)
        reached = [(mine, its) for mine, its in wrong if after.raw[mine.number] is not state.raw[mine.number]]
        fixed = [pair for pair in reached if (pair[0].number, pair[1].number) not in still]
        return after if fixed and len(fixed) == len(reached) else None

    def _blamed(
        self, state: State, node: Node, its: Node | None, value: Array | None, is_certain: bool, wrong: frozenset[int]
    ) -> Blamed:
        tolerance = self.tolerance(state, node, its) if its is not None else None
        return Blamed(node, its, value, state.raw[node.number], tolerance, is_certain, wrong)

    def _from_results(
        self, state: State, wrong: list[tuple[Node, Node]], numbers: frozenset[int]
    ) -> tuple[Blamed | None, State | None]:
        """Where no replacement puts everything right: from a result that is replaced itself, backwards."""
        for mine, its in wrong:
            for value in islice(arranged(its.value, state.raw[mine.number]), 1):
                after = self._tried(state, mine, its, value, [(mine, its)])
                if after is not None:
                    return self._deepened(state, Step(mine, its, value, after), [(mine, its)], numbers)
        return None, None


def _operands(instance: Instance) -> list[Node]:
    return [node for part in instance.operands for node in part]


def is_given(node: Node) -> bool:
    """Whether a value is one of the module's inputs."""
    return node.instance.opcode == "parameter" and not node.instance.scope


def loop_of(instance: Instance) -> str:
    """The path to the innermost loop around an instruction, with the iteration; empty outside of loops."""
    return instance.name[: instance.name.rfind("[") + 1] and instance.name[: instance.name.rfind("]") + 1]


def is_made_of(node: Node, other: Node) -> bool:
    """Whether a value is computed from another one in a few steps."""
    pending = deque([node])
    seen: set[int] = set()
    while pending and len(seen) < _FEW_STEPS:
        current = pending.popleft()
        for entry in current.instance.inputs:
            if entry.device != other.device:
                continue
            if entry.digest.in_any_order == other.digest.in_any_order and entry.digest.count == other.digest.count:
                return True
            if entry.number not in seen:
                seen.add(entry.number)
                pending.append(entry)
    return False


def are_near(actual: Array, expected: Array) -> bool:
    """Whether two arrays of floats differ, but by little on the whole."""
    first, second = wide(actual), wide(expected)
    if first.dtype.kind not in "fc" or first.shape != second.shape:
        return False
    with np.errstate(all="ignore"):
        return bool(0 < np.linalg.norm(np.ravel(first - second)) <= _NEAR * np.linalg.norm(np.ravel(second)))
