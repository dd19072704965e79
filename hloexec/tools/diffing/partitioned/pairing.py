"""Pairing operands of `after`, partitioned, with parts of the values of `before`.

What moves or adds up parts between devices, or cuts parts out of a whole, has no counterpart in `before`. Its operands
are paired with those parts from which it gives what it should; if there are none, with those that they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from hloexec.core.structs import define
from hloexec.ops.registry import exchanges, traits_of
from hloexec.tools.diffing.agreement import arranged
from hloexec.tools.diffing.digests import Digest
from hloexec.tools.diffing.graph import Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.matching import Index
from hloexec.tools.diffing.partitioned.starts import Starts, in_place
from hloexec.tools.diffing.partitioned.steps import Contents, Steps, contents_of, holds_same, steps_from
from hloexec.tools.diffing.partitioned.tiles import Key, Tiles
from hloexec.tools.diffing.replaying.evaluation import Evaluator, Overlay, Values

_Parts = dict[int, Node]
"""Parts of a whole value, by the numbers of the nodes in whose place they are."""
_Source = tuple[tuple[str, str], int, Key]
"""The instruction, the leaf and the part."""


@define
class _Way:
    """From which part of which value steps give what they should on any device."""

    source: _Source | None = None
    """None where it is not known, or there are several."""
    failures: int = 0
    """On how many devices nothing did."""


class TiledIndex(Index):
    """The values of `before`, whole and in parts."""

    def __init__(self, tiles: Tiles, evaluator: Evaluator, nodes: Sequence[Node], *rest: Any) -> None:
        super().__init__(*rest)
        self._tiles = tiles
        self._evaluator = evaluator
        self._nodes = nodes
        """Both of `after`."""
        self._known: dict[object, list[_Parts]] = {}
        self._ways: dict[object, _Way] = {}
        self._with_starts: set[tuple[str, tuple[str, str]]] = set()
        self._on_devices = {(node.instance.name, node.leaf, node.device): node for node in nodes}
        self._starts = Starts(tiles, evaluator, nodes)
        self._alike: dict[tuple[int, int], bool] = {}
        self._contents: dict[int, Contents] = {}

    def note(self, node: Node) -> None:
        """`after` has this value; once it has all tiles of a whole, it has that, too."""
        self._note_equal(node)
        whole, key = self._tiles.whole_of(node)
        if key[1]:
            return
        peers = self._tiles.peers[whole.instance.name, whole.leaf]
        parts = [self._tiles.part(whole, key, device) for device in peers]
        if all(part is not None and part.number in self.matched for part in parts):
            for peer in peers.values():
                self.matched.add(peer.number)
                for other, part in self._tiles.parts[peer.number].items():
                    if not other[1]:
                        self.matched.add(part.number)

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
            self._alike[key] = found is None or holds_same(found[ours.leaf], theirs.value)
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
        parts = sorted(
            (part for part in self._all_parts(whole) if _is_alike(ours, part)),
            key=lambda part: not _is_shaped_alike(ours, part),
        )
        equal = [part for part in parts if holds_same(values[ours.number], part.value)]
        return next(iter([*equal, *parts]), theirs)

    def _all_parts(self, whole: Node) -> list[Node]:
        return [whole, *self._tiles.parts[whole.number].values()]

    def _through(self, ours: Node, theirs: Node, values: Values) -> list[tuple[Node, Node]] | None:
        """What a value is moved or added up from, between devices or out of a larger part: the parts that these values
        are or, unless they are parts of one value, the parts from which the steps give what they should."""
        is_computed = not exchanges(ours.instance.instruction) and traits_of(ours.instance.instruction).moves is None
        wholes = self._wholes(theirs, is_computed)
        likeliest: tuple[Steps, _Parts] | None = None
        passed: set[tuple[str, str]] = set()
        for _ in range(LIMITS.shard_levels):
            steps = steps_from(ours, lambda node: any(self._parts_like(whole, node) for whole in wholes), passed)
            if steps is None:
                break
            if steps.is_alike:
                parts, is_equal = self._likeliest_parts(theirs, wholes, steps, values)
                giving = None if is_equal else self._giving(theirs, wholes, steps, values)
                if giving or (is_equal and parts):
                    likeliest = steps, giving or parts or {}
                    break
                likeliest = likeliest or (None if parts is None else (steps, parts))
            # These may only look like parts of a value.
            passed |= {node.instance.static for node in steps.ends}
        if likeliest is None:
            return None
        steps, parts = likeliest
        pairs = [(self._nodes[number], part) for number, part in parts.items()]
        starts = self._starts.pairs(steps, parts, theirs, values)
        if starts and (key := (ours.instance.name, theirs.instance.static)) not in self._with_starts:
            # One fault may show on all devices; what corrects it has to know of them all.
            self._with_starts.add(key)
            whole, part = self._tiles.whole_of(theirs)
            for device in self._tiles.peers[whole.instance.name, whole.leaf]:
                peer, counterpart = (
                    self._on_devices.get((*key[:1], ours.leaf, device)),
                    self._tiles.part(whole, part, device),
                )
                if peer is not None and counterpart is not None and peer is not ours:
                    self._through(peer, counterpart, values)
        return pairs + starts

    def _likeliest_parts(
        self, theirs: Node, wholes: Sequence[Node], steps: Steps, values: Values
    ) -> tuple[_Parts | None, bool]:
        """The parts that most of some values are, and whether they all are."""
        best: _Parts | None = None
        most = (0, 0, 0)
        ours = {node.number: contents_of(values[node.number]) for node in steps.ends}
        for _, parts in islice(self._sources(theirs, wholes, steps), LIMITS.shard_sources):
            pairs = [(ours[number], self._contents_of(part)) for number, part in parts.items()]
            equal = sum(expected.are_in(actual) for actual, expected in pairs)
            if equal < most[0]:
                continue
            in_order = sum(expected.are_in(actual, in_order=True) for actual, expected in pairs)
            shaped = sum(_is_shaped_alike(self._nodes[number], part) for number, part in parts.items())
            if equal and (equal, in_order, shaped) > most:
                best, most = parts, (equal, in_order, shaped)
        return best, most[0] == len(steps.ends)

    def _contents_of(self, part: Node) -> Contents:
        """The numbers of a part, which small ones keep: they are compared many times."""
        known = self._contents.get(part.number)
        if known is None:
            known = contents_of(part.value)
            if part.digest.count <= LIMITS.shard_kept:
                self._contents[part.number] = known
        return known

    def _giving(self, theirs: Node, wholes: Sequence[Node], steps: Steps, values: Values) -> _Parts | None:
        """The parts from which steps give what a value should be; of several, those computed from what `after`
        computes its own from."""
        ends = tuple(node.number for node in steps.ends)
        key = (steps.result.number, theirs.number, ends, steps.given_digests(values))
        if key not in self._known:
            self._known[key] = self._all_giving(theirs, wholes, steps, values)
        end = steps.ends[0]

        def common(parts: _Parts) -> tuple[int, int]:
            part = parts[end.number]
            pairs = list(zip(end.instance.inputs, part.instance.inputs, strict=False))
            equal = sum(holds_same(values[node.number], other.value) for node, other in pairs)
            return equal, sum(_is_shaped_alike(*pair) for pair in [(end, part), *pairs])

        return max(self._known[key], key=common, default=None)

    def _all_giving(self, theirs: Node, wholes: Sequence[Node], steps: Steps, values: Values) -> list[_Parts]:
        """All such parts; what it is on one device is tried first on others, where it is enough."""
        whole, key = self._tiles.whole_of(theirs)
        statics = steps.result.instance.static, steps.ends[0].instance.static, whole.instance.static
        way = self._ways.setdefault((statics, steps.result.leaf, whole.leaf, key), _Way())
        sources = list(islice(self._sources(theirs, wholes, steps), LIMITS.shard_sources))
        for source, parts in sources:
            if source == way.source and self._gives(theirs, steps, parts, values):
                return [parts]
        if way.failures == LIMITS.shard_failures:
            return []
        found = [(source, parts) for source, parts in sources if self._gives(theirs, steps, parts, values)]
        if len(found) == 1:
            way.source = found[0][0]
        way.failures += not found
        return [parts for _, parts in found]

    def _sources(self, theirs: Node, wholes: Sequence[Node], steps: Steps) -> Iterator[tuple[_Source, _Parts]]:
        """Parts of whole values, one for each value from which steps begin, of their sizes."""
        for whole in wholes:
            for key in self._parts_like(whole, steps.ends[0]):
                parts = {node.number: self._tiles.part(whole, key, node.device) for node in steps.ends}
                known = {number: part for number, part in parts.items() if part is not None and part is not theirs}
                if len(known) == len(steps.ends):
                    yield (whole.instance.static, whole.leaf, key), known

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
        found = {} if is_computed else {whole.number: whole}
        if not is_computed:
            equal = self.equal_in_any_order(digest)
            others = (node for node in equal if node.device == whole.device and node.number not in self._tiles.wholes)
            found |= {node.number: node for node in islice(others, LIMITS.shard_equal)}
        pending = [whole]
        for node in pending:
            is_passed = node is whole or traits_of(node.instance.instruction).moves is not None
            if is_passed and len(pending) < LIMITS.shard_equal:
                pending += [entry for entry in node.instance.inputs if entry.number not in found]
                found |= {entry.number: entry for entry in node.instance.inputs}
        return list(found.values())

    def _gives(self, theirs: Node, steps: Steps, parts: _Parts, values: Values) -> bool:
        """Whether steps from parts give what a value should be."""
        return any(
            (found := steps.run(self._evaluator, values, changes)) is not None and holds_same(found, theirs.value)
            for changes in in_place(steps, parts, values)
        )


def _are_alike(one: Instance, other: Instance) -> bool:
    """Whether the operands of two instructions have the same sizes."""
    return len(one.inputs) == len(other.inputs) and all(map(_is_alike, one.inputs, other.inputs))


def _is_alike(ours: Node, theirs: Node) -> bool:
    return ours.digest.count == theirs.digest.count and ours.digest.family == theirs.digest.family


def _is_shaped_alike(ours: Node, theirs: Node) -> bool:
    """Whether two values have the same dimensions, those of one element aside."""
    return [size for size in ours.shape if size > 1] == [size for size in theirs.shape if size > 1]
