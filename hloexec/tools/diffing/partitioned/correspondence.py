"""The correspondence between a module and what SPMD partitioning made of it: wholes, and the shards of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from hloexec.core.ir import (
    ArrayShape,
    Module,
    NamedSharding,
    Shape,
    TileSharding,
    flat_arrays,
    flat_shapes,
)
from hloexec.core.structs import frozen
from hloexec.core.values import TOKEN, Array, Value, flat
from hloexec.engine.devices.topology import Topology
from hloexec.engine.sharding import leaf_shardings, parameter_sharding, result_shardings
from hloexec.errors import InputError
from hloexec.language.text.attributes.printing import sharding as sharding_text
from hloexec.tools.diffing.agreement import is_near
from hloexec.tools.diffing.correspondence import Correspondence, nested
from hloexec.tools.diffing.graph import Graph
from hloexec.tools.diffing.partitioned.layouts import (
    Division,
    Layout,
    divisions_of,
    is_whole,
    layout_of,
    layouts,
    tile_of,
    tile_shape,
)
from hloexec.tools.diffing.partitioned.tiles import Tiles
from hloexec.tools.diffing.replaying.evaluation import Evaluator

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
        found = []
        for device in range(self.topology.count):
            leaves = []
            for number, (whole, layout) in enumerate(zip(wholes, self.parameters, strict=True)):
                if not is_whole(layout):
                    place = tile_of(whole.shape, layout, device)
                    # Devices that have the same shard share it.
                    whole = shards.setdefault((number, str(place)), np.ascontiguousarray(whole[place]))
                leaves.append(whole)
            rest: Iterator[Any] = iter(leaves)
            found.append([nested(shape, rest) for shape in self.after.entry.parameter_shapes])
        return found

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
        self, what: str, number: int, whole: ArrayShape, shard: ArrayShape, sharding: _Sharding, is_only: bool = False
    ) -> tuple[Layout, ...]:
        """The layouts in which an array has such shards: that of its sharding or, without one, all that are possible;
        InputError where there is none, or not one only."""
        stated = None if sharding is None else layout_of(sharding, whole.rank, self.topology)
        if sharding is not None and stated is not None:
            expected = tile_shape(whole.dimensions, stated)
            found = [stated] if expected == shard.dimensions else []
            why = f"not divided evenly by {sharding_text(sharding)}"
            if expected is not None:
                why = f"{ArrayShape(whole.element_type, expected)} on each device by {sharding_text(sharding)}"
        elif shard.dimensions == whole.dimensions:
            return ((None,) * whole.rank,)
        else:
            possible = layouts(whole.dimensions, self.divisions, {math.prod(shard.dimensions)})
            found = [layout for layout in possible if tile_shape(whole.dimensions, layout) == shard.dimensions]
            why = "without a sharding that says how it is divided"
        if not found or (is_only and len(found) > 1):
            raise InputError(
                f"the modules do not correspond: {what} {number} (counting arrays) is {whole} in {self.before.name}, "
                f"{why}, but {shard} in {self.after.name}"
            )
        return tuple(found)


def _pairs(wholes: Sequence[Shape], shards: Sequence[Shape]) -> list[tuple[ArrayShape, ArrayShape]] | None:
    """The arrays of both sides; None where one cannot be divided into the other."""
    first, second = (flat_arrays(*shapes) for shapes in (wholes, shards))
    found = []
    for whole, shard in zip_longest(first, second):
        if not isinstance(whole, ArrayShape) or not isinstance(shard, ArrayShape):
            return None
        if whole.rank != shard.rank or whole.element_type is not shard.element_type:
            return None
        if any(size < part for size, part in zip(whole.dimensions, shard.dimensions, strict=True)):
            return None
        # Layouts in memory do not matter.
        whole, shard = (ArrayShape(entry.element_type, entry.dimensions) for entry in (whole, shard))
        found.append((whole, shard))
    return found


def _shardings_of(module: Module) -> list[_Sharding]:
    """The shardings of the arrays among the parameters."""
    found = []
    for parameter in module.entry.parameters:
        sharding = parameter_sharding(module, parameter)
        shardings = leaf_shardings(sharding, parameter.shape, parameter.name)
        leaves = flat_shapes(parameter.shape)
        found += [entry for entry, leaf in zip(shardings, leaves, strict=True) if leaf.is_array]
    return found


def _of_results(module: Module) -> list[_Sharding]:
    """The shardings of the arrays of the result."""
    leaves = flat_shapes(module.entry.result_shape)
    return [entry for entry, leaf in zip(result_shardings(module), leaves, strict=True) if leaf.is_array]
