"""The leaves of values: taken out of tuples, put into slots, held against shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.ir import ArrayShape, BufferShape
from hloexec.values import TOKEN

__all__ = ["fits", "flat", "store"]


def flat(value: Any) -> list[Any]:
    """The leaves of nested tuples."""
    found: list[Any] = []
    stack = [value]
    while stack:
        current = stack.pop()
        if isinstance(current, tuple):
            stack.extend(reversed(current))
        else:
            found.append(current)
    return found


def store(results: Sequence[int], value: Any, slots: list[Any]) -> None:
    """Put the leaves of a tuple that a kernel returned into their slots."""
    if any(isinstance(element, tuple) for element in value):
        value = flat(value)
    for slot, leaf in zip(results, value, strict=True):
        slots[slot] = leaf


def fits(value: Any, shape: ArrayShape | BufferShape) -> bool:
    """Whether a leaf is of a shape; a dynamic dimension is of any size up to its bound."""
    array_shape = shape.element if isinstance(shape, BufferShape) else shape
    if not array_shape.is_array:
        return not isinstance(value, np.ndarray) or value is TOKEN
    if not isinstance(value, np.ndarray) or value.dtype != array_shape.element_type.storage:
        return False
    if not array_shape.dynamic_dimensions:
        return bool(value.shape == array_shape.dimensions)
    return value.ndim == array_shape.rank and all(
        size == bound or (dynamic and (bound < 0 or size <= bound))
        for size, bound, dynamic in zip(
            value.shape, array_shape.dimensions, array_shape.dynamic_dimensions, strict=True
        )
    )
