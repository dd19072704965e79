"""Matching a value of one run with a value of another, independently of names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import attrs
import numpy as np

from hloexec.diffing.agreement import Allowance, agrees, could_agree, is_varied, rearranged, rounds_alike
from hloexec.diffing.bounds import PathBounds, relative_bound
from hloexec.diffing.chains import InstructionChains, path_chain, steps_from
from hloexec.diffing.digests import Digest
from hloexec.diffing.evaluation import Values
from hloexec.diffing.graph import Graph, Node
from hloexec.dtypes import element_type_of
from hloexec.numerics.error_budget import Chain
from hloexec.precision import unit_roundoff
from hloexec.values import Array

__all__ = ["Index", "Match"]

_MOST_CANDIDATES = 16
_MOST_STEPS = 32
"""A value more steps behind all that `after` has is not what comes next there; bounds on its error would take long,
and allow much."""
_MOST_EQUAL = 64


@attrs.frozen(eq=False)
class Match:
    """A value of `after` that is one of `before`."""

    node: Node
    """Of `before`."""
    is_in_order: bool
    """Whether the elements have the same row-major order; otherwise dimensions are permuted."""
    is_exact: bool
    """Whether they are the same numbers; else rounding explains the difference."""
    value: Array
    """What `before` has, as `after` arranges it."""


class Index:
    """The values of `before`, to be found by what they hold."""

    def __init__(self, graph: Graph, chains: InstructionChains, bounds: PathBounds) -> None:
        self.graph = graph
        self._path_bounds = bounds
        self.chains = chains
        """Of `before`'s instructions."""
        self._in_order: dict[tuple[int, str, int], list[Node]] = defaultdict(list)
        self._in_any_order: dict[tuple[int, str, int], list[Node]] = defaultdict(list)
        self._sizes: dict[tuple[int, str], list[Node]] = defaultdict(list)
        self._sums: dict[tuple[int, str], Array] = {}
        self.matched: set[int] = set()
        """The numbers of the nodes that `after` is known to have."""
        for node in graph.nodes:
            digest = node.digest
            self._in_order[digest.count, digest.family, digest.in_order].append(node)
            self._in_any_order[digest.count, digest.family, digest.in_any_order].append(node)
            self._sizes[digest.count, digest.family].append(node)

    def of_size(self, digest: Digest) -> list[Node]:
        """The nodes with as many elements of the same family."""
        return self._sizes.get((digest.count, digest.family), [])

    def note(self, node: Node) -> None:
        """`after` has this value, and with it all that are equal on its device."""
        digest = node.digest
        equal = self._in_order[digest.count, digest.family, digest.in_order]
        self.matched.update(entry.number for entry in equal if entry.device == node.device)

    def operands(self, ours: Node, theirs: Node, values: Values) -> list[tuple[Node, Node]] | None:
        """Pairs of the operands of a value of `after`, which holds `values`, and what they should be; None where those
        of the instruction that computed `theirs` are."""
        return None

    def find(
        self,
        value: Array,
        digest: Digest,
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
        known = self._in_order.get((digest.count, digest.family, digest.in_order), ())
        if equal := [node for node in known if node.device == like.device][:_MOST_EQUAL]:
            node = max(equal, key=lambda node: (_common(node, made_of), _likeness(node, like), -node.number))
            return Match(node, True, True, value)
        close = self._close(value, digest, chain, like, made_of, bounds, in_order=True)
        if close is not None:
            return close
        if digest.is_uniform:
            return None
        for node in self._in_any_order.get((digest.count, digest.family, digest.in_any_order), ())[:_MOST_CANDIDATES]:
            if node.device != like.device:
                continue
            if is_varied(value) or rearranged(value, node.value, None) is not None:
                return Match(node, False, True, value)
        return self._close(value, digest, chain, like, made_of, bounds, in_order=False)

    def _close(
        self,
        value: Array,
        digest: Digest,
        chain: Chain,
        like: Node,
        made_of: frozenset[int],
        bounds: Callable[[], Array] | None,
        in_order: bool,
    ) -> Match | None:
        if not chain.linear or digest.family not in ("float", "complex") or bounds is None:
            return None
        for node in self._candidates(digest, chain, like, made_of):
            # Where `after` has this one, too, it may compute it a second time, in other steps.
            if node.device != like.device or steps_from(node, self.matched, _MOST_STEPS) > _MOST_STEPS:
                continue
            other = path_chain(node, self.matched, self.chains)
            if not other.linear:
                continue
            for allowed in self.allowances(chain, bounds(), other, node):
                if in_order:
                    expected = node.value.reshape(value.shape)
                    found = expected if agrees(value, expected, allowed.of(value.shape)) else None
                else:
                    found = rearranged(value, node.value, allowed)
                if found is not None and rounds_alike(value, found, chain, other):
                    return Match(node, in_order, False, found)
        return None

    def allowances(self, chain: Chain, bounds: Array, other: Chain, node: Node) -> Iterator[Allowance]:
        """How far a value of `after`, with its chain and its bounds, may be off a node of `before`, with its `other`.

        First what its own bounds allow, twice, as if both were computed alike; then with those of the node, which
        take time. Either side's bounds count as far as the other rounds as coarsely.
        """
        least = min(relative_bound(chain), relative_bound(other))
        ours = bounds * min(1.0, least / relative_bound(chain))
        yield Allowance(2 * ours)
        counterpart = self._path_bounds.of(node, self.matched - {node.number})
        yield Allowance(ours, counterpart * min(1.0, least / relative_bound(other)))

    def _candidates(self, digest: Digest, chain: Chain, like: Node, made_of: frozenset[int]) -> list[Node]:
        """The nodes whose sums are near enough: first those computed from the same values, then those of the same
        iteration of a loop, then the nearest. In a loop that converges, many iterations are near enough.
        """
        key = (digest.count, digest.family)
        nodes = self.of_size(digest)
        if not nodes:
            return []
        sums = self._sums.get(key)
        if sums is None:
            rows = [
                (
                    node.digest.total,
                    node.digest.magnitude,
                    node.digest.squares,
                    unit_roundoff(element_type_of(node.dtype)),
                )
                for node in nodes
            ]
            sums = self._sums[key] = np.array(rows)
        units, sums = sums[:, 3], sums[:, :3]
        relative = 2 * relative_bound(chain) + np.where(units > unit_roundoff(element_type_of(like.dtype)), units, 0)
        places = np.flatnonzero(could_agree(digest, sums, relative))
        distances = np.abs(sums[places, 0] - digest.total) + np.abs(sums[places, 1] - digest.magnitude)
        order = places[np.argsort(distances, kind="stable")]
        found = [nodes[place] for place in order if nodes[place].digest.nonfinite == digest.nonfinite]
        rounds = like.instance.iterations
        found.sort(key=lambda node: (-_common(node, made_of), node.instance.iterations != rounds))
        return found[:_MOST_CANDIDATES]


def _common(node: Node, made_of: frozenset[int]) -> int:
    """How many of a node's operands have one of these digests."""
    return sum(entry.digest.in_any_order in made_of for entry in node.instance.inputs) if made_of else 0


def _likeness(node: Node, like: Node) -> int:
    """How much two nodes look like one another, by names and shapes."""
    ours, counterpart = node.instance.instruction, like.instance.instruction
    return int(
        2 * (ours.opcode == counterpart.opcode)
        + (node.value.shape == like.value.shape)
        + 2 * (ours.op_name is not None and ours.op_name == counterpart.op_name)
        + (ours.name == counterpart.name)
    )
