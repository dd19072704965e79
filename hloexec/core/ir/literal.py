"""Literals: the values of constants.

A literal is an array, a tuple of literals, or *elided*: the text says `{...}` and its value is unknown. Elided literals
take no memory, and a large one of which the text gives a single value takes none before it is asked for. Literals
compare bit for bit, so NaNs with equal payloads are equal and -0 differs from +0.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from hloexec.core.ir.shape import ArrayShape, Shape
from hloexec.core.process import memory_limit_bytes
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.core.wording import byte_text
from hloexec.errors import ResourceError


@frozen(eq=False)
class FirstElement:
    """An array whose first element is given and whose others are zero, which is made when it is asked for."""

    element: Array
    shape: ArrayShape

    def array(self) -> Array:
        """The array, read-only; raises ResourceError where it is larger than the memory that may be taken."""
        size, allowed = self.shape.byte_size, memory_limit_bytes(None)
        if allowed is not None and size > allowed:
            raise ResourceError(
                f"a constant {self.shape} takes {byte_text(size)}, more than {byte_text(allowed)}, "
                "80 % of what this machine has free"
            )
        array = np.zeros(self.shape.dimensions, self.shape.element_type.storage)
        array.flat[0] = self.element
        array.flags.writeable = False
        return array


@frozen(eq=False)
class Literal:
    """The value of a constant; `value` is None if the text elides it.

    An array literal holds a read-only NumPy array of the logical shape, in the element type's storage type; a tuple
    literal holds a tuple of literals.
    """

    shape: Shape
    held: Array | FirstElement | tuple[Literal, ...] | None = attrs.field(alias="value")

    @property
    def value(self) -> Array | tuple[Literal, ...] | None:
        """The array, the elements of a tuple, or None."""
        return self.held.array() if isinstance(self.held, FirstElement) else self.held

    @property
    def is_elided(self) -> bool:
        """Whether any part of the value is unknown."""
        return any(leaf.held is None for leaf in self.leaves())

    def leaves(self) -> Iterator[Literal]:
        """The literals that are no tuples, depth first."""
        stack = [self]
        while stack:
            literal = stack.pop()
            if isinstance(literal.held, tuple):
                stack.extend(reversed(literal.held))
            else:
                yield literal

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        # Equal shapes nest alike, so their leaves correspond.
        return self.shape == other.shape and all(
            _same_bits(ours, theirs) for ours, theirs in zip(self.leaves(), other.leaves(), strict=True)
        )

    def __hash__(self) -> int:
        # Modules have thousands of scalars.
        first: Array | None = None
        if isinstance(self.held, FirstElement):
            first = self.held.element
        elif isinstance(self.held, np.ndarray):
            first = self.held[(slice(1),) * self.held.ndim]
        return hash((self.shape, None if first is None else first.tobytes()))

    @classmethod
    def from_array(cls, array: Array, shape: ArrayShape) -> Literal:
        """A literal that holds a read-only view of `array`."""
        view = array.view()
        view.flags.writeable = False
        return cls(shape, view)


def _same_bits(our_leaf: Literal, their_leaf: Literal) -> bool:
    ours, theirs = our_leaf.held, their_leaf.held
    if isinstance(ours, FirstElement) and isinstance(theirs, FirstElement):
        return ours.element.tobytes() == theirs.element.tobytes()
    ours, theirs = our_leaf.value, their_leaf.value
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        return ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()
    return ours is None and theirs is None
