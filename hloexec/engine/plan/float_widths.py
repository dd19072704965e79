"""Mixed float widths: optimized modules mix them, and every result nevertheless has the type that its instruction
declares.

The verifier tolerates a value of one float width where another is declared: in a copy, a called computation's parameter
or result, the state of a loop. Plans convert at these points, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, BufferShape, Shape, leaf_shapes
from hloexec.engine.plan.trees import Leaf
from hloexec.ops.common import narrow, widen


def with_type(shape: Leaf, element_type: ElementType) -> Leaf:
    """The shape with another element type."""
    if isinstance(shape, BufferShape):
        return BufferShape(shape.element.with_element_type(element_type))
    return shape.with_element_type(element_type)


def float_types(shape: Shape) -> tuple[ElementType | None, ...]:
    """The element types of a shape's leaves; None for those that are no floats."""
    if isinstance(shape, ArrayShape):
        return (shape.element_type if shape.element_type.is_floating else None,)
    found = (leaf.array_shape.element_type for _, leaf in leaf_shapes(shape))
    return tuple(entry if entry.is_floating else None for entry in found)


def needs_conversion(shapes: Sequence[Leaf], types: Sequence[ElementType | None]) -> bool:
    """Whether leaves of `shapes` correspond to `types`, and one of them is a float of another width."""
    return len(shapes) == len(types) and any(
        wanted is not None and wanted is not ours and ours.is_floating
        for ours, wanted in zip((shape.array_shape.element_type for shape in shapes), types, strict=True)
    )


def converted(value: object, wanted: ElementType | None) -> Any:
    """A leaf in a float type, rounded once; the leaf itself where it is of that type, or `wanted` is None."""
    if wanted is None or not isinstance(value, (np.ndarray, np.generic)) or value.dtype == wanted.storage:
        return value
    return narrow(widen(np.asarray(value)), wanted)
