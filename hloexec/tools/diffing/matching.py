"""Matching a value of one run with a value of another, independently of names."""

from __future__ import annotations

from array import array as column
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from hloexec.analysis.numerics.tolerances import Chain
from hloexec.core.dtypes import element_type_of
from hloexec.core.precision import unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.tools.diffing.agreement import (
    Allowance,
    agrees,
    could_agree,
    is_varied,
    magnitudes,
    rearranged,
    rounds_alike,
    says_much,
)
from hloexec.tools.diffing.bounds import Bound, PathBounds, relative_bound
from hloexec.tools.diffing.chains import InstructionChains, path_chain, steps_from
from hloexec.tools.diffing.digests import Digest
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.recording.held import Held, own
from hloexec.tools.diffing.recording.numbers import Numbers
from hloexec.tools.diffing.replaying.evaluation import Values


@frozen(eq=False)
class Match:
    """A value of `after` that is one of `before`."""

    node: Node
    """Of `before`."""
    is_in_order: bool
    """Whether the elements have the same row-major order; otherwise dimensions are permuted."""
    is_exact: bool
    """Whether they are the same numbers; else rounding explains the difference."""
    held: Held
    """What `before` has, as `after` arranges it."""

    @property
    def value(self) -> Array:
        return self.held.array()


class Index:
    """The values of `before`, to be found by what they hold."""

    def __init__(self, graph: Graph, chains: InstructionChains, bounds: PathBounds) -> None:
        self.graph = graph
        self._path_bounds = bounds
        self.chains = chains
        """Of `before`'s instructions."""
        self.matched = Numbers()
        """The numbers of the nodes that `after` is known to have."""
        arrays = np.array(graph.columns.array)
        in_order, in_any_order, self._sums = (part[arrays] for part in graph.arrays.digests.columns())
        self._in_order, self._in_any_order = _Lookup(in_order), _Lookup(in_any_order)
        self._layouts = graph.arrays.layouts(arrays)
        self._chosen: dict[object, Node] = {}
        self._known_equal: dict[object, Sequence[int]] = {}
        self._last: tuple[object, Sequence[int]] = None, ()
        self._known_likeness: dict[tuple[int, int], int] = {}
        self._known_sizes: dict[tuple[int, str], _SameSize] = {}

    def equal(self, digest: Digest) -> Iterator[Node]:
        """The nodes with the same elements."""
        return self._of_kind(digest, self._in_order[digest.in_order])

    def equal_in_any_order(self, digest: Digest) -> Iterator[Node]:
        """The nodes with the same elements, in whatever order."""
        return self._of_kind(digest, self._in_any_order[digest.in_any_order])

    def _of_kind(self, digest: Digest, numbers: list[int]) -> Iterator[Node]:
        return map(self.graph.node, self._numbers_of_kind(digest, numbers))

    def _numbers_of_kind(self, digest: Digest, numbers: list[int]) -> Iterator[int]:
        arrays, array = self.graph.arrays, self.graph.columns.array
        kind = (digest.count, digest.family)
        return (number for number in numbers if arrays.size(array[number]) == kind)

    def _equal_on(self, device: int, digest: Digest) -> Sequence[int]:
        """The numbers of the nodes with the same elements on a device, in order."""
        key = (device, digest.in_order, digest.count, digest.family)
        if key == self._last[0]:
            return self._last[1]
        found = self._known_equal.get(key)
        if found is None:
            numbers = self._numbers_of_kind(digest, self._in_order[digest.in_order])
            found = column("i", [number for number in numbers if self.graph.device_of(number) == device])
            # A constant of a loop has as many nodes as that has iterations.
            if len(found) > LIMITS.chosen_once:
                self._known_equal[key] = found
        self._last = key, found
        return found

    def note(self, node: Node) -> None:
        """`after` has this value, and with it all that are equal on its device."""
        if node.number not in self.matched:
            self._note_equal(node)

    def _note_equal(self, node: Node) -> None:
        self.matched.update(self._equal_on(node.device, node.digest))

    def operands(self, ours: Node, theirs: Node, values: Values) -> list[tuple[Node, Node]] | None:
        """Pairs of the operands of a value of `after`, which holds `values`, and what they should be; None where those
        of the instruction that computed `theirs` are."""
        return None

    def find(
        self,
        held: Held,
        chain: Chain,
        like: Node,
        made_of: frozenset[int] = frozenset(),
        bounds: Callable[[], Array] | None = None,
    ) -> Match | None:
        """The value that another one is, which `chain` rounded on the way from values that both sides have; `bounds`
        says how far off its elements may be for that.

        It is looked for on the device of `like`; of several, those are preferred that were computed
        from values with the digests `made_of`, and then one of its dimensions and names.
        """
        digest = held.digest
        if (node := self._likeliest_of(digest, like, made_of)) is not None:
            return Match(node, True, True, held)
        is_rounded = chain.linear and digest.family in ("float", "complex") and bounds is not None
        near = self._candidates(digest, chain, like, made_of) if is_rounded else []
        close = self._close(held, near, chain, like, bounds, in_order=True)
        if close is not None:
            return close
        if digest.is_uniform:
            return None
        for node in islice(self.equal_in_any_order(digest), LIMITS.candidates):
            if node.device != like.device:
                continue
            value = held.array()
            if is_varied(value) or rearranged(value, node.value, None) is not None:
                return Match(node, False, True, held)
        return self._close(held, near, chain, like, bounds, in_order=False)

    def _likeliest_of(self, digest: Digest, like: Node, made_of: frozenset[int]) -> Node | None:
        """Of the nodes with the same elements, the one most like another."""
        equal = self._equal_on(like.device, digest)
        if not equal:
            return None
        key: object = None
        if len(equal) > LIMITS.chosen_once:
            kind = digest.in_order, digest.count, digest.family
            key = (kind, like.device, like.instance.static, like.shape, made_of)
            if key in self._chosen:
                return self._chosen[key]
        equal = equal[: LIMITS.equal_values]
        found = self.graph.node(
            max(equal, key=lambda node: (self._common(node, made_of), self._likeness(node, like), -node))
            if len(equal) > 1
            else equal[0]
        )
        if key is not None:
            self._chosen[key] = found
        return found

    def _likeness(self, node: int, like: Node) -> int:
        """How much two nodes look like one another, by names and shapes."""
        ours, counterpart = self.graph.instruction_of(node), like.instruction
        key = (id(ours), id(counterpart))
        if key not in self._known_likeness:
            self._known_likeness[key] = (
                2 * (ours.opcode == counterpart.opcode)
                + 2 * (ours.op_name is not None and ours.op_name == counterpart.op_name)
                + (ours.name == counterpart.name)
            )
        return self._known_likeness[key] + (self.graph.arrays.shape(self.graph.columns.array[node]) == like.shape)

    def _close(
        self,
        held: Held,
        candidates: Sequence[Node],
        chain: Chain,
        like: Node,
        bounds: Callable[[], Array] | None,
        in_order: bool,
    ) -> Match | None:
        for node in candidates:
            assert bounds is not None
            # Where `after` has this one, too, it may compute it a second time, in other steps.
            if node.device != like.device or steps_from(node, self.matched, LIMITS.steps_ahead) > LIMITS.steps_ahead:
                continue
            other = path_chain(node, self.matched, self.chains)
            if not other.linear:
                continue
            value, theirs = held.array(), node.value
            for allowed in self.allowances(chain, bounds(), other, node):
                limits = allowed.of(value.shape)
                if not says_much(limits, theirs):
                    break
                if in_order:
                    expected = theirs.reshape(value.shape)
                    found = expected if agrees(value, expected, limits) else None
                else:
                    found = rearranged(value, theirs, allowed)
                if found is not None and rounds_alike(value, found, chain, other):
                    is_as_recorded = in_order and theirs.shape == value.shape
                    same = node.held if is_as_recorded else held if found is value else own(found)
                    return Match(node, in_order, False, same)
        return None

    def allowances(self, chain: Chain, bounds: Array, other: Chain, node: Node) -> Iterator[Allowance]:
        """How far a value of `after`, with its chain and its bounds, may be off a node of `before`, with its `other`.

        First what its own bounds allow, twice, as if both were computed alike; then with those of the node, which
        take time. Either side's bounds count as far as the other rounds as coarsely.
        """
        least = min(relative_bound(chain), relative_bound(other))
        ours = bounds * min(1.0, least / relative_bound(chain))
        yield Allowance(2 * ours)
        yield Allowance(ours, self.own_bounds(node) * min(1.0, least / relative_bound(other)))

    def own_bounds(self, node: Node) -> Array:
        """How far a node may be off itself, since values that `after` has."""
        return self._path_bounds.of(node, self.matched)

    def bound(self, node: Node, inherited: Mapping[int, Bound]) -> Bound:
        """How far a node may be off, where those operands that are off themselves are `inherited`."""
        return self._path_bounds.behind(node, inherited)

    def first_equal(self, node: Node) -> int:
        """The number of the first node with the same elements on its device; its own if that may be an accident."""
        return node.number if node.digest.is_uniform else min(self._equal_on(node.device, node.digest))

    def _candidates(self, digest: Digest, chain: Chain, like: Node, made_of: frozenset[int]) -> list[Node]:
        """The nodes whose sums are near enough: first those computed from the same values, then those of the same
        iteration of a loop, then the nearest. In a loop that converges, many iterations are near enough.
        """
        known = self._of_size(digest)
        relative = 2 * relative_bound(chain)
        near = known.between(*magnitudes(digest, relative + known.largest_unit))
        if not near.size:
            return []
        units, sums = known.units[near], known.sums[near]
        units = np.where(units > unit_roundoff(element_type_of(like.dtype)), units, 0)
        is_near = could_agree(digest, sums, relative + units)
        near, sums = near[is_near], sums[is_near]
        distances = np.abs(sums[:, 0] - digest.total) + np.abs(sums[:, 1] - digest.magnitude)
        found: list[int] = known.numbers[near[np.argsort(distances, kind="stable")]].tolist()
        array, digests = self.graph.columns.array, self.graph.arrays.digests
        found = [node for node in found if digests.nonfinite(array[node]) == digest.nonfinite]
        rounds = like.instance.iterations
        found.sort(key=lambda node: (-self._common(node, made_of), self.graph.scope_of(node).iterations != rounds))
        return list(map(self.graph.node, found[: LIMITS.candidates]))

    def _of_size(self, digest: Digest) -> _SameSize:
        """The nodes with as many elements of the same family."""
        key = (digest.count, digest.family)
        if key not in self._known_sizes:
            types = self.graph.arrays.types(*key)
            numbers = np.flatnonzero(np.isin(self._layouts, [*types]))
            units = np.zeros(max(types, default=0) + 1)
            for layout, dtype in types.items():
                units[layout] = unit_roundoff(element_type_of(dtype))
            self._known_sizes[key] = _SameSize(numbers, self._sums[numbers], units[self._layouts[numbers]])
        return self._known_sizes[key]

    def _common(self, node: int, made_of: frozenset[int]) -> int:
        """How many of a node's operands have one of these digests."""
        if not made_of:
            return 0
        array, digests = self.graph.columns.array, self.graph.arrays.digests
        return sum(digests.in_any_order(array[entry]) in made_of for entry in self.graph.inputs_of(node))


class _SameSize:
    """Nodes of one size: their numbers, in order, and by row their sums (of `Digest`) and unit roundoffs."""

    def __init__(self, numbers: Array, sums: Array, units: Array) -> None:
        self.numbers, self.sums, self.units = numbers, sums, units
        self.largest_unit = units.max(initial=0.0)
        self._order = np.argsort(sums[:, 1])
        self._magnitudes = sums[self._order, 1]

    def between(self, least: float, most: float) -> Array:
        """The rows with Σ|x| between two bounds, in order."""
        first, last = self._magnitudes.searchsorted(least), self._magnitudes.searchsorted(most, "right")
        return np.sort(self._order[first:last])


class _Lookup:
    """The places of words in a column, in their order."""

    def __init__(self, words: Array) -> None:
        self._order = np.argsort(words, kind="stable").astype(np.int32)
        self._words = words[self._order]

    def __getitem__(self, word: int) -> list[int]:
        key = np.uint64(word)
        start = self._words.searchsorted(key)
        if start == len(self._words) or self._words[start] != key:
            return []
        found: list[int] = self._order[start : self._words.searchsorted(key, "right")].tolist()
        return found
