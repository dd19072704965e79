"""Pairing operands of `after`, partitioned, with parts of the values of `before`, and where slices should be cut.

What moves or adds up parts between devices, or cuts parts out of a whole, has no counterpart in `before`. Its operands
are paired with those parts from which it gives what it should; if there are none, with those that they are.

Devices cut their parts out of larger values at places that they compute from their numbers; nothing in `before` does.
Where a slice gives another part than it should, its start is looked for among all places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, product
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of, unit_roundoff
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.ops.common import wide
from hloexec.ops.registry import exchanges, traits_of
from hloexec.tools.diffing.graph import Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.matching import Index, arranged
from hloexec.tools.diffing.partitioned.tiles import Key, Tiles
from hloexec.tools.diffing.recording.arrays import Digest, digest_of
from hloexec.tools.diffing.replaying.evaluation import Evaluator, Overlay, Values


@frozen(eq=False)
class Steps:
    """Instructions that only move values, or add them up across devices."""

    result: Node
    ends: tuple[Node, ...]
    """The values from which they begin."""
    instances: tuple[Instance, ...]

    @property
    def is_alike(self) -> bool:
        """Whether they begin from what one instruction gave."""
        return len({(node.instance.static, node.digest.count) for node in self.ends}) == 1

    @property
    def given(self) -> set[int]:
        """The numbers of the values that they use besides."""
        inner = {node.number for instance in self.instances for node in instance.results}
        used = {node.number for instance in self.instances for node in instance.inputs}
        return used - inner - {node.number for node in self.ends}

    def given_digests(self, values: Values) -> tuple[int, ...]:
        """Those of the values that they use besides, which tell whether they are the same again."""
        return tuple(digest_of(values[number]).in_order for number in sorted(self.given))

    def run(self, evaluator: Evaluator, values: Values, changes: Mapping[int, Array]) -> Array | None:
        """What they give with some values replaced; None where one of them cannot be run again."""
        arrays_by_number = dict(changes)
        for instance in self.instances:
            arrays = evaluator.results(instance, Overlay(values, arrays_by_number))
            if arrays is None:
                return None
            arrays_by_number |= {node.number: array for node, array in zip(instance.results, arrays, strict=True)}
        return arrays_by_number[self.result.number]


def steps_from(node: Node, is_end: Callable[[Node], bool], passed: Collection[tuple[str, str]]) -> Steps | None:
    """How a value is moved or added up, between devices too, from values that may be parts; None where it is not.

    Instructions in `passed` do not give parts.
    """
    ends: dict[int, Node] = {}
    instances = {node.instance.number: node.instance}
    pending = _sources_of(node, is_last=True)
    for current in pending:
        if current.instance.static not in passed and is_end(current):
            ends[current.number] = current
        elif current.instance.number not in instances:
            sources = _sources_of(current)
            if len(instances) > LIMITS.shard_steps or not (sources or _is_given(current)):
                return None
            if sources:
                instances[current.instance.number] = current.instance
                pending += sources
    return Steps(node, tuple(ends.values()), tuple(instances[number] for number in sorted(instances))) if ends else None


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


@frozen(eq=False, slots=False)
class Contents:
    """The numbers of an array, to be compared with those of others."""

    element_type: ElementType
    in_order: Array
    """In one dimension, in f64 or another type that holds them exactly."""

    @cached_property
    def sorted(self) -> Array:
        return np.sort(self.in_order)

    @cached_property
    def mean_size(self) -> float:
        """The root mean square of the finite ones."""
        finite = np.abs(self.in_order[np.isfinite(self.in_order)])
        return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0

    def are_in(self, actual: Contents, *, in_order: bool = False) -> bool:
        """Whether another array holds about these numbers, in whatever order unless `in_order`."""
        if actual.in_order.size != self.in_order.size or not self.in_order.size:
            return False
        first, second = (actual.in_order, self.in_order) if in_order else (actual.sorted, self.sorted)
        if not (actual.element_type.is_inexact and self.element_type.is_inexact):
            return bool(np.array_equal(first, second))
        with np.errstate(all="ignore"):
            part = np.sqrt(max(unit_roundoff(actual.element_type), unit_roundoff(self.element_type)))
            near = np.abs(first - second) <= part * (np.abs(second) + self.mean_size)
            if near.all():
                return True
            near |= (first == second) | (np.isnan(first) & np.isnan(second))
        return bool(near.size - np.count_nonzero(near) <= LIMITS.share_off * near.size)


def contents_of(array: Array) -> Contents:
    """The numbers of an array of any element type."""
    return Contents(element_type_of(array.dtype), wide(array).reshape(-1))


def holds_same(actual: Array, expected: Array, in_order: bool = False) -> bool:
    """Whether two arrays hold about the same numbers, in whatever order unless row by row: so that different parts are
    told apart."""
    return actual is expected or contents_of(expected).are_in(contents_of(actual), in_order=in_order)


class Starts:
    """The places at which slices should begin."""

    def __init__(self, tiles: Tiles, evaluator: Evaluator, nodes: Sequence[Node]) -> None:
        self._tiles = tiles
        self._evaluator = evaluator
        self._nodes = nodes
        self._known: dict[object, list[tuple[Node, int]]] = {}
        self._expected: dict[tuple[int, int], Node] = {}

    def pairs(self, steps: Steps, parts: Mapping[int, Node], theirs: Node, values: Values) -> list[tuple[Node, Node]]:
        """The starts of slices among some steps, and what they should be for the steps to give a value, as far as that
        is something else."""
        places = tuple(part.number for part in parts.values())
        key = (steps.result.number, theirs.number, places, steps.given_digests(values))
        if key not in self._known:
            self._known[key] = self._found(steps, parts, theirs, values)
        return [(node, self._node(node, place, theirs)) for node, place in self._known[key]]

    def _found(self, steps: Steps, parts: Mapping[int, Node], theirs: Node, values: Values) -> list[tuple[Node, int]]:
        slices = [entry for entry in steps.instances if entry.device == theirs.device and _starts_of(entry)]
        if not slices:
            return []
        for changes in in_place(steps, parts, values):
            result = steps.run(self._evaluator, values, changes)
            if result is None or holds_same(result, theirs.value, in_order=True):
                return []
            for instance in slices:
                for places in _places(instance, values):
                    moved = {**changes, **{node.number: _scalar(place, values[node.number]) for node, place in places}}
                    result = steps.run(self._evaluator, values, moved)
                    if result is not None and holds_same(result, theirs.value, in_order=True):
                        return [(node, place) for node, place in places if int(values[node.number]) != place]
        return []

    def _node(self, ours: Node, place: int, theirs: Node) -> Node:
        """A node of `before` that holds what a start should be."""
        key = (ours.number, place)
        if key not in self._expected:
            self._expected[key] = self._tiles.add_number(theirs, _scalar(place, ours.value), ours.instance.name)
        return self._expected[key]


def in_place(steps: Steps, parts: Mapping[int, Node], values: Values) -> Iterator[dict[int, Array]]:
    """Parts in the place of what steps begin from, in each of the ways in which they may lie in its dimensions."""
    ways = [
        list(islice(arranged(parts[node.number].value, values[node.number]), LIMITS.arrangements))
        for node in steps.ends
    ]
    for arrays in zip(*ways, strict=False):
        yield {node.number: array for node, array in zip(steps.ends, arrays, strict=True)}


def _starts_of(instance: Instance) -> list[Node]:
    """The numbers that say where in its first operand a slice begins; nothing where it is none."""
    starts = [node for part in instance.operands[1:] for node in part]
    is_slice = traits_of(instance.instruction).moves == (0,) and len(starts) == len(instance.results[0].shape)
    return starts if is_slice and all(_is_number(node) for node in starts) else []


def _is_number(node: Node) -> bool:
    return node.shape == () and element_type_of(node.dtype).is_integral


def _places(instance: Instance, values: Values) -> Iterator[list[tuple[Node, int]]]:
    """Every place at which a slice may begin, if there are not too many."""
    starts = _starts_of(instance)
    whole, part = values[instance.operands[0][0].number].shape, instance.results[0].shape
    ranges = [range(size - own + 1) for size, own in zip(whole, part, strict=True)]
    if math.prod(map(len, ranges)) <= LIMITS.places:
        for places in product(*ranges):
            places_by_node = dict(zip(starts, places, strict=True))
            # One node may be the start along several axes.
            if all(places_by_node[node] == place for node, place in zip(starts, places, strict=True)):
                yield list(places_by_node.items())


def _scalar(number: int, like: Array) -> Array:
    return np.array(number, like.dtype)


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
            pairs = self._through(ours, theirs, values)
            if pairs is not None:
                return pairs
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
            results = self._evaluator.results(one, Overlay(values, changes))
            self._alike[key] = results is None or holds_same(results[ours.leaf], theirs.value)
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
        contents = self._contents.get(part.number)
        if contents is None:
            contents = contents_of(part.value)
            if part.digest.count <= LIMITS.shard_kept:
                self._contents[part.number] = contents
        return contents

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
        matches = [(source, parts) for source, parts in sources if self._gives(theirs, steps, parts, values)]
        if len(matches) == 1:
            way.source = matches[0][0]
        way.failures += not matches
        return [parts for _, parts in matches]

    def _sources(self, theirs: Node, wholes: Sequence[Node], steps: Steps) -> Iterator[tuple[_Source, _Parts]]:
        """Parts of whole values, one for each value from which steps begin, of their sizes."""
        for whole in wholes:
            for key in self._parts_like(whole, steps.ends[0]):
                parts = {node.number: self._tiles.part(whole, key, node.device) for node in steps.ends}
                usable_parts = {
                    number: part for number, part in parts.items() if part is not None and part is not theirs
                }
                if len(usable_parts) == len(steps.ends):
                    yield (whole.instance.static, whole.leaf, key), usable_parts

    def _parts_like(self, whole: Node, like: Node) -> list[Key]:
        """The parts of a value that have the size of another."""
        peer = self._tiles.part(whole, ((), ()), like.device)
        if peer is None or peer.digest.family != like.digest.family:
            return []
        count = like.digest.count
        keys: list[Key] = [((), ())] if peer.digest.count == count else []
        return keys + [key for key, part in self._tiles.parts[peer.number].items() if part.digest.count == count]

    def _wholes(self, theirs: Node, is_computed: bool) -> list[Node]:
        """The whole value that one is a part of, others that hold the same numbers, and those that it is computed or,
        further back, moved from."""
        whole, _ = self._tiles.whole_of(theirs)
        digest: Digest = whole.digest
        nodes = {} if is_computed else {whole.number: whole}
        if not is_computed:
            equal = self.equal_in_any_order(digest)
            others = (node for node in equal if node.device == whole.device and node.number not in self._tiles.wholes)
            nodes |= {node.number: node for node in islice(others, LIMITS.shard_equal)}
        pending = [whole]
        for node in pending:
            is_passed = node is whole or traits_of(node.instance.instruction).moves is not None
            if is_passed and len(pending) < LIMITS.shard_equal:
                pending += [entry for entry in node.instance.inputs if entry.number not in nodes]
                nodes |= {entry.number: entry for entry in node.instance.inputs}
        return list(nodes.values())

    def _gives(self, theirs: Node, steps: Steps, parts: _Parts, values: Values) -> bool:
        """Whether steps from parts give what a value should be."""
        return any(
            (result := steps.run(self._evaluator, values, changes)) is not None and holds_same(result, theirs.value)
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
