"""The grid of a module's devices, as collectives, shardings and partition numbers show it, and its shorter forms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, product
from math import prod
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Instruction, Module, NamedSharding, TileSharding, flat_shapes
from hloexec.core.structs import define
from hloexec.engine.devices.tiles import tiles_of
from hloexec.engine.devices.topology import Topology, groups_of
from hloexec.errors import HloError, InputError
from hloexec.ops.relations import Place, Relations
from hloexec.tools.shrinking.devices.constants import DeviceConstants
from hloexec.tools.shrinking.devices.grid import Block, Grid, Run, Shorter, runs_of
from hloexec.tools.shrinking.devices.numbers import NOTHING, DeviceValues
from hloexec.tools.shrinking.primes import divisors


def is_collective(instruction: Instruction) -> bool:
    attributes = instruction.attributes
    return hasattr(attributes, "replica_groups") or hasattr(attributes, "source_target_pairs")


def grid_of(module: Module, topology: Topology, values: DeviceValues) -> Grid:
    """The grid whose axes end wherever something steps over; InputError where that is no grid."""
    cuts: dict[int, str] = {}
    for where, runs in chain(_collective_runs(module, topology), _value_runs(values), _sharding_runs(module, topology)):
        for length, step in runs:
            for cut in (abs(step), abs(step) * length):
                if cut and topology.count % cut == 0:
                    cuts.setdefault(cut, where)
    for low, high in pairwise(sorted(cuts)):
        if high % low:
            raise InputError(
                f"the devices form no grid: {cuts[low]} divides them into {low}, and {cuts[high]} into {high}"
            )
    return Grid.of_cuts(topology.count, list(cuts))


def _collective_runs(module: Module, topology: Topology) -> Iterator[tuple[str, list[Run]]]:
    for computation in module:
        for instruction in computation:
            if not is_collective(instruction):
                continue
            where = f"%{instruction.name} in {computation.name}"
            groups = [list(group.values()) for group in groups_of(instruction, topology)]
            pairs = getattr(instruction.attributes, "source_target_pairs", None)
            found = [runs_of(group) for group in groups]
            if pairs is not None:
                sources = runs_of([source for source, _ in sorted(pairs, key=lambda pair: pair[1])])
                whole = len(pairs) == topology.count and sources is not None
                yield from ((where, runs) for runs in ([sources] if whole else found) if runs)
                continue
            if found[0] is None or any(runs != found[0] for runs in found):
                raise InputError(
                    f"the groups of {where} do not lie along axes of a grid of devices, so that there is no part of it "
                    f"to keep: {instruction.attributes.replica_groups.expand()}"
                )
            yield where, found[0]


def _value_runs(values: DeviceValues) -> Iterator[tuple[str, list[Run]]]:
    for place in values.known:
        numbers = values.differing(place)
        runs = None if numbers is None or numbers.dtype == bool else runs_of(numbers.astype(np.int64))
        if runs is not None:
            strides = np.cumprod([1, *(length for length, _ in runs[:0:-1])])[::-1]
            steps = [(length, int(stride)) for (length, _), stride in zip(runs, strides, strict=True)]
            yield f"%{place[1]} in {place[0]}", steps


def _sharding_runs(module: Module, topology: Topology) -> Iterator[tuple[str, list[Run]]]:
    for instruction in module.entry:
        leaves = flat_shapes(instruction.shape)
        elements: Sequence[Any] = getattr(instruction.sharding, "elements", (instruction.sharding,))
        for leaf, sharding in zip(leaves, elements, strict=False):
            if isinstance(leaf, ArrayShape) and isinstance(sharding, (TileSharding, NamedSharding)):
                try:
                    tiles = tiles_of(sharding, leaf.rank, topology.partitions)
                except HloError:
                    continue
                for axis in range(leaf.rank):
                    runs = runs_of(np.moveaxis(tiles, axis, -1).reshape(-1, tiles.shape[axis])[0])
                    if runs is not None:
                        yield f"the sharding of %{instruction.name}", runs


@define(eq=False)
class DeviceAxes:
    """A grid with shorter axes, what devices compute on it, and the axes as dimensions that values have."""

    shorter: Shorter
    topology: Topology
    values: DeviceValues
    constants: DeviceConstants
    dimensions: dict[Block, int] = attrs.field(factory=dict)

    @property
    def grid(self) -> Grid:
        return self.shorter.before

    def dimension(self, block: Block, relations: Relations, where: Place) -> int:
        """The dimension that is as long as a block of axes."""
        if block not in self.dimensions:
            (found,) = relations.new((self.grid.size(block),))
            self.dimensions[block] = found
            relations.to_one.add(found)
            if len(block) > 1:
                parts = [self.dimension((axis,), relations, where) for axis in block]
                relations.split(found, parts, where)
        return self.dimensions[block]

    def group(self, instruction: Instruction) -> Block | None:
        """The axes along which a collective's groups lie; None where each device is alone."""
        if not hasattr(instruction.attributes, "replica_groups"):
            return None
        (first, *_) = groups_of(instruction, self.topology)
        block = self.grid.along(list(first.values()))
        if block is None:
            raise InputError(f"the groups of %{instruction.name} do not lie along axes of the grid of devices")
        return block or None

    def counted(self, place: Place) -> Block | None:
        """The axes along which a value counts, or from the numbers along which it is computed."""
        blocks = set()
        for source in self.values.known.get(place, NOTHING).sources:
            numbers = self.values.differing(source)
            block = None if numbers is None or numbers.dtype == bool else self.grid.block_of(numbers.astype(np.int64))
            if block is not None:
                blocks.add(block)
        return blocks.pop() if len(blocks) == 1 else None


def arrangements(
    module: Module, topology: Topology, values: DeviceValues, wanted: int | tuple[int, ...]
) -> Iterator[Shorter]:
    """All ways to shorten axes to so many devices, those first that keep most axes and shorten them evenly.

    The new sizes of all axes may be given instead.
    """
    grid = grid_of(module, topology, values)
    if isinstance(wanted, tuple):
        yield Shorter(grid, Grid(_checked_axes(grid, wanted)))
        return
    choices = [[size, *divisors(size)] if size > 1 else [1] for size in grid.sizes]
    found = [sizes for sizes in product(*choices) if prod(sizes) == wanted]
    if not found:
        counts = sorted({prod(sizes) for sizes in product(*choices)} - {grid.count}, reverse=True)
        raise InputError(
            f"{grid.count} devices, a grid of {' × '.join(map(str, grid.sizes))}, cannot become {wanted}: "
            f"possible are {', '.join(map(str, counts))}"
        )

    def order(sizes: tuple[int, ...]) -> tuple[int, float]:
        factors = [before // after for before, after in zip(grid.sizes, sizes, strict=True)]
        return sum(after == 1 < before for before, after in zip(grid.sizes, sizes, strict=True)), max(factors)

    for sizes in sorted(found, key=order):
        yield Shorter(grid, Grid(sizes))


def _checked_axes(grid: Grid, wanted: tuple[int, ...]) -> tuple[int, ...]:
    pairs = list(zip(grid.sizes, wanted, strict=False))
    if len(wanted) != len(grid.sizes) or any(before % after for before, after in pairs):
        raise InputError(
            f"the devices form a grid of {' × '.join(map(str, grid.sizes))}, which cannot become "
            f"{' × '.join(map(str, wanted))}: each axis needs a size that divides it"
        )
    return wanted
