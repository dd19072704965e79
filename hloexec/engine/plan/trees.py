"""Values as trees of slots: plans hold only arrays and tokens, and a tuple is a tree of the slots of its leaves.

Nothing here recurses, because tuples may be nested deeply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from hloexec.core.ir import ArrayShape, BufferShape
from hloexec.core.values import TOKEN, Nested, flat, mapped

T = TypeVar("T")

SlotTree: TypeAlias = Nested[int]
"""A value as a tree of slots: a slot, or a tuple of trees."""

Leaf: TypeAlias = "ArrayShape | BufferShape"
"""The shape of what a slot holds."""

NO_SLOT = -1


def leaves(tree: SlotTree) -> tuple[int, ...]:
    """The slots of a tree, depth first."""
    if isinstance(tree, int):
        return (tree,)
    found = tuple([branch for branch in tree if isinstance(branch, int)])
    return found if len(found) == len(tree) else tuple(flat(tree))


def map_tree(tree: SlotTree, leaf: Callable[[int], T]) -> Nested[T]:
    """The tree with `leaf` of each slot in its place."""
    if isinstance(tree, int):
        return leaf(tree)
    return mapped(tree, leaf)


def unflatten(tree: SlotTree, slots: Sequence[Any] | Mapping[int, Any]) -> Any:
    """The value of a tree, given all slots."""
    if isinstance(tree, int):
        return slots[tree]
    if tuple not in map(type, tree):
        return tuple([slots[slot] for slot in tree])  # type: ignore[index]
    return mapped(tree, slots.__getitem__)


def store(results: Sequence[int], value: Any, slots: list[Any]) -> None:
    """Put the leaves of a tuple that a kernel returned into their slots."""
    if any(isinstance(element, tuple) for element in value):
        value = flat(value)
    for slot, leaf in zip(results, value, strict=True):
        slots[slot] = leaf


def fits(value: Any, shape: Leaf) -> bool:
    """Whether a leaf is of a shape; a dynamic dimension is of any size up to its bound."""
    array_shape = shape.array_shape
    if not array_shape.is_array:
        return not isinstance(value, np.ndarray) or value is TOKEN
    if not isinstance(value, np.ndarray) or value.dtype != array_shape.element_type.storage:
        return False
    return array_shape.has_room_for(value.shape)
