"""The correspondence between a module and what SPMD partitioning made of it: wholes, and the shards of them.

Each tile counts as computed by the instruction that computed the whole value, from tiles of its operands as far as
these suffice. A part of a sum is what that instruction gives for a part of what it adds up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product, zip_longest
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.core.ir import (
    ArrayShape,
    Computation,
    Instruction,
    Module,
    NamedSharding,
    Shape,
    TileSharding,
    flat_arrays,
    flat_shapes,
)
from hloexec.core.structs import define, frozen
from hloexec.core.tree import flat
from hloexec.core.values import TOKEN, Array, Value
from hloexec.engine.devices.topology import Topology
from hloexec.engine.sharding import leaf_shardings, parameter_sharding, result_shardings
from hloexec.errors import InputError
from hloexec.language.text.printer import sharding as sharding_text
from hloexec.tools.diffing.correspondence import Correspondence, nested
from hloexec.tools.diffing.graph import Graph, Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.matching import is_near
from hloexec.tools.diffing.partitioned.layouts import (
    Dependence,
    Division,
    Layout,
    are_independent,
    divisions_of,
    is_whole,
    layout_of,
    layouts,
    masked,
    part_of,
    tile_of,
    tile_shape,
)
from hloexec.tools.diffing.recording.arrays import Digest, digest_of
from hloexec.tools.diffing.replaying.evaluation import Evaluator

Key: TypeAlias = tuple[Layout, tuple[tuple[int, int, Division], ...]]
"""Which part of a value it is: its tile and, of a part of a sum, along which axes of which operands it is a part."""


@define(eq=False, slots=False)
class TileInstance(Instance):
    """An instruction as it would compute a tile of its result, or a part of a sum. Its computation has nothing but the
    operands and this instruction, in the shapes of the tiles."""

    key: Key = ((), ())
    stands_for: str = ""
    """Of a number that `before` has nowhere, the path of what `after` has in its place."""

    @property
    def static(self) -> tuple[str, str]:
        return self.computation.name, f"{self.instruction.name} {self.stands_for or hash(self.key)}"


class Tiles:
    """The tiles of the values of a graph."""

    def __init__(self, graph: Graph, evaluator: Evaluator, divisions: Sequence[Division], counts: set[int]) -> None:
        self._graph = graph
        self._evaluator = evaluator
        self._divisions = divisions
        self._counts = counts
        """Numbers of elements of which `after` has values."""
        self.wholes: dict[int, tuple[Node, Key]] = {}
        """By the number of a tile's node, the whole value, and which part it is."""
        self.parts: dict[int, dict[Key, Node]] = defaultdict(dict)
        """By the number of a whole value's node, its parts."""
        self.peers: dict[tuple[str, int], dict[int, Node]] = defaultdict(dict)
        """By the path of an instruction and the leaf, the whole value on each device."""
        self._dependences: dict[tuple[str, str], Dependence] = {}
        self._layouts: dict[tuple[int, ...], list[Layout]] = {}
        self._arrays: dict[tuple[int, str], tuple[Array, Digest]] = {}
        self._computations: dict[object, tuple[Instruction, Computation]] = {}
        self._sums: dict[object, Array | None] = {}
        self._sum_keys: dict[object, list[Key]] = {}

    def build(self) -> None:
        """Add all tiles that `after` may have."""
        for instance in list(self._graph.instances):
            for node in instance.results:
                self.peers[instance.name, node.leaf][node.device] = node
                for layout in self._layouts_of(node):
                    self.tile(node, layout)
            if len(instance.results) == 1 and not instance.others:
                for key in self._sums_of(instance):
                    self._add_sum(instance, key)

    def spreads_of(self, wholes: Mapping[str, Spread]) -> dict[str, Spread]:
        """What rounding does to the results, which are tiles, out of what it does to whole ones; by labels as those of
        results of several devices."""
        devices = self._graph.outputs
        result = self._graph.module.entry.result_shape
        spreads = {}
        for device, nodes in devices.items():
            names = (name for name, _ in leaves_of(nested(result, iter([node.value for node in nodes])), "result"))
            for name, node in zip(names, nodes, strict=True):
                label = str(device) if name == "value" else f"{device}.{name}"
                whole, (layout, _) = self.whole_of(node)
                if label in wholes:
                    spreads[label] = _part_of(wholes[label], tile_of(whole.shape, layout, device), whole.shape)
        return spreads

    def whole_of(self, node: Node) -> tuple[Node, Key]:
        """The whole value that a node is a part of, and which part."""
        return self.wholes.get(node.number, (node, ((), ())))

    def part(self, whole: Node, key: Key, device: int) -> Node | None:
        """The part of a value on a device."""
        peer = self.peers[whole.instance.name, whole.leaf].get(device)
        if peer is None or key == ((), ()):
            return peer
        return self.parts[peer.number].get(key)

    def tile(self, whole: Node, layout: Layout) -> Node:
        """A tile on its device, made if need be; the whole value where it is not divided."""
        if is_whole(layout):
            return whole
        key: Key = (layout, ())
        cached = self.parts[whole.number].get(key)
        if cached is not None:
            return cached
        place = tile_of(whole.shape, layout, whole.device)
        value, digest = self._array(whole, place)
        operands = self._operands(whole.instance, layout, {})
        return self._add(whole, key, operands, value, digest, place)

    def _add(
        self,
        whole: Node,
        key: Key,
        operands: tuple[tuple[Node, ...], ...],
        value: Array,
        digest: Digest,
        place: tuple[slice, ...],
    ) -> Node:
        graph, source = self._graph, whole.instance
        is_cut = operands == source.operands
        instruction, computation = source.instruction, source.computation
        if not is_cut:
            instruction, computation = self._in_tiles(source, key, operands, value)
        made = TileInstance(
            len(graph.instances),
            instruction,
            computation,
            source.scope,
            source.device,
            operands,
            key=key,
            cut=place if is_cut else None,
        )
        # What exchanges values gives a tile from whole operands.
        made.others = source.others
        node = graph.add(made, value, digest)
        self.parts[whole.number][key] = node
        self.wholes[node.number] = (whole, key)
        return node

    def add_number(self, like: Node, value: Array, name: str) -> Node:
        """A number that `before` has nowhere, but that something on the way to one of its values should be; those of
        one name count as what one instruction gives on several devices."""
        source = like.instance
        made = TileInstance(
            -1,  # None of them comes after another.
            source.instruction,
            source.computation,
            source.scope,
            like.device,
            (),
            key=((), ()),
            stands_for=name,
        )
        return self._graph.add(made, value, digest_of(value))

    def _in_tiles(
        self, source: Instance, key: Key, operands: Sequence[Sequence[Node]], value: Array
    ) -> tuple[Instruction, Computation]:
        """An instruction in the shapes of tiles, and a computation that has only this one and its operands."""
        computation_key = (source.static, key)
        if computation_key not in self._computations:
            shape = source.instruction.shape
            assert isinstance(shape, ArrayShape)
            own = attrs.evolve(source.instruction, shape=ArrayShape(shape.element_type, value.shape))
            given = []
            for name, part in zip(own.operands, operands, strict=True):
                operand = source.computation.by_name[name]
                if isinstance(operand.shape, ArrayShape) and len(part) == 1:
                    operand = attrs.evolve(operand, shape=ArrayShape(operand.shape.element_type, part[0].shape))
                given.append(operand)
            instructions = (*{operand.name: operand for operand in given}.values(), own)
            self._computations[computation_key] = (
                own,
                Computation(name=source.computation.name, instructions=instructions, root_name=own.name),
            )
        return self._computations[computation_key]

    def _array(self, whole: Node, place: tuple[slice, ...]) -> tuple[Array, Digest]:
        key = whole.array, str(place)
        if key not in self._arrays:
            value = part_of(whole.value, place)
            self._arrays[key] = value, digest_of(value)
        return self._arrays[key]

    def _layouts_of(self, node: Node) -> list[Layout]:
        if node.shape not in self._layouts:
            self._layouts[node.shape] = layouts(node.shape, self._divisions, self._counts)
        return self._layouts[node.shape]

    def _dependence(self, instance: Instance) -> Dependence:
        if instance.static not in self._dependences:
            self._dependences[instance.static] = Dependence(instance, self._evaluator)
        return self._dependences[instance.static]

    def _operands(
        self, instance: Instance, layout: Layout, summed: Mapping[tuple[int, int], Division]
    ) -> tuple[tuple[Node, ...], ...]:
        """The tiles of operands that suffice for a tile of the result, or for a part of a sum over some of their axes;
        whole operands where `after` has none of that size."""
        if not instance.operands or instance.others or len(instance.results) != 1:
            return instance.operands
        operands: list[tuple[Node, ...]] = []
        for place, part in enumerate(instance.operands):
            operand_layout = self._operand_layout(instance, layout, place, summed) if len(part) == 1 else None
            node = part[0] if part else None
            if node is not None and operand_layout is not None and not is_whole(operand_layout):
                operands.append((self._operand_tile(node, operand_layout),))
            else:
                operands.append(part)
        return tuple(operands)

    def _operand_tile(self, whole: Node, layout: Layout) -> Node:
        """A tile of an operand; one that `after` does not have is cut from the whole."""
        cached = self.parts[whole.number].get((layout, ()))
        if cached is not None:
            return cached
        place = tile_of(whole.shape, layout, whole.device)
        value, digest = self._array(whole, place)
        return self._add(whole, (layout, ()), whole.instance.operands, value, digest, place)

    def _operand_layout(
        self, instance: Instance, layout: Layout, place: int, summed: Mapping[tuple[int, int], Division]
    ) -> Layout:
        dependence = self._dependence(instance)
        divided = [(axis, division) for axis, division in enumerate(layout) if division is not None]
        divisions: list[Division | None] = []
        for axis in range(len(dependence.shape_of(place) or ())):
            fitting = (division for of, division in divided if dependence.suffices(place, axis, of, division.parts))
            divisions.append(summed.get((place, axis)) or next(fitting, None))
        return tuple(divisions)

    def _sums_of(self, instance: Instance) -> list[Key]:
        """The parts of sums that `after` may have of an instruction's result; on all devices the same."""
        if not instance.operands or len(instance.operands[0]) != 1 or instance.is_movement:
            return []
        operand = instance.operands[0][0]
        layouts = tuple(layout for layout, summed in self.parts[operand.number] if not summed)
        sum_key = (instance.static, layouts)
        if sum_key not in self._sum_keys:
            self._sum_keys[sum_key] = [*islice(self._possible_sums(instance, layouts), LIMITS.partial_sums)]
        return self._sum_keys[sum_key]

    def _possible_sums(self, instance: Instance, layouts: Sequence[Layout]) -> Iterator[Key]:
        """`layouts` are the layouts of the first operand's tiles."""
        node = instance.results[0]
        dependence = self._dependence(instance)
        results: list[Layout] = [(None,) * len(node.shape), *self._layouts_of(node)]
        shapes = ((layout, tile_shape(node.shape, layout)) for layout in results)
        fitting = [layout for layout, shape in shapes if shape is not None and math.prod(shape) in self._counts]
        for operand_layout, layout in product(layouts, fitting):
            key = self._sum_key(dependence, operand_layout, layout)
            if key is not None:
                yield layout, key

    def _sum_key(
        self, dependence: Dependence, given: Layout, layout: Layout
    ) -> tuple[tuple[int, int, Division], ...] | None:
        """Along which axes a tile of the first operand is a part of a sum that gives a tile of the result; None where
        it is none, or another tile is needed."""
        axes = []
        for axis, division in enumerate(given):
            of = next((of for of, size in enumerate(layout) if self._fits(dependence, axis, of, division, size)), None)
            if of is not None and layout[of] != division:
                return None
            if of is None and division is not None:
                if dependence.sum_over(0, axis, division.parts) is None:
                    return None
                axes.append((0, axis, division))
        is_whole_sum = not axes or not are_independent([*filter(None, layout), *(entry for *_, entry in axes)])
        return None if is_whole_sum else tuple(axes)

    @staticmethod
    def _fits(dependence: Dependence, axis: int, of: int, ours: Division | None, theirs: Division | None) -> bool:
        """Whether an axis of the first operand and one of the result, one of which is divided, are the same."""
        entry = ours or theirs
        return entry is not None and dependence.suffices(0, axis, of, entry.parts)

    def _add_sum(self, instance: Instance, key: Key) -> None:
        dependence = self._dependence(instance)
        layout, axes = key
        summed = {(operand, axis): division for operand, axis, division in axes}
        for operand, axis, division in axes:
            for other in dependence.partner(operand, axis, division.parts):
                summed[other] = division
        operands = self._operands(instance, layout, summed)
        value = self._sum(instance, key)
        if value is not None:
            node = instance.results[0]
            tile = part_of(value, tile_of(node.shape, layout, node.device))
            self._add(node, key, operands, tile, digest_of(tile), ())

    def _sum(self, instance: Instance, key: Key) -> Array | None:
        """A part of a sum for the whole result."""
        axes = key[1]
        operand_nodes = [node for part in instance.operands for node in part]
        places = tuple(division.places[instance.device] for *_, division in axes)
        sum_key = (
            instance.static,
            tuple(node.array for node in operand_nodes),
            tuple((o, a, d.parts) for o, a, d in axes),
            places,
        )
        if sum_key not in self._sums:
            dependence = self._dependence(instance)
            arrays = [node.value for node in operand_nodes]
            for operand, axis, division in axes:
                way = dependence.sum_over(operand, axis, division.parts)
                layout = tuple(division if position == axis else None for position in range(arrays[operand].ndim))
                assert way is not None
                arrays[operand] = masked(arrays[operand], tile_of(arrays[operand].shape, layout, instance.device), way)
            self._sums[sum_key] = dependence.evaluate(arrays)
        return self._sums[sum_key]


def _part_of(spread: Spread, place: tuple[slice, ...], shape: tuple[int, ...]) -> Spread:
    """The part of a spread for a tile of a whole array."""
    if not place:
        return spread
    means = spread.means
    if means is None:
        return attrs.evolve(spread, scales=np.ascontiguousarray(spread.scales[place]))
    places = np.arange(math.prod(shape)).reshape(shape)[place].reshape(-1)
    return attrs.evolve(
        spread, scales=np.ascontiguousarray(spread.scales[place]), means=lambda flat: means(places[flat])
    )


_Sharding = TileSharding | NamedSharding | None


@frozen
class Partitioning(Correspondence):
    """Whole parameters and results of `before`, and how their shards lie on `after`'s devices."""

    topology: Topology
    divisions: tuple[Division, ...]
    parameters: tuple[Layout, ...]
    results: tuple[tuple[Layout, ...], ...]
    """For each leaf the layouts that it may have; several where nothing says which."""

    def inputs_by_device(self, values: Sequence[Sequence[Value]]) -> list[list[Value]]:
        """`after`'s parameters on each device, out of `before`'s."""
        if len(values) > 1:
            raise InputError(
                f"inputs must be whole arrays, one list for all devices, but {len(values)} lists of values were given"
            )
        wholes = [leaf for leaf in flat(tuple(values[0])) if leaf is not TOKEN]
        shards: dict[Any, Array] = {}
        inputs = []
        for device in range(self.topology.count):
            leaves = []
            for number, (whole, layout) in enumerate(zip(wholes, self.parameters, strict=True)):
                if not is_whole(layout):
                    place = tile_of(whole.shape, layout, device)
                    # Devices that have the same shard share it.
                    whole = shards.setdefault((number, str(place)), np.ascontiguousarray(whole[place]))
                leaves.append(whole)
            rest: Iterator[Any] = iter(leaves)
            inputs.append([nested(shape, rest) for shape in self.after.entry.parameter_shapes])
        return inputs

    def tiled(self, ours: Graph, theirs: Graph, evaluator: Evaluator) -> Tiles:
        """The tiles of `before`'s values, added to its graph, whose results then are the shards."""
        counts = {node.digest.count for node in ours.nodes}
        tiles = Tiles(theirs, evaluator, self.divisions, counts)
        tiles.build()
        for leaf, candidates in enumerate(self.results):
            layout = candidates[0]
            if len(candidates) > 1:
                layout = max(candidates, key=lambda layout: _count_right(ours, theirs, leaf, layout))
            for nodes in theirs.outputs.values():
                nodes[leaf] = tiles.tile(nodes[leaf], layout)
        return tiles


def _count_right(ours: Graph, theirs: Graph, leaf: int, layout: Layout) -> int:
    """How many devices have nearly what they should if a result is divided so."""
    nodes = [(device, ours.outputs[device][leaf], theirs.outputs[device][leaf]) for device in ours.outputs]
    return sum(is_near(one.value, other.value[tile_of(other.shape, layout, device)]) for device, one, other in nodes)


def partitioning_of(before: Module, after: Module, topologies: Sequence[Topology]) -> Partitioning | None:
    """How `after` divides the arrays of `before`; None where they differ in more than that, or not at all.

    Raises InputError if a parameter or a result of `after` is no shard of that of `before`.
    """
    pairs = [_pairs([before.entry.result_shape], [after.entry.result_shape])]
    pairs.append(_pairs(before.entry.parameter_shapes, after.entry.parameter_shapes))
    topology = topologies[1]
    has_shards = topology.partitions > 1 and topologies[0].count in (1, topology.count)
    if not has_shards or None in pairs or all(one == other for each in pairs for one, other in each or ()):
        return None
    divisions = divisions_of(before, after, topology)
    if not divisions:
        return None
    finding = _Finding(before, after, topology, divisions)
    own = zip(_shardings_of(before), _shardings_of(after), strict=True)
    parameters = [
        finding.of("parameter", number, *pair, one or other, is_only=True)[0]
        for number, (pair, (one, other)) in enumerate(zip(pairs[1] or (), own, strict=True))
    ]
    results = [
        finding.of("result", number, *pair, sharding)
        for number, (pair, sharding) in enumerate(zip(pairs[0] or (), _of_results(before), strict=True))
    ]
    note = (
        f"after is partitioned over {topology.partitions} devices, and before is not: its arrays, whole or cut into "
        "shards by their shardings, are compared with those of each device"
    )
    order = tuple(range(len(results)))
    return Partitioning(before, after, order, (note,), topology, tuple(divisions), tuple(parameters), tuple(results))


@frozen
class _Finding:
    """What is known while layouts are looked for."""

    before: Module
    after: Module
    topology: Topology
    divisions: Sequence[Division]

    def of(
        self,
        subject: str,
        number: int,
        whole: ArrayShape,
        shard: ArrayShape,
        sharding: _Sharding,
        is_only: bool = False,
    ) -> tuple[Layout, ...]:
        """The layouts in which an array has such shards: that of its sharding or, without one, all that are possible;
        InputError where there is none, or not one only."""
        stated = None if sharding is None else layout_of(sharding, whole.rank, self.topology)
        if sharding is not None and stated is not None:
            expected = tile_shape(whole.dimensions, stated)
            layouts_of_whole = [stated] if expected == shard.dimensions else []
            why = f"not divided evenly by {sharding_text(sharding)}"
            if expected is not None:
                why = f"{ArrayShape(whole.element_type, expected)} on each device by {sharding_text(sharding)}"
        elif shard.dimensions == whole.dimensions:
            return ((None,) * whole.rank,)
        else:
            possible = layouts(whole.dimensions, self.divisions, {math.prod(shard.dimensions)})
            layouts_of_whole = [
                layout for layout in possible if tile_shape(whole.dimensions, layout) == shard.dimensions
            ]
            why = "without a sharding that says how it is divided"
        if not layouts_of_whole or (is_only and len(layouts_of_whole) > 1):
            raise InputError(
                f"the modules do not correspond: {subject} {number} (counting arrays) is {whole} in "
                f"{self.before.name}, {why}, but {shard} in {self.after.name}"
            )
        return tuple(layouts_of_whole)


def _pairs(wholes: Sequence[Shape], shards: Sequence[Shape]) -> list[tuple[ArrayShape, ArrayShape]] | None:
    """The arrays of both sides; None where one cannot be divided into the other."""
    first, second = (flat_arrays(*shapes) for shapes in (wholes, shards))
    pairs = []
    for whole, shard in zip_longest(first, second):
        if not isinstance(whole, ArrayShape) or not isinstance(shard, ArrayShape):
            return None
        if whole.rank != shard.rank or whole.element_type is not shard.element_type:
            return None
        if any(size < part for size, part in zip(whole.dimensions, shard.dimensions, strict=True)):
            return None
        # Layouts in memory do not matter.
        whole, shard = (ArrayShape(entry.element_type, entry.dimensions) for entry in (whole, shard))
        pairs.append((whole, shard))
    return pairs


def _shardings_of(module: Module) -> list[_Sharding]:
    """The shardings of the arrays among the parameters."""
    shardings_of_arrays = []
    for parameter in module.entry.parameters:
        sharding = parameter_sharding(module, parameter)
        shardings = leaf_shardings(sharding, parameter.shape, parameter.name)
        leaves = flat_shapes(parameter.shape)
        shardings_of_arrays += [entry for entry, leaf in zip(shardings, leaves, strict=True) if leaf.is_array]
    return shardings_of_arrays


def _of_results(module: Module) -> list[_Sharding]:
    """The shardings of the arrays of the result."""
    leaves = flat_shapes(module.entry.result_shape)
    return [entry for entry, leaf in zip(result_shardings(module), leaves, strict=True) if leaf.is_array]
