"""What holds a module up that cannot become small enough: the sizes that cost most, and what would release them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import attrs

from hloexec.core.ir import Module, leaf_shapes
from hloexec.core.structs import define
from hloexec.ops.registry import Role, role_of
from hloexec.ops.relations import Place
from hloexec.tools.shrinking.dimensions import Dimensions
from hloexec.tools.shrinking.forecast import NO_ARRAYS
from hloexec.tools.shrinking.grouping import FOLLOWS, Group, Groups, divisors
from hloexec.tools.shrinking.rewriting import HoldingSize, resized_shape
from hloexec.tools.summary import run_counts

_MOST_TOLD = 3
_MOST_TRIED = 3


@define
class _Cost:
    bytes: float = 0.0
    largest: int = 0
    place: Place = ("", "")
    roots: dict[int, None] = attrs.field(factory=dict)


Trial = Callable[[int, int], int | None]
"""What a run takes at the least with one size made another, inputs included; None where that cannot be."""


def holding_sizes(
    module: Module, dimensions: Dimensions, groups: Groups, sizes: Mapping[int, int], trial: Trial
) -> tuple[HoldingSize, ...]:
    """The sizes that cost most at the new `sizes` of roots, each with the `dims` that a trial has shown to help."""
    costs = _costs(module, dimensions, groups, sizes)
    order = sorted(costs, key=lambda key: (-costs[key].bytes, str(key)))
    return tuple(_holding(dimensions, groups, sizes, costs[key], trial) for key in order[:_MOST_TOLD])


def _costs(
    module: Module, dimensions: Dimensions, groups: Groups, sizes: Mapping[int, int]
) -> dict[int | tuple[int, str], _Cost]:
    """By group, and by size and reason of what stays, what arrays would take less."""
    costs: dict[int | tuple[int, str], _Cost] = defaultdict(_Cost)
    root_of, before = dimensions.relations.root, dimensions.relations.sizes
    for place, dimension, size in _dimensions(module, dimensions, sizes):
        root = root_of(dimension)
        is_kept = root in groups.kept
        for key in [(before[root], groups.kept[root][0])] if is_kept else dict.fromkeys(groups.numbers(root)):
            now = sizes.get(root, before[root])
            cost = costs[key]
            cost.bytes += size * (1 - 1 / max(1, now))
            cost.roots[root] = None
            if size > cost.largest:
                cost.largest, cost.place = size, place
    return costs


def _dimensions(module: Module, dimensions: Dimensions, sizes: Mapping[int, int]) -> Iterator[tuple[Place, int, int]]:
    """The dimensions of arrays that a run makes or is given, each with the bytes of the array at the new sizes."""
    for name in run_counts(module):
        computation = module.by_name[name]
        for instruction in computation:
            is_input = computation is module.entry and role_of(instruction) is Role.PARAMETER
            if not is_input and role_of(instruction) in (*NO_ARRAYS, Role.WHILE):
                continue
            value = dimensions.values[name][instruction.name]
            leaves = leaf_shapes(resized_shape(value, dimensions, sizes))
            for (_, leaf), axes in zip(leaves, value.leaves.values(), strict=True):
                yield from (((name, instruction.name), axis, leaf.byte_size) for axis in axes)


def _holding(
    dimensions: Dimensions, groups: Groups, sizes: Mapping[int, int], cost: _Cost, trial: Trial
) -> HoldingSize:
    before = dimensions.relations.sizes
    root = max(cost.roots, key=lambda root: (root in groups.of_root, before[root]))
    released = _released(groups, before[root], root, trial)
    reason, place = _reason(dimensions, groups, root, cost.place, is_released=released[0] is not None)
    return HoldingSize(before[root], sizes.get(root, before[root]), reason, *place, round(cost.bytes), *released)


def _reason(dimensions: Dimensions, groups: Groups, root: int, place: Place, *, is_released: bool) -> tuple[str, Place]:
    if root in groups.kept:
        return _cause(dimensions, groups, root)
    if root not in groups.of_root:
        return "it is a product of others", place
    group = groups.groups[groups.of_root[root]]
    smallest = min(group.bases, key=lambda other: group.bases[other])
    if group.bases[smallest] < group.bases[root]:
        return f"it shrinks in proportion with {dimensions.relations.sizes[smallest]}", place
    return "it becomes no smaller " + ("unless asked for" if is_released else "with what depends on it"), place


def _cause(dimensions: Dimensions, groups: Groups, root: int) -> tuple[str, Place]:
    """Why a root stays; where it follows from others, why the nearest of them does."""
    relations = dimensions.relations
    neighbours: dict[int, list[int]] = defaultdict(list)
    for equation in relations.equations:
        roots = [relations.root(dimension) for dimension, _ in equation.terms]
        for member in roots:
            neighbours[member] += roots
    waiting, seen = [root], {root}
    for member in waiting:
        reason, place = groups.kept.get(member, (FOLLOWS, ("", "")))
        if reason != FOLLOWS:
            size = relations.sizes[member]
            return (reason if member == root else f"it follows from {size}, of which {reason}"), place
        fresh = [other for other in neighbours[member] if other in groups.kept and other not in seen]
        seen.update(fresh)
        waiting += dict.fromkeys(fresh)
    return groups.kept[root]


def _released(groups: Groups, size: int, root: int, trial: Trial) -> tuple[int, int] | tuple[None, None]:
    """The smallest size that a trial shows to be possible, and what a run takes then."""
    for new_size in _smaller_sizes(groups, size, root)[:_MOST_TRIED]:
        taken = trial(size, new_size)
        if taken is not None:
            return new_size, taken
    return None, None


def _smaller_sizes(groups: Groups, size: int, root: int) -> list[int]:
    """What may be made of a size, the smallest first."""
    if root not in groups.of_root:
        return divisors(size)[::-1]
    group: Group = groups.groups[groups.of_root[root]]
    units = divisors(group.unit)[::-1] if group.is_divided else [group.lowest, group.least]
    return [group.sizes(unit)[root] for unit in dict.fromkeys(units) if group.lowest <= unit < group.unit]
