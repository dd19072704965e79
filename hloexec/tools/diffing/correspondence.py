"""What corresponds in two modules and their runs to the bit: parameters, results, and values of the same elements."""

from __future__ import annotations

from array import array as column
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

import attrs
import numpy as np

from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import Comparison
from hloexec.analysis.numerics.measuring import same_bits
from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.core.ir import ArrayShape, Module, Shape, flat_arrays, leaf_shapes, map_shape
from hloexec.core.structs import frozen
from hloexec.core.tree import flat
from hloexec.core.values import TOKEN, Array, Value
from hloexec.core.wording import counted, listing
from hloexec.engine.devices.topology import Topology
from hloexec.errors import InputError
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import Role, exchanges, role_of, traits_of
from hloexec.tools.diffing.findings import Pair
from hloexec.tools.diffing.graph import Columns, Graph, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.recording.arrays import Digest

if TYPE_CHECKING:
    from hloexec.tools.diffing.partitioned.tiles import Tiles
    from hloexec.tools.diffing.replaying.evaluation import Evaluator


@frozen
class Correspondence:
    """Parameters and results of two modules, leaf by leaf."""

    before: Module
    after: Module
    result_order: tuple[int, ...]
    """For each leaf of `after`'s result, which of `before`'s it is."""
    notes: tuple[str, ...]

    def inputs(self, values: Sequence[Value]) -> list[Value]:
        """`after`'s parameters out of `before`'s."""
        leaves: Iterator[Any] = iter([leaf for leaf in flat(tuple(values)) if leaf is not TOKEN])
        return [nested(shape, leaves) for shape in self.after.entry.parameter_shapes]

    def inputs_by_device(self, values: Sequence[Sequence[Value]]) -> list[list[Value]]:
        """The same on each device."""
        return [self.inputs(entry) for entry in values]

    def result(self, arrays: Sequence[Array]) -> Value:
        """`before`'s result out of arrays in the order of `after`'s."""
        places = dict(zip(self.result_order, arrays, strict=True))
        return nested(self.before.entry.result_shape, iter([places[place] for place in range(len(arrays))]))

    def tiled(self, ours: Graph, theirs: Graph, evaluator: Evaluator) -> Tiles | None:
        """The tiles of `before`'s values, where `after` has these; else None."""
        return None

    def ordered(self, outputs: Sequence[Node]) -> list[Node]:
        """`before`'s arrays of the result, in the order of `after`'s."""
        return [outputs[place] for place in self.result_order]


def unseen_exchanges(modules: Sequence[Module], topology: Topology, inputs: Sequence[Sequence[Value]]) -> list[str]:
    """A note where modules on shards exchange values between devices that all had the same inputs."""
    is_equal = topology.count > 1 and len(inputs) == 1
    if not is_equal or any(map(_takes_wholes, modules)):
        return []
    if not any(exchanges(instruction) for module in modules for part in module for instruction in part):
        return []
    return [
        f"all {topology.count} devices had the same inputs, so that values exchanged with the wrong devices may not "
        "show; give each its own (--different-inputs)"
    ]


def _takes_wholes(module: Module) -> bool:
    """Whether a module has yet to be partitioned: XLA then appends `_spmd` to the name of its entry. One that exchanges
    values otherwise than in manual regions is on shards, though it may say how its parameters are divided."""
    instructions = [instruction for part in module for instruction in part]
    is_annotated = any(instruction.sharding is not None for instruction in instructions)
    calls = [instruction for instruction in instructions if role_of(instruction) is Role.CUSTOM_CALL]
    from hloexec.engine.devices.manual_regions import is_boundary

    is_on_shards = any(map(exchanges, instructions)) and not any(map(is_boundary, calls))
    return is_annotated and "_spmd" not in module.entry_name and not is_on_shards


def correspondence_of(before: Module, after: Module, topologies: Sequence[Topology]) -> Correspondence:
    """Pair the parameters and the results of two modules.

    Leaves are paired in order, however they are nested in tuples. Where the results' shapes are the same in
    another order, and each shape occurs once, they are paired by shape.

    Raises InputError where leaves are left over, or differ in element type or dimensions, or the modules are for
    different numbers of devices.
    """
    if topologies[0].count != topologies[1].count:
        raise InputError(
            f"the modules are for different numbers of devices: {before.name} for {topologies[0]}, {after.name} for "
            f"{topologies[1]}"
        )
    notes = []
    ours, counterpart = (flat_arrays(*module.entry.parameter_shapes) for module in (after, before))
    _require_same(ours, counterpart, after, before, "parameter")
    if _nesting(after.entry.parameter_shapes) != _nesting(before.entry.parameter_shapes):
        notes.append(
            f"the parameters nest otherwise: {len(before.entry.parameters)} of {before.name} are "
            f"{len(after.entry.parameters)} of {after.name}, paired array by array"
        )
    ours, counterpart = (flat_arrays(module.entry.result_shape) for module in (after, before))
    is_permuted = len(ours) == len(counterpart) and not all(map(_alike, ours, counterpart))
    order = _by_shape(ours, counterpart) if is_permuted else None
    if order is not None:
        notes.append("the results come in another order; they are paired by their shapes")
    else:
        order = tuple(range(len(ours)))
        _require_same(ours, counterpart, after, before, "result")
        if _nesting([after.entry.result_shape]) != _nesting([before.entry.result_shape]):
            notes.append("the results nest otherwise; they are paired array by array")
    return Correspondence(before, after, order, tuple(notes))


def _nesting(shapes: Sequence[Shape]) -> list[list[tuple[int, ...]]]:
    return [[index for index, _ in leaf_shapes(shape)] for shape in shapes]


def _alike(ours: Shape, counterpart: Shape) -> bool:
    return (
        isinstance(ours, ArrayShape)
        and isinstance(counterpart, ArrayShape)
        and ours.element_type is counterpart.element_type
        and ours.dimensions == counterpart.dimensions
    )


def _require_same(ours: Sequence[Shape], theirs: Sequence[Shape], after: Module, before: Module, subject: str) -> None:
    if len(ours) != len(theirs):
        raise InputError(
            f"the modules do not correspond: {before.name} has {_arrays(theirs, subject)}, "
            f"{after.name} {_arrays(ours, subject)}"
        )
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if not _alike(one, other):
            raise InputError(
                f"the modules do not correspond: {subject} {number} (counting arrays) is {other} in {before.name}, "
                f"{one} in {after.name}"
            )


def _arrays(shapes: Sequence[Shape], subject: str) -> str:
    return f"{counted(len(shapes), subject)} ({listing(shapes, 6)})"


def _by_shape(ours: Sequence[Shape], counterpart: Sequence[Shape]) -> tuple[int, ...] | None:
    """Which of the other leaves each one is, where shapes tell; None where they do not."""
    order = []
    for shape in ours:
        places = [place for place, other in enumerate(counterpart) if _alike(shape, other)]
        if len(places) != 1 or places[0] in order:
            return None
        order.append(places[0])
    return tuple(order)


def nested(shape: Shape, leaves: Iterator[Any]) -> Value:
    """The value of a shape whose arrays are the next of `leaves`."""
    return map_shape(shape, lambda leaf: next(leaves) if leaf.is_array else TOKEN)


def result_arrays(graph: Graph) -> list[list[Array]]:
    """The arrays of the results of each device."""
    return [[node.value for node in graph.outputs[device]] for device in sorted(graph.outputs)]


def compared(
    ours: Sequence[Sequence[Array]],
    theirs: Sequence[Sequence[Array]],
    pairing: Correspondence,
    policy: NumericsPolicy,
    spreads: dict[str, Spread] | None,
) -> Comparison:
    """The results of each device, in the order of `after`'s, compared."""
    actual, expected = (tuple(map(pairing.result, side)) for side in (ours, theirs))
    if len(actual) == 1:
        return compare(
            actual[0], expected[0], module=pairing.before, numerics=policy, spreads=spreads, same_choices=True
        )
    # The module itself may be silent about how many devices there are.
    module = attrs.evolve(pairing.before, replica_count=len(actual), num_partitions=1)
    return compare(actual, expected, module=module, numerics=policy, spreads=spreads, same_choices=True)


def have_same_bits(ours: Graph, theirs: Graph) -> bool:
    """Whether the results are the same bits."""
    return all(
        bool(same_bits(one.value, other.value).all())
        for device in ours.outputs
        for one, other in zip(ours.outputs[device], theirs.outputs[device], strict=True)
    )


_PICTURE_ORDER = "█▓·?×"
_PICTURE_WIDTH = 100


class EqualValues:
    """The values of `before`, to be found by their elements."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._in_order = Lookup(graph.arrays.digests.columns()[0][np.array(graph.columns.array)])
        self._chosen: dict[object, Node] = {}
        self._known_equal: dict[object, Sequence[int]] = {}
        self._last: tuple[object, Sequence[int]] = None, ()
        self._known_likeness: dict[tuple[int, int], int] = {}

    def equal(self, digest: Digest) -> Iterator[Node]:
        """The nodes with the same elements."""
        return self._of_kind(digest, self._in_order[digest.in_order])

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

    def likeliest_of(self, digest: Digest, like: Node, made_of: frozenset[int]) -> Node | None:
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

    def _common(self, node: int, made_of: frozenset[int]) -> int:
        """How many of a node's operands have one of these digests."""
        if not made_of:
            return 0
        array, digests = self.graph.columns.array, self.graph.arrays.digests
        return sum(digests.in_any_order(array[entry]) in made_of for entry in self.graph.inputs_of(node))


class Lookup:
    """The places of words in a column, in their order."""

    def __init__(self, words: Array) -> None:
        self._order = np.argsort(words, kind="stable").astype(np.int32)
        self._words = words[self._order]

    def __getitem__(self, word: int) -> list[int]:
        key = np.uint64(word)
        start = self._words.searchsorted(key)
        if start == len(self._words) or self._words[start] != key:
            return []
        if start + 1 == len(self._words) or self._words[start + 1] != key:
            return [int(self._order[start])]
        found: list[int] = self._order[start : self._words.searchsorted(key, "right")].tolist()
        return found


def exact_matches(ours: Graph, before: EqualValues, is_over: Callable[[], bool]) -> list[int] | None:
    """For each value of `after`, from the first on, the number of the one of `before` that has the same elements in
    their order, as a replay would find it; None where one has none. Of what is not reached before `is_over`, or Ctrl-C,
    there is none in the list."""
    columns, digests = ours.columns, ours.arrays.digests
    found: list[int] = []
    try:
        for number in range(len(ours.instances)):
            if is_over():
                break
            made_of = frozenset([digests.in_any_order(columns.array[node]) for node in columns.inputs(number)])
            for result in columns.results(number):
                node = ours.node(result)
                match = before.likeliest_of(node.digest, node, made_of)
                if match is None:
                    return None
                found.append(match.number)
    except KeyboardInterrupt:
        pass
    return found


class Pairs(Sequence[Pair]):
    """Pairs of nodes, made when they are asked for; the runs' arrays need not be kept for them."""

    def __init__(self, ours: Columns, theirs: Columns, pairs: Array) -> None:
        self._ours = ours
        self._theirs = theirs
        self._pairs = pairs
        """Rows of the numbers of both nodes, whether they hold the same numbers, and whether in one order."""

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, place: int) -> Pair: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Pair, ...]: ...
    def __getitem__(self, place: int | slice) -> Pair | tuple[Pair, ...]:
        if isinstance(place, slice):
            return tuple(self[number] for number in range(len(self))[place])
        ours, theirs, is_exact, is_in_order = map(int, self._pairs[place])
        return Pair(self._ours.place(ours), self._theirs.place(theirs), bool(is_exact), bool(is_in_order))


def tells_something(node: Node) -> bool:
    """Whether it is not a source, a copy or a repetition, nor one number often."""
    instance = node.instance
    traits = traits_of(instance.instruction)
    before = instance.inputs[0].shape if instance.inputs else None
    is_same = traits.keeps_order and not traits.converts and node.shape == before
    is_shown = traits.moves == (0,) and bool(traits.aliases or is_same)
    is_repeated = traits.repeats and len(instance.operands) == 1
    is_known = instance.is_source or is_shown or is_repeated
    return not is_known and not node.digest.is_uniform and node.digest.count > 1


def drawn(characters: Sequence[str]) -> str:
    """A character per value, or for the worst of several where there are more than fit."""
    if len(characters) <= _PICTURE_WIDTH:
        return "".join(characters)
    edges = [len(characters) * place // _PICTURE_WIDTH for place in range(_PICTURE_WIDTH + 1)]
    return "".join(max(characters[start:stop], key=_PICTURE_ORDER.index) for start, stop in pairwise(edges))
