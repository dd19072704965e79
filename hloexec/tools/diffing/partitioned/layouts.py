"""How an array is divided among devices, and which part of its operands a part of a result needs.

An instruction is evaluated on random numbers, once as they are and once with other numbers outside of a part of an
operand: what does not change in the result needs nothing but this part. A dimension of an operand of which no part
suffices is added up (or the largest is taken, and so on) if results for its parts combine to the whole result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Module, NamedSharding, TileSharding, TupleSharding
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.devices.manual_regions import places, tiles_of
from hloexec.engine.devices.topology import Topology
from hloexec.errors import UnsupportedError
from hloexec.ops.common import wide
from hloexec.ops.registry import find_opcode, traits_of
from hloexec.tools.diffing.graph import Instance
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.matching import is_near
from hloexec.tools.diffing.replaying.evaluation import Evaluator, Overlay


@frozen
class Division:
    """A dimension cut into equal parts."""

    parts: int
    places: tuple[int, ...]
    """Which part each device has."""


Layout: TypeAlias = tuple[Division | None, ...]
"""For each dimension of an array its division; None where every device has all of it."""


def is_whole(layout: Layout) -> bool:
    return not any(layout)


def layout_of(sharding: TileSharding | NamedSharding, rank: int, topology: Topology) -> Layout | None:
    """The layout that a sharding describes; None where it gives devices no tiles, or is for other devices."""
    try:
        tiles = tiles_of(sharding, rank, topology.partitions)
    except UnsupportedError:
        return None
    if tiles.size != topology.partitions:
        return None
    rows = {partition: place for partition, place, _ in places(tiles)}
    devices = [rows[topology.partition_of(device)] for device in range(topology.count)]
    return tuple(
        Division(parts, tuple(place[axis] for place in devices)) if parts > 1 else None
        for axis, parts in enumerate(tiles.shape[:-1])
    )


def tile_shape(shape: Sequence[int], layout: Layout) -> tuple[int, ...] | None:
    """The dimensions of the tiles of an array; None where one is not divided evenly."""
    pairs = list(zip(shape, layout, strict=True))
    if any(division is not None and size % division.parts for size, division in pairs):
        return None
    return tuple(size if division is None else size // division.parts for size, division in pairs)


def tile_of(shape: Sequence[int], layout: Layout, device: int) -> tuple[slice, ...]:
    """Where in an array the tile of a device lies; nothing if it is whole."""
    slices: list[slice] = []
    if is_whole(layout):
        return ()
    for size, division in zip(shape, layout, strict=True):
        part = size if division is None else size // division.parts
        start = 0 if division is None else part * division.places[device]
        slices.append(slice(start, start + part))
    return tuple(slices)


def part_of(array: Array, place: tuple[slice, ...]) -> Array:
    """A part of an array, as a view."""
    return np.asarray(array[place]) if place else array


def divisions_of(before: Module, after: Module, topology: Topology) -> list[Division]:
    """Those that occur in the shardings of either module, and those along two of them at once."""
    divisions: dict[Division, None] = {}
    for module in (before, after):
        for sharding in _shardings(module):
            divisions.update(dict.fromkeys(filter(None, _divisions(sharding, topology))))
    single = sorted(divisions, key=lambda entry: entry.parts)
    for first, second in permutations(single, 2):
        if are_independent((first, second)):
            both = zip(first.places, second.places, strict=True)
            combined = tuple(one * second.parts + other for one, other in both)
            divisions[Division(first.parts * second.parts, combined)] = None
    return list(divisions)[: LIMITS.divisions]


def _shardings(module: Module) -> Iterator[TileSharding | NamedSharding]:
    seen = set()
    for computation in module:
        for instruction in computation:
            sharding = instruction.sharding
            for entry in sharding.elements if isinstance(sharding, TupleSharding) else (sharding,):
                if entry is not None and entry not in seen:
                    seen.add(entry)
                    yield entry


def _divisions(sharding: TileSharding | NamedSharding, topology: Topology) -> Layout:
    if isinstance(sharding, NamedSharding):
        return layout_of(sharding, len(sharding.dimensions), topology) or ()
    kinds = len(sharding.last_tile_dims) or int(sharding.last_tile_dim_replicate)
    return layout_of(sharding, max(0, len(sharding.tile_dimensions) - kinds), topology) or ()


def are_independent(divisions: Collection[Division]) -> bool:
    """Whether every combination of parts is some device's."""
    parts = math.prod(division.parts for division in divisions)
    return len(set(zip(*(division.places for division in divisions), strict=True))) == parts


def layouts(shape: Sequence[int], divisions: Sequence[Division], counts: Collection[int]) -> list[Layout]:
    """The layouts in which tiles of an array have one of these numbers of elements, those with few divisions first."""
    partial_layouts: list[Layout] = [()]
    for size in shape:
        fitting: Iterable[Division | None] = [None, *(entry for entry in divisions if size % entry.parts == 0)]
        partial_layouts = [
            (*layout, entry)
            for layout in partial_layouts
            for entry in fitting
            if entry is None or are_independent([*filter(None, layout), entry])
        ]
    total = math.prod(shape)
    kept = [
        layout
        for layout in partial_layouts
        if not is_whole(layout) and total // math.prod(entry.parts for entry in layout if entry) in counts
    ]
    return sorted(kept, key=lambda layout: len([*filter(None, layout)]))[: LIMITS.layouts]


_Operands = Sequence[Array]


@frozen(eq=False)
class Sum:
    """A way in which a dimension vanishes."""

    combine: Callable[..., Any]
    neutral: Callable[[np.dtype[Any]], object]
    """What changes nothing, of a type."""


def _largest(dtype: np.dtype[Any]) -> Any:
    entry = element_type_of(dtype)
    return np.inf if entry.is_floating else np.iinfo(dtype).max if entry.is_integral else True


def _least(dtype: np.dtype[Any]) -> Any:
    entry = element_type_of(dtype)
    return -np.inf if entry.is_floating else np.iinfo(dtype).min if entry.is_integral else False


_SUMS = (
    Sum(np.add, lambda dtype: 0),
    Sum(np.maximum, _least),
    Sum(np.minimum, _largest),
    Sum(np.multiply, lambda dtype: 1),
)


class Dependence:
    """The dependence of one instruction's first result on its operands."""

    def __init__(self, instance: Instance, evaluator: Evaluator) -> None:
        self._instance = instance
        self._evaluator = evaluator
        self._nodes = [part[0] if len(part) == 1 else None for part in instance.operands]
        entry = find_opcode(instance.opcode)
        self.shape = instance.results[0].shape
        is_passed = traits_of(instance.instruction).moves == (0,) and self._is_unchanged()
        self._is_elementwise = is_passed or (entry is not None and entry.is_elementwise)
        self._known: dict[tuple[int, int, int, int], bool] = {}
        self._sums: dict[tuple[int, int, int], Sum | None] = {}
        self._base: list[Array] | None = None
        self._result: Array | None = None
        self._is_run = False

    def _is_unchanged(self) -> bool:
        """Whether the result is the first operand, row by row in the same dimensions."""
        result, operand = self._instance.results[0], self._nodes[0] if self._nodes else None
        return operand is not None and operand.shape == result.shape and operand.digest == result.digest

    def shape_of(self, operand: int) -> tuple[int, ...] | None:
        node = self._nodes[operand]
        return None if node is None else node.shape

    def suffices(self, operand: int, axis: int, of: int, parts: int) -> bool:
        """Whether a part of an operand along an axis suffices for that part of the result along another one."""
        dimensions = self.shape_of(operand)
        if dimensions is None or dimensions[axis] % parts or self.shape[of] % parts:
            return False
        if self._is_elementwise:
            return axis == of and dimensions == self.shape
        key = (operand, axis, of, parts)
        if key not in self._known:
            self._known[key] = all(self._holds(operand, axis, of, parts, place) for place in (0, parts - 1))
        return self._known[key]

    def _holds(self, operand: int, axis: int, of: int, parts: int, place: int) -> bool:
        operands, result = self._random()
        if operands is None or result is None:
            return False
        changed = list(operands)
        part = _part(operands[operand].shape, axis, parts, place)
        other = _changed(operands[operand])
        other[part] = operands[operand][part]
        changed[operand] = other
        changed_result = self.evaluate(changed)
        where = _part(result.shape, of, parts, place)
        return (
            changed_result is not None
            and changed_result.shape == result.shape
            and is_near(changed_result[where], result[where])
        )

    def sum_over(self, operand: int, axis: int, parts: int) -> Sum | None:
        """How the results for parts of an operand along an axis combine to the whole result; None where they do not."""
        key = (operand, axis, parts)
        if key not in self._sums:
            self._sums[key] = self._sum_over(*key)
        return self._sums[key]

    def _sum_over(self, operand: int, axis: int, parts: int) -> Sum | None:
        dimensions = self.shape_of(operand)
        if self._is_elementwise or dimensions is None or dimensions[axis] % parts:
            return None
        operands, result = self._random()
        if operands is None or result is None:
            return None
        for way in _SUMS:
            total: Array | None = None
            for place in range(parts):
                masked_operands = list(operands)
                part = _part(dimensions, axis, parts, place)
                masked_operands[operand] = masked(operands[operand], part, way)
                part_result = self.evaluate(masked_operands)
                if part_result is None:
                    return None
                total = wide(part_result) if total is None else way.combine(total, wide(part_result))
            if total is not None and is_near(total.astype(result.dtype), result):
                return way
        return None

    def partner(self, operand: int, axis: int, parts: int) -> list[tuple[int, int]]:
        """The axes of other operands that are added up together with an axis of this one."""
        way = self.sum_over(operand, axis, parts)
        operands, _ = self._random()
        if way is None or operands is None:
            return []
        partners = []
        masked_operands = list(operands)
        masked_operands[operand] = masked(operands[operand], _part(operands[operand].shape, axis, parts, 0), way)
        wanted = self.evaluate(masked_operands)
        for other, array in enumerate(operands):
            if other == operand or self._nodes[other] is None:
                continue
            for place, size in enumerate(array.shape):
                if size != operands[operand].shape[axis]:
                    continue
                both = list(operands)
                both[other] = masked(array, _part(array.shape, place, parts, 0), way)
                result = self.evaluate(both)
                if wanted is not None and result is not None and is_near(result, wanted):
                    partners.append((other, place))
        return partners

    def evaluate(self, operands: _Operands) -> Array | None:
        """The first result for other operands."""
        nodes = [node for part in self._instance.operands for node in part]
        changes = {node.number: array for node, array in zip(nodes, operands, strict=True)}
        with np.errstate(all="ignore"):
            arrays = self._evaluator.results(self._instance, Overlay({}, changes))
        return arrays[0] if arrays else None

    def _random(self) -> tuple[list[Array] | None, Array | None]:
        """Operands with random floats, and what they give."""
        if not self._is_run:
            self._is_run = True
            nodes = [node for part in self._instance.operands for node in part]
            if len({node.number for node in nodes}) == len(nodes) and None not in self._nodes:
                self._base = [_noise(node.value, node.number) if node.value.size > 1 else node.value for node in nodes]
                self._result = self.evaluate(self._base)
        return self._base, self._result


def masked(array: Array, part: tuple[slice, ...], way: Sum) -> Array:
    """An array with nothing outside of a part that would change a sum."""
    masked_array = np.full_like(array, way.neutral(array.dtype))
    masked_array[part] = array[part]
    return masked_array


def _part(dimensions: Sequence[int], axis: int, parts: int, place: int) -> tuple[slice, ...]:
    size = dimensions[axis] // parts
    return tuple(
        slice(place * size, (place + 1) * size) if dimension == axis else slice(None)
        for dimension in range(len(dimensions))
    )


def _noise(array: Array, seed: int) -> Array:
    """Random numbers of the same type; integers, which may be indices, stay as they are."""
    if not element_type_of(array.dtype).is_inexact:
        return array
    return np.asarray(np.random.default_rng(seed).standard_normal(array.shape)).astype(array.dtype)


def _changed(array: Array) -> Array:
    """Other numbers in every place, integers between the least and the largest."""
    entry = element_type_of(array.dtype)
    if entry.is_inexact:
        return np.asarray(-array - array.dtype.type(3))
    if entry.is_integral:
        return np.asarray(array.min() + array.max() - array, array.dtype)
    return np.logical_not(array)
