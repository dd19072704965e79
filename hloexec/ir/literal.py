"""Literals: the values of constants.

A literal is an array, a tuple of literals, or *elided*: the text says `{...}` and its value is unknown. Elided literals
take no memory. Literals compare bit for bit, so NaNs with equal payloads are equal and -0 differs from +0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hloexec.ir.shape import ArrayShape, Shape
from hloexec.structs import frozen
from hloexec.values import Array

__all__ = ["Literal"]


@frozen(eq=False)
class Literal:
    """The value of a constant; `value` is None if the text elides it.

    An array literal holds a read-only NumPy array of the logical shape, in the element type's storage type; a tuple
    literal holds a tuple of literals.
    """

    shape: Shape
    value: Array | tuple[Literal, ...] | None

    @property
    def is_elided(self) -> bool:
        """Whether any part of the value is unknown."""
        return any(leaf.value is None for leaf in self.leaves())

    def leaves(self) -> Iterator[Literal]:
        """The literals that are no tuples, depth first."""
        stack = [self]
        while stack:
            literal = stack.pop()
            if isinstance(literal.value, tuple):
                stack.extend(reversed(literal.value))
            else:
                yield literal

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        # Equal shapes nest alike, so their leaves correspond.
        return self.shape == other.shape and all(
            _same_bits(ours.value, theirs.value) for ours, theirs in zip(self.leaves(), other.leaves(), strict=True)
        )

    def __hash__(self) -> int:
        return hash(self.shape)

    @classmethod
    def from_array(cls, array: Array, shape: ArrayShape) -> Literal:
        """A literal that holds a read-only view of `array`."""
        view = array.view()
        view.flags.writeable = False
        return cls(shape, view)


def _same_bits(ours: object, theirs: object) -> bool:
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        return ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()
    return ours is None and theirs is None
