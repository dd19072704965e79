"""Wholes that a collective divides among the devices of a group, or puts together of their parts, along a dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from hloexec.core.ir import ArrayShape, ReplicaGroups, Shape, parts_of
from hloexec.ops.collective.groups import declared_results, extent_of, group_size, is_handed_on
from hloexec.ops.common import array_shape, require
from hloexec.ops.relations import Axes, Relating
from hloexec.ops.signatures import require_same_shape, same_type


class Divided(Protocol):
    """The attributes of such a collective."""

    @property
    def dimension(self) -> int: ...

    @property
    def replica_groups(self) -> ReplicaGroups: ...

    @property
    def channel_id(self) -> int | None: ...

    @property
    def use_global_device_ids(self) -> bool: ...


def pairs_of_shares(
    operands: Sequence[Shape], shape: Shape, attributes: Divided, opcode_name: str
) -> Iterator[tuple[int, Shape, Shape]]:
    """The operands that devices share in by their numbers, each with its declared result; ShapeError where there are
    not as many results as operands, or one that is handed on is declared otherwise."""
    results = declared_results(shape, len(operands), opcode_name)
    for number, (operand, result) in enumerate(zip(operands, results, strict=True)):
        if is_handed_on(number, operand, attributes):
            require_same_shape(result, operand, f"result {number} of {opcode_name}")
        else:
            yield number, operand, result


def require_shares(part: Shape, whole: Shape, attributes: Divided, what: str, expected: str) -> None:
    """ShapeError unless `whole` is a group's `part`s one after the other along the dimension."""
    opcode_name = what.rpartition(" ")[2]
    small, large = array_shape(part, what), array_shape(whole, what)
    dimension, size = attributes.dimension, group_size(attributes.replica_groups, opcode_name)
    extent = extent_of(small, dimension, what)
    others = [number for number in range(small.rank) if number != dimension]
    same = small.rank == large.rank and all(small.dimensions[i] == large.dimensions[i] for i in others)
    total = large.dimensions[dimension] if same else -1
    # A channel without global device numbers brings in all partitions of the replicas that the groups list.
    is_exact = size is not None and (attributes.channel_id is None or attributes.use_global_device_ids)
    unit = extent * (size or 1)
    fits = total == unit if is_exact else total % max(unit, 1) == 0
    require(
        same and fits and same_type(small.element_type, large.element_type),
        f"{what} must be {expected} along dimension {dimension} with {size or 'some number of'} devices in a group, "
        f"but the shapes are {part} and {whole}",
    )


def shares_in(part: Shape, whole: Shape, dimension: int) -> int | None:
    """How many times `whole` has the extent of `part` along a dimension; of tuples, their first elements. None where
    these are not such arrays, as in a module that is not verified."""
    extents = []
    for shape in (part, whole):
        first = next(iter(parts_of(shape)), None)
        if isinstance(first, ArrayShape) and 0 <= dimension < first.rank:
            extents.append(first.dimensions[dimension])
    return extents[1] // extents[0] if len(extents) == 2 and all(extents) else None


def relate_share(use: Relating, whole: Axes, part: Axes) -> None:
    """Along the dimension that devices share, one array is a multiple of the other."""
    for number, (ours, theirs) in enumerate(zip(whole, part, strict=True)):
        if number == use.attributes.dimension:
            use.shared(ours, theirs, use.group)
        else:
            use.same([ours], [theirs])
