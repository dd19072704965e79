"""How operations round: the trait of an opcode that classifies the rounding of its result."""

from __future__ import annotations

import enum

from hloexec.core.structs import frozen


class Rounding(enum.Enum):
    """What lies between the exact result for given operands and what an implementation gives."""

    NONE = enum.auto()
    """Nothing: elements are moved, chosen, compared or counted, or called computations do what rounding there is."""
    ONCE = enum.auto()
    """The exact result is rounded to the declared type."""
    FORMAT = enum.auto()
    """The operand is rounded to a narrower format, and kept in its own."""
    FUNCTION = enum.auto()
    """The result is approximated within a few ULPs, by every library in its own way, and rounded."""
    SUM = enum.auto()
    """Terms are added up, in an order that is the implementation's, each partial sum being rounded."""
    UNKNOWN = enum.auto()
    """Rounds in an unspecified way: treated as a sum over the largest dimension of its operands."""


class Sums(enum.Enum):
    """What is added up for one element of a result, as far as shapes tell it."""

    PRODUCTS = enum.auto()
    """Products, along what is contracted."""
    FOLDED = enum.auto()
    """As many elements as the operand has for each element of the result."""
    LINES = enum.auto()
    """Elements along one dimension."""
    PREFIXES = enum.auto()
    """Elements along one dimension, perhaps as a tree whose results are rounded at each level."""
    SCATTERED = enum.auto()
    """What meets at random places, rounded to the declared type after each addition."""


@frozen
class Summation:
    """What an instruction adds up for one element of its result."""

    terms: float
    """How many terms, at most."""
    along: tuple[tuple[int, ...], ...] = ()
    """Where the terms are elements of the operands, or products of them: each operand's dimensions over which the sum
    goes. Empty where they are not, or windows overlap."""
    is_stepwise: bool = False
    """Whether each partial sum is rounded to the declared type, not to the type that sums are accumulated in."""
    narrow_steps: float = 0.0
    """Where set, sums of a narrow type may be rounded to it at each step, as of so many terms one after the other."""
    is_product: bool = False
    """Whether the terms are multiplied with one another, not added."""
    transformed: tuple[float, ...] = ()
    """Of sums of elements times irrational factors, of either sign or complex, that are taken along each of the last
    dimensions in turn: how many terms each adds up one after the other."""
