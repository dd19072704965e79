"""Float widths: optimized modules mix them, and every result is nevertheless of the type that its instruction declares.

The verifier tolerates that a value meets a declaration of another float width: a copy, a called computation's parameter
or result, the state of a loop. Plans convert there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import ElementType
from hloexec.exec.values import flat
from hloexec.ir import ArrayShape, BufferShape, Shape, leaf_shapes
from hloexec.ops.common import narrow, widen

__all__ = ["AsDeclared", "Conversion", "conversion", "converted", "float_types", "with_type"]


@attrs.frozen(eq=False)
class Conversion:
    """Converts the leaves of a value, given one by one; one that is not to change stays the array it is."""

    types: tuple[ElementType | None, ...]
    """By leaf; None for leaves that are no floats."""

    def __call__(self, *leaves: Any) -> Any:
        found = tuple(map(converted, leaves, self.types))
        return found if len(found) != 1 else found[0]


@attrs.frozen(eq=False)
class AsDeclared:
    """A kernel that gives the float widths of its operands, made to give those that its instruction declares."""

    kernel: Callable[..., Any]
    conversion: Conversion

    def __call__(self, *operands: Any) -> Any:
        return self.declared(self.kernel(*operands))

    def declared(self, value: Any) -> Any:
        return self.conversion(*flat(value)) if isinstance(value, tuple) else self.conversion(value)


def with_type(shape: ArrayShape | BufferShape, element_type: ElementType) -> ArrayShape | BufferShape:
    """The shape with another element type."""
    if isinstance(shape, BufferShape):
        return BufferShape(shape.element.with_element_type(element_type))
    return shape.with_element_type(element_type)


def _type(shape: ArrayShape | BufferShape) -> ElementType:
    return shape.element.element_type if isinstance(shape, BufferShape) else shape.element_type


def float_types(shape: Shape) -> tuple[ElementType | None, ...]:
    """The element types of a shape's leaves; None for those that are no floats."""
    if isinstance(shape, ArrayShape):
        return (shape.element_type if shape.element_type.is_floating else None,)
    found = (_type(leaf) for _, leaf in leaf_shapes(shape))
    return tuple(entry if entry.is_floating else None for entry in found)


def conversion(shapes: Sequence[ArrayShape | BufferShape], types: Sequence[ElementType | None]) -> Conversion | None:
    """What turns leaves of `shapes` into `types`; None where nothing is to do, or the leaves do not correspond."""
    if len(shapes) != len(types):
        return None
    for shape, wanted in zip(shapes, types, strict=True):
        if wanted is not None and wanted is not _type(shape) and _type(shape).is_floating:
            return Conversion(tuple(types))
    return None


def converted(value: Any, wanted: ElementType | None) -> Any:
    """A leaf in a float type, rounded once; the leaf itself where it is of that type, or `wanted` is None."""
    if wanted is None or not isinstance(value, (np.ndarray, np.generic)) or value.dtype == wanted.storage:
        return value
    return narrow(widen(np.asarray(value)), wanted)
