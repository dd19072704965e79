"""What collectives have in common: the attributes that say who takes part, and the rules for them.

A collective's kernel is its entry's `exchange`: from the operands of the members of one group, by their numbers and in
the order of the group, to their results. `devices.topology` decides which devices form groups. Members that get
equal results get one and the same array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, DType
from hloexec.core.ir import ArrayShape, ReplicaGroups, Shape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import require
from hloexec.ops.registry import ANY, Role, opcode

collective = partial(opcode, operands=(1, ANY), role=Role.MACHINE)
"""Register the decorated class as the entry of a collective, as `opcode` does."""

Members: TypeAlias = Mapping[int, Sequence[Array]]
"""The operands of each member of a group, by the member's number."""

Results: TypeAlias = dict[int, Any]
"""The result of each member, an array or a tuple of arrays."""


@frozen
class CollectiveAttributes:
    """Which devices take part, and over which channel."""

    channel_id: int | None = attribute(Grammar.INT, default=None)
    replica_groups: ReplicaGroups = attribute(Grammar.REPLICA_GROUPS, default=ReplicaGroups(), always_printed=True)


@frozen
class RootedAttributes(CollectiveAttributes):
    """Of collectives in which one device of each group, the root, has a part of its own."""

    has_dynamic_root: bool = attribute(Grammar.BOOL, default=False)
    """Whether the last operand says for each of the others which device of the group is the root; else it is the first.
    """


def data_operands(operands: Sequence[Shape], attributes: RootedAttributes, opcode_name: str) -> tuple[Shape, ...]:
    """The operands but for the roots, which are s32[n] for n operands; ShapeError where they are not."""
    if not attributes.has_dynamic_root:
        return tuple(operands)
    *data, roots = operands
    wanted = ArrayShape(ELEMENT_TYPES["s32"], (len(data),))
    require(
        bool(data) and roots.compatible(wanted),
        f"the last operand of a {opcode_name} with a dynamic root must be {wanted}, a device of the group for each "
        f"other operand, but has shape {roots}",
    )
    return tuple(data)


def without_roots(members: Members, attributes: RootedAttributes) -> Members:
    """The operands of each member but for the roots."""
    if not attributes.has_dynamic_root:
        return members
    return {member: operands[:-1] for member, operands in members.items()}


def roots_of(members: Members, attributes: RootedAttributes, opcode_name: str) -> list[int]:
    """The root of each operand, by the member's number; EvaluationError where the members name none of them."""
    numbers = list(members)
    first = members[numbers[0]]
    if not attributes.has_dynamic_root:
        return [numbers[0]] * len(first)
    places = first[-1].tolist()
    for member, operands in members.items():
        if operands[-1].tolist() != places:
            raise EvaluationError(
                f"the devices of a group of {opcode_name} name different roots: {places} on device {numbers[0]}, "
                f"{operands[-1].tolist()} on device {member}"
            )
    for place in places:
        if not 0 <= place < len(numbers):
            raise EvaluationError(f"root {place} of {opcode_name} is none of the {len(numbers)} devices of its group")
    return [numbers[place] for place in places]


@lru_cache(maxsize=1024)
def zeros(dtype: DType, sizes: tuple[int, ...]) -> Array:
    """Zeros that take no memory, the same for all members."""
    return np.broadcast_to(np.zeros((), dtype), sizes)


def one_or_all(arrays: Sequence[Array]) -> Any:
    """The array where there is only one, else all of them as a tuple."""
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def group_size(groups: ReplicaGroups, opcode_name: str) -> int | None:
    """How many devices a group has, or None where the text leaves it to the module; groups must be of one size."""
    if groups.iota is not None:
        return groups.iota.dimensions[-1]
    require_distinct(groups, opcode_name)
    sizes = {len(group) for group in groups.groups}
    require(
        len(sizes) <= 1, f"the replica groups of {opcode_name} must be of one size, but have {sorted(sizes)} devices"
    )
    return next(iter(sizes), None)


def require_distinct(groups: ReplicaGroups, opcode_name: str) -> None:
    """No group may be empty; no device may be in two groups, or twice in one."""
    require(all(groups.groups), f"the replica groups of {opcode_name} must not be empty, but are {groups.groups}")
    devices = [device for group in groups.groups for device in group]
    require(
        len(set(devices)) == len(devices) and all(device >= 0 for device in devices),
        f"the replica groups of {opcode_name} must name each device at most once, but are {groups.groups}",
    )


def extent_of(shape: ArrayShape, dimension: int, what: str) -> int:
    """The size of a dimension, which must be there."""
    require(0 <= dimension < shape.rank, f"dimension {dimension} is out of range for {what}, which has shape {shape}")
    return shape.dimensions[dimension]


def is_handed_on(number: int, operand: Shape, attributes: object) -> bool:
    """Whether an operand goes along unchanged, only to keep collectives in order: a token, or a scalar behind arrays
    that are divided or put together, which is what PyTorch/XLA on AWS Neuron has for one. Neuron's compiler takes it
    away before the module runs ("Compute-Communication Overlap in Neuron"); XLA's parser reads it."""
    if number == 0 or not isinstance(operand, ArrayShape):
        return False
    return operand.is_token or (operand.rank == 0 and getattr(attributes, "dimension", None) is not None)


def declared_results(shape: Shape, count: int, opcode_name: str) -> tuple[Shape, ...]:
    """The results as declared: one array, or a tuple of as many as there are operands."""
    results = parts_of(shape)
    require(len(results) == count, f"{opcode_name} has {count} operands, but {len(results)} results: {shape}")
    return results
