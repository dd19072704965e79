"""Finding the value of one run that a value of another run is, whatever it is called there."""

from __future__ import annotations

import re
from collections import defaultdict

import attrs
import numpy as np

from hloexec.diffing.agreement import agrees, could_agree, is_varied, lesser, local_tolerance, rearranged, rounds_alike
from hloexec.diffing.digests import Digest
from hloexec.diffing.graph import Graph, Instance, Node
from hloexec.dtypes import ElementType, element_type_of
from hloexec.ir import ArrayShape, Computation, Instruction, Module, leaf_shapes
from hloexec.numerics.error_budget import Chain, chains_of, own_chain, summing, worst
from hloexec.numerics.tolerances import Tolerance
from hloexec.ops.attributes import computation_names
from hloexec.ops.policy import NumericsPolicy, numerics_policy
from hloexec.precision import unit_roundoff
from hloexec.values import Array

__all__ = ["NO_CHAIN", "Index", "InstructionChains", "Match", "path_chain"]

NO_CHAIN = Chain()
_MOST_CANDIDATES = 16
_MOST_EQUAL = 64
_ROUND = re.compile(r"\[(\d+)\]")
_MOST_STEPS = 500
_COARSE = 2.0**-12
"""The unit roundoff from which on a type counts as narrow."""


@attrs.frozen(eq=False)
class Match:
    """A value of `after` that is one of `before`."""

    node: Node
    """Of `before`."""
    is_in_order: bool
    """Whether the elements stand in one order, row by row; else dimensions are permuted."""
    is_exact: bool
    """Whether they are the same numbers; else rounding explains the difference."""
    value: Array
    """What `before` has, as `after` arranges it."""


class InstructionChains:
    """How much each instruction of a module rounds by itself."""

    def __init__(self, module: Module, policy: str | NumericsPolicy) -> None:
        self._known: dict[tuple[str, str], Chain] = {}
        self._called = chains_of(module, policy)
        self._module = module
        self._bits = numerics_policy(policy).contraction_operand_mantissa_bits

    def of(self, node: Node) -> Chain:
        """What the instruction that gave a node adds."""
        instance = node.instance
        found = self._known.get(instance.static)
        if found is None:
            found = self._known[instance.static] = self._own(instance.instruction, instance)
        return found

    def _own(self, instruction: Instruction, instance: Instance) -> Chain:
        computation = instance.computation
        shapes = [operand.shape for operand in computation.operands_of(instruction)]
        if instruction.opcode == "convert":
            source, result = shapes[0], instruction.shape
            types = [getattr(shape, "element_type", None) for shape in (source, result)]
            if all(kind is not None and kind.is_floating for kind in types) and unit_roundoff(
                types[1]
            ) <= unit_roundoff(types[0]):
                return NO_CHAIN
        own = own_chain(instruction, shapes, self._bits)
        chain = NO_CHAIN
        for name in computation_names(instruction.attributes):
            called = worst(self._called[name].values())
            if own.terms and called.linear >= _COARSE:
                # A reducer in a narrow type may round every partial sum, or the last one alone: both are meant.
                called = summing(own.terms, _coarsest(self._module.by_name[name]))
            chain = chain.then(called)
        return chain.then(own)


def _coarsest(computation: Computation) -> float:
    """The coarsest unit roundoff of what a computation computes."""
    shapes = [leaf for instruction in computation for _, leaf in leaf_shapes(instruction.shape)]
    types = [leaf.element_type for leaf in shapes if isinstance(leaf, ArrayShape)]
    return max((unit_roundoff(entry) for entry in types if entry.is_floating), default=0.0)


class Index:
    """The values of `before`, to be found by what they hold."""

    def __init__(self, graph: Graph, chains: InstructionChains) -> None:
        self.graph = graph
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

    def find(
        self, value: Array, digest: Digest, chain: Chain, like: Node, made_of: frozenset[int] = frozenset()
    ) -> Match | None:
        """The value that another one is, which `chain` rounded on the way from values that both sides have.

        It is looked for on the device of `like`; of several, those are preferred that were computed
        from values with the digests `made_of`, and then one of its dimensions and names.
        """
        known = self._in_order.get((digest.count, digest.family, digest.in_order), ())
        equal = [node for node in known if node.device == like.device][:_MOST_EQUAL]
        if equal:
            node = max(equal, key=lambda node: (_common(node, made_of), _likeness(node, like), -node.number))
            return Match(node, True, True, value)
        close = self._close(value, digest, chain, like, made_of, in_order=True)
        if close is not None:
            return close
        if digest.is_uniform:
            return None
        for node in self._in_any_order.get((digest.count, digest.family, digest.in_any_order), ())[:_MOST_CANDIDATES]:
            if node.device != like.device:
                continue
            if is_varied(value) or rearranged(value, node.value, Tolerance()) is not None:
                return Match(node, False, True, value)
        return self._close(value, digest, chain, like, made_of, in_order=False)

    def _close(
        self, value: Array, digest: Digest, chain: Chain, like: Node, made_of: frozenset[int], in_order: bool
    ) -> Match | None:
        if not chain.linear or digest.family not in ("float", "complex"):
            return None
        for node in self._candidates(value, digest, chain, like, made_of):
            other = self.local_chain(node)
            its = lesser(chain, other)
            if not its.linear or node.device != like.device:
                continue
            tolerance = local_tolerance(*_types(value, node.value), digest.root_mean_square, its)
            if in_order:
                expected = node.value.reshape(value.shape)
                if agrees(value, expected, tolerance) and rounds_alike(value, expected, chain, other):
                    return Match(node, True, False, expected)
            else:
                found = rearranged(value, node.value, tolerance)
                if found is not None and rounds_alike(value, found, chain, other):
                    return Match(node, False, False, found)
        return None

    def _candidates(
        self, value: Array, digest: Digest, chain: Chain, like: Node, made_of: frozenset[int]
    ) -> list[Node]:
        """The nodes whose sums are near enough: first those computed from the same values, then those of the same
        iteration of a loop, then the nearest. In a loop that converges, many iterations are near enough.
        """
        key = (digest.count, digest.family)
        nodes = self._sizes.get(key)
        if not nodes:
            return []
        sums = self._sums.get(key)
        if sums is None:
            rows = [(node.digest.total, node.digest.magnitude, node.digest.squares) for node in nodes]
            sums = self._sums[key] = np.array(rows)
        entry = element_type_of(value.dtype)
        tolerance = local_tolerance(entry, entry, digest.root_mean_square, chain)
        places = np.flatnonzero(could_agree(digest, sums, tolerance))
        distances = np.abs(sums[places, 0] - digest.total) + np.abs(sums[places, 1] - digest.magnitude)
        order = places[np.argsort(distances, kind="stable")]
        found = [nodes[place] for place in order if nodes[place].digest.strange == digest.strange]
        rounds = rounds_of(like)
        found.sort(key=lambda node: (-_common(node, made_of), rounds_of(node) != rounds))
        return found[:_MOST_CANDIDATES]

    def local_chain(self, node: Node) -> Chain:
        """What has rounded on the way to a value from others that `after` has.

        Where `after` has this one, too, it may compute it a second time, in other steps.
        """
        return path_chain(node, self.matched, self.chains)


def rounds_of(node: Node) -> tuple[str, ...]:
    """In which iterations of the loops around it a value was computed."""
    return tuple(_ROUND.findall(node.instance.name))


def path_chain(node: Node, ends: set[int], chains: InstructionChains) -> Chain:
    """The worst chain from nodes in `ends` to a node."""
    found: dict[int, Chain] = {}
    stack = [node]
    while stack:
        current = stack[-1]
        if current.number in found:
            stack.pop()
            continue
        inputs = [entry for entry in current.instance.inputs if entry.number not in ends]
        missing = [entry for entry in inputs if entry.number not in found]
        if missing and len(found) + len(stack) < _MOST_STEPS:
            stack.extend(missing)
            continue
        stack.pop()
        found[current.number] = worst(found.get(entry.number, NO_CHAIN) for entry in inputs).then(chains.of(current))
    return found[node.number]


def _types(first: Array, second: Array) -> tuple[ElementType, ElementType]:
    return element_type_of(first.dtype), element_type_of(second.dtype)


def _common(node: Node, made_of: frozenset[int]) -> int:
    """How many of a node's operands have one of these digests."""
    return sum(entry.digest.in_any_order in made_of for entry in node.instance.inputs) if made_of else 0


def _likeness(node: Node, like: Node) -> int:
    """How much two nodes look like one another, by names and shapes."""
    mine, its = node.instance.instruction, like.instance.instruction
    names = [entry.metadata.op_name if entry.metadata else None for entry in (mine, its)]
    return int(
        2 * (mine.opcode == its.opcode)
        + (node.value.shape == like.value.shape)
        + 2 * (names[0] is not None and names[0] == names[1])
        + (mine.name == its.name)
    )
