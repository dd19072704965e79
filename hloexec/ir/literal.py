"""Literals: the values of constants.

A literal is an array, a tuple of literals, or *elided*: the text says `{...}` and its value is unknown. Elided literals
take no memory. Literals compare bit for bit, so NaNs with equal payloads are equal and -0 differs from +0.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from hloexec.ir.shape import ArrayShape, Shape

__all__ = ["Literal"]


@attrs.frozen(eq=False)
class Literal:
    """The value of a constant; `value` is None where the text elides it.

    An array literal holds a read-only NumPy array of the logical shape in the element type's storage type; a tuple
    literal holds a tuple of literals.
    """

    shape: Shape
    value: np.ndarray[Any, Any] | tuple[Literal, ...] | None

    @property
    def is_elided(self) -> bool:
        """Whether any part of the value is unknown."""
        if isinstance(self.value, tuple):
            return any(element.is_elided for element in self.value)
        return self.value is None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        if self.shape != other.shape:
            return False
        mine, its = self.value, other.value
        if isinstance(mine, np.ndarray) and isinstance(its, np.ndarray):
            return mine.dtype == its.dtype and mine.tobytes() == its.tobytes()
        if isinstance(mine, np.ndarray) or isinstance(its, np.ndarray):
            return False
        return mine == its

    def __hash__(self) -> int:
        return hash(self.shape)

    @classmethod
    def from_array(cls, array: np.ndarray[Any, Any], shape: ArrayShape) -> Literal:
        """A literal that holds a read-only view of `array`."""
        view = array.view()
        view.flags.writeable = False
        return cls(shape, view)
