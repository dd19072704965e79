"""Literals: the values of constants.

A literal is an array, a tuple of literals, or *elided*: the text says `{...}` and its value is unknown. Elided literals
take no memory, and a large one of which the text gives a single value takes none before it is asked for. Literals
compare bit for bit, so NaNs with equal payloads are equal and -0 differs from +0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import attrs
import numpy as np

from hloexec.core.ir.shape import ArrayShape, Shape, TupleShape
from hloexec.core.process import memory_limit_bytes
from hloexec.core.structs import frozen
from hloexec.core.tree import Nested, flat, fold, rebuilt
from hloexec.core.values import Array
from hloexec.core.wording import byte_text
from hloexec.errors import ResourceError

T = TypeVar("T")


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
    def array(self) -> Array | None:
        """The array; None where it is elided, or a tuple."""
        return None if isinstance(self.held, tuple) else self.value  # type: ignore[return-value]

    @property
    def is_elided(self) -> bool:
        """Whether any part of the value is unknown."""
        return any(leaf.held is None for leaf in self.leaves())

    def leaves(self) -> Iterator[Literal]:
        """The literals that are no tuples, depth first."""
        return iter(flat(self, literals_of))

    def mapped(self, leaf: Callable[[Any], T]) -> Nested[T]:
        """Tuples nested as the literal, with what `leaf` makes of each that is no tuple."""
        return rebuilt(self, literals_of, leaf)

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


def literals_of(literal: Literal) -> tuple[Literal, ...] | None:
    """The elements of a tuple's literal; None of any other."""
    return literal.held if isinstance(literal.held, tuple) else None


def tuple_literal(_: object, elements: Iterable[Literal]) -> Literal:
    """The literal of a tuple, where a tree of literals is put together again."""
    literals = tuple(elements)
    return Literal(TupleShape(tuple(literal.shape for literal in literals)), literals)


def map_literal(literal: Literal, change: Callable[[Literal], Literal]) -> Literal:
    """The literal with what `change` makes of each that is no tuple."""
    return fold(literal, literals_of, change, tuple_literal)


def _same_bits(our_leaf: Literal, their_leaf: Literal) -> bool:
    ours, theirs = our_leaf.held, their_leaf.held
    if isinstance(ours, FirstElement) and isinstance(theirs, FirstElement):
        return ours.element.tobytes() == theirs.element.tobytes()
    ours, theirs = our_leaf.value, their_leaf.value
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        return ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()
    return ours is None and theirs is None
