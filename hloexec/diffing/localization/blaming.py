"""Which instruction of `after` makes its result differ.

A value is to blame if replacing it by the right value corrects the results. Values that `before` does not have, on the
path to a result that differs, are replaced one at a time, the earliest first, by values of `before`, and everything
that depends on them is recomputed. The first replacement after which the results are those of `before` identifies the
instruction: its operands are right, or harmless, because the results become right without changing them.

Before that, values that `after` lacks are tried in place of values with the same operands (see `frontier`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

import attrs
import numpy as np

from hloexec.diffing.graph import Node
from hloexec.diffing.localization.backward import earliest_patch
from hloexec.diffing.localization.counterparts import Repair, arranged, counterparts_like, counterparts_of
from hloexec.diffing.localization.frontier import divergence_frontier
from hloexec.diffing.localization.patch_search import Pairs, Patch, PatchSearch
from hloexec.diffing.replay import Replay, State
from hloexec.ops.common import wide
from hloexec.values import Array

__all__ = ["Blame", "Blamed"]

_MOST_SUSPECTS = 400
"""Maximum number of replacements, the earliest first: a bound on time. In all of the bug farm, one of the first six is
to blame."""
_NEAR = 0.02
"""The relative error, as a whole, up to which a value is a less precise one, not a wrong one: ten roundings to bf16,
of 2⁻⁹ each."""


@attrs.frozen(eq=False)
class Blamed:
    """An instruction, and what was found out about it."""

    node: Node
    counterpart: Node | None
    value: Array
    """What it should have given, arranged as its own value."""
    raw: Array
    """What it gave, on `before`'s operands."""
    allowed: Array | None
    """By how much rounding may put its elements off; None where nothing rounds."""
    wrong: frozenset[int]
    """The nodes on the way from it to the results that differ."""


class Blame:
    """The search, from a replay on."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._search = PatchSearch(replay)

    def find(self, state: State, top: int) -> list[Blamed]:
        """What is to blame, in data-flow order; at most `top`."""
        found: list[Blamed] = []
        while len(found) < top and (wrong := self._replay.wrong_outputs(state)):
            suspects = self._suspects(state, wrong, found)
            patch = self._next(state, wrong, suspects)
            if patch is None:
                break
            node, theirs, raw = patch.node, patch.counterpart, state.raw[patch.node.number]
            allowed = None if theirs is None else list(self._replay.allowed(state, node, theirs))[-1]
            passed = frozenset(suspect.number for suspect in suspects)
            found.append(Blamed(node, theirs, patch.value, raw, allowed, passed))
            state = self._replay.adopt(patch.after)
        return found

    def nearest(self, state: State) -> list[Blamed]:
        """The value that is closest to its rounding bound, if none exceeds it; or nothing."""
        worst, found = 0.0, []
        for node, match in zip(self._replay.graph.nodes, state.matches, strict=True):
            if match is None or match.is_exact or match.value.shape != state.raw[node.number].shape:
                continue
            raw = state.raw[node.number]
            allowed = list(self._replay.allowed(state, node, match.node))[-1]
            if allowed is None or allowed.shape != raw.shape:
                continue
            with np.errstate(all="ignore"):
                severity = float(np.nanmax(np.abs(wide(raw) - wide(match.value)) / allowed, initial=0.0))
            if severity > worst:
                worst = severity
                found = [Blamed(node, match.node, match.value, raw, allowed, frozenset())]
        return found

    def _next(self, state: State, wrong: Pairs, suspects: Sequence[Node]) -> Patch | None:
        for node, lacked, value in divergence_frontier(state, self._replay.index.graph, self._replay.graph):
            patch = self._search.patch(state, node, lacked, value, wrong)
            if patch is not None:
                return patch
        if one_of_many := self._one_of_many(state, wrong, suspects):
            return one_of_many
        for good_only in (True, False):
            for node in islice(suspects, _MOST_SUSPECTS):
                for theirs, value in counterparts_of(self._replay.index, node, state, good_only):
                    patch = self._search.patch(state, node, theirs, value, wrong)
                    if patch is not None:
                        return earliest_patch(self._search, state, patch, wrong)
        return self._from_results(state, wrong)

    def _one_of_many(self, state: State, wrong: Pairs, suspects: Sequence[Node]) -> Patch | None:
        """The first suspect that computes from the same operands by the same opcode as a value that `after` lacks,
        where putting it right makes more values right after it, if not the results: others may be wrong as well."""
        for node in islice(suspects, _MOST_SUSPECTS):
            inputs = node.instance.inputs
            if any(state.matches[entry.number] is None and not entry.digest.is_uniform for entry in inputs):
                continue
            for theirs, value in counterparts_like(self._replay.index, node, state):
                patch = self._search.patch(state, node, theirs, value, wrong)
                if patch is not None:
                    return earliest_patch(self._search, state, patch, wrong)
                repair = Repair(self._replay, node, theirs, value)
                after = self._replay.override(state, repair.first, repair.given)
                if after is None:
                    continue
                # What comes close to the right value by the same way is less precise, and meant to be the same.
                if self._gain(state, after, repair.given_to) > 0 or _are_near(state.raw[node.number], value):
                    return Patch(node, theirs, value, after)
        return None

    def _gain(self, state: State, after: State, given: Collection[int]) -> int:
        """How many more values are right after a replacement, those aside that were given."""
        gain = 0
        for entry in self._replay.graph.nodes[min(given) :]:
            if entry.number in given or entry.instance.is_movement or entry.digest.is_uniform:
                continue
            gain += after.has(entry) - state.has(entry)
        return gain

    def _suspects(self, state: State, wrong: Pairs, found: Sequence[Blamed]) -> list[Node]:
        """The nodes on the way to a wrong result that `before` does not have, the earliest first; each instruction
        once."""
        stack = [ours for ours, _ in wrong]
        seen = {node.number for node in stack}
        while stack:
            node = stack.pop()
            for entry in node.instance.inputs:
                if entry.number not in seen and not state.has(entry):
                    seen.add(entry.number)
                    stack.append(entry)
        blamed = {entry.node.instance.static for entry in found}
        suspects = []
        known = set()
        for number in sorted(seen):
            node = self._replay.graph.nodes[number]
            key = (*node.instance.static, node.leaf)
            is_constant = node.instance.is_constant and node.digest.is_uniform
            if key not in known and node.instance.static not in blamed and not is_constant:
                known.add(key)
                suspects.append(node)
        return suspects

    def _from_results(self, state: State, wrong: Pairs) -> Patch | None:
        """Where no replacement puts everything right: from a result that is replaced itself, backwards.

        This is tried however much was tried before: results that differ always leave something to blame.
        """
        for ours, theirs in wrong:
            pair = [(ours, theirs)]
            for value in islice(arranged(theirs.value, state.raw[ours.number]), 1):
                patch = self._search.patch(state, ours, theirs, value, pair, is_limited=False)
                if patch is not None:
                    return earliest_patch(self._search, state, patch, pair)
        return None


def _are_near(actual: Array, expected: Array) -> bool:
    """Whether two arrays of floats differ, but by little on the whole."""
    first, second = wide(actual), wide(expected)
    if first.dtype.kind not in "fc" or first.shape != second.shape:
        return False
    with np.errstate(all="ignore"):
        return bool(0 < np.linalg.norm(np.ravel(first - second)) <= _NEAR * np.linalg.norm(np.ravel(second)))
