"""Pairing operands of `after`, partitioned, with parts of the values of `before`.

What moves or adds up parts between devices, or cuts parts out of a whole, has no counterpart in `before`. Its operands
are paired with those parts from which it gives what it should; if there are none, with those that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import attrs
import numpy as np

from hloexec.diffing.agreement import arranged
from hloexec.diffing.digests import Digest
from hloexec.diffing.evaluation import Evaluator, Overlay, Values
from hloexec.diffing.graph import Instance, Node
from hloexec.diffing.matching import Index
from hloexec.diffing.partitioned.tiles import Key, Tiles
from hloexec.dtypes import element_type_of
from hloexec.operations import exchanges, traits_of
from hloexec.ops.common import wide
from hloexec.precision import unit_roundoff
from hloexec.values import Array

__all__ = ["TiledIndex"]

_MOST_EQUAL = 8
_MOST_SOURCES = 24
_MOST_ARRANGEMENTS = 3
_MOST_STEPS = 64
_MOST_LEVELS = 4
_SHARE = 0.05
"""So many elements may be off: those in which cancellation amplifies roundings."""
_Parts = dict[int, Node]
"""Parts of a whole value, by the numbers of the nodes in whose place they are."""


@attrs.frozen(eq=False)
class _Steps:
    """Instructions that only move values, or add them up across devices."""

    ends: tuple[Node, ...]
    """The values from which they begin."""
    instances: tuple[Instance, ...]

    @property
    def is_alike(self) -> bool:
        """Whether they begin from what one instruction gave."""
        return len({(node.instance.static, node.digest.count) for node in self.ends}) == 1


class TiledIndex(Index):
    """The values of `before`, whole and in parts."""

    def __init__(self, tiles: Tiles, evaluator: Evaluator, nodes: Sequence[Node], *rest: Any) -> None:
        super().__init__(*rest)
        self._tiles = tiles
        self._evaluator = evaluator
        self._nodes = nodes
        """Both of `after`."""
        self._known: dict[object, _Parts | None] = {}
        self._alike: dict[tuple[int, int], bool] = {}

    def note(self, node: Node) -> None:
        """`after` has this value; once it has all tiles of a whole, it has that, too."""
        super().note(node)
        whole, key = self._tiles.whole_of(node)
        if key[1]:
            return
        peers = self._tiles.peers[whole.instance.name, whole.leaf]
        parts = [self._tiles.part(whole, key, device) for device in peers]
        if all(part is not None and part.number in self.matched for part in parts):
            for peer in peers.values():
                self.matched.add(peer.number)
                self.matched.update(
                    part.number for other, part in self._tiles.parts[peer.number].items() if not other[1]
                )

    def operands(self, ours: Node, theirs: Node, values: Values) -> list[tuple[Node, Node]] | None:
        """Pairs of the operands of a value of `after` and what they should be; None where those of the instruction
        that computed `theirs` are."""
        one, other = ours.instance, theirs.instance
        is_same = one.opcode == other.opcode
        if is_same and (exchanges(one.instruction) or self._computes(ours, theirs, values)):
            return None
        if is_same or exchanges(one.instruction) or traits_of(one.instruction).moves is not None:
            found = self._through(ours, theirs, values)
            if found is not None:
                return found
        return self._of_sizes(one, other, values) if is_same and not _are_alike(one, other) else None

    def _computes(self, ours: Node, theirs: Node, values: Values) -> bool:
        """Whether an instruction gives what another one does, given the same operands."""
        one, other = ours.instance, theirs.instance
        if not _are_alike(one, other):
            return False
        if one.instruction.attributes == other.instruction.attributes or not one.inputs:
            return True
        key = (ours.number, theirs.number)
        if key not in self._alike:
            pairs = zip(one.inputs, other.inputs, strict=True)
            changes = {node.number: next(arranged(part.value, values[node.number])) for node, part in pairs}
            found = self._evaluator.results(one, Overlay(values, changes))
            self._alike[key] = found is None or _holds_same(found[ours.leaf], theirs.value)
        return self._alike[key]

    def _of_sizes(self, one: Instance, other: Instance, values: Values) -> list[tuple[Node, Node]] | None:
        """Operands in the same place, in parts of the size that they have."""
        first = [node for part in one.operands for node in part]
        second = [node for part in other.operands for node in part]
        if len(first) != len(second):
            return None
        return [
            (node, counterpart if _is_alike(node, counterpart) else self._likeliest(node, counterpart, values))
            for node, counterpart in zip(first, second, strict=True)
        ]

    def _likeliest(self, ours: Node, theirs: Node, values: Values) -> Node:
        """The part of a whole value that has the size of a value of `after`, and perhaps its numbers."""
        whole, _ = self._tiles.whole_of(theirs)
        parts = [part for part in self._all_parts(whole) if _is_alike(ours, part)]
        equal = [part for part in parts if _holds_same(values[ours.number], part.value)]
        return next(iter([*equal, *parts]), theirs)

    def _all_parts(self, whole: Node) -> list[Node]:
        return [whole, *self._tiles.parts[whole.number].values()]

    def _equal_wholes(self, theirs: Node) -> list[Node]:
        """The whole value that one is a part of, and others that hold the same numbers."""
        whole, _ = self._tiles.whole_of(theirs)
        digest: Digest = whole.digest
        found = {whole.number: whole}
        for node in self._in_any_order.get((digest.count, digest.family, digest.in_any_order), ()):
            if node.device == whole.device and node.number not in self._tiles.wholes:
                found.setdefault(node.number, node)
        return list(islice(found.values(), _MOST_EQUAL))

    def _through(self, ours: Node, theirs: Node, values: Values) -> list[tuple[Node, Node]] | None:
        """What a value is moved or added up from, between devices or out of a larger part: the parts that these values
        are or, unless they are parts of one value, the parts from which the steps give what they should."""
        is_computed = not exchanges(ours.instance.instruction) and traits_of(ours.instance.instruction).moves is None
        wholes = self._wholes(theirs, is_computed)
        best: _Parts | None = None
        passed: set[tuple[str, str]] = set()
        for _ in range(_MOST_LEVELS):
            steps = _steps_from(ours, lambda node: any(self._parts_like(whole, node) for whole in wholes), passed)
            if steps is None:
                break
            if steps.is_alike:
                found, is_equal = self._likeliest_parts(theirs, wholes, steps, values)
                if not is_equal:
                    giving = self._giving(ours, theirs, wholes, steps, values)
                    is_equal, found = giving is not None, giving or found
                if is_equal:
                    best = found
                    break
                best = best or found
            # These may only look like parts of a value.
            passed |= {node.instance.static for node in steps.ends}
        nodes = self._nodes
        return None if best is None else [(nodes[number], part) for number, part in best.items()]

    def _likeliest_parts(
        self, theirs: Node, wholes: Sequence[Node], steps: _Steps, values: Values
    ) -> tuple[_Parts | None, bool]:
        """The parts that most of some values are, and whether they all are."""
        best: _Parts | None = None
        most = (0, 0)
        for parts in islice(self._sources(theirs, wholes, steps), _MOST_SOURCES):
            pairs = [(values[number], part.value) for number, part in parts.items()]
            equal = sum(_holds_same(*pair) for pair in pairs), sum(_holds_same(*pair, in_order=True) for pair in pairs)
            if equal > most:
                best, most = parts, equal
        return best, most[0] == len(steps.ends)

    def _giving(self, ours: Node, theirs: Node, wholes: Sequence[Node], steps: _Steps, values: Values) -> _Parts | None:
        """The parts from which steps give what a value should be."""
        ends = {node.number for node in steps.ends}
        inner = {node.number for step in steps.instances for node in step.results}
        others = {node.number for step in steps.instances for node in step.inputs} - ends - inner
        key = (ours.number, theirs.number, tuple(id(values[number]) for number in sorted(others)))
        if key not in self._known:
            candidates = islice(self._sources(theirs, wholes, steps), _MOST_SOURCES)
            found = (parts for parts in candidates if self._gives(ours, theirs, steps, parts, values))
            self._known[key] = next(found, None)
        return self._known[key]

    def _sources(self, theirs: Node, wholes: Sequence[Node], steps: _Steps) -> Iterator[_Parts]:
        """Parts of whole values, one for each value from which steps begin, of their sizes."""
        for whole in wholes:
            for key in self._parts_like(whole, steps.ends[0]):
                parts = {node.number: self._tiles.part(whole, key, node.device) for node in steps.ends}
                known = {number: part for number, part in parts.items() if part is not None and part is not theirs}
                if len(known) == len(steps.ends):
                    yield known

    def _parts_like(self, whole: Node, like: Node) -> list[Key]:
        """The parts of a value that have the size of another."""
        peer = self._tiles.part(whole, ((), ()), like.device)
        if peer is None or peer.digest.family != like.digest.family:
            return []
        count = like.digest.count
        found: list[Key] = [((), ())] if peer.digest.count == count else []
        return found + [key for key, part in self._tiles.parts[peer.number].items() if part.digest.count == count]

    def _wholes(self, theirs: Node, is_computed: bool) -> list[Node]:
        """The whole value that one is a part of, others that hold the same numbers, and those that it is computed or,
        further back, moved from."""
        whole, _ = self._tiles.whole_of(theirs)
        digest: Digest = whole.digest
        found = {whole.number: whole}
        for node in self._in_any_order.get((digest.count, digest.family, digest.in_any_order), ()):
            if node.device == whole.device and node.number not in self._tiles.wholes:
                found.setdefault(node.number, node)
        found = dict(islice(found.items(), _MOST_EQUAL))
        pending = [whole]
        for node in pending:
            is_passed = node is whole or traits_of(node.instance.instruction).moves is not None
            if is_passed and len(pending) < _MOST_EQUAL:
                pending += [entry for entry in node.instance.inputs if entry.number not in found]
                found |= {entry.number: entry for entry in node.instance.inputs}
        return [node for node in found.values() if not is_computed or node is not whole]

    def _gives(self, ours: Node, theirs: Node, steps: _Steps, parts: _Parts, values: Values) -> bool:
        """Whether steps from parts give what a value should be."""
        ways: Sequence[Sequence[Array]] = [
            list(islice(arranged(parts[node.number].value, values[node.number]), _MOST_ARRANGEMENTS))
            for node in steps.ends
        ]
        for arrays in zip(*ways, strict=False):
            changes = {node.number: array for node, array in zip(steps.ends, arrays, strict=True)}
            for instance in steps.instances:
                found = self._evaluator.results(instance, Overlay(values, changes))
                if found is None:
                    return False
                changes |= {node.number: array for node, array in zip(instance.results, found, strict=True)}
            if _holds_same(changes[ours.number], theirs.value):
                return True
        return False


def _steps_from(node: Node, is_end: Callable[[Node], bool], passed: Collection[tuple[str, str]]) -> _Steps | None:
    """How a value is moved or added up, between devices too, from values that may be parts; None where it is not.

    Instructions in `passed` do not give parts.
    """
    ends: dict[int, Node] = {}
    found = {node.instance.number: node.instance}
    pending = _sources_of(node, is_last=True)
    for current in pending:
        if current.instance.static not in passed and is_end(current):
            ends[current.number] = current
        elif current.instance.number not in found:
            sources = _sources_of(current)
            if len(found) > _MOST_STEPS or not (sources or _is_given(current)):
                return None
            if sources:
                found[current.instance.number] = current.instance
                pending += sources
    return _Steps(tuple(ends.values()), tuple(found[number] for number in sorted(found))) if ends else None


def _sources_of(node: Node, is_last: bool = False) -> list[Node]:
    """The nodes whose elements a node consists of, or whose sum it is across devices; none where it is computed,
    or its first operand if it is the last."""
    instance = node.instance
    traits = traits_of(instance.instruction)
    devices = [instance.others[device] for device in sorted(instance.others)] or [instance.operands]
    places: Sequence[int]
    if instance.others:
        places = (node.leaf,) if traits.is_leafwise and len(instance.operands) > 1 else range(len(instance.operands))
    elif traits.moves is None:
        return list(instance.operands[0][:1]) if is_last and instance.operands else []
    else:
        places = traits.moved_operands(len(instance.operands))
    return [entry for operands in devices for place in places for entry in operands[place]]


def _is_given(node: Node) -> bool:
    """Whether a value is a constant, perhaps repeated."""
    while traits_of(node.instance.instruction).moves == (0,) and node.instance.inputs:
        node = node.instance.inputs[0]
    return node.instance.is_source


def _are_alike(one: Instance, other: Instance) -> bool:
    """Whether the operands of two instructions have the same sizes."""
    return len(one.inputs) == len(other.inputs) and all(map(_is_alike, one.inputs, other.inputs))


def _is_alike(ours: Node, theirs: Node) -> bool:
    return ours.digest.count == theirs.digest.count and ours.digest.family == theirs.digest.family


def _holds_same(actual: Array, expected: Array, in_order: bool = False) -> bool:
    """Whether two arrays hold about the same numbers, in whatever order unless row by row: so that different parts are
    told apart."""
    if actual is expected:
        return True
    if actual.size != expected.size or not actual.size:
        return False
    entries = [element_type_of(array.dtype) for array in (actual, expected)]
    first, second = (wide(array).reshape(-1) for array in (actual, expected))
    if not in_order:
        first, second = np.sort(first), np.sort(second)
    if not all(entry.is_inexact for entry in entries):
        return bool(np.array_equal(first, second))
    with np.errstate(all="ignore"):
        part = np.sqrt(max(map(unit_roundoff, entries)))
        scale = np.abs(second) + np.sqrt(np.mean(np.square(np.abs(second[np.isfinite(second)]))))
        off = ~((np.abs(first - second) <= part * scale) | (first == second) | (np.isnan(first) & np.isnan(second)))
    return bool(np.count_nonzero(off) <= _SHARE * off.size)
